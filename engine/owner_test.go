package engine

import (
	"fmt"
	"testing"
)

// An owner that has no room for outputs yet ticks only to keep the partition going: at once if nobody has ticked for a
// while, but not if the former owner did a moment ago.
func TestOwnerWithoutRoom(t *testing.T) {
	f := newFeed(t)
	f.put("j", `{"schedule":"@every 10ms"}`)
	f.tick(100)
	f.now += 20
	f.tick(100)
	ticked := f.now
	f.apply(&Entry{Kind: KindClaim, Claim: f.m.claim}) // somebody takes over
	o := Owner{Epoch: f.seq}
	for _, c := range []struct {
		after int64
		room  int
		ticks bool
	}{{30, 0, false}, {keepAlive - 1, 0, false}, {30, 1, true}, {keepAlive, 0, true}} {
		now := ticked + c.after
		wake := o.Wake(f.m, now, 0, c.room, Acked{})
		_, ticks := (&Owner{Epoch: o.Epoch}).Tick(f.m, now, 0, c.room, Acked{})
		if ticks != c.ticks || (wake <= now) != c.ticks {
			t.Errorf("%d ms after the last tick, with room for %d: ticks %t, to be asked in %d ms; want %t", c.after, c.room, ticks, wake-now, c.ticks)
		}
	}
	for _, c := range []struct { // its own tick counts before it comes back
		after int64
		ticks bool
	}{{keepAlive, true}, {keepAlive + 1, false}, {2*keepAlive - 1, false}, {2 * keepAlive, true}} {
		if _, ticks := o.Tick(f.m, ticked+c.after, 0, 0, Acked{}); ticks != c.ticks {
			t.Errorf("%d ms after the last tick it ticks: %t", c.after, ticks)
		}
	}
	for _, epoch := range []uint64{0, f.seq - 1, f.seq + 1} {
		if wake := (&Owner{Epoch: epoch}).Wake(f.m, f.now+keepAlive, 0, 1, Acked{}); wake != none {
			t.Errorf("an owner of epoch %d is to be asked at %d", epoch, wake)
		}
	}
}

// An owner ticks as soon as something is due within the lead, and no sooner.
func TestOwnerTicksAhead(t *testing.T) {
	const lead = 4
	layout := Layout{Prefix: "carillon", Partitions: 3}
	partition := PartitionOf("j", layout.Partitions)
	f := &feed{t: t, m: New(layout, partition), now: testEpoch}
	claim := Rules()
	claim.Node = "n1"
	f.apply(&Entry{Kind: KindClaim, Claim: claim})
	f.put("j", `{"schedule":"@in 10ms"}`)
	o := Owner{Epoch: f.seq - 1}
	due := f.now + 10
	for _, c := range []struct {
		before int64 // ms, of what is due
		ticks  bool
	}{{10, false}, {lead + 1, false}, {lead, true}} {
		now := due - c.before
		wake := o.Wake(f.m, now, lead, 100, Acked{})
		tick, ticks := o.Tick(f.m, now, lead, 100, Acked{})
		if ticks != c.ticks || wake != due-lead {
			t.Errorf("%d ms before something is due, it ticks: %t, to be asked in %d ms; the lead is %d ms", c.before, ticks, wake-now, lead)
		}
		if ticks && (tick.To != due || tick.Partition != partition || tick.Epoch != o.Epoch || tick.Limit != 100) {
			t.Errorf("it ticks %+v", tick)
		}
	}
}

// Outputs that became durable are worth a tick of their own, but once a second at most. After that a partition at rest gets no ticks.
func TestOwnerTellsAcks(t *testing.T) {
	f := newFeed(t)
	o := Owner{Epoch: f.seq}
	f.put("j", `{"schedule":"@in 10ms"}`)
	f.now += 10
	tick := func(durable Acked) string {
		tick, ok := o.Tick(f.m, f.now, 0, 100, durable)
		if ok {
			f.apply(&Entry{Kind: KindTick, Ticks: []Tick{tick}})
		}
		return fmt.Sprint(ok, tick.Acked.Output, f.m.Made())
	}
	made := Acked{1, 1}
	for _, c := range []struct {
		after   int64
		durable Acked
		want    string
		wake    int64 // ms from now; none: never
	}{
		{0, Acked{}, "true 0 1", none},
		{1, Acked{}, "false 0 1", none},
		{ackPause - 2, made, "false 0 1", 1},
		{1, made, "true 1 1", none},
		{ackPause, made, "false 0 1", none},
	} {
		f.now += c.after
		if got := tick(c.durable); got != c.want {
			t.Errorf("%d ms later, durable %+v: %s, want %s", c.after, c.durable, got, c.want)
		}
		wake := o.Wake(f.m, f.now, 0, 100, c.durable)
		if wake != none {
			wake -= f.now
		}
		if wake != c.wake {
			t.Errorf("%d ms later, durable %+v: to be asked in %d ms, want %d", c.after, c.durable, wake, c.wake)
		}
	}
	if _, ok := new(Owner).Tick(New(oneOfOne, 0), f.now, 0, 100, made); ok {
		t.Error("a partition is ticked that nobody claimed")
	}
}

// What is due has waited for a tick since it came due, or since the record that brought it: not since the last tick.
func TestDueSince(t *testing.T) {
	const late = `{"schedule":"@at 2020-01-01T00:00:00Z"}`
	missing := Entry{Kind: KindDelete, Verb: "delete", Job: "nobody"}
	for name, c := range map[string]struct {
		after func(f *feed) // what comes a minute after the last tick; the timer is due half a minute after that tick
		timer bool
		want  int64 // ms after that tick; -1: nothing waits
	}{
		"nothing":                            {func(*feed) {}, false, -1},
		"a timer":                            {func(*feed) {}, true, 30_000},
		"a refusal":                          {func(f *feed) { f.apply(&missing) }, false, 60_000},
		"a refusal and another one":          {func(f *feed) { f.apply(&missing); f.now += 1000; f.apply(&missing) }, false, 60_000},
		"a one-shot of the past":             {func(f *feed) { f.put("past", late) }, false, 60_000},
		"a one-shot of the past, deleted":    {func(f *feed) { f.put("past", late); f.apply(&Entry{Kind: KindDelete, Verb: "delete", Job: "past"}) }, false, -1},
		"a refusal behind a timer":           {func(f *feed) { f.apply(&missing) }, true, 30_000},
		"a one-shot of the past and a timer": {func(f *feed) { f.put("past", late) }, true, 30_000},
	} {
		for _, ticked := range []bool{true, false} {
			f := newFeed(t)
			last := f.now
			if ticked {
				f.tick(100)
			}
			if c.timer {
				f.put("timer", `{"schedule":"@in 30s"}`)
			}
			f.now += 60_000
			c.after(f)
			if at, ok := f.m.DueSince(); ok != (c.want >= 0) || ok && at != last+c.want {
				t.Errorf("%s, after a tick: %t: since %d ms, %t", name, ticked, at-last, ok)
			}
			restarted := open(t, f.m, wholeOf(t, f.m))
			if at, ok := restarted.DueSince(); ok != (c.want >= 0) || ok && (at < last+c.want || at > f.now) {
				t.Errorf("%s, after a tick: %t: after a restart since %d ms, %t", name, ticked, at-last, ok)
			}
			f.now += 10
			f.tick(100)
			if at, ok := f.m.DueSince(); ok && at <= f.now {
				t.Errorf("%s: after a tick something is due", name)
			}
		}
	}
}
