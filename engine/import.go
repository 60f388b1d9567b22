package engine

import (
	"encoding/binary"
	"fmt"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

// PackedJob is one put in an import record, which holds many for one partition. Each is accepted or refused
// by itself, as a put would be.
type PackedJob struct {
	ID        string
	Request   string // as in the Carillon-Request header of a put; "": none
	IfVersion *uint64
	Paused    bool      // the job is paused before it can fire; if false, a job that is paused stays paused
	IfAbsent  bool      // an existing job stays as it is
	State     *JobState // of a restored job; nil: the job begins now
	Spec      []byte    // canonical encoding, see docs/formats/rows.md
}

// JobState is the state that a restored job brings along, so that its later fires are those it would have had.
type JobState struct {
	Version  uint64 // the least that the job gets; an existing job's version does not go back
	Accepted int64  // unix ms: what its schedule counts from
	From     int64  // unix ms: fires before it are decided
	Last     int64  // unix ms: the latest fire decided; 0: none
	Fires    uint64 // scheduled fires so far
	Skipped  uint64
	Missed   missedPolicy // for fires that were due more than a second ago
}

// StateOf converts a state to the form of a record.
func StateOf(s *carillon.JobState) *JobState {
	state := &JobState{
		Version: s.Version, Accepted: unixMilli(s.Accepted), From: unixMilli(s.From), Last: unixMilli(s.Last), Fires: s.Fires, Skipped: s.Skipped,
	}
	if s.Missed != nil {
		state.Missed = policyOf(*s.Missed)
	}
	return state
}

// Bounds of an import record, so that a tick behind it in the log waits for a few ms at most.
const (
	MaxPackJobs  = 256
	MaxPackBytes = 128 << 10 // unless it has only one job
)

const packVersion = 1

const (
	packedPaused = 1 << iota
	packedIfVersion
	packedState
	packedRequest
	packedIfAbsent
	packedFlags
)

// Pack makes a put of a job for an import record. The job must be valid; its ID may be set later, in the result.
func Pack(job *carillon.Job, ifVersion *uint64, request string) PackedJob {
	return PackedJob{ID: job.ID, Request: request, IfVersion: ifVersion, Spec: encodeSpec(job)}
}

// Job decodes the job. Its payload aliases Spec.
func (p *PackedJob) Job() (carillon.Job, error) {
	job, err := decodeSpec(p.Spec)
	job.ID = p.ID
	return job, err
}

// Size is an upper bound of what the job takes in a record, in bytes.
func (p *PackedJob) Size() int {
	size := len(p.ID) + len(p.Request) + len(p.Spec) + 4*binary.MaxVarintLen32
	if p.IfVersion != nil {
		size += binary.MaxVarintLen64
	}
	if p.State != nil {
		size += 6*binary.MaxVarintLen64 + 1
	}
	return size
}

// EncodePack encodes an import record's body; see docs/formats/log-record.md.
func EncodePack(jobs []PackedJob) []byte {
	size := 4
	for i := range jobs {
		size += jobs[i].Size()
	}
	b := binary.AppendUvarint(append(make([]byte, 0, size), packVersion), uint64(len(jobs)))
	for i := range jobs {
		b = jobs[i].encode(b)
	}
	return b
}

func (p *PackedJob) encode(b []byte) []byte {
	b = append(appendString(b, p.ID), p.flags())
	if p.Request != "" {
		b = appendString(b, p.Request)
	}
	if p.IfVersion != nil {
		b = binary.AppendUvarint(b, *p.IfVersion)
	}
	if s := p.State; s != nil {
		for _, v := range [...]uint64{s.Version, uint64(s.Accepted), uint64(s.From), uint64(s.Last), s.Fires, s.Skipped} {
			b = binary.AppendUvarint(b, v)
		}
		b = append(b, byte(s.Missed))
	}
	return appendString(b, p.Spec)
}

func (p *PackedJob) flags() (f byte) {
	for _, of := range [...]struct {
		flag byte
		set  bool
	}{{packedPaused, p.Paused}, {packedIfVersion, p.IfVersion != nil}, {packedState, p.State != nil}, {packedRequest, p.Request != ""}, {packedIfAbsent, p.IfAbsent}} {
		if of.set {
			f |= of.flag
		}
	}
	return f
}

// DecodePack is the inverse of EncodePack. It fails on anything else, trailing bytes included. It does not check the
// jobs, which happens when they are put. Their specs alias b.
func DecodePack(b []byte) ([]PackedJob, error) {
	d := decoder{b: b}
	if d.byte() != packVersion {
		d.fail(errValue)
	}
	n := d.uvarint()
	if n == 0 || n > MaxPackJobs || n > 1 && len(b) > MaxPackBytes {
		d.fail(errValue)
		n = 0
	}
	jobs := make([]PackedJob, n)
	for i := range jobs {
		jobs[i].decode(&d)
	}
	if d.err == nil && len(d.b) > 0 {
		d.fail(errValue)
	}
	if d.err != nil {
		return nil, fmt.Errorf("%w: import: %w", ErrRecord, d.err)
	}
	return jobs, nil
}

func (p *PackedJob) decode(d *decoder) {
	p.ID = d.string()
	flags := d.byte()
	if flags >= packedFlags {
		d.fail(errValue)
	}
	if flags&packedRequest != 0 {
		p.Request = d.string()
	}
	if flags&packedIfVersion != 0 {
		version := d.uvarint()
		p.IfVersion = &version
	}
	if flags&packedState != 0 {
		p.State = &JobState{
			Version: d.atMost(carillon.MaxFiresBound), Accepted: d.instant(), From: d.instant(), Last: d.instant(),
			Fires: d.atMost(carillon.MaxFiresBound), Skipped: d.atMost(carillon.MaxFiresBound), Missed: d.missedPolicy(),
		}
	}
	p.Paused, p.IfAbsent = flags&packedPaused != 0, flags&packedIfAbsent != 0
	p.Spec = d.bytes()
}

func (d *decoder) atMost(most uint64) uint64 {
	v := d.uvarint()
	if v > most {
		d.fail(errValue)
		return 0
	}
	return v
}

func (d *decoder) instant() int64 { return int64(d.atMost(uint64(schedule.Horizon))) }

// Outcome is what became of one job of an import record.
type Outcome struct {
	Err     *carillon.Error // not nil: it was refused; nothing changed
	Changed bool
}

// applyImport puts the jobs of an import record, one after the other.
func (m *Machine) applyImport(e *Entry) []Outcome {
	outcomes := m.outcomes[:0]
	for i := range e.Pack {
		p := &e.Pack[i]
		m.expire(m.now)
		r := m.command(&Entry{
			Seq: e.Seq, Index: uint32(i), Time: e.Time, Kind: KindPut, Partition: e.Partition, Verb: "put", Job: p.ID, Request: p.Request, packed: p,
		})
		outcomes = append(outcomes, Outcome{r.Err, r.Changed})
	}
	m.outcomes = outcomes
	return outcomes
}

// decodePut decodes the job that a put asks for. A packed job is checked like a command's body, because where permissions
// are lax, others than engines can publish import records.
func (e *Entry) decodePut() (want carillon.Job, ifVersion *uint64, refusal *carillon.Error) {
	if e.packed == nil {
		want, ifVersion, err := carillon.ParsePut(e.Body)
		if err != nil {
			refusal = asError(err)
		}
		return want, ifVersion, refusal
	}
	want, err := decodeSpec(e.packed.Spec)
	if err != nil {
		return want, nil, &carillon.Error{Code: carillon.CodeInvalidField, Field: "spec", Message: "cannot be read"}
	}
	if err := want.Validate(); err != nil {
		refusal = asError(err)
	}
	return want, e.packed.IfVersion, refusal
}

// ifAbsent tells whether a put leaves an existing job alone.
func (e *Entry) ifAbsent() bool { return e.packed != nil && e.packed.IfAbsent }

func (e *Entry) paused() bool { return e.packed != nil && e.packed.Paused }

func (e *Entry) state() *JobState {
	if e.packed == nil {
		return nil
	}
	return e.packed.State
}

// hasState tells whether a job is already where an entry's state would put it, or further on.
func (m *Machine) hasState(e *Entry, j *job) bool {
	s := e.state()
	if s == nil {
		return true
	}
	f := m.jobs.fixed(j)
	return f.version >= s.Version && f.accepted == s.Accepted && j.last >= s.Last
}

// firstFire is the first fire of a restored job. It may be in the past, but no fire is repeated.
func (s *JobState) firstFire(plan schedule.Plan, last int64, maxFires uint64) int64 {
	next, ok := plan.Next(max(s.From-1, last))
	if !ok || maxFires > 0 && s.Fires >= maxFires {
		return none
	}
	return next
}

// restore gives a job the counts that it had elsewhere. Fires due more than misfireAfter before now were missed.
func (t *jobTable) restore(j *job, s *JobState, next, now int64) {
	j.fires = s.Fires
	if s.Skipped > 0 {
		t.editExtra(j).skipped = s.Skipped
	}
	if until := now - misfireAfter; next < until {
		t.editExtra(j).recovery = recovery{s.Missed, until}
	}
}
