package engine

import (
	"fmt"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

// put creates a job or replaces it. A retry of the put that made the job changes nothing.
func (m *Machine) put(e *Entry) (bool, *carillon.Error) {
	want, ifVersion, err := carillon.ParsePut(e.Body)
	if err != nil {
		return false, asError(err)
	}
	expr, err := m.cache.parse(&want)
	if err != nil {
		return false, asError(err)
	}
	s := encodeSpec(&want)
	slot, j := m.jobs.find(e.Job)
	if j != nil {
		if e.Request != "" && m.requests[slot] == e.Request || j.status != statusCompleted && j.spec == s {
			return false, nil
		}
	}
	if refusal := checkVersion(j, ifVersion); refusal != nil {
		return false, refusal
	}
	last := m.graves[e.Job].last
	if j != nil {
		last = j.last
	}
	offset := schedule.Offset(e.Job, want.Spread.Milliseconds())
	plan := expr.Bind(m.now, unixMilli(want.Start), unixMilli(want.End), offset)
	next := firstFire(plan, expr.Kind(), m.now, last)
	if next == none && expr.Kind() != schedule.None && last == 0 {
		return false, &carillon.Error{Code: carillon.CodeInvalidField, Field: "end", Message: "the schedule has no fire between now and the end"}
	}

	paused := false
	if j == nil {
		delete(m.graves, e.Job)
		slot, j = m.jobs.add(e.Job)
		m.touchNew(slot)
		m.created++
		j.order = m.created
	} else {
		m.touch(slot)
		m.disarm(slot, j)
		paused = j.status == statusPaused
		m.uncomplete(j)
		m.rerank(slot, j, rankOf(want.Priority))
	}
	*j = job{
		id: j.id, spec: s, plan: plan, version: j.version + 1, accepted: m.now, order: j.order, last: last,
		maxFires: want.MaxFires, expires: want.Expires.Milliseconds(), rank: rankOf(want.Priority),
		misfire: want.Misfire, kind: expr.Kind(), status: statusScheduled,
	}
	m.remember(slot, e.Request)
	switch {
	case next == none && expr.Kind() != schedule.None:
		if paused {
			m.paused--
		}
		m.finish(slot, j)
	case paused:
		j.status, j.next = statusPaused, next
	default:
		m.arm(slot, j, next)
	}
	return true, nil
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
func checkVersion(j *job, ifVersion *uint64) *carillon.Error {
	switch {
	case ifVersion == nil:
		return nil
	case j == nil && *ifVersion == 0:
		return nil
	case j == nil:
		return &carillon.Error{Code: carillon.CodeNotFound, Message: "no such job"}
	case j.version != *ifVersion:
		return &carillon.Error{Code: carillon.CodeVersionConflict, Field: "if_version", Message: fmt.Sprintf("job is at version %d, not %d", j.version, *ifVersion)}
	}
	return nil
}

// remember keeps the request id of the last applied command, so that its retry is known.
func (m *Machine) remember(slot uint32, request string) {
	if request == "" {
		delete(m.requests, slot)
		return
	}
	m.requests[slot] = request
}

// rerank moves a job's forced fires when its priority changes.
func (m *Machine) rerank(slot uint32, j *job, rank uint8) {
	if j.rank == rank || len(m.forcedBy[slot]) == 0 {
		return
	}
	for _, seq := range m.forcedBy[slot] {
		m.ready.Delete(m.forcedTurn(seq, m.forced[seq]))
	}
	j.rank = rank
	for _, seq := range m.forcedBy[slot] {
		m.ready.ReplaceOrInsert(m.forcedTurn(seq, m.forced[seq]))
	}
}
