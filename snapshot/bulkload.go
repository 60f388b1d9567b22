package snapshot

import (
	"bytes"
	"errors"
	"fmt"
)

// ErrNotEmpty is the error of Table.BulkLoad for a partition that has a checkpoint already.
var ErrNotEmpty = errors.New("snapshot: the partition is not empty")

// BulkLoad writes a partition's first checkpoint from sorted pairs, in constant memory: each pair goes straight into a sorted
// table, and Commit ingests these tables. The undo has no pairs, because there is no checkpoint before. A BulkLoad ends with
// Commit or Abort. It is for one goroutine; Fills of other partitions may run at the same time.
type BulkLoad struct {
	build *Build // holds the partition
	sink  *tableSink
	w     writer
	room  byte
	last  []byte
	begun bool
}

// BulkLoad begins to fill a partition. Errors: ErrBusy, ErrNotEmpty, List's.
func (t *Table) BulkLoad(partition uint16) (*BulkLoad, error) {
	b, err := t.Begin(partition)
	if err != nil {
		return nil, err
	}
	if b.from.ID != 0 {
		b.Abort()
		return nil, fmt.Errorf("%w: %d", ErrNotEmpty, partition)
	}
	s := &tableSink{build: b}
	return &BulkLoad{build: b, sink: s, w: writer{sink: s}}, nil
}

// Set adds a pair. Rooms must ascend, and so must the keys in each. Set keeps neither key nor value. Errors: a pair out of
// order, a room that is the table's own, wal.ErrFailed, wal.ErrClosed; after an error the BulkLoad cannot be committed.
func (f *BulkLoad) Set(room byte, key, value []byte) error {
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

// Commit makes the pairs that were set the partition's first checkpoint, atomically; it is on disk when Commit returns.
// Errors: Set's.
func (f *BulkLoad) Commit(position uint64, state []byte) (Checkpoint, error) {
	if f.build.done {
		return Checkpoint{}, errors.New("snapshot: commit after the end of the checkpoint")
	}
	defer f.Abort()
	base, p := Checkpoint{ID: f.build.to.ID, Position: position}, f.build.partition
	f.w.next()
	f.w.set(appendTableKey(f.w.buf[:0], p, roomBase, []byte{headerKey}), appendHeader(nil, base))
	f.w.set(appendTableKey(f.w.buf[:0], p, roomBase, []byte{stateKey}), state)
	f.w.next()
	for _, key := range []byte{headerKey, stateKey} {
		f.w.set(appendUndoKey(f.w.buf[:0], p, base.ID, roomBase, []byte{key}), []byte{undoAbsent})
	}
	f.w.next()
	if f.w.err != nil {
		return Checkpoint{}, f.w.err
	}
	if err := f.build.table.store.Ingest(f.sink.tables); err != nil {
		return Checkpoint{}, err
	}
	f.sink.tables = nil // they are the store's now
	return base, nil
}

// Abort gives the checkpoint up. After Commit it does nothing, so it can be deferred.
func (f *BulkLoad) Abort() {
	if f.build.done {
		return
	}
	f.sink.remove()
	f.build.Abort()
}
