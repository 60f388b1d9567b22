package engine

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/schedule"
	"github.com/carillon-scheduler/carillon/wheel"
)

// A checkpoint is the machine's state at one position, taken in slices between records: the small parts
// at once, the jobs a slice at a time. A job that changes before its slice was taken is saved first, as
// it was. The bytes are docs/formats/checkpoint.md; the wheel and the ready queue are not in them, since
// each job says where it waits.

// ErrCheckpoint marks bytes that are no checkpoint of this machine.
var ErrCheckpoint = errors.New("engine: malformed checkpoint")

const checkpointVersion = 1

// Frames of a checkpoint: a type byte, a length, the content.
const (
	frameState byte = iota + 1
	frameJob
	frameForced
	frameRejected
	frameOutput
	frameEnd
	frameGrave
	frameDisk
)

// Checkpoint is one being taken. The machine may go on applying records meanwhile.
type Checkpoint struct {
	Position uint64
	m        *Machine
	expired  watermark
	early    []byte // frames that are due before the next slice
	job      []byte // of the next frame
	saved    []uint64
	cursor   uint32
	limit    uint32
	outputs  []Output
	frames   uint64
}

// BeginCheckpoint starts taking the state as it is now. One is taken at a time; a second call abandons
// the first.
func (m *Machine) BeginCheckpoint() *Checkpoint {
	c := &Checkpoint{Position: m.position, m: m, expired: m.expired, limit: m.jobs.used, saved: make([]uint64, (m.jobs.used+63)/64)}
	c.frame(frameState, m.appendState(nil))
	if m.diskLow {
		c.frame(frameDisk, nil)
	}
	for _, seq := range slices.Sorted(maps.Keys(m.forced)) {
		f := m.forced[seq]
		b := binary.AppendUvarint(nil, seq)
		b = appendString(b, m.jobs.idAt(f.slot))
		b = binary.AppendVarint(b, f.at)
		b = appendBool(b, f.own)
		c.frame(frameForced, appendString(b, f.body))
	}
	for _, o := range slices.SortedFunc(maps.Keys(m.rejected), origin.compare) {
		r := m.rejected[o]
		b := binary.AppendUvarint(binary.AppendUvarint(nil, o.seq), uint64(o.index))
		for _, s := range [...]string{r.key.verb, r.key.job, string(r.key.code), string(r.err.Code), r.err.Field, r.err.Message} {
			b = appendString(b, s)
		}
		b = binary.AppendUvarint(b, r.count)
		c.frame(frameRejected, binary.AppendVarint(b, r.at))
	}
	for _, b := range m.buried {
		if g, ok := m.graves[b.id]; ok && g.number == b.number {
			row := binary.AppendUvarint(appendString(nil, b.id), g.number)
			c.frame(frameGrave, binary.AppendVarint(binary.AppendVarint(row, g.last), g.at))
		}
	}
	held, _ := m.outbox.after(m.outbox.acked.Output)
	c.outputs = slices.Clone(held)
	m.saving = c
	return c
}

// Next returns the next part of the checkpoint, of about n jobs or outputs; nil when it is complete. The
// bytes are the caller's.
func (c *Checkpoint) Next(n int) []byte {
	if c.m == nil {
		return nil
	}
	for ; n > 0 && c.cursor < c.limit; c.cursor++ {
		if c.mustSave(c.cursor) {
			c.save(c.cursor)
			n--
		}
	}
	for ; n > 0 && c.cursor == c.limit && len(c.outputs) > 0; n-- {
		c.frame(frameOutput, appendOutput(nil, &c.outputs[0]))
		c.outputs = c.outputs[1:]
	}
	if c.cursor == c.limit && len(c.outputs) == 0 {
		c.frame(frameEnd, binary.AppendUvarint(nil, c.frames))
		c.Abandon()
	}
	part := c.early
	c.early = make([]byte, 0, len(part)) // the next part is about as long
	return part
}

// Abandon ends the checkpoint; Next returns nothing more.
func (c *Checkpoint) Abandon() {
	if c.m != nil && c.m.saving == c {
		c.m.saving = nil
	}
	c.m = nil
}

func (c *Checkpoint) frame(kind byte, content []byte) {
	c.frames++
	c.early = append(c.early, kind)
	c.early = appendString(c.early, content)
}

// mustSave tells whether a job is still to be saved. One that was gone already is not; one that was pinned
// was touched before it lost that.
func (c *Checkpoint) mustSave(slot uint32) bool {
	if c.saved[slot/64]&(1<<(slot%64)) != 0 {
		return false
	}
	j := c.m.jobs.at(slot)
	return j.status != statusFree && !(c.expired.passed(j) && !c.m.pinned(slot, j))
}

func (c *Checkpoint) save(slot uint32) {
	c.saved[slot/64] |= 1 << (slot % 64)
	c.job = c.m.appendJob(c.job[:0], slot)
	c.frame(frameJob, c.job)
}

// touch is called before a job changes.
func (m *Machine) touch(slot uint32) {
	if c := m.saving; c != nil && slot >= c.cursor && slot < c.limit && c.mustSave(slot) {
		c.save(slot)
	}
}

// touchNew is called when a slot gets a job that a checkpoint being taken does not know.
func (m *Machine) touchNew(slot uint32) {
	if c := m.saving; c != nil && slot < c.limit {
		c.saved[slot/64] |= 1 << (slot % 64)
	}
}

func (m *Machine) appendState(b []byte) []byte {
	b = append(b, checkpointVersion)
	b = appendString(b, m.layout.Prefix)
	for _, v := range [...]uint64{
		uint64(m.layout.Partitions), uint64(m.partition), m.position, m.epoch, m.ticks, m.digest, m.created, m.armed, m.finished, m.deaths,
		uint64(m.counts[statusScheduled]), uint64(m.counts[statusPaused]), m.expired.number,
		m.outbox.made, m.outbox.acked.Output, m.outbox.acked.Seq,
	} {
		b = binary.AppendUvarint(b, v)
	}
	b = binary.AppendVarint(b, m.now)
	b = binary.AppendVarint(b, m.to)
	b = binary.AppendVarint(b, m.expired.at)
	for _, w := range m.wheels {
		b = binary.AppendVarint(b, w.Now())
	}
	b = appendString(b, m.claim.Encode())
	b = binary.AppendUvarint(b, uint64(len(m.marks)))
	for _, mark := range m.marks {
		b = binary.AppendUvarint(b, mark.Position)
		b = binary.AppendUvarint(b, mark.Digest)
	}
	b = binary.AppendUvarint(b, uint64(len(m.gaps)))
	for _, g := range m.gaps {
		b = binary.AppendVarint(b, g.from)
		b = binary.AppendVarint(b, g.to)
	}
	return b
}

func (m *Machine) appendJob(b []byte, slot uint32) []byte {
	j := m.jobs.at(slot)
	id, request, s := m.jobs.texts.get(j.text)
	r := m.jobs.has(j)
	b = appendString(b, id)
	b = appendString(b, s)
	b = append(b, byte(j.status), byte(j.place))
	for _, v := range [...]uint64{j.version, j.order, j.fires, r.skipped, r.counted, j.armed} {
		b = binary.AppendUvarint(b, v)
	}
	for _, v := range [...]int64{j.accepted, j.next, j.last, r.countedFirst, r.skipTo} {
		b = binary.AppendVarint(b, v)
	}
	return appendString(b, request)
}

func appendOutput(b []byte, o *Output) []byte {
	b = binary.AppendUvarint(b, o.Number)
	b = binary.AppendVarint(b, o.Due)
	b = append(b, byte(o.Kind))
	b = appendString(b, o.Job)
	b = binary.AppendVarint(b, o.Scheduled)
	for _, v := range [...]uint64{o.Version, o.Missed, o.Asked} {
		b = binary.AppendUvarint(b, v)
	}
	b = appendString(b, o.Event)
	b = appendString(b, o.Body)
	b = appendBool(b, o.OwnBody)
	return appendString(b, string(o.spec))
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// Restore reads a checkpoint's parts, in any split, into a machine.
type Restore struct {
	m       *Machine
	rest    []byte
	frames  uint64
	ended   bool
	made    uint64           // outputs, as the state says
	counts  [statuses]uint64 // jobs, as the state says
	waiting []uint32         // slots on a wheel
	done    []uint32         // slots of completed jobs
	forced  []func() error
}

// NewRestore prepares to restore a machine of this layout and partition.
func NewRestore(layout Layout, partition int) *Restore {
	return &Restore{m: New(layout, partition)}
}

// Write takes the next part.
func (r *Restore) Write(part []byte) error {
	r.rest = append(r.rest, part...)
	for len(r.rest) > 0 {
		d := decoder{b: r.rest}
		kind, content := d.byte(), d.bytes()
		if d.err != nil {
			return nil // the frame goes on in the next part
		}
		if r.ended || (r.frames == 0) != (kind == frameState) {
			return fmt.Errorf("%w: frame %d is out of place", ErrCheckpoint, r.frames)
		}
		if err := r.frame(kind, &decoder{b: content}); err != nil {
			return fmt.Errorf("%w: frame %d: %w", ErrCheckpoint, r.frames, err)
		}
		r.frames++
		r.rest = d.b
	}
	return nil
}

func (r *Restore) frame(kind byte, d *decoder) error {
	switch kind {
	case frameState:
		r.state(d)
	case frameJob:
		return r.job(d)
	case frameForced:
		r.forcedFire(d)
	case frameRejected:
		r.rejection(d)
	case frameOutput:
		r.output(d)
	case frameGrave:
		r.grave(d)
	case frameDisk:
		r.m.diskLow = true
	case frameEnd:
		if d.uvarint() != r.frames {
			d.fail(errors.New("frames are missing"))
		}
		r.ended = true
	default:
		return fmt.Errorf("unknown type %d", kind)
	}
	if d.err == nil && len(d.b) > 0 {
		d.fail(errValue)
	}
	return d.err
}

func (r *Restore) state(d *decoder) {
	m := r.m
	if v := d.byte(); v != checkpointVersion {
		d.fail(fmt.Errorf("version %d, this binary reads %d", v, checkpointVersion))
	}
	if d.string() != m.layout.Prefix || d.uvarint() != uint64(m.layout.Partitions) || d.uvarint() != uint64(m.partition) {
		d.fail(errors.New("it belongs to another prefix, partition count or partition"))
	}
	for _, v := range [...]*uint64{
		&m.position, &m.epoch, &m.ticks, &m.digest, &m.created, &m.armed, &m.finished, &m.deaths,
		&r.counts[statusScheduled], &r.counts[statusPaused], &m.expired.number,
		&m.outbox.made, &m.outbox.acked.Output, &m.outbox.acked.Seq,
	} {
		*v = d.uvarint()
	}
	m.now, m.to, m.expired.at = d.varint(), d.varint(), d.varint()
	for i := range m.wheels {
		m.wheels[i] = wheel.New(d.varint())
	}
	if claim := d.bytes(); d.err == nil && m.epoch > 0 {
		var err error
		if m.claim, err = DecodeClaim(claim); err != nil {
			d.fail(err)
		}
	}
	if d.uvarint() != uint64(len(m.marks)) {
		d.fail(errValue)
	}
	for i := range m.marks {
		m.marks[i] = Mark{d.uvarint(), d.uvarint()}
	}
	for n := d.uvarint(); n > 0 && d.err == nil; n-- {
		m.gaps = append(m.gaps, gap{d.varint(), d.varint()})
	}
	if m.outbox.acked.Output > m.outbox.made {
		d.fail(errValue)
	}
	r.made, m.outbox.made = m.outbox.made, m.outbox.acked.Output // grows again with each output restored
}

func (r *Restore) job(d *decoder) error {
	m := r.m
	id := d.string()
	if d.err == nil {
		if err := carillon.CheckJobID(id); err != nil {
			return err
		}
		if _, j := m.jobs.find(id); j != nil {
			return fmt.Errorf("job %s twice", id)
		}
	}
	s := spec(d.string())
	want, err := decodeSpec(s)
	if d.err == nil && err != nil {
		return err
	}
	if d.err != nil {
		return d.err
	}
	expr, err := m.jobs.exprs.parse(&want)
	if err != nil {
		return err
	}
	slot, j := m.jobs.add(id)
	var few rare
	j.kind = expr.Kind()
	is, at := status(d.byte()), place(d.byte())
	for _, v := range [...]*uint64{&j.version, &j.order, &j.fires, &few.skipped, &few.counted, &j.armed} {
		*v = d.uvarint()
	}
	for _, v := range [...]*int64{&j.accepted, &j.next, &j.last, &few.countedFirst, &few.skipTo} {
		*v = d.varint()
	}
	request := d.string()
	known := false
	switch is {
	case statusScheduled:
		known = at <= inReady
	case statusPaused:
		known = at == nowhere
	case statusCompleted:
		known = at == nowhere || at == inReady && j.recurring()
	}
	if d.err == nil && (len(d.b) > 0 || !known) {
		d.fail(errValue)
	}
	if d.err != nil {
		return d.err
	}
	m.jobs.write(j, request, s)
	if few != (rare{}) {
		*m.jobs.rare(j) = few
	}
	m.jobs.describe(j, &want, expr, expr.Bind(j.accepted, unixMilli(want.Start), unixMilli(want.End), schedule.Offset(id, want.Spread.Milliseconds())))
	m.become(j, is)
	if is == statusCompleted {
		r.done = append(r.done, slot)
	}
	switch j.place = at; at {
	case onWheel:
		r.waiting = append(r.waiting, slot)
	case inReady:
		m.queue(slot, j)
	}
	return nil
}

func (r *Restore) forcedFire(d *decoder) {
	seq, id, f := d.uvarint(), d.string(), forcedFire{at: d.varint()}
	f.own = d.byte() == 1
	f.body = d.string()
	r.forced = append(r.forced, func() error {
		slot, j := r.m.jobs.find(id)
		if j == nil {
			return fmt.Errorf("%w: a fire of job %s, which is not there", ErrCheckpoint, id)
		}
		f.slot = slot
		r.m.force(seq, f)
		return nil
	})
}

func (r *Restore) rejection(d *decoder) {
	o := origin{d.uvarint(), uint32(d.atMost(MaxPackJobs - 1))}
	v := &rejection{key: rejectionKey{d.string(), d.string(), carillon.Code(d.string())}}
	v.err = carillon.Error{Code: carillon.Code(d.string()), Field: d.string(), Message: d.string()}
	v.count, v.at = d.uvarint(), d.varint()
	if d.err == nil {
		r.m.queueRejection(o, v)
	}
}

func (r *Restore) grave(d *decoder) {
	id, g := d.string(), grave{number: d.uvarint(), last: d.varint(), at: d.varint()}
	var before uint64
	if n := len(r.m.buried); n > 0 {
		before = r.m.buried[n-1].number
	}
	if d.err == nil && (carillon.CheckJobID(id) != nil || g.number <= before || g.number > r.m.deaths) {
		d.fail(errValue)
	}
	if d.err == nil {
		r.m.graves[id] = g
		r.m.buried = append(r.m.buried, buried{id, g.number})
	}
}

func (r *Restore) output(d *decoder) {
	o := Output{Number: d.uvarint(), Due: d.varint(), Kind: OutputKind(d.byte()), Job: d.string(), Scheduled: d.varint()}
	o.Version, o.Missed, o.Asked = d.uvarint(), d.uvarint(), d.uvarint()
	o.Event, o.Body, o.OwnBody, o.spec = d.string(), d.string(), d.byte() == 1, spec(d.string())
	if d.err != nil {
		return
	}
	if o.Number != r.m.outbox.made+1 || o.Kind > OutputEvent {
		d.fail(errValue)
		return
	}
	if o.Kind != OutputEvent {
		if _, err := decodeSpec(o.spec); err != nil {
			d.fail(err)
			return
		}
	}
	r.m.outbox.add(o)
}

// Machine returns the restored machine; it fails when the checkpoint did not come to its end.
func (r *Restore) Machine() (*Machine, error) {
	m := r.m
	if !r.ended {
		return nil, fmt.Errorf("%w: it ends after %d frames", ErrCheckpoint, r.frames)
	}
	if m.outbox.made != r.made {
		return nil, fmt.Errorf("%w: it has outputs up to %d of %d", ErrCheckpoint, m.outbox.made, r.made)
	}
	for _, s := range [...]status{statusScheduled, statusPaused} {
		if n := uint64(m.counts[s]); n != r.counts[s] {
			return nil, fmt.Errorf("%w: it has %d of %d %s jobs", ErrCheckpoint, n, r.counts[s], statusNames[s])
		}
	}
	// Timers go back on the wheel in the order in which they were armed: among equal deadlines the
	// wheel keeps it, and a bounded tick must take the same ones first on every replica.
	slices.SortFunc(r.waiting, func(a, b uint32) int { return cmp.Compare(m.jobs.at(a).armed, m.jobs.at(b).armed) })
	for _, slot := range r.waiting {
		j := m.jobs.at(slot)
		j.timer = m.wheels[j.rank].Insert(j.next, slot)
	}
	slices.SortFunc(r.done, func(a, b uint32) int { return cmp.Compare(m.jobs.at(a).armed, m.jobs.at(b).armed) })
	for _, slot := range r.done {
		m.completed.push(completion{slot, m.jobs.at(slot).armed})
	}
	for _, force := range r.forced {
		if err := force(); err != nil {
			return nil, err
		}
	}
	return m, nil
}
