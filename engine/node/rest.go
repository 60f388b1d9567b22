package node

import (
	"context"
	"runtime"
	"slices"
	"time"
)

const (
	// restShare is how many times as long as it worked a checkpoint rests that is in no hurry: it takes a fifth of a core.
	restShare = 4
	// restLess is the same for one that is needed soon: it takes half a core. Without any rest, the eight checkpoints during a
	// flood of creates would take one of two cores for 0.6 s every three seconds.
	restLess = 1
	// restLook is the longest rest before it looks again whether it may rest: a part that waited for the disk takes seconds,
	// and the log may be full after as many.
	restLook = 20 * time.Millisecond
)

// resting returns what a partition's checkpoint calls between parts of the work. Without rests one checkpoint would hold one of few
// cores for half a second, and those of eight partitions for four: jobs that come due meanwhile would be late. While a burst drains
// the checkpoint stands still.
func (n *Node) resting(ctx context.Context, p *partition) (rest func()) {
	return restful(ctx, n.restTimes, func() bool { return n.checkpointWaits(p) })
}

// compactionRests returns what compactions of the job table call between parts of the work (wal.Options.Rest): one takes a
// core for seconds. While nothing comes by the log, or before the partitions are there, nobody needs the rest.
func (n *Node) compactionRests(ctx context.Context) func(behind bool) {
	var behind bool
	var applied uint64
	times := func() int {
		before := applied
		if applied = n.applied.Load(); behind || applied == before {
			return 0
		}
		return n.restTimes()
	}
	rest := restful(ctx, times, n.draining)
	return func(is bool) {
		behind = is
		rest()
	}
}

// restful returns what some work calls between small parts of it. It rests for times() as long as the part took, and for longer
// while waits() is true, unless times() says that the work is needed soon.
func restful(ctx context.Context, times func() int, waits func() bool) (rest func()) {
	began := time.Now()
	return func() {
		worked, factor := time.Since(began), 0
		if worked >= time.Millisecond {
			factor = times()
		}
		if factor == 0 {
			runtime.Gosched()
			return
		}
		goesOn := pause(ctx, min(time.Duration(factor)*worked, restLook))
		for goesOn && waits() && times() == restShare {
			goesOn = pause(ctx, restLook)
		}
		began = time.Now()
	}
}

// restTimes is how many times as long as it worked a checkpoint or a compaction rests: the fewer, the sooner another checkpoint is
// needed.
func (n *Node) restTimes() int {
	live := n.live()
	switch {
	case n.filling.mustFree() || slices.ContainsFunc(live, n.checkpointUrgent):
		return 0
	case slices.ContainsFunc(live, func(p *partition) bool { return n.checkpointLong(p) && !n.checkpointWaits(p) }):
		return restLess
	}
	return restShare
}
