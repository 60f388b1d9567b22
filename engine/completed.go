package engine

// A completed job stays until one of two watermarks has passed it: by time, after the retention; by number, when enough
// jobs have completed after it. Both follow from the log, and neither goes back, whatever a later
// claim says. A job that a watermark has passed is gone: no answer differs from what it would be if the job had never been.
// When its memory is freed is each replica's own affair, so a few at a time are enough.
type watermark struct {
	at     int64  // ms: jobs that completed at or before this time are gone
	number uint64 // and so are those whose number of completion is not greater than this
}

func (w watermark) passed(j *job) bool {
	return j.status == statusCompleted && (j.next <= w.at || j.armed <= w.number)
}

// expire moves the watermark on with time and completions.
func (m *Machine) expire(now int64) {
	if m.epoch == 0 {
		return
	}
	m.expired.at = max(m.expired.at, now-m.claim.RetentionMS)
	if kept := uint64(m.claim.CompletedMax); m.finished > kept {
		m.expired.number = max(m.expired.number, m.finished-kept)
	}
}

// finish makes a job that has no fire left a completed one. Completions are in order of time.
func (m *Machine) finish(slot uint32, j *job) {
	m.finished++
	m.setStatus(j, statusCompleted)
	j.place, j.next, j.armed = nowhere, max(m.to, m.now), m.finished
	m.completed.push(completion{slot, j.armed})
	if m.completed.len() > 2*m.counts[statusCompleted]+fifoSlack {
		m.completed.drop(m.isStale)
	}
}

func (m *Machine) isStale(c completion) bool {
	j := m.jobs.at(c.slot)
	return j.status != statusCompleted || j.armed != c.number
}

// pinned tells whether a job must stay because an output of it waits: a turn in the ready queue, such as the event of its
// completion, or a forced fire.
func (m *Machine) pinned(slot uint32, j *job) bool {
	return j.place == inReady || len(m.forcedBy[slot]) > 0
}

func (m *Machine) gone(slot uint32, j *job) bool {
	return m.expired.passed(j) && !m.pinned(slot, j)
}

// free removes a job from memory if it is gone.
func (m *Machine) free(slot uint32, j *job) (freed bool) {
	if freed = m.gone(slot, j); freed {
		m.remove(slot, j)
	}
	return freed
}

// sweep frees gone jobs, and looks at no more than n completions for it. A job that is pinned is freed later, once its outputs
// are made.
func (m *Machine) sweep(n int) {
	for ; n > 0 && m.completed.len() > 0; n-- {
		c := m.completed.first()
		if !m.isStale(c) {
			j := m.jobs.at(c.slot)
			if !m.expired.passed(j) {
				return
			}
			m.free(c.slot, j)
		}
		m.completed.pop()
	}
}
