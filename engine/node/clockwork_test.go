package node

import (
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/embedded"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/internal/alarm"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// A tick allows no more outputs than the outbox has space for, however large they are. Small ones have the whole window.
func TestRoomForLargeOutputs(t *testing.T) {
	const payload = 500 << 10
	layout := engine.Layout{Prefix: "carillon", Partitions: 2}
	n := &Node{o: Options{OutboxMax: 8 << 20}}
	for i := range 2 {
		p := &partition{number: i, machine: engine.New(layout, i), chain: engine.NewChain(), owner: engine.Owner{Epoch: 1}}
		p.chain.Resume(0, 0, nil)
		n.partitions = append(n.partitions, p)
	}
	large := 0
	for engine.PartitionOf(strconv.Itoa(large), 2) != 0 {
		large++
	}
	claim := engine.Rules()
	claim.Node = "n1"
	for i, e := range []engine.Entry{
		{Kind: engine.KindClaim, Claim: claim},
		{Kind: engine.KindPut, Verb: "put", Job: strconv.Itoa(large), Body: []byte(`{"payload":"` + strings.Repeat("x", payload) + `"}`)},
	} {
		e.Seq, e.Time = uint64(i+1), 1
		if r, err := n.partitions[0].machine.Apply(&e); err != nil || r.Err != nil {
			t.Fatal(err, r.Err)
		}
	}
	rooms := func() (rooms []int) {
		n.eachOwned(n.outboxSpace(), func(_ *partition, room int, _ engine.Acked) { rooms = append(rooms, room) })
		return rooms
	}
	rooms()
	window := n.partitions[1].chain.FreeWindow()
	if got := rooms(); got[0] < 1 || got[0]*payload > n.o.OutboxMax/2 || got[1] != window {
		t.Errorf("there is room for %v, in a window of %d", got, window)
	}
	n.o.OutboxMax = payload
	if got := rooms(); got[0] != 1 {
		t.Errorf("there is room for %v where not even one fits: nothing would ever go out", got)
	}
	n.o.OutboxMax = 0
	if got := rooms(); got[0] != 0 || got[1] != 0 {
		t.Errorf("there is room for %v without any space", got)
	}
}

// Outputs that a partition cannot publish leave space for those of the others, however often it ticks. With one partition alone, nobody
// else needs the space.
func TestSpaceBesideWhoCannotPublish(t *testing.T) {
	const payload, jobs = 10 << 10, 40
	for partitions, least := range map[int]int{1: 19, 2: 9} {
		layout := engine.Layout{Prefix: "carillon", Partitions: partitions}
		n := &Node{o: Options{OutboxMax: 20 * payload}}
		for i := range partitions {
			p := &partition{number: i, machine: engine.New(layout, i), chain: engine.NewChain(), owner: engine.Owner{Epoch: 1}}
			p.chain.Resume(0, 0, nil)
			n.partitions = append(n.partitions, p)
		}
		silent, seq := n.partitions[0], uint64(0)
		apply := func(e engine.Entry) {
			t.Helper()
			seq++
			e.Seq, e.Time = seq, int64(seq)
			if r, err := silent.machine.Apply(&e); err != nil || r.Err != nil {
				t.Fatal(err, r.Err)
			}
		}
		claim := engine.Rules()
		claim.Node = "n1"
		apply(engine.Entry{Kind: engine.KindClaim, Claim: claim})
		for id := 0; seq <= jobs; id++ {
			if engine.PartitionOf(strconv.Itoa(id), partitions) == 0 {
				apply(engine.Entry{Kind: engine.KindPut, Verb: "put", Job: strconv.Itoa(id), Body: []byte(`{"schedule":"@in 1ms","payload":"` + strings.Repeat("x", payload) + `"}`)})
			}
		}
		rooms := make([]int, partitions)
		for range jobs {
			n.eachOwned(n.outboxSpace(), func(p *partition, room int, _ engine.Acked) { rooms[p.number] = room })
			apply(engine.Entry{Kind: engine.KindTick, Ticks: []engine.Tick{{To: 1000 + int64(seq), Epoch: 1, Limit: uint64(rooms[0])}}})
		}
		if made := int(silent.machine.Made()); rooms[0] != 0 || made < least || made > 20 {
			t.Errorf("%d partitions: one that cannot publish made %d outputs of %d jobs, and has room for %d more", partitions, made, jobs, rooms[0])
		}
		if partitions > 1 && rooms[1] == 0 {
			t.Error("outputs that one partition cannot publish leave no space for those of another")
		}
	}
}

// An owner whose chain is not resumed yet ticks without making anything, so that what is due does not count as missed. Once there is room it
// does not wait for that tick to come back.
func TestTickOnceThereIsRoom(t *testing.T) {
	_, s := openStreams(t)
	const now = 10_000
	p := &partition{machine: engine.New(engine.Layout{Prefix: "carillon", Partitions: 1}, 0), chain: engine.NewChain(), owner: engine.Owner{Epoch: 1}}
	n := &Node{
		o: Options{OutboxMax: 1 << 20}, layout: engine.Layout{Prefix: "elsewhere", Partitions: 1}, // where no stream stores it
		streams: s, partitions: []*partition{p}, alarm: newAlarm(t), meters: newMeters(nil), log: slog.New(slog.DiscardHandler),
	}
	claim := engine.Rules()
	claim.Node = "n1"
	for i, e := range []engine.Entry{
		{Kind: engine.KindClaim, Claim: claim},
		{Kind: engine.KindPut, Verb: "put", Job: "j", Body: []byte(`{"schedule":"@at 1970-01-01T00:00:05Z"}`)},
	} {
		e.Seq, e.Time = uint64(i+1), 1
		if r, err := p.machine.Apply(&e); err != nil || r.Err != nil {
			t.Fatal(err, r.Err)
		}
	}
	sent := func() int {
		n.tick(now)
		return len(n.ticking.inFlight)
	}
	if got := sent(); got != 1 {
		t.Fatalf("%d ticks are sent without room", got)
	}
	if got := sent(); got != 1 {
		t.Errorf("%d ticks are sent, one behind the other, without room", got)
	}
	if n.ticking.silentFor(time.Now().Add(time.Second)) < time.Second {
		t.Error("the first one is not waited for any more")
	}
	p.chain.Resume(0, 0, nil)
	if got := sent(); got != 2 {
		t.Errorf("%d ticks are sent once there is room", got)
	}
	if got := sent(); got != 2 {
		t.Errorf("%d ticks are sent before the one that makes outputs can have come back", got)
	}
}

// A tick that the log has taken is known to be stored. It is not waited for any more when nothing is due, nor when other nodes have taken all
// partitions: this node would count as stuck.
func TestTickIsNotWaitedFor(t *testing.T) {
	_, s := openStreams(t)
	layout := engine.Layout{Prefix: "carillon", Partitions: 1}
	p := &partition{machine: engine.New(layout, 0), chain: engine.NewChain()}
	n := &Node{o: Options{OutboxMax: 1 << 20}, layout: layout, streams: s, partitions: []*partition{p}, alarm: newAlarm(t), meters: newMeters(nil)}
	ticks, long := []engine.Tick{{To: 1, Epoch: 1, Limit: 1}}, time.Now().Add(-time.Hour)
	for _, epoch := range []uint64{1, 0} {
		n.ticking.start(ticks, long)
		if err := n.sendTicks(ticks, long); err != nil {
			t.Fatal(err)
		}
		natstest.Eventually(t, "it is known to be stored", n.ticking.stored)
		p.owner.Epoch = epoch
		if n.tick(10_000); n.ticking.failingFor(time.Now()) > 0 {
			t.Errorf("under epoch %d a tick is waited for", epoch)
		}
	}
}

// When a partition's share of the window grows, the clockwork is woken to send what waited only for that: nothing else would wake it.
func TestShareGrows(t *testing.T) {
	layout := engine.Layout{Prefix: "carillon", Partitions: 1}
	wake := newAlarm(t)
	p := &partition{machine: engine.New(layout, 0), chain: engine.NewChain(), owner: engine.Owner{Epoch: 1}}
	n := &Node{alarm: wake, partitions: []*partition{p}}
	outputs := make([]engine.Output, 4000)
	for i := range outputs {
		outputs[i] = engine.Output{Number: uint64(i + 1), Due: 5_000}
	}
	p.chain.Resume(0, 0, outputs)
	share := func(chains int) bool {
		n.window.sharing = chains
		n.eachOwned(outboxSpace{free: 1 << 30}, func(*partition, int, engine.Acked) {})
		return hasRung(wake)
	}
	share(8)
	for {
		if _, ok := p.chain.Next(5_000); !ok {
			break
		}
	}
	for _, c := range []struct {
		chains int
		rings  bool
	}{{8, false}, {9, false}, {7, true}, {7, false}, {1, false}} {
		if rang := share(c.chains); rang != c.rings {
			t.Errorf("shared by %d, %d in flight: rang %v", c.chains, p.chain.InFlight(), rang)
		}
	}
}

// newAlarm returns an alarm that is closed with the test.
func newAlarm(t testing.TB) alarm.Alarm {
	t.Helper()
	wake, err := alarm.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(wake.Close)
	return wake
}

// hasRung tells whether an alarm has rung since the last call.
func hasRung(wake alarm.Alarm) bool {
	select {
	case <-wake.C():
		return true
	default:
		return false
	}
}

// chainOf returns a node with one partition, whose chain has sent one output and asked for an ack.
func chainOf(t *testing.T, ns *embedded.Server) (*Node, *partition) {
	t.Helper()
	wake := newAlarm(t)
	p := &partition{machine: engine.New(engine.Layout{Prefix: "carillon", Partitions: 1}, 0), chain: engine.NewChain()}
	n := &Node{alarm: wake, partitions: []*partition{p}, server: ns, log: slog.New(slog.DiscardHandler), meters: newMeters(nil)}
	p.chain.Resume(0, 0, []engine.Output{{Number: 1, Kind: engine.OutputEvent}})
	if m, ok := p.chain.Next(1); !ok || !m.Ack {
		t.Fatalf("the output is sent: %t, and an ack asked for: %t", ok, m.Ack)
	}
	return n, p
}

// What the embedded server acknowledges may be lost in a power failure until it is synced. What an external one acknowledges is durable.
func TestAcknowledgedIsNotDurable(t *testing.T) {
	for _, ns := range []*embedded.Server{nil, new(embedded.Server)} {
		n, p := chainOf(t, ns)
		n.acked(p, p.run, 1, nil)
		if stored := p.chain.Stored(); stored.Seq != 1 || (p.durable == stored) != (ns == nil) {
			t.Errorf("embedded %t: stored is %+v, durable %+v", ns != nil, stored, p.durable)
		}
	}
}

// A linked output names its own id and that of the output before it. No other partition, run of the chain or start of a node has these
// ids.
func TestMessageIDs(t *testing.T) {
	n := &Node{session: "s"}
	for _, c := range []struct {
		m    engine.Publish
		want string
	}{
		{engine.Publish{Named: true, Linked: true}, "Nats-Msg-Id: s.2.a.b\r\nNats-Expected-Last-Msg-Id: s.2.a.a\r\n"},
		{engine.Publish{Named: true}, "Nats-Msg-Id: s.2.a.b\r\n"},
		{engine.Publish{}, ""},
	} {
		c.m.Output = &engine.Output{Number: 11, Kind: engine.OutputEvent}
		var got streams.Chained
		n.render(&got, &partition{number: 2, run: 10}, c.m)
		if ids := strings.TrimSuffix(string(got.Header), string(c.m.Output.AppendHeader(nil))); ids != c.want {
			t.Errorf("named %t, linked %t: %q, want %q", c.m.Named, c.m.Linked, ids, c.want)
		}
	}
}

// An ack that is late has the node ask the stream whether the output is stored, because the ack may never come. Any other error loses the
// chain. Neither concerns a chain that was resumed since.
func TestAnswerThatDoesNotCome(t *testing.T) {
	for _, c := range []struct {
		err        error
		late, lost bool
	}{{streams.ErrLate, true, false}, {streams.ErrTimeout, false, true}} {
		n, p := chainOf(t, nil)
		before := p.run
		p.overdue.tell(1)
		n.resumeChain(p, 0, 0, []engine.Output{{Number: 1, Kind: engine.OutputEvent}}, 0)
		if p.overdue.upTo != 0 || p.resumed.IsZero() {
			t.Errorf("once it is resumed, late is what is stored up to %d; when that was is known: %t", p.overdue.upTo, !p.resumed.IsZero())
		}
		p.chain.Next(1)
		n.acked(p, before, 1, nil)
		if stored := p.chain.Stored(); stored.Seq != 0 {
			t.Errorf("an ack of another run of the chain counts: stored is %+v", stored)
		}
		n.acked(p, before, 0, c.err)
		if p.overdue.upTo != 0 || p.chain.Lost() {
			t.Errorf("%v counts for another run of the chain", c.err)
		}
		n.acked(p, p.run, 0, c.err)
		if late := p.overdue.upTo == 1; late != c.late || p.chain.Lost() != c.lost {
			t.Errorf("%v: late is what is stored up to %d, lost %t", c.err, p.overdue.upTo, p.chain.Lost())
		}
		<-n.alarm.C()
	}
}

// The window is shared by those of this node's partitions that have outputs to publish, and by no others.
func TestWindowIsShared(t *testing.T) {
	const due = 5_000
	layout := engine.Layout{Prefix: "carillon", Partitions: 3}
	n := &Node{}
	space := outboxSpace{free: 1 << 30}
	const each = 66_000 * 3600 // stored outputs of each partition; of all three, 198,000 a second for an hour
	for i := range 3 {
		p := &partition{number: i, machine: engine.New(layout, i), chain: engine.NewChain(), owner: engine.Owner{Epoch: 1}}
		p.chain.Resume(0, each, nil)
		n.partitions = append(n.partitions, p)
	}
	seq := uint64(0)
	apply := func(p *partition, e engine.Entry) {
		t.Helper()
		seq++
		e.Seq, e.Time = seq, 1
		if r, err := p.machine.Apply(&e); err != nil || r.Err != nil {
			t.Fatal(err, r.Err)
		}
	}
	claim := engine.Rules()
	claim.Node = "n1"
	for _, p := range n.partitions {
		apply(p, engine.Entry{Kind: engine.KindClaim, Claim: claim})
		job := 0
		for engine.PartitionOf(strconv.Itoa(job), 3) != p.number {
			job++
		}
		body := []byte(`{"schedule":"@at 1970-01-01T00:00:05Z"}`)
		apply(p, engine.Entry{Kind: engine.KindPut, Verb: "put", Job: strconv.Itoa(job), Body: body})
	}
	rooms := func(now int64) (rooms []int) {
		n.nextTick(now, leadMin, space)
		n.eachOwned(space, func(_ *partition, room int, _ engine.Acked) { rooms = append(rooms, room) })
		return rooms
	}
	alone := rooms(due - leadMax - 1)[0]
	if got, want := rooms(due-leadMax), alone/3; !slices.Equal(got, []int{want, want, want}) {
		t.Errorf("three have room for %v, want %d each", got, want)
	}
	n.partitions[2].owner.Epoch = 0 // another node's
	if got, want := rooms(due-leadMax), alone/2; !slices.Equal(got, []int{want, want}) {
		t.Errorf("two have room for %v, want %d each", got, want)
	}
	n.partitions[0].chain.Offer([]engine.Output{{Number: each + 1, Due: 2}, {Number: each + 2, Due: 1}}) // the second overtakes
	overtaking := func() int { return rooms(due - leadMax)[0] + 2 }
	if got := overtaking(); got != engine.MaxOvertakingWindow/2 {
		t.Errorf("while outputs overtake others there is room for %d", got)
	}
	n.clock.began, n.server = time.Now().Add(-time.Hour), &embedded.Server{}
	if got := overtaking(); got > engine.OvertakingWindow(198_000)/2 || got < engine.OvertakingWindow(180_000)/2 { // if this took less than six minutes
		t.Errorf("while outputs overtake others, and 198,000 are stored a second, there is room for %d", got)
	}
	n.window.at = 0 // since then nothing was stored
	if got := overtaking(); got != engine.OvertakingWindow(0)/2 {
		t.Errorf("while outputs overtake others, and few are stored, there is room for %d", got)
	}
}

// While outputs overtake others, the window depends on how quickly outputs are stored, within bounds. Times too short to measure that do
// not count.
func TestWindowIsMeasured(t *testing.T) {
	var w window
	if w.overtaking() != engine.MaxOvertakingWindow {
		t.Errorf("before it is measured %d outputs may be in flight", w.overtaking())
	}
	const least, middle = 1920, 2400
	for _, c := range []struct {
		at     time.Duration
		stored uint64
		open   int
	}{
		{time.Second, 100, least},
		{1010 * time.Millisecond, 2_100, middle}, // 200,000 a second
		{1011 * time.Millisecond, 2_200, middle},
		{1030 * time.Millisecond, 6_100, middle},
		{1040 * time.Millisecond, 10_100, engine.MaxOvertakingWindow},
		{1050 * time.Millisecond, 10_000, least}, // a chain was resumed
		{1060 * time.Millisecond, 12_000, middle},
	} {
		if w.measure(c.at, c.stored); w.overtaking() != c.open {
			t.Errorf("after %v and %d outputs %d may be in flight, want %d", c.at, c.stored, w.overtaking(), c.open)
		}
	}
}
