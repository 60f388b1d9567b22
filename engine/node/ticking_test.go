package node

import (
	"errors"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// After a tick that does not come back others are sent, and sooner after one that is refused. When a tick comes back, those
// before it are no longer waited for, even if some are missing. Ticks that are refused count as failing, as those that are
// not answered, unless the log is full.
func TestTicking(t *testing.T) {
	began := time.Now()
	after := func(d time.Duration) time.Time { return began.Add(d) }
	var k ticking
	tick := func(d time.Duration) engine.Tick { return engine.Tick{To: d.Milliseconds()} }
	send := func(d time.Duration) {
		t.Helper()
		if k.until().After(after(d)) || !k.start([]engine.Tick{tick(d)}, after(d)) {
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
	k.returned(after(tickAgain), after(time.Second))
	waits(0, false)
	waits(tickAgain, false)
	waits(2*tickAgain, true)
	other := tick(2 * tickAgain)
	other.Epoch++
	if _, ours := k.ours(&engine.Entry{Ticks: []engine.Tick{other}}); ours {
		t.Error("a tick of another owner is taken for this one's")
	}
	if got := k.silentFor(after(3 * time.Second)); got != 2*time.Second {
		t.Errorf("ticks have been unanswered for %s", got)
	}
	k.fail(began, streams.ErrNoStream)
	if k.refused() != nil {
		t.Error("the word about a tick counts for another")
	}
	k.fail(after(2*tickAgain), streams.ErrTimeout)
	if k.refused() != nil || k.silentFor(after(2*time.Second)) != time.Second || k.end() != true {
		t.Error("a tick that was not answered counts as refused")
	}
	k.ended = false

	send(2*tickAgain + tickPause)
	k.fail(after(2*tickAgain+tickPause), streams.ErrNoStream)
	if k.silentFor(after(2*time.Second)) != 0 || !errors.Is(k.refused(), streams.ErrNoStream) {
		t.Error("a refusal is no answer")
	}
	if got := k.failingFor(after(2 * time.Second)); got != time.Second {
		t.Errorf("ticks have been fruitless for %s", got)
	}
	send(2*tickAgain + 2*tickPause)
	waits(2*tickAgain+tickPause, false)
	k.fail(after(2*tickAgain+2*tickPause), streams.ErrNoSpace)
	if k.failingFor(after(4*time.Second)) != 0 {
		t.Error("a node counts as stuck for a log that is full")
	}
	// When everything that was due has been applied, no tick is waited for.
	k.setIdle()
	if k.refused() != nil || k.silentFor(after(4*time.Second)) != 0 || k.failingFor(after(4*time.Second)) != 0 {
		t.Error("a tick that nobody needs is waited for")
	}
	if !k.end() {
		t.Error("a tick that may be stored is forgotten")
	}
	k.ended = false
	send(4 * time.Second)
	if k.silentFor(after(5*time.Second)) != time.Second || k.failingFor(after(5*time.Second)) != time.Second {
		t.Error("a tick is waited for since before it was sent, or not at all")
	}
	k.returned(after(4*time.Second), after(5*time.Second))
	if k.failingFor(after(6*time.Second)) != 0 || k.silentFor(after(6*time.Second)) != 0 || k.until().After(after(5*time.Second)) || k.end() {
		t.Error("a tick that came back is still waited for")
	}
	if k.start([]engine.Tick{tick(6 * time.Second)}, after(6*time.Second)) {
		t.Error("a tick goes out after the end")
	}
}

// Of the ticks that never come back only the newest are kept track of.
func TestTicksInFlightAreBounded(t *testing.T) {
	var k ticking
	for to := range int64(2 * ticksInFlight) {
		k.start([]engine.Tick{{To: to}}, time.UnixMilli(to))
	}
	if first := k.inFlight[0].to; len(k.inFlight) != ticksInFlight || first != ticksInFlight {
		t.Errorf("%d ticks are kept track of, from %d on", len(k.inFlight), first)
	}
	if k.abort(); k.end() {
		t.Error("ticks that are given up are waited for")
	}
}

// The lead depends on how long ticks take, between its bounds.
func TestLead(t *testing.T) {
	var k ticking
	for _, c := range []struct {
		takes time.Duration
		ticks int
		want  int64
	}{
		{0, 0, leadMin},
		{100 * time.Microsecond, 1000, leadMin},
		{3500 * time.Microsecond, 1000, 4},
		{time.Second, 1, leadMax},
		{200 * time.Microsecond, 1000, leadMin},
	} {
		for range c.ticks {
			k.returned(time.UnixMilli(0), time.UnixMilli(0).Add(c.takes))
		}
		if got := k.lead(); got != c.want {
			t.Errorf("after %d ticks of %s the lead is %d ms, want %d", c.ticks, c.takes, got, c.want)
		}
	}
	for i := range 100 { // as often quick as slow
		k.returned(time.UnixMilli(0), time.UnixMilli(int64(i%2*4)))
	}
	if got := k.lead(); got != leadMax {
		t.Errorf("where ticks take from 0 to 4 ms the lead is %d ms, want %d", got, leadMax)
	}
}
