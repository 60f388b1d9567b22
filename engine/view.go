package engine

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

// Err is why the machine is of no use any more: its table could not be read. nil if it works.
func (m *Machine) Err() error { return m.residence.err }

// Complete tells whether all jobs are in memory.
func (m *Machine) Complete() bool { return m.residence.complete }

// Job returns what is known of a job; false if there is no such job, or if Err is not nil. read, which may be nil, saves
// reading the table.
func (m *Machine) Job(id string, read *ReadAhead) (carillon.JobReply, bool) {
	slot, j := m.jobs.find(id)
	if j == nil {
		return m.viewCold(id, nil, read)
	}
	if m.gone(slot, j) {
		return carillon.JobReply{}, false
	}
	return m.view(j), true
}

// viewed is the payload of the job that was looked at last. Thousands of commands in a row may be for one job, and each has an outcome: they
// share the payload. A tick forgets it.
type viewed struct {
	put     uint64 // the key of the job's spec
	index   uint16
	payload []byte
}

// viewedLeast is the size from which a payload is worth remembering, in bytes.
const viewedLeast = 4 << 10

func (m *Machine) view(j *job) carillon.JobReply {
	id, f, s := m.jobs.text(j)
	last := &m.viewed
	shared := last.payload != nil && last.put == f.put && last.index == f.index
	var want carillon.Job
	var err error
	if shared {
		want, err = s.withoutPayload()
		want.Payload = last.payload
	} else {
		want, err = decodeSpec(s.append(nil))
	}
	if err != nil {
		panic(err) // the machine encoded it, and jobs are checked when they come into memory
	}
	if !shared && len(want.Payload) >= viewedLeast {
		*last = viewed{f.put, f.index, want.Payload}
	}
	want.ID = string(id)
	extra := m.jobs.extra(j)
	r := m.viewAs(j, f.version, extra.skipped, want)
	if !r.Next.IsZero() && j.next <= extra.skipTo { // it was resumed, and the fires that it missed have yet to be counted
		next, _ := m.jobs.plan(j).Next(extra.skipTo)
		r.Next = fromMilli(next)
	}
	return r
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

// takes tells whether a list takes a job in memory. It does not copy the job's payload, which may be large.
func (m *Machine) takes(f *carillon.ListRequest, j *job) bool {
	if f.Status != "" && f.Status != carillon.Status(statusNames[j.status]) {
		return false
	}
	if f.Topic == "" && f.Owner == "" && f.Label == "" {
		return true
	}
	id, _, s := m.jobs.text(j)
	want, err := s.withoutPayload()
	if err != nil {
		panic(err) // as in view
	}
	want.ID = string(id)
	return f.Matches(&carillon.JobReply{Status: f.Status, Spec: want})
}

// viewCold returns a job that is not in memory, without bringing it there. With a list it returns only a job that the list takes.
func (m *Machine) viewCold(id string, f *carillon.ListRequest, read *ReadAhead) (carillon.JobReply, bool) {
	j, s, err := m.readJob(id, read)
	if err != nil {
		m.residence.err = cmp.Or(m.residence.err, err)
	}
	if err != nil || s == nil || m.expired.passed(&j.job) || f != nil && f.Status != "" && f.Status != carillon.Status(statusNames[j.status]) {
		return carillon.JobReply{}, false
	}
	r, err := m.viewStored(id, &j, s)
	if err != nil {
		m.residence.err = cmp.Or(m.residence.err, err)
		return carillon.JobReply{}, false
	}
	if f != nil && !f.Matches(&r) {
		return carillon.JobReply{}, false
	}
	r.Spec.Payload = bytes.Clone(r.Spec.Payload)
	return r, true
}

// viewStored returns a job as it was read from the table. The payload aliases s. It may run beside the machine.
func (m *Machine) viewStored(id string, j *stored, s []byte) (carillon.JobReply, error) {
	want, err := decodeSpec(s)
	if err != nil {
		return carillon.JobReply{}, fmt.Errorf("%w: spec of job %q: %w", ErrCheckpoint, id, err)
	}
	want.ID = id
	r := m.viewAs(&j.job, j.version, j.extra.skipped, want)
	if !r.Next.IsZero() && j.next <= j.extra.skipTo { // as in view
		expr, err := schedule.Parse(want.Schedule, want.Zone, want.Gap, want.Fold)
		if err != nil {
			return carillon.JobReply{}, fmt.Errorf("%w: job %q: %w", ErrVersion, id, err)
		}
		plan := expr.Bind(j.accepted, unixMilli(want.Start), unixMilli(want.End), schedule.Offset(id, want.Spread.Milliseconds()))
		next, _ := plan.Next(j.extra.skipTo)
		r.Next = fromMilli(next)
	}
	return r, nil
}

// readJob reads a job that is not in memory, and its spec, which is nil if there is no such job.
func (m *Machine) readJob(id string, read *ReadAhead) (j stored, s []byte, err error) {
	r, s, err := m.readCold(id, read)
	if err != nil || r == nil {
		return stored{}, nil, err
	}
	if j, err = decodeRow(r); err != nil {
		return stored{}, nil, fmt.Errorf("%w: job %q: %w", ErrCheckpoint, id, err)
	}
	return j, s, nil
}

// readCold returns the row and the spec of a job that is not in memory: as they were read ahead, or else from the table.
func (m *Machine) readCold(id string, read *ReadAhead) (r row, s []byte, err error) {
	if read.isValid(m) {
		if c, known := read.jobs[id]; known && m.isCold(id) {
			return c.row, c.spec, m.residence.err
		}
	}
	if r, err = m.readRow(id); err != nil || r == nil {
		return nil, nil, err
	}
	s, err = readSpec(m.residence.table, r)
	return r, s, err
}

// Page walks the jobs with ids above after, in order, and collects those that match: at most limit of them, and
// until their JSON, by SpecBytes, fills carillon.MaxPageBytes. It looks at no more than scan jobs in memory and scan ids in the table.
// last is the id that it got to, and more tells whether jobs may follow. read, which may be nil, saves reading the table.
func (m *Machine) Page(f *carillon.ListRequest, after string, limit, scan int, read *ReadAhead) (page []carillon.JobReply, last string, more bool) {
	part := pageRange(f, after, scan)
	last = after
	size := 0
	rows, end := m.tableIDs(part, read)
	// consider looks at the next job, and tells whether to go on. view returns the job if the list takes it.
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
		if v, ok := view(); ok {
			page = append(page, v)
			json, _ := SpecBytes(&v.Spec)
			size += json
		}
		return true
	}
	// considerCold looks at the jobs of the table that are not in memory, up to an id; "": up to the end of the part that was read.
	considerCold := func(before string) bool {
		for ; len(rows) > 0 && (before == "" || rows[0] < before); rows = rows[1:] {
			id := rows[0]
			if m.isCold(id) && !consider(id, func() (carillon.JobReply, bool) { return m.viewCold(id, f, read) }) {
				return false
			}
		}
		return true
	}
	stopped := false
	m.jobs.from(part.from, func(slot uint32, j *job) bool {
		id := string(m.jobs.id(j))
		if end != "" && id > end {
			return false
		}
		goOn := considerCold(id) && consider(id, func() (carillon.JobReply, bool) {
			if !m.takes(f, j) || m.gone(slot, j) {
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

// entryBytes is about what a header or a label takes in memory beside its name and value.
const entryBytes = 100

// SpecBytes is how large a job is. Its JSON, in a reply, is longer than json, but only by fixed parts and by what is escaped. memory is about
// what the job's own texts take in memory.
func SpecBytes(j *carillon.Job) (json, memory int) {
	json = len(j.Payload) + len(j.Topic) + len(j.Owner) + len(j.Schedule) + len(j.Zone)
	for _, texts := range [...]map[string]string{j.Headers, j.Labels} {
		for name, value := range texts {
			json += len(name) + len(value)
		}
	}
	entries := len(j.Headers) + len(j.Labels)
	return json + entries*len(`"":"",`), json + entries*entryBytes
}

// idRange says which ids of the table a page looks at: the n ids after from, and from itself if it is included.
type idRange struct {
	from      string
	including bool
	n         int
}

// pageRange is the part of the table for a page that comes after an id.
func pageRange(f *carillon.ListRequest, after string, n int) idRange {
	from := max(after, f.Prefix)
	return idRange{from, from != after, n}
}

// tableIDs are the ids of a part of the table.
type tableIDs struct {
	idRange
	found []string
	end   string // the last id found, if others follow; else ""
}

// tableIDs returns the ids of a part of the table, as they were read ahead, or else from the table. It does not look for n ids whose
// jobs are not in memory: if most are in memory, that would read the whole table.
func (m *Machine) tableIDs(part idRange, read *ReadAhead) (ids []string, end string) {
	r := &m.residence
	if r.complete || r.err != nil {
		return nil, ""
	}
	if read.isValid(m) && read.ids.idRange == part {
		return read.ids.found, read.ids.end
	}
	all, err := scanIDs(r.table, part)
	r.err = cmp.Or(r.err, err)
	return all.found, all.end
}

// scanIDs reads the ids of a part of a table.
func scanIDs(t Table, part idRange) (ids tableIDs, err error) {
	ids.idRange = part
	if part.including {
		_, found, err := t.Get(roomIDs, []byte(part.from))
		if err != nil {
			return ids, err
		}
		if found {
			ids.found = append(ids.found, part.from)
		}
	}
	more, err := t.Scan(roomIDs, []byte(part.from), nil, part.n, func(id, _ []byte) error {
		ids.found = append(ids.found, string(id))
		return nil
	})
	if more && err == nil {
		ids.end = ids.found[len(ids.found)-1]
	}
	return ids, err
}

// isCold tells whether a job, if the table has it, is only there: not in memory, and not removed.
func (m *Machine) isCold(id string) bool {
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
	Now       int64 // the time of commands, unix ms
	To        int64 // the time that ticks have reached, unix ms
	Jobs      int
	Completed int // for a while it also counts jobs whose retention is over
	Paused    int
	Dirty     int    // jobs that changed since the last checkpoint
	Hot       int    // jobs in memory
	Loaded    uint64 // jobs that came into memory from the table, since the process started
	Late      uint64 // those of them that a tick had to wait for
	DiskLow   bool   // new jobs are refused
	Rejected  uint64 // commands refused since Listen was called
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
		Position: m.position, Epoch: m.epoch, Owner: m.claim.Node, Now: m.now, To: m.to,
		Completed: m.counts[statusCompleted], Paused: m.counts[statusPaused], DiskLow: m.diskLow, Rejected: m.refused,
		Armed: m.armed, Ready: m.ready.Len() + m.counting.Len(), Made: m.outbox.made, Acked: m.outbox.acked, Outbox: m.outbox.bytes,
	}
	s.Hot, s.Loaded, s.Late = m.jobs.byID.Len(), m.residence.loaded, m.residence.late
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
