package node

import (
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// A tick that is known or taken to be lost is not waited for, one that another has followed says nothing any more, and
// ticks that are refused are as fruitless as those that nobody answers, unless the log is full.
func TestTicking(t *testing.T) {
	began := time.Now()
	after := func(d time.Duration) time.Time { return began.Add(d) }
	var k ticking
	send := func(d time.Duration) {
		t.Helper()
		if k.busy(after(d)) || !k.start(engine.Tick{To: d.Milliseconds()}, after(d)) {
			t.Fatalf("no tick goes out after %s", d)
		}
	}
	send(0)
	if !k.busy(after(time.Second)) {
		t.Error("a tick whose answer may yet come is not waited for")
	}
	k.fail(began, streams.ErrTimeout)
	send(time.Second)
	k.fail(began, streams.ErrNoStream)
	if !k.busy(after(2*time.Second)) || k.refused() {
		t.Error("the word about a tick counts for the next")
	}
	if got := k.silent(after(2 * time.Second)); got != 2*time.Second {
		t.Errorf("ticks have been unanswered for %s", got)
	}
	k.fail(after(time.Second), streams.ErrNoStream)
	if k.silent(after(2*time.Second)) != 0 || !k.refused() {
		t.Error("a refusal is no answer")
	}
	if got := k.fruitless(after(2 * time.Second)); got != 2*time.Second {
		t.Errorf("ticks have been fruitless for %s", got)
	}
	send(2 * time.Second)
	k.fail(after(2*time.Second), streams.ErrNoSpace)
	if k.fruitless(after(4*time.Second)) != 0 {
		t.Error("a node counts as stuck for a log that is full")
	}
	send(4 * time.Second)
	k.back(after(4*time.Second), after(5*time.Second))
	if k.fruitless(after(6*time.Second)) != 0 || k.silent(after(6*time.Second)) != 0 {
		t.Error("a tick that came back is still waited for")
	}
}
