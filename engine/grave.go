package engine

// A grave remembers of a deleted job what its id must not do again: fire at or before the last scheduled
// time that was fired under it. Triggers are named by id and scheduled time, and a name is unique. Graves
// stay for the retention of completed jobs, and the newest maxGraves of them.
type grave struct {
	last   int64  // the latest fire decided, ms
	at     int64  // when the job was deleted, ms
	number uint64 // of the burial
}

type buried struct {
	id     string
	number uint64
}

const maxGraves = 1 << 16

func (m *Machine) bury(id string, g grave) {
	m.deaths++
	g.number = m.deaths
	m.graves[id] = g
	m.buried = append(m.buried, buried{id, g.number})
	m.sweepGraves()
}

// sweepGraves forgets the graves that are over or too many, oldest first.
func (m *Machine) sweepGraves() {
	n := 0
	for ; n < len(m.buried); n++ {
		b := m.buried[n]
		g, ok := m.graves[b.id]
		if !ok || g.number != b.number {
			continue // the id lives again, or was buried again
		}
		if m.now < g.at+m.claim.RetentionMS && len(m.graves) <= maxGraves {
			break
		}
		delete(m.graves, b.id)
	}
	m.buried = m.buried[n:]
}
