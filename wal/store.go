package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
)

// The classes of errors, for errors.Is.
var (
	ErrLocked   = errors.New("wal: in use by another carillon")           // the directory is open in this or another process
	ErrCorrupt  = errors.New("wal: corrupt")                              // bytes on disk are not those that were written, or are missing
	ErrVersion  = errors.New("wal: written by another version")           // a version byte that this binary does not read
	ErrFailed   = errors.New("wal: store failed, close it and open it")   // a write or sync failed; wraps the cause, e.g. syscall.ENOSPC
	ErrClosed   = errors.New("wal: store is closed")                      // Close was called
	ErrNotFound = errors.New("wal: not found")                            // no such record
	ErrConflict = errors.New("wal: another record has the same sequence") // a record was appended again with other bytes
	ErrOrder    = errors.New("wal: sequences of an append must ascend")   // or a sequence is 0
)

// LossError says that synced batches are missing from a store: the disk lost or damaged the end of Pebble's
// log or manifest. It is an ErrCorrupt. Records up to Last are there and intact. Options.AllowLoss opens it.
type LossError struct {
	Dir        string
	Last       uint64 // the log's last sequence now
	SyncedLast uint64 // the log's last sequence when the newest missing batch was synced
	Lost       uint64 // how many synced batches are missing: appends, truncations, updates
}

func (e *LossError) Error() string {
	return fmt.Sprintf("wal: corrupt: %q lost %d synced batches: the log ends at %d and was synced to %d",
		e.Dir, e.Lost, e.Last, e.SyncedLast)
}

// Is makes a LossError an ErrCorrupt.
func (e *LossError) Is(target error) bool { return target == ErrCorrupt }

// Store is a Pebble database. It is safe for concurrent use.
type Store struct {
	opts  Options
	fence *fence
	db    *pebble.DB
	popts *pebble.Options
	mark  *mark
	log   *Log
	cache *pebble.Cache
	lock  *pebble.Lock // nil if Pebble made the directory and holds the lock itself

	commitMu sync.Mutex // the order of counts is the order of commits
	count    uint64     // of the newest batch committed with a sync

	tables atomic.Uint64 // names of tables under construction

	useMu  sync.Mutex
	closed bool
	users  sync.WaitGroup // calls in progress; Close waits for them
	ending atomic.Bool    // tells long calls that Close waits
}

// tableDir holds tables under construction. What a crash left there is removed when the store opens.
const tableDir = "building"

// OpenStore opens the store in opts.Dir, or makes one. Errors: ErrLocked, ErrCorrupt (with the file, and the
// offset where Pebble names it; a *LossError for missing batches), ErrVersion, else what the file system said,
// e.g. syscall.ENOSPC.
func OpenStore(opts Options) (_ *Store, err error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	s := &Store{opts: opts, fence: newFence(opts.FS)}
	s.fence.pace.rest = opts.Rest
	defer func() {
		if err != nil {
			err = s.wrap(err)
			_ = s.release() // nothing can be lost: the store was never open
		}
	}()
	f := s.fence
	var synced markState
	// Check what can be checked before Pebble opens, because Pebble deletes files that a damaged manifest does
	// not list. If the directory is not there, Pebble makes it and locks it.
	if _, err := f.Stat(opts.Dir); err == nil {
		if s.lock, err = pebble.LockDirectory(opts.Dir, f); err != nil {
			return nil, lockError(opts.Dir, err)
		}
		if synced, err = readMark(f, opts.Dir); err != nil {
			return nil, err
		}
		if err := checkManifest(f, opts.Dir, synced.manifest); err != nil {
			return nil, err
		}
	}
	s.cache = pebble.NewCache(opts.CacheBytes)
	compactions := newScheduler()
	s.popts = opts.pebble(f, s.lock, s.cache, compactions)
	s.popts.EnsureDefaults()
	if s.db, err = pebble.Open(opts.Dir, s.popts); err != nil {
		return nil, openError(opts.Dir, err)
	}
	tables := f.PathJoin(opts.Dir, tableDir)
	if err := errors.Join(f.RemoveAll(tables), f.MkdirAll(tables, 0o750)); err != nil {
		return nil, err
	}
	if err := s.checkFormat(); err != nil {
		return nil, err
	}
	if s.count, err = s.uint64At(countKey); err != nil {
		return nil, err
	}
	if s.log, err = openLog(s); err != nil {
		return nil, err
	}
	if s.count < synced.count {
		loss := &LossError{Dir: opts.Dir, Last: s.log.Last(), SyncedLast: synced.last, Lost: synced.count - s.count}
		if !opts.AllowLoss {
			return nil, loss
		}
		opts.Logger.Warn("opened with loss", "error", loss)
	}
	if s.mark, err = openMark(f, opts.Dir, s.count, s.log.Last()); err != nil {
		return nil, err
	}
	if s.count == 0 {
		b := s.db.NewBatch()
		if err := b.Set(formatKey, []byte{storeFormat}, nil); err != nil {
			return nil, err
		}
		if err := s.commit(b, nil)(); err != nil {
			return nil, err
		}
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	f.pace.store.Store(s)
	compactions.open()
	return s, nil
}

// lockError turns the error of a lock that is held into ErrLocked.
func lockError(dir string, err error) error {
	// Pebble has no error value for a lock that this process holds itself.
	if errors.Is(err, syscall.EAGAIN) || strings.Contains(err.Error(), "lock held by current process") {
		return fmt.Errorf("%w: data directory %q", ErrLocked, dir)
	}
	return err
}

// openError turns errors about files that are missing or of another size, which Pebble does not call corruption, into ErrCorrupt, that of
// a database of a newer Pebble into ErrVersion, and that of a lock that is held into ErrLocked.
func openError(dir string, err error) error {
	switch {
	case errors.Is(err, pebble.ErrDBNotPristine):
		return fmt.Errorf("%w: %s has no file marker.format-version.*", ErrCorrupt, dir)
	case strings.Contains(err.Error(), "unknown format major version"):
		return fmt.Errorf("%w: %w", ErrVersion, err)
	case errors.Is(err, fs.ErrNotExist), strings.Contains(err.Error(), "object size mismatch"):
		return fmt.Errorf("%w: %s: %w", ErrCorrupt, dir, err)
	}
	return lockError(dir, err)
}

func (s *Store) checkFormat() error {
	v, err := s.get(formatKey)
	if errors.Is(err, ErrNotFound) {
		return nil // new, or killed before its first commit
	}
	if err != nil {
		return err
	}
	if len(v) != 1 || v[0] == 0 {
		return fmt.Errorf("%w: format of %q is % x", ErrCorrupt, s.opts.Dir, v)
	}
	if v[0] < storeFormat {
		return fmt.Errorf("%w: data directory %q has store format %d, this binary reads %d: finish its jobs with the binary that wrote it, or put them into a new directory",
			ErrVersion, s.opts.Dir, v[0], storeFormat)
	}
	if v[0] > storeFormat {
		return fmt.Errorf("%w: data directory %q has store format %d, this binary reads %d",
			ErrVersion, s.opts.Dir, v[0], storeFormat)
	}
	return nil
}

// Close ends the store and frees its directory, also after it failed. It waits for calls in progress; a
// long Read or View returns ErrClosed at its next record. Calling it again does nothing.
func (s *Store) Close() error {
	s.ending.Store(true)
	s.useMu.Lock()
	if s.closed {
		s.useMu.Unlock()
		return nil
	}
	s.closed = true
	s.useMu.Unlock()
	s.users.Wait()
	err := s.release()
	if s.fence.err() != nil {
		return nil // the failure was reported already; what is only in memory is given up on purpose
	}
	return err
}

func (s *Store) release() error {
	var err error
	if s.db != nil {
		err = s.db.Close()
	}
	if s.mark != nil {
		err = errors.Join(err, s.mark.close())
	}
	if s.cache != nil {
		s.cache.Unref()
	}
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

// Metrics returns Pebble's metrics: levels, caches, compactions; nil once the store is closed.
func (s *Store) Metrics() *pebble.Metrics {
	if s.enter() != nil {
		return nil
	}
	defer s.leave()
	return s.db.Metrics()
}

// Failed is closed when a write or a sync has failed. From then on all calls return ErrFailed, and nothing on
// disk changes. What to do: Close, remove the cause (Err), and open the store again, in the same process if you like.
func (s *Store) Failed() <-chan struct{} { return s.fence.failed }

// Err is nil, or ErrFailed wrapping the first failure.
func (s *Store) Err() error { return s.fence.err() }

// Log returns the store's log.
func (s *Store) Log() *Log { return s.log }

// enter begins a call, and leave ends it: Close waits for the calls between them.
func (s *Store) enter() error {
	s.useMu.Lock()
	defer s.useMu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if err := s.fence.err(); err != nil {
		return err
	}
	s.users.Add(1)
	return nil
}

func (s *Store) leave() { s.users.Done() }

// interrupted ends long calls early.
func (s *Store) interrupted() error {
	if err := s.fence.err(); err != nil {
		return err
	}
	if s.ending.Load() {
		return ErrClosed
	}
	return nil
}

// wrap gives an error of Pebble its class. Once the store has failed, whatever follows is ErrFailed with the first cause.
func (s *Store) wrap(err error) error {
	if failed := s.fence.err(); failed != nil {
		return failed
	}
	return corruption(err)
}

// corruption turns Pebble's corruption errors into ErrCorrupt and adds the details that their texts leave out: the
// file, and for a log the offset.
func corruption(err error) error {
	if err == nil || !pebble.IsCorruptionError(err) || errors.Is(err, ErrCorrupt) {
		return err
	}
	var where string
	if info := pebble.ExtractDataCorruptionInfo(err); info != nil {
		where = " in " + info.Path
	}
	var detail interface {
		error
		ErrorDetail() string
	}
	if errors.As(err, &detail) {
		where += " (" + detail.ErrorDetail() + ")"
	}
	return fmt.Errorf("%w%s: %w", ErrCorrupt, where, err)
}

// commit puts the batch and its count into Pebble as one batch. The function it returns waits until that is on
// disk, makes v (if any) the log's durable view, and frees the batch. The caller of commit must have entered the store;
// the wait need not, because Pebble's Close ends pending syncs.
func (s *Store) commit(b *pebble.Batch, v *extent) (wait func() error) {
	s.commitMu.Lock()
	count := s.count + 1
	err := b.Set(countKey, binary.BigEndian.AppendUint64(nil, count), nil)
	if err == nil {
		// Unlike Apply, this returns a failed sync as an error (from SyncWait) instead of calling Fatalf.
		err = s.db.ApplyNoSyncWait(b, pebble.Sync)
	}
	if err == nil {
		s.count = count
		if v != nil {
			v.count = count
		}
	}
	s.commitMu.Unlock()
	if err != nil {
		s.fence.trip(err) // the caller's view of the log and Pebble's differ from here on
		return s.fence.err
	}
	return sync.OnceValue(func() error {
		if err := b.SyncWait(); err != nil {
			s.fence.trip(err)
		}
		if err := s.fence.err(); err != nil {
			return err
		}
		if v != nil {
			s.log.publish(v)
		}
		// If the store is closed, so is the mark; the batch is on disk all the same.
		if s.enter() == nil {
			defer s.leave()
			s.mark.advance(count, s.log.Last())
		}
		return b.Close()
	})
}

func (s *Store) get(key []byte) ([]byte, error) {
	v, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, s.wrap(err)
	}
	out := append([]byte(nil), v...)
	return out, closer.Close()
}

// uint64At returns 0 for a key that is not there.
func (s *Store) uint64At(key []byte) (uint64, error) {
	v, err := s.get(key)
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	if err == nil && len(v) != 8 {
		err = fmt.Errorf("%w: %q is % x", ErrCorrupt, key, v)
	}
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(v), nil
}

// Update writes one atomic batch that fill fills, and returns when it is on disk. It is for the
// rooms beside the log. Errors: fill's, ErrFailed, ErrClosed.
func (s *Store) Update(fill func(*pebble.Batch) error) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	b := s.db.NewBatch()
	if err := fill(b); err != nil {
		return errors.Join(err, b.Close())
	}
	return s.commit(b, nil)()
}

// Snapshot is what the store holds at one moment. Until Close, the store does not close.
type Snapshot struct {
	pebble.Reader
	store *Store
}

// Snapshot returns what the store holds now. What is read from it is valid only if a call of Next afterwards returns nil. Errors:
// ErrFailed, ErrClosed.
func (s *Store) Snapshot() (*Snapshot, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	return &Snapshot{s.db.NewSnapshot(), s}, nil
}

// Next must be called now and then while reading, and ends a long read early. Errors: ErrFailed, ErrClosed.
func (v *Snapshot) Next() error { return v.store.interrupted() }

// Wrap gives an error of reading its class: ErrCorrupt, ErrFailed or neither.
func (v *Snapshot) Wrap(err error) error {
	if err == nil {
		return nil
	}
	return v.store.wrap(err)
}

// Close ends the snapshot. Its iterators must have been closed. Errors: ErrFailed.
func (v *Snapshot) Close() error {
	defer v.store.leave()
	if err := v.Reader.Close(); err != nil {
		return v.store.wrap(err)
	}
	return v.store.fence.err()
}
