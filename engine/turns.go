package engine

import (
	"slices"
	"sort"

	"github.com/google/btree"
)

// turns are the ready queue, in the order of turn.before. What comes off a wheel comes nearly in that order. So each rank
// has a run, a sorted list: a turn that belongs behind the last one of its rank is appended to it, and taken from its front
// later, for next to nothing. All others go into a tree, where a turn costs half a microsecond.
type turns struct {
	runs [priorities]turnRun // by rank
	rest *btree.BTreeG[turn]
	n    int
}

// turnRun is a sorted list of turns.
type turnRun struct {
	list []turn // list[head:] wait; some of them may be dead, but not the one at head
	head int
	dead int // of list[head:]
}

func newTurns() turns { return turns{rest: btree.NewG(64, turn.before)} }

// Len is how many turns wait.
func (q *turns) Len() int { return q.n }

// Insert adds a turn, which must not be there yet.
func (q *turns) Insert(t turn) {
	q.n++
	r := &q.runs[t.rank]
	if n := len(r.list); n == 0 || r.list[n-1].before(t) {
		r.push(t)
	} else {
		q.rest.ReplaceOrInsert(t)
	}
}

// Delete takes a turn out, wherever it is.
func (q *turns) Delete(t turn) {
	if q.runs[t.rank].remove(t) {
		q.n--
	} else if _, found := q.rest.Delete(t); found {
		q.n--
	}
}

// DeleteMin takes out the first turn.
func (q *turns) DeleteMin() (first turn, ok bool) {
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
	if q.rest.Len() > 0 {
		if t, _ := q.rest.Min(); from == nil || t.before(from.list[from.head]) {
			return q.rest.DeleteMin()
		}
	}
	first = from.list[from.head]
	from.head++
	from.settle()
	return first, true
}

// ahead visits turns that will come soon, in no particular order: the first n of the first run that has any, and the first n of
// the tree.
func (q *turns) ahead(n int, visit func(turn)) {
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
	q.rest.Ascend(func(t turn) bool {
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
	r.settle()
	if r.dead > len(r.list)/2+fifoSlack {
		r.list = slices.DeleteFunc(append(r.list[:0], r.list[r.head:]...), func(t turn) bool { return t.dead })
		r.head, r.dead = 0, 0
	}
	return true
}

// settle moves head on to the next turn that is not dead.
func (r *turnRun) settle() {
	for r.head < len(r.list) && r.list[r.head].dead {
		r.head++
		r.dead--
	}
	if r.head == len(r.list) {
		if r.list, r.head = r.list[:0], 0; cap(r.list) > roomKept {
			r.list = nil
		}
	}
}
