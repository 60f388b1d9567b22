package engine

import "slices"

// A tombstone remembers the last scheduled time at which a deleted job fired. A new job of that id must not fire at or
// before it: triggers are named by job id and scheduled time, and each name is unique. Tombstones are kept for as long
// as completed jobs, and at most the newest maxTombstones of them.
type tombstone struct {
	lifetime
	id     string
	number uint64 // in the order of deletion
	last   int64  // the latest fire decided, ms
	at     int64  // when the job was deleted, ms
}

const maxTombstones = 1 << 16

func (m *Machine) addTombstone(id string, last int64) {
	m.tombstoned++
	m.insertTombstone(&tombstone{id: id, number: m.tombstoned, last: last, at: m.now})
	m.sweepTombstones()
}

func (m *Machine) insertTombstone(g *tombstone) {
	m.tombstones[g.id] = g
	m.tombstoneQueue = append(m.tombstoneQueue, g)
	m.changes.tombstones.add(&g.lifetime, g, m.changes.number)
}

// removeTombstone forgets a job's tombstone, if there is one: a job of that id exists again, or was deleted long enough ago.
func (m *Machine) removeTombstone(id string) {
	if g := m.tombstones[id]; g != nil {
		delete(m.tombstones, id)
		m.changes.tombstones.remove(&g.lifetime, g.number, m.changes.number)
	}
}

// sweepTombstones forgets the tombstones that are too old or too many, oldest first.
func (m *Machine) sweepTombstones() {
	n := 0
	for ; n < len(m.tombstoneQueue); n++ {
		g := m.tombstoneQueue[n]
		if g.removed != 0 {
			continue
		}
		if m.now < g.at+m.claim.RetentionMS && len(m.tombstones) <= maxTombstones {
			break
		}
		m.removeTombstone(g.id)
	}
	clear(m.tombstoneQueue[:n])
	m.tombstoneQueue = m.tombstoneQueue[n:]
	if len(m.tombstoneQueue) > 2*len(m.tombstones)+fifoSlack { // many behind the first that stays are gone
		m.tombstoneQueue = slices.DeleteFunc(m.tombstoneQueue, func(g *tombstone) bool { return g.removed != 0 })
	}
}
