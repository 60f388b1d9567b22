package engine

import (
	"slices"
	"sort"

	"github.com/google/btree"
)

// readyQueue is the ready queue, in the order of turn.before. What comes off a wheel comes nearly in that order. So each rank
// has a run, a sorted list: a turn that belongs behind the last one of its rank is appended to it, and taken from its front
// later, for next to nothing. All others go into a tree, where a turn costs half a microsecond.
type readyQueue struct {
	runs [priorities]turnRun // by rank
	tree *btree.BTreeG[turn]
	n    int
}

// turnRun is a sorted list of turns.
type turnRun struct {
	list []turn // list[head:] wait; some of them may be dead, but not the one at head
	head int
	dead int // of list[head:]
}

func newReadyQueue() readyQueue { return readyQueue{tree: btree.NewG(64, turn.before)} }

// Len is how many turns wait.
func (q *readyQueue) Len() int { return q.n }

// Insert adds a turn, which must not be there yet.
func (q *readyQueue) Insert(t turn) {
	q.n++
	r := &q.runs[t.rank]
	if n := len(r.list); n == 0 || r.list[n-1].before(t) {
		r.push(t)
	} else {
		q.tree.ReplaceOrInsert(t)
	}
}

// Delete takes a turn out, wherever it is.
func (q *readyQueue) Delete(t turn) {
	if q.runs[t.rank].remove(t) {
		q.n--
	} else if _, found := q.tree.Delete(t); found {
		q.n--
	}
}

// DeleteMin takes out the first turn.
func (q *readyQueue) DeleteMin() (first turn, ok bool) {
	if q.n == 0 {
		return turn{}, false
	}
	q.n--
	var from *turnRun
	for rank := range q.runs {
		if r := &q.runs[rank]; len(r.list) > 0 {
			from = r
			break
		}
	}
	if q.tree.Len() > 0 {
		if t, _ := q.tree.Min(); from == nil || t.before(from.list[from.head]) {
			return q.tree.DeleteMin()
		}
	}
	first = from.list[from.head]
	from.head++
	from.skipDead()
	return first, true
}

// peek visits turns that will come soon, in no particular order: the first n of the first run that has any, and the first n of
// the tree.
func (q *readyQueue) peek(n int, visit func(turn)) {
	for rank := range q.runs {
		if r := &q.runs[rank]; len(r.list) > 0 {
			left := n
			for i := r.head; i < len(r.list) && left > 0; i++ {
				if t := r.list[i]; !t.dead {
					visit(t)
					left--
				}
			}
			break
		}
	}
	q.tree.Ascend(func(t turn) bool {
		visit(t)
		n--
		return n > 0
	})
}

func (r *turnRun) push(t turn) {
	if len(r.list) == cap(r.list) && r.head > len(r.list)/2 {
		r.list = append(r.list[:0], r.list[r.head:]...)
		r.head = 0
	}
	r.list = append(r.list, t)
}

func (r *turnRun) remove(t turn) bool {
	live := r.list[r.head:]
	i := sort.Search(len(live), func(i int) bool { return !live[i].before(t) })
	if i == len(live) || t.before(live[i]) || live[i].dead {
		return false
	}
	live[i].dead = true
	r.dead++
	r.skipDead()
	if r.dead > len(r.list)/2+fifoSlack {
		r.list = slices.DeleteFunc(append(r.list[:0], r.list[r.head:]...), func(t turn) bool { return t.dead })
		r.head, r.dead = 0, 0
	}
	return true
}

// skipDead moves head on to the next turn that is not dead.
func (r *turnRun) skipDead() {
	for r.head < len(r.list) && r.list[r.head].dead {
		r.head++
		r.dead--
	}
	if r.head == len(r.list) {
		if r.list, r.head = r.list[:0], 0; cap(r.list) > keptCapacity {
			r.list = nil
		}
	}
}
