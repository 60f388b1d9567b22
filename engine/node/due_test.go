package node

import (
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// Which partitions a node claims: those that nobody serves do not wait for those that somebody hands over, and while the
// network is slow fewer or none.
func TestDue(t *testing.T) {
	n := &Node{o: Options{Name: "a"}}
	for i := range 4 {
		p := &partition{number: i}
		p.follows.Store(true)
		n.partitions = append(n.partitions, p)
	}
	n.partitions[3].owner.Epoch = 9
	progress := func(epochs ...uint64) (all []cluster.Progress) {
		for i, e := range epochs {
			all = append(all, cluster.Progress{Partition: i, Position: 100, Epoch: e})
		}
		return all
	}
	beat := func(name string, epochs ...uint64) cluster.Beat {
		return cluster.Beat{Node: cluster.Node{Name: name}, Report: cluster.Report{Partitions: progress(epochs...)}}
	}
	mine := cluster.Seat{Owner: "a"}
	v := cluster.View{
		Placement: cluster.Placement{mine, mine, {Owner: "b"}, mine},
		Members:   []cluster.Beat{beat("a", 0, 0, 0, 9), beat("b", 7, 0, 8, 0)},
	}
	type numbers struct{ Unserved, Served []int }
	for name, c := range map[string]struct {
		slow slowness
		want numbers
	}{
		"quick":             {slowness{}, numbers{Unserved: []int{1}, Served: []int{0}}},
		"slow a moment ago": {slowness{self: true}, numbers{Unserved: []int{1}}},
		"slow":              {slowness{now: true, self: true}, numbers{}},
	} {
		var got numbers
		unserved, served := n.due(v, c.slow)
		for _, p := range unserved {
			got.Unserved = append(got.Unserved, p.number)
		}
		for _, p := range served {
			got.Served = append(got.Served, p.number)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	n.partitions[1].claimed = time.Now()
	if unserved, _ := n.due(v, slowness{}); len(unserved) > 0 {
		t.Error("one that was claimed a moment ago is due again")
	}
}

// A claim that the log did not take is due again at once.
func TestClaimAgain(t *testing.T) {
	nc, s := openStreams(t)
	n := &Node{streams: s, layout: engine.Layout{Prefix: "carillon", Partitions: 1}, log: slog.New(slog.DiscardHandler)}
	p := &partition{machine: engine.New(n.layout, 0)}
	p.follows.Store(true)
	nc.Close()
	n.claim(p)
	if !n.mayClaim(p) {
		t.Errorf("it may not be claimed, claiming: %t, claimed %s", p.claiming, p.claimed)
	}
}

// A chain that is lost by an answer that leaves one out is taken up again by whoever sleeps, and counts.
func TestAnswerLeftOut(t *testing.T) {
	bell, err := newAlarm()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(bell.close)
	n := &Node{log: slog.New(slog.DiscardHandler), meters: newMeters(nil), bell: bell}
	rang := func() bool {
		select {
		case <-n.bell.rang:
			return true
		default:
			return false
		}
	}
	p := &partition{chain: engine.NewChain()}
	p.chain.Confirm()
	p.chain.Resume(0, 0, []engine.Output{{Number: 1}, {Number: 2}, {Number: 3}})
	send := func() {
		if _, ok := p.chain.Next(0); !ok {
			t.Fatal("nothing is sent")
		}
	}
	send()
	n.acked(p, p.run, 1, nil)
	send()
	send()
	rang() // for that
	n.acked(p, p.run, 3, nil)
	if !rang() {
		t.Error("nobody is woken")
	}
	n.acked(p, p.run, 2, streams.ErrDisconnected) // too late to count once more
	if !p.chain.Lost() || n.meters.lost.Get() != 1 {
		t.Errorf("lost: %t, %d times", p.chain.Lost(), n.meters.lost.Get())
	}
}
