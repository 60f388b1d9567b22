package engine

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

// Table is a partition's state as of a checkpoint. Key and value are valid only until the next call or the end of
// yield. (snapshot.View is one.)
type Table interface {
	// State is the state that Changes.State was given; nil: there is no checkpoint.
	State() ([]byte, error)
	// Scan yields the pairs of a room with keys above and below two bounds (both exclusive; nil: no bound), ascending. It
	// stops after limit pairs (0: no limit), and says whether there are more.
	Scan(room byte, above, below []byte, limit int, yield func(key, value []byte) error) (more bool, err error)
	// Get looks a pair up.
	Get(room byte, key []byte) (value []byte, found bool, err error)
}

// Open returns the machine as of a checkpoint, with all jobs in memory; a new machine if there is no checkpoint. Errors: the
// table's, ErrCheckpoint.
func Open(layout Layout, partition int, t Table) (*Machine, error) {
	l, err := openState(layout, partition, t)
	if err != nil || l.blank {
		return l.m, err
	}
	for _, load := range []func() error{l.tombstones, l.rows, l.specs, l.ids, l.queue, l.forced, l.outputs} {
		if err := load(); err != nil {
			return nil, err
		}
	}
	if s, p := uint64(l.m.counts[statusScheduled]), uint64(l.m.counts[statusPaused]); s != l.scheduled || p != l.paused {
		return nil, fmt.Errorf("%w: it has %d of %d scheduled jobs, and %d of %d paused", ErrCheckpoint, s, l.scheduled, p, l.paused)
	}
	return l.done()
}

// OpenCold is Open without the jobs, except those whose turns are ready or that have forced fires. The machine reads the others from
// the table when it needs them, so it keeps the table. The time this takes does not depend on the number of jobs, except completed
// ones, which are counted.
func OpenCold(layout Layout, partition int, t Table) (*Machine, error) {
	l, err := openState(layout, partition, t)
	if err != nil || l.blank {
		return l.m, err
	}
	l.m.counts[statusScheduled], l.m.counts[statusPaused] = int(l.scheduled), int(l.paused)
	l.m.residence.startCold(t)
	for _, load := range []func() error{l.tombstones, l.ready, l.completed, l.forced, l.outputs} {
		if err := load(); err != nil {
			return nil, err
		}
	}
	return l.done()
}

// loader reads a checkpoint into a machine, each room in its own order: the rows, by when they are due; the specs, by put, each joined
// to its row; and the ids.
type loader struct {
	m     *Machine
	table Table
	blank bool       // there is no checkpoint
	rest  arena      // of the rows in found
	found []foundRow // in order of rooms and keys

	scheduled, paused, made uint64 // as the state says
}

// openState returns the loader of a machine that has the checkpoint's state, but none of its pairs yet.
func openState(layout Layout, partition int, t Table) (l loader, err error) {
	m := New(layout, partition)
	state, err := t.State()
	if err != nil || state == nil {
		return loader{m: m, blank: true}, err
	}
	l = loader{m: m, table: t}
	d := decoder{b: state}
	l.scheduled, l.paused, l.made = m.readState(&d)
	if err := d.end(); err != nil {
		return loader{}, fmt.Errorf("%w: state: %w", ErrCheckpoint, err)
	}
	return l, nil
}

// done returns the machine, if it has all outputs.
func (l *loader) done() (*Machine, error) {
	m := l.m
	if m.outbox.made != l.made {
		return nil, fmt.Errorf("%w: it has outputs up to %d of %d", ErrCheckpoint, m.outbox.made, l.made)
	}
	m.base = m.asBase()
	m.changes = newGeneration(m.changes.number + 1) // nothing has changed
	return m, nil
}

// foundRow is a job's row whose spec has yet to be read.
type foundRow struct {
	spec specKey
	row  ref
	slot uint32
}

// all scans a whole room, and adds to an error of load which pair it was.
func (l *loader) all(room byte, load func(key, value []byte) error) error {
	_, err := l.table.Scan(room, nil, nil, 0, func(key, value []byte) error {
		return malformed(room, key, load(key, value))
	})
	return err
}

func (l *loader) rows() error {
	var b []byte
	for _, room := range jobRooms {
		if err := l.all(room, func(key, value []byte) error {
			if err := checkRow(room, key, value); err != nil {
				return err
			}
			d := decoder{b: value[2:]}
			spec := specKey{d.uvarint(), uint16(d.uvarint())}
			b = append(append(append(b[:0], room), key...), value...)
			l.found = append(l.found, foundRow{spec: spec, row: l.rest.add(b)})
			return d.err
		}); err != nil {
			return err
		}
	}
	return nil
}

// specs reads the specs, and brings the job of each into memory.
func (l *loader) specs() error {
	order := make([]uint32, len(l.found))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(a, b uint32) int {
		if l.found[a].spec.before(l.found[b].spec) {
			return -1
		}
		return 1
	})
	err := l.all(roomSpecs, func(key, value []byte) error {
		at, err := decodeSpecKey(key)
		if err != nil {
			return err
		}
		if len(order) == 0 || at.before(l.found[order[0]].spec) {
			return nil // no job has it any more
		}
		f := &l.found[order[0]]
		if f.spec != at {
			return fmt.Errorf("the spec of put %d is missing", f.spec.put)
		}
		order = order[1:]
		if f.slot, err = l.m.admit(l.rest.get(f.row), value); err != nil {
			return err
		}
		l.m.counts[l.m.jobs.at(f.slot).status]++
		return nil
	})
	if err == nil && len(order) > 0 {
		err = fmt.Errorf("%w: the spec of put %d is missing", ErrCheckpoint, l.found[order[0]].spec.put)
	}
	return err
}

// admit brings a job into memory. The caller has yet to put it into the order of ids, and where it waits.
func (m *Machine) admit(r row, s []byte) (slot uint32, err error) {
	restored, err := decodeRow(r)
	if err != nil {
		return 0, err
	}
	want, err := decodeTerms(s)
	if err != nil {
		return 0, err
	}
	expr, err := m.jobs.exprs.parse(&want)
	if err != nil {
		return 0, fmt.Errorf("%w: job %q: %w", ErrVersion, restored.id, err)
	}
	if restored.place == inReady && restored.status == statusCompleted && expr.Kind() != schedule.Every && expr.Kind() != schedule.Cron ||
		r.room() == roomWaiting && restored.rank != rankOf(want.Priority) {
		return 0, errValue
	}
	offset := schedule.Offset(string(restored.id), want.Spread.Milliseconds())
	plan := expr.Bind(restored.accepted, unixMilli(want.Start), unixMilli(want.End), offset)
	from, _, _ := plan.Fields()
	slot, j := m.jobs.insert(addText(&m.jobs.texts, restored.id, restored.fixed, from, restored.request, s), from)
	restored.text, restored.from, restored.entry = j.text, j.from, j.entry
	*j = restored.job
	if restored.extra != (extra{}) {
		*m.jobs.editExtra(j) = restored.extra
	}
	m.jobs.applySpec(j, &want, len(s), expr, plan)
	return slot, nil
}

// ids puts the jobs in order of their ids, and checks that each id's pointer leads to its row.
func (l *loader) ids() error {
	m := l.m
	n := 0
	var b []byte
	err := l.all(roomIDs, func(id, pointer []byte) error {
		slot, j := m.jobs.find(string(id))
		if j == nil {
			return errors.New("it has no row")
		}
		if b = appendPointer(b[:0], j, m.jobs.texts.order(j.text)); !bytes.Equal(b, pointer) {
			return fmt.Errorf("it leads to % x, the row is at % x", pointer, b)
		}
		if err := carillon.CheckJobID(string(id)); err != nil {
			return err
		}
		m.jobs.byID.ReplaceOrInsert(slot)
		n++
		return nil
	})
	if err == nil && n != len(l.found) {
		err = fmt.Errorf("%w: there are %d rows of %d jobs", ErrCheckpoint, len(l.found), n)
	}
	return err
}

// queue puts the jobs where they wait. Timers are inserted into the wheel in the order of keys, because among equal deadlines
// that is the order of arming, in which the wheel must yield them.
func (l *loader) queue() error {
	m := l.m
	for _, f := range l.found {
		j := m.jobs.at(f.slot)
		if j.status == statusCompleted {
			m.completed.push(completion{f.slot, j.armed})
		}
		switch j.place {
		case onWheel:
			j.timer = m.wheels[j.rank].Insert(j.next, f.slot)
		case inReady:
			m.queue(f.slot, j)
		}
	}
	return nil
}

// ready brings the jobs into memory whose turns are ready. They are among those that were due by the time of ticks, or, where missed fires
// are being counted (Machine.count), by that of commands.
func (l *loader) ready() error {
	var found []row
	for rank := range byte(priorities) {
		due := appendNumber(appendTime([]byte{rank}, max(l.m.to, l.m.now)+1), 0)
		if _, err := l.table.Scan(roomWaiting, []byte{rank}, due, 0, keepReady(roomWaiting, &found)); err != nil {
			return err
		}
	}
	return l.takeReady(found)
}

// completed counts the completed jobs, and brings those into memory whose event is ready.
func (l *loader) completed() error {
	var found []row
	keep := keepReady(roomCompleted, &found)
	_, err := l.table.Scan(roomCompleted, nil, nil, 0, func(key, value []byte) error {
		l.m.counts[statusCompleted]++
		return keep(key, value)
	})
	return errors.Join(err, l.takeReady(found))
}

// keepReady returns a function for Scan that keeps the rows whose turns are ready.
func keepReady(room byte, found *[]row) func(key, value []byte) error {
	return func(key, value []byte) error {
		if err := checkRow(room, key, value); err != nil {
			return malformed(room, key, err)
		}
		if value[1]&rowReady != 0 {
			*found = append(*found, slices.Concat([]byte{room}, key, value))
		}
		return nil
	}
}

func (l *loader) takeReady(found []row) error {
	for _, r := range found {
		slot, j, err := l.m.admitRow(r)
		if err != nil {
			return err
		}
		if j.status == statusCompleted {
			l.m.completed.push(completion{slot, j.armed})
		}
		l.m.queue(slot, j)
	}
	return nil
}

func (l *loader) forced() error {
	return l.all(roomForced, func(key, value []byte) error {
		f, err := decodeForced(key, value)
		if err != nil {
			return err
		}
		if f.seq > l.m.position {
			return errValue
		}
		slot, j := l.m.lookUp(f.id)
		if j == nil {
			return errors.Join(l.m.residence.err, fmt.Errorf("there is no job %s", f.id))
		}
		f.slot = slot
		l.m.addForced(f)
		return nil
	})
}

func (l *loader) tombstones() error {
	return l.all(roomTombstones, func(key, value []byte) error {
		g, err := decodeTombstone(key, value)
		if err != nil {
			return err
		}
		if carillon.CheckJobID(g.id) != nil || g.number > l.m.tombstoned || l.m.tombstones[g.id] != nil {
			return errValue
		}
		l.m.insertTombstone(g)
		return nil
	})
}

// outputs reads the outputs that are held, and skips earlier ones that the table still has.
func (l *loader) outputs() error {
	m := l.m
	m.outbox.made = m.outbox.acked.Output
	return l.all(roomOutputs, func(key, value []byte) error {
		o, err := decodeOutput(key, value)
		if err != nil {
			return err
		}
		switch {
		case o.Number <= m.outbox.acked.Output:
			return nil
		case o.Number != m.outbox.made+1:
			return fmt.Errorf("output %d is missing", m.outbox.made+1)
		}
		m.outbox.add(o)
		return nil
	})
}
