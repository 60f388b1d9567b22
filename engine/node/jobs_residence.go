package node

import (
	"context"
	"runtime"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/snapshot"
)

// Which jobs are in memory: they are loaded before they are due, and evicted when memory runs short.

const (
	residencePoll = time.Second
	jobSlice      = 256 // jobs that are handled while the partition's lock is held: half a millisecond
	// Jobs that are due this soon stay in memory, however many they are. If they were leaving it and a tick needed them before all had
	// left, that tick would have to finish letting them go, all at once.
	evictMargin = 5 * time.Second
)

// loadAndEvict brings jobs into memory that come due, and has others leave it. If the jobs of a partition are damaged, it stops that
// partition, and the others go on.
func (n *Node) loadAndEvict(ctx context.Context) error {
	for _, p := range n.followed() {
		if err := p.closeIdleView(); err != nil {
			return markTransient(err)
		}
	}
	for _, p := range n.live() {
		err := n.loadAndEvictIn(ctx, p, n.clock.ms())
		if damaged(err) {
			n.stop(p, unreadable(p.number, err))
			continue
		}
		if err != nil {
			return markTransient(err)
		}
	}
	return nil
}

// closeIdleView closes the partition's view of the job table if nothing was read from it since the last look: an open view keeps files
// on disk that compactions have replaced. It does so for stopped partitions, too.
func (p *partition) closeIdleView() error {
	p.mu.Lock()
	unused := p.table.renewIdle()
	p.mu.Unlock()
	return unused.Close()
}

// loadAndEvictIn is loadAndEvict for one partition; now is unix ms.
func (n *Node) loadAndEvictIn(ctx context.Context, p *partition, now int64) error {
	share := n.share()
	ahead := now + n.o.LoadAhead.Milliseconds()
	var used, hot int
	var ends [3]engine.LoadCursor
	p.withLock(n.meters.loadPause, func() {
		if !p.follows.Load() {
			return
		}
		used, hot, ends = p.machine.Memory(), p.machine.Stats().Hot, p.machine.LoadCursors()
	})
	furthest := max(ends[0].End().Due, ends[1].End().Due, ends[2].End().Due)
	switch {
	case used > share && hot > n.o.HotJobs:
		p.withLock(n.meters.loadPause, func() {
			end, ok := p.machine.EstimateWindow(max(hot/2, n.o.HotJobs))
			if !ok && p.machine.Complete() { // most of the jobs wait for nothing, and need not be in memory
				end, ok = engine.Key{Due: ahead}, true
			}
			if ok && end.Due > now+min(evictMargin, n.o.LoadAhead/2).Milliseconds() {
				p.machine.Shrink(end)
			}
		})
	case hot > n.o.HotJobs && furthest > ahead+n.o.LoadAhead.Milliseconds():
		p.withLock(n.meters.loadPause, func() { p.machine.Shrink(engine.Key{Due: ahead}) })
	default:
		for priority, at := range ends {
			if at.End().Due > ahead-n.o.LoadAhead.Milliseconds()/16 {
				continue // far enough ahead: a look into the table should find many jobs
			}
			if err := n.loadNext(ctx, p, priority, ahead, share/10*9); err != nil {
				return err
			}
		}
	}
	p.inSlices(n.meters.loadPause, runtime.Gosched, func() bool {
		return ctx.Err() == nil && (p.machine.ContinueShrink(jobSlice) || p.machine.EvictCommitted(jobSlice))
	})
	return nil
}

// loadNext brings the jobs of a priority into memory that are due until a time (unix ms), while the jobs in memory take less than room
// bytes.
func (n *Node) loadNext(ctx context.Context, p *partition, priority int, until int64, room int) error {
	for ctx.Err() == nil {
		var r engine.LoadCursor
		var m *engine.Machine
		full := false
		p.withLock(n.meters.loadPause, func() {
			m = p.machine
			r = p.machine.LoadCursors()[priority]
			full = p.machine.Memory() > room && p.machine.Stats().Hot > n.o.HotJobs
		})
		if full || r.End().Due >= until {
			return nil
		}
		var rows *engine.Rows
		err := n.jobTable.View(uint16(p.number), func(v *snapshot.View) (err error) {
			rows, err = r.Read(v, until, jobSlice)
			return err
		})
		if err != nil {
			return err
		}
		// If a checkpoint was committed since, or a tick has loaded jobs itself, Load ignores the rows, and they are read again.
		p.withLock(n.meters.loadPause, func() {
			if p.machine == m { // if not, the partition was given up meanwhile
				_, err = m.Load(rows)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}
