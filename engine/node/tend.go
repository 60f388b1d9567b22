package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/snapshot"
)

// tend does what is done on a timer: it makes outputs durable, watches the disk, takes checkpoints.
func (n *Node) tend(ctx context.Context) {
	var work sync.WaitGroup
	work.Go(func() { n.every(ctx, time.Second, n.syncOutputs) })
	work.Go(func() { n.every(ctx, time.Second, n.watch) })
	work.Go(func() { n.every(ctx, time.Second, n.checkpointDue) })
	work.Wait()
}

func (n *Node) every(ctx context.Context, d time.Duration, do func(context.Context) error) {
	t := time.NewTicker(d)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if err := do(ctx); err != nil && ctx.Err() == nil {
				n.fail(err)
				return
			}
		}
	}
}

// syncOutputs makes what the embedded server stored durable, and notes how far that is.
func (n *Node) syncOutputs(context.Context) error {
	if n.server == nil {
		return nil
	}
	stored := make([]engine.Acked, len(n.partitions))
	news := false
	for i, p := range n.partitions {
		p.out.Lock()
		stored[i] = p.chain.Stored()
		news = news || stored[i].Output > p.durable.Output
		p.out.Unlock()
	}
	if !news {
		return nil
	}
	if err := n.outputs.Sync(); err != nil {
		return noRoom(err)
	}
	for i, p := range n.partitions {
		p.out.Lock()
		if stored[i].Output > p.durable.Output {
			p.durable = stored[i]
		}
		p.out.Unlock()
	}
	n.bell.ring()
	return nil
}

// watch keeps an eye on the disk and on whether ticks come back.
func (n *Node) watch(ctx context.Context) error {
	free, err := streams.FreeBytes(n.o.Data)
	if err != nil {
		return err
	}
	n.refuseJobs.Store(free < n.o.FreeForJobs)
	if held := free < n.o.FreeForTicks; n.holdTicks.Swap(held) != held {
		n.log.Warn("disk space for firing", "enough", !held, "free_bytes", free, "needed_bytes", n.o.FreeForTicks)
		n.bell.ring()
	}
	if info, err := n.streams.Log.Info(ctx); err == nil {
		n.head.Store(max(info.Last, n.applied.Load()))
		n.logFull.Store(halfFull(info))
	}
	if n.server != nil && n.ticking.silent(time.Now()) > deadAfter {
		return fmt.Errorf("%w: the log stream has not answered for %s", errNoRoom, deadAfter)
	}
	// A stream of the embedded server that once could not be written stays dead until the server is
	// started again, and does not answer.
	if n.server != nil && (n.ticking.silent(time.Now()) > tickTimeout || n.chainLost()) {
		if err := n.server.Health(); err != nil {
			return fmt.Errorf("%w: %w", errNoRoom, err)
		}
	}
	n.web.problem(n.problems()...)
	return nil
}

// chainLost tells whether a partition of this node cannot publish now.
func (n *Node) chainLost() bool {
	for _, p := range n.partitions {
		p.out.Lock()
		lost := p.chain.Lost()
		p.out.Unlock()
		if lost {
			return true
		}
	}
	return false
}

// lostTooLong is how long a chain may be lost before that makes the node unready.
const lostTooLong = 3 * time.Second

// problems says why the node is not ready; nothing when it is.
func (n *Node) problems() []string {
	var list []string
	if !n.nc.IsConnected() {
		list = append(list, "NATS cannot be reached")
	}
	if n.holdTicks.Load() {
		list = append(list, fmt.Sprintf("less than %d MiB of disk are free: firing waits", n.o.FreeForTicks>>20))
	}
	if n.refuseJobs.Load() {
		list = append(list, fmt.Sprintf("less than %d MiB of disk are free: no new jobs are taken", n.o.FreeForJobs>>20))
	}
	if n.ticking.refused() {
		list = append(list, "the log stream refuses ticks: it is full, or NATS cannot be reached")
	}
	if silent := n.ticking.silent(time.Now()); silent > tickTimeout {
		list = append(list, fmt.Sprintf("ticks have gone unanswered for %s", silent.Round(time.Second)))
	}
	for _, p := range n.partitions {
		p.mu.Lock()
		stopped := p.stopped
		p.mu.Unlock()
		p.out.Lock()
		lostSince, marking := p.lostSince, p.marker > p.chain.Stored().Output
		p.out.Unlock()
		switch {
		case stopped != nil:
			list = append(list, fmt.Sprintf("partition %d stopped: %v", p.number, stopped))
		case marking:
			list = append(list, fmt.Sprintf("partition %d has yet to mark the loss that was accepted", p.number))
		case !lostSince.IsZero() && time.Since(lostSince) > lostTooLong:
			list = append(list, fmt.Sprintf("partition %d has not been able to publish for %s", p.number, time.Since(lostSince).Round(time.Second)))
		}
	}
	return list
}

// waitForRoom waits until a restart makes sense.
func waitForRoom(ctx context.Context, o Options) error {
	for {
		t := time.NewTimer(time.Second)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
		if free, err := streams.FreeBytes(o.Data); err == nil && free >= o.FreeForTicks {
			return nil
		}
	}
}

// hostOf gives the address to listen on again after a restart.
func hostOf(clientURL, otherwise string) string {
	u, err := url.Parse(clientURL)
	if err != nil || u.Port() == "" {
		return otherwise
	}
	host, _, err := net.SplitHostPort(otherwise)
	if err != nil {
		return otherwise
	}
	return net.JoinHostPort(host, u.Port())
}

// checkpointDue takes a checkpoint of the partitions whose replay would have become long.
func (n *Node) checkpointDue(ctx context.Context) error {
	if n.holdTicks.Load() {
		return nil
	}
	taken := false
	for _, p := range n.partitions {
		p.mu.Lock()
		stopped := p.stopped != nil
		p.mu.Unlock()
		if stopped {
			continue // its log is kept for the way out
		}
		position, at := p.checkpoint.Load(), time.UnixMilli(p.checkpointAt.Load())
		records := n.applied.Load() - position
		bytes := n.bytes.Load() - p.bytesAt.Load()
		// A log that is filling up is freed at once: it can be cut below the older of two checkpoints.
		full := n.logFull.Load() && p.older.Load() < n.applied.Load()
		if !full && (records == 0 || records < n.o.CheckpointRecords && bytes < n.o.CheckpointBytes && time.Since(at) < n.o.CheckpointEvery) {
			continue
		}
		if err := n.takeCheckpoint(ctx, p); err != nil {
			return noRoom(err)
		}
		taken = true
	}
	if taken {
		return n.trim(ctx)
	}
	return nil
}

func halfFull(info streams.Info) bool {
	return info.MaxBytes > 0 && info.Bytes > uint64(info.MaxBytes)/2
}

// relieve makes room in a log stream that is filling up, before this run appends to it: in a full one
// the claims would have no place. All of the local log is applied.
func (n *Node) relieve(ctx context.Context) error {
	info, err := n.streams.Log.Info(ctx)
	if err != nil || !halfFull(info) {
		return err
	}
	for range 2 {
		if err := n.checkpointAll(ctx); err != nil {
			return err
		}
	}
	return n.trim(ctx)
}

// checkpointAll takes a checkpoint of every partition at the head of the log, at a clean stop.
func (n *Node) checkpointAll(ctx context.Context) error {
	for _, p := range n.partitions {
		if err := n.takeCheckpoint(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// checkpointSlice is how many jobs are encoded while a partition waits: well below a millisecond.
const checkpointSlice = 500

func (n *Node) takeCheckpoint(ctx context.Context, p *partition) error {
	began := time.Now()
	p.mu.Lock()
	if p.stopped != nil {
		p.mu.Unlock()
		return nil
	}
	// Every record up to applied that concerns this partition is in; some after it may be, and they are
	// known to the machine by its own position.
	position := n.applied.Load()
	p.bytesAt.Store(n.bytes.Load())
	c := p.machine.BeginCheckpoint()
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		c.Abandon()
		p.mu.Unlock()
	}()
	w, err := n.saved.Create(uint32(p.number), position)
	if err != nil {
		return err
	}
	defer w.Abort()
	var size int
	for ctx.Err() == nil {
		p.mu.Lock()
		part := c.Next(checkpointSlice)
		p.mu.Unlock()
		if part == nil {
			n.logKept.Lock()
			err := w.Commit()
			n.logKept.Unlock()
			if err != nil {
				return err
			}
			p.older.Store(p.checkpoint.Load())
			p.checkpoint.Store(position)
			p.checkpointAt.Store(time.Now().UnixMilli())
			n.meters.checkpointTime.Update(time.Since(began).Seconds())
			n.log.Debug("checkpoint", "partition", p.number, "position", position, "bytes", size, "took", time.Since(began))
			return nil
		}
		size += len(part)
		for chunk := range slices.Chunk(part, snapshot.MaxChunk) {
			if err := w.Write(chunk); err != nil {
				return err
			}
		}
	}
	return nil
}

// trim cuts the log, here and in the stream, below the older checkpoint of every partition.
func (n *Node) trim(ctx context.Context) error {
	n.logKept.Lock()
	defer n.logKept.Unlock()
	oldest := n.applied.Load()
	for _, p := range n.partitions {
		list, err := n.saved.List(uint32(p.number))
		if err != nil {
			return noRoom(err)
		}
		if len(list) < 2 {
			return nil
		}
		oldest = min(oldest, list[1].Position)
	}
	if err := n.local.Truncate(oldest + 1); err != nil {
		return noRoom(err)
	}
	if err := n.streams.Log.Trim(ctx, oldest+1); err != nil && !errors.Is(err, context.Canceled) {
		n.log.Warn("the log stream was not trimmed; it will be at the next checkpoint", "error", err)
	}
	return nil
}
