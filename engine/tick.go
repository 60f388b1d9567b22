package engine

import (
	"fmt"
	"math"
	"slices"

	"github.com/carillon-scheduler/carillon"
)

// A gap is a time without ticks. Fires due in it were missed, except those of its last second (misfireAfter).
type gap struct{ from, to int64 }

// tick advances the partition's time and turns what is due into outputs, within its bounds. The rest
// stays ready, or on the wheel, until the next tick.
func (m *Machine) tick(e *Entry, t *Tick) error {
	if t.Epoch != m.epoch || m.epoch == 0 {
		m.garbage("stale_epoch")
		return nil
	}
	if rules := Rules(); !m.claim.sameRules(rules) {
		return fmt.Errorf("%w: partition %d has ticks under logic %d and tzdata %s after its checkpoint; drain it with that version (this one has logic %d and tzdata %s)",
			ErrRules, m.partition, m.claim.Logic, m.claim.TZData, rules.Logic, rules.TZData)
	}
	for _, mark := range m.marks {
		if mark.Position > m.ignoredMarks && mark.Position == t.Mark.Position && mark.Digest != t.Mark.Digest {
			return fmt.Errorf("%w: partition %d at sequence %d: digest %016x here, %016x there", ErrDiverged, m.partition, mark.Position, mark.Digest, t.Mark.Digest)
		}
	}

	m.viewed = viewed{}
	m.outbox.trim(t.Acked)
	before := m.to
	m.cameDue = 0
	m.to = max(m.to, min(t.To, e.Time+maxLead))
	if m.to > before+misfireAfter {
		m.gaps = append(m.gaps, gap{before, m.to})
	}
	m.ticks++

	// What is due by the record's own time has waited already, and goes by priority. What comes due only within the
	// lead goes by due time: such an output is held until it is due, and must not hold up what is due before it.
	finished := m.finished
	m.left, m.move, m.logged = int(min(t.Limit, maxLimit)), m.bounds.Moves, min(max(e.Time, before), m.to)
	m.countOn(countTurns)
	for at := m.logged; ; at = m.dueAfter(at) {
		caughtUp := m.gather(at)
		m.drain()
		if at == m.to || !caughtUp || m.left <= 0 {
			break
		}
	}
	if m.ready.Len() == 0 {
		m.countOn(m.left)
	}
	m.expire(m.to)
	m.sweep(m.bounds.Sweep + 2*int(m.finished-finished))
	if m.ready.Len()+m.counting.Len() == 0 && m.caughtUp() {
		m.gaps = m.gaps[:0]
		if m.recovery.isOver(m.to) {
			m.recovery = recovery{}
		}
	}
	if m.ticks%markEvery == 0 || before > 0 && m.to/markWithin > before/markWithin {
		m.mark(e.Seq)
	}
	return nil
}

// IgnoreMarks has marks up to a position not compared: they were made by owners with another state, and an operator has accepted the
// difference. This is not part of the state.
func (m *Machine) IgnoreMarks(position uint64) { m.ignoredMarks = position }

// mark notes the digest at a position, in the place of the oldest mark.
func (m *Machine) mark(seq uint64) {
	oldest := 0
	for i := range m.marks {
		if m.marks[i].Position < m.marks[oldest].Position {
			oldest = i
		}
	}
	m.marks[oldest] = Mark{seq, m.digest}
}

// gather moves what is due at or before a time from the wheels to ready, high priority first. A priority of which enough is ready
// (Bounds) has to wait; the others do not. done says that all that was due was moved.
func (m *Machine) gather(at int64) (done bool) {
	done = true
	for rank := range m.wheels {
		done = m.gatherOf(rank, at) && done
	}
	return done
}

// gatherOf is gather for one priority. How large a job is shows only once it is off the wheel, so a few are moved at a time. How many are
// ready is looked at once: to move some thousands every few ticks costs less than a few hundred in each.
func (m *Machine) gatherOf(rank int, at int64) (done bool) {
	full := m.readyOf.jobs[rank] >= m.bounds.Ready || m.countingOf.jobs[rank] >= countingShare*m.bounds.Ready
	for {
		move := min(m.move, moveStep)
		if full || max(m.readyOf.bytes[rank], m.countingOf.bytes[rank]) >= m.bounds.ReadyBytes {
			move = 0
		}
		m.ensureLoaded(rank, at, move)
		done = m.wheels[rank].Advance(at, move, m.onDue)
		m.makeReady()
		if done || move == 0 {
			return done
		}
	}
}

// addDue notes a job whose timer expired.
func (m *Machine) addDue(slot uint32, _ int64) {
	m.move--
	if m.soon = append(m.soon, slot); len(m.soon) == fetchAhead {
		m.makeReady()
	}
}

func (m *Machine) makeReady() {
	m.prefetch.jobs(&m.jobs, m.soon)
	for _, slot := range m.soon {
		m.touch(slot)
		j := m.jobs.at(slot)
		j.timer = 0
		m.queue(slot, j)
	}
	m.soon = m.soon[:0]
}

// dueAfter is the next time after at when something comes due, m.to at the latest.
func (m *Machine) dueAfter(at int64) int64 {
	next := m.to
	for rank, w := range m.wheels {
		m.ensureLoaded(rank, m.to, 0)
		if d, ok := w.Next(); ok {
			next = min(next, d)
		}
	}
	return max(next, at+1)
}

func (m *Machine) caughtUp() bool {
	for _, w := range m.wheels {
		if w.Now() < m.to {
			return false
		}
	}
	return true
}

// drain takes turns in order until nothing is ready or the tick's limit is reached.
func (m *Machine) drain() {
	for n := 0; m.left > 0; n++ {
		if n%fetchAhead == 0 {
			m.prefetch.turns(&m.jobs, &m.ready, min(m.left, fetchAhead))
		}
		t, ok := m.ready.DeleteMin()
		if !ok {
			return
		}
		m.left--
		switch t.kind {
		case turnJob:
			j := m.jobs.at(t.slot)
			m.readyOf.count(j, -1)
			m.takeTurn(t.slot, j)
		case turnForced:
			m.fireForced(t)
		case turnRejected:
			from := origin{t.order, t.slot}
			r := m.rejected[from]
			delete(m.rejected, from)
			delete(m.collapse, r.key)
			m.emitRejected(r)
		}
	}
}

// countOn takes up to n turns of jobs whose missed fires are being counted, in order. In the tick's limit only those count that make an
// output.
func (m *Machine) countOn(n int) {
	for ; n > 0 && m.left > 0; n-- {
		t, ok := m.counting.DeleteMin()
		if !ok {
			return
		}
		made, j := m.outbox.made, m.jobs.at(t.slot)
		m.countingOf.count(j, -1)
		if m.takeTurn(t.slot, j); m.outbox.made > made {
			m.left--
		}
	}
}

// takeTurn decides a job's earliest undecided fire: it becomes a trigger; or it is skipped; or it is one of
// many missed fires, which must be counted first.
func (m *Machine) takeTurn(slot uint32, j *job) {
	m.touch(slot)
	j.place = nowhere
	if j.status == statusCompleted { // its put left it no fire, and queued this turn to announce that
		m.emitCompleted(j)
		m.free(slot, j)
		return
	}
	if skipTo := m.jobs.extra(j).skipTo; j.next <= skipTo {
		if last, done := m.count(slot, j, skipTo); done {
			m.jobs.editExtra(j).skipTo = 0
			m.skip(slot, j, carillon.ReasonPaused, last)
		}
		return
	}
	counted, first := uint64(1), j.next
	missedUntil, policy, missed := m.missed(j)
	if missed && policy != carillon.FireAll && (m.jobs.recurring(j) || policy == carillon.Skip) {
		last, done := m.count(slot, j, missedUntil)
		switch {
		case !done:
			return
		case policy == carillon.Skip:
			m.skip(slot, j, carillon.ReasonMisfire, last)
			return
		}
		r := m.jobs.extra(j)
		j.next, counted, first = last, r.counted, r.countedFirst
	}
	extra := m.jobs.extra(j)
	if extra.expires > 0 && m.logged-j.next > extra.expires {
		r := m.jobs.editExtra(j)
		r.counted, r.countedFirst = counted, first
		m.skip(slot, j, carillon.ReasonExpired, j.next)
		return
	}
	if extra.counted > 0 {
		r := m.jobs.editExtra(j)
		r.counted, r.countedFirst = 0, 0
	}
	j.fires++
	j.last = j.next
	m.emitTrigger(j, counted-1)
	if extra.maxFires > 0 && j.fires >= extra.maxFires {
		m.complete(slot, j)
		return
	}
	m.advance(slot, j, j.last)
}

// missed tells whether a job's earliest undecided fire was missed, and if so, up to when its further fires were missed, and which
// policy applies. Fires before a job's acceptance never existed: a one-shot that is put late is late, not missed.
func (m *Machine) missed(j *job) (until int64, policy carillon.Misfire, ok bool) {
	if until, policy, ok = m.inOutage(j); ok && j.next < m.jobs.fixed(j).accepted {
		return 0, 0, false
	}
	return until, policy, ok
}

// inOutage is missed without regard to the job's acceptance: when the fire was due, either nobody ticked, or the service was not yet
// restored.
func (m *Machine) inOutage(j *job) (until int64, policy carillon.Misfire, ok bool) {
	if r := m.jobs.extra(j).recovery; j.next < r.until {
		return r.until - 1, r.policy.or(j.terms.misfire()), true
	}
	for _, g := range m.gaps {
		if g.from < j.next && j.next < g.to-misfireAfter {
			until = g.to - misfireAfter - 1
			if r := m.recovery; j.next < r.until {
				return min(until, r.until-1), r.policy.or(j.terms.misfire()), true
			}
			return until, j.terms.misfire(), true
		}
	}
	return 0, 0, false
}

// count adds the fires from the job's next one up to until to its counted ones, with at most countSteps steps of the schedule in a
// turn. When it is not done, it queues the job for another turn (countOn).
func (m *Machine) count(slot uint32, j *job, until int64) (last int64, done bool) {
	plan, r := m.jobs.plan(j), m.jobs.editExtra(j)
	if r.counted == 0 {
		r.countedFirst = j.next
	}
	n, last, done := plan.Count(j.next-1, until, countSteps)
	if n == 0 { // the fire was armed under other zone rules, by which it exists, and counts although by these it does not
		n, last = 1, j.next
	}
	r.counted += uint64(n)
	if !done {
		next, ok := plan.Next(last)
		if ok && next <= until {
			j.next = next
			m.queue(slot, j)
			return last, false
		}
	}
	return last, true
}

// skip counts the counted fires as skipped, emits the event, and goes on after the last one.
func (m *Machine) skip(slot uint32, j *job, reason string, last int64) {
	r := m.jobs.editExtra(j)
	n, first := r.counted, r.countedFirst
	r.counted, r.countedFirst = 0, 0
	r.skipped += n
	if m.listen.Skipped != nil {
		m.listen.Skipped(reason, n)
	}
	m.emitSkipped(j, reason, n, first, last)
	m.advance(slot, j, last)
}

// advance arms the first fire after a time, or completes the job.
func (m *Machine) advance(slot uint32, j *job, after int64) {
	if next, ok := m.jobs.next(j, after); ok {
		if r := m.jobs.extra(j).recovery; r.until > 0 && next >= r.until {
			m.jobs.editExtra(j).recovery = recovery{}
		}
		m.arm(slot, j, next)
		return
	}
	m.complete(slot, j)
}

// complete ends a job that has no fire left. A recurring job gets an event.
func (m *Machine) complete(slot uint32, j *job) {
	if m.jobs.recurring(j) {
		m.emitCompleted(j)
	}
	m.finish(slot, j)
}

// fireForced turns a forced fire into a trigger.
func (m *Machine) fireForced(t turn) {
	f := m.forced[t.order]
	j := m.jobs.at(t.slot)
	m.emitForced(j, f)
	m.endForced(f)
	m.unlistForced(t.slot, t.order)
	if !m.free(t.slot, j) {
		m.markTransient(t.slot)
	}
}

// unlistForced takes a forced fire off its job's list. Forced fires mostly go in the order in which they came, so it is mostly the
// first. Then the others are not moved: there may be maxForced of them, and after a restore more.
func (m *Machine) unlistForced(slot uint32, seq uint64) {
	waits := m.forcedBy[slot]
	if waits[0] == seq {
		waits = waits[1:]
	} else {
		waits = slices.DeleteFunc(waits, func(other uint64) bool { return other == seq })
	}
	if m.forcedBy[slot] = waits; len(waits) == 0 {
		m.dropForced(slot)
	}
}

// NextDeadline is the time from which a tick would have something to do. It may lie in the past. ok is false when
// nothing waits at all.
func (m *Machine) NextDeadline() (at int64, ok bool) {
	if m.ready.Len()+m.counting.Len() > 0 {
		return m.to, true
	}
	at = math.MaxInt64
	for rank, w := range m.wheels {
		at = min(at, m.residence.windows[rank].Due) // jobs that are due later may be on disk
		if d, waits := w.Next(); waits {
			at = min(at, d)
		}
	}
	return at, at != math.MaxInt64
}

// DueSince is since when something has been due and waits for a tick; it lies in the future if nothing is due yet. ok is false when nothing
// waits at all. It differs from NextDeadline where a record brought something that was due at once: that has waited since the record came,
// whenever the last tick was.
func (m *Machine) DueSince() (at int64, ok bool) {
	at, ok = m.NextDeadline()
	return max(at, m.cameDue), ok
}

// noteDue notes since when something has been due, after a record that was no tick. since and waits are DueSince's from before it.
func (m *Machine) noteDue(since int64, waits bool, now int64) {
	if waits && since <= now {
		m.cameDue = since
	} else if at, ok := m.NextDeadline(); ok && at <= now {
		m.cameDue = now
	}
}
