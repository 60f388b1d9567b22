package archive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// PruneOptions say which snapshots go. Without any, only blocks go that no snapshot names.
type PruneOptions struct {
	// Keep and OlderThan drop together: a snapshot goes that is not among the newest Keep of its service, by its prefix,
	// of those that Drop does not name, and older than OlderThan. Keep 0 with OlderThan 0 drops none.
	Keep      int
	OlderThan time.Duration

	Drop   []string // IDs that go whatever else is said, also damaged ones
	DryRun bool     // say what would go, and change nothing
	Now    time.Time

	Progress func(done, total int) // of the blocks to remove; nil: not
}

// Pruned says what a prune did.
type Pruned struct {
	Dropped, Kept []string // IDs, newest first
	Blocks        int      // removed
	Bytes         int64    // freed by that
}

// Prune drops snapshots and then the blocks that none of the others names. It keeps saves out while it runs, so
// that none counts on a block that is about to go. Interrupted at any moment it leaves whole snapshots, and at most
// blocks for the next one to remove. A snapshot that stays but cannot be read ends it, as nobody knows what that one
// names: its error says which, and Drop takes it. Errors: ErrLocked, ErrForeign, ErrNotFound for a snapshot of Drop, *Damage,
// wal.ErrVersion, what the target said.
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

// choose says which snapshots go, and which blocks the others name.
func (o *PruneOptions) choose(t Target, entries []Entry) (*Pruned, map[string]bool, error) {
	for _, id := range o.Drop {
		if !slices.ContainsFunc(entries, func(e Entry) bool { return e.ID == id }) {
			return nil, nil, fmt.Errorf("%w: snapshot %s in %s", ErrNotFound, id, t)
		}
	}
	pruned, used := new(Pruned), make(map[string]bool)
	newer := make(map[string]int) // of a prefix, without those of Drop
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

// expired tells whether the rules drop the snapshot that has so many newer ones beside it.
func (o *PruneOptions) expired(newer int, m *Manifest) bool {
	if o.Keep == 0 && o.OlderThan == 0 {
		return false
	}
	return newer >= o.Keep && (o.OlderThan == 0 || o.Now.Sub(m.Time) > o.OlderThan)
}

// remove makes sure that a manifest is gone for good before the first of its blocks goes.
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
