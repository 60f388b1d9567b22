package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/carillon-scheduler/carillon/engine"
)

// Options of a run. The zero value is the usual one.
type Options struct {
	Events   int // how many are drawn before the world calms down; 0: 200 to 1800, by the seed
	Sabotage Sabotage
	Diverge  bool // a follower's state is changed in the end, which the follower must notice
	Trace    bool // Failure carries the whole history
}

// Sabotage breaks one safeguard on purpose, to see that the simulator notices.
type Sabotage struct {
	Chain bool // output streams do not check the expected last sequence
	Watch bool // nobody hears of foreign messages
	Epoch bool // readers take ticks of any epoch
	Hold  bool // publishers do not hold outputs for their due time
	Table bool // machines read the last checkpoint but one
	Save  bool // machines believe that checkpoints are written which are not
	Clock bool // nodes use their own clocks as if they were the streams'
	Take  bool // nodes take partitions over without the log above the checkpoint
	Cut   bool // nodes cut the log as if each partition were followed
	Reply bool // senders are told that each command that was not refused changed something
}

// Failure is what a run ends with when the engine broke a promise.
type Failure struct {
	Seed  uint64
	Err   error
	Trace string
}

func (f *Failure) Error() string { return fmt.Sprintf("seed %d: %v", f.Seed, f.Err) }
func (f *Failure) Unwrap() error { return f.Err }

// Run plays the history of one seed and judges it. The error is a *Failure.
func Run(seed uint64, o Options) error {
	w := newWorld(seed, o)
	if err := w.run(); err != nil {
		return &Failure{Seed: seed, Err: err, Trace: w.trace.String()}
	}
	return nil
}

const (
	epoch2026 = 1_767_225_600_000 // 2026-01-01T00:00:00Z, where histories begin
	hour      = 3_600_000         // ms
	maxAge    = 600_000           // ms for which output streams keep messages
)

// faults are switched on by the seed, each on its own: histories with few kinds of faults go deeper into each.
type faults struct {
	crash, power, oldCopy, hole, clock, stepBack, claims, reorder, lose, stuck, foreign, age, leap, disk bool
}

// world is everything that exists, and the only source of randomness.
type world struct {
	rng    *rand.Rand
	unseen *rand.Rand // for choices that must not change the history
	cold   bool       // jobs come into memory and leave it
	placed bool       // nodes follow only some of the partitions
	o      Options
	trace  strings.Builder
	layout engine.Layout
	bounds engine.Bounds
	faults faults

	truth   int64 // the true time, ms
	skew    int64 // of the streams' clock, ms
	stamped int64 // greatest timestamp given so far, ns

	log     *Stream
	out     []*Stream
	nodes   []*node
	wire    []packet
	acks    []ack
	notices []notice
	syncs   []int    // of each output stream
	aged    []uint64 // and its newest output that was removed for its age
	calm    bool
	err     error

	replicated bool   // messages must not be linked in the output streams: each is confirmed instead
	watched    bool   // one node with the server in its process: it hears of foreign messages, and does not link its own
	replaced   []bool // by partition: an output that was displaced was stored later

	clocks   clocks
	client   client
	records  map[uint64]engine.Record // what the log holds or has held, by sequence, unwrapped
	promised map[uint64]bool          // applied by an owner, so that the sender was answered
	applied  uint64                   // the last record that any node applied
	made     []map[uint64]string      // by partition: output n, as the first node made it
	marks    []map[uint64]uint64      // by partition: the digest at a position, on the first node that reached it
	answers  []map[uint64]string      // by partition and sequence: the outcome of a command
	loud     []bool                   // partitions in which a loud stop is legitimate
}

// packet is a publish on its way to an output stream.
type packet struct {
	from, session, partition int
	gen                      int // of the chain
	message                  Message
	due                      int64
	scheduled                bool
	expect                   Expectation
	ack                      bool
}

// ack is a stream's answer on its way back to a publisher.
type ack struct {
	to, session, partition, gen int
	seq                         uint64
	err                         error
}

// notice is the news of a foreign message, on its way to the node that watches.
type notice struct {
	partition int
	syncs     int // how often the stream had been synced when the message came
}

func newWorld(seed uint64, o Options) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 0)), o: o, truth: epoch2026, log: &Stream{},
		records: make(map[uint64]engine.Record), promised: make(map[uint64]bool),
	}
	if w.o.Events == 0 {
		w.o.Events = 200 + w.rng.IntN(1600)
	}
	w.layout = engine.Layout{Prefix: "carillon", Partitions: 1 + w.rng.IntN(2)}
	w.unseen = rand.New(rand.NewPCG(seed, 1))
	w.bounds = engine.DefaultBounds
	if w.unseen.IntN(2) == 0 {
		w.bounds = engine.Bounds{Moves: 4 + w.unseen.IntN(60), Ready: 1 + w.unseen.IntN(16), ReadyBytes: 1 + w.unseen.IntN(800)}
	}
	w.cold = w.unseen.IntN(2) == 0
	w.truth += w.rng.Int64N(100 * hour)
	for _, f := range []*bool{
		&w.faults.crash, &w.faults.power, &w.faults.oldCopy, &w.faults.hole, &w.faults.clock, &w.faults.stepBack, &w.faults.claims,
		&w.faults.reorder, &w.faults.lose, &w.faults.stuck, &w.faults.foreign, &w.faults.age, &w.faults.leap, &w.faults.disk,
	} {
		*f = w.chance(40)
	}
	w.faults.oldCopy = w.faults.oldCopy && w.chance(30)
	// The log is wrong about the outputs' sequences once they are published again behind an
	// older copy, unless only outputs have sequences: two disasters in one partition are too many.
	if w.faults.oldCopy {
		w.faults.foreign, w.faults.hole = false, false
	}
	// A hole at the end that is older than maxAge looks like messages that were removed for their age: nobody could tell them apart.
	w.faults.leap = w.faults.leap && !w.faults.hole
	for range w.layout.Partitions {
		w.out = append(w.out, &Stream{ignoreExpected: o.Sabotage.Chain})
		w.made = append(w.made, make(map[uint64]string))
		w.marks = append(w.marks, make(map[uint64]uint64))
		w.answers = append(w.answers, make(map[uint64]string))
		w.loud = append(w.loud, false)
	}
	w.syncs, w.replaced = make([]int, w.layout.Partitions), make([]bool, w.layout.Partitions)
	w.aged = make([]uint64, w.layout.Partitions)
	nodes := 2 + w.rng.IntN(2)
	if w.watched = w.chance(30); !w.watched {
		// With a foreign message and a stale owner's messages in flight at once, only links tell what belongs where.
		w.replicated = rand.New(rand.NewPCG(seed, 2)).IntN(2) == 0
		w.faults.foreign = w.faults.foreign && !w.replicated
	}
	if w.watched {
		nodes = 1
	}
	w.placeSome(seed, nodes)
	w.clocks.init(seed, nodes == 1)
	for i := range nodes {
		n := &node{world: w, id: i, drift: w.rng.Int64N(2000) - 1000}
		if w.clocks.apart > 0 {
			n.drift = w.clocks.wrong()
		}
		w.nodes = append(w.nodes, n)
		n.start()
		n.measure()
	}
	w.client.init(w)
	return w
}

// bound gives a machine the bounds of this world. How soon it frees memory is drawn for each machine.
func (w *world) bound(m *engine.Machine) *engine.Machine {
	b := w.bounds
	b.Sweep = w.unseen.IntN(4)
	m.SetBounds(b)
	return m
}

func (w *world) chance(percent int) bool { return w.rng.IntN(100) < percent }

func (w *world) note(format string, args ...any) {
	if w.o.Trace {
		fmt.Fprintf(&w.trace, "%9d  %s\n", w.truth-epoch2026, fmt.Sprintf(format, args...))
	}
}

// fail keeps the first broken promise.
func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
		w.note("FAIL %v", w.err)
	}
}

// stamp is the streams' clock, unix ns.
func (w *world) stamp() int64 {
	now := (w.truth+w.skew)*1e6 + w.rng.Int64N(1e6)
	w.stamped = max(w.stamped, now)
	return now
}

// append stores a record in the log.
func (w *world) append(subject string, header []engine.Field, data []byte) uint64 {
	if w.log.stuck {
		return 0
	}
	return w.store(Message{Time: w.stamp(), Subject: subject, Header: header, Data: data})
}

func (w *world) store(m Message) uint64 {
	seq, err := w.log.Publish(m, Expectation{})
	if err != nil {
		panic(err) // nothing was expected
	}
	r := w.unwrap(record(m, seq))
	if before, ok := w.records[seq]; ok && string(engine.AppendRecord(nil, &before)) != string(engine.AppendRecord(nil, &r)) {
		w.fail("record %d is put back as another", seq)
	}
	w.records[seq] = r
	return seq
}

func record(m Message, seq uint64) engine.Record {
	return engine.Record{Seq: seq, Time: m.Time, Subject: m.Subject, Header: m.Header, Data: m.Data}
}

// unwrap returns the record that a heal record stands for.
func (w *world) unwrap(r engine.Record) engine.Record {
	if healed, ok := w.layout.Healed(&r); ok {
		return healed
	}
	return r
}

// An event is one kind of step; weights are how often each is drawn.
type event struct {
	weight int
	when   bool
	run    func()
}

func (w *world) run() error {
	f := w.faults
	n := func(step func(*node)) func() {
		return func() {
			if n := w.nodes[w.rng.IntN(len(w.nodes))]; n.up {
				step(n)
			}
		}
	}
	events := []event{
		{14, true, w.client.command},
		{16, true, w.pass},
		{30, true, n(func(n *node) { n.read(1 + w.rng.IntN(20)) })},
		{20, true, n((*node).sync)},
		{30, true, n(func(n *node) { n.apply(1 + w.rng.IntN(20)) })},
		{30, true, n((*node).tick)},
		{15, true, n((*node).prompt)},
		{25, true, n(func(n *node) { n.publish(1 + w.rng.IntN(40)) })},
		{20, true, n((*node).resume)},
		{40, true, w.deliver},
		{25, true, w.answer},
		{3, true, w.syncOutputs},
		{2, true, w.log.Sync},
		{4, true, n((*node).checkpoint)},
		{8, true, n((*node).checkpointSlice)},
		{2, true, w.trim},
		{2, true, n((*node).timeout)},
		{3, true, n((*node).measure)},
		{1, true, n(func(n *node) { n.claim(w.rng.IntN(w.layout.Partitions)) })},
		{6, f.claims, n(func(n *node) { n.claim(w.rng.IntN(w.layout.Partitions)) })},
		{4, f.claims, w.staleTick},
		{3, f.crash, n((*node).crash)},
		{3, true, w.startNode},
		{2, f.power, w.powerLoss},
		{1, f.oldCopy, w.oldCopy},
		{2, f.clock, n((*node).jumpClock)},
		{2, f.stepBack, w.stepBack},
		{1, f.stuck, func() { w.stick(w.anyStream()) }},
		{2, f.stuck, w.restartServer},
		{2, f.foreign, w.foreign},
		{1, f.age, w.age},
		{1, f.leap, w.leap},
		{2, f.disk, n((*node).disk)},
		{5, f.lose, w.losePacket},
		{12, w.placed, n((*node).checkpoint)}, // the log is cut behind the second
		{12, w.placed, n((*node).checkpointSlice)},
		{4, w.placed, w.trim},
		{5, w.placed, n(func(n *node) { n.giveUp(w.rng.IntN(w.layout.Partitions)) })},
		{8, w.placed, n(func(n *node) { n.askFor(w.rng.IntN(w.layout.Partitions)) })},
		{8, w.placed, n(func(n *node) { n.take(w.rng.IntN(w.layout.Partitions)) })},
	}
	total := 0
	for _, e := range events {
		if e.when {
			total += e.weight
		}
	}
	for i := 0; i < w.o.Events && w.err == nil; i++ {
		at := w.rng.IntN(total)
		for _, e := range events {
			if !e.when {
				continue
			}
			if at -= e.weight; at < 0 {
				e.run()
				break
			}
		}
		w.changeResidence()
	}
	if w.err == nil {
		w.calmDown()
	}
	if w.err == nil {
		w.judge()
	}
	return w.err
}

func (w *world) pass() {
	switch d := w.rng.IntN(20); {
	case d < 12:
		w.truth += w.rng.Int64N(30)
	case d < 18:
		w.truth += w.rng.Int64N(400)
	default:
		w.truth += w.rng.Int64N(3000)
	}
}

// leap lets a long time pass in which no node ran.
func (w *world) leap() {
	d := w.rng.Int64N(60_000)
	if w.chance(20) {
		d = w.rng.Int64N(hour)
	}
	w.truth += d
	w.note("%d ms pass", d)
}

func (w *world) stepBack() {
	d := w.rng.Int64N(300)
	if w.chance(10) {
		d = w.rng.Int64N(5000)
	}
	w.skew -= d
	w.clocks.stepped = true
	w.note("the streams' clock steps back %d ms", d)
}

// deliver brings packets to their streams, each sender's in order unless one overtakes.
func (w *world) deliver() {
	for k := 1 + w.rng.IntN(40); k > 0 && len(w.wire) > 0; k-- {
		i := w.rng.IntN(len(w.wire))
		if !w.faults.reorder || !w.chance(3) {
			for j := range w.wire[:i] {
				if w.wire[j].from == w.wire[i].from {
					i = j
					break
				}
			}
		}
		p := w.wire[i]
		w.wire = append(w.wire[:i], w.wire[i+1:]...)
		w.arrive(p)
	}
}

func (w *world) arrive(p packet) {
	s := w.out[p.partition]
	if s.stuck {
		return // never answered
	}
	p.message.Time = w.stamp()
	seq, err := s.Publish(p.message, p.expect)
	if err == nil {
		w.timely(&p)
	}
	w.note("n%d → out %d: %s expecting %d: %d %v", p.from, p.partition, outputName(p.message), p.expect.Seq, seq, err)
	if !p.ack || w.faults.lose && w.chance(5) {
		return
	}
	a := ack{to: p.from, session: p.session, partition: p.partition, gen: p.gen, seq: seq, err: err}
	w.acks = append(w.acks, a)
	if w.faults.lose && w.chance(5) {
		w.acks = append(w.acks, a)
	}
}

// answer brings acks to their senders, and news of foreign messages to the node that watches, in any order.
func (w *world) answer() {
	if len(w.notices) > 0 && w.chance(5) {
		w.deliverNotices(len(w.notices))
	}
	for k := 1 + w.rng.IntN(20); k > 0 && len(w.acks) > 0; k-- {
		i := 0
		if w.faults.reorder {
			i = w.rng.IntN(len(w.acks))
		}
		a := w.acks[i]
		w.acks = append(w.acks[:i], w.acks[i+1:]...)
		if n := w.nodes[a.to]; n.up && n.session == a.session {
			n.acked(a)
		}
	}
}

// losePacket breaks a connection: from some point on, what is on its way from one node is lost.
func (w *world) losePacket() {
	if len(w.wire) == 0 {
		return
	}
	from := w.wire[w.rng.IntN(len(w.wire))].from
	var kept []packet
	for _, p := range w.wire {
		if p.from != from || w.chance(50) && len(kept) == 0 {
			kept = append(kept, p)
		}
	}
	w.note("n%d loses %d packets", from, len(w.wire)-len(kept))
	w.wire = kept
}

func (w *world) anyStream() *Stream {
	if i := w.rng.IntN(len(w.out) + 1); i < len(w.out) {
		return w.out[i]
	}
	return w.log
}

func (w *world) stick(s *Stream) {
	w.note("a stream is stuck")
	s.stuck = true
}

// restartServer restarts the server, which loses no message, but breaks every connection.
func (w *world) restartServer() {
	w.note("the server restarts")
	w.wire, w.acks = nil, nil
	w.log.Restart()
	for _, s := range w.out {
		s.Restart()
	}
	for _, n := range w.nodes {
		n.disconnected()
	}
}

// deliverNotices brings the first k notices.
func (w *world) deliverNotices(k int) {
	for _, word := range w.notices[:k] {
		if n := w.nodes[0]; n.up && !w.o.Sabotage.Watch {
			n.onForeign(n.parts[word.partition])
		}
	}
	w.notices = w.notices[k:]
}

// syncOutputs makes an output stream durable. What was stored at one call counts as durable from the next call on: by then
// the node has heard of a foreign message in front of it.
func (w *world) syncOutputs() {
	p := w.rng.IntN(len(w.out))
	for i := len(w.notices); i > 0; i-- {
		if word := w.notices[i-1]; word.partition == p && word.syncs < w.syncs[p] {
			w.deliverNotices(i)
			break
		}
	}
	w.syncs[p]++
	for _, n := range w.nodes {
		if !n.up {
			continue
		}
		part := n.parts[p]
		if part == nil {
			continue
		}
		part.durable = part.synced
		if !part.chain.Lost() { // what a lost chain believes to be stored need not be
			part.synced = part.chain.Stored()
		}
	}
	w.out[p].Sync()
}

// trim cuts the log below what any node could need; if nodes follow only some partitions, below what one of them leaves.
func (w *world) trim() {
	from := w.log.Last() + 1
	if w.placed {
		n := w.nodes[w.rng.IntN(len(w.nodes))]
		if !n.up {
			return
		}
		from = min(from, n.cut()+1)
	} else {
		for _, n := range w.nodes {
			from = min(from, n.oldest()+1)
		}
	}
	if from > 1 {
		w.log.Purge(from)
		w.note("log trimmed below %d", from)
	}
}

func (w *world) startNode() {
	for _, n := range w.nodes {
		if !n.up {
			n.start()
			return
		}
	}
}

// age removes old messages from the output streams, but not in worlds with foreign messages: the engine counts
// how many outputs were removed for their age, and a foreign message that was removed before the log knew of the
// outputs around it (ackPause, a second) would be counted as one of them.
func (w *world) age() {
	for p, s := range w.out {
		if w.faults.foreign {
			break
		}
		for _, m := range s.Age(w.stamp() - maxAge*1e6) {
			number, _ := outputOf(m)
			w.aged[p] = max(w.aged[p], number)
		}
		w.note("out %d aged: begins at %d, ends at %d", p, s.First(), s.Last())
	}
}

// foreign puts a foreign message into an output stream.
func (w *world) foreign() {
	p := w.rng.IntN(len(w.out))
	if w.out[p].stuck {
		return
	}
	m := Message{Time: w.stamp(), Subject: "carillon.trigger.0.x", Data: []byte("foreign")}
	if w.chance(50) {
		m.Header = []engine.Field{{Name: "Carillon-Output", Value: fmt.Sprint(w.rng.IntN(1 + len(w.made[p])))}, {Name: "Carillon-Trigger", Value: "forged@1"}}
	}
	seq, _ := w.out[p].Publish(m, Expectation{})
	w.note("a foreign message in out %d at %d", p, seq)
	if w.watched {
		w.notices = append(w.notices, notice{p, w.syncs[p]})
	}
}

// powerLoss cuts the power of everything at once. The streams come back without some of their unsynced ends, the
// nodes without some of what they had not synced. The nodes put the end of the log back before anything else is
// published.
func (w *world) powerLoss() {
	w.note("power fails")
	w.wire, w.acks = nil, nil
	for _, n := range w.nodes {
		if n.up {
			n.crash()
		}
	}
	w.cutLog(w.log.synced + w.upTo(w.log.Last()-min(w.log.synced, w.log.Last())))
	for p, s := range w.out {
		cut := s.synced + w.upTo(s.Last()-min(s.synced, s.Last()))
		s.PowerLoss(cut, w.faults.hole && w.chance(50))
		w.note("out %d: cut at %d, last sequence %d", p, cut, s.Last())
	}
	if w.chance(20) { // the power fails again while the log is being healed
		w.heal(w.rng.IntN(10))
		w.cutLog(w.log.synced + w.upTo(w.log.Last()-min(w.log.synced, w.log.Last())))
	}
	w.heal(1 << 30)
	for _, n := range w.nodes {
		n.start()
	}
}

// oldCopy puts one data directory back to an older state, that of the streams or of a node. Only one of them: the
// other still has what was answered.
func (w *world) oldCopy() {
	if w.chance(50) {
		w.log.Sync()
		w.nodes[w.rng.IntN(len(w.nodes))].putBack()
		return
	}
	if !slices.ContainsFunc(w.nodes, func(n *node) bool { return n.synced > 0 && n.local[n.synced-1].Seq >= w.applied }) {
		return
	}
	w.wire, w.acks = nil, nil
	for _, n := range w.nodes {
		if n.up {
			n.crash()
		}
	}
	w.cutLog(w.upTo(w.log.Last()))
	w.log.synced = min(w.log.synced, w.log.Last())
	for p, s := range w.out {
		cut := w.upTo(s.Last())
		s.PowerLoss(cut, false)
		w.loud[p] = true
		w.note("out %d put back to %d", p, s.Last())
	}
	w.heal(1 << 30)
	for _, n := range w.nodes {
		n.start()
	}
}

// upTo draws a number from 0 to n.
func (w *world) upTo(n uint64) uint64 { return w.rng.Uint64N(n + 1) }

func (w *world) cutLog(cut uint64) {
	cut = min(cut, w.log.Last())
	var held uint64 // up to here some node has the log: it will be put back, or lies below a checkpoint
	for _, n := range w.nodes {
		if held = max(held, n.end()); w.placed { // else nodes that have yet to read the records below this node's log would lose them
			cut = max(cut, n.base)
		}
	}
	for seq := max(cut, held) + 1; seq <= w.log.Last(); seq++ {
		delete(w.records, seq)
	}
	w.log.PowerLoss(cut, false)
	w.note("the log ends at %d", w.log.Last())
}

// heal lets each node put back the records that it has beyond the log's end.
func (w *world) heal(budget int) {
	for _, i := range w.rng.Perm(len(w.nodes)) {
		budget = w.nodes[i].heal(budget)
	}
}

// calmDown ends all faults and runs the world until nothing is left to do.
func (w *world) calmDown() {
	w.note("calm")
	w.calm = true
	w.faults = faults{}
	w.restartServer()
	w.skew = max(w.skew, w.stamped/1e6+1-w.truth)
	for _, n := range w.nodes {
		if !n.up {
			n.start()
		}
	}
	for _, n := range w.nodes {
		n.follow() // before it asks for the time: a tick of its own may be from before the streams' clock was set
		if w.clocks.apart > 0 {
			n.ask()
		} else {
			n.drift, n.offset = 0, w.skew
		}
	}
	w.runUntilIdle()
	if w.clocks.apart > 0 && w.err == nil {
		w.beOnTime()
		w.runUntilIdle()
	}
	if w.o.Diverge && w.err == nil {
		w.diverge()
		w.runUntilIdle()
	}
}

// runUntilIdle gives each partition an owner, and runs until nothing is left to do.
func (w *world) runUntilIdle() {
	for p := range w.out {
		w.makeFollow(w.nodes[p%len(w.nodes)], p)
		w.nodes[p%len(w.nodes)].claim(p)
	}
	const rounds = 4000 // a machine with narrow bounds does only a little in each
	for range rounds {
		if w.err != nil {
			return
		}
		w.truth += round
		if w.settle() && w.isIdle() {
			return
		}
	}
	w.fail("the world does not come to rest: %s", w.whyBusy())
}

// settle is one round in which every node does what there is to do.
func (w *world) settle() bool {
	for _, n := range w.nodes {
		n.follow()
		n.resume()
		n.tick()
		n.publish(1 << 20)
	}
	for len(w.wire) > 0 {
		w.deliver()
	}
	for len(w.acks) > 0 {
		w.answer()
	}
	w.deliverNotices(len(w.notices))
	w.syncOutputs()
	return w.err == nil
}

// isIdle tells whether all outputs are stored and nothing is ready any more.
func (w *world) isIdle() bool { return w.whyBusy() == "" }

func (w *world) whyBusy() string {
	for p := range w.out {
		n := w.nodes[p%len(w.nodes)]
		r := n.parts[p]
		if r == nil || r.stopped != nil {
			continue
		}
		s := r.machine.Stats()
		if next, ok := r.machine.NextDeadline(); ok && next <= max(n.now(), s.To) {
			return fmt.Sprintf("partition %d: ticked to %d, something is due at %d, it is %d", p, s.To, next, n.now())
		}
		if n.applied != w.log.Last() || s.Ready > 0 || r.chain.Lost() || r.chain.Stored().Output < s.Made {
			return fmt.Sprintf("partition %d: applied %d of %d, %d ready, chain lost %v, stored %d of %d", p, n.applied, w.log.Last(), s.Ready, r.chain.Lost(), r.chain.Stored().Output, s.Made)
		}
	}
	return ""
}
