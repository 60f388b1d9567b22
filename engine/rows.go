package engine

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/wheel"
)

// The format of a checkpoint is docs/formats/rows.md. The wheel and the ready queue are not in it, since each
// job's row says where the job waits.

// ErrCheckpoint marks a checkpoint that does not belong to this machine, or is not whole, or that another version wrote (then the error is
// an ErrVersion, too).
var ErrCheckpoint = errors.New("engine: unreadable checkpoint")

const (
	stateVersion = 2 // 1 is written if there is no recovery
	rowVersion   = 1
)

// malformed adds to an error which pair it is about.
func malformed(room byte, key []byte, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: room %q, key % x: %w", ErrCheckpoint, room, key, err)
}

// Rooms of a checkpoint, each with the form of its keys. Specs and outputs are appended in order, never changed, and dropped in the
// end; pairs of the other rooms come, change and go.
const (
	roomWaiting    = 'w' // <rank> <due> <armed>: a job whose next fire is on the wheel or ready
	roomIdle       = 'z' // <order>: a job that waits for nothing, because it is paused or has no schedule
	roomCompleted  = 'c' // <completed at> <completion>: a completed job
	roomIDs        = 'i' // <id>: where the job's row is
	roomSpecs      = 's' // <sequence> <index>: the spec of a put
	roomForced     = 'f' // <sequence>: a forced fire that waits
	roomTombstones = 'g' // <number>: a tombstone
	roomOutputs    = 'o' // <number>: an output that is not known to be stored for good
)

// jobRooms hold the jobs' rows.
var jobRooms = [...]byte{roomWaiting, roomIdle, roomCompleted}

// keySize is the size of a row's key.
func keySize(room byte) int {
	switch room {
	case roomWaiting:
		return 1 + 8 + 8
	case roomIdle:
		return 8
	}
	return 8 + 8
}

// The flags of a row.
const (
	rowStatus   = 0x03 // mask of the status
	rowReady    = 0x04 // its turn is ready, or the event of its completion
	rowExtra    = 0x08 // extra fields follow
	rowRecovery = 0x10 // the recovery of a job that was restored by itself follows
)

func appendNumber(b []byte, n uint64) []byte { return binary.BigEndian.AppendUint64(b, n) }

// appendTime appends a time so that earlier ones sort first.
func appendTime(b []byte, ms int64) []byte { return appendNumber(b, uint64(ms)^1<<63) }

func (d *decoder) number() uint64 {
	if len(d.b) < 8 {
		d.fail(errShort)
		return 0
	}
	v := binary.BigEndian.Uint64(d.b)
	d.b = d.b[8:]
	return v
}

func (d *decoder) time() int64 { return int64(d.number() ^ 1<<63) }

// end fails if something is left.
func (d *decoder) end() error {
	if d.err == nil && len(d.b) > 0 {
		d.fail(errValue)
	}
	return d.err
}

// specKey says which put a spec belongs to. Specs never change, and are made in the order of their keys.
type specKey struct {
	put   uint64 // sequence of its record
	index uint16 // in an import record
}

func (k specKey) append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(appendNumber(b, k.put), uint32(k.index))
}

func (k specKey) compare(o specKey) int {
	return cmp.Or(cmp.Compare(k.put, o.put), cmp.Compare(k.index, o.index))
}

func (k specKey) before(o specKey) bool { return k.compare(o) < 0 }

func decodeSpecKey(b []byte) (specKey, error) {
	if len(b) != 12 {
		return specKey{}, errValue
	}
	index := binary.BigEndian.Uint32(b[8:])
	if index > 1<<16-1 {
		return specKey{}, errValue
	}
	return specKey{binary.BigEndian.Uint64(b), uint16(index)}, nil
}

// row is a job's pair in one piece: room, key, value. Room and key are also its pointer, the value of its pair in roomIDs.
type row []byte

func (r row) room() byte      { return r[0] }
func (r row) pointer() []byte { return r[: 1+keySize(r[0]) : 1+keySize(r[0])] }
func (r row) key() []byte     { return r.pointer()[1:] }
func (r row) value() []byte   { return r[1+keySize(r[0]):] }

// checkRow checks a row of the table as far as its names and flags need it.
func checkRow(room byte, key, value []byte) error {
	d := decoder{b: value}
	if d.version("row", rowVersion); len(key) != keySize(room) || len(value) < 2 {
		d.fail(errShort)
	}
	return d.err
}

// names returns the spec and the id of a row that was checked or that the machine encoded.
func (r row) names() (specKey, []byte) {
	d := decoder{b: r.value()[2:]}
	return specKey{d.uvarint(), uint16(d.uvarint())}, d.bytes()
}

// appendPointer appends the room and the key of a job's row; order is the job's order of creation.
func appendPointer(b []byte, j *job, order uint64) []byte {
	switch {
	case j.status == statusCompleted:
		return appendNumber(appendTime(append(b, roomCompleted), j.next), j.armed)
	case j.status == statusPaused || j.next == none:
		return appendNumber(append(b, roomIdle), order)
	}
	return appendNumber(appendTime(append(b, roomWaiting, j.rank), j.next), j.armed)
}

// stored is a job as its row has it, without the fields that follow from its spec.
type stored struct {
	job
	fixed
	extra       extra
	id, request []byte // they alias the row
}

// appendRow appends a job's row.
func (m *Machine) appendRow(b []byte, j *job) row {
	f := m.jobs.fixed(j)
	return appendRow(b, j, &f, m.jobs.extra(j), m.jobs.id(j), m.jobs.request(j))
}

// appendRow is the inverse of decodeRow.
func appendRow(b []byte, j *job, f *fixed, few extra, id, request []byte) row {
	room := len(b)
	b = appendPointer(b, j, f.order)
	back := few.recovery
	few = extra{skipped: few.skipped, counted: few.counted, countedFirst: few.countedFirst, skipTo: few.skipTo}
	flags := byte(j.status)
	if j.place == inReady {
		flags |= rowReady
	}
	if few != (extra{}) {
		flags |= rowExtra
	}
	if back != (recovery{}) {
		flags |= rowRecovery
	}
	b = append(b, rowVersion, flags)
	b = binary.AppendUvarint(b, f.put)
	b = binary.AppendUvarint(b, uint64(f.index))
	b = appendString(b, id)
	b = binary.AppendUvarint(b, f.version)
	b = binary.AppendUvarint(b, j.fires)
	b = binary.AppendVarint(b, f.accepted)
	b = binary.AppendVarint(b, j.last)
	if b[room] == roomIdle {
		b = binary.AppendVarint(b, j.next)
	} else {
		b = binary.AppendUvarint(b, f.order)
	}
	if flags&rowExtra != 0 {
		b = binary.AppendUvarint(b, few.skipped)
		b = binary.AppendUvarint(b, few.counted)
		b = binary.AppendVarint(b, few.countedFirst)
		b = binary.AppendVarint(b, few.skipTo)
	}
	if flags&rowRecovery != 0 {
		b = back.append(b)
	}
	return appendString(b, request)
}

// decodeRow reads a row.
func decodeRow(r row) (j stored, err error) {
	room := r.room()
	k := decoder{b: r.key()}
	switch room {
	case roomWaiting:
		j.rank, j.next, j.armed = k.byte(), k.time(), k.number()
	case roomIdle:
		j.order = k.number()
	case roomCompleted:
		j.next, j.armed = k.time(), k.number()
	}
	d := decoder{b: r.value()}
	d.version("row", rowVersion)
	flags := d.byte()
	j.status = status(flags & rowStatus)
	j.put = d.uvarint()
	index := d.uvarint()
	j.index = uint16(index)
	j.id = d.bytes()
	j.version, j.fires, j.accepted, j.last = d.uvarint(), d.uvarint(), d.varint(), d.varint()
	if room == roomIdle {
		j.next = d.varint()
	} else {
		j.order = d.uvarint()
	}
	if flags&rowExtra != 0 {
		j.extra = extra{skipped: d.uvarint(), counted: d.uvarint(), countedFirst: d.varint(), skipTo: d.varint()}
	}
	if flags&rowRecovery != 0 {
		j.extra.recovery = d.recovery()
	}
	j.request = d.bytes()
	switch {
	case flags&rowReady != 0:
		j.place = inReady
	case room == roomWaiting:
		j.place = onWheel
	}
	known := false
	switch j.status {
	case statusScheduled:
		known = (room == roomWaiting && j.next != none) || (room == roomIdle && j.next == none && j.place == nowhere)
	case statusPaused:
		known = room == roomIdle && j.place == nowhere
	case statusCompleted:
		known = room == roomCompleted
	}
	if !known || flags&^(rowStatus|rowReady|rowExtra|rowRecovery) != 0 || index > 1<<16-1 || j.rank >= priorities || len(j.request) > carillon.MaxJobIDLength {
		d.fail(errValue)
	}
	return j, d.end()
}

func (m *Machine) appendState(b []byte) []byte {
	version := byte(1)
	if m.recovery != (recovery{}) {
		version = stateVersion
	}
	b = append(b, version)
	b = appendString(b, m.layout.Prefix)
	for _, v := range [...]uint64{
		uint64(m.layout.Partitions), uint64(m.partition), m.position, m.epoch, m.ticks, m.digest, m.created, m.armed, m.finished, m.tombstoned,
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
	b = appendBool(b, m.diskLow)
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
	b = binary.AppendUvarint(b, uint64(len(m.rejected)))
	for _, o := range slices.SortedFunc(maps.Keys(m.rejected), origin.compare) {
		r := m.rejected[o]
		b = binary.AppendUvarint(binary.AppendUvarint(b, o.seq), uint64(o.index))
		for _, s := range [...]string{r.key.verb, r.key.job, string(r.key.code), string(r.err.Code), r.err.Field, r.err.Message} {
			b = appendString(b, s)
		}
		b = binary.AppendUvarint(b, r.count)
		b = binary.AppendVarint(b, r.at)
	}
	if version > 1 {
		b = m.recovery.append(b)
	}
	return b
}

// readState is the inverse of appendState, on a new machine. The outbox has yet to get its outputs, up to made.
func (m *Machine) readState(d *decoder) (scheduled, paused, made uint64) {
	version := d.version("state", stateVersion)
	if d.string() != m.layout.Prefix || d.uvarint() != uint64(m.layout.Partitions) || d.uvarint() != uint64(m.partition) {
		d.fail(errors.New("it belongs to another prefix, partition count or partition"))
	}
	for _, v := range [...]*uint64{
		&m.position, &m.epoch, &m.ticks, &m.digest, &m.created, &m.armed, &m.finished, &m.tombstoned,
		&scheduled, &paused, &m.expired.number, &made, &m.outbox.acked.Output, &m.outbox.acked.Seq,
	} {
		*v = d.uvarint()
	}
	m.now, m.to, m.expired.at = d.varint(), d.varint(), d.varint()
	m.cameDue = m.now // when what is due by then came is not part of the state
	for i := range m.wheels {
		m.wheels[i] = wheel.New(d.varint())
	}
	m.diskLow = d.bool()
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
	var before origin
	for n := d.uvarint(); n > 0 && d.err == nil; n-- {
		first, r := readRejection(d)
		switch {
		case d.err != nil:
		case first.compare(before) <= 0 || first.seq > m.position:
			d.fail(errValue)
		default:
			m.queueRejection(first, r)
		}
		before = first
	}
	if version > 1 {
		m.recovery = d.recovery()
	}
	if m.outbox.acked.Output > made {
		d.fail(errValue)
	}
	return scheduled, paused, made
}

func readRejection(d *decoder) (first origin, r *rejection) {
	first = origin{d.uvarint(), uint32(d.atMost(MaxPackJobs - 1))}
	r = &rejection{key: rejectionKey{d.string(), d.string(), carillon.Code(d.string())}}
	r.err = carillon.Error{Code: carillon.Code(d.string()), Field: d.string(), Message: d.string()}
	r.count, r.at = d.uvarint(), d.varint()
	return first, r
}

func (f *forcedFire) value() []byte {
	b := appendString([]byte{rowVersion}, f.id)
	b = binary.AppendVarint(b, f.at)
	return appendString(appendBool(b, f.own), f.body)
}

func decodeForced(key, value []byte) (*forcedFire, error) {
	k, d := decoder{b: key}, decoder{b: value}
	d.version("row", rowVersion)
	f := &forcedFire{seq: k.number(), id: d.string(), at: d.varint(), own: d.bool(), body: d.string()}
	return f, errors.Join(k.end(), d.end())
}

func (g *tombstone) value() []byte {
	b := appendString([]byte{rowVersion}, g.id)
	return binary.AppendVarint(binary.AppendVarint(b, g.last), g.at)
}

func decodeTombstone(key, value []byte) (*tombstone, error) {
	k, d := decoder{b: key}, decoder{b: value}
	d.version("row", rowVersion)
	g := &tombstone{number: k.number(), id: d.string(), last: d.varint(), at: d.varint()}
	return g, errors.Join(k.end(), d.end())
}

// value is the value of an output's pair. The output's number is the key.
func (o *Output) value() []byte {
	b := binary.AppendVarint([]byte{rowVersion}, o.Due)
	b = append(b, byte(o.Kind))
	b = appendString(b, o.Job)
	b = binary.AppendVarint(b, o.Scheduled)
	for _, v := range [...]uint64{o.Version, o.Missed, o.ForcedSeq} {
		b = binary.AppendUvarint(b, v)
	}
	b = appendString(b, o.Event)
	b = appendString(b, o.Body)
	b = appendBool(b, o.OwnBody)
	return appendString(b, o.spec)
}

func decodeOutput(key, value []byte) (Output, error) {
	k, d := decoder{b: key}, decoder{b: value}
	d.version("row", rowVersion)
	o := Output{Number: k.number(), Due: d.varint(), Kind: OutputKind(d.byte()), Job: d.string(), Scheduled: d.varint()}
	o.Version, o.Missed, o.ForcedSeq = d.uvarint(), d.uvarint(), d.uvarint()
	o.Event, o.Body, o.OwnBody, o.spec = d.string(), d.string(), d.bool(), spec(d.string())
	if err := errors.Join(k.end(), d.end()); err != nil {
		return o, err
	}
	if o.Kind > OutputEvent {
		return o, errValue
	}
	if o.Kind != OutputEvent {
		_, err := decodeTerms([]byte(o.spec))
		return o, err
	}
	return o, nil
}

func (d *decoder) bool() bool {
	v := d.byte()
	if v > 1 {
		d.fail(errValue)
	}
	return v == 1
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}
