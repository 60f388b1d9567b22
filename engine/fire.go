package engine

import (
	"fmt"

	"github.com/carillon-scheduler/carillon"
)

// fire asks for one trigger now, outside the schedule and whatever the job's status.
func (m *Machine) fire(e *Entry) (bool, *carillon.Error) {
	payload, own, err := carillon.ParseFire(e.Body)
	if err != nil {
		return false, asError(err)
	}
	slot, j := m.find(e.Job)
	if j == nil {
		return false, noJob(e.Job)
	}
	if m.isRetry(e, j) {
		return false, nil
	}
	if refusal := m.roomForForced(slot, j, len(payload)); refusal != nil {
		return false, refusal
	}
	m.addForced(&forcedFire{seq: e.Seq, slot: slot, id: e.Job, at: m.now, body: string(payload), own: own})
	m.setRequest(slot, j, e.Request)
	return true, nil
}

// roomForForced refuses a forced fire, with so many bytes of payload of its own, if too much waits already. What waits is in memory until
// it is an output, comes back at each start, and cannot leave memory, nor can the jobs that it is of. After a restore into fewer
// partitions, or once a job has become larger, more may wait than is taken here.
func (m *Machine) roomForForced(slot uint32, j *job, payload int) *carillon.Error {
	size := m.forcedBytes + m.forcedSpecs + payload
	if len(m.forcedBy[slot]) == 0 {
		size += j.terms.specBytes()
	}
	var full string
	switch {
	case len(m.forced) >= maxForced:
		full = fmt.Sprintf("%d fires that were asked for wait in partition %d: no more are taken", len(m.forced), m.partition)
	case size > maxForcedBytes:
		full = fmt.Sprintf("fires that were asked for wait in partition %d, and their payloads and jobs would take more than %d MiB", m.partition, maxForcedBytes>>20)
	default:
		return nil
	}
	return &carillon.Error{Code: carillon.CodeLimitExceeded, Message: full}
}
