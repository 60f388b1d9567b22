package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carillon-scheduler/carillon/snapshot"
)

// SaveOptions say what to save, and how. Only Partitions is required.
type SaveOptions struct {
	Partitions int // how many the service has; they are numbered from 0
	Prefix     string
	Versions   Versions
	Now        time.Time // when the save begins; zero: now

	// Only names the partitions to save, ascending, and makes the snapshot a part. nil: all.
	Only []uint16

	// FindPart says where to find a partition that the table does not have: an archive, and a part in it, from which
	// the partition is copied block by block. A nil Target says that the table has it. If FindPart is nil, the table has
	// all of them.
	FindPart func(ctx context.Context, partition uint16) (t Target, part string, err error)

	// Time reads from a partition's state the time up to which it has fired. nil: the manifest does not have it.
	Time func(partition uint16, state []byte) (time.Time, error)

	// Share is the part of the time in which a save works, 1 by default; 0.5 is at most half a core. It works in bursts
	// of about a millisecond.
	Share float64

	// Recheck compares existing blocks with what would be written, and writes those again that differ: that
	// repairs an archive in which Verify found damage. Without it only the sizes are compared.
	Recheck bool

	Progress func(Progress) // called after each block, if not nil

	sizes sizes // of blocks; zero: the default
}

// Progress is how far a save, verification or restore is.
type Progress struct {
	Done, Total uint64 // raw bytes. Of a save, Total is an estimate from the snapshot before; 0: not known
	Pairs       uint64
	Blocks      uint64
}

// Validate fills in the defaults and refuses what is impossible.
func (o *SaveOptions) Validate() error {
	if o.Partitions < 1 || o.Partitions > 1<<16 {
		return fmt.Errorf("snapshot archive: SaveOptions.Partitions is %d", o.Partitions)
	}
	if o.Share == 0 {
		o.Share = 1
	}
	if o.Share < 0 || o.Share > 1 {
		return fmt.Errorf("snapshot archive: SaveOptions.Share is %g, must be above 0 and at most 1", o.Share)
	}
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	if o.sizes == (sizes{}) {
		o.sizes = defaultSizes
	}
	return nil
}

// Saved says what a save did.
type Saved struct {
	Manifest  *Manifest
	Written   int   // blocks that were written
	Bytes     int64 // of these
	Reused    int   // blocks that the archive had already
	Rewritten int   // of Written: blocks that the archive had, but with other bytes
}

// Save writes a snapshot of a table's newest checkpoints. Each partition is consistent by itself, at its own position:
// all of its pairs are read from one state of the table, whatever is committed meanwhile. Blocks that the archive has are
// not written again. So a save is incremental against all that was saved before, and yet each snapshot stands alone.
//
// When Save returns nil, the snapshot is durable. When Save or the process fails, there is no snapshot, except if that happens at the
// very end, when the manifest is synced and the lock released. The next save uses the blocks written so far, or Prune removes them.
//
// Errors: ErrLocked, ErrNotArchive, snapshot.ErrNoCheckpoint for a partition without a checkpoint, wal.ErrCorrupt, wal.ErrFailed,
// wal.ErrClosed of the table, what the target said.
func Save(ctx context.Context, table *snapshot.Table, t Target, o SaveOptions) (_ *Saved, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	lock, err := t.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lock.Release(ctx)) }()
	s := &saver{ctx: ctx, target: t, o: o, pace: newPace(o.Share), there: make(map[string]int64)}
	s.build.sizes = o.sizes
	s.saved.Manifest = &Manifest{
		Format: formatWhole, Time: o.Now.UTC().Truncate(time.Millisecond), Versions: o.Versions, Prefix: o.Prefix,
	}
	blocks, err := blocksIn(ctx, t)
	if err != nil {
		return nil, err
	}
	for _, b := range blocks {
		s.there[b.Name] = b.Bytes
	}
	if before := newestOf(ctx, t, o.Prefix); before != nil {
		s.progress.Total = before.Totals().Raw                 // a guess
		if m := s.saved.Manifest; m.Time.Before(before.Time) { // the clock was set back; but the last one saved must be the newest
			m.Time = before.Time.Add(time.Millisecond)
		}
	}
	only := o.Only
	if only == nil {
		for p := range o.Partitions {
			only = append(only, uint16(p))
		}
	} else {
		s.saved.Manifest.Format, s.saved.Manifest.Part = FormatVersion, true
	}
	for _, p := range only {
		if err := s.savePartition(table, p); err != nil {
			return nil, err
		}
	}
	if err := s.finish(lock); err != nil {
		return nil, err
	}
	return &s.saved, nil
}

// saver is a save under way.
type saver struct {
	ctx      context.Context
	target   Target
	o        SaveOptions
	pace     *pace
	there    map[string]int64 // blocks in the archive
	build    builder
	saved    Saved
	progress Progress
}

// finish makes the snapshot exist: it syncs the blocks before it writes the manifest.
func (s *saver) finish(lock Lock) error {
	file, err := s.saved.Manifest.encode()
	if err != nil {
		return err
	}
	if err := s.target.Sync(s.ctx); err != nil {
		return err
	}
	if err := lock.Check(s.ctx); err != nil {
		return err
	}
	if err := s.target.Put(s.ctx, manifestName(s.saved.Manifest.ID), file); err != nil {
		return err
	}
	return s.target.Sync(s.ctx)
}

// savePartition saves a partition, from the table or from elsewhere.
func (s *saver) savePartition(table *snapshot.Table, partition uint16) error {
	if s.o.FindPart != nil {
		t, part, err := s.o.FindPart(s.ctx, partition)
		if err != nil {
			return err
		}
		if t != nil {
			return s.copyPartition(t, part, partition)
		}
	}
	return table.View(partition, func(v *snapshot.View) error { return s.saveView(partition, v) })
}

// copyPartition saves a partition from a snapshot in another archive.
func (s *saver) copyPartition(from Target, id string, partition uint16) error {
	m, p, err := partOf(s.ctx, from, id, partition)
	if err != nil {
		return err
	}
	if m.Prefix != s.o.Prefix {
		return fmt.Errorf("snapshot archive: %s is of a service with the prefix %q, not %q", from.Path(manifestName(id)), m.Prefix, s.o.Prefix)
	}
	for r := range p.Rooms {
		for i := range p.Rooms[r].Blocks {
			b := &p.Rooms[r].Blocks[i]
			file, err := from.Get(s.ctx, b.Name(), b.Bytes)
			if err != nil {
				return err
			}
			if blockSum(file) != b.Sum {
				return damaged(from.Path(b.Name()), 0, "the sha256 is another")
			}
			if err := s.put(b, file); err != nil {
				return err
			}
			if err := s.pace.step(s.ctx, int(b.Raw)); err != nil {
				return err
			}
		}
	}
	s.saved.Manifest.Partitions = append(s.saved.Manifest.Partitions, *p)
	return nil
}

// saveView saves what a view sees.
func (s *saver) saveView(number uint16, v *snapshot.View) error {
	if v.ID == 0 {
		return fmt.Errorf("%w: nothing to save", snapshot.ErrNoCheckpoint)
	}
	state, err := v.State()
	if err != nil {
		return err
	}
	m := s.saved.Manifest
	p := Partition{Partition: number, Position: v.Position, State: state}
	if s.o.Time != nil {
		if p.Time, err = s.o.Time(p.Partition, state); err != nil {
			return err
		}
		p.Time = p.Time.UTC()
	}
	rooms, err := v.Rooms()
	if err != nil {
		return err
	}
	for _, room := range rooms {
		r, err := s.room(v, room)
		if err != nil {
			return err
		}
		if r.Pairs > 0 {
			p.Rooms = append(p.Rooms, r)
		}
	}
	m.Partitions = append(m.Partitions, p)
	return nil
}

func (s *saver) room(v *snapshot.View, room byte) (Room, error) {
	r := Room{Room: string(rune(room))}
	if room <= ' ' || room > '~' {
		return r, fmt.Errorf("snapshot archive: room %q is no visible character", room)
	}
	s.build.begin(room)
	end := func() error {
		file, info := s.build.end()
		b := Block{First: info.first, Pairs: info.pairs, Raw: info.raw, Bytes: int64(len(file)), Sum: blockSum(file)}
		r.Pairs += b.Pairs
		r.Raw += b.Raw
		r.Blocks = append(r.Blocks, b)
		err := s.put(&b, file)
		s.build.begin(room)
		return err
	}
	err := v.Live(room, func(key, value []byte) error {
		if len(key)+len(value) > maxPair {
			return fmt.Errorf("snapshot archive: pair of %d bytes at key % x, at most %d", len(key)+len(value), key, maxPair)
		}
		if s.build.add(key, value) {
			return end()
		}
		return s.pace.step(s.ctx, len(key)+len(value))
	})
	if err == nil && s.build.info.pairs > 0 {
		err = end()
	}
	return r, err
}

// put writes a block, unless the archive has it.
func (s *saver) put(b *Block, file []byte) error {
	s.progress.Blocks++
	s.progress.Pairs += b.Pairs
	s.progress.Done += b.Raw
	if s.o.Progress != nil {
		s.o.Progress(s.progress)
	}
	name := b.Name()
	size, there := s.there[name]
	if there {
		same, err := s.same(name, size, file)
		if err != nil {
			return err
		}
		if same {
			s.saved.Reused++
			return s.ctx.Err()
		}
		s.saved.Rewritten++
	}
	if err := s.target.Put(s.ctx, name, file); err != nil {
		return err
	}
	s.there[name] = b.Bytes
	s.saved.Written++
	s.saved.Bytes += b.Bytes
	return s.ctx.Err()
}

// same tells whether a block in the archive is the same as what would be written.
func (s *saver) same(name string, size int64, file []byte) (bool, error) {
	if size != int64(len(file)) || !s.o.Recheck {
		return size == int64(len(file)), nil
	}
	there, err := s.target.Get(s.ctx, name, size)
	if _, damage := errors.AsType[*Damage](err); damage || errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return bytes.Equal(there, file), err
}
