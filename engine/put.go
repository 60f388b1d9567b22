package engine

import (
	"bytes"
	"fmt"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

// put creates a job or replaces it. A retry of the put that made the job changes nothing.
func (m *Machine) put(e *Entry) (bool, *carillon.Error) {
	want, ifVersion, refusal := e.decodePut()
	if refusal != nil {
		return false, refusal
	}
	expr, err := m.jobs.exprs.parse(&want)
	if err != nil {
		return false, asError(err)
	}
	m.spec = appendSpec(m.spec[:0], &want)
	slot, j := m.find(e.Job)
	if j != nil {
		if e.ifAbsent() || m.isRetry(e, j) {
			return false, nil
		}
		// A put begins a completed job anew, but one that puts a job back would repeat fires.
		over := j.status == statusCompleted && e.state() == nil
		if !over && bytes.Equal(m.jobs.spec(j), m.spec) && m.hasState(e, j) { // the job is as the put wants it
			if !e.paused() || j.status != statusScheduled {
				return false, nil
			}
			m.setPaused(slot, j, e.Request)
			return true, nil
		}
	}
	if refusal := m.checkVersion(e.Job, j, ifVersion); refusal != nil {
		return false, refusal
	}
	var f fixed
	var last int64
	if j != nil {
		f, last = m.jobs.fixed(j), j.last
	} else if g := m.tombstones[e.Job]; g != nil {
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
		unbound := firstFire(expr.Bind(accepted, 0, 0, offset), expr.Kind(), m.now, last)
		return false, neverFires(&want, unbound)
	}
	if j == nil && m.diskLow {
		return false, &carillon.Error{Code: carillon.CodeLimitExceeded, Message: "the engine's disk is nearly full: no new jobs are taken"}
	}

	f.version, f.put, f.index, f.accepted = f.version+1, e.Seq, uint16(e.Index), accepted
	if state != nil {
		f.version = max(f.version, state.Version)
	}
	paused := e.paused() || j != nil && j.status == statusPaused
	from, _, _ := plan.Fields()
	slot, j = m.write(e, slot, j, f, from, rankOf(want.Priority))
	if m.jobs.applySpec(j, &want, len(m.spec), expr, plan); len(m.forcedBy[slot]) > 0 {
		m.forcedSpecs += j.terms.specBytes()
	}
	j.last = last
	if state != nil {
		m.jobs.restore(j, state, next, m.now)
	}
	m.begin(slot, j, next, paused)
	if j.status == statusCompleted && state == nil { // a restored job's completion was announced where it comes from
		m.queueCompletion(slot, j)
	}
	return true, nil
}

// begin gives a job that was put its status, and its first turn.
func (m *Machine) begin(slot uint32, j *job, next int64, paused bool) {
	switch {
	case next == none && m.jobs.kind(j) != schedule.None:
		m.finish(slot, j)
	case paused:
		m.setStatus(j, statusPaused)
		j.next = next
	default:
		m.setStatus(j, statusScheduled)
		m.arm(slot, j, next)
	}
}

// isRetry tells whether a command is a retry of the last one that was applied to the job.
func (m *Machine) isRetry(e *Entry, j *job) bool {
	return e.Request != "" && string(m.jobs.request(j)) == e.Request
}

// write makes a job of the spec in m.spec if j is nil; else it gives j that spec, and takes its timer and its status away. Either way
// the caller has yet to give the job a status.
func (m *Machine) write(e *Entry, slot uint32, j *job, f fixed, from int64, rank uint8) (uint32, *job) {
	if j == nil {
		m.removeTombstone(e.Job)
		m.created++
		f.order = m.created
		slot, j = m.jobs.add(e.Job, f, from, e.Request, m.spec)
		m.touchNew(slot)
		return slot, j
	}
	m.touch(slot)
	m.disarm(slot, j)
	m.setRank(slot, j, rank)
	m.setStatus(j, statusFree)
	if len(m.forcedBy[slot]) > 0 {
		m.forcedSpecs -= j.terms.specBytes() // put adds those of the new spec
	}
	m.jobs.clear(j)
	m.jobs.write(j, f, from, e.Request, m.spec)
	return slot, j
}

// queueCompletion queues the event of a recurring job that was complete as soon as it was put.
func (m *Machine) queueCompletion(slot uint32, j *job) {
	if m.jobs.recurring(j) {
		m.queue(slot, j)
	}
}

// firstFire is the first fire of a version accepted at now. It is not before now, except that a one-shot whose
// time has passed fires at once; and it is after last, the last fire of an earlier version.
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

// checkVersion checks a command's if_version against the job; j is nil when there is no job.
func (m *Machine) checkVersion(id string, j *job, ifVersion *uint64) *carillon.Error {
	switch {
	case ifVersion == nil:
		return nil
	case j == nil && *ifVersion == 0:
		return nil
	case j == nil:
		return noJob(id)
	}
	if version := m.jobs.fixed(j).version; version != *ifVersion {
		return &carillon.Error{Code: carillon.CodeVersionConflict, Field: "if_version", Message: fmt.Sprintf("job is at version %d, not %d", version, *ifVersion)}
	}
	return nil
}

// setRequest keeps the request id of the last applied command, so that a retry of it is recognized.
func (m *Machine) setRequest(slot uint32, j *job, request string) {
	if string(m.jobs.request(j)) != request {
		m.touch(slot)
		_, f, s := m.jobs.text(j)
		m.spec = s.append(m.spec[:0])
		m.jobs.write(j, f, j.from, request, m.spec)
	}
}

// setRank moves a job's forced fires in the ready queue when its priority changes.
func (m *Machine) setRank(slot uint32, j *job, rank uint8) {
	if j.rank == rank {
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

// neverFires says why a new job would never fire: because of its start or end, if without them there would be a fire (unbound).
func neverFires(job *carillon.Job, unbound int64) *carillon.Error {
	switch {
	case unbound == none:
		return &carillon.Error{
			Code: carillon.CodeInvalidField, Field: "schedule", Message: "has no fire still to come; 1970-01-01T00:00:00Z stands for none",
		}
	case job.End.IsZero():
		return &carillon.Error{Code: carillon.CodeInvalidField, Field: "start", Message: "the schedule has no fire from the start on"}
	}
	return &carillon.Error{Code: carillon.CodeInvalidField, Field: "end", Message: "the schedule has no fire between now and the end"}
}
