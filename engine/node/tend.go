package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// What is done on a timer, first of all the syncs of the outputs.

// syncPause is the time between two syncs of a partition's outputs. The partitions are synced one after the other, evenly
// spread. While the disk writes the outputs of one of them, the local log's fsync waits, and with it the next tick. There are
// enough outputs to publish meanwhile. The outputs of all partitions, or of one in a whole second of full drain, would take longer.
const syncPause = 250 * time.Millisecond

// tend starts what is done on a timer: it makes outputs durable, watches the disk and the streams, takes checkpoints, and brings
// jobs into memory.
func (n *Node) tend(ctx context.Context) {
	if n.server != nil {
		n.work.Go(func() { n.syncing(ctx) })
	} else {
		n.work.Go(func() { n.every(ctx, time.Second, n.recheckRights) })
	}
	n.work.Go(func() { n.every(ctx, time.Second, n.watch) })
	n.work.Go(func() { n.every(ctx, time.Second, n.watchDisk) })
	n.work.Go(func() { n.every(ctx, time.Second, n.checkOutputStream) })
	n.work.Go(func() { n.every(ctx, checkpointPoll, n.checkpoints) })
	n.work.Go(func() { n.every(ctx, residencePoll, n.loadAndEvict) })
}

// watchStores ends the run when a store has failed. Pebble also writes in the background, and it may be long until anybody uses the
// store again.
func (n *Node) watchStores(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-n.store.Failed():
		n.fail(markTransient(n.store.Err()))
	case <-n.jobs.Failed():
		n.fail(markTransient(n.jobs.Err()))
	}
}

// every calls do again and again until ctx ends, with a pause of d before each call. An error ends the run.
func (n *Node) every(ctx context.Context, d time.Duration, do func(context.Context) error) {
	for sleep(ctx, d) {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			n.fail(err)
			return
		}
	}
}

// syncing makes the outputs durable that the embedded server has stored, until ctx ends.
func (n *Node) syncing(ctx context.Context) {
	began, next := time.Now(), make([]time.Time, len(n.partitions))
	for ctx.Err() == nil {
		for i, p := range n.partitions {
			if time.Now().Before(next[i]) {
				continue
			}
			synced, err := n.syncOutputs(p, n.outputs[p.number])
			if err != nil && ctx.Err() == nil {
				n.fail(err)
				return
			}
			next[i] = nextSync(began, time.Now(), synced)
			if synced {
				sleep(ctx, syncPause/time.Duration(len(n.partitions)))
			}
		}
		sleep(ctx, time.Until(slices.MinFunc(next, time.Time.Compare)))
	}
}

// nextSync is when to look again at a partition that was looked at just now. If its outputs were synced, that is a whole syncPause from
// now, however long the sync took. If there were none, it is at the next multiple of syncPause since the start, together with all other
// partitions without outputs: so an idle engine wakes once for all of them.
func nextSync(began, now time.Time, synced bool) time.Time {
	if synced {
		return now.Add(syncPause)
	}
	return began.Add(now.Sub(began).Truncate(syncPause) + syncPause)
}

// syncOutputs syncs a partition's outputs, if any were stored since they were last durable. What was stored before a sync counts as
// durable only after the next call's sync. By then the node has heard of any foreign message before it, and a stream that acknowledges
// before it writes has written.
func (n *Node) syncOutputs(p *partition, stream *streams.FileSync) (synced bool, err error) {
	p.out.Lock()
	settled := p.settling
	waits := settled != p.durable || !p.chain.Lost() && p.chain.Stored() != p.durable
	p.out.Unlock()
	if !waits {
		return false, nil
	}
	blocks, err := stream.Sync()
	n.meters.blocksSynced.Add(blocks)
	if err != nil {
		return true, markTransient(err)
	}
	p.out.Lock()
	if p.settling.Output < settled.Output { // meanwhile it turned out that less is stored
		settled = p.settling
	}
	more := settled.Output > p.durable.Output
	p.durable = settled
	if !p.chain.Lost() { // what a lost chain took for stored may not be
		p.settling = p.chain.Stored()
	}
	p.out.Unlock()
	if more {
		n.alarm.Wake()
	}
	return true, nil
}

// freeBytes is how many bytes are free on a directory's disk.
var freeBytes = streams.FreeBytes

// room is how many bytes are free on the disk of the data directory, or on that of one of the stores in it if that has less.
func (n *Node) room() (free uint64, err error) {
	if free, err = freeBytes(n.o.Data); err != nil {
		return 0, err
	}
	dirs := []string{filepath.Join(n.o.Data, "log"), filepath.Join(n.o.Data, "jobs"), n.o.natsDir()}
	if n.server != nil {
		dirs = append(dirs, n.server.JetStreamDir()) // its configuration file may have it elsewhere
	}
	for _, dir := range dirs {
		here, err := freeBytes(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		free = min(free, here)
	}
	return free, nil
}

// watchDisk looks how much room is left, whether the data directory is still in place, and whether the embedded server could write its
// streams: while no tick is due, nothing else would find out. It has a goroutine of its own, because a disk that does not answer may
// block it, and watch and the beats must go on.
func (n *Node) watchDisk(context.Context) error {
	if err := checkDataDir(n.dataDir); err != nil {
		return err
	}
	free, err := n.room()
	if err != nil {
		return err
	}
	if n.server != nil {
		errs := n.server.StreamErrors()
		if why, is := errs[n.streams.Log.Name()]; is {
			return fmt.Errorf("%w: nats-server: %s", errDisk, why)
		}
		n.failedStreams.update(errs)
	}
	if refused := free < n.o.FreeForJobs; n.refuseJobs.Swap(refused) != refused {
		n.logRoom(refused, "for new jobs", free, n.o.FreeForJobs)
	}
	n.appendDiskState()
	if held := free < n.o.FreeForTicks; n.holdTicks.Swap(held) != held {
		n.logRoom(held, "to fire", free, n.o.FreeForTicks)
		n.alarm.Wake()
	}
	return nil
}

// logRoom logs that the disk has become short, or has room again.
func (n *Node) logRoom(short bool, what string, free, needed uint64) {
	said := "enough disk space " + what + " again"
	if short {
		said = "too little disk space " + what
	}
	n.log.Warn(said, "free_bytes", free, "needed_bytes", needed)
}

// watch looks how full the log stream is, whether the clock jumped, and whether ticks come back, and tells the web server the node's problems.
func (n *Node) watch(ctx context.Context) error {
	if info, err := n.queryLog(ctx); err == nil {
		n.head.Store(max(info.Last, n.applied.Load()))
	}
	switch by := n.clock.jumped(); {
	case by > 0:
		n.log.Warn("the clock jumped ahead; fires that were due in between may count as missed", "by", by)
	case by < 0:
		n.log.Warn("the clock was set back; what is due waits until the clock is where it was", "by", -by)
	}
	if n.server != nil && n.ticking.silentFor(time.Now()) > deadAfter {
		return fmt.Errorf("%w: the log stream has not answered for %s", errDisk, deadAfter)
	}
	// A stream of the embedded server that could not be written once does not answer until the server is
	// started again.
	if n.server != nil && (n.ticking.silentFor(time.Now()) > tickTimeout || n.chainLost()) {
		if err := n.server.Health(); err != nil {
			return fmt.Errorf("%w: %w", errDisk, err)
		}
	}
	n.web.problem(n.problems()...)
	return nil
}

// appendDiskState makes every reader refuse new jobs, or take them again: each partition that this node owns gets a record, if its machine
// does not know the disk's state yet. The record is sent again with each call until it has come back.
func (n *Node) appendDiskState() {
	low := n.refuseJobs.Load()
	for _, p := range n.partitions {
		p.mu.Lock()
		st, epoch := p.machine.Stats(), p.owner.Epoch
		p.mu.Unlock()
		if epoch != 0 && epoch == st.Epoch && st.DiskLow != low {
			// An error needs no care: while the record does not come back, it is sent again.
			_ = n.streams.Log.PublishAsync(n.layout.LogSubject(p.number, "disk"), nil, engine.Disk{Epoch: epoch, Low: low}.Encode(), nil)
		}
	}
}

// queryLog asks the log stream what it holds, and passes the answer to all that need it.
func (n *Node) queryLog(ctx context.Context) (streams.Info, error) {
	read, asked := n.logUsage.bytesRead(), time.Now()
	info, err := n.streams.Log.Info(ctx)
	if err == nil {
		n.logUsage.update(info, read)
		n.editedStreams.note(n.streams.Log.Name(), info.Mismatch)
		n.clock.measured(asked, time.Now(), info.Now)
		n.logAnswered(n.clock.running())
		n.alarm.Wake() // by the clock as it is now known, something may be due
	}
	return info, err
}

// logAnswered notes that the log stream has answered.
func (n *Node) logAnswered(now time.Duration) {
	if now-time.Duration(n.logHeard.Load()) > tickTimeout {
		n.logHeardSince.Store(int64(now)) // first: who finds this answer must not take it for one of a long row (stuck)
	}
	n.logHeard.Store(int64(now))
}

// chainLost tells whether the chain of any partition is lost.
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
