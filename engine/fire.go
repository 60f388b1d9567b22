package engine

import "github.com/carillon-scheduler/carillon"

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
	m.addForced(&forcedFire{seq: e.Seq, slot: slot, id: e.Job, at: m.now, body: string(payload), own: own})
	m.setRequest(slot, j, e.Request)
	return true, nil
}
