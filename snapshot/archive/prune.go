package archive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// PruneOptions say which snapshots to drop. Without any, only blocks are removed that no snapshot names.
type PruneOptions struct {
	// A snapshot is dropped if it is both not among the newest Keep of its service (by its prefix; those in Drop do not
	// count) and older than OlderThan. A zero Keep or OlderThan does not restrict that; if both are zero, none is dropped.
	Keep      int
	OlderThan time.Duration

	Drop   []string // IDs to drop in any case; damaged ones, too
	DryRun bool     // only say what would be removed
	Now    time.Time

	Progress func(done, total int) // called after each block removed, if not nil
}

// Pruned says what a prune did.
type Pruned struct {
	Dropped, Kept []string // IDs, newest first
	Blocks        int      // removed
	Bytes         int64    // freed by that
}

// Prune drops snapshots, and then removes the blocks that no other snapshot names. It keeps saves out while it runs, so
// that none relies on a block that is about to be removed. If it is interrupted at any moment, the snapshots left are whole, and
// there may be unused blocks, which the next Prune removes. Prune fails if a snapshot that would stay cannot be read, because then it
// is not known which blocks that one names; the error says which snapshot it is, and Drop may name it. Errors: ErrLocked, ErrNotArchive,
// ErrNotFound for a snapshot of Drop, *Damage, wal.ErrVersion, what the target said.
func Prune(ctx context.Context, t Target, o PruneOptions) (_ *Pruned, err error) {
	if o.Keep < 0 || o.OlderThan < 0 {
		return nil, fmt.Errorf("snapshot archive: PruneOptions.Keep is %d and OlderThan %v, must not be negative", o.Keep, o.OlderThan)
	}
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	lock, err := t.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lock.Release(ctx)) }()
	entries, err := listed(ctx, t)
	if err != nil {
		return nil, err
	}
	pruned, used, err := o.choose(t, entries)
	if err != nil {
		return nil, err
	}
	objects, err := blocksIn(ctx, t)
	if err != nil {
		return nil, err
	}
	unused := slices.DeleteFunc(objects, func(b Object) bool { return used[b.Name] })
	for _, b := range unused {
		pruned.Blocks++
		pruned.Bytes += b.Bytes
	}
	if o.DryRun {
		return pruned, nil
	}
	return pruned, o.remove(ctx, t, lock, pruned.Dropped, unused)
}

// choose says which snapshots to drop, and which blocks the others name.
func (o *PruneOptions) choose(t Target, entries []Entry) (*Pruned, map[string]bool, error) {
	for _, id := range o.Drop {
		if !slices.ContainsFunc(entries, func(e Entry) bool { return e.ID == id }) {
			return nil, nil, fmt.Errorf("%w: snapshot %s in %s", ErrNotFound, id, t)
		}
	}
	pruned, used := new(Pruned), make(map[string]bool)
	newer := make(map[string]int) // by prefix: how many snapshots came before, without those of Drop
	for _, e := range entries {
		if slices.Contains(o.Drop, e.ID) {
			pruned.Dropped = append(pruned.Dropped, e.ID)
			continue
		}
		if e.Err != nil {
			return nil, nil, fmt.Errorf("snapshot %s would stay, and cannot be read: %w", e.ID, e.Err)
		}
		place := newer[e.Manifest.Prefix]
		newer[e.Manifest.Prefix]++
		if o.expired(place, e.Manifest) {
			pruned.Dropped = append(pruned.Dropped, e.ID)
			continue
		}
		pruned.Kept = append(pruned.Kept, e.ID)
		for b := range e.Manifest.blocks() {
			used[b.Name()] = true
		}
	}
	return pruned, used, nil
}

// expired tells whether Keep and OlderThan drop a snapshot; newer is how many newer ones its service has.
func (o *PruneOptions) expired(newer int, m *Manifest) bool {
	if o.Keep == 0 && o.OlderThan == 0 {
		return false
	}
	return newer >= o.Keep && (o.OlderThan == 0 || o.Now.Sub(m.Time) > o.OlderThan)
}

// remove removes the manifests and then the blocks. The manifests are durably removed before the first block is.
func (o *PruneOptions) remove(ctx context.Context, t Target, lock Lock, ids []string, unused []Object) error {
	if err := lock.Check(ctx); err != nil {
		return err
	}
	if err := t.Clean(ctx); err != nil {
		return err
	}
	for _, id := range ids {
		if err := t.Delete(ctx, manifestName(id)); err != nil {
			return err
		}
	}
	if err := t.Sync(ctx); err != nil {
		return err
	}
	for i, b := range unused {
		if err := errors.Join(lock.Check(ctx), ctx.Err()); err != nil {
			return err
		}
		if err := t.Delete(ctx, b.Name); err != nil {
			return err
		}
		if o.Progress != nil {
			o.Progress(i+1, len(unused))
		}
	}
	return nil
}
