package node

import (
	"context"
	"errors"
	"math"

	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/wal"
)

// How far the log is cut: below what this node and the others need.

// needs is the position from which this node would go on after a crash.
func (n *Node) needs() uint64 {
	needs := n.applied.Load()
	for _, p := range n.followed() {
		position := p.older.Load()
		if position == 0 {
			position = p.checkpoint.Load()
		}
		needs = min(needs, position)
	}
	return needs
}

// trim cuts the local log and the log stream below the older checkpoint of every partition. KeepLog keeps more of the local log, and the
// log stream is not cut beyond what other nodes need.
func (n *Node) trim(ctx context.Context) error {
	n.logKept.Lock()
	defer n.logKept.Unlock()
	needed, err := n.needed()
	if err != nil || needed == 0 {
		return markTransient(err)
	}
	kept, err := n.kept(needed)
	if err == nil {
		err = n.local.Truncate(kept)
	}
	if err != nil {
		return markTransient(err)
	}
	err = n.streams.Log.Trim(ctx, min(needed, n.neededElsewhere()+1))
	if err == nil {
		_, err = n.queryLog(ctx)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		n.limitedLogs.trims.warn(n.log, "the log stream was not trimmed; it will be at the next checkpoint", "error", err)
	}
	return nil
}

// needed is the first record that is needed by the older checkpoints, or for a partition that is being taken or given up; 0 while a
// followed partition has no older checkpoint.
func (n *Node) needed() (uint64, error) {
	oldest := n.applied.Load()
	for _, p := range n.partitions {
		// unfollow sets needs before it clears follows, and follow clears needs after it has set follows. So one of the two reads of
		// needs sees it, or follows is true.
		before, follows, after := p.needs.Load(), p.follows.Load(), p.needs.Load()
		for _, wanted := range []uint64{before, after} {
			if wanted > 0 {
				oldest = min(oldest, wanted)
			}
		}
		if !follows {
			continue
		}
		list, err := n.jobTable.List(uint16(p.number))
		if err != nil {
			return 0, err
		}
		if len(list) < 2 {
			return 0, nil
		}
		oldest = min(oldest, list[1].Position)
	}
	return oldest + 1, nil
}

// kept is the first record that the local log should keep: the first one younger than KeepLog, and needed at most.
func (n *Node) kept(needed uint64) (uint64, error) {
	if n.o.KeepLog == 0 || n.refuseJobs.Load() {
		return needed, nil
	}
	since := n.clock.ms() - n.o.KeepLog.Milliseconds()
	low, high := n.local.First(), needed // the record is in [low, high]
	for low < high {
		middle := low + (high-low)/2
		at, seq, err := n.timeFrom(middle)
		if err != nil {
			return 0, err
		}
		if at >= since || seq >= high { // seq >= high: no records in between, so a lower high keeps no more
			high = middle
		} else {
			low = seq + 1
		}
	}
	return low, nil
}

// errFound ends a read of the log early.
var errFound = errors.New("node: found")

// timeFrom returns the timestamp (unix ms) and the sequence of the local log's first record at a sequence or above; the greatest values
// if there is none.
func (n *Node) timeFrom(from uint64) (ms int64, seq uint64, err error) {
	ms, seq = math.MaxInt64, math.MaxUint64
	err = n.local.Read(from, func(stored wal.Record) error {
		r, err := decodeRecord(stored)
		if err != nil {
			return err
		}
		ms, seq = r.Time/1e6, r.Seq
		return errFound
	})
	if errors.Is(err, errFound) {
		err = nil
	}
	return ms, seq, err
}

// knowsOthers tells whether this node knows which other nodes need the log.
func (n *Node) knowsOthers() bool { return n.server != nil || len(n.view().Members) > 0 }

// neededElsewhere is the position above which other nodes still need the log. What a dead node needs is kept for ten
// minutes, and until the stream is half full; what a live node that lags needs, until requests have to wait for room (three quarters).
// So the log does not wait for them for ever; a node that comes too late begins with nothing (resetData). But for each partition
// that this node does not follow, what one follower needs is always kept. Until this node knows the others, all of the log is kept.
func (n *Node) neededElsewhere() uint64 {
	if !n.knowsOthers() {
		return 0
	}
	return n.neededBy(n.view())
}

// neededBy is neededElsewhere by a view.
func (n *Node) neededBy(v cluster.View) uint64 {
	needed := n.neededToFollow(v)
	if !n.logUsage.mustFree() {
		for i := range v.Silent {
			needed = min(needed, v.Silent[i].Needs)
		}
	}
	if !n.logUsage.nearlyFull() {
		for i := range v.Members {
			if v.Members[i].Name != n.o.Name { // this node's own beat is older than what it knows itself
				needed = min(needed, v.Members[i].Needs)
			}
		}
	}
	return needed
}
