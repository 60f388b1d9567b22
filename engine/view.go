package engine

import (
	"strings"

	"github.com/carillon-scheduler/carillon"
)

// Job returns what is known of a job.
func (m *Machine) Job(id string) (carillon.JobReply, bool) {
	slot, j := m.jobs.find(id)
	if j == nil || m.gone(slot, j) {
		return carillon.JobReply{}, false
	}
	return m.view(j), true
}

func (m *Machine) view(j *job) carillon.JobReply {
	spec, err := decodeSpec(spec(m.jobs.spec(j)))
	if err != nil {
		panic(err) // the machine encoded it, and checkpoints are checked when they are read
	}
	spec.ID = string(m.jobs.id(j))
	r := carillon.JobReply{
		ID: spec.ID, Version: j.version, Status: carillon.Status(statusNames[j.status]), Fires: j.fires, Skipped: m.jobs.has(j).skipped,
		LastScheduled: fromMilli(j.last), Partition: m.partition, Spec: spec,
	}
	if j.status == statusScheduled && j.next != none {
		r.Next = fromMilli(j.next)
	}
	return r
}

// Page walks the jobs with ids above after, in order, and collects those that match, at most limit of
// them. It looks at no more than scan jobs: last is the id it got to, and more tells whether jobs follow.
func (m *Machine) Page(f *carillon.ListRequest, after string, limit, scan int) (page []carillon.JobReply, last string, more bool) {
	from := max(after, f.Prefix)
	last = after
	m.jobs.from(from, func(slot uint32, j *job) bool {
		id := string(m.jobs.id(j))
		switch {
		case id == after:
			return true
		case f.Prefix != "" && !strings.HasPrefix(id, f.Prefix):
			return false
		case len(page) == limit || scan == 0:
			more = true
			return false
		}
		scan--
		last = id
		if f.Status != "" && f.Status != carillon.Status(statusNames[j.status]) || m.gone(slot, j) {
			return true
		}
		if v := m.view(j); f.Matches(&v) {
			page = append(page, v)
		}
		return true
	})
	return page, last, more
}

// Stats are counts of a partition, for metrics and status.
type Stats struct {
	Position  uint64
	Epoch     uint64
	Owner     string
	To        int64 // the time that ticks have reached, unix ms
	Jobs      int
	Completed int // those whose time is over may be among them for a while
	Paused    int
	Dirty     int    // jobs that changed since the last checkpoint
	DiskLow   bool   // new jobs are refused
	Rejected  uint64 // commands since the process started
	Timers    int    // on the wheel
	Ready     int
	Made      uint64 // outputs
	Acked     Acked
	Outbox    int // bytes
}

// Stats returns the present counts.
func (m *Machine) Stats() Stats {
	s := Stats{
		Position: m.position, Epoch: m.epoch, Owner: m.claim.Node, To: m.to,
		Completed: m.counts[statusCompleted], Paused: m.counts[statusPaused], DiskLow: m.diskLow, Rejected: m.refused,
		Ready: m.ready.Len(), Made: m.outbox.made, Acked: m.outbox.acked, Outbox: m.outbox.bytes,
	}
	s.Jobs = m.counts[statusScheduled] + s.Paused + s.Completed
	if s.Dirty = m.changes.n; m.saving != nil {
		s.Dirty += m.saving.changes.n
	}
	for _, w := range m.wheels {
		s.Timers += w.Len()
	}
	return s
}

// Mark is the machine's newest mark, for the owner's next tick.
func (m *Machine) Mark() Mark {
	var newest Mark
	for _, mark := range m.marks {
		if mark.Position > newest.Position {
			newest = mark
		}
	}
	return newest
}
