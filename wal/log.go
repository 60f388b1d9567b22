package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Log is the node's log of records, ordered by sequence; gaps are allowed. One goroutine appends (Append,
// Submit) and any number read (First, Last, Get, Read, Size); Truncate may run beside both.
type Log struct {
	store *Store

	mu      sync.Mutex             // held from reading pending to the commit that changes it
	pending extent                 // with all that was submitted
	durable atomic.Pointer[extent] // with all that is on disk
}

// extent is how far the log reaches after the batch with this count.
type extent struct {
	count       uint64
	first, last uint64
}

func openLog(s *Store) (*Log, error) {
	l := &Log{store: s}
	v := extent{count: s.count}
	var err error
	if v.last, err = s.uint64At(lastKey); err != nil {
		return nil, err
	}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: logStart, UpperBound: logEnd})
	if err != nil {
		return nil, err
	}
	if it.First() {
		v.first, err = seqOf(it.Key())
	}
	if err == nil && it.Last() {
		var last uint64
		last, err = seqOf(it.Key())
		v.last = max(v.last, last)
	}
	if err = errors.Join(err, it.Error(), it.Close()); err != nil {
		return nil, err
	}
	l.pending = v
	l.durable.Store(&v)
	return l, nil
}

func seqOf(key []byte) (uint64, error) {
	if len(key) != logKeySize {
		return 0, fmt.Errorf("%w: log key % x", ErrCorrupt, key)
	}
	return binary.BigEndian.Uint64(key[1:]), nil
}

// publish makes v what readers see, unless they see a later view already: syncs end in the order of commits, but the
// goroutines that wait for them may go on in another order.
func (l *Log) publish(v *extent) {
	for {
		old := l.durable.Load()
		if v.count <= old.count || l.durable.CompareAndSwap(old, v) {
			return
		}
	}
}

// First is the smallest sequence in the log, 0 when it is empty.
func (l *Log) First() uint64 { return l.durable.Load().first }

// Last is the greatest sequence that was appended, whether truncated since or not; 0 when there was none.
// Only what is on disk counts.
func (l *Log) Last() uint64 { return l.durable.Load().last }

// Append adds records in one atomic batch and returns when they are on disk. Then the bytes may be reused.
//
// Sequences must ascend within a call. A record that is not above Last was read again from the stream. If the log does not have it, it
// is stored; if the log has it with the same bytes, nothing changes; if with other bytes, the error is ErrConflict, and nothing of the
// call is stored.
//
// Other errors: ErrOrder; ErrFailed (after the store is opened again, either all of the records are there or none);
// ErrClosed.
func (l *Log) Append(recs []Record) error {
	start := time.Now()
	done, size, err := l.submit(recs)
	if err == nil {
		err = done()
	}
	if err == nil && l.store.opts.OnSync != nil {
		l.store.opts.OnSync(time.Since(start), len(recs), size)
	}
	return err
}

// submit fixes the place of the records in the log; done returns when they are on disk, with Append's error. Syncs end in order.
func (l *Log) submit(recs []Record) (done func() error, size int, err error) {
	var last uint64
	for _, r := range recs {
		if r.Seq <= last {
			return nil, 0, fmt.Errorf("%w: %d after %d", ErrOrder, r.Seq, last)
		}
		last = r.Seq
		size += len(r.Data)
	}
	if err := l.store.enter(); err != nil {
		return nil, 0, err
	}
	defer l.store.leave()
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.pending
	b := l.store.db.NewBatchWithSize(size + len(recs)*(logKeySize+recordHeader+8) + 64)
	for _, r := range recs {
		if r.Seq <= l.pending.last {
			if known, err := l.known(r); err != nil {
				return nil, 0, errors.Join(err, b.Close())
			} else if known {
				continue
			}
		}
		op := b.SetDeferred(logKeySize, recordHeader+len(r.Data))
		putLogKey(op.Key, r.Seq)
		putRecord(op.Value, r)
		if err := op.Finish(); err != nil {
			return nil, 0, errors.Join(err, b.Close())
		}
		v.last = max(v.last, r.Seq)
		if v.first == 0 || r.Seq < v.first {
			v.first = r.Seq
		}
	}
	if b.Empty() && l.pending.count == l.durable.Load().count {
		return b.Close, size, nil // all records are on disk already
	}
	// A batch without new records must still be synced, because the batch that has them may not be on disk yet.
	wait := l.store.commit(b, &v)
	l.pending = v
	return wait, size, nil
}

// known says whether the log has the record already. Errors: ErrConflict if it has it with other bytes.
func (l *Log) known(r Record) (bool, error) {
	have, err := l.get(r.Seq)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err == nil && !bytes.Equal(have, r.Data) {
		err = fmt.Errorf("%w: %d", ErrConflict, r.Seq)
	}
	return err == nil, err
}

func (l *Log) get(seq uint64) ([]byte, error) {
	v, err := l.store.get(logKey(seq))
	if err != nil {
		return nil, err
	}
	return decodeRecord(seq, v)
}

// Get returns the data of a record. Errors: ErrNotFound, ErrCorrupt, ErrVersion, ErrFailed, ErrClosed.
func (l *Log) Get(seq uint64) ([]byte, error) {
	if err := l.store.enter(); err != nil {
		return nil, err
	}
	defer l.store.leave()
	if v := l.durable.Load(); v.first == 0 || seq < v.first || seq > v.last {
		return nil, fmt.Errorf("%w: record %d", ErrNotFound, seq)
	}
	data, err := l.get(seq)
	if failed := l.store.fence.err(); failed != nil {
		return nil, failed
	}
	if errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("%w: record %d", err, seq)
	}
	return data, err
}

// Read calls yield for the records from a sequence on, in ascending order, up to Last at the time of the call. The data
// is valid only during yield. Each record's checksum is verified before yield sees it. Errors: yield's,
// ErrCorrupt with the sequence or the file, ErrVersion, ErrFailed, ErrClosed.
func (l *Log) Read(from uint64, yield func(Record) error) error {
	if err := l.store.enter(); err != nil {
		return err
	}
	defer l.store.leave()
	upper := logEnd
	if last := l.Last(); last < math.MaxUint64 {
		upper = logKey(last + 1)
	}
	lower := logKey(from)
	if bytes.Compare(lower, upper) >= 0 {
		return nil
	}
	it, err := l.store.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return l.store.wrap(err)
	}
	err = l.read(it, yield)
	if cerr := it.Close(); err == nil && cerr != nil {
		err = l.store.wrap(cerr)
	}
	return err
}

func (l *Log) read(it *pebble.Iterator, yield func(Record) error) error {
	for ok := it.First(); ok; ok = it.Next() {
		seq, err := seqOf(it.Key())
		if err != nil {
			return err
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return l.store.wrap(err)
		}
		data, err := decodeRecord(seq, value)
		if err != nil {
			return err
		}
		if err := l.store.interrupted(); err != nil {
			return err
		}
		if err := yield(Record{Seq: seq, Data: data}); err != nil {
			return err
		}
	}
	if err := it.Error(); err != nil {
		return l.store.wrap(err)
	}
	return l.store.fence.err()
}

// Truncate drops the records below a sequence, atomically, and returns when that is on disk. Their space is
// freed later, when Pebble compacts. Last stays as it is. Errors: ErrFailed, ErrClosed, ErrCorrupt.
func (l *Log) Truncate(before uint64) error {
	wait, err := l.truncate(before)
	if err != nil {
		return err
	}
	return wait()
}

func (l *Log) truncate(before uint64) (wait func() error, err error) {
	if err := l.store.enter(); err != nil {
		return nil, err
	}
	defer l.store.leave()
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.pending
	if v.first == 0 || before <= v.first {
		return func() error { return nil }, nil
	}
	dropped := v.first
	if v.first, err = l.firstFrom(before); err != nil {
		return nil, l.store.wrap(err)
	}
	b := l.store.db.NewBatch()
	if err := errors.Join(
		b.DeleteRange(logKey(dropped), logKey(before), nil),
		b.Set(lastKey, binary.BigEndian.AppendUint64(nil, v.last), nil),
	); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	wait = l.store.commit(b, &v)
	l.pending = v
	return wait, nil
}

// firstFrom finds the smallest sequence at or above from; 0 if there is none.
func (l *Log) firstFrom(from uint64) (first uint64, err error) {
	it, err := l.store.db.NewIter(&pebble.IterOptions{LowerBound: logKey(from), UpperBound: logEnd})
	if err != nil {
		return 0, err
	}
	if it.First() {
		first, err = seqOf(it.Key())
	}
	return first, errors.Join(err, it.Error(), it.Close())
}
