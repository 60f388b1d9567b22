package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func parsePlaced(data []byte) (placed, error) {
	var p placed
	if err := json.Unmarshal(data, &p); err != nil {
		return placed{}, fmt.Errorf("cluster: key %s: %w", placementKey, err)
	}
	return p, nil
}

// forget is how many bounds a member that never saw a placement waits before it makes the first one. The bucket may have
// been lost a moment ago, and then those who remember the old placement should write that first.
const forget = 2

// unfit is a placement that was made for other members than are live.
type unfit struct {
	revision uint64
	since    time.Duration // when that was first seen; 0: the present placement fits
}

// place writes a new placement if the one in the bucket was made for other members than are live. The first of the live
// members does so at once, the second after a bound, and so on: so two members whose views differ for long do not
// overwrite each other's placement all the time, and a first member that cannot write is replaced. All write behind the revision that
// they placed from, so that of two writes one is refused, and nobody works from a placement that only it has.
//
// A member that joins right after a bucket was lost may find the placement that others remember before it finds their keys, and would
// take itself for the only member. So it gives them a bound to write their keys.
func (m *Member) place(ctx context.Context, last *unfit) error {
	m.mu.Lock()
	view, before, revision, told := m.current(), m.placed, m.placedRev, m.told
	unheard := m.roster.unheard(before.Nodes)
	m.mu.Unlock()
	nodes, standbys := wanted(view.Members)
	if !told || len(nodes) == 0 || revision != 0 && before.fits(nodes, m.o.Partitions, standbys) {
		*last = unfit{}
		return nil
	}
	if last.since == 0 || last.revision != revision {
		*last = unfit{revision, m.now()}
	}
	rank := 0
	for rank < len(view.Members) && view.Members[rank].Name < m.o.Name {
		rank++
	}
	switch {
	case before.Seats == nil:
		rank += forget
	case unheard:
		rank++
	}
	if m.now()-last.since < time.Duration(rank)*m.o.Bound {
		return nil
	}
	next := placed{Nodes: nodes, Standbys: standbys, Seats: Place(before.Seats, nodes, m.o.Partitions, standbys)}
	return m.writePlaced(ctx, next, revision)
}

func (m *Member) writePlaced(ctx context.Context, p placed, behind uint64) error {
	data, err := json.Marshal(p)
	if err != nil {
		panic(err) // cannot fail: strings and numbers
	}
	ctx, cancel := context.WithTimeout(ctx, m.o.Bound/2)
	defer cancel()
	var revision uint64
	if behind == 0 {
		revision, err = m.kv.Create(ctx, placementKey, data) // works even if the key was deleted before
	} else {
		revision, err = m.kv.Update(ctx, placementKey, data, behind)
	}
	if conflict(err) { // the watch will show what was written instead, or that the bucket is another one
		return nil
	}
	if err != nil {
		return fmt.Errorf("cluster: place: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.placedRev == behind {
		m.placed, m.placedRev = p, revision
		m.changed()
	}
	return nil
}

// takePlaced takes what the watch brought: a placement, or that there is none (any more). Then the last one known is kept,
// so that a bucket made anew does not move the partitions.
func (m *Member) takePlaced(e jetstream.KeyValueEntry) error {
	if e == nil || e.Operation() != jetstream.KeyValuePut {
		m.placedRev = 0
		return nil
	}
	p, err := parsePlaced(e.Value())
	if err == nil && len(p.Seats) != m.o.Partitions {
		err = fmt.Errorf("%w: key %s is of %d", ErrPartitions, placementKey, len(p.Seats))
	}
	m.placedRev = e.Revision()
	if err != nil {
		m.placed.Nodes = nil // so that it never fits, and a new one is made from the last good one
		return errors.Join(ErrBucket, err)
	}
	m.placed = p
	return nil
}
