package engine

// A completed job stays until two watermarks of the state have passed it: completions until the retention
// ago, and all but so many of the newest. Both follow from the log, and neither goes back, whatever a later
// claim says. A job behind them is gone: nothing that can be asked tells it from one that was never there.
// When its memory is freed is this replica's own affair, and a few at a time will do.
type watermark struct {
	at     int64  // jobs that completed up to here, ms, are gone
	number uint64 // and so are those with completions up to this one
}

func (w watermark) passed(j *job) bool {
	return j.status == statusCompleted && (j.next <= w.at || j.armed <= w.number)
}

// expire lets the watermark follow time and the completions.
func (m *Machine) expire(now int64) {
	if m.epoch == 0 {
		return
	}
	m.expired.at = max(m.expired.at, now-m.claim.RetentionMS)
	if kept := uint64(m.claim.CompletedMax); m.finished > kept {
		m.expired.number = max(m.expired.number, m.finished-kept)
	}
}

// finish keeps a job that has no fire left until the watermark passes it. Completions are in order of time.
func (m *Machine) finish(slot uint32, j *job) {
	m.finished++
	m.become(j, statusCompleted)
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

// pinned tells whether something of a job waits that has to be put out first: a fire that was asked for, or
// the event of its completion.
func (m *Machine) pinned(slot uint32, j *job) bool {
	return j.place == inReady || len(m.forcedBy[slot]) > 0
}

func (m *Machine) gone(slot uint32, j *job) bool {
	return m.expired.passed(j) && !m.pinned(slot, j)
}

// free gives back what a job takes of memory if it is gone.
func (m *Machine) free(slot uint32, j *job) (freed bool) {
	if freed = m.gone(slot, j); freed {
		m.remove(slot, j)
	}
	return freed
}

// sweep frees gone jobs, looking at no more than n completions. One that is pinned is freed when what it
// waited for is out.
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
