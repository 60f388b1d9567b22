package node

import (
	"context"
	"errors"
	"math"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/wal"
)

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

// trim cuts the log, here and in the stream, below the older checkpoint of every partition; in the stream no further
// than other nodes need it.
func (n *Node) trim(ctx context.Context) error {
	n.logKept.Lock()
	defer n.logKept.Unlock()
	needed, err := n.needed()
	if err != nil || needed == 0 {
		return passing(err)
	}
	kept, err := n.kept(needed)
	if err == nil {
		err = n.local.Truncate(kept)
	}
	if err != nil {
		return passing(err)
	}
	err = n.streams.Log.Trim(ctx, min(needed, n.neededElsewhere()+1))
	if err == nil {
		_, err = n.lookAtLog(ctx)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		n.log.Warn("the log stream was not trimmed; it will be at the next checkpoint", "error", err)
	}
	return nil
}

// needed is the first record that the older checkpoints need, or what is about to be followed; 0 while a partition has no
// older checkpoint.
func (n *Node) needed() (uint64, error) {
	oldest := n.applied.Load()
	for _, p := range n.partitions {
		// Who gives one up says first what is needed, and who takes one says last that nothing is any more.
		before, follows, after := p.needs.Load(), p.follows.Load(), p.needs.Load()
		for _, wanted := range []uint64{before, after} {
			if wanted > 0 {
				oldest = min(oldest, wanted)
			}
		}
		if !follows {
			continue
		}
		list, err := n.saved.List(uint16(p.number))
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

// kept is the first record at or below needed that is younger than KeepLog.
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
		if at >= since || seq >= high { // holes up to there take no space
			high = middle
		} else {
			low = seq + 1
		}
	}
	return low, nil
}

// errFound ends a read of the log.
var errFound = errors.New("node: found")

// timeFrom is the timestamp of the first record of the local log from a sequence on, unix ms, and its sequence.
func (n *Node) timeFrom(from uint64) (ms int64, seq uint64, err error) {
	ms, seq = math.MaxInt64, math.MaxUint64
	err = n.local.Read(from, func(stored wal.Record) error {
		r, err := engine.DecodeRecord(stored.Seq, stored.Data)
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

// knowsOthers tells whether this node knows who else needs the log.
func (n *Node) knowsOthers() bool { return n.server != nil || len(n.view().Members) > 0 }

// neededElsewhere is the position above which other nodes still need the log. A node that died is waited for ten
// minutes and until the stream is half full, one that lives but lags until requests have to wait for room: the log is
// never held for ever. A node that comes too late begins with nothing (beginAnew). But for each partition that this
// node does not follow, it is kept for one follower in all cases. While it is not known who is there, all of the log is needed.
func (n *Node) neededElsewhere() uint64 {
	if !n.knowsOthers() {
		return 0
	}
	v := n.view()
	needed := n.neededToFollow(v)
	if !n.filling.mustFree() {
		for i := range v.Silent {
			needed = min(needed, v.Silent[i].Needs)
		}
	}
	if !n.filling.tight() {
		for i := range v.Members {
			if v.Members[i].Name != n.o.Name { // this node's own word is older than what it knows
				needed = min(needed, v.Members[i].Needs)
			}
		}
	}
	return needed
}
