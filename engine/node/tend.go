package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// syncPause is how often the outputs of a partition are made durable, one after the other and evenly spread. While the disk
// takes what one of them stored, the local log's own fsync waits, and with it the next tick: that much is there to be
// published. What all of them stored, or one in a whole second of full drain, would hold it up for longer.
const syncPause = 250 * time.Millisecond

// tend starts what is done on a timer: it makes outputs durable, watches the disk, takes checkpoints.
func (n *Node) tend(ctx context.Context) {
	if n.server != nil {
		n.work.Go(func() { n.syncing(ctx) })
	} else {
		n.work.Go(func() { n.every(ctx, time.Second, n.regainRights) })
	}
	n.work.Go(func() { n.every(ctx, time.Second, n.watch) })
	n.work.Go(func() { n.every(ctx, time.Second, n.watchDisk) })
	n.work.Go(func() { n.every(ctx, time.Second, n.lookAtOutput) })
	n.work.Go(func() { n.every(ctx, checkpointLook, n.checkpoints) })
	n.work.Go(func() { n.every(ctx, residenceLook, n.reside) })
}

// heedStores ends the run when a store has failed. Pebble writes in the background as well, and whoever uses the store
// next may be long in coming.
func (n *Node) heedStores(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-n.store.Failed():
		n.fail(passing(n.store.Err()))
	case <-n.jobs.Failed():
		n.fail(passing(n.jobs.Err()))
	}
}

// every does something again and again until ctx ends, with a pause of d before each time. An error ends the run.
func (n *Node) every(ctx context.Context, d time.Duration, do func(context.Context) error) {
	for pause(ctx, d) {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			n.fail(err)
			return
		}
	}
}

// syncing makes durable what the embedded server stores of the partitions' outputs.
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
				pause(ctx, syncPause/time.Duration(len(n.partitions)))
			}
		}
		pause(ctx, time.Until(slices.MinFunc(next, time.Time.Compare)))
	}
}

// nextSync is when a partition that was looked at just now is looked at again. If its outputs were synced, that is a whole pause from
// now, however long it took. If there were none, it is at the next multiple of the pause since the start, together with all others
// that have none: so an engine at rest is woken up once for all of them.
func nextSync(began, now time.Time, synced bool) time.Time {
	if synced {
		return now.Add(syncPause)
	}
	return began.Add(now.Sub(began).Truncate(syncPause) + syncPause)
}

// syncOutputs makes what was stored of a partition's outputs durable, if anything was. That counts from the next call's sync on:
// by then the word about a foreign message before it has come, if there was one; and a stream that acknowledges before it
// writes has written.
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
		return true, passing(err)
	}
	p.out.Lock()
	if p.settling.Output < settled.Output { // it was found out meanwhile that less is there
		settled = p.settling
	}
	more := settled.Output > p.durable.Output
	p.durable = settled
	if !p.chain.Lost() { // what a lost one believed need not be so
		p.settling = p.chain.Stored()
	}
	p.out.Unlock()
	if more {
		n.bell.Ring()
	}
	return true, nil
}

// freeBytes is the room on a directory's disk.
var freeBytes = streams.FreeBytes

// watchDisk keeps an eye on the room that is left, and on whether the log could be written: with no tick due for long, nobody else
// finds out. Nothing waits for it: a disk that stands still may not answer, and others are to hear of that (stuck).
func (n *Node) watchDisk(context.Context) error {
	if err := inPlace(n.place); err != nil {
		return err
	}
	free, err := freeBytes(n.o.Data)
	if err != nil {
		return err
	}
	if n.server != nil {
		ill := n.server.Ill()
		if why, is := ill[n.streams.Log.Name()]; is {
			return fmt.Errorf("%w: nats-server: %s", errDisk, why)
		}
		n.stopped.look(ill)
	}
	n.refuseJobs.Store(free < n.o.FreeForJobs)
	n.tellDisk()
	if held := free < n.o.FreeForTicks; n.holdTicks.Swap(held) != held {
		what := "enough disk space to fire again"
		if held {
			what = "too little disk space to fire"
		}
		n.log.Warn(what, "free_bytes", free, "needed_bytes", n.o.FreeForTicks)
		n.bell.Ring()
	}
	return nil
}

// watch keeps an eye on the log stream and on whether ticks come back.
func (n *Node) watch(ctx context.Context) error {
	if info, err := n.lookAtLog(ctx); err == nil {
		n.head.Store(max(info.Last, n.applied.Load()))
	}
	if n.server != nil && n.ticking.silent(time.Now()) > deadAfter {
		return fmt.Errorf("%w: the log stream has not answered for %s", errDisk, deadAfter)
	}
	// A stream of the embedded server that once could not be written stays dead until the server is
	// started again, and does not answer.
	if n.server != nil && (n.ticking.silent(time.Now()) > tickTimeout || n.chainLost()) {
		if err := n.server.Health(); err != nil {
			return fmt.Errorf("%w: %w", errDisk, err)
		}
	}
	n.web.problem(n.problems()...)
	return nil
}

// tellDisk has every reader refuse new jobs, or take them again, where that is not what the log says. It
// is asked again until the word has come back.
func (n *Node) tellDisk() {
	low := n.refuseJobs.Load()
	for _, p := range n.partitions {
		p.mu.Lock()
		st, epoch := p.machine.Stats(), p.owner.Epoch
		p.mu.Unlock()
		if epoch != 0 && epoch == st.Epoch && st.DiskLow != low {
			// A refusal is seen by the record that does not come.
			_ = n.streams.Log.PublishAsync(n.layout.LogSubject(p.number, "disk"), nil, engine.Disk{Epoch: epoch, Low: low}.Encode(), nil)
		}
	}
}

// lookAtLog asks the log stream how full it is.
func (n *Node) lookAtLog(ctx context.Context) (streams.Info, error) {
	read, asked := n.filling.bytes(), time.Now()
	info, err := n.streams.Log.Info(ctx)
	if err == nil {
		n.filling.asked(info, read)
		n.shapes.note(n.streams.Log.Name(), info.Wrong)
		n.clock.measured(asked, time.Now(), info.Now)
		n.logAnswered(n.clock.running())
		n.bell.Ring() // what it sleeps for may be due by now
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
