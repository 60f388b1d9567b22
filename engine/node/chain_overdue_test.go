package node

import (
	"cmp"
	"log/slog"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// Late answers are waited for as long as they come, and for two seconds if none comes. The wait is shorter if the stream says that it
// has none of the messages, or all of them. Answers of a leader that is gone are not waited for.
func TestLateAnswers(t *testing.T) {
	began := time.Now()
	at := func(after time.Duration) time.Time { return began.Add(after) }
	const step = overdueMost - overdueAsk
	for name, looks := range map[string][]struct {
		late   uint64 // told before the look: a message is late, and this is the newest in flight; 0: none is
		stored uint64
		last   uint64 // of the stream; 0: one more than was answered
		took   time.Duration
		leader bool // the same
		after  time.Duration
		want   verdict
	}{
		"all come":            {{late: 9, stored: 5, leader: true, want: waitOn}, {stored: 9, leader: true, after: time.Hour, want: goOn}},
		"they came before":    {{late: 9, stored: 12, leader: true, want: goOn}},
		"more are late":       {{late: 9, stored: 5, leader: true, want: waitOn}, {late: 20, stored: 9, leader: true, want: waitOn}},
		"one by one":          {{late: 9, stored: 5, leader: true, want: waitOn}, {stored: 6, leader: true, after: step, want: waitOn}, {stored: 7, leader: true, after: 2 * step, want: waitOn}, {stored: 9, leader: true, after: 3 * step, want: goOn}},
		"no more come":        {{late: 9, stored: 5, leader: true, want: waitOn}, {stored: 6, leader: true, after: step, want: waitOn}, {stored: 6, leader: true, after: 2 * step, want: waitOn}, {stored: 6, leader: true, after: 2*step + 2*overdueAsk, want: giveUp}},
		"none come":           {{late: 9, leader: true, want: waitOn}, {leader: true, after: overdueMost, want: waitOn}, {leader: true, after: overdueMost + 1, want: giveUp}},
		"word after word":     {{late: 9, stored: 5, leader: true, want: waitOn}, {late: 20, stored: 5, leader: true, after: step, want: waitOn}, {late: 30, stored: 5, leader: true, after: overdueMost + 1, want: giveUp}},
		"it has none of them": {{late: 9, stored: 5, last: 5, leader: true, want: waitOn}, {stored: 5, last: 5, leader: true, after: noneFor, want: waitOn}, {stored: 5, last: 5, leader: true, after: noneFor + 1, want: giveUp}},
		"it had none before":  {{late: 9, stored: 5, last: 5, leader: true, want: waitOn}, {stored: 5, last: 6, leader: true, after: noneFor, want: waitOn}, {stored: 5, last: 5, leader: true, after: noneFor + 1, want: waitOn}},
		"it has none of more": {{late: 9, stored: 5, last: 5, leader: true, want: waitOn}, {stored: 6, last: 6, leader: true, after: noneFor + 1, want: waitOn}},
		"none, it says late":  {{late: 9, stored: 5, last: 5, took: quickAnswer + 1, leader: true, want: waitOn}, {stored: 5, last: 5, leader: true, after: noneFor + 1, want: waitOn}},
		"it has all of them":  {{late: 9, stored: 5, last: 9, leader: true, want: waitOn}, {stored: 5, last: 9, leader: true, after: allFor, want: waitOn}, {stored: 5, last: 9, leader: true, after: allFor + 1, want: giveUp}},
		"all but one":         {{late: 9, stored: 5, last: 8, leader: true, want: waitOn}, {stored: 5, last: 8, leader: true, after: allFor + 1, want: waitOn}},
		"all, and they come":  {{late: 9, stored: 5, last: 9, leader: true, want: waitOn}, {stored: 6, last: 9, leader: true, after: allFor + 1, want: waitOn}},
		"all, it says late":   {{late: 9, stored: 5, last: 9, leader: true, want: waitOn}, {stored: 5, last: 9, took: quickAnswer + 1, leader: true, after: allFor + 1, want: waitOn}},
		"another leader":      {{late: 9, stored: 5, want: giveUp}},
		"another, but it did": {{late: 9, stored: 9, want: goOn}},
	} {
		var o overdue
		for i, look := range looks {
			o.tell(look.late)
			said := streamAnswer{cmp.Or(look.last, look.stored+1), look.leader, look.took}
			if got := o.judge(look.stored, said, at(look.after)); got != look.want {
				t.Errorf("%s: look %d says %d, want %d", name, i, got, look.want)
			}
		}
	}
}

// A chain is given up at once if its stream answers after an election, even one that the same server won, but not if all messages
// have been answered. The reason says whether it was that, or that no message is answered. A stream that says nothing has not said for any
// while that it has none of the messages, or all.
func TestLateAcrossElections(t *testing.T) {
	for name, look := range map[string]struct {
		leader streams.Leader
		late   uint64
		silent time.Duration // since when no message has been answered
		lost   bool          // the chain, meanwhile
		err    error
		want   verdict
		lostBy error
	}{
		"none":              {leader: streams.Leader{Name: "a", Since: "1"}, late: 1, want: waitOn},
		"another server":    {leader: streams.Leader{Name: "b", Since: "2"}, late: 1, want: giveUp, lostBy: errElected},
		"the same":          {leader: streams.Leader{Name: "a", Since: "2"}, late: 1, want: giveUp, lostBy: errElected},
		"none, for long":    {leader: streams.Leader{Name: "a", Since: "1"}, late: 1, silent: 2 * overdueMost, want: giveUp, lostBy: errNoAnswer},
		"all were answered": {leader: streams.Leader{Name: "a", Since: "2"}, want: goOn},
		"lost already":      {leader: streams.Leader{Name: "a", Since: "1"}, late: 1, lost: true, want: giveUp},
		"no answer":         {leader: streams.Leader{Name: "b", Since: "2"}, late: 1, err: streams.ErrDisconnected, want: waitOn},
	} {
		n := &Node{log: slog.New(slog.DiscardHandler), meters: newMeters(nil)}
		p := &partition{chain: engine.NewChain(), leader: streams.Leader{Name: "a", Since: "1"}, resyncing: true}
		p.chain.Resume(0, 0, nil)
		p.overdue.tell(look.late)
		now := time.Now()
		p.overdue.none, p.overdue.all = now, now
		if look.silent > 0 {
			p.overdue.since = now.Add(-look.silent)
		}
		if look.lost {
			p.chain.Lose()
		}
		if got := n.judgeAnswers(p, streams.Info{Leader: look.leader}, 0, look.err); got != look.want {
			t.Errorf("%s: the verdict is %d, want %d", name, got, look.want)
		}
		if lost, going := p.chain.Lost(), !p.resyncing; lost != (look.want == giveUp) || going != (look.want == goOn) {
			t.Errorf("%s: the chain is lost: %t, and nobody waits any more: %t", name, lost, going)
		}
		if p.lostBy != look.lostBy {
			t.Errorf("%s: the chain is lost by %v, want %v", name, p.lostBy, look.lostBy)
		}
		if o := p.overdue; look.err != nil && !(o.none.IsZero() && o.all.IsZero()) {
			t.Errorf("%s: it counts as one that has none of the messages, or all", name)
		}
	}
}
