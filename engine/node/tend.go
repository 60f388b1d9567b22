package node

import (
	"context"
	"fmt"
	"time"

	"github.com/carillon-scheduler/carillon/engine/streams"
)

// What is done on a timer, and what is looked at once a second.

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
	n.work.Go(func() { n.every(ctx, time.Second, n.checkNextStream) })
	n.work.Go(func() { n.every(ctx, checkpointPoll, n.checkpoints) })
	n.work.Go(func() { n.every(ctx, residencePoll, n.loadAndEvict) })
}

// watchStores ends the run when a store has failed. Pebble also writes in the background, and it may be long until anybody uses the
// store again.
func (n *Node) watchStores(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-n.logStore.Failed():
		n.fail(markTransient(n.logStore.Err()))
	case <-n.jobStore.Failed():
		n.fail(markTransient(n.jobStore.Err()))
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
