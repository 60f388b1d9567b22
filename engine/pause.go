package engine

import (
	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

// pause stops a job's scheduled fires. It can still be fired by command.
func (m *Machine) pause(e *Entry) (bool, *carillon.Error) {
	slot, j, refusal := m.conditional(e)
	if refusal != nil || j.status != statusScheduled {
		return false, refusal
	}
	m.setPaused(slot, j, e.Request)
	return true, nil
}

func (m *Machine) setPaused(slot uint32, j *job, request string) {
	m.touch(slot)
	m.disarm(slot, j)
	m.setStatus(j, statusPaused)
	m.setRequest(slot, j, request)
}

// resume lets a paused job go on. The fires that it missed meanwhile are counted when its turn comes, not here:
// a cron expression may have missed a great many.
func (m *Machine) resume(e *Entry) (bool, *carillon.Error) {
	slot, j, refusal := m.conditional(e)
	if refusal != nil || j.status != statusPaused {
		return false, refusal
	}
	m.touch(slot)
	m.setStatus(j, statusScheduled)
	if j.next <= m.now {
		m.jobs.editExtra(j).skipTo = m.now
	}
	if m.jobs.kind(j) != schedule.None {
		m.arm(slot, j, j.next)
	}
	m.setRequest(slot, j, e.Request)
	return true, nil
}
