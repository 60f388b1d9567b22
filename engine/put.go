package engine

import (
	"fmt"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

// put creates a job or replaces it. A retry of the put that made the job changes nothing.
func (m *Machine) put(e *Entry) (bool, *carillon.Error) {
	want, ifVersion, refusal := e.asksFor()
	if refusal != nil {
		return false, refusal
	}
	expr, err := m.jobs.exprs.parse(&want)
	if err != nil {
		return false, asError(err)
	}
	s := encodeSpec(&want)
	slot, j := m.find(e.Job)
	if j != nil && e.absentOnly() {
		return false, nil
	}
	if j != nil {
		repeated := e.Request != "" && string(m.jobs.request(j)) == e.Request
		if repeated || j.status != statusCompleted && string(m.jobs.spec(j)) == string(s) && e.has(j) {
			if repeated || !e.paused() || j.status == statusPaused {
				return false, nil
			}
			m.halt(slot, j, e.Request)
			return true, nil
		}
	}
	if refusal := checkVersion(e.Job, j, ifVersion); refusal != nil {
		return false, refusal
	}
	var last int64
	if j != nil {
		last = j.last
	} else if g := m.graves[e.Job]; g != nil {
		last = g.last
	}
	offset := schedule.Offset(e.Job, want.Spread.Milliseconds())
	accepted, state := m.now, e.state()
	if state != nil {
		accepted, last = state.Accepted, max(last, state.Last)
	}
	plan := expr.Bind(accepted, unixMilli(want.Start), unixMilli(want.End), offset)
	next := firstFire(plan, expr.Kind(), m.now, last)
	if state != nil {
		next = state.firstFire(plan, last, want.MaxFires)
	}
	if next == none && expr.Kind() != schedule.None && last == 0 && state == nil {
		return false, &carillon.Error{Code: carillon.CodeInvalidField, Field: "end", Message: "the schedule has no fire between now and the end"}
	}
	if j == nil && m.diskLow {
		return false, &carillon.Error{Code: carillon.CodeLimitExceeded, Message: "the engine's disk is nearly full: no new jobs are taken"}
	}

	paused := e.paused()
	if j == nil {
		m.unbury(e.Job)
		slot, j = m.jobs.add(e.Job)
		m.touchNew(slot)
		m.created++
		j.order = m.created
	} else {
		m.touch(slot)
		m.disarm(slot, j)
		paused = paused || j.status == statusPaused
		m.rerank(slot, j, rankOf(want.Priority))
	}
	version := j.version
	m.become(j, statusFree)
	m.jobs.clear(j)
	m.jobs.write(j, e.Request, s)
	m.jobs.describe(j, &want, expr, plan)
	j.version, j.accepted, j.last, j.put, j.index = version+1, accepted, last, e.Seq, uint16(e.Index)
	if state != nil {
		m.jobs.restore(j, state, next, m.now)
	}
	switch {
	case next == none && expr.Kind() != schedule.None:
		m.finish(slot, j)
		if state == nil { // else that was told where the job comes from
			m.announce(slot, j)
		}
	case paused:
		m.become(j, statusPaused)
		j.next = next
	default:
		m.become(j, statusScheduled)
		m.arm(slot, j, next)
	}
	return true, nil
}

// announce has the next tick tell that a recurring job was complete as soon as it was put.
func (m *Machine) announce(slot uint32, j *job) {
	if j.recurring() {
		m.queue(slot, j)
	}
}

// firstFire is the first fire of a version accepted at now: none before it, except that a one-shot whose
// time has passed fires at once, and none at or before the last fire of an earlier version.
func firstFire(plan schedule.Plan, kind schedule.Kind, now, last int64) int64 {
	after := now - 1
	if kind == schedule.At {
		after = -1
	}
	next, ok := plan.Next(max(after, last))
	if !ok {
		return none
	}
	return next
}

// checkVersion holds a command's condition against the job, which is nil when there is none.
func checkVersion(id string, j *job, ifVersion *uint64) *carillon.Error {
	switch {
	case ifVersion == nil:
		return nil
	case j == nil && *ifVersion == 0:
		return nil
	case j == nil:
		return noJob(id)
	case j.version != *ifVersion:
		return &carillon.Error{Code: carillon.CodeVersionConflict, Field: "if_version", Message: fmt.Sprintf("job is at version %d, not %d", j.version, *ifVersion)}
	}
	return nil
}

// remember keeps the request id of the last applied command, so that its retry is known.
func (m *Machine) remember(slot uint32, j *job, request string) {
	if before := m.jobs.request(j); string(before) != request {
		m.touch(slot)
		m.jobs.write(j, request, spec(m.jobs.spec(j)))
	}
}

// rerank moves a job's forced fires when its priority changes.
func (m *Machine) rerank(slot uint32, j *job, rank uint8) {
	if j.rank == rank || len(m.forcedBy[slot]) == 0 {
		return
	}
	for _, seq := range m.forcedBy[slot] {
		m.ready.Delete(m.forcedTurn(m.forced[seq]))
	}
	j.rank = rank
	for _, seq := range m.forcedBy[slot] {
		m.ready.Insert(m.forcedTurn(m.forced[seq]))
	}
}
