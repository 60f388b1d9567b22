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

// checkpointLook is how often it is looked whether a checkpoint is due while the log brings records. Why not every
// second: a flood of commands fills the default log stream in a few.
const checkpointLook = 100 * time.Millisecond

// checkpoints waits for records, or a second, and takes the checkpoints that are due.
func (n *Node) checkpoints(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-n.delivered:
	case <-time.After(time.Second):
	}
	return n.checkpointDue(ctx)
}

// checkpointDue takes a checkpoint of the partitions whose replay would have become long. A log that is
// filling up is freed before anything else: it can be cut below the older of two checkpoints. One that rests is emptied: what
// the last minute brought would stay for as long as nothing follows it.
func (n *Node) checkpointDue(ctx context.Context) error {
	if len(n.followed()) == 0 && n.clock.running()-n.idleTrim >= n.o.CheckpointEvery {
		n.idleTrim = n.clock.running()
		return n.trim(ctx) // no checkpoint does it
	}
	for ctx.Err() == nil && !n.holdTicks.Load() {
		live := n.live()
		rests := n.atRest(live)
		free := n.stoppedHere() == 0 && (n.filling.mustFree() || rests) && n.knowsOthers()
		upTo, save, taken := uint64(0), uint64(0), false
		if free {
			upTo = min(n.applied.Load(), n.neededElsewhere())
			save = upTo // what others need stays, whatever is saved here
		}
		if free && rests { // but at rest others wait for this node, as it does for them
			save = n.applied.Load()
		}
		for _, p := range live {
			if n.dueCheckpoint(p, save) {
				if err := n.checkpointOrStop(ctx, p, n.resting(ctx, p)); err != nil {
					return passing(err)
				}
				taken = true
			}
		}
		if !taken && !(free && n.filling.holds(upTo)) {
			return nil
		}
		// Where no checkpoint was due, others may need less of the log than before.
		if err := n.trim(ctx); err != nil || !free || !taken {
			return err
		}
	}
	return nil
}

// dueCheckpoint tells whether a partition is to have a checkpoint. upTo is the position up to which the log is to be cut as soon as
// can be; 0: it has room.
func (n *Node) dueCheckpoint(p *partition, upTo uint64) bool {
	switch {
	case p.older.Load() < upTo || n.checkpointUrgent(p):
		return true
	case n.newRecords(p) == 0 || n.checkpointWaits(p):
		return false
	}
	return n.checkpointLong(p) || n.checkpointOld(p)
}

// newRecords counts those behind a partition's checkpoint.
func (n *Node) newRecords(p *partition) uint64 {
	applied := n.applied.Load()
	return applied - min(applied, p.checkpoint.Load()) // a checkpoint that was taken from another node may be ahead
}

// atRest tells whether nothing has come by the log since the last checkpoints, and those are old enough.
func (n *Node) atRest(live []*partition) bool {
	return len(live) > 0 && !slices.ContainsFunc(live, func(p *partition) bool {
		return n.newRecords(p) > 0 || n.checkpointAge(p) < n.o.EmptyLogAfter
	})
}

// burstTimes is how much longer than usual a partition's replay may become, and its checkpoint how much older, while a
// burst drains.
const burstTimes = 4

// checkpointUrgent tells whether a partition's checkpoint can wait for nothing: memory runs out, or a burst that drains has
// been waited for.
func (n *Node) checkpointUrgent(p *partition) bool {
	return n.newRecords(p) > 0 && n.mostlyChanged(p) || n.replayed(p, burstTimes)
}

// checkpointLong tells whether a partition's replay would become long.
func (n *Node) checkpointLong(p *partition) bool { return n.replayed(p, 1) }

// replayed tells whether a start would replay so many times as much as is to be between two checkpoints.
func (n *Node) replayed(p *partition, times uint64) bool {
	return n.newRecords(p)/times >= n.o.CheckpointRecords || (n.filling.bytes()-p.bytesAt.Load())/times >= n.o.CheckpointBytes
}

// checkpointOld tells whether a partition's checkpoint should be renewed for its age.
func (n *Node) checkpointOld(p *partition) bool { return n.checkpointAge(p) >= n.o.CheckpointEvery }

func (n *Node) checkpointAge(p *partition) time.Duration {
	return n.clock.running() - time.Duration(p.checkpointAt.Load())
}

// checkpointWaits tells whether one that is not urgent waits while a burst drains, be it in another partition: the log it
// would shorten grows little, each job that fired is one more to write, and it would take the cores from the burst. Not where
// somebody waits for its end to take one of his own.
func (n *Node) checkpointWaits(p *partition) bool {
	return p.wanted.Load() == 0 && n.checkpointAge(p) < burstTimes*n.o.CheckpointEvery && n.draining()
}

// draining tells whether something that is due waits in a partition that has not stopped.
func (n *Node) draining() bool {
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

// mostlyChanged tells whether memory runs out, and a checkpoint would let most of the jobs leave it. That is so when three
// quarters of a partition's share are used, and while a burst drains when all of it is: what a checkpoint copied that waits
// for the burst counts, too, and must not be what makes it urgent.
func (n *Node) mostlyChanged(p *partition) bool {
	p.mu.Lock()
	st, used := p.machine.Stats(), p.machine.Memory()
	p.mu.Unlock()
	if st.Hot <= n.o.HotJobs || st.Dirty <= st.Hot/2 {
		return false
	}
	share := n.share()
	return used > share || used > share/4*3 && !n.draining()
}

// live lists the partitions that are followed and have not stopped. Of those that have the log is kept for the way out.
func (n *Node) live() (live []*partition) {
	for _, p := range n.partitions {
		if p.follows.Load() && p.whyStopped() == nil {
			live = append(live, p)
		}
	}
	return live
}

// relieve makes room in a log stream that is filling up, before this run appends to it: in a full one
// the claims would have no place. All of the local log is applied. Where other nodes may need the log, that waits until
// this one knows them (checkpointDue).
func (n *Node) relieve(ctx context.Context) error {
	if _, err := n.lookAtLog(ctx); err != nil || n.server == nil || !n.filling.mustFree() {
		return err
	}
	for range 2 {
		if err := n.checkpointAll(ctx); err != nil {
			return err
		}
	}
	return n.trim(ctx)
}

// checkpointAll takes a checkpoint of every partition where it stands, but for those that have stopped.
func (n *Node) checkpointAll(ctx context.Context) error {
	for _, p := range n.partitions {
		if err := n.checkpointOrStop(ctx, p, runtime.Gosched); err != nil {
			return err
		}
	}
	return nil
}

// checkpointOrStop is checkpointWith, but where a partition's jobs are damaged it stops that one, and the others go on.
func (n *Node) checkpointOrStop(ctx context.Context, p *partition, rest func()) error {
	err := n.checkpointWith(ctx, p, rest)
	if damaged(err) {
		n.stop(p, unreadable(p.number, err))
		return nil
	}
	return err
}

// unreadable words what was met in a partition's jobs.
func unreadable(partition int, err error) error {
	return fmt.Errorf("the jobs of partition %d cannot be read: %w", partition, err)
}

// damaged tells of an error of reading a partition's jobs whether they are not those that were written.
func damaged(err error) bool {
	return errors.Is(err, wal.ErrCorrupt) || errors.Is(err, engine.ErrCheckpoint)
}

// takeCheckpoint writes what changed in a partition since its last checkpoint. The partition waits for a slice at a
// time, and for nothing that is written.
func (n *Node) takeCheckpoint(ctx context.Context, p *partition) error {
	return n.checkpointWith(ctx, p, runtime.Gosched)
}

const (
	// restShare is how long a checkpoint that is in no hurry rests, in times of what it worked: it takes a fifth of a core.
	restShare = 4
	// restLess is the same of one that is needed soon: it takes half a core. By their CPU, the eight of a flood of
	// creates would take one of two cores for 0.6 s every three seconds.
	restLess = 1
	// restLook is how often it looks whether it still may rest, at the least: a part that waited for the disk takes
	// seconds, and the log may be full after as many.
	restLook = 20 * time.Millisecond
)

// resting returns what a partition's checkpoint calls between parts of the work. Unless it rested it would hold one of few cores
// for half a second, and those of eight partitions for four: what comes due meanwhile would be late. For a burst it stops.
func (n *Node) resting(ctx context.Context, p *partition) (rest func()) {
	return restful(ctx, n.restTimes, func() bool { return n.checkpointWaits(p) })
}

// compactionRests returns what compactions of the job table call between parts of the work (wal.Options.Rest): one takes a
// core for seconds. While nothing comes by the log there is nobody to rest for, as before the partitions are there.
func (n *Node) compactionRests(ctx context.Context) func(behind bool) {
	var behind bool
	var applied uint64
	times := func() time.Duration {
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

// restful returns what some work calls between small parts of it. It then rests for times() as long as it worked; and for longer
// while waits() says so, unless times() says that the work is needed soon.
func restful(ctx context.Context, times func() time.Duration, waits func() bool) (rest func()) {
	began := time.Now()
	return func() {
		worked, share := time.Since(began), time.Duration(0)
		if worked >= time.Millisecond {
			share = times()
		}
		if share == 0 {
			runtime.Gosched()
			return
		}
		goesOn := pause(ctx, min(share*worked, restLook))
		for goesOn && waits() && times() == restShare {
			goesOn = pause(ctx, restLook)
		}
		began = time.Now()
	}
}

// restTimes is how long a checkpoint or a compaction rests, in times of what it worked: the shorter, the sooner another checkpoint
// is needed.
func (n *Node) restTimes() time.Duration {
	live := n.live()
	switch {
	case n.filling.mustHurry() || slices.ContainsFunc(live, n.checkpointUrgent):
		return 0
	case n.filling.mustFree() || slices.ContainsFunc(live, func(p *partition) bool { return n.checkpointLong(p) && !n.checkpointWaits(p) }):
		return restLess
	}
	return restShare
}

// checkpointWith is takeCheckpoint, with rest called between small parts of the work.
func (n *Node) checkpointWith(ctx context.Context, p *partition, rest func()) error {
	p.wanted.Add(1)
	p.taking.Lock() // a snapshot asks for one beside those that are due
	defer p.taking.Unlock()
	p.wanted.Add(-1)
	began := time.Now()
	if !p.follows.Load() || p.whyStopped() != nil {
		return nil
	}
	if err := n.forget(p); err != nil {
		return err
	}
	build, err := n.saved.Begin(uint16(p.number))
	if err != nil {
		return err
	}
	defer build.Abort()
	var c *engine.Checkpoint
	var position uint64
	n.holding(p, n.meters.checkpointPause, func() {
		if p.stopped != nil {
			return
		}
		// Every record up to applied that concerns this partition is in; some after it may be, and they are
		// known to the machine by its own position. A log that was read again may not be that far.
		position = max(n.applied.Load(), p.checkpoint.Load())
		p.bytesAt.Store(n.filling.bytes())
		c = p.machine.BeginCheckpoint()
	})
	if c == nil {
		return nil
	}
	defer n.holding(p, n.meters.checkpointPause, c.Abandon)
	n.inSlices(p, n.meters.checkpointPause, rest, func() bool { return ctx.Err() == nil && c.Next(jobSlice) })
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
	n.holding(p, n.meters.checkpointPause, func() {
		before = p.table.renew()
		c.Committed()
	})
	if err := before.Close(); err != nil {
		return err
	}
	n.inSlices(p, n.meters.checkpointPause, rest, func() bool { return p.machine.Clean(jobSlice) })
	p.older.Store(p.checkpoint.Load())
	p.checkpoint.Store(position)
	p.checkpointAt.Store(int64(n.clock.running()))
	n.meters.checkpointTime.Update(time.Since(began).Seconds())
	n.log.Debug("checkpoint", "partition", p.number, "position", position, "took", time.Since(began))
	return nil
}

// forget gives up the completed jobs that are gone, which the checkpoint then takes out of the table. No other checkpoint may
// be taken meanwhile. The partition does not wait for the disk.
func (n *Node) forget(p *partition) error {
	for more := true; more; runtime.Gosched() {
		var m *engine.Machine
		var f engine.Forgetting
		var ok bool
		var err error
		n.holding(p, n.meters.checkpointPause, func() {
			m = p.machine
			f, ok, err = m.Forgetting()
		})
		if err != nil || !ok {
			return err
		}
		var gone *engine.Gone
		err = n.saved.View(uint16(p.number), func(v *snapshot.View) (err error) {
			gone, err = f.Read(v, jobSlice)
			return err
		})
		if err != nil {
			return err
		}
		n.holding(p, n.meters.checkpointPause, func() {
			more = p.machine == m && m.Forget(gone) // else the partition was given up
		})
	}
	return nil
}

func (n *Node) commit(build *snapshot.Build) error {
	n.logKept.Lock()
	defer n.logKept.Unlock()
	_, err := build.Commit()
	return err
}
