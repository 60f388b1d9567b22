package engine

import "slices"

// A grave (a tombstone) remembers the last scheduled time at which a deleted job fired. A new job of that id must not fire at or
// before it: triggers are named by job id and scheduled time, and each name is unique. Graves are kept for as long
// as completed jobs, and at most the newest maxGraves of them.
type grave struct {
	life
	id     string
	number uint64 // of the burial
	last   int64  // the latest fire decided, ms
	at     int64  // when the job was deleted, ms
}

const maxGraves = 1 << 16

func (m *Machine) bury(id string, last int64) {
	m.deaths++
	m.dig(&grave{id: id, number: m.deaths, last: last, at: m.now})
	m.sweepGraves()
}

func (m *Machine) dig(g *grave) {
	m.graves[g.id] = g
	m.buried = append(m.buried, g)
	m.changes.graves.begin(&g.life, g, m.changes.number)
}

// unbury forgets a job's grave, if there is one: a job of that id exists again, or was deleted long enough ago.
func (m *Machine) unbury(id string) {
	if g := m.graves[id]; g != nil {
		delete(m.graves, id)
		m.changes.graves.end(&g.life, g.number, m.changes.number)
	}
}

// sweepGraves forgets the graves that are too old or too many, oldest first.
func (m *Machine) sweepGraves() {
	n := 0
	for ; n < len(m.buried); n++ {
		g := m.buried[n]
		if g.gone != 0 {
			continue
		}
		if m.now < g.at+m.claim.RetentionMS && len(m.graves) <= maxGraves {
			break
		}
		m.unbury(g.id)
	}
	clear(m.buried[:n])
	m.buried = m.buried[n:]
	if len(m.buried) > 2*len(m.graves)+fifoSlack { // many behind the first that stays are gone
		m.buried = slices.DeleteFunc(m.buried, func(g *grave) bool { return g.gone != 0 })
	}
}
