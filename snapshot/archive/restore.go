package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"runtime"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/wal"
)

// TableDir is where a restored data directory has its table.
const TableDir = "jobs"

// RestoreOptions say how a snapshot is restored. The zero value restores it as it is.
type RestoreOptions struct {
	FS     vfs.FS // nil: the disk
	Logger *slog.Logger

	// Partitions is how many partitions the table gets; 0: as many as the snapshot has.
	Partitions int

	// Prepare, if not nil, is called before anything else, once the directory is locked against other restores.
	Prepare func() error

	// Route says where a pair goes, or that it is left out (keep is false). nil: everything stays where it is. It is called
	// room by room. In a room it gets the pairs of each partition in the order of their keys, and merges the partitions by
	// the new keys of their next pairs. So the new keys must be unique in their new partition, and either ascend among the
	// pairs from one old partition as the old keys do, or ascend from call to call among the pairs to one new partition.
	// Other orders are an error. Route is called by one goroutine. Its arguments are valid during the call; what it returns
	// may be part of them, and is copied before the next call.
	Route func(from uint16, room byte, key, value []byte) (to Routed, keep bool, err error)

	// States makes the positions and states of the new partitions, after all pairs were routed. nil: as they were,
	// which needs the same number of partitions.
	States func() ([]State, error)

	// Finish adds what else belongs into the data directory, before that is put in its place. It gets the directory under
	// construction, with the table closed. It must sync what it writes.
	Finish func(dir string) error

	Progress func(Progress) // called after each block, by one goroutine at a time, if not nil
}

// Routed is a pair in its new place. Its room does not change.
type Routed struct {
	Partition  uint16
	Key, Value []byte
}

// State has the arguments of snapshot.Build.State.
type State struct {
	Position uint64
	State    []byte
}

// Restore makes dir a data directory with a snapshot's table; id "" is the newest snapshot (Get). dir must be empty or absent. It
// gets the whole table or stays as it was: all is built in dir+".tmp", verified byte for byte while it is read,
// synced, and renamed. The next Restore removes what an interrupted one left there. Errors: ErrNotEmpty, also if dir+".tmp" has
// something that is not a restore's; ErrLocked while another Restore uses the same directory; ErrNotFound, ErrAmbiguous, ErrPart,
// *Damage, wal.ErrVersion, wal.ErrFailed with what the file system said; those of Prepare, Route, States and Finish.
func Restore(ctx context.Context, t Target, id, dir string, o RestoreOptions) (_ *Manifest, err error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	m, err := Get(ctx, t, id)
	if err != nil {
		return nil, err
	}
	if o.Partitions == 0 {
		o.Partitions = len(m.Partitions)
	}
	if o.Partitions < 1 || o.Partitions > 1<<16 || o.Partitions != len(m.Partitions) && (o.Route == nil || o.States == nil) {
		return nil, fmt.Errorf("snapshot archive: restore of %d partitions into %d", len(m.Partitions), o.Partitions)
	}
	if err := checkEmpty(o.FS, dir); err != nil {
		return nil, err
	}
	tmp := dir + ".tmp"
	lock, err := lockBuildDir(o.FS, tmp)
	if err != nil {
		return nil, err
	}
	// The lock is released last: by then the next restore finds either a complete directory without the lock's file, or one
	// that it may remove.
	defer func() { err = errors.Join(err, lock.Close()) }()
	r := &restorer{target: t, manifest: m, o: o}
	r.tell = r.count
	r.progress.Total = m.Totals().Raw
	if o.Prepare != nil {
		err = o.Prepare()
	}
	if err == nil {
		err = r.build(ctx, tmp)
	}
	if err == nil {
		err = commit(o.FS, tmp, dir)
	}
	if err != nil {
		abandon(o.FS, tmp)
		return nil, err
	}
	return m, nil
}

// checkEmpty fails if there is anything in a directory.
func checkEmpty(fsys vfs.FS, dir string) error {
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("%w: %s", ErrNotEmpty, dir)
	}
	return err
}

// restoring is the lock's file in a directory under construction. Neither archives nor stores have a file of that name.
const restoring = "RESTORING"

// checkLeftover fails if a directory has something that a restore did not leave: what a restore leaves has the lock's file with it.
func checkLeftover(fsys vfs.FS, tmp string) error {
	names, err := fsys.List(tmp)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && len(names) > 0 && !slices.Contains(names, restoring) {
		err = fmt.Errorf("%w: %s, where it would be built, is not what a restore left", ErrNotEmpty, tmp)
	}
	return err
}

// lockBuildDir makes an empty directory and locks it against other restores. The lock's file is durable before anything else is written
// there.
func lockBuildDir(fsys vfs.FS, tmp string) (io.Closer, error) {
	if err := checkLeftover(fsys, tmp); err != nil {
		return nil, err
	}
	if err := fsys.MkdirAll(tmp, dirPerm); err != nil {
		return nil, err
	}
	lock, err := lockPath(fsys, fsys.PathJoin(tmp, restoring))
	if err != nil {
		return nil, err
	}
	if err = empty(fsys, tmp); err == nil {
		err = syncDir(fsys, tmp)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// empty removes everything in a directory except the lock.
func empty(fsys vfs.FS, tmp string) error {
	names, err := fsys.List(tmp)
	for _, name := range names {
		if name != restoring {
			err = errors.Join(err, fsys.RemoveAll(fsys.PathJoin(tmp, name)))
		}
	}
	return err
}

// abandon removes what was being built. It returns no error: the next restore removes what cannot be removed now.
func abandon(fsys vfs.FS, tmp string) {
	if empty(fsys, tmp) != nil {
		return // the lock's file stays, to show that the rest is a restore's
	}
	_ = syncDir(fsys, tmp) // if that fails, as on a full disk, the lock's file is removed all the same
	_ = fsys.Remove(fsys.PathJoin(tmp, restoring))
	_ = fsys.Remove(tmp)
}

// commit renames what was built. The lock's file is renamed with it, and stays as an empty file if the process
// ends before it is removed, or it cannot be removed.
func commit(fsys vfs.FS, tmp, dir string) error {
	if err := syncDir(fsys, tmp); err != nil {
		return err
	}
	if err := checkEmpty(fsys, dir); err != nil {
		return err
	}
	if err := fsys.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := fsys.Rename(tmp, dir); err != nil {
		return err
	}
	if err := syncParent(fsys, dir); err != nil {
		return fmt.Errorf("snapshot archive: %s is whole, but may be gone again after a loss of power: %w", dir, err)
	}
	_ = fsys.Remove(fsys.PathJoin(dir, restoring))
	return nil
}

// restorer is a restore under way.
type restorer struct {
	target   Target
	manifest *Manifest
	o        RestoreOptions
	tell     func(*Block) // called for each block read, if not nil
	pace     *pace        // nil: as fast as possible

	mu       sync.Mutex
	progress Progress
}

// build fills a new table, closes it, and calls Finish.
func (r *restorer) build(ctx context.Context, tmp string) (err error) {
	store, err := wal.OpenStore(wal.Options{
		Dir: r.o.FS.PathJoin(tmp, TableDir), FS: r.o.FS, Profile: wal.ProfileTable, Logger: r.o.Logger,
	})
	if err != nil {
		return err
	}
	table := snapshot.OpenTable(store)
	if r.o.Route == nil {
		err = r.straight(ctx, table)
	} else {
		err = r.routed(ctx, table)
	}
	if cerr := store.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = syncDir(r.o.FS, r.o.FS.PathJoin(tmp, TableDir))
	}
	if err == nil && r.o.Finish != nil {
		err = r.o.Finish(tmp)
	}
	return err
}

// states returns the positions and states of the new partitions.
func (r *restorer) states() ([]State, error) {
	var states []State
	if r.o.States != nil {
		var err error
		if states, err = r.o.States(); err != nil {
			return nil, err
		}
	} else {
		for _, p := range r.manifest.Partitions {
			states = append(states, State{Position: p.Position, State: p.State})
		}
	}
	if len(states) != r.o.Partitions {
		return nil, fmt.Errorf("snapshot archive: states of %d partitions, want %d", len(states), r.o.Partitions)
	}
	return states, nil
}

// straight restores each partition by itself, a few at a time.
func (r *restorer) straight(ctx context.Context, table *snapshot.Table) error {
	states, err := r.states()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan *Partition)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for p := range next {
				if err := r.partition(ctx, table, p, states[p.Partition]); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range r.manifest.Partitions {
		select {
		case next <- &r.manifest.Partitions[i]:
		case <-ctx.Done():
		}
	}
	close(next)
	workers.Wait()
	return context.Cause(ctx)
}

func (r *restorer) partition(ctx context.Context, table *snapshot.Table, p *Partition, s State) error {
	fill, err := table.BulkLoad(p.Partition)
	if err != nil {
		return err
	}
	defer fill.Abort()
	for i := range p.Rooms {
		st := r.open(ctx, p.Partition, &p.Rooms[i])
		for st.next() && err == nil {
			if err = fill.Set(st.room.Room[0], st.key, st.value); err == nil && r.pace != nil {
				err = r.pace.step(ctx, len(st.key)+len(st.value))
			}
		}
		if err = errors.Join(err, st.close()); err != nil {
			return err
		}
	}
	_, err = fill.Commit(s.Position, s.State)
	return err
}

// stream walks over the pairs of a room. Another goroutine reads and checks the blocks, a little ahead.
type stream struct {
	partition uint16
	room      *Room
	blocks    chan []byte // the raw bytes of blocks
	cancel    context.CancelFunc
	reading   sync.WaitGroup
	readErr   error // valid once blocks is closed
	err       error

	raw        []byte // what is left of the block
	key, value []byte // of the pair; parts of the block
}

func (r *restorer) open(ctx context.Context, partition uint16, room *Room) *stream {
	ctx, cancel := context.WithCancel(ctx)
	s := &stream{partition: partition, room: room, blocks: make(chan []byte, 1), cancel: cancel}
	s.reading.Go(func() {
		defer close(s.blocks)
		s.readErr = r.read(ctx, s)
	})
	return s
}

// read sends a room's blocks.
func (r *restorer) read(ctx context.Context, s *stream) error {
	file := r.target.Path(manifestName(r.manifest.ID))
	c := roomCheck{room: s.room.Room[0]}
	for i := range s.room.Blocks {
		b := &s.room.Blocks[i]
		raw, info, err := fetch(ctx, r.target, b)
		if err != nil {
			return cmp.Or(r.pruned(ctx, err), err)
		}
		if err := c.take(b, info); err != nil {
			return damaged(file, 0, "partition %d, room %q, block %s: %v", s.partition, s.room.Room, b.Sum, err)
		}
		select {
		case s.blocks <- raw:
		case <-ctx.Done():
			return ctx.Err()
		}
		if r.tell != nil {
			r.tell(b)
		}
	}
	if err := c.end(s.room); err != nil {
		return damaged(file, 0, "partition %d, room %q: %v", s.partition, s.room.Room, err)
	}
	return nil
}

// pruned returns ErrNotFound if a block is missing because the snapshot was pruned meanwhile: a prune does not wait for readers.
func (r *restorer) pruned(ctx context.Context, err error) error {
	if errors.Is(err, wal.ErrCorrupt) {
		if _, err := get(ctx, r.target, r.manifest.ID); errors.Is(err, ErrNotFound) {
			return prunedMeanwhile(r.manifest.ID)
		}
	}
	return nil
}

func (r *restorer) count(b *Block) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.progress.Blocks++
	r.progress.Pairs += b.Pairs
	r.progress.Done += b.Raw
	if r.o.Progress != nil {
		r.o.Progress(r.progress)
	}
}

// next steps to the next pair; false at the end, and after an error.
func (s *stream) next() bool {
	for len(s.raw) == 0 {
		raw, ok := <-s.blocks
		if !ok {
			s.err = s.readErr
			return false
		}
		s.raw = raw
	}
	var ok bool
	if s.key, s.value, s.raw, ok = cutPair(s.raw); !ok {
		s.err = fmt.Errorf("snapshot archive: block of room %q changed in memory", s.room.Room) // since it was checked
	}
	return ok
}

// close ends the stream, wherever it is, and returns its error.
func (s *stream) close() error {
	s.cancel()
	s.reading.Wait()
	return s.err
}
