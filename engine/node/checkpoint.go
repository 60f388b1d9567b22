package node

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/wal"
)

// Checkpoints: when they are due, and how they are taken.

// checkpointPoll is how often the node looks whether a checkpoint is due while the log brings records. Once a second would be too rare: a
// flood of commands fills the default log stream within a few seconds.
const checkpointPoll = 100 * time.Millisecond

// checkpoints waits until records come, for a second at most, and then takes the checkpoints that are due.
func (n *Node) checkpoints(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-n.delivered:
	case <-time.After(time.Second):
	}
	return n.checkpointRound(ctx)
}

// checkpointRound takes a checkpoint of each partition whose replay would become long. The log can be cut below the older of a
// partition's two checkpoints. So if the log stream is filling up, or if no records come any more, checkpointRound also renews the older
// checkpoints, and cuts the log. Without the second rule the last records would stay in the log until others follow.
func (n *Node) checkpointRound(ctx context.Context) error {
	if len(n.followed()) == 0 && n.clock.running()-n.idleTrim >= n.o.CheckpointEvery {
		n.idleTrim = n.clock.running()
		return n.trim(ctx) // otherwise the log is cut after checkpoints, and here there are none
	}
	if n.holdTicks.Load() && n.o.KeepLog > 0 {
		return n.dropKept(ctx)
	}
	for ctx.Err() == nil && !n.holdTicks.Load() {
		live := n.live()
		rests := n.atRest(live)
		free := n.stoppedHere() == 0 && (n.logUsage.mustFree() || rests) && n.knowsOthers()
		var cut, upTo uint64 // the log should be cut up to cut; for that, all older checkpoints must be at upTo or beyond
		if free {
			cut = min(n.applied.Load(), n.neededElsewhere())
			upTo = cut // not further: what other nodes need is kept, whatever is saved here
		}
		if free && rests { // otherwise each node would wait until the others need less of the log
			upTo = n.applied.Load()
		}
		taken := false
		for _, p := range live {
			if n.checkpointDue(p, upTo) {
				if err := n.checkpointOrStop(ctx, p, n.checkpointRest(ctx, p)); err != nil {
					return markTransient(err)
				}
				taken = true
			}
		}
		if !taken && !(free && n.logUsage.holds(cut)) {
			return nil
		}
		// Also if no checkpoint was due: other nodes may need less of the log than before.
		if err := n.trim(ctx); err != nil || !free || !taken {
			return err
		}
	}
	return nil
}

// dropKept cuts what KeepLog keeps, when the disk has no room to fire: no checkpoint is taken then, after which it would be cut.
func (n *Node) dropKept(ctx context.Context) error {
	needed, err := n.needed()
	if err != nil || needed <= n.local.First() {
		return markTransient(err)
	}
	return n.trim(ctx)
}

// checkpointDue tells whether a checkpoint of a partition is due. upTo is the position that its older checkpoint must have reached for
// the log to be cut; 0 if the log need not be cut.
func (n *Node) checkpointDue(p *partition, upTo uint64) bool {
	switch {
	case p.older.Load() < upTo || n.checkpointUrgent(p):
		return true
	case n.newRecords(p) == 0 || n.checkpointWaits(p):
		return false
	}
	return n.checkpointLong(p) || n.checkpointOld(p)
}

// newRecords counts the records that came after a partition's newest checkpoint.
func (n *Node) newRecords(p *partition) uint64 {
	applied := n.applied.Load()
	return applied - min(applied, p.checkpoint.Load()) // a checkpoint that was taken from another node may be ahead
}

// atRest tells whether no records have come since the last checkpoints, and these are as old as EmptyLogAfter.
func (n *Node) atRest(live []*partition) bool {
	return len(live) > 0 && !slices.ContainsFunc(live, func(p *partition) bool {
		return n.newRecords(p) > 0 || n.checkpointAge(p) < n.o.EmptyLogAfter
	})
}

// burstTimes is how much longer than usual a partition's replay may become, and its checkpoint how much older, while a
// burst drains.
const burstTimes = 4

// checkpointUrgent tells whether a partition's checkpoint cannot wait, even while a burst drains: memory runs out, or replay would take
// burstTimes as long as usual.
func (n *Node) checkpointUrgent(p *partition) bool {
	return n.newRecords(p) > 0 && n.mostlyChanged(p) || n.replayIs(p, burstTimes)
}

// checkpointLong tells whether a partition's replay would take so long that it needs a checkpoint.
func (n *Node) checkpointLong(p *partition) bool { return n.replayIs(p, 1) }

// replayIs tells whether a start would replay at least so many times the records, or the bytes, that should come between two checkpoints.
func (n *Node) replayIs(p *partition, times uint64) bool {
	return n.newRecords(p)/times >= n.o.CheckpointRecords || (n.logUsage.bytesRead()-p.bytesAt.Load())/times >= n.o.CheckpointBytes
}

// checkpointOld tells whether a partition's checkpoint should be renewed for its age.
func (n *Node) checkpointOld(p *partition) bool { return n.checkpointAge(p) >= n.o.CheckpointEvery }

func (n *Node) checkpointAge(p *partition) time.Duration {
	return n.clock.running() - time.Duration(p.checkpointAt.Load())
}

// checkpointWaits tells whether a checkpoint that is not urgent waits while a burst drains, in this partition or another. Meanwhile the
// log that it would shorten grows little, each job that fires would be one more to write, and the burst needs the cores. The
// checkpoint does not wait if somebody wants to take another one of the partition, which cannot begin before this one ends.
func (n *Node) checkpointWaits(p *partition) bool {
	return p.checkpointWaiters.Load() == 0 && n.checkpointAge(p) < burstTimes*n.o.CheckpointEvery && n.hasBacklog()
}

// hasBacklog tells whether something that is due waits in a partition that has not stopped.
func (n *Node) hasBacklog() bool {
	for _, p := range n.partitions {
		p.mu.Lock()
		waits := p.stopped == nil && p.machine.Stats().Ready > 0
		p.mu.Unlock()
		if waits {
			return true
		}
	}
	return false
}

// mostlyChanged tells whether memory runs out, and most of the jobs could leave it after a checkpoint. Memory runs out when three
// quarters of a partition's share are used; while a burst drains, when all of it is used. (If a checkpoint waits for the burst to end, the
// copies that it has made count as used. They must not be what makes it urgent.)
func (n *Node) mostlyChanged(p *partition) bool {
	p.mu.Lock()
	st, used := p.machine.Stats(), p.machine.Memory()
	p.mu.Unlock()
	if st.Hot <= n.o.HotJobs || st.Dirty <= st.Hot/2 {
		return false
	}
	share := n.share()
	return used > share || used > share/4*3 && !n.hasBacklog()
}

// share is the part of the memory for jobs that each partition has.
func (n *Node) share() int { return n.o.MemoryForJobs / max(1, len(n.followed())) }

// checkpointAll takes a checkpoint of every partition that is followed and has not stopped.
func (n *Node) checkpointAll(ctx context.Context) error {
	for _, p := range n.partitions {
		if err := n.checkpointOrStop(ctx, p, runtime.Gosched); err != nil {
			return err
		}
	}
	return nil
}

// checkpointOrStop is checkpointWith, but if the partition's jobs cannot be read, it stops the partition and returns nil: the others go on.
func (n *Node) checkpointOrStop(ctx context.Context, p *partition, rest func()) error {
	err := n.checkpointWith(ctx, p, rest)
	if damaged(err) {
		n.stop(p, unreadable(p.number, err))
		return nil
	}
	return err
}

// unreadable is the error of a partition whose jobs are damaged, or were written by another version.
func unreadable(partition int, err error) error {
	return fmt.Errorf("the jobs of partition %d cannot be read: %w", partition, err)
}

// damaged tells whether an error says that a partition's jobs, as they are stored, are not what was written, or (engine.ErrVersion) that
// another version wrote them.
func damaged(err error) bool {
	return errors.Is(err, wal.ErrCorrupt) || errors.Is(err, engine.ErrCheckpoint)
}

// takeCheckpoint writes what changed in a partition since its last checkpoint. The partition waits while a slice of its jobs is
// copied, but never while anything is written.
func (n *Node) takeCheckpoint(ctx context.Context, p *partition) error {
	return n.checkpointWith(ctx, p, runtime.Gosched)
}

// checkpointWith is takeCheckpoint, with rest called between small parts of the work.
func (n *Node) checkpointWith(ctx context.Context, p *partition, rest func()) error {
	p.checkpointWaiters.Add(1)
	p.checkpointing.Lock() // a snapshot may be taking one, too
	defer p.checkpointing.Unlock()
	p.checkpointWaiters.Add(-1)
	began := time.Now()
	if !p.follows.Load() || p.whyStopped() != nil {
		return nil
	}
	if err := n.forget(p); err != nil {
		return err
	}
	build, err := n.jobTable.Begin(uint16(p.number))
	if err != nil {
		return err
	}
	defer build.Abort()
	var c *engine.Checkpoint
	var position uint64
	p.withLock(n.meters.checkpointPause, func() {
		if p.stopped != nil {
			return
		}
		// The machine has every record up to applied that concerns this partition. It may have some after that, and will skip them when
		// they are replayed, by its own position. applied may be before the last checkpoint if the log is read again, or
		// if the partition was taken from another node.
		position = max(n.applied.Load(), p.checkpoint.Load())
		p.bytesAt.Store(n.logUsage.bytesRead())
		c = p.machine.BeginCheckpoint()
	})
	if c == nil {
		return nil
	}
	defer p.withLock(n.meters.checkpointPause, c.Abandon)
	p.inSlices(n.meters.checkpointPause, rest, func() bool { return ctx.Err() == nil && c.Next(jobSlice) })
	if ctx.Err() != nil {
		return nil
	}
	build.OnStep(rest)
	c.Write(build, position)
	if err := build.Prepare(); err != nil {
		return err
	}
	if err := n.commit(build); err != nil {
		return err
	}
	var before *snapshot.View
	p.withLock(n.meters.checkpointPause, func() {
		before = p.table.renew()
		c.Committed()
	})
	if err := before.Close(); err != nil {
		return err
	}
	p.inSlices(n.meters.checkpointPause, rest, func() bool { return p.machine.EvictCommitted(jobSlice) })
	p.older.Store(p.checkpoint.Load())
	p.checkpoint.Store(position)
	p.checkpointAt.Store(int64(n.clock.running()))
	n.meters.checkpointTime.Update(time.Since(began).Seconds())
	n.log.Debug("checkpoint", "partition", p.number, "position", position, "took", time.Since(began))
	return nil
}

// forget drops completed jobs that are past their retention, so that the next checkpoint removes them from the table. No other checkpoint
// may be taken meanwhile. The partition does not wait for the disk.
func (n *Node) forget(p *partition) error {
	for more := true; more; runtime.Gosched() {
		var m *engine.Machine
		var f engine.ForgetCursor
		var ok bool
		var err error
		p.withLock(n.meters.checkpointPause, func() {
			m = p.machine
			f, ok, err = m.ForgetCursor()
		})
		if err != nil || !ok {
			return err
		}
		var gone *engine.GoneRows
		err = n.jobTable.View(uint16(p.number), func(v *snapshot.View) (err error) {
			gone, err = f.Read(v, jobSlice)
			return err
		})
		if err != nil {
			return err
		}
		p.withLock(n.meters.checkpointPause, func() {
			more = p.machine == m && m.Forget(gone) // else the partition was given up
		})
	}
	return nil
}

// commit makes a checkpoint the newest one. It waits while outputs are made again from the present checkpoints (rebuildOutputs).
func (n *Node) commit(build *snapshot.Build) error {
	n.logKept.Lock()
	defer n.logKept.Unlock()
	_, err := build.Commit()
	return err
}
