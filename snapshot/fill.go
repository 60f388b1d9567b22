package snapshot

import (
	"bytes"
	"errors"
	"fmt"
)

// ErrFilled is told by Table.Fill of a partition that has a checkpoint.
var ErrFilled = errors.New("snapshot: the partition is not empty")

// Fill writes a partition's first checkpoint from sorted pairs, in constant memory: each goes straight into a sorted
// table, and Commit ingests them all. It notes no pairs in the undo, as there is no checkpoint before. It ends with
// Commit or Abort, and is for one goroutine; those of other partitions may run beside it.
type Fill struct {
	build *Build // holds the partition
	sink  *tableSink
	w     writer
	room  byte
	last  []byte
	begun bool
}

// Fill begins to fill a partition. Errors: ErrBusy, ErrFilled, List's.
func (t *Table) Fill(partition uint16) (*Fill, error) {
	b, err := t.Begin(partition)
	if err != nil {
		return nil, err
	}
	if b.from.ID != 0 {
		b.Abort()
		return nil, fmt.Errorf("%w: %d", ErrFilled, partition)
	}
	s := &tableSink{build: b}
	return &Fill{build: b, sink: s, w: writer{sink: s}}, nil
}

// Set adds a pair. Rooms ascend, and keys in each. It keeps neither key nor value. Errors: a pair out of order, a
// room that is the table's own, wal.ErrFailed, wal.ErrClosed; after an error the Fill cannot be committed.
func (f *Fill) Set(room byte, key, value []byte) error {
	switch {
	case f.w.err != nil:
	case room == roomBase || room == roomDrop || room == roomUndo:
		f.w.err = fmt.Errorf("snapshot: room %q is the table's own", room)
	case f.begun && room == f.room && bytes.Compare(key, f.last) <= 0:
		f.w.err = fmt.Errorf("snapshot: room %q: key % x comes after % x", room, key, f.last)
	case f.begun && room < f.room:
		f.w.err = fmt.Errorf("snapshot: room %q comes after %q", room, f.room)
	}
	if f.w.err != nil {
		return f.w.err
	}
	if !f.begun || room != f.room {
		f.w.next() // the table's own rooms lie between
		f.room, f.begun = room, true
	}
	f.last = append(f.last[:0], key...)
	f.w.set(appendTableKey(f.w.buf[:0], f.build.partition, room, key), value)
	return f.w.err
}

// Commit makes what was set the partition's first checkpoint, in one atomic step that is on disk when it returns.
// Errors: Set's.
func (f *Fill) Commit(position uint64, state []byte) (Base, error) {
	if f.build.done {
		return Base{}, errors.New("snapshot: commit after the end of the checkpoint")
	}
	defer f.Abort()
	base, p := Base{ID: f.build.to.ID, Position: position}, f.build.partition
	f.w.next()
	f.w.set(appendTableKey(f.w.buf[:0], p, roomBase, []byte{headerKey}), appendHeader(nil, base))
	f.w.set(appendTableKey(f.w.buf[:0], p, roomBase, []byte{stateKey}), state)
	f.w.next()
	for _, key := range []byte{headerKey, stateKey} {
		f.w.set(appendUndoKey(f.w.buf[:0], p, base.ID, roomBase, []byte{key}), []byte{undoAbsent})
	}
	f.w.next()
	if f.w.err != nil {
		return Base{}, f.w.err
	}
	if err := f.build.table.store.Ingest(f.sink.tables); err != nil {
		return Base{}, err
	}
	f.sink.tables = nil // they are the store's now
	return base, nil
}

// Abort gives the checkpoint up. After Commit it does nothing, so it can be deferred.
func (f *Fill) Abort() {
	if f.build.done {
		return
	}
	f.sink.remove()
	f.build.Abort()
}
