package sim

import (
	"bytes"
	"cmp"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
)

// newest is a partition's table on a node; it reads from whichever checkpoint is the newest at the time.
type newest struct {
	n *node
	p int
}

func (t newest) view() engine.Table {
	if t.n.world.o.Sabotage.Table {
		return t.n.tables[t.p].Older()
	}
	return t.n.tables[t.p].View()
}

func (t newest) State() ([]byte, error) { return t.view().State() }

func (t newest) Get(room byte, key []byte) ([]byte, bool, error) { return t.view().Get(room, key) }

func (t newest) Scan(room byte, above, below []byte, limit int, yield func(key, value []byte) error) (bool, error) {
	return t.view().Scan(room, above, below, limit, yield)
}

// open opens a machine with all jobs in memory, or with none. The history must be the same either way.
func (w *world) open(p int, t engine.Table) (*engine.Machine, error) {
	if w.cold && w.unseen.IntN(4) > 0 {
		return engine.OpenCold(w.layout, p, t)
	}
	return engine.Open(w.layout, p, t)
}

// changeResidence brings jobs into memory or lets them leave it, on some node.
func (w *world) changeResidence() {
	n := w.nodes[w.unseen.IntN(len(w.nodes))]
	if !w.cold || !n.up {
		return
	}
	p := w.unseen.IntN(len(n.parts))
	part := n.parts[p]
	if part == nil || part.stopped != nil {
		return
	}
	var err error
	m, few := part.machine, 1+w.unseen.IntN(20)
	switch w.unseen.IntN(11) {
	case 0:
		m.Shrink(engine.Key{Due: w.truth + w.unseen.Int64N(20_000) - 2000, Armed: w.unseen.Uint64N(1 + 2*m.Stats().Armed)})
	case 1, 2:
		m.ContinueShrink(few)
	case 3:
		m.EvictCommitted(few)
	case 4:
		readings := m.LoadCursors()
		part.rows, err = readings[w.unseen.IntN(len(readings))].Read(newest{n, p}, w.truth+w.unseen.Int64N(20_000), few)
	case 5, 6: // by now what was read may be of the past
		if part.rows != nil {
			_, err = m.Load(part.rows)
			part.rows = nil
		}
	case 7:
		if f, ok, broken := m.ForgetCursor(); ok && part.gone == nil {
			part.gone, err = f.Read(newest{n, p}, few)
		} else {
			err = broken
		}
	case 8: // the same, and mostly it is
		if part.gone != nil && w.unseen.IntN(4) == 0 {
			m.Forget(part.gone)
			part.gone = nil
		}
	case 9:
		if part.ahead == nil {
			part.ahead, err = readAhead(m, newest{n, p}, few)
		}
	case 10: // the same
		if part.ahead != nil {
			part.ahead.compare(w, m)
			part.ahead = nil
		}
	}
	if err = cmp.Or(err, m.Err()); err != nil {
		w.fail("%s cannot read its table of partition %d: %v", n.name(), p, err)
	}
}

// ahead is what was read of a page before somebody asks for the page.
type ahead struct {
	*engine.ReadAhead
	scan int
}

func readAhead(m *engine.Machine, t engine.Table, scan int) (*ahead, error) {
	a := &ahead{m.ReadAhead(), scan}
	if err := a.Scan(t, &carillon.ListRequest{}, "", scan); err != nil {
		return nil, err
	}
	return a, a.Read(t, m.Cold(a.IDs()))
}

// compare asks for the page, and for its jobs, with what was read ahead and without. How far a page goes depends on the table, which may
// have changed since; the jobs that are on both pages must be the same.
func (a *ahead) compare(w *world, m *engine.Machine) {
	page, last, more := m.Page(&carillon.ListRequest{}, "", a.scan, a.scan, a.ReadAhead)
	var with, without []byte
	for i := range page {
		with = append(page[i].AppendJSON(with), '\n')
	}
	for after, goesOn := "", true; goesOn; {
		var part []carillon.JobReply
		part, after, goesOn = m.Page(&carillon.ListRequest{}, after, a.scan, a.scan, nil)
		for i := range part {
			if !more || part[i].ID <= last {
				without = append(part[i].AppendJSON(without), '\n')
			}
		}
	}
	for _, id := range a.IDs() {
		one, _ := m.Job(id, a.ReadAhead)
		other, _ := m.Job(id, nil)
		with, without = append(one.AppendJSON(with), '\n'), append(other.AppendJSON(without), '\n')
	}
	if !bytes.Equal(with, without) {
		w.fail("what was read ahead shows: %s", difference(string(without), string(with)))
	}
}
