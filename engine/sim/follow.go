package sim

import (
	"iter"
	"math/rand/v2"
	"slices"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/internal/memtable"
)

// In some worlds a node follows only some of the partitions. It takes a partition over from another node's checkpoint and the
// log above that, and gives one up once another node follows it. The log is cut for the nodes that are up, as the hosts do it.
func (w *world) placeSome(seed uint64, nodes int) {
	w.placed = nodes > 1 && rand.New(rand.NewPCG(seed, 4)).IntN(2) == 0
}

// taking is a partition on its way to a node.
type taking struct {
	table    *memtable.Table
	position uint64
	needs    uint64 // the taker must keep its local log from here on
}

// closely is how many records behind a follower may be if another node is to give the partition up for it.
const closely = 20

// followed yields the partitions that a node which is up follows.
func (n *node) followed() iter.Seq2[int, *part] {
	return func(yield func(int, *part) bool) {
		for p, part := range n.parts {
			if part != nil && !yield(p, part) {
				return
			}
		}
	}
}

// has tells whether a node follows a partition, or would if it were up.
func (n *node) has(p int) bool {
	if n.up {
		return n.parts[p] != nil
	}
	return !n.world.placed || len(n.tables[p].List()) > 0 || n.reaches(0)
}

// reaches tells whether the local log has every record above a position.
func (n *node) reaches(position uint64) bool { return n.base <= position }

// needs is the position from which a node would go on after a crash.
func (n *node) needs() uint64 {
	needs := n.applied
	for p := range n.followed() {
		list := n.tables[p].List()
		if len(list) == 0 {
			return 0
		}
		needs = min(needs, list[len(list)-1].Position)
	}
	return needs
}

// giveUp forgets a partition that another node follows closely, and this one does not serve.
func (n *node) giveUp(p int) {
	w := n.world
	part := n.parts[p]
	if part == nil || part.stopped != nil || part.owner.Epoch != 0 || part.claimed > n.applied {
		return
	}
	// Last: the log may be cut up to what this node needs, or have been cut further for a node that has given the partition up since.
	// o must be beyond that.
	follows := func(o *node) bool {
		return o != n && o.up && o.parts[p] != nil && o.applied+closely >= n.applied && o.applied >= n.needs() && o.applied+1 >= w.log.First()
	}
	if !slices.ContainsFunc(w.nodes, follows) {
		return
	}
	part.chain.Lose()
	n.parts[p], n.givenUp[p], n.tables[p] = nil, part, new(memtable.Table)
	w.note("%s gives partition %d up", n.name(), p)
}

// askFor asks another node to save a partition, as of a position that this node has not passed.
func (n *node) askFor(p int) {
	w := n.world
	if n.parts[p] != nil || n.taking[p] != nil {
		return
	}
	from := w.nodes[w.rng.IntN(len(w.nodes))]
	if !from.up || from.parts[p] == nil || from.parts[p].stopped != nil || from.applied < n.applied {
		return
	}
	from.saveNow(p)
	view := from.tables[p].View()
	n.taking[p] = &taking{view.Table(), view.Position, n.applied}
	w.note("%s gives partition %d at %d to %s", from.name(), p, view.Position, n.name())
}

// saveNow takes a whole checkpoint, with nothing in between.
func (n *node) saveNow(p int) {
	finish := func() {
		for n.parts[p].saving != nil {
			n.checkpointSlice()
		}
	}
	finish()
	for position := n.applied; n.tables[p].View().Position < position; finish() { // again if the checkpoint was abandoned
		n.beginCheckpoint(p)
	}
}

// take begins to follow a partition that another node has saved.
func (n *node) take(p int) {
	w := n.world
	t := n.taking[p]
	if t == nil {
		return
	}
	delete(n.taking, p)
	if !n.reaches(t.position) {
		w.fail("%s takes partition %d at %d, and its log begins above %d", n.name(), p, t.position, n.base)
		return
	}
	n.tables[p] = t.table
	m, _ := n.restore(p, 0)
	m.Attach(newest{n, p})
	upTo := n.applied
	if n.synced > 0 && w.chance(50) {
		upTo = max(upTo, n.local[n.synced-1].Seq) // the reader skips records that are there
	}
	from := t.position
	if w.o.Sabotage.Take {
		from = upTo
	}
	m.Listen(engine.Listener{Made: func(o *engine.Output) { n.check(p, o) }})
	for _, r := range n.local[n.after(min(from, upTo)):n.after(upTo)] {
		if e := w.layout.Decode(&r); concerns(&e, p) {
			if _, err := m.Apply(&e); err != nil {
				w.fail("%s cannot apply the log to partition %d, which it has taken: %v", n.name(), p, err)
			}
			n.compare(p, m.Mark())
		}
	}
	m.Listen(engine.Listener{})
	taken := &part{machine: m, chain: engine.NewChain(), offered: m.Made(), upTo: max(upTo, t.position)}
	if before := n.givenUp[p]; before != nil {
		taken.chain, taken.gen = before.chain, before.gen+1
	} else if w.replicated {
		taken.chain.Confirm()
	}
	n.parts[p], n.givenUp[p] = taken, nil
	w.note("%s follows partition %d from %d on", n.name(), p, n.parts[p].upTo)
}

// startOver is what a node does when the log was cut beyond its position: it drops everything, and takes its partitions over again.
func (n *node) startOver() {
	w := n.world
	for p := range w.out {
		if n.has(p) && !slices.ContainsFunc(w.nodes, func(o *node) bool { return o != n && o.has(p) }) {
			w.fail("%s was left behind at %d, and nobody else has partition %d; the log begins at %d", n.name(), n.end(), p, w.log.First())
			return
		}
		n.tables[p] = new(memtable.Table)
	}
	n.local, n.synced, n.base = nil, 0, w.log.Last()
	w.note("%s begins anew at %d", n.name(), n.base)
}

// alone tells whether the node has a partition that no other node has.
func (n *node) alone() bool {
	for p := range n.world.out {
		if n.has(p) && !slices.ContainsFunc(n.world.nodes, func(o *node) bool { return o != n && o.has(p) }) {
			return true
		}
	}
	return false
}

// cut is the sequence up to which a node cuts the log; 0: it cuts nothing. It spares what the nodes that are up need, or only
// what is needed for each partition to stay followed by some node.
func (n *node) cut() uint64 {
	w := n.world
	needed := n.oldest()
	for p := range w.out {
		if n.parts[p] != nil || w.o.Sabotage.Cut {
			continue
		}
		var most uint64
		for _, o := range w.nodes {
			if o.up && o.parts[p] != nil {
				most = max(most, o.needs())
			}
		}
		needed = min(needed, most)
	}
	if w.chance(30) {
		for _, o := range w.nodes {
			if o.up {
				needed = min(needed, o.needs())
			}
		}
	}
	return needed
}

// makeFollow makes a node follow a partition, in a calm world.
func (w *world) makeFollow(n *node, p int) {
	if n.parts[p] != nil {
		return
	}
	if !slices.ContainsFunc(w.nodes, func(o *node) bool { return o.parts[p] != nil }) {
		w.fail("nobody follows partition %d", p)
		return
	}
	for n.parts[p] == nil && w.runningNode(p) != nil && w.err == nil {
		n.askFor(p)
		n.take(p)
	}
}

// runningNode returns a node on which a partition has not stopped.
func (w *world) runningNode(p int) *node {
	for _, n := range w.nodes {
		if n.up && n.parts[p] != nil && n.parts[p].stopped == nil {
			return n
		}
	}
	return nil
}
