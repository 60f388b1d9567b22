package engine

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/carillon-scheduler/carillon/engine/internal/memtable"
)

// moved writes a checkpoint with the state that a restore gives it.
type moved struct {
	*memtable.Build
	t *testing.T
}

func (b moved) State(position uint64, state []byte) {
	s, err := ReadState(state)
	if err != nil {
		b.t.Fatal(err)
	}
	if again := s.machine.appendState(nil); !bytes.Equal(again, state) {
		b.t.Fatalf("a state that was read is another:\n% x\n% x", state, again)
	}
	b.Build.State(position, s.OnNewStreams(0))
}

// TestRestoredMonth restores a machine from its checkpoint and lets both go on for a month: every later output is
// the same.
func TestRestoredMonth(t *testing.T) {
	f := newFeed(t)
	hour := time.Hour.Milliseconds()
	for i := range 60 {
		f.put(fmt.Sprintf("cron-%d", i), fmt.Sprintf(`{"schedule":"%d %d * * *","zone":"Europe/Paris","spread":"10m","payload":{"n": %d}}`, i, i%24, i))
		f.put(fmt.Sprintf("every-%d", i), fmt.Sprintf(`{"schedule":"@every %dm","misfire":"fire_all","max_fires":%d}`, 7+i, 100+i))
		f.put(fmt.Sprintf("once-%d", i), fmt.Sprintf(`{"schedule":"@in %dh","priority":"high"}`, 12*(i+1)))
	}
	for range 50 {
		f.now += hour
		f.tick(1000)
	}
	// Some changes of all kinds, outputs that are not known to be stored, forced fires and a refusal that wait.
	f.apply(&Entry{Kind: KindDelete, Verb: "delete", Job: "every-3"})
	f.apply(&Entry{Kind: KindPause, Verb: "pause", Job: "cron-4"})
	f.now += 3 * hour
	f.apply(&Entry{Kind: KindTick, Ticks: []Tick{{To: f.now, Epoch: 1, Limit: 20}}})
	f.apply(&Entry{Kind: KindFire, Verb: "fire", Job: "cron-5"})
	f.apply(&Entry{Kind: KindDelete, Verb: "delete", Job: "nobody"})
	held := f.m.Made() - f.m.Acked().Output
	if held == 0 || f.m.Stats().Ready == 0 || len(f.m.rejected) == 0 {
		t.Fatalf("%d outputs held, %+v: nothing to lose", held, f.m.Stats())
	}

	var table memtable.Table
	b := moved{table.Begin(), t}
	f.m.Export(b, f.m.position)
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	other := &feed{t: t, m: open(t, f.m, table.View()), seq: f.seq, now: f.now}
	if a := other.m.Acked(); a.Output != f.m.Acked().Output || a.Seq != 0 {
		t.Fatalf("acked %+v, the original's %+v", a, f.m.Acked())
	}
	// A new stream has nothing, so the outputs that are held come first.
	from, err := other.m.LastStored(StreamEnd{})
	outputs, ok := other.m.Outbox(from)
	if err != nil || !ok || uint64(len(outputs)) != held || outputs[0].Number != f.m.Acked().Output+1 {
		t.Fatalf("after %d: %d outputs, %v, %v", from, len(outputs), ok, err)
	}

	fired := func(m *Machine) *[]string {
		list := new([]string)
		m.Listen(Listener{Made: func(o *Output) {
			*list = append(*list, fmt.Sprintf("%d %s v%d %d %s %s", o.Number, o.ID(), o.Version, o.Missed, o.Event, o.Payload()))
		}})
		return list
	}
	want, got := fired(f.m), fired(other.m)
	both := []*feed{f, other}
	for _, x := range both {
		c := Rules()
		c.Node, c.RetentionMS, c.CompletedMax = "n2", 3_600_000, 100_000
		x.apply(&Entry{Kind: KindClaim, Claim: c})
	}
	epoch := f.seq
	for i := range 30 * 24 {
		for _, x := range both {
			x.now += hour
			if i == 100 {
				x.apply(&Entry{Kind: KindResume, Verb: "resume", Job: "cron-4"})
				x.put("every-3", `{"schedule":"@every 50m"}`)
			}
			made := x.m.Made()
			acked := Acked{made, made}
			if x == other {
				acked.Seq = made - from
			}
			x.apply(&Entry{Kind: KindTick, Ticks: []Tick{{To: x.now, Epoch: epoch, Limit: 50, Acked: acked}}})
		}
	}
	if d := cmp.Diff(*want, *got); d != "" {
		t.Fatalf("later outputs (-original +restored):\n%s", d)
	}
	if len(*want) < 5000 || f.m.Stats().Made != other.m.Stats().Made {
		t.Fatalf("%d outputs; made %d and %d", len(*want), f.m.Stats().Made, other.m.Stats().Made)
	}
}

// Outputs that are stored elsewhere are left out of a new stream; no output is that was not made, and none comes back.
func TestOnNewStreams(t *testing.T) {
	f := newFeed(t)
	f.put("job", `{"schedule":"@every 1s"}`)
	for range 3 {
		f.now += 1000
		f.tick(1)
	}
	f.tick(0)
	f.m.outbox.acked.Output = 1
	for stored, want := range []uint64{1, 1, 2, 3, 3} {
		s, err := ReadState(f.m.appendState(nil))
		if err != nil {
			t.Fatal(err)
		}
		if s, err = ReadState(s.OnNewStreams(uint64(stored))); err != nil || s.machine.outbox.acked != (Acked{Output: want}) {
			t.Errorf("stored elsewhere are %d of %d: it goes on after %+v, want %d: %v", stored, s.Made, s.machine.outbox.acked, want, err)
		}
	}
}

func TestReadStateRefuses(t *testing.T) {
	whole := newFeed(t).m.appendState(nil)
	for n := range whole {
		if _, err := ReadState(whole[:n]); !errors.Is(err, ErrCheckpoint) {
			t.Fatalf("the first %d of %d bytes: %v", n, len(whole), err)
		}
	}
	if _, err := ReadState(append(whole, 0)); !errors.Is(err, ErrCheckpoint) {
		t.Fatalf("a byte too many: %v", err)
	}
}
