package archive

import (
	"context"
	"fmt"

	"github.com/carillon-scheduler/carillon/snapshot"
)

// RestorePart fills an empty partition of a table from a snapshot, and returns the partition's position in that. Everything is
// verified while it is read; the partition gets all of it or nothing. share is the part of the time in
// which RestorePart works, as in SaveOptions: above 0, and at most 1. Errors: ErrNotFound, *Damage, wal.ErrVersion,
// snapshot.ErrNotEmpty, snapshot.ErrBusy, wal.ErrFailed, wal.ErrClosed, what the target said.
func RestorePart(ctx context.Context, t Target, id, prefix string, table *snapshot.Table, partition uint16, share float64) (position uint64, err error) {
	m, p, err := partOf(ctx, t, id, partition)
	if err != nil {
		return 0, err
	}
	if m.Prefix != prefix {
		return 0, fmt.Errorf("snapshot archive: %s is of a service with the prefix %q, not %q", t.Path(manifestName(id)), m.Prefix, prefix)
	}
	r := &restorer{target: t, manifest: m, pace: newPace(share)}
	return p.Position, r.partition(ctx, table, p, State{Position: p.Position, State: p.State})
}

// partOf finds a partition in a snapshot, which may be a part.
func partOf(ctx context.Context, t Target, id string, partition uint16) (*Manifest, *Partition, error) {
	m, err := get(ctx, t, id)
	if err != nil {
		return nil, nil, err
	}
	for i := range m.Partitions {
		if m.Partitions[i].Partition == partition {
			return m, &m.Partitions[i], nil
		}
	}
	return nil, nil, fmt.Errorf("%w: partition %d in %s", ErrNotFound, partition, t.Path(manifestName(id)))
}
