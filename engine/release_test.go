package engine

import (
	"reflect"
	"testing"

	"github.com/carillon-scheduler/carillon"
)

// Outputs that were stored for good are freed at once, and those that a checkpoint reads after it, even if no more outputs are made.
func TestOutboxFreesOutputs(t *testing.T) {
	const made = 20 * sweepSlack
	if o := (&Output{Body: "body", spec: "spec"}); o.size() != (&Output{}).size()+len("body"+"spec") {
		t.Errorf("an output of 8 bytes takes %d, one of none %d", o.size(), (&Output{}).size())
	}
	for _, pinnedUpTo := range []uint64{made, made - 1, made / 2} {
		var b outbox
		for range made {
			b.add(Output{Body: "body"})
		}
		b.trim(Acked{Output: 10})
		if got := b.outputs[9]; got.Body != "" {
			t.Errorf("the 10th output is stored for good, and still there: %+v", got)
		}
		b.pin()
		b.trim(Acked{Output: made / 4})
		b.trim(Acked{Output: pinnedUpTo})
		if got := b.outputs[10].Body; got == "" {
			t.Fatal("what a checkpoint reads is cleared")
		}
		b.unpin()
		if held, ok := b.after(pinnedUpTo); !ok || len(held) != int(made-pinnedUpTo) {
			t.Errorf("%d outputs after %d, %v", len(held), pinnedUpTo, ok)
		}
		b.trim(Acked{Output: made})
		for i, o := range b.outputs[:cap(b.outputs)] {
			if o.Body != "" {
				t.Errorf("pinned up to %d of %d: all are stored, and output %d is still there", pinnedUpTo, made, i+1)
				break
			}
		}
		if b.add(Output{}).Number != made+1 || b.bytes != (&Output{}).size() {
			t.Errorf("the next output is of %d bytes", b.bytes)
		}
	}
}

// While a checkpoint reads the outputs that were held when it began, later ones that are stored are freed.
func TestOutboxFreesOutputsWhilePinned(t *testing.T) {
	var b outbox
	const before = 3 * sweepSlack
	put := func(n int) {
		for range n {
			b.add(Output{Body: "body"})
		}
	}
	put(before)
	b.pin()
	read, _ := b.after(0)
	put(7 * sweepSlack)
	for b.acked.Output < b.made {
		b.trim(Acked{Output: min(b.made, b.acked.Output+100)})
	}
	kept := 0
	for _, o := range b.outputs[:cap(b.outputs)] {
		if o.Body != "" {
			kept++
		}
	}
	if kept > before {
		t.Errorf("%d outputs are kept, and %d are read", kept, before)
	}
	for i, o := range read {
		if o.Body != "body" || o.Number != uint64(i+1) {
			t.Fatalf("output %d is read as %+v", i+1, o)
		}
	}
}

// The memory that a burst took in lists and maps is freed once they are empty.
func TestListsFreeMemory(t *testing.T) {
	q := newReadyQueue()
	var completed fifo
	for i := range uint64(2 * keptCapacity) {
		q.Insert(turn{order: i})
		completed.push(completion{})
	}
	for completed.len() > 0 {
		completed.pop()
		if _, ok := q.DeleteMin(); !ok {
			t.Fatal("it ends early")
		}
	}
	if kept := cap(q.runs[rankHigh].list) + cap(completed.items); kept > 2*keptCapacity {
		t.Errorf("there is room for %d entries, and none is left", kept)
	}

	f := newFeed(t)
	s := &saved{m: f.m}
	f.m.Attach(s.table.View())
	f.put("job", `{}`)
	s.evictAll(t)
	absent := reflect.ValueOf(f.m.residence.absent).Pointer()
	f.apply(&Entry{Kind: KindDelete, Verb: "delete", Job: "job"})
	if _, gone := f.m.residence.absent["job"]; !gone {
		t.Fatal("a job that went is not absent")
	}
	s.evictAll(t)
	if len(f.m.residence.absent) > 0 || reflect.ValueOf(f.m.residence.absent).Pointer() == absent {
		t.Errorf("the map of what is absent (%d) is that of before", len(f.m.residence.absent))
	}
}

// A job that a command brought into memory and did not change leaves before the next record.
func TestTransientAreEvicted(t *testing.T) {
	f := newFeed(t)
	s := &saved{m: f.m}
	for _, id := range []string{"a", "b", "c"} {
		f.put(id, `{"schedule":"@every 1h"}`)
	}
	if err := s.checkpoint(1000); err != nil {
		t.Fatal(err)
	}
	f.m.Attach(s.table.View())
	f.m.Shrink(Key{})
	for f.m.ContinueShrink(1000) {
	}
	inMemory := func() int { return f.m.jobs.byID.Len() }
	if n := inMemory(); n != 0 {
		t.Fatalf("%d jobs are in memory", n)
	}
	for _, id := range []string{"a", "b", "c"} {
		err := f.apply(&Entry{Kind: KindPause, Verb: "pause", Job: id, Body: []byte(`{"if_version":7}`)})
		if err == nil || err.Code != carillon.CodeVersionConflict {
			t.Error(err)
		}
		if n := inMemory(); n != 1 {
			t.Errorf("%d jobs are in memory, one was asked for", n)
		}
	}
	f.tick(100)
	if n := inMemory(); n != 0 || len(f.m.residence.transient) != 0 {
		t.Errorf("%d jobs stay that nobody changed, %d are visitors", n, len(f.m.residence.transient))
	}
}
