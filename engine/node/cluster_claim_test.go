package node

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/micro"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/servers"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// Which partitions a node claims. Those that nobody serves do not wait for those that another node hands over. While the
// network is slow, a node claims fewer or none.
func TestDueClaims(t *testing.T) {
	n := &Node{o: Options{Name: "a"}}
	layout := engine.Layout{Prefix: "carillon", Partitions: 4}
	for i := range 4 {
		p := &partition{number: i, machine: engine.New(layout, i)}
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
	mine := cluster.Assignment{Owner: "a"}
	v := cluster.View{
		Placement: cluster.Placement{mine, mine, {Owner: "b"}, mine},
		Members:   []cluster.Beat{beat("a", 0, 0, 0, 9), beat("b", 7, 0, 8, 0)},
	}
	type numbers struct{ AtOnce, UpToDate []int }
	for name, c := range map[string]struct {
		slow servers.Slowness
		want numbers
	}{
		"quick":             {servers.Slowness{}, numbers{AtOnce: []int{1}, UpToDate: []int{0}}},
		"slow a moment ago": {servers.Slowness{Self: true}, numbers{AtOnce: []int{1}}},
		"slow":              {servers.Slowness{Now: true, Self: true}, numbers{}},
	} {
		var got numbers
		atOnce, upToDate := n.dueClaims(v, c.slow)
		for _, p := range atOnce {
			got.AtOnce = append(got.AtOnce, p.number)
		}
		for _, p := range upToDate {
			got.UpToDate = append(got.UpToDate, p.number)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	// It was cut off, and reads in the log that b has taken partition 1 before it hears b's beat of that. Or c has, which it takes for dead.
	n.partitions[1].takenAt = time.Now()
	for _, c := range []struct {
		by   string
		self bool // the network was slow
		want int
	}{{"b", true, 0}, {"b", false, 1}, {"c", false, 0}} {
		n.partitions[1].takenBy = c.by
		if atOnce, _ := n.dueClaims(v, servers.Slowness{Self: c.self}); len(atOnce) != c.want {
			t.Errorf("%d that %s took a moment ago are due at once; the network was slow: %t", len(atOnce), c.by, c.self)
		}
	}
	n.partitions[1].takenAt = time.Now().Add(-claimAgain)
	if atOnce, _ := n.dueClaims(v, servers.Slowness{Self: true}); len(atOnce) != 1 {
		t.Error("one that was lost a while ago, and that nobody serves, is not due")
	}

	// To this node alone b's server is slow. What b took back at once is left to it for a while, unless b is dead.
	slow := servers.Slowness{Recent: map[string]bool{"nats-b": true}}
	theirs := v
	theirs.Members = slices.Clone(v.Members)
	theirs.Members[1].Server = "nats-b"
	for name, c := range map[string]struct {
		back bool
		ago  time.Duration
		v    cluster.View
		want bool
	}{
		"taken back":               {true, 0, theirs, false},
		"taken back a while ago":   {true, yieldFor, theirs, true},
		"taken, as it had been":    {false, 0, theirs, true},
		"taken back by a dead one": {true, claimAgain, cluster.View{Placement: theirs.Placement, Members: theirs.Members[:1]}, true},
	} {
		n.partitions[2].takenAt, n.partitions[2].takenBy, n.partitions[2].takenBack = time.Now().Add(-c.ago), "b", c.back
		atOnce, _ := n.dueClaims(c.v, slow)
		if got := slices.ContainsFunc(atOnce, func(p *partition) bool { return p.number == 2 }); got != c.want {
			t.Errorf("%s: it is claimed: %t", name, got)
		}
	}

	job := "j"
	for engine.PartitionOf(job, layout.Partitions) != 1 {
		job += "j"
	}
	for waits, want := range map[time.Duration]int{stalledFor / 2: 0, 2 * stalledFor: 1} {
		at := time.Now().Add(-waits)
		put := engine.Entry{
			Seq: 1, Time: at.UnixMilli() - 1, Kind: engine.KindPut, Partition: 1, Verb: "put", Job: job,
			Body: []byte(`{"schedule":"@at ` + at.UTC().Format(carillon.TimeFormat) + `"}`),
		}
		m := engine.New(layout, 1)
		if r, err := m.Apply(&put); err != nil || r.Err != nil {
			t.Fatal(err, r.Err)
		}
		n.partitions[1].machine = m
		if atOnce, upToDate := n.dueClaims(v, servers.Slowness{Now: true, Self: true}); len(atOnce) > 0 || len(upToDate) != want {
			t.Errorf("with a job that has been due for %s, while the network is slow, %d are due at once and %d once it has caught up", waits, len(atOnce), len(upToDate))
		}
		served := v
		served.Members = []cluster.Beat{v.Members[0], beat("b", 7, 6, 8, 0)}
		if atOnce, upToDate := n.dueClaims(served, servers.Slowness{Now: true, Self: true}); len(atOnce) > 0 || len(upToDate) > 0 {
			t.Errorf("the same in one that another node serves: %d and %d", len(atOnce), len(upToDate))
		}
	}
	idle := engine.New(layout, 1) // nothing was due until somebody sent a command a moment ago, which is refused
	if r, err := idle.Apply(&engine.Entry{Seq: 1, Time: time.Now().UnixMilli(), Kind: engine.KindDelete, Partition: 1, Verb: "delete", Job: job}); err != nil || r.Err == nil {
		t.Fatal(err, r.Err)
	}
	n.partitions[1].machine = idle
	if atOnce, upToDate := n.dueClaims(v, servers.Slowness{Now: true, Self: true}); len(atOnce) > 0 || len(upToDate) > 0 {
		t.Errorf("a partition that was idle until now is taken for one that nobody serves: %d and %d", len(atOnce), len(upToDate))
	}
	n.partitions[1].claimable = time.Now().Add(claimAgain)
	if atOnce, _ := n.dueClaims(v, servers.Slowness{}); len(atOnce) > 0 {
		t.Error("one that was claimed a moment ago is due again")
	}
	n.partitions[1].claimable = time.Time{}
	n.partitions[1].stopped = errStopped // others learn of it from the next beat
	if atOnce, _ := n.dueClaims(v, servers.Slowness{}); len(atOnce) > 0 {
		t.Error("one that stopped a moment ago is due")
	}
}

// undo is a request to drain no more.
type undo struct{ micro.Request }

func (undo) Data() []byte  { return []byte(`{"undo":true}`) }
func (undo) Reply() string { return "" }

// A node that stops takes nothing again, even if it is asked to drain no more: the others would wait for it, and it for them.
func TestStopDrains(t *testing.T) {
	nc, _ := openStreams(t)
	n := &Node{o: Options{Name: "a"}, log: slog.New(slog.DiscardHandler), nc: nc}
	n.membership.participating.Store(true)
	n.handOver(t.Context())
	if err := n.apiDrain(&call{node: n, Request: undo{}}); err != nil {
		t.Fatal(err)
	}
	if !n.report().Draining {
		t.Error("it is given partitions while it hands its own over")
	}
}

// A claim that the log did not store is due again at once. While it is on its way, a hand-over counts the partition, and it hears of the
// outcome.
func TestClaimAgain(t *testing.T) {
	nc, s := openStreams(t)
	n := &Node{streams: s, layout: engine.Layout{Prefix: "carillon", Partitions: 1}, log: slog.New(slog.DiscardHandler)}
	p := &partition{machine: engine.New(n.layout, 0)}
	p.follows.Store(true)
	n.partitions = []*partition{p}
	n.membership.changed = make(chan struct{}, 1)
	p.claiming = true
	if n.serves() != 1 {
		t.Error("a claim on its way is not counted")
	}
	p.claiming = false
	nc.Close()
	n.claim(p)
	<-n.membership.changed // maybe only when the connection has ended
	if serves := n.serves(); serves != 0 {
		t.Errorf("%d partitions are counted after the claim failed", serves)
	}
	if !p.mayClaim() {
		t.Error("it may not be claimed")
	}
}

// A node whose ticks do not come back is stuck if the log stream has answered all the while. It is not stuck if the stream had no leader
// and has one again.
func TestStuck(t *testing.T) {
	for name, c := range map[string]struct {
		ticks   time.Duration   // since the first that has not come back
		answers []time.Duration // ago
		stuck   bool
	}{
		"all the while":         {3 * time.Second, []time.Duration{5 * time.Second, 4 * time.Second, 3 * time.Second, 2 * time.Second, time.Second, 0}, true},
		"not for long":          {time.Second, []time.Duration{3 * time.Second, 2 * time.Second, time.Second, 0}, false},
		"no answers either":     {4 * time.Second, []time.Duration{7 * time.Second, 6 * time.Second, 5 * time.Second}, false},
		"there is a leader":     {4 * time.Second, []time.Duration{6 * time.Second, 5 * time.Second, 0}, false},
		"and has been, a while": {6 * time.Second, []time.Duration{8 * time.Second, 3 * time.Second, 2 * time.Second, time.Second, 0}, true},
	} {
		n := &Node{}
		n.clock.began = time.Now().Add(-time.Hour)
		n.ticking.start([]engine.Tick{{To: 1}}, time.Now().Add(-c.ticks))
		for _, ago := range c.answers {
			n.logAnswered(n.clock.running() - ago)
		}
		if n.stuck() != c.stuck {
			t.Errorf("%s: it is stuck: %t", name, !c.stuck)
		}
	}
}

// A node whose ticks take long because the log is long, for it as for the others, is not stuck: these could not serve sooner. It is if it
// no longer reads, if others are far ahead, or if the log has not taken its ticks.
func TestNotStuckInLongLog(t *testing.T) {
	for name, c := range map[string]struct {
		taken bool          // the log has taken a tick
		read  time.Duration // since records were applied
		other uint64        // how much further another node is
		stuck bool
	}{
		"a long log":        {true, time.Second, caughtUp, false},
		"it does not read":  {true, 3 * time.Second, 0, true},
		"others are ahead":  {true, time.Second, caughtUp + 1, true},
		"ticks do not come": {false, time.Second, 0, true},
	} {
		n := &Node{}
		n.clock.began = time.Now().Add(-time.Hour)
		first := time.Now().Add(-4 * time.Second)
		n.ticking.start([]engine.Tick{{To: 1}}, first)
		n.ticking.start([]engine.Tick{{To: 2}}, first.Add(time.Second))
		if c.taken {
			n.ticking.took(first)
		}
		for ago := 5 * time.Second; ago >= 0; ago -= time.Second {
			n.logAnswered(n.clock.running() - ago)
		}
		n.applied.Store(7)
		n.readAt.Store(int64(n.clock.running() - c.read))
		n.membership.joinEnded = make(chan struct{})
		v := cluster.View{Members: []cluster.Beat{{Node: cluster.Node{Name: "b"}, Report: cluster.Report{Partitions: []cluster.Progress{{Position: 7 + c.other}}}}}}
		if n.longLog(v) == c.stuck || c.other <= caughtUp && n.stuck() != c.stuck {
			t.Errorf("%s: it is stuck: %t, the log is long: %t", name, n.stuck(), n.longLog(v))
		}
	}
}

// When a claim that this node has sent comes back, the partition is its own, even if the claim's answer was lost, and whichever of several
// claims comes last. A claim that an earlier run or another node has sent does not do that.
func TestOwnClaims(t *testing.T) {
	wake := newAlarm(t)
	n := &Node{o: Options{Name: "a"}, layout: engine.Layout{Prefix: "carillon", Partitions: 1}, log: slog.New(slog.DiscardHandler), alarm: wake, meters: newMeters(nil)}
	n.membership.changed = make(chan struct{}, 1)
	p := &partition{machine: engine.New(n.layout, 0), chain: engine.NewChain()}
	p.follows.Store(true)
	var seq uint64
	comes := func(what, of string, epoch uint64) {
		t.Helper()
		seq++
		claim := engine.Rules()
		claim.Node = of
		e := n.layout.Decode(&engine.Record{Seq: seq, Time: int64(seq), Subject: n.layout.LogSubject(0, "claim"), Data: claim.Encode()})
		n.apply(p, &e)
		if p.owner.Epoch != epoch || p.serving != (epoch > 0) || p.chain.Lost() != (epoch == 0) {
			t.Errorf("%s: it is ours since %d, want %d; it is served: %t, its chain is lost: %t", what, p.owner.Epoch, epoch, p.serving, p.chain.Lost())
		}
	}
	comes("a claim of an earlier run", "a", 0)
	p.sentClaim = true
	p.chain.Resume(0, 0, nil)
	comes("one without an answer", "a", 2)
	n.claimStored(p, 2)
	comes("a later one", "a", 3)
	n.claimStored(p, 2)
	comes("one behind that, and then the answer to the first", "a", 4)
	if !p.takenAt.IsZero() {
		t.Error("it counts as lost")
	}
	p.lostSince, p.lostBy = time.Now(), streams.ErrDisconnected
	run := p.run
	select {
	case <-n.membership.changed:
	default:
	}
	comes("another node's", "b", 0)
	if p.takenAt.IsZero() || p.yields() {
		t.Error("it does not count as lost, or counts as taken back")
	}
	if p.run == run || !p.lostSince.IsZero() || p.lostBy != nil || len(n.membership.changed) == 0 {
		t.Errorf("answers to what was sent before count: %t, as does why it was not published: %v; a hand-over is told: %t",
			p.run == run, p.lostBy, len(n.membership.changed) > 0)
	}
	run = p.run
	n.claimStored(p, 4)
	if p.run != run {
		t.Error("the answer to a claim that is over took the partition for a moment, and gave it up")
	}
	comes("the same, and then an answer to one before it", "b", 0)
	p.claimed = time.Now()
	p.chain.Resume(0, 0, nil)
	comes("one of a moment ago", "a", 7)
	comes("another node's at once", "b", 0)
	if !p.yields() {
		t.Error("it does not count as taken back")
	}
}

// A claim whose answer is late is due again, the next one not as soon, and the answer counts when it comes.
func TestClaimLate(t *testing.T) {
	nc, s := openStreams(t)
	wake := newAlarm(t)
	layout := engine.Layout{Prefix: "elsewhere", Partitions: 1} // no stream stores what is sent there
	n := &Node{o: Options{Name: "a"}, streams: s, layout: layout, log: slog.New(slog.DiscardHandler), alarm: wake, meters: newMeters(nil)}
	claims, err := nc.SubscribeSync(n.layout.LogSubject(0, "claim"))
	if err != nil {
		t.Fatal(err)
	}
	p := &partition{machine: engine.New(n.layout, 0), chain: engine.NewChain()}
	p.follows.Store(true)
	n.claim(p)
	if p.mayClaim() {
		t.Error("a claim on its way does not count")
	}
	first, err := claims.NextMsg(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	natstest.Eventually(t, "the claim is due again", func() bool { return p.mayClaim() })
	waits := func() time.Duration {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.claimable.Sub(p.claimed)
	}
	if d := waits(); d != claimLate {
		t.Errorf("the second claim is due after %s, want %s", d, claimLate)
	}
	for _, want := range []time.Duration{claimLateAll, claimLateAll} {
		n.claim(p)
		natstest.Eventually(t, "the next answer is late", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return !p.claiming
		})
		if d := waits(); d != want {
			t.Errorf("the next claim is due after %s, want %s", d, want)
		}
	}
	_, err = claims.NextMsg(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	last, err := claims.NextMsg(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Respond([]byte(`{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}`)); err != nil {
		t.Fatal(err)
	}
	if err := last.Respond([]byte(`{"stream":"CARILLON_LOG","seq":7}`)); err != nil {
		t.Fatal(err)
	}
	epoch := func() uint64 {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.owner.Epoch
	}
	natstest.Eventually(t, "the answer counts", func() bool { return epoch() == 7 })
	if d := waits(); d != claimLateAll {
		t.Errorf("after a refusal of the first claim the next one is due %s after the last, want %s", d, claimLateAll)
	}
	claim := engine.Rules()
	claim.Node = n.o.Name
	e := n.layout.Decode(&engine.Record{Seq: 7, Time: 7, Subject: n.layout.LogSubject(0, "claim"), Data: claim.Encode()})
	if n.apply(p, &e); p.late {
		t.Error("claims count as late although one has come back")
	}
}

// A claim whose answer comes after the partition was given up does not make this node its owner, and a partition that was given up is not
// claimed.
func TestClaimGivenUp(t *testing.T) {
	_, s := openStreams(t)
	n := &Node{streams: s, layout: engine.Layout{Prefix: "carillon", Partitions: 1}, log: slog.New(slog.DiscardHandler), alarm: newAlarm(t)}
	p := &partition{machine: engine.New(n.layout, 0), chain: engine.NewChain()}
	n.claimStored(p, 7)
	if p.owner.Epoch != 0 {
		t.Errorf("it is ours since %d", p.owner.Epoch)
	}
	if n.claim(p); p.claims > 0 {
		t.Error("it is claimed")
	}
	p.follows.Store(true)
	p.stopped = errStopped
	n.claimStored(p, 7)
	if p.owner.Epoch != 0 {
		t.Errorf("one that stopped is ours since %d", p.owner.Epoch)
	}
}

// What a beat tells: the partitions that this node follows and that have not stopped, unless it can neither fire nor read; and always what
// it needs of the log.
func TestReport(t *testing.T) {
	nc, _ := openStreams(t)
	n := &Node{nc: nc, layout: engine.Layout{Prefix: "carillon", Partitions: 4}}
	n.clock.begin(false)
	for i := range n.layout.Partitions {
		p := &partition{number: i, machine: engine.New(n.layout, i)}
		p.follows.Store(i > 0)
		n.partitions = append(n.partitions, p)
	}
	n.partitions[1].stopped = errStopped
	claim := engine.Rules()
	claim.Node = "a"
	for i := 2; i < 4; i++ {
		e := n.layout.Decode(&engine.Record{Seq: 5, Time: 1, Subject: n.layout.LogSubject(i, "claim"), Data: claim.Encode()})
		if _, err := n.partitions[i].machine.Apply(&e); err != nil {
			t.Fatal(err)
		}
	}
	n.partitions[2].owner.Epoch = 5
	n.partitions[3].owner.Epoch = 9 // this claim has yet to come back
	n.applied.Store(7)
	for _, p := range n.followed() {
		p.checkpoint.Store(6)
	}
	if r := n.report(); r.Partitions != nil || r.Needs != 0 {
		t.Errorf("before the log is read: %+v", r)
	}
	n.membership.reporting.Store(true)
	want := []cluster.Progress{{Partition: 2, Position: 7, Epoch: 5}, {Partition: 3, Position: 7}}
	if r := n.report(); r.Needs != 6 || !slices.Equal(r.Partitions, want) || r.Server != nc.ConnectedServerName() || r.Draining {
		t.Errorf("%+v, want %+v, and needs 6", r, want)
	}
	n.holdTicks.Store(true)
	if r := n.report(); r.Needs != 6 || r.Partitions != nil {
		t.Errorf("without room to fire: %+v", r)
	}
}

// A partition that nobody has served for a while is told of, until somebody does.
func TestUnserved(t *testing.T) {
	var j membership
	if j.servedElsewhere(0) || j.unserved() != nil {
		t.Error("before anything is known")
	}
	serving := func(partitions ...int) (v cluster.View) {
		b := cluster.Beat{Node: cluster.Node{Name: "b"}}
		for _, p := range partitions {
			b.Partitions = append(b.Partitions, cluster.Progress{Partition: p, Epoch: 1})
		}
		v.Members = []cluster.Beat{b}
		return v
	}
	j.noteUnserved(serving(1), 2)
	if j.servedElsewhere(0) || !j.servedElsewhere(1) || j.unserved() != nil {
		t.Errorf("at first: %t, %t, %q", j.servedElsewhere(0), j.servedElsewhere(1), j.unserved())
	}
	j.unservedSince[0] = j.unservedSince[0].Add(-2 * lostTooLong)
	j.noteUnserved(serving(1), 2)
	if problems := j.unserved(); len(problems) != 1 || !strings.Contains(problems[0], "no node has served partition 0 for") {
		t.Errorf("after a while: %q", problems)
	}
	if j.noteUnserved(serving(0), 2); j.unserved() != nil || !j.servedElsewhere(0) || j.servedElsewhere(1) {
		t.Errorf("when the other one is served: %q", j.unserved())
	}
}

// confirming returns a partition whose chain has each message confirmed, and its node, which takes the acks. rang tells whether the
// clockwork was woken since the last call.
func confirming(t *testing.T, outputs ...engine.Output) (n *Node, p *partition, rang func() bool) {
	t.Helper()
	wake := newAlarm(t)
	n = &Node{log: slog.New(slog.DiscardHandler), meters: newMeters(nil), alarm: wake}
	p = &partition{chain: engine.NewChain()}
	p.chain.Confirm()
	p.chain.Resume(0, 0, outputs)
	return n, p, func() bool { return hasRung(wake) }
}

func sendNext(t *testing.T, p *partition) {
	t.Helper()
	if _, ok := p.chain.Next(0); !ok {
		t.Fatal("nothing is sent")
	}
}

// If an ack that leaves one out loses a chain, the clockwork is woken to resume it, and the loss is counted.
func TestAnswerLeftOut(t *testing.T) {
	n, p, rang := confirming(t, engine.Output{Number: 1}, engine.Output{Number: 2}, engine.Output{Number: 3})
	sendNext(t, p)
	n.acked(p, p.run, 1, nil)
	sendNext(t, p)
	sendNext(t, p)
	rang() // for the first ack
	n.acked(p, p.run, 3, nil)
	if !rang() {
		t.Error("nobody is woken")
	}
	n.acked(p, p.run, 2, streams.ErrDisconnected) // the chain is lost already, which is not counted twice
	if !p.chain.Lost() || n.meters.lost.Get() != 1 {
		t.Errorf("lost: %t, %d times", p.chain.Lost(), n.meters.lost.Get())
	}
}

// The first message of a chain goes alone. Its ack wakes the clockwork to send the others, however few, or to hold them.
func TestFirstAnswer(t *testing.T) {
	n, p, rang := confirming(t, engine.Output{Number: 1}, engine.Output{Number: 2, Due: 5})
	sendNext(t, p)
	if _, ok := p.chain.HoldUntil(); ok {
		t.Fatal("the second is not held back by the first")
	}
	n.acked(p, p.run, 1, nil)
	if at, ok := p.chain.HoldUntil(); !ok || at != 5 || !rang() {
		t.Errorf("the second is due at %d (%t), and nobody is woken", at, ok)
	}
}

// withoutSlow leaves out the members whose server is slow, and those that say that they are, but never the node itself.
func TestViewWithoutSlow(t *testing.T) {
	v := cluster.View{Members: []cluster.Beat{
		{Node: cluster.Node{Name: "a"}, Report: cluster.Report{Server: "x"}},
		{Node: cluster.Node{Name: "b"}, Report: cluster.Report{Server: "x", Slow: true}},
		{Node: cluster.Node{Name: "c"}, Report: cluster.Report{Server: "y"}},
		{Node: cluster.Node{Name: "d"}, Report: cluster.Report{Server: "y", Slow: true}},
		{Node: cluster.Node{Name: "old"}},
	}}
	x := map[string]bool{"x": true}
	for _, c := range []struct {
		slow servers.Slowness
		want []string
	}{
		{servers.Slowness{}, []string{"a", "b", "c", "old"}},
		{servers.Slowness{Recent: x}, []string{"b", "c", "old"}},
		{servers.Slowness{Self: true}, []string{"a", "b", "c", "d", "old"}},
		{servers.Slowness{Recent: x, Self: true}, []string{"b", "c", "d", "old"}},
	} {
		var left []string
		for _, m := range withoutSlow(v, c.slow, "b").Members {
			left = append(left, m.Name)
		}
		if !slices.Equal(left, c.want) || len(v.Members) != 5 {
			t.Errorf("%v: left are %v, want %v", c.slow, left, c.want)
		}
	}
}
