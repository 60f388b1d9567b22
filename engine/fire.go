package engine

import "github.com/carillon-scheduler/carillon"

// fire asks for one trigger now, outside the schedule and whatever the job's status.
func (m *Machine) fire(e *Entry) (bool, *carillon.Error) {
	payload, own, err := carillon.ParseFire(e.Body)
	if err != nil {
		return false, asError(err)
	}
	slot, j := m.jobs.find(e.Job)
	if j == nil {
		return false, &carillon.Error{Code: carillon.CodeNotFound, Message: "no such job"}
	}
	if e.Request != "" && m.requests[slot] == e.Request {
		return false, nil
	}
	m.touch(slot)
	m.force(e.Seq, forcedFire{slot: slot, at: m.now, body: string(payload), own: own})
	m.remember(slot, e.Request)
	return true, nil
}
