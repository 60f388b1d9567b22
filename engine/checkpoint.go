package engine

import (
	"bytes"
	"maps"
	"slices"
)

// Changes takes the differences between a checkpoint and the one before it, in rooms of pairs. A nil old or value means
// that there is no pair. It keeps the slices. (snapshot.Build is one.)
type Changes interface {
	State(position uint64, state []byte)
	Change(room byte, key, old, value []byte)
	Remove(room byte, key []byte)
	Append(room byte, key, value []byte)
	Drop(room byte, key []byte)
	Cut(room byte, key []byte)
}

// base is the checkpoint that changes are counted from. The zero base is an empty checkpoint.
type base struct {
	position uint64 // of the machine: specs of puts up to here are in it
	made     uint64 // outputs up to here are in it, or were stored for good
	acked    uint64 // outputs up to here were stored for good, and are not needed in it
}

func (m *Machine) asBase() base { return base{m.position, m.outbox.made, m.outbox.acked.Output} }

// Checkpoint is a checkpoint being taken: the machine's state at one moment, as what changed since the checkpoint before.
// The machine may go on applying records meanwhile.
//
//	c := m.BeginCheckpoint()        // between records
//	for c.Next(500) {               // each call between records
//	}
//	c.Write(build, position)        // beside the machine, in another goroutine
//	err := build.Commit()           // the same; these two are most of the work
//	c.Committed()                   // between records; or c.Abandon()
//
// A job that is about to change before Next has come to it is taken at once, as it was (touch).
type Checkpoint struct {
	m       *Machine
	from    base
	to      base
	state   []byte
	changes *generation
	cursor  int // how many entries of changes are taken
	outputs []Output

	forced      []*forcedFire // new ones
	tombstones  []*tombstone  // new ones
	deltaCursor int           // how many of changes.forced.added, then of changes.tombstones.added, are taken
}

// BeginCheckpoint starts taking the state as it is now. The time it takes does not depend on how many jobs there are or changed.
// Only one checkpoint is taken at a time; a second call abandons the first.
func (m *Machine) BeginCheckpoint() *Checkpoint {
	if m.saving != nil {
		m.saving.Abandon()
	}
	c := &Checkpoint{
		m: m, from: m.base, to: m.asBase(), state: m.appendState(nil), changes: m.changes,
	}
	c.outputs, _ = m.outbox.after(max(c.from.made, c.to.acked)) // ok: all outputs after the acked one are held
	m.outbox.pin()
	m.changes = newGeneration(m.changes.number + 1)
	m.saving = c
	return c
}

// specSlice bounds the bytes of specs that one call of Next copies.
const specSlice = 1 << 20

// Next takes about n more of the changes, and tells whether there are more.
func (c *Checkpoint) Next(n int) (more bool) {
	copied := 0
	for ; n > 0 && copied < specSlice && c.cursor < c.changes.n; n-- {
		copied += c.take(uint32(c.cursor))
		c.cursor++
	}
	forced, tombstones := c.changes.forced.added, c.changes.tombstones.added
	for ; n > 0 && copied < specSlice && c.deltaCursor < len(forced)+len(tombstones); n-- {
		if i := c.deltaCursor - len(forced); i >= 0 {
			if tombstones[i].existsIn(c.changes.number) {
				c.tombstones = append(c.tombstones, tombstones[i])
			}
		} else if f := forced[c.deltaCursor]; f.existsIn(c.changes.number) {
			c.forced = append(c.forced, f)
		}
		c.deltaCursor++
	}
	return c.cursor < c.changes.n || c.deltaCursor < len(forced)+len(tombstones)
}

// take keeps the row of a job as it is now, and its spec if no checkpoint has that yet. It returns how many bytes of spec it copied.
func (c *Checkpoint) take(i uint32) (copied int) {
	e := c.changes.at(i)
	if e.slot == noSlot || e.row != 0 {
		return 0
	}
	m, rows := c.m, &c.changes.rows
	j := m.jobs.at(e.slot)
	m.scratch = m.appendRow(m.scratch[:0], j)
	e.row = rows.add(m.scratch)
	if m.jobs.fixed(j).put > c.from.position {
		s := m.jobs.spec(j)
		e.spec = rows.add(s)
		copied = len(s)
	}
	return copied
}

// Write hands over what changed, once Next has said that all of it is taken. position is the caller's position in the log.
// Write reads nothing that the machine may change meanwhile.
func (c *Checkpoint) Write(to Changes, position uint64) {
	to.State(position, c.state)
	c.writeJobs(to)
	for _, f := range c.forced {
		to.Change(roomForced, appendNumber(nil, f.seq), nil, f.value())
	}
	for _, seq := range c.changes.forced.removed {
		to.Remove(roomForced, appendNumber(nil, seq))
	}
	for _, g := range c.tombstones {
		to.Change(roomTombstones, appendNumber(nil, g.number), nil, g.value())
	}
	for _, number := range c.changes.tombstones.removed {
		to.Remove(roomTombstones, appendNumber(nil, number))
	}
	for i := range c.outputs {
		to.Append(roomOutputs, appendNumber(nil, c.outputs[i].Number), c.outputs[i].value())
	}
	if c.to.acked > c.from.acked {
		to.Cut(roomOutputs, appendNumber(nil, c.to.acked+1))
	}
}

// writeJobs writes the jobs that changed. A job that was deleted and put again has two entries, of which only the second leads to
// a pair of its id.
func (c *Checkpoint) writeJobs(to Changes) {
	deleted := make(map[string][]byte) // pointers to the rows of deleted jobs, by id
	for i := range c.changes.n {
		if old, now := c.rows(i); old != nil && now == nil {
			_, id := old.names()
			deleted[string(id)] = old.pointer()
		}
	}
	for i := range c.changes.n {
		old, now := c.rows(i)
		if old == nil && now == nil {
			continue // created and deleted in between
		}
		writeRow(to, old, now)
		if now == nil {
			continue
		}
		key, id := now.names()
		if old != nil {
			to.Change(roomIDs, id, old.pointer(), now.pointer())
		} else {
			to.Change(roomIDs, id, deleted[string(id)], now.pointer())
			delete(deleted, string(id))
		}
		if s := c.changes.at(uint32(i)).spec; s != 0 {
			to.Append(roomSpecs, key.append(nil), c.changes.rows.get(s))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(deleted)) {
		to.Change(roomIDs, []byte(id), deleted[id], nil)
	}
}

// rows returns a job's row as it was and as it is now; nil if the job did not, or does not, exist.
func (c *Checkpoint) rows(i int) (old, now row) {
	e := c.changes.at(uint32(i))
	return c.changes.rows.get(e.old), c.changes.rows.get(e.row)
}

// writeRow writes the change of a job's row from old to now, one of which may be nil, and drops the spec that the job no longer has.
func writeRow(to Changes, old, now row) {
	switch {
	case old == nil:
		to.Change(now.room(), now.key(), nil, now.value())
		return
	case now == nil:
		to.Change(old.room(), old.key(), old.value(), nil)
	case bytes.Equal(old.pointer(), now.pointer()):
		to.Change(now.room(), now.key(), old.value(), now.value())
	default:
		to.Change(old.room(), old.key(), old.value(), nil)
		to.Change(now.room(), now.key(), nil, now.value())
	}
	was, _ := old.names()
	if now != nil {
		if is, _ := now.names(); is == was {
			return
		}
	}
	to.Drop(roomSpecs, was.append(nil))
}

// Committed says that the checkpoint is on disk. From now on changes are counted from it, and the machine's table has it (see Attach).
func (c *Checkpoint) Committed() {
	if m := c.end(); m != nil {
		m.base = c.to
		m.noteCommitted(c.changes)
	}
}

// Abandon gives the checkpoint up, unless it has ended. The next checkpoint has its changes, too. The time this takes grows with their
// number.
func (c *Checkpoint) Abandon() {
	m := c.end()
	if m == nil {
		return
	}
	merged := make([]bool, c.changes.n)
	for i := range m.changes.n {
		e := m.changes.at(uint32(i))
		if e.before == 0 {
			continue
		}
		merged[e.before-1] = true
		e.old, e.before = c.moved(m, c.changes.at(e.before-1).old), 0
	}
	for i := range c.changes.n {
		e := *c.changes.at(uint32(i))
		if merged[i] || e.slot == noSlot && e.old == 0 {
			continue
		}
		n := m.changes.add(entry{slot: e.slot, old: c.moved(m, e.old)})
		if e.slot != noSlot {
			m.jobs.at(e.slot).entry = n
		}
	}
	m.changes.forced.prepend(&c.changes.forced)
	m.changes.tombstones.prepend(&c.changes.tombstones)
	m.changes.absent = append(c.changes.absent, m.changes.absent...)
}

// moved copies a row of the checkpoint into the generation after it.
func (c *Checkpoint) moved(m *Machine, r ref) ref {
	if r == 0 {
		return 0
	}
	return m.changes.rows.add(c.changes.rows.get(r))
}

// end ends the checkpoint and returns the machine; nil if the checkpoint has ended already.
func (c *Checkpoint) end() *Machine {
	m := c.m
	if m == nil || m.saving != c {
		return nil
	}
	c.m, m.saving = nil, nil
	m.outbox.unpin()
	return m
}

// Export hands over the whole state, like a checkpoint that follows an empty one. It leaves out completed jobs that are
// gone, so what it hands over depends only on the log. It is for tools: it takes long, no record may be
// applied meanwhile, and it brings all jobs into memory. Errors: those of Load.
func (m *Machine) Export(to Changes, position uint64) error {
	if err := m.loadAll(); err != nil {
		return err
	}
	c := &Checkpoint{m: m, state: m.appendState(nil), changes: newGeneration(1)}
	for slot := range m.jobs.used {
		if j := m.jobs.at(slot); j.status != statusFree && !m.gone(slot, j) {
			c.take(c.changes.add(entry{slot: slot}))
		}
	}
	for _, seq := range slices.Sorted(maps.Keys(m.forced)) {
		c.forced = append(c.forced, m.forced[seq])
	}
	for _, g := range m.tombstoneQueue {
		if g.removed == 0 {
			c.tombstones = append(c.tombstones, g)
		}
	}
	c.outputs, _ = m.outbox.after(m.outbox.acked.Output) // ok: all outputs after the acked one are held
	c.Write(to, position)
	return nil
}
