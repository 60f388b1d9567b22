package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2"

	"github.com/carillon-scheduler/carillon/wal"
)

// The classes of errors beside wal's.
var (
	ErrBusy         = errors.New("snapshot: a checkpoint of this partition is being written")
	ErrNoCheckpoint = errors.New("snapshot: no such checkpoint")
)

// Table holds the partitions' state as of their last checkpoints, in rooms of sorted pairs, which can be read one by
// one and in ranges. A checkpoint writes only what changed since the one before:
//
//	t := snapshot.OpenTable(store)            // of a store with wal.ProfileTable
//	b, err := t.Begin(partition)
//	b.State(position, scalars)
//	b.Change(room, key, old, value)           // for each pair that changed
//	b.Append(specs, key, spec)                // for each that is new and never changes
//	base, err := b.Commit()                   // one atomic step
//
//	err = t.View(partition, func(v *snapshot.View) error {
//		pointer, found, err := v.Get(snapshot.RoomIDs, id)
//		more, err := v.Scan(room, after, before, 256, load)
//		...
//	})
//
// What keys and values mean is the caller's business. A room is a byte of the caller's choice, except those
// named in this package (table_format.go). There are two kinds of rooms:
//
//   - pairs of a changing room are set and deleted, by Change and Remove;
//   - pairs of an appending room are immutable and come with ascending keys, by Append; they are given up one by
//     one with Drop, or from the front with Cut.
//
// # Two checkpoints
//
// The table is the newest checkpoint. Beside it is an undo of one step: the old values of the pairs that it changed. Older
// lays the undo over the table, and so shows the checkpoint before. Reads of the newest do not see the undo, and it costs
// one more copy of what changes. Of appended pairs the undo notes only where they begin, and pairs that are given up stay
// one step longer.
//
// Rejected: versions in the keys, since each scan would have to filter; two tables in turn, which would take twice the
// disk; hard links of Pebble's files, which would be thousands each time.
//
// # How a checkpoint gets in
//
// A large checkpoint is written as sorted tables beside the database, room by room, and ingested in one edit of Pebble's
// manifest. Its bytes go neither through Pebble's log nor through a memtable. Appended pairs, whose keys lie above all that
// is there, go straight to the bottom level and are written only once. A small checkpoint is one synced batch, because tables
// of a few kilobytes would go to the bottom level, too, where nothing would ever merge them.
//
// A Table is safe for concurrent use.
type Table struct {
	store      *wal.Store
	batchBytes int // the constant of that name, except in tests
	tableBytes int // sortedTableBytes, except in tests

	mu       sync.Mutex
	building map[uint16]bool // partitions with a Build or BulkLoad under way
}

// Checkpoint names a checkpoint in the table. The zero Checkpoint stands for none.
type Checkpoint struct {
	ID       uint64 // rises by one with each checkpoint of the partition
	Position uint64 // the log's sequence up to which the state has been applied
}

// OpenTable returns the table in a store.
func OpenTable(store *wal.Store) *Table {
	return &Table{store: store, batchBytes: batchBytes, tableBytes: sortedTableBytes, building: make(map[uint16]bool)}
}

// List returns a partition's checkpoints, newest first: none, one or two. Errors: wal.ErrCorrupt, wal.ErrVersion,
// wal.ErrFailed, wal.ErrClosed.
func (t *Table) List(partition uint16) ([]Checkpoint, error) {
	var list []Checkpoint
	err := t.View(partition, func(v *View) error {
		for v.ID != 0 {
			list = append(list, v.Checkpoint)
			if v.undo != 0 {
				return nil
			}
			if err := v.stepBack(); err != nil {
				return err
			}
		}
		return nil
	})
	return list, err
}

// Open returns a View of a partition's newest checkpoint, which does not change until it is closed. Until then the store does
// not close, and what is given up stays on disk. The View is for one goroutine. Errors: wal.ErrCorrupt,
// wal.ErrVersion, wal.ErrFailed, wal.ErrClosed.
func (t *Table) Open(partition uint16) (*View, error) {
	snap, err := t.store.Snapshot()
	if err != nil {
		return nil, err
	}
	v := &View{partition: partition, snap: snap, sum: xxhash.New()}
	if err := v.readBase(); err != nil {
		return nil, fmt.Errorf("partition %d: %w", partition, errors.Join(err, v.Close()))
	}
	return v, nil
}

// View calls read with a View of a partition's newest checkpoint, which does not change meanwhile. The View is closed when
// read returns, and is for one goroutine. Errors: read's, Open's.
func (t *Table) View(partition uint16, read func(*View) error) error {
	v, err := t.Open(partition)
	if err != nil {
		return err
	}
	err = read(v)
	if cerr := v.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("partition %d: %w", partition, v.snap.Wrap(err))
	}
	return nil
}

// Older is View for the checkpoint before the newest. Errors: View's, ErrNoCheckpoint if there is none.
func (t *Table) Older(partition uint16, read func(*View) error) error {
	return t.View(partition, func(v *View) error {
		if v.ID != 0 {
			if err := v.stepBack(); err != nil {
				return err
			}
		}
		if v.ID == 0 {
			return ErrNoCheckpoint
		}
		return read(v)
	})
}

// First returns the first partition that has something in the table; found is false if none has. Errors: wal.ErrFailed,
// wal.ErrClosed.
func (t *Table) First() (partition uint16, found bool, err error) {
	snap, err := t.store.Snapshot()
	if err != nil {
		return 0, false, err
	}
	defer func() { err = errors.Join(err, snap.Close()) }()
	it, err := snap.NewIter(&pebble.IterOptions{LowerBound: partitionPrefix(0), UpperBound: []byte{wal.TableRoom + 1}})
	if err != nil {
		return 0, false, snap.Wrap(err)
	}
	if found = it.First(); found {
		partition = binary.BigEndian.Uint16(it.Key()[1:])
	}
	return partition, found, snap.Wrap(it.Close())
}

// Clear deletes all pairs of a partition: the way out when they cannot be read. Errors: ErrBusy, wal.ErrFailed,
// wal.ErrClosed.
func (t *Table) Clear(partition uint16) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.building[partition] {
		return fmt.Errorf("%w: %d", ErrBusy, partition)
	}
	from := partitionPrefix(partition)
	return t.store.Update(func(b *pebble.Batch) error { return b.DeleteRange(from, successor(from), nil) })
}
