package node

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// What a node concludes from a view: which partitions it has to follow, whether others do, and how much of the log they need.
func TestPlacement(t *testing.T) {
	layout := engine.Layout{Prefix: "carillon", Partitions: 3}
	n := &Node{o: Options{Name: "a", Follow: FollowPlaced}}
	for i := range layout.Partitions {
		n.partitions = append(n.partitions, &partition{number: i, machine: engine.New(layout, i)})
	}
	n.partitions[0].follows.Store(true)
	n.partitions[2].follows.Store(true)
	n.applied.Store(100_000)
	beat := func(name string, needs uint64, follows ...cluster.Progress) cluster.Beat {
		return cluster.Beat{Node: cluster.Node{Name: name}, Report: cluster.Report{Needs: needs, Partitions: follows}}
	}
	placement := cluster.Placement{{Owner: "a", Standbys: []string{"b"}}, {Owner: "b", Standbys: []string{"a"}}, {Owner: "b", Standbys: []string{"c"}}}
	v := cluster.View{Placement: placement, Members: []cluster.Beat{
		beat("b", 70, cluster.Progress{Partition: 1, Position: 99_000, Epoch: 5}, cluster.Progress{Partition: 2, Position: 99_000, Epoch: 6}),
		beat("c", 90, cluster.Progress{Partition: 1, Position: 98_000}, cluster.Progress{Partition: 2, Position: 99_500}),
	}}

	if got, want := n.followProblems(v), []string{"partition 1 is placed here and not followed yet"}; !slices.Equal(got, want) {
		t.Errorf("to follow: %q", got)
	}
	why := errors.New("there is no room")
	n.partitions[1].followError.Store(&why)
	if got, want := n.followProblems(v), []string{"partition 1 is placed here and not followed yet: there is no room"}; !slices.Equal(got, want) {
		t.Errorf("to follow, once that was tried: %q", got)
	}
	if n.shouldFollow(v, n.partitions[2]) {
		t.Error("one that is placed elsewhere is to be followed")
	}
	n.partitions[2].owner.Epoch = 4
	if !n.shouldFollow(v, n.partitions[2]) {
		t.Error("one that is served is not to be followed")
	}
	n.partitions[2].owner.Epoch = 0
	n.partitions[2].claiming = true
	if !n.shouldFollow(v, n.partitions[2]) {
		t.Error("one that may come to be served is not to be followed")
	}
	n.partitions[2].claiming = false
	n.partitions[2].stopped = errors.New("stopped")
	if !n.shouldFollow(v, n.partitions[2]) {
		t.Error("one that stopped is not to be followed, and cannot be looked at")
	}
	n.partitions[2].stopped = nil
	n.o.Follow = FollowAll
	if !n.shouldFollow(v, n.partitions[2]) {
		t.Error("of all partitions one is not to be followed")
	}
	if got := n.followProblems(cluster.View{}); got != nil {
		t.Errorf("without a placement: %q", got)
	}

	if !n.followedAsPlaced(v, 2) {
		t.Error("those on whom a partition is placed follow it, and it may not be given up")
	}
	for what, spoil := range map[string]func(b *cluster.Beat){
		"its owner does not follow it": func(b *cluster.Beat) { b.Partitions = b.Partitions[:1] },
		"its owner is far behind":      func(b *cluster.Beat) { b.Partitions[1].Position = 100_000 - caughtUp - 1 },
		"nobody serves it":             func(b *cluster.Beat) { b.Partitions[1].Epoch = 0 },
	} {
		w := v
		w.Members = slices.Clone(v.Members)
		w.Members[0].Partitions = slices.Clone(v.Members[0].Partitions)
		spoil(&w.Members[0])
		if n.followedAsPlaced(w, 2) {
			t.Errorf("%s, and it may be given up", what)
		}
	}

	w := v
	w.Members = slices.Clone(v.Members)
	w.Members[1].Partitions = w.Members[1].Partitions[:1]
	n.applied.Store(caughtUp)
	if n.followedAsPlaced(w, 2) {
		t.Error("its standby does not follow it, the log is young, and it may be given up")
	}
	n.applied.Store(100_000)

	n.partitions[0].checkpoint.Store(99_200)
	n.partitions[2].checkpoint.Store(99_001)
	if n.followedAsPlaced(v, 2) {
		t.Error("the log may be cut beyond where its owner is, and it may be given up")
	}
	n.partitions[2].checkpoint.Store(99_000)
	if !n.followedAsPlaced(v, 2) {
		t.Error("its owner has all that may be cut, and it may not be given up")
	}

	n.logUsage.update(streams.Info{First: 99_002}, 0)
	if n.followedAsPlaced(v, 2) {
		t.Error("the log begins beyond where its owner is, and it may be given up")
	}
	n.logUsage.update(streams.Info{First: 99_001}, 0)
	if !n.followedAsPlaced(v, 2) {
		t.Error("the log begins where its owner is, and it may not be given up")
	}

	if got := n.neededToFollow(v); got != 90 {
		t.Errorf("of partition 1 the log above %d is kept for one who follows it, want 90", got)
	}
	if got := n.neededToFollow(cluster.View{Placement: placement}); got != 0 {
		t.Errorf("of a partition that nobody follows the log above %d is kept", got)
	}
	n.partitions[1].follows.Store(true)
	if got := n.neededToFollow(cluster.View{}); got != math.MaxUint64-1 {
		t.Errorf("who follows all keeps what is above %d for others", got)
	}

	w = cluster.View{Members: append(slices.Clone(v.Members), beat("a", 10)), Silent: []cluster.Beat{beat("d", 50)}}
	for held, want := range map[uint64]uint64{4: 50, 5: 70, 6: 70, 7: math.MaxUint64 - 1} {
		n.logUsage.update(streams.Info{Bytes: held, MaxBytes: 8, First: 99_001}, 0)
		if got := n.neededBy(w); got != want {
			t.Errorf("with %d eighths of the stream in use what is above %d is kept for others, want %d", held, got, want)
		}
	}

	// While a checkpoint was waited for, the nodes on which the partition is placed may have died.
	if err := n.unfollow(t.Context(), n.partitions[2]); err != nil || !n.partitions[2].follows.Load() {
		t.Errorf("a partition that nobody else follows is given up: %v", err)
	}
}

// A partition that others follow and serve is given up after a while, once its commands are answered, and nothing of it is left. It is kept
// while this node serves or claims it, if it stopped, and while partitions are saved.
func TestGiveUp(t *testing.T) {
	n := withTables(t, Options{Data: t.TempDir(), Name: "a", Linger: time.Second}, 1)
	nc, _ := openStreams(t)
	joinBeside(t, n, nc, cluster.Report{Draining: true})
	joinAs(t, nc, "b", 1, cluster.Report{Partitions: []cluster.Progress{{Position: 10, Epoch: 5}}})
	natstest.Eventually(t, "it is placed on the other node, which serves it", func() bool { return n.followedAsPlaced(n.view(), 0) })
	p := n.partitions[0]
	n.applied.Store(10)
	if err := n.takeCheckpoint(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	p.older.Store(5)
	p.sentClaim = true
	machine := p.machine
	giveUp := func(since time.Duration) {
		t.Helper()
		if err := n.followOrGiveUp(t.Context(), p, n.view(), false, since); err != nil {
			t.Error(err)
		}
	}
	left := func() int {
		list, err := n.jobTable.List(0)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	kept := func(why string) {
		t.Helper()
		if !p.follows.Load() || p.checkpoint.Load() != 10 || !p.sentClaim || p.needs.Load() != 0 || p.unfollowing.Load() || left() != 1 {
			t.Errorf("%s, and it is given up, or requests are refused", why)
		}
	}
	giveUp(n.o.Linger - 1)
	kept("it may come back")
	for why, is := range map[string]func(bool){
		"it is served":          func(is bool) { p.owner.Epoch = map[bool]uint64{true: 4}[is] },
		"a claim is on its way": func(is bool) { p.claiming = is },
		"it stopped":            func(is bool) { p.stopped = map[bool]error{true: errStopped}[is] },
		"partitions are saved": func(is bool) {
			if is {
				n.saveLock.RLock()
			} else {
				n.saveLock.RUnlock()
			}
		},
	} {
		is(true)
		giveUp(n.o.Linger)
		is(false)
		kept(why)
	}

	p.unanswered.Add(1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for p.follows.Load() { // on a busy machine the other node may seem dead for a moment
			giveUp(n.o.Linger)
		}
	}()
	natstest.Eventually(t, "new requests go to other nodes", func() bool { return p.unfollowing.Load() })
	if !p.follows.Load() {
		t.Error("it is given up before its commands are answered")
	}
	p.unanswered.Add(-1)
	natstest.Receive(t, "it is given up", done)
	if p.follows.Load() || p.machine == machine || p.checkpoint.Load() != 0 || p.older.Load() != 0 || p.checkpointWaiters.Load() != 0 ||
		p.sentClaim || p.needs.Load() != 0 || p.unfollowing.Load() || left() > 0 {
		t.Error("something of it is left")
	}
	if !n.saveLock.TryLock() || !p.checkpointing.TryLock() || !p.mu.TryLock() {
		t.Error("a lock is left")
	}
}
