package node

import (
	"context"
	"runtime"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/snapshot"
)

const (
	residenceLook = time.Second
	jobSlice      = 256 // jobs that are handled while a partition waits: half a millisecond
	// What comes due this soon stays, however many there are: a tick that asks for more of it before all that is to leave has
	// left would have to let it go in one piece.
	tooSoon = 5 * time.Second
)

// reside brings jobs into memory that come due, and lets go of others. Where a partition's jobs are damaged it stops that
// one, and the others go on.
func (n *Node) reside(ctx context.Context) error {
	for _, p := range n.followed() {
		if err := n.unread(p); err != nil {
			return passing(err)
		}
	}
	for _, p := range n.live() {
		err := n.resideIn(ctx, p, n.clock.ms())
		if damaged(err) {
			n.stop(p, unreadable(p.number, err))
			continue
		}
		if err != nil {
			return passing(err)
		}
	}
	return nil
}

// unread closes what is open of a partition's jobs in the table and has not been read since the last look, also where the
// partition has stopped: it keeps files that compactions have replaced.
func (n *Node) unread(p *partition) error {
	p.mu.Lock()
	unused := p.table.renewIdle()
	p.mu.Unlock()
	return unused.Close()
}

// resideIn does so in one partition; now is unix ms.
func (n *Node) resideIn(ctx context.Context, p *partition, now int64) error {
	share := n.share()
	ahead := now + n.o.LoadAhead.Milliseconds()
	var used, hot int
	var ends [3]engine.Reading
	n.holding(p, n.meters.loadPause, func() {
		if !p.follows.Load() {
			return
		}
		used, hot, ends = p.machine.Memory(), p.machine.Stats().Hot, p.machine.Readings()
	})
	furthest := max(ends[0].End().Due, ends[1].End().Due, ends[2].End().Due)
	switch {
	case used > share && hot > n.o.HotJobs:
		n.holding(p, n.meters.loadPause, func() {
			end, ok := p.machine.Nearest(max(hot/2, n.o.HotJobs))
			if !ok && p.machine.Complete() { // most of them wait for nothing, and need not be there
				end, ok = engine.Key{Due: ahead}, true
			}
			if ok && end.Due > now+min(tooSoon, n.o.LoadAhead/2).Milliseconds() {
				p.machine.Shrink(end)
			}
		})
	case hot > n.o.HotJobs && furthest > ahead+n.o.LoadAhead.Milliseconds():
		n.holding(p, n.meters.loadPause, func() { p.machine.Shrink(engine.Key{Due: ahead}) })
	default:
		for rank, at := range ends {
			if at.End().Due > ahead-n.o.LoadAhead.Milliseconds()/16 {
				continue // a look into the table is worth it once in a while
			}
			if err := n.loadNext(ctx, p, rank, ahead, share/10*9); err != nil {
				return err
			}
		}
	}
	n.inSlices(p, n.meters.loadPause, runtime.Gosched, func() bool {
		return ctx.Err() == nil && (p.machine.Sweep(jobSlice) || p.machine.Clean(jobSlice))
	})
	return nil
}

// loadNext brings the jobs of a priority into memory that are due until a time, as long as there is room.
func (n *Node) loadNext(ctx context.Context, p *partition, rank int, until int64, room int) error {
	for ctx.Err() == nil {
		var r engine.Reading
		var m *engine.Machine
		full := false
		n.holding(p, n.meters.loadPause, func() {
			m = p.machine
			r = p.machine.Readings()[rank]
			full = p.machine.Memory() > room && p.machine.Stats().Hot > n.o.HotJobs
		})
		if full || r.End().Due >= until {
			return nil
		}
		var rows *engine.Rows
		err := n.saved.View(uint16(p.number), func(v *snapshot.View) (err error) {
			rows, err = r.Read(v, until, jobSlice)
			return err
		})
		if err != nil {
			return err
		}
		// A checkpoint may have come between, or a tick that could not wait; then it is read again.
		n.holding(p, n.meters.loadPause, func() {
			if p.machine == m { // else the partition was given up
				_, err = m.Load(rows)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}
