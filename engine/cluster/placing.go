package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func parsePlacement(data []byte) (storedPlacement, error) {
	var p storedPlacement
	if err := json.Unmarshal(data, &p); err != nil {
		return storedPlacement{}, fmt.Errorf("cluster: key %s: %w", placementKey, err)
	}
	return p, nil
}

// newcomerRank is how many bounds a member that never saw a placement waits before it makes the first one. The bucket may have
// been lost a moment ago, and then those who remember the old placement should write that first.
const newcomerRank = 2

// outdated is a placement that was made for other members than are live.
type outdated struct {
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
func (m *Member) place(ctx context.Context, last *outdated) error {
	m.mu.Lock()
	view, before, revision, told := m.current(), m.placement, m.placementRevision, m.told
	unheard := m.roster.missing(before.Nodes)
	m.mu.Unlock()
	nodes, standbys := wanted(view.Members)
	if !told || len(nodes) == 0 || revision != 0 && before.fits(nodes, m.o.Partitions, standbys) {
		*last = outdated{}
		return nil
	}
	if last.since == 0 || last.revision != revision {
		*last = outdated{revision, m.now()}
	}
	rank := 0
	for rank < len(view.Members) && view.Members[rank].Name < m.o.Name {
		rank++
	}
	switch {
	case before.Assignments == nil:
		rank += newcomerRank
	case unheard:
		rank++
	}
	if m.now()-last.since < time.Duration(rank)*m.o.Bound {
		return nil
	}
	next := storedPlacement{Nodes: nodes, Standbys: standbys, Assignments: Place(before.Assignments, nodes, m.o.Partitions, standbys)}
	return m.writePlacement(ctx, next, revision)
}

func (m *Member) writePlacement(ctx context.Context, p storedPlacement, behind uint64) error {
	data, err := json.Marshal(p)
	if err != nil {
		panic(err) // cannot fail: strings and numbers
	}
	var revision uint64
	if behind == 0 {
		revision, err = m.create(ctx, placementKey, data) // works even if the key was deleted before
	} else {
		writing, cancel := m.brief(ctx)
		defer cancel()
		revision, err = m.kv.Update(writing, placementKey, data, behind)
	}
	if conflict(err) { // the watch will show what was written instead, or that the bucket is another one, but not that the key was purged
		reading, cancel := m.brief(ctx)
		defer cancel()
		if _, err := m.kv.Get(reading, placementKey); errors.Is(err, jetstream.ErrKeyNotFound) {
			m.rewatch()
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("cluster: place: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.placementRevision == behind {
		m.placement, m.placementRevision = p, revision
		m.changed()
	}
	return nil
}

// takePlacement takes what the watch brought: a placement, or that there is none (any more). Then the last one known is kept,
// so that a bucket made anew does not move the partitions.
func (m *Member) takePlacement(e jetstream.KeyValueEntry) error {
	if e == nil || e.Operation() != jetstream.KeyValuePut {
		m.placementRevision = 0
		return nil
	}
	p, err := parsePlacement(e.Value())
	if err == nil && len(p.Assignments) != m.o.Partitions {
		err = fmt.Errorf("%w: key %s is of %d", ErrPartitions, placementKey, len(p.Assignments))
	}
	m.placementRevision = e.Revision()
	if err != nil {
		m.placement.Nodes = nil // so that it never fits, and a new one is made from the last good one
		return errors.Join(ErrBucket, err)
	}
	m.placement = p
	return nil
}
