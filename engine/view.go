package engine

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"

	"github.com/carillon-scheduler/carillon"
)

// Err is why the machine is of no use any more: its table could not be read. nil: it is.
func (m *Machine) Err() error { return m.residence.err }

// Job returns what is known of a job. It is none, too, if Err.
func (m *Machine) Job(id string) (carillon.JobReply, bool) {
	slot, j := m.jobs.find(id)
	if j == nil {
		return m.coldJob(id, "")
	}
	if m.gone(slot, j) {
		return carillon.JobReply{}, false
	}
	return m.view(j), true
}

func (m *Machine) view(j *job) carillon.JobReply {
	id, f, s := m.jobs.texts.get(j.text)
	want, err := decodeSpec(s.append(nil))
	if err != nil {
		panic(err) // the machine encoded it, and jobs are checked when they come into memory
	}
	want.ID = string(id)
	return m.viewAs(j, f.version, m.jobs.has(j).skipped, want)
}

func (m *Machine) viewAs(j *job, version, skipped uint64, want carillon.Job) carillon.JobReply {
	r := carillon.JobReply{
		ID: want.ID, Version: version, Status: carillon.Status(statusNames[j.status]), Fires: j.fires, Skipped: skipped,
		LastScheduled: fromMilli(j.last), Partition: m.partition, Spec: want,
	}
	if j.status == statusScheduled && j.next != none {
		r.Next = fromMilli(j.next)
	}
	return r
}

// coldJob returns a job that is not in memory, and does not bring it there. only is the status that it must have; "" is
// any.
func (m *Machine) coldJob(id string, only carillon.Status) (carillon.JobReply, bool) {
	j, s, err := m.readJob(id)
	if err != nil {
		m.residence.err = cmp.Or(m.residence.err, err)
	}
	if err != nil || s == nil || m.expired.passed(&j.job) || only != "" && only != carillon.Status(statusNames[j.status]) {
		return carillon.JobReply{}, false
	}
	want, err := decodeSpec(bytes.Clone(s))
	if err != nil {
		m.residence.err = cmp.Or(m.residence.err, fmt.Errorf("%w: spec of job %q: %w", ErrCheckpoint, id, err))
		return carillon.JobReply{}, false
	}
	want.ID = id
	return m.viewAs(&j.job, j.version, j.few.skipped, want), true
}

// readJob reads a job that is not in memory, and its spec: nil if there is none.
func (m *Machine) readJob(id string) (j stored, s []byte, err error) {
	r, err := m.readRow(id)
	if err != nil || r == nil {
		return stored{}, nil, err
	}
	if j, err = decodeRow(r); err != nil {
		return stored{}, nil, fmt.Errorf("%w: job %q: %w", ErrCheckpoint, id, err)
	}
	s, err = readSpec(m.residence.table, r)
	return j, s, err
}

// Page walks the jobs with ids above after, in order, and collects those that match, at most limit of
// them, and no more than their payloads fill a page. It looks at no more than scan jobs in memory and scan in the table:
// last is the id it got to, and more tells whether jobs may follow.
func (m *Machine) Page(f *carillon.ListRequest, after string, limit, scan int) (page []carillon.JobReply, last string, more bool) {
	from := max(after, f.Prefix)
	last = after
	size := 0
	rows, end := m.tableIDs(from, from != after, scan)
	// consider looks at the next job, and tells whether to go on.
	consider := func(id string, view func() (carillon.JobReply, bool)) bool {
		switch {
		case id == after:
			return true
		case f.Prefix != "" && !strings.HasPrefix(id, f.Prefix):
			return false
		case len(page) == limit || scan == 0 || size >= carillon.MaxPageBytes:
			more = true
			return false
		}
		scan--
		last = id
		if v, ok := view(); ok && f.Matches(&v) {
			page = append(page, v)
			size += len(v.Spec.Payload)
		}
		return true
	}
	// considerCold looks at the jobs of the table that are not in memory, before an id or up to its part's end.
	considerCold := func(before string) bool {
		for ; len(rows) > 0 && (before == "" || rows[0] < before); rows = rows[1:] {
			id := rows[0]
			if m.cold(id) && !consider(id, func() (carillon.JobReply, bool) { return m.coldJob(id, f.Status) }) {
				return false
			}
		}
		return true
	}
	stopped := false
	m.jobs.from(from, func(slot uint32, j *job) bool {
		id := string(m.jobs.id(j))
		if end != "" && id > end {
			return false
		}
		goOn := considerCold(id) && consider(id, func() (carillon.JobReply, bool) {
			if f.Status != "" && f.Status != carillon.Status(statusNames[j.status]) || m.gone(slot, j) {
				return carillon.JobReply{}, false
			}
			return m.view(j), true
		})
		stopped = !goOn
		return goOn
	})
	if !stopped && considerCold("") && end != "" {
		return page, end, strings.HasPrefix(end, f.Prefix)
	}
	return page, last, more
}

// tableIDs returns the next ids in the table, from one on or behind it: n, and that one. end is the last of them where
// others follow. All of them may be of jobs in memory: whoever looks for n that are not reads the whole table.
func (m *Machine) tableIDs(from string, including bool, n int) (ids []string, end string) {
	r := &m.residence
	if r.complete || r.err != nil {
		return nil, ""
	}
	if including {
		_, found, err := r.table.Get(roomIDs, []byte(from))
		r.err = cmp.Or(r.err, err)
		if found {
			ids = append(ids, from)
		}
	}
	more, err := r.table.Scan(roomIDs, []byte(from), nil, n, func(id, _ []byte) error {
		ids = append(ids, string(id))
		return nil
	})
	r.err = cmp.Or(r.err, err)
	if more && err == nil {
		end = ids[len(ids)-1]
	}
	return ids, end
}

// cold tells whether a job that the table has is there and not in memory.
func (m *Machine) cold(id string) bool {
	if _, j := m.jobs.find(id); j != nil {
		return false
	}
	_, gone := m.residence.absent[id]
	return !gone
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
	Hot       int    // jobs in memory
	Loaded    uint64 // jobs that came into memory from the table, since the process started
	Late      uint64 // those of them that a tick had to wait for
	DiskLow   bool   // new jobs are refused
	Rejected  uint64 // commands since the process started
	Armed     uint64 // fires armed so far
	Timers    int    // on the wheel
	Ready     int
	Made      uint64 // outputs
	Acked     Acked
	Outbox    int // bytes
}

// Epoch is the sequence of the claim in force; 0: there was none.
func (m *Machine) Epoch() uint64 { return m.epoch }

// Stats returns the present counts.
func (m *Machine) Stats() Stats {
	s := Stats{
		Position: m.position, Epoch: m.epoch, Owner: m.claim.Node, To: m.to,
		Completed: m.counts[statusCompleted], Paused: m.counts[statusPaused], DiskLow: m.diskLow, Rejected: m.refused,
		Armed: m.armed, Ready: m.ready.Len(), Made: m.outbox.made, Acked: m.outbox.acked, Outbox: m.outbox.bytes,
	}
	s.Hot, s.Loaded, s.Late = m.jobs.sorted.Len(), m.residence.loaded, m.residence.late
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
