package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/carillon-scheduler/carillon/wal"
)

const (
	// MaxChunk is the greatest length of a chunk in bytes. Why not larger: a reader holds one in memory and
	// Pebble's cache takes blocks of that size. Why not smaller: 20 bytes of key and header a chunk.
	MaxChunk = 1 << 20

	// kept is how many complete checkpoints stay: the newest, and the one to fall back on.
	kept = 2

	// tableBytes is where a checkpoint goes on in another table, so that none of them grows out of
	// proportion to what Pebble moves at once.
	tableBytes = 64 << 20
)

// The classes of errors beside wal's.
var (
	ErrBusy = errors.New("snapshot: a checkpoint of this partition is being written")
	ErrGone = errors.New("snapshot: no such checkpoint") // dropped since it was listed
)

// Checkpoints are the checkpoints in a store. It is safe for concurrent use.
type Checkpoints struct {
	store *wal.Store

	mu      sync.Mutex
	writing map[uint32]bool // partitions
}

// Info tells of a complete checkpoint.
type Info struct {
	Partition uint32
	ID        uint64 // rises by one with each checkpoint of the partition
	Position  uint64 // the log's sequence up to which the state has been applied
	Chunks    uint32
	Bytes     uint64 // of all chunks
	content   uint64 // hash of them
}

// Open returns the checkpoints of a store.
func Open(store *wal.Store) *Checkpoints {
	return &Checkpoints{store: store, writing: make(map[uint32]bool)}
}

// List returns a partition's complete checkpoints, newest first: at most two, or three after a crash between
// a Commit and its clean-up. Errors: wal.ErrCorrupt (of a summary), wal.ErrVersion, wal.ErrFailed, wal.ErrClosed.
func (c *Checkpoints) List(partition uint32) ([]Info, error) {
	var list []Info
	err := c.store.View(func(r pebble.Reader, _ func() error) (err error) {
		list, err = listIn(r, partition)
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// listIn steps from summary to summary, which are the last keys of their checkpoints, past the chunks.
func listIn(r pebble.Reader, partition uint32) (list []Info, err error) {
	lower := prefix(partition, 0)
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: lower})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	upper := append(prefix(partition, ^uint64(0)), summaryKey, 0) // just after the last possible summary
	for ok := it.SeekLT(upper); ok; ok = it.SeekLT(upper) {
		key := it.Key()
		if len(key) != prefixSize+1 || key[prefixSize] != summaryKey {
			return nil, fmt.Errorf("%w: checkpoint without summary at key % x", wal.ErrCorrupt, key)
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return nil, err
		}
		info, err := decodeSummary(key, value)
		id := binary.BigEndian.Uint64(key[1+4:])
		if err != nil {
			return nil, fmt.Errorf("%w: partition %d, checkpoint %d", err, partition, id)
		}
		info.Partition, info.ID = partition, id
		list = append(list, info)
		upper = prefix(partition, id)
	}
	return list, it.Error()
}

// Read calls yield for the chunks of a checkpoint in order; the bytes are valid only during yield. Each chunk's
// checksum is verified before yield sees it, and the whole (number, bytes, hash) after the last: what was built
// from the chunks counts only when Read has returned nil. Errors: yield's, wal.ErrCorrupt with the chunk,
// wal.ErrVersion, ErrGone, wal.ErrFailed, wal.ErrClosed.
func (c *Checkpoints) Read(info Info, yield func(chunk []byte) error) error {
	err := c.store.View(func(r pebble.Reader, next func() error) error {
		return readIn(r, info, next, yield)
	})
	if err != nil {
		return fmt.Errorf("partition %d, checkpoint %d: %w", info.Partition, info.ID, err)
	}
	return nil
}

func readIn(r pebble.Reader, info Info, next func() error, yield func(chunk []byte) error) (err error) {
	base := prefix(info.Partition, info.ID)
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: base, UpperBound: append(prefix(info.Partition, info.ID), summaryKey, 0)})
	if err != nil {
		return err
	}
	defer func() {
		if cerr := it.Close(); err == nil {
			err = cerr
		}
	}()
	// The summary first: it tells a checkpoint that is gone from one that is damaged.
	if !it.Last() {
		if err := it.Error(); err != nil {
			return err
		}
		return ErrGone
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return err
	}
	stored, err := decodeSummary(it.Key(), value)
	if err != nil {
		return err
	}
	whole := newContent()
	var chunks uint32
	var size uint64
	for ok := it.First(); ok && it.Key()[prefixSize] == chunkKey; ok = it.Next() {
		key := it.Key()
		if len(key) != prefixSize+1+4 || binary.BigEndian.Uint32(key[prefixSize+1:]) != chunks {
			return fmt.Errorf("%w: chunk %d is missing", wal.ErrCorrupt, chunks)
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("chunk %d: %w", chunks, err)
		}
		data, err := decodeChunk(key, value)
		if err != nil {
			return fmt.Errorf("chunk %d: %w", chunks, err)
		}
		if err := next(); err != nil {
			return err
		}
		if err := yield(data); err != nil {
			return err
		}
		whole.add(data)
		chunks++
		size += uint64(len(data))
	}
	if err := it.Error(); err != nil {
		return fmt.Errorf("chunk %d: %w", chunks, err)
	}
	if chunks != stored.Chunks || size != stored.Bytes || whole.d.Sum64() != stored.content {
		return fmt.Errorf("%w: %d chunks of %d bytes with hash %016x, summary says %d of %d with %016x",
			wal.ErrCorrupt, chunks, size, whole.d.Sum64(), stored.Chunks, stored.Bytes, stored.content)
	}
	return nil
}

// Writer writes one checkpoint. It ends with Commit or Abort. It is for one goroutine.
type Writer struct {
	c      *Checkpoints
	info   Info
	whole  content
	tables []*wal.Table
	filled int // bytes in the last table
	open   bool
	err    error // sticky
	done   bool
}

// Create begins a checkpoint of a partition at a position of the log. Errors: ErrBusy, List's, wal.ErrFailed.
func (c *Checkpoints) Create(partition uint32, position uint64) (*Writer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writing[partition] {
		return nil, fmt.Errorf("%w: %d", ErrBusy, partition)
	}
	list, err := c.drop(partition) // what a crash kept the last Commit from dropping
	if err != nil {
		return nil, err
	}
	id := uint64(1)
	if len(list) > 0 {
		id = list[0].ID + 1
	}
	c.writing[partition] = true
	return &Writer{c: c, info: Info{Partition: partition, ID: id, Position: position}, whole: newContent()}, nil
}

func (w *Writer) key(kind byte) []byte { return append(prefix(w.info.Partition, w.info.ID), kind) }

// Write adds a chunk of at most MaxChunk bytes, which may be reused when it returns. After an error only Abort
// makes sense. Errors: wal.ErrFailed, wal.ErrClosed.
func (w *Writer) Write(chunk []byte) error {
	if w.err == nil && w.done {
		w.err = errors.New("snapshot: write after the end of the checkpoint")
	}
	if w.err == nil && len(chunk) > MaxChunk {
		w.err = fmt.Errorf("snapshot: chunk of %d bytes, at most %d", len(chunk), MaxChunk)
	}
	if w.err != nil {
		return w.err
	}
	key := binary.BigEndian.AppendUint32(w.key(chunkKey), w.info.Chunks)
	if w.err = w.set(key, encodeChunk(key, chunk)); w.err != nil {
		return w.err
	}
	w.whole.add(chunk)
	w.info.Chunks++
	w.info.Bytes += uint64(len(chunk))
	return nil
}

func (w *Writer) set(key, value []byte) error {
	if w.open && w.filled+len(value) > tableBytes {
		if err := w.closeTable(); err != nil {
			return err
		}
	}
	if !w.open {
		t, err := w.c.store.NewTable()
		if err != nil {
			return err
		}
		w.tables = append(w.tables, t)
		w.open, w.filled = true, 0
	}
	w.filled += len(value)
	return w.tables[len(w.tables)-1].Set(key, value)
}

func (w *Writer) closeTable() error {
	w.open = false
	return w.tables[len(w.tables)-1].Close()
}

// Commit makes the checkpoint the partition's newest, atomically and on disk, and drops the older ones but
// one. After an error the checkpoint may or may not be there, whole. Errors: Write's.
func (w *Writer) Commit() error {
	if w.done {
		return errors.New("snapshot: commit after the end of the checkpoint")
	}
	if w.err != nil {
		w.Abort()
		return w.err
	}
	w.info.content = w.whole.d.Sum64()
	key := w.key(summaryKey)
	err := w.set(key, encodeSummary(key, w.info))
	if err == nil {
		err = w.closeTable()
	}
	if err == nil {
		err = w.c.store.Ingest(w.tables)
	}
	if err != nil {
		w.Abort()
		return err
	}
	_, err = w.c.drop(w.info.Partition)
	w.end()
	return err
}

// Abort gives the checkpoint up. After Commit it does nothing, so it can be deferred. It has no error: a
// file that cannot be removed now goes when the store opens.
func (w *Writer) Abort() {
	if w.done {
		return
	}
	if w.open {
		_ = w.closeTable()
	}
	for _, t := range w.tables {
		_ = t.Remove()
	}
	w.end()
}

func (w *Writer) end() {
	w.done = true
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	delete(w.c.writing, w.info.Partition)
}

// drop removes all but the newest checkpoints and returns these.
func (c *Checkpoints) drop(partition uint32) ([]Info, error) {
	list, err := c.List(partition)
	if err != nil || len(list) <= kept {
		return list, err
	}
	oldest, newest := list[len(list)-1], list[:kept]
	return newest, c.store.Update(func(b *pebble.Batch) error {
		return b.DeleteRange(prefix(partition, oldest.ID), prefix(partition, newest[kept-1].ID), nil)
	})
}
