package node

import (
	"context"
	"runtime"
	"slices"
	"time"
)

const (
	// restShare is for how many times as long as it worked a checkpoint rests that is not urgent: so it takes a fifth of a core.
	restShare = 4
	// restLess is the same for one that is needed soon: it takes half a core. Without any rest, the eight checkpoints during a
	// flood of creates would take one of two cores for 0.6 s every three seconds.
	restLess = 1
	// restLook bounds a rest, and the time until the next look whether the work may rest on: a part that waited for the disk may have
	// taken seconds, and in as many seconds the log may be full.
	restLook = 20 * time.Millisecond
)

// resting returns the function that a partition's checkpoint calls between parts of its work. Without rests one checkpoint would take one
// of few cores for half a second, and those of eight partitions for four: jobs that come due meanwhile would be late. While a burst
// drains, the checkpoint stands still.
func (n *Node) resting(ctx context.Context, p *partition) (rest func()) {
	return restful(ctx, n.restTimes, func() bool { return n.checkpointWaits(p) })
}

// compactionRests returns the function that compactions of the job table call between parts of their work (wal.Options.Rest), because
// one takes a core for seconds. They do not rest if the work is behind, nor while no records are applied, because then nothing else
// needs the core. Until the partitions are there, no records are applied.
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

// restful returns a function that some work calls between small parts of it. The function rests for times() times as long as the part
// took, and for longer while waits() is true, unless times() says by less than restShare that the work is needed soon.
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

// restTimes is for how many times as long as it worked a checkpoint or a compaction rests: the sooner another checkpoint is needed, the
// fewer.
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
