package engine

import (
	"strconv"

	"github.com/carillon-scheduler/carillon"
)

// delete removes a job, and all of its fires that wait.
func (m *Machine) delete(e *Entry) (bool, *carillon.Error) {
	slot, j, refusal := m.conditional(e)
	if refusal != nil {
		return false, refusal
	}
	if j.last > 0 {
		m.addTombstone(string(m.jobs.id(j)), j.last)
	}
	m.remove(slot, j)
	return true, nil
}

// conditional finds the job of a command that may carry if_version, and checks it.
func (m *Machine) conditional(e *Entry) (uint32, *job, *carillon.Error) {
	ifVersion, err := carillon.ParseCondition(e.Body)
	if err != nil {
		return 0, nil, asError(err)
	}
	slot, j := m.find(e.Job)
	if j == nil {
		return 0, nil, noJob(e.Job)
	}
	if e.Kind != KindDelete && m.isRetry(e, j) {
		return slot, j, nil
	}
	return slot, j, m.checkVersion(e.Job, j, ifVersion)
}

func noJob(id string) *carillon.Error {
	return &carillon.Error{Code: carillon.CodeNotFound, Message: "there is no job " + strconv.Quote(id)}
}

func (m *Machine) remove(slot uint32, j *job) {
	m.touch(slot)
	m.disarm(slot, j)
	m.removeForced(slot)
	m.setStatus(j, statusFree)
	m.noteAbsent(j)
	m.changes.drop(j.entry)
	m.jobs.remove(slot)
}
