package archive

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/carillon-scheduler/carillon/wal"
)

// Verified says what a verification looked at and found.
type Verified struct {
	Snapshots int
	Blocks    int   // each once, however many snapshots name it
	Bytes     int64 // of their files
	Pairs     uint64
	Unused    int // blocks that no snapshot names: left by an interrupted save or Prune
	Problems  []Problem
}

// Problem is something that keeps a snapshot from being restored.
type Problem struct {
	Snapshots []string // IDs
	Err       error    // *Damage, wal.ErrVersion
}

// Verify reads snapshots with all of their blocks, and checks every byte. Without ids it verifies all snapshots. It goes on after
// a problem. Errors: ErrNotFound for a snapshot that is not there, what the target said.
func Verify(ctx context.Context, t Target, ids []string, progress func(Progress)) (*Verified, error) {
	v := &verifier{target: t, progress: progress, named: make(map[string][]string)}
	if err := v.load(ctx, ids); err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		blocks, err := blocksIn(ctx, t)
		if err != nil {
			return nil, err
		}
		for _, b := range blocks {
			if _, named := v.named[b.Name]; !named {
				v.found.Unused++
			}
		}
	}
	if err := v.read(ctx); err != nil {
		return nil, err
	}
	for _, m := range v.manifests {
		v.compare(m)
	}
	if err := v.pruned(ctx, len(ids) > 0); err != nil {
		return nil, err
	}
	slices.SortStableFunc(v.found.Problems, func(a, b Problem) int { return cmp.Compare(a.Err.Error(), b.Err.Error()) })
	return &v.found, nil
}

// verifier is a verification under way.
type verifier struct {
	target    Target
	progress  func(Progress)
	manifests []*Manifest
	order     []*Block            // the blocks to read, each once
	named     map[string][]string // by a block's name: the IDs of the snapshots that name it

	mu    sync.Mutex
	done  Progress
	infos map[string]blockInfo // of the blocks that are whole
	found Verified
}

func (v *verifier) problem(err error, snapshots ...string) {
	v.found.Problems = append(v.found.Problems, Problem{Snapshots: snapshots, Err: err})
}

// load reads the manifests.
func (v *verifier) load(ctx context.Context, ids []string) error {
	var entries []Entry
	if len(ids) == 0 {
		var err error
		if entries, err = List(ctx, v.target); err != nil {
			return err
		}
	}
	for _, id := range ids {
		m, err := get(ctx, v.target, id)
		if err != nil && !errors.Is(err, wal.ErrCorrupt) && !errors.Is(err, wal.ErrVersion) {
			return err
		}
		entries = append(entries, Entry{ID: id, Manifest: m, Err: err})
	}
	v.infos = make(map[string]blockInfo)
	v.found.Snapshots = len(entries)
	for _, e := range entries {
		if e.Err != nil {
			v.problem(e.Err, e.ID)
			continue
		}
		v.manifests = append(v.manifests, e.Manifest)
		for b := range e.Manifest.blocks() {
			name := b.Name()
			by := v.named[name]
			if by == nil {
				v.order = append(v.order, b)
				v.done.Total += b.Raw
			}
			if len(by) == 0 || by[len(by)-1] != e.ID {
				v.named[name] = append(by, e.ID)
			}
		}
	}
	return nil
}

// read checks the blocks one by one, a few at a time.
func (v *verifier) read(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan *Block)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for b := range next {
				if err := v.block(ctx, b); err != nil {
					cancel(err)
				}
			}
		})
	}
	for _, b := range v.order {
		select {
		case next <- b:
		case <-ctx.Done():
		}
	}
	close(next)
	workers.Wait()
	return context.Cause(ctx)
}

// block checks one block. Errors: only what the target said.
func (v *verifier) block(ctx context.Context, b *Block) error {
	_, info, err := fetch(ctx, v.target, b)
	if err != nil && !errors.Is(err, wal.ErrCorrupt) && !errors.Is(err, wal.ErrVersion) {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err != nil {
		v.problem(err, v.named[b.Name()]...)
	} else {
		v.infos[b.Name()] = info
	}
	v.found.Blocks++
	v.found.Bytes += b.Bytes
	v.found.Pairs += b.Pairs
	v.done.Blocks++
	v.done.Pairs += b.Pairs
	v.done.Done += b.Raw
	if v.progress != nil {
		v.progress(v.done)
	}
	return nil
}

// fetch reads a block and checks everything that can be checked without its manifest. Errors: *Damage, also for a block that is not
// there; wal.ErrVersion; what the target said.
func fetch(ctx context.Context, t Target, b *Block) (raw []byte, info blockInfo, err error) {
	path := t.Path(b.Name())
	file, err := t.Get(ctx, b.Name(), b.Bytes)
	if errors.Is(err, ErrNotFound) {
		return nil, info, damaged(path, 0, "the file is missing")
	}
	if err != nil {
		return nil, info, err
	}
	raw, info, err = openBlock(path, b.Sum, file, b.Raw)
	return raw, info, err
}

// pruned drops the problems of snapshots that were pruned meanwhile, because a prune does not wait for readers: their blocks may have
// been missing. Error: ErrNotFound, if the snapshots were asked for by id.
func (v *verifier) pruned(ctx context.Context, named bool) error {
	gone := make(map[string]bool) // of the snapshots with problems
	for _, p := range v.found.Problems {
		for _, id := range p.Snapshots {
			if _, looked := gone[id]; looked {
				continue
			}
			_, err := get(ctx, v.target, id)
			if gone[id] = errors.Is(err, ErrNotFound); gone[id] {
				if named {
					return prunedMeanwhile(id)
				}
				v.found.Snapshots--
			}
		}
	}
	for i := range v.found.Problems {
		p := &v.found.Problems[i]
		p.Snapshots = slices.DeleteFunc(slices.Clone(p.Snapshots), func(id string) bool { return gone[id] })
	}
	v.found.Problems = slices.DeleteFunc(v.found.Problems, func(p Problem) bool { return len(p.Snapshots) == 0 })
	return nil
}

func prunedMeanwhile(id string) error {
	return fmt.Errorf("%w: snapshot %s was pruned meanwhile", ErrNotFound, id)
}

// compare checks that a manifest describes its blocks correctly, and that the keys of each room ascend.
func (v *verifier) compare(m *Manifest) {
	file := v.target.Path(manifestName(m.ID))
	for p := range m.Partitions {
		for _, r := range m.Partitions[p].Rooms {
			c := roomCheck{room: r.Room[0]}
			whole := true
			for i := range r.Blocks {
				b := &r.Blocks[i]
				info, ok := v.infos[b.Name()]
				if whole = whole && ok; !ok {
					c.last = nil // reported already
					continue
				}
				if err := c.take(b, info); err != nil {
					v.problem(damaged(file, 0, "partition %d, room %q, block %s: %v", p, r.Room, b.Sum, err), m.ID)
				}
			}
			if err := c.end(&r); whole && err != nil {
				v.problem(damaged(file, 0, "partition %d, room %q: %v", p, r.Room, err), m.ID)
			}
		}
	}
}

// roomCheck compares the blocks of a room, in order, with what the manifest says about them.
type roomCheck struct {
	room       byte
	last       []byte
	pairs, raw uint64
}

func (c *roomCheck) take(b *Block, info blockInfo) error {
	c.pairs += info.pairs
	c.raw += info.raw
	last := c.last
	c.last = info.last
	switch {
	case info.room != c.room:
		return fmt.Errorf("holds room %q", info.room)
	case !bytes.Equal(info.first, b.First):
		return fmt.Errorf("begins with key % x, not % x", info.first, b.First)
	case info.pairs != b.Pairs || info.raw != b.Raw:
		return fmt.Errorf("holds %d pairs of %d bytes, not %d of %d", info.pairs, info.raw, b.Pairs, b.Raw)
	case last != nil && bytes.Compare(info.first, last) <= 0:
		return fmt.Errorf("begins with key % x after % x", info.first, last)
	}
	return nil
}

func (c *roomCheck) end(r *Room) error {
	if c.pairs != r.Pairs || c.raw != r.Raw {
		return fmt.Errorf("holds %d pairs of %d bytes, not %d of %d", c.pairs, c.raw, r.Pairs, r.Raw)
	}
	return nil
}
