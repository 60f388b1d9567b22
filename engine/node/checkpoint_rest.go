package node

import (
	"context"
	"runtime"
	"slices"
	"time"
)

// Rests, by which checkpoints and compactions leave the cores to what is due.

const (
	// restFull is for how many times as long as it worked a checkpoint rests that is not urgent: so it takes a fifth of a core.
	restFull = 4
	// restShort is the same for one that is needed soon: it takes half a core. Without any rest, the eight checkpoints during a
	// flood of creates would take one of two cores for 0.6 s every three seconds.
	restShort = 1
	// restMost bounds a rest, and the time until the next look whether the work may rest on: a part that waited for the disk may have
	// taken seconds, and in as many seconds the log may be full.
	restMost = 20 * time.Millisecond
)

// checkpointRest returns the function that a partition's checkpoint calls between parts of its work. Without rests one checkpoint would
// take one of few cores for half a second, and those of eight partitions for four: jobs that come due meanwhile would be late. While a
// burst drains, the checkpoint stands still.
func (n *Node) checkpointRest(ctx context.Context, p *partition) (rest func()) {
	return restFunc(ctx, n.restFactor, func() bool { return n.checkpointWaits(p) })
}

// compactionRest returns the function that compactions of the job table call between parts of their work (wal.Options.Rest), because
// one takes a core for seconds. They do not rest if the work is behind, nor while no records are applied, because then nothing else
// needs the core. Until the partitions have recovered, which needs all cores, compactions stand still.
func (n *Node) compactionRest(ctx context.Context) func(behind bool) {
	var behind bool
	var applied uint64
	times := func() int {
		before := applied
		switch applied = n.applied.Load(); {
		case behind:
			return 0
		case !n.rebuilt.Load():
			return restFull
		case applied == before:
			return 0
		}
		return n.restFactor()
	}
	rest := restFunc(ctx, times, func() bool { return !n.rebuilt.Load() || n.hasBacklog() })
	return func(is bool) {
		behind = is
		rest()
	}
}

// restFunc returns a function that some work calls between small parts of it. The function rests for times() times as long as the part
// took, and for longer while waits() is true, unless times() says by less than restFull that the work is needed soon.
func restFunc(ctx context.Context, times func() int, waits func() bool) (rest func()) {
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
		goesOn := sleep(ctx, min(time.Duration(factor)*worked, restMost))
		for goesOn && waits() && times() == restFull {
			goesOn = sleep(ctx, restMost)
		}
		began = time.Now()
	}
}

// restFactor is for how many times as long as it worked a checkpoint or a compaction rests: the sooner another checkpoint is needed, the
// fewer.
func (n *Node) restFactor() int {
	live := n.live()
	switch {
	case n.logUsage.mustFree() || slices.ContainsFunc(live, n.checkpointUrgent):
		return 0
	case slices.ContainsFunc(live, func(p *partition) bool { return n.checkpointLong(p) && !n.checkpointWaits(p) }):
		return restShort
	}
	return restFull
}
