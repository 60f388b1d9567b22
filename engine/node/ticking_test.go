package node

import (
	"errors"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// Ticks follow one that does not come back, and one that is refused sooner. One that comes back says that those before it
// are no longer waited for, whoever is missing. Ticks that are refused are as fruitless as those that nobody answers,
// unless the log is full.
func TestTicking(t *testing.T) {
	began := time.Now()
	after := func(d time.Duration) time.Time { return began.Add(d) }
	var k ticking
	tick := func(d time.Duration) engine.Tick { return engine.Tick{To: d.Milliseconds()} }
	send := func(d time.Duration) {
		t.Helper()
		if k.until().After(after(d)) || !k.start(tick(d), after(d)) {
			t.Fatalf("no tick goes out after %s", d)
		}
	}
	waits := func(d time.Duration, want bool) {
		t.Helper()
		if _, got := k.ours(&engine.Entry{Ticks: []engine.Tick{tick(d)}}); got != want {
			t.Errorf("the tick of %s is waited for: %t", d, got)
		}
	}
	send(0)
	if !k.until().After(after(tickAgain / 2)) {
		t.Error("another tick may go out while the first can hardly have come back")
	}
	send(tickAgain)
	send(2 * tickAgain)
	waits(0, true)
	k.back(after(tickAgain), after(time.Second))
	waits(0, false)
	waits(tickAgain, false)
	waits(2*tickAgain, true)
	if got := k.silent(after(3 * time.Second)); got != 2*time.Second {
		t.Errorf("ticks have been unanswered for %s", got)
	}
	k.fail(began, streams.ErrNoStream)
	if k.refused() != nil {
		t.Error("the word about a tick counts for another")
	}
	k.fail(after(2*tickAgain), streams.ErrTimeout)
	if k.refused() != nil || k.silent(after(2*time.Second)) != time.Second || k.end() != true {
		t.Error("a tick that was not answered counts as refused")
	}
	k.ended = false

	send(2*tickAgain + tickPause)
	k.fail(after(2*tickAgain+tickPause), streams.ErrNoStream)
	if k.silent(after(2*time.Second)) != 0 || !errors.Is(k.refused(), streams.ErrNoStream) {
		t.Error("a refusal is no answer")
	}
	if got := k.fruitless(after(2 * time.Second)); got != time.Second {
		t.Errorf("ticks have been fruitless for %s", got)
	}
	send(2*tickAgain + 2*tickPause)
	waits(2*tickAgain+tickPause, false)
	k.fail(after(2*tickAgain+2*tickPause), streams.ErrNoSpace)
	if k.fruitless(after(4*time.Second)) != 0 {
		t.Error("a node counts as stuck for a log that is full")
	}
	// When all that was due is in, those that are missing are missed by nobody.
	k.rest()
	if k.refused() != nil || k.silent(after(4*time.Second)) != 0 || k.fruitless(after(4*time.Second)) != 0 {
		t.Error("a tick that nobody needs is waited for")
	}
	if !k.end() {
		t.Error("a tick that may be stored is forgotten")
	}
	k.ended = false
	send(4 * time.Second)
	if k.silent(after(5*time.Second)) != time.Second || k.fruitless(after(5*time.Second)) != time.Second {
		t.Error("a tick is waited for since before it was sent, or not at all")
	}
	k.back(after(4*time.Second), after(5*time.Second))
	if k.fruitless(after(6*time.Second)) != 0 || k.silent(after(6*time.Second)) != 0 || k.until().After(after(5*time.Second)) || k.end() {
		t.Error("a tick that came back is still waited for")
	}
}
