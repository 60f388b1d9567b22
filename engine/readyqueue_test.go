package engine

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestReadyQueue compares the ready queue with a sorted list, with turns that come mostly in order.
func TestReadyQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := newReadyQueue()
		var model []turn
		compare := func(a, b turn) int {
			switch {
			case a.before(b):
				return -1
			case b.before(a):
				return 1
			}
			return 0
		}
		now := int64(0)
		for order := range uint64(rapid.IntRange(0, 200).Draw(t, "steps")) {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0, 1, 2:
				now += int64(rapid.IntRange(-2, 3).Draw(t, "due"))
				one := turn{due: now, order: order, rank: uint8(rapid.IntRange(0, priorities-1).Draw(t, "rank"))}
				q.Insert(one)
				at, _ := slices.BinarySearchFunc(model, one, compare)
				model = slices.Insert(model, at, one)
			case 3:
				if len(model) > 0 {
					at := rapid.IntRange(0, len(model)-1).Draw(t, "which")
					q.Delete(model[at])
					q.Delete(model[at]) // a second time it is not there
					model = slices.Delete(model, at, at+1)
				}
			default:
				got, ok := q.DeleteMin()
				if ok != (len(model) > 0) || ok && got != model[0] {
					t.Fatalf("%+v, %v, want the first of %+v", got, ok, model)
				}
				if ok {
					model = model[1:]
				}
			}
			if q.Len() != len(model) {
				t.Fatalf("%d turns, want %d", q.Len(), len(model))
			}
			n := rapid.IntRange(1, 8).Draw(t, "ahead")
			var soon []turn
			q.peek(n, func(one turn) { soon = append(soon, one) })
			for i, one := range model[:min(n, len(model))] {
				if one.rank == model[0].rank && !slices.Contains(soon, one) {
					t.Fatalf("turn %d is not among the next %d: %+v", i, n, soon)
				}
			}
			for _, one := range soon {
				if !slices.Contains(model, one) {
					t.Fatalf("%+v does not wait", one)
				}
			}
		}
		for _, want := range model {
			if got, ok := q.DeleteMin(); !ok || got != want {
				t.Fatalf("%+v, %v, want %+v", got, ok, want)
			}
		}
	})
}

// Turns that come and go behind a turn that waits leave no memory behind. Otherwise each put and delete of a job that is due would
// leave some, for as long as an output stream stores nothing.
func TestReadyQueueIsBounded(t *testing.T) {
	q := newReadyQueue()
	gone, first, kept := turn{due: 0}, turn{due: 1}, turn{due: 2, order: 1 << 20}
	q.Insert(gone)
	q.Insert(first)
	if got, _ := q.DeleteMin(); got != gone {
		t.Errorf("%+v comes, want %+v", got, gone)
	}
	for order := range uint64(1 << 20) {
		one := turn{due: 2, order: order + 1}
		q.Insert(one)
		if one != kept {
			q.Delete(one)
		}
	}
	if n := len(q.runs[0].list); n > 4*fifoSlack {
		t.Errorf("2 turns wait, and the run has %d", n)
	}
	for _, want := range []turn{first, kept} {
		if got, _ := q.DeleteMin(); got != want {
			t.Errorf("%+v comes, want %+v", got, want)
		}
	}
	if q.Len() != 0 {
		t.Errorf("%d are left", q.Len())
	}
}

// When one of a job's many forced fires goes, the others are not moved.
func TestForcedFiresLeaveInOrder(t *testing.T) {
	f := newFeed(t)
	f.put("job", `{}`)
	m := f.m
	slot, _ := m.jobs.find("job")
	for seq := range uint64(4) {
		m.forcedBy[slot] = append(m.forcedBy[slot], seq)
	}
	last := &m.forcedBy[slot][3]
	m.unlistForced(slot, 0)
	m.unlistForced(slot, 1)
	if waits := m.forcedBy[slot]; len(waits) != 2 || &waits[1] != last {
		t.Errorf("%d wait, and they were moved", len(waits))
	}
	m.unlistForced(slot, 3) // as none does
	if waits := m.forcedBy[slot]; !slices.Equal(waits, []uint64{2}) {
		t.Errorf("%d wait, want 2", waits)
	}
	m.unlistForced(slot, 2)
	if waits, ok := m.forcedBy[slot]; ok {
		t.Errorf("%d are left", len(waits))
	}
}

// Turns of one due time and order are told apart by their kind, and refusals of one import by their places: none takes another's place. The
// slot of a job tells nothing.
func TestTurnsOfOneOrder(t *testing.T) {
	want := []turn{{kind: turnJob, slot: 9}, {kind: turnForced, slot: 8}, {kind: turnRejected, slot: 1}, {kind: turnRejected, slot: 2}}
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}} {
		q := newReadyQueue()
		for _, i := range order {
			q.Insert(want[i])
		}
		for _, want := range want {
			if got, ok := q.DeleteMin(); !ok || got != want {
				t.Errorf("inserted as %v: %+v, %v, want %+v", order, got, ok, want)
			}
		}
	}
}
