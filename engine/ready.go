package engine

import (
	"cmp"

	"github.com/carillon-scheduler/carillon"
)

// Ranks order the ready queue: high priority goes first.
const (
	rankHigh = iota
	rankNormal
	rankLow
	priorities
)

func rankOf(p carillon.Priority) uint8 {
	switch p {
	case carillon.High:
		return rankHigh
	case carillon.Low:
		return rankLow
	}
	return rankNormal
}

type turnKind uint8

const (
	turnJob      turnKind = iota // a job's earliest undecided fire
	turnForced                   // a forced fire
	turnRejected                 // the event of a refusal
)

// A turn is one entry of the ready queue: something that is due and waits to become an output. Within a kind no two
// turns have the same due time and order, except rejections of one import. So the slot of a job, which differs between
// replicas, never decides the order.
type turn struct {
	due   int64
	order uint64 // of a job: its order of creation; else the sequence of the record that caused the turn
	slot  uint32 // of the job; of a rejection: its place in an import
	rank  uint8
	kind  turnKind
	dead  bool // it was removed from a run
}

func (t turn) before(o turn) bool {
	switch {
	case t.rank != o.rank:
		return t.rank < o.rank
	case t.due != o.due:
		return t.due < o.due
	case t.order != o.order:
		return t.order < o.order
	case t.kind != o.kind:
		return t.kind < o.kind
	}
	return t.kind == turnRejected && t.slot < o.slot
}

func (m *Machine) turnOf(slot uint32, j *job) turn {
	return turn{due: j.next, order: m.jobs.texts.order(j.text), slot: slot, rank: j.rank, kind: turnJob}
}

// queue puts a job's turn into the ready queue, or, while its missed fires are being counted, into a queue beside it: there may be a billion
// of them, and what is due must not wait for that.
func (m *Machine) queue(slot uint32, j *job) {
	j.place = inReady
	if m.isCounting(j) {
		m.countingOf.count(j, 1)
		m.counting.Insert(m.countingTurn(slot, j))
		return
	}
	m.readyOf.count(j, 1)
	m.ready.Insert(m.turnOf(slot, j))
}

// unqueue takes a job's turn out again.
func (m *Machine) unqueue(slot uint32, j *job) {
	if m.isCounting(j) {
		m.countingOf.count(j, -1)
		m.counting.Delete(m.countingTurn(slot, j))
		return
	}
	m.readyOf.count(j, -1)
	m.ready.Delete(m.turnOf(slot, j))
}

// countingTurn is the turn of a job while its missed fires are being counted. Whoever is nearest to the present goes first, whatever the
// priority: a job that has a billion fires to count must not hold up one that has a thousand.
func (m *Machine) countingTurn(slot uint32, j *job) turn {
	return turn{due: -j.next, order: m.jobs.texts.order(j.text), slot: slot, kind: turnJob}
}

// isCounting tells whether some of a job's missed fires have been counted, and others not.
func (m *Machine) isCounting(j *job) bool { return m.jobs.extra(j).counted > 0 }

// tally is how many jobs have their turns in a queue, by rank, and about how many bytes their specs have.
type tally struct{ jobs, bytes [priorities]int }

// count counts a job whose turn comes into the queue (1), or leaves it (-1).
func (t *tally) count(j *job, n int) {
	t.jobs[j.rank] += n
	t.bytes[j.rank] += n * j.terms.specBytes()
}

// arm puts a scheduled job's next fire where it waits: into the ready queue if its time has come, else onto the wheel, or
// into later (setTimer).
func (m *Machine) arm(slot uint32, j *job, next int64) {
	j.next = next
	if next == none {
		j.place = nowhere
		return
	}
	m.armed++
	j.armed = m.armed
	if next <= m.wheels[j.rank].Now() {
		m.queue(slot, j)
		return
	}
	m.setTimer(slot, j)
}

// disarm takes a job's next fire away from where it waits.
func (m *Machine) disarm(slot uint32, j *job) {
	switch j.place {
	case onWheel:
		m.wheels[j.rank].Remove(j.timer)
	case inLater:
		m.residence.later[j.rank].Delete(waiting{keyOfJob(j), slot})
	case inReady:
		m.unqueue(slot, j)
	}
	j.place, j.timer = nowhere, 0
}

// forcedFire is a fire by command (verb fire) that waits. It does not change while it waits.
type forcedFire struct {
	lifetime
	seq  uint64 // of the command
	slot uint32
	id   string // of the job
	at   int64  // when it was asked for, ms
	body string
	own  bool // body replaces the job's payload
}

func (m *Machine) addForced(f *forcedFire) {
	m.forced[f.seq] = f
	m.largestBody = max(m.largestBody, len(f.body))
	m.forcedBytes += len(f.body)
	if len(m.forcedBy[f.slot]) == 0 {
		m.forcedSpecs += m.jobs.at(f.slot).terms.specBytes()
	}
	m.forcedBy[f.slot] = append(m.forcedBy[f.slot], f.seq)
	m.ready.Insert(m.forcedTurn(f))
	m.changes.forced.add(&f.lifetime, f, m.changes.number)
}

// endForced ends a forced fire: it has become an output, or its job is removed.
func (m *Machine) endForced(f *forcedFire) {
	delete(m.forced, f.seq)
	m.forcedBytes -= len(f.body)
	m.changes.forced.remove(&f.lifetime, f.seq, m.changes.number)
	if f.added == f.removed {
		f.body = "" // no checkpoint will have it, but the changes keep it until the next one
	}
}

func (m *Machine) forcedTurn(f *forcedFire) turn {
	return turn{due: f.at, order: f.seq, slot: f.slot, rank: m.jobs.at(f.slot).rank, kind: turnForced}
}

// removeForced ends the forced fires of a job that is removed.
func (m *Machine) removeForced(slot uint32) {
	waits := m.forcedBy[slot]
	if len(waits) == 0 {
		return
	}
	for _, seq := range waits {
		f := m.forced[seq]
		m.ready.Delete(m.forcedTurn(f))
		m.endForced(f)
	}
	m.dropForced(slot)
}

// dropForced drops the list of a job whose forced fires have all ended.
func (m *Machine) dropForced(slot uint32) {
	delete(m.forcedBy, slot)
	m.forcedSpecs -= m.jobs.at(slot).terms.specBytes()
}

// rejection is a refused command whose event waits. Repetitions collapse into it.
type rejection struct {
	key   rejectionKey
	err   carillon.Error
	count uint64
	at    int64
}

// origin is where a refused command stands in the log.
type origin struct {
	seq   uint64
	index uint32 // in an import
}

func (o origin) compare(p origin) int {
	return cmp.Or(cmp.Compare(o.seq, p.seq), cmp.Compare(o.index, p.index))
}

type rejectionKey struct {
	verb, job string // empty for rejections collapsed by code alone
	code      carillon.Code
}

// reject queues the event of a refused command.
func (m *Machine) reject(e *Entry, refusal *carillon.Error) {
	m.refused++
	key := rejectionKey{cut(e.Verb), cut(e.Job), refusal.Code}
	first, waits := m.collapse[key]
	if !waits && len(m.rejected) >= maxRejected {
		key = rejectionKey{code: refusal.Code}
		first, waits = m.collapse[key]
	}
	if waits {
		m.rejected[first].count++
		return
	}
	m.queueRejection(origin{e.Seq, e.Index}, &rejection{key: key, err: *refusal, count: 1, at: m.now})
}

func (m *Machine) queueRejection(o origin, r *rejection) {
	m.rejected[o] = r
	m.collapse[r.key] = o
	m.ready.Insert(turn{due: r.at, order: o.seq, slot: o.index, rank: rankLow, kind: turnRejected})
}
