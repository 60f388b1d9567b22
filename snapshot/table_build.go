package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/carillon-scheduler/carillon/wal"
)

const (
	// batchBytes is the size up to which a checkpoint is written as one batch. Why not larger: a batch goes through
	// Pebble's log and memtable, and this is half of a memtable's 2 MiB. Why not smaller: tables of appended rooms go to
	// the bottom level and stay as they are, and a file should have a few hundred kilobytes at least.
	batchBytes = 1 << 20

	// sortedTableBytes is the size of a table after which a room goes on in another one. Pebble's own are as large.
	sortedTableBytes = 8 << 20
)

// Build gathers a checkpoint in memory and writes it with Prepare and Commit. It ends with Commit or Abort, and is for
// one goroutine at a time. It keeps the slices that it is given: they must not change until it ends. The methods that gather
// return no errors; if something that was gathered is wrong, Prepare fails, and nothing is written.
type Build struct {
	table     *Table
	partition uint16
	from, to  Checkpoint // the checkpoint before, and this one
	state     []byte
	rooms     map[byte]*pending
	prepared  bool
	tables    *tableSink // written by Prepare; nil: Commit writes one batch
	step      func()
	worked    int // bytes since the last step
	done      bool
}

// stepBytes is how much is gathered or written between two steps: less than a millisecond of work.
const stepBytes = 32 << 10

// OnStep has step called from now on after every stepBytes of work, by the methods that gather and by Prepare. A caller that is in
// no hurry can rest in it.
func (b *Build) OnStep(step func()) { b.step = step }

// work counts bytes that were handled, and calls step when it is time.
func (b *Build) work(bytes int) {
	if b.worked += bytes; b.worked >= stepBytes && b.step != nil {
		b.worked = 0
		b.step()
	}
}

// pending is what a checkpoint changes in a room.
type pending struct {
	changes  []change
	removed  [][]byte // keys of pairs whose values the caller does not have
	appended []change // with old nil
	dropped  [][]byte // keys of pairs that are unused from this checkpoint on
	cut      []byte   // pairs before this key are unused from this checkpoint on
	dead     [][]byte // dropped of the checkpoint before: now deleted
	deadCut  []byte   // cut of the checkpoint before: now deleted
	last     []byte   // the last key in the room, if something is appended
}

// change is a pair as it was and as it is now; nil: absent.
type change struct{ key, old, value []byte }

// Begin begins a partition's next checkpoint. Errors: ErrBusy, List's.
func (t *Table) Begin(partition uint16) (*Build, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.building[partition] {
		return nil, fmt.Errorf("%w: %d", ErrBusy, partition)
	}
	b := &Build{table: t, partition: partition, rooms: make(map[byte]*pending)}
	if err := t.View(partition, func(v *View) error { b.from = v.Checkpoint; return nil }); err != nil {
		return nil, err
	}
	b.to.ID = b.from.ID + 1
	t.building[partition] = true
	return b, nil
}

func (b *Build) room(room byte) *pending {
	p := b.rooms[room]
	if p == nil {
		p = new(pending)
		b.rooms[room] = p
	}
	return p
}

// State sets the position of the log that the checkpoint is of, and its state, one value beside the rooms. A
// checkpoint without a state cannot be committed.
func (b *Build) State(position uint64, state []byte) {
	b.to.Position, b.state = position, append([]byte{}, state...)
}

// Change says that a pair was old at the checkpoint before and is value now; nil stands for no pair. The table
// does not check old, and shows it to those who look at the older checkpoint. Each key may be changed
// once. A pair with equal old and value is ignored.
func (b *Build) Change(room byte, key, old, value []byte) {
	if old == nil && value == nil || old != nil && value != nil && bytes.Equal(old, value) {
		return
	}
	p := b.room(room)
	p.changes = append(p.changes, change{key, old, value})
	b.work(len(key) + len(old) + len(value))
}

// Remove deletes a pair, for a caller who does not know its old value: Prepare looks it up. The pair need not exist.
func (b *Build) Remove(room byte, key []byte) {
	p := b.room(room)
	p.removed = append(p.removed, key)
}

// Append adds a pair to an appending room. Its key must be above all keys that were ever there.
func (b *Build) Append(room byte, key, value []byte) {
	p := b.room(room)
	p.appended = append(p.appended, change{key: key, value: value})
	b.work(len(key) + len(value))
}

// Drop says that a pair of an appending room is unused from this checkpoint on. The next checkpoint deletes it.
func (b *Build) Drop(room byte, key []byte) {
	p := b.room(room)
	p.dropped = append(p.dropped, key)
}

// Cut says that all pairs of an appending room below a key are unused from this checkpoint on. The next checkpoint
// deletes them.
func (b *Build) Cut(room byte, key []byte) { b.room(room).cut = key }

// Abort gives the checkpoint up. After Commit it does nothing, so it can be deferred.
func (b *Build) Abort() {
	if b.done {
		return
	}
	b.done = true
	if b.tables != nil {
		b.tables.remove()
	}
	b.table.mu.Lock()
	defer b.table.mu.Unlock()
	delete(b.table.building, b.partition)
}

// Prepare does most of Commit's work, and changes nothing that can be seen. Commit calls it if the caller did not.
// Nothing may be gathered after it. Errors: what is wrong with what was gathered, wal.ErrCorrupt, wal.ErrFailed,
// wal.ErrClosed, what the file system said.
func (b *Build) Prepare() error {
	if b.done {
		return errors.New("snapshot: commit after the end of the checkpoint")
	}
	if b.prepared {
		return nil
	}
	if b.state == nil {
		return errors.New("snapshot: checkpoint without state")
	}
	if b.to.Position < b.from.Position {
		return fmt.Errorf("snapshot: checkpoint at position %d after one at %d", b.to.Position, b.from.Position)
	}
	for _, room := range []byte{roomBase, roomDrop, roomUndo} {
		if b.rooms[room] != nil {
			return fmt.Errorf("snapshot: room %q is the table's own", room)
		}
	}
	if err := b.table.View(b.partition, b.readOld); err != nil {
		return err
	}
	for room, p := range b.rooms {
		if err := p.sortAndCheck(b.work); err != nil {
			return fmt.Errorf("snapshot: room %q: %w", room, err)
		}
	}
	if b.size() > b.table.batchBytes {
		b.tables = &tableSink{build: b}
		if err := b.writeTo(b.tables); err != nil {
			return err
		}
		if err := b.tables.next(); err != nil {
			return err
		}
	}
	b.prepared = true
	return nil
}

// Commit makes the checkpoint the partition's newest, and the one before the older one, atomically; it is on disk when
// Commit returns. Errors: Prepare's; after wal.ErrFailed, wal.ErrClosed or an error of the file system the whole checkpoint may be
// there, which List shows.
func (b *Build) Commit() (Checkpoint, error) {
	defer b.Abort()
	if err := b.Prepare(); err != nil {
		return Checkpoint{}, err
	}
	var err error
	if b.tables == nil {
		err = b.table.store.Update(func(batch *pebble.Batch) error { return b.writeTo(batchSink{batch}) })
	} else {
		err = b.table.store.Ingest(b.tables.tables)
	}
	if err != nil {
		return Checkpoint{}, err
	}
	b.tables = nil // they are the store's now
	return b.to, nil
}

// readOld adds what has to be read from the table: the old header and state, what the checkpoint before gave up, the old
// values of removed pairs, and the last keys of rooms that are appended to.
func (b *Build) readOld(v *View) error {
	for key, value := range map[byte][]byte{headerKey: appendHeader(nil, b.to), stateKey: b.state} {
		old, err := v.copy(roomBase, []byte{key})
		if err != nil {
			return err
		}
		b.Change(roomBase, []byte{key}, old, value)
	}
	for _, how := range []byte{dropPair, dropBefore} {
		c, err := v.cursor(append(generation(b.partition, roomDrop, b.from.ID), how), nil, nil)
		for ; err == nil && c.ok; err = c.step() {
			p, key := b.room(c.key[0]), bytes.Clone(c.key[1:])
			if how == dropPair {
				p.dead = append(p.dead, key)
			} else {
				p.deadCut = key
			}
		}
		if cerr := c.close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
	}
	for room, p := range b.rooms {
		slices.SortFunc(p.removed, bytes.Compare)
		for _, key := range p.removed {
			old, err := v.copy(room, key)
			if err != nil {
				return err
			}
			if old != nil {
				p.changes = append(p.changes, change{key: key, old: old})
			}
		}
		if len(p.appended) > 0 {
			var err error
			if p.last, err = v.last(room); err != nil {
				return err
			}
		}
	}
	return nil
}

// sortAndCheck sorts and checks what a checkpoint changes in a room. It calls work with the bytes that it looked at.
func (p *pending) sortAndCheck(work func(bytes int)) error {
	if (len(p.changes) > 0 || len(p.removed) > 0) &&
		(len(p.appended) > 0 || len(p.dropped) > 0 || p.cut != nil || len(p.dead) > 0 || p.deadCut != nil) {
		return errors.New("changed and appended to")
	}
	for _, list := range [][]change{p.changes, p.appended} {
		slices.SortFunc(list, func(a, b change) int {
			work(len(a.key))
			return bytes.Compare(a.key, b.key)
		})
		for i := 1; i < len(list); i++ {
			if bytes.Equal(list[i-1].key, list[i].key) {
				return fmt.Errorf("key % x comes twice", list[i].key)
			}
		}
	}
	if len(p.appended) > 0 && bytes.Compare(p.appended[0].key, p.last) <= 0 {
		return fmt.Errorf("key % x is appended after % x", p.appended[0].key, p.last)
	}
	// What deadCut deletes need not be deleted by itself.
	p.dead = slices.DeleteFunc(p.dead, func(key []byte) bool { return bytes.Compare(key, p.deadCut) < 0 })
	slices.SortFunc(p.dropped, bytes.Compare)
	p.dropped = slices.CompactFunc(p.dropped, bytes.Equal)
	return nil
}

// size is about how many bytes will be written.
func (b *Build) size() int {
	const overhead = 2 * undoKeyPrefix // of keys and checksums
	n := 0
	for _, p := range b.rooms {
		for _, c := range p.changes {
			n += 2*len(c.key) + len(c.old) + len(c.value) + overhead
		}
		for _, c := range p.appended {
			n += len(c.key) + len(c.value) + overhead
		}
		n += (len(p.dropped) + len(p.dead)) * overhead
	}
	return n
}

func (b *Build) writeTo(s sink) error {
	w := writer{sink: s}
	rooms := slices.Sorted(maps.Keys(b.rooms))
	key := func(room byte, key []byte) []byte { return appendTableKey(w.buf[:0], b.partition, room, key) }
	for _, room := range rooms {
		p := b.rooms[room]
		w.next()
		if p.deadCut != nil {
			w.deleteRange(appendTableKey(nil, b.partition, room, nil), appendTableKey(nil, b.partition, room, p.deadCut))
		}
		for _, k := range p.dead {
			w.delete(key(room, k))
		}
		if len(p.appended) > 0 {
			w.next() // so that its table lies above all existing keys, and goes straight to the bottom level
		}
		for _, c := range p.appended {
			w.set(key(room, c.key), c.value)
		}
		for _, c := range p.changes {
			if c.value == nil {
				w.delete(key(room, c.key))
			} else {
				w.set(key(room, c.key), c.value)
			}
		}
	}

	w.next()
	if b.from.ID != 0 {
		w.deleteRange(generation(b.partition, roomUndo, b.from.ID), generation(b.partition, roomUndo, b.to.ID))
	}
	w.next()
	key = func(room byte, key []byte) []byte { return appendUndoKey(w.buf[:0], b.partition, b.to.ID, room, key) }
	for _, room := range rooms {
		p := b.rooms[room]
		if len(p.appended) > 0 {
			w.set(key(room, p.appended[0].key), []byte{undoAppended})
		}
		for _, c := range p.changes {
			if c.old == nil {
				w.set(key(room, c.key), []byte{undoAbsent})
			} else {
				w.set(key(room, c.key), []byte{undoValue}, c.old)
			}
		}
	}

	w.next()
	if b.from.ID != 0 {
		w.deleteRange(generation(b.partition, roomDrop, b.from.ID), generation(b.partition, roomDrop, b.to.ID))
	}
	w.next()
	for _, room := range rooms {
		for _, k := range b.rooms[room].dropped {
			w.set(appendDropKey(w.buf[:0], b.partition, b.to.ID, dropPair, room, k))
		}
	}
	for _, room := range rooms {
		if cut := b.rooms[room].cut; cut != nil {
			w.set(appendDropKey(w.buf[:0], b.partition, b.to.ID, dropBefore, room, cut))
		}
	}
	return w.err
}

// writer adds checksums to values, and keeps the first error.
type writer struct {
	sink sink
	buf  []byte // memory for a key and its value
	err  error
}

// set stores a value, given in parts, under a key that was built at the start of buf.
func (w *writer) set(key []byte, value ...[]byte) {
	w.buf = key
	for _, part := range value {
		w.buf = append(w.buf, part...)
	}
	w.buf = appendChecksum(w.buf)
	if w.err == nil {
		w.err = w.sink.set(w.buf[:len(key)], w.buf[len(key):])
	}
}

func (w *writer) delete(key []byte) {
	w.buf = key
	if w.err == nil {
		w.err = w.sink.delete(key)
	}
}

func (w *writer) deleteRange(from, to []byte) {
	if w.err == nil {
		w.err = w.sink.deleteRange(from, to)
	}
}

func (w *writer) next() {
	if w.err == nil {
		w.err = w.sink.next()
	}
}

// sink takes what a checkpoint writes. Between two calls of next, keys ascend.
type sink interface {
	set(key, value []byte) error
	delete(key []byte) error
	deleteRange(from, to []byte) error
	next() error
}

// batchSink writes into one batch of Pebble.
type batchSink struct{ batch *pebble.Batch }

func (s batchSink) set(key, value []byte) error       { return s.batch.Set(key, value, nil) }
func (s batchSink) delete(key []byte) error           { return s.batch.Delete(key, nil) }
func (s batchSink) deleteRange(from, to []byte) error { return s.batch.DeleteRange(from, to, nil) }
func (s batchSink) next() error                       { return nil }

// tableSink writes sorted tables, which are to be ingested. After each call of next the next write begins another table.
type tableSink struct {
	build  *Build
	tables []*wal.SSTable
	open   bool
	filled int // bytes in the last table
}

func (s *tableSink) table(size int) (*wal.SSTable, error) {
	if s.open && s.filled+size > s.build.table.tableBytes {
		if err := s.next(); err != nil {
			return nil, err
		}
	}
	if !s.open {
		t, err := s.build.table.store.NewSSTable()
		if err != nil {
			return nil, err
		}
		s.tables, s.open, s.filled = append(s.tables, t), true, 0
	}
	s.filled += size
	s.build.work(size)
	return s.tables[len(s.tables)-1], nil
}

func (s *tableSink) set(key, value []byte) error {
	t, err := s.table(len(key) + len(value))
	if err != nil {
		return err
	}
	return t.Set(key, value)
}

func (s *tableSink) delete(key []byte) error {
	t, err := s.table(len(key))
	if err != nil {
		return err
	}
	return t.Delete(key)
}

func (s *tableSink) deleteRange(from, to []byte) error {
	t, err := s.table(0)
	if err != nil {
		return err
	}
	return t.DeleteRange(from, to)
}

func (s *tableSink) next() error {
	if !s.open {
		return nil
	}
	s.open = false
	return s.tables[len(s.tables)-1].Close()
}

// remove removes the tables. It returns no error: a file that cannot be removed now is removed when the store opens.
func (s *tableSink) remove() {
	_ = s.next()
	for _, t := range s.tables {
		_ = t.Remove()
	}
}
