package sim

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/internal/memtable"
)

// node is one host of the machine: what is on its disk, and what it has in memory while it is up.
type node struct {
	world *world
	id    int

	// On disk.
	local  []engine.Record // of the log, as read; those up to synced survive a crash
	synced int
	base   uint64            // the local log has every record above it
	tables []*memtable.Table // by partition: its two checkpoints

	drift  int64 // how far its clock is ahead of the true time, ms
	offset int64 // what it adds to its clock to get the streams' time, as it was told, ms
	known  engine.ClockOffset
	sent   sentTick

	// In memory.
	up      bool
	session int
	applied uint64
	parts   []*part // by partition; nil: it does not follow it
	givenUp []*part // given up in this session
	taking  map[int]*taking

	mistakes string // the job whose put it gets wrong (diverge)
}

// sentTick is a tick that may come back.
type sentTick struct {
	to    int64
	epoch uint64
	at    int64 // by the node's clock, ms
}

// part is one partition at one node.
type part struct {
	machine *engine.Machine
	chain   *engine.Chain
	owner   engine.Owner
	gen     int    // of the chain, counts resumptions
	offered uint64 // newest output given to the chain
	synced  engine.Acked
	durable engine.Acked
	sentAt  int64 // when the chain last moved, ms of the true time
	stopped error
	claimed uint64 // the node's last claim
	upTo    uint64 // records up to here were applied already when the node took it over

	saving   *engine.Checkpoint
	savingAt uint64 // position
	written  bool   // the checkpoint is on disk, but the machine does not know that yet
	rows     *engine.Rows
	gone     *engine.GoneRows
	ahead    *ahead
	question *question
}

// question is what an output stream answered when it was asked for its end. It is judged once the
// machine has applied the log up to needs.
type question struct {
	first, last uint64
	lastTime    int64     // of the last message, unix ns
	asked       int64     // the server's clock, unix ns
	messages    []Message // those that may be the last output
	acked       engine.Acked
	needs       uint64
}

func (n *node) name() string { return "n" + strconv.Itoa(n.id) }

// now is the streams' clock as the node believes it to be, ms.
func (n *node) now() int64 {
	switch w := n.world; {
	case w.clocks.apart == 0:
		return n.own() + n.offset
	case w.o.Sabotage.Clock:
		return n.own()
	}
	return floorMilli(n.own()*1e6 + n.known.NS())
}

// start recovers from what is on disk.
func (n *node) start() {
	w := n.world
	n.session++
	n.synced = len(n.local)
	n.applied = 0
	n.parts, n.givenUp, n.taking = nil, make([]*part, w.layout.Partitions), make(map[int]*taking)
	if n.known, n.sent = (engine.ClockOffset{}), (sentTick{}); w.clocks.apart > 0 {
		n.ask()
	}
	for len(n.tables) < w.layout.Partitions {
		n.tables = append(n.tables, new(memtable.Table))
	}
	replay := n.end()
	for p := range w.layout.Partitions {
		if !n.has(p) {
			n.parts = append(n.parts, nil)
			continue
		}
		m, position := n.restore(p, 0)
		m.Attach(newest{n, p})
		n.parts = append(n.parts, &part{machine: m, chain: engine.NewChain(), offered: m.Made()})
		n.parts[p].chain.Watch(w.watched)
		if w.replicated {
			n.parts[p].chain.Confirm()
		}
		replay = min(replay, position)
	}
	n.up, n.applied = true, replay
	n.apply(1 << 30)
	n.applied = max(n.applied, n.end())
	w.note("%s starts at %d", n.name(), n.applied)
}

// end is the last sequence that the node has on disk, in its log or below that.
func (n *node) end() uint64 {
	if k := len(n.local); k > 0 {
		return n.local[k-1].Seq
	}
	return n.base
}

// restore opens a machine from one of a partition's checkpoints (0 is the newest), or a new machine if there is none.
func (n *node) restore(p, which int) (*engine.Machine, uint64) {
	w := n.world
	view := n.tables[p].View()
	if which == 1 {
		view = n.tables[p].Older()
	}
	if which > 1 || view.ID == 0 {
		return w.bound(engine.New(w.layout, p)), 0
	}
	m, err := w.open(p, view)
	if err != nil {
		w.fail("%s cannot restore: %v", n.name(), err)
		return engine.New(w.layout, p), 0
	}
	return w.bound(m), view.Position
}

// oldest is the earliest position to which the node may have to go back.
func (n *node) oldest() uint64 {
	oldest := n.end()
	for _, t := range n.taking {
		oldest = min(oldest, t.needs)
	}
	for p := range n.world.layout.Partitions {
		if n.world.placed && n.parts[p] == nil {
			continue
		}
		list := n.tables[p].List()
		if len(list) < 2 {
			return 0
		}
		oldest = min(oldest, list[1].Position)
	}
	return oldest
}

// crash loses what is not on disk. Of what was written but not synced, some may be there all the same.
func (n *node) crash() {
	w := n.world
	keep := n.synced + w.rng.IntN(len(n.local)-n.synced+1)
	w.note("%s crashes, keeps %d of %d records", n.name(), keep, len(n.local))
	n.local = slices.Clone(n.local[:keep])
	n.synced = keep
	n.up, n.parts, n.givenUp, n.taking = false, nil, nil, nil
	if w.watched { // the server was in the same process
		w.wire, w.acks, w.notices = nil, nil, nil
	}
}

// putBack puts the node's disk back to an older state: fewer records, and not the newest checkpoint.
func (n *node) putBack() {
	w := n.world
	if w.placed && n.alone() { // it would lose records that no other node has
		return
	}
	if n.up {
		n.crash()
	}
	var floor uint64
	for _, t := range n.tables {
		t.StepBack()
		floor = max(floor, t.View().Position)
	}
	at := n.after(floor)
	n.local = slices.Clone(n.local[:at+w.rng.IntN(len(n.local)-at+1)])
	n.synced = len(n.local)
	w.note("%s is put back to %d", n.name(), n.end())
	if n.end()+1 < w.log.First() {
		n.adopt()
	}
	n.start()
}

// after is the index of the first local record above a sequence.
func (n *node) after(seq uint64) int {
	return sort.Search(len(n.local), func(i int) bool { return n.local[i].Seq > seq })
}

// adopt copies another node's disk. It is the way out for a node when the log was cut beyond its position.
func (n *node) adopt() {
	w := n.world
	if w.placed {
		n.startOver()
		return
	}
	best := n
	for _, other := range w.nodes {
		if other.end() > best.end() {
			best = other
		}
	}
	if best == n {
		w.fail("%s is left behind at %d and nobody is ahead; the log begins at %d", n.name(), n.end(), w.log.First())
		return
	}
	n.local = slices.Clone(best.local[:best.synced])
	n.synced, n.base = len(n.local), best.base
	for p := range best.tables {
		n.tables[p] = best.tables[p].Clone()
	}
	w.note("%s takes the disk of %s", n.name(), best.name())
}

// heal puts back the records that the node has beyond the log's end, at most budget of them.
func (n *node) heal(budget int) int {
	w := n.world
	at := n.after(w.log.Last())
	if n.end() <= w.log.Last() || budget <= 0 {
		return budget
	}
	first := n.end() + 1
	if len(n.local) > 0 {
		first = n.local[0].Seq
	}
	if first > w.log.Last()+1 {
		w.note("%s raises the log's end to %d", n.name(), first-1)
		w.log.Purge(first)
	}
	for _, r := range n.local[at:] {
		for w.log.Last()+1 < r.Seq {
			w.store(Message{Time: w.stamp(), Subject: w.layout.LogSubject(engine.AllPartitions, "heal")})
		}
		if budget--; budget < 0 {
			break
		}
		m := Message{Time: w.stamp(), Subject: w.layout.LogSubject(engine.AllPartitions, "heal"), Data: r.Data}
		if _, ok := w.layout.Healed(&r); !ok {
			m.Data = engine.EncodeHeal(&r)
		}
		w.store(m)
	}
	w.note("%s heals the log up to %d", n.name(), w.log.Last())
	return budget
}

// read takes the next records of the log.
func (n *node) read(k int) {
	w := n.world
	end := n.end()
	if w.log.Last() < end {
		w.fail("%s has read to %d, the log ends at %d", n.name(), end, w.log.Last())
		return
	}
	if w.log.First() > end+1 {
		n.crash()
		n.adopt()
		n.start()
		return
	}
	for _, m := range w.log.From(end + 1) {
		if k--; k < 0 {
			break
		}
		// The local log keeps the bytes, so that the same is applied now and replayed later.
		encoded := engine.AppendRecord(nil, ptr(record(m, m.Seq)))
		r, err := engine.DecodeRecord(m.Seq, encoded)
		if err != nil {
			w.fail("record %d does not survive its encoding: %v", m.Seq, err)
			return
		}
		n.local = append(n.local, r)
	}
}

func ptr[T any](v T) *T { return &v }

func (n *node) sync() { n.synced = len(n.local) }

// apply gives synced records to the machines, and the machines' outputs to the chains.
func (n *node) apply(k int) {
	w := n.world
	for at := n.after(n.applied); at < n.synced && k > 0 && w.err == nil; at, k = at+1, k-1 {
		r := n.local[at]
		e := w.layout.Decode(&r)
		if s := n.sent; len(e.Ticks) > 0 && w.clocks.apart > 0 && e.Ticks[0].To == s.to && e.Ticks[0].Epoch == s.epoch {
			n.learn(s.at*1e6, n.own(), r.Time)
		}
		for p, part := range n.followed() {
			if concerns(&e, p) && part.stopped == nil && r.Seq > part.upTo {
				n.applyTo(p, part, &e)
			}
		}
		n.applied = r.Seq
		w.applied = max(w.applied, r.Seq)
	}
}

// concerns tells whether a record is for a partition.
func concerns(e *engine.Entry, p int) bool {
	if e.Partition != engine.AllPartitions {
		return e.Partition == p
	}
	return slices.ContainsFunc(e.Ticks, func(t engine.Tick) bool { return t.Partition == p })
}

func (n *node) applyTo(p int, part *part, e *engine.Entry) {
	w := n.world
	if w.o.Sabotage.Epoch {
		for i := range e.Ticks {
			e.Ticks[i].Epoch = part.machine.Stats().Epoch
		}
	}
	n.mistake(e)
	known := e.Seq <= part.machine.Stats().Position
	result, err := part.machine.Apply(e)
	if n.mistaken(p) && errors.Is(err, engine.ErrDiverged) {
		part.stopped = err
		return
	}
	if err != nil {
		w.fail("%s stops partition %d at %d: %v", n.name(), p, e.Seq, err)
		return
	}
	if result.Epoch > 0 {
		part.owner.Epoch = 0
		if e.Claim.Node == n.name() {
			part.owner.Epoch = result.Epoch
		}
	}
	if part.owner.Epoch != 0 {
		w.promised[e.Seq] = true
	}
	if !known { // else it was applied before, and this result says nothing
		n.answer(p, e, result)
	}
	n.compare(p, part.machine.Mark())
	if part.machine.Made() > part.offered {
		outputs, ok := part.machine.Outbox(part.offered)
		if !ok {
			w.fail("%s no longer holds output %d, which it just made", n.name(), part.offered+1)
			return
		}
		for i := range outputs {
			n.check(p, &outputs[i])
		}
		part.chain.Offer(outputs)
		part.offered = part.machine.Made()
	}
}

// answer compares the outcome of a record's commands with that on any other node.
func (n *node) answer(p int, e *engine.Entry, r engine.Result) {
	if n.mistaken(p) {
		return
	}
	w, said := n.world, ""
	if e.Kind != engine.KindImport {
		r.Jobs = []engine.Outcome{{Err: r.Err, Changed: r.Changed}}
	}
	for _, o := range r.Jobs {
		var refused carillon.Code
		if o.Err != nil {
			refused = o.Err.Code
		}
		said += outcome(o.Changed || w.o.Sabotage.Reply, refused)
	}
	if before, ok := w.answers[p][e.Seq]; ok && before != said {
		w.fail("%s answers record %d with %q, before it was %q", n.name(), e.Seq, said, before)
	}
	w.answers[p][e.Seq] = said
}

// compare compares the digest of a state with that of any other node at the same position.
func (n *node) compare(p int, m engine.Mark) {
	w := n.world
	if before, ok := w.marks[p][m.Position]; !n.mistaken(p) && ok && before != m.Digest {
		w.fail("%s has digest %016x of partition %d at %d, before it was %016x", n.name(), m.Digest, p, m.Position, before)
	}
	if !n.mistaken(p) {
		w.marks[p][m.Position] = m.Digest
	}
}

// check compares an output with what any other node made under its number.
func (n *node) check(p int, o *engine.Output) {
	w := n.world
	content := o.Subject(w.layout, p) + "\n" + string(o.AppendHeader(nil)) + "\n" + o.Payload()
	if n.mistaken(p) {
		return
	}
	if before, ok := w.made[p][o.Number]; ok && before != content {
		w.fail("%s makes output %d of partition %d as %q, before it was %q", n.name(), o.Number, p, content, before)
	}
	w.made[p][o.Number] = content
	if o.Due > floorMilli(w.stamped)+50 {
		w.fail("output %d of partition %d, due at %d, is made at %d", o.Number, p, o.Due, floorMilli(w.stamped))
	}
}

func floorMilli(ns int64) int64 { return ns / 1e6 }

// tick appends a tick of the partitions that need one.
func (n *node) tick() {
	w := n.world
	var ticks []engine.Tick
	lead := w.rng.Int64N(6)
	for _, part := range n.followed() {
		if part.stopped != nil {
			continue
		}
		part.chain.Share(1+int(n.now()%64), engine.OvertakingWindow(float64(n.now()%400_000))) // whatever else is going on, and another share each time
		t, ok := part.owner.Tick(part.machine, n.now(), lead, part.chain.FreeWindow(), part.durable)
		if !ok {
			continue
		}
		if !w.calm && w.chance(30) {
			t.Limit = min(t.Limit, w.rng.Uint64N(4))
		}
		ticks = append(ticks, t)
	}
	if len(ticks) > 0 {
		seq := w.append(w.layout.LogSubject(engine.AllPartitions, "tick"), nil, engine.EncodeTicks(ticks))
		n.sent = sentTick{ticks[0].To, ticks[0].Epoch, n.own() - w.clocks.rng.Int64N(6)} // it was some time on its way
		w.note("%s ticks %+v at %d", n.name(), ticks, seq)
	}
}

// claim claims a partition. The claim also changes how long completed jobs are kept.
func (n *node) claim(p int) {
	w := n.world
	if n.parts[p] == nil {
		return
	}
	c := engine.Rules()
	c.Node, c.RetentionMS, c.CompletedMax = n.name(), w.rng.Int64N(20_000), 1+w.rng.IntN(6)
	seq := w.append(w.layout.LogSubject(p, "claim"), nil, c.Encode())
	n.parts[p].claimed = seq
	w.note("%s claims partition %d at %d", n.name(), p, seq)
}

// disk appends a record that says whether there is room for new jobs, as the present, a former or a coming owner.
func (n *node) disk() {
	w := n.world
	p := w.rng.IntN(len(n.parts))
	if n.parts[p] == nil {
		return
	}
	if d := (engine.Disk{Epoch: n.parts[p].owner.Epoch, Low: w.chance(60)}); d.Epoch != 0 {
		seq := w.append(w.layout.LogSubject(p, "disk"), nil, d.Encode())
		w.note("%s says of partition %d %+v at %d", n.name(), p, d, seq)
	}
}

// publish sends what the chains have to send. A node that lost a partition and has not read that yet goes on
// publishing, and one that has read it may do so, too: it makes no difference.
func (n *node) publish(most int) {
	w := n.world
	for p, part := range n.followed() {
		now := n.now()
		if w.o.Sabotage.Hold {
			now += 2000
		}
		if part.owner.Epoch == 0 && (!w.chance(10) || n.mistakes != "") {
			continue
		}
		for ; most > 0; most-- {
			m, ok := part.chain.Next(now)
			if !ok {
				break
			}
			if m.Output.Due > n.now() {
				w.fail("%s publishes output %d of partition %d at %d, it is due at %d", n.name(), m.Output.Number, p, n.now(), m.Output.Due)
			}
			part.sentAt = w.truth
			k := packet{
				from: n.id, session: n.session, partition: p, gen: part.gen, ack: m.Ack,
				message: message(w.layout, p, m.Output), expect: Expectation{Seq: m.Expect, OnSeq: true},
				due: m.Output.Due, scheduled: m.Output.Kind == engine.OutputTrigger,
			}
			if m.Named {
				k.message.ID = n.messageID(part, m.Output.Number)
			}
			if m.Linked {
				k.expect.ID = n.messageID(part, m.Output.Number-1)
			}
			w.wire = append(w.wire, k)
		}
	}
}

// messageID names a message of one chain between two resumptions.
func (n *node) messageID(part *part, number uint64) string {
	return fmt.Sprintf("%d.%d.%d.%d", n.id, n.session, part.gen, number)
}

func (n *node) acked(a ack) {
	part := cmp.Or(n.parts[a.partition], n.givenUp[a.partition])
	switch {
	case a.gen != part.gen: // it confirms a message at a sequence that may be another output's now
	case a.err == nil:
		part.chain.Acked(a.seq)
		part.sentAt = n.world.truth
	default:
		part.chain.Lose()
	}
}

// onForeign is called when the node hears of a foreign message in an output stream.
func (n *node) onForeign(part *part) {
	if part.chain.Watched() {
		part.chain.Watch(false)
		part.synced = part.durable
		part.chain.Lose()
	}
}

// timeout loses chains whose acks do not come.
func (n *node) timeout() {
	for p, part := range n.followed() {
		if !part.chain.Lost() && part.chain.InFlight() > 0 && n.world.truth-part.sentAt > 500 {
			n.world.note("%s waits no longer for acks of partition %d", n.name(), p)
			part.chain.Lose()
		}
	}
}

func (n *node) disconnected() {
	for _, part := range n.followed() {
		part.chain.Lose()
		part.question = nil
	}
}

// resume resumes a lost chain: it asks the stream for its end, which says where to go on. The answer is judged only once the
// machine has applied the log up to where that was when the stream answered.
func (n *node) resume() {
	w := n.world
	for p, part := range n.followed() {
		if !part.chain.Lost() || part.stopped != nil {
			continue
		}
		if part.question == nil {
			s := w.out[p]
			acked := part.machine.Acked()
			from := acked.Seq + 1
			if s.Last() < acked.Seq {
				from = 1 // it lost outputs that were stored for good
			}
			part.question = &question{
				first: max(s.First(), 1), last: s.Last(), lastTime: s.lastTime, asked: w.stamp(), messages: s.From(from), acked: acked, needs: w.log.Last(),
			}
			if !w.calm && w.chance(50) {
				continue
			}
		}
		q := part.question
		part.question = nil
		if q.acked == part.machine.Acked() { // else the answer may be older than what is known by now
			n.finishResume(p, part, q)
		}
	}
}

func (n *node) finishResume(p int, part *part, q *question) {
	w := n.world
	var end engine.StreamEnd
	if (w.watched || w.replicated) && q.last >= q.acked.Seq {
		s := part.machine.Survey(q.first, q.last, q.asked/1e6-maxAge)
		for _, m := range q.messages {
			number, identity := identityOf(m)
			s.Add(number, m.Seq, identity)
		}
		if len(s.Foreign) > 0 {
			part.chain.Watch(false)
		}
		if missing := s.Missing(); len(missing) > 0 {
			n.replace(p, part, q.last, missing[0])
			return
		}
		end = s.End()
	} else {
		end = lastOutput(part.machine, q)
	}
	if end.Number == 0 {
		// There is no output above those known to be stored. Either age removed it, and then the last message
		// was old enough, or there never was one: a power failure can leave a hole at the end.
		end.LastSeq = min(q.last, q.acked.Seq)
		if q.first > q.acked.Seq+1 && q.lastTime < q.asked-maxAge*1e6 {
			end.LastSeq = q.first - 1
		}
	}
	number, err := part.machine.LastStored(end)
	outputs, ok := []engine.Output(nil), false
	switch {
	case err == nil:
		outputs, ok = part.machine.Outbox(number)
	case errors.Is(err, engine.ErrAhead) && n.applied < q.needs:
		part.question = q
		return
	case errors.Is(err, engine.ErrBehind):
		number = end.Number
		if acked := part.machine.Acked(); number == 0 && acked.Seq-end.LastSeq <= acked.Output {
			number = acked.Output - (acked.Seq - end.LastSeq)
		}
		outputs, ok = n.remake(p, number)
	}
	if !ok {
		w.note("%s stops partition %d loudly: %v", n.name(), p, err)
		part.stopped = fmt.Errorf("no way on from output %d: %w", number, err)
		if !w.loud[p] {
			w.fail("%s stops partition %d without a need: %v (stream %+v)", n.name(), p, part.stopped, end)
		}
		return
	}
	part.gen++
	part.chain.Resume(q.last, number, outputs)
	part.offered = part.machine.Made()
	part.sentAt = w.truth
	w.note("%s goes on in partition %d after output %d at %d", n.name(), p, number, q.last)
}

// lastOutput looks for the last output among the messages, from the end.
func lastOutput(m *engine.Machine, q *question) engine.StreamEnd {
	end := engine.StreamEnd{LastSeq: q.last}
	for i := len(q.messages) - 1; i >= 0 && end.Number == 0; i-- {
		number, identity := identityOf(q.messages[i])
		if !m.Foreign(number, q.messages[i].Seq, identity) {
			end.Number, end.Identity, end.Seq = number, identity, q.messages[i].Seq
		}
	}
	return end
}

// replace publishes an output that a foreign message displaced. Then the node asks the stream again.
func (n *node) replace(p int, part *part, last, number uint64) {
	w := n.world
	held, ok := part.machine.Outbox(number - 1)
	if !ok {
		w.fail("%s no longer holds output %d of partition %d, which was displaced", n.name(), number, p)
		return
	}
	if w.out[p].stuck {
		return
	}
	m := message(w.layout, p, &held[0])
	m.Time = w.stamp()
	seq, err := w.out[p].Publish(m, Expectation{Seq: last, OnSeq: true})
	w.note("%s replaces output %d of partition %d: %d %v", n.name(), number, p, seq, err)
	w.replaced[p] = w.replaced[p] || err == nil
}

// remake makes the outputs above a number once more, from the newest checkpoint that holds them.
func (n *node) remake(p int, number uint64) ([]engine.Output, bool) {
	w := n.world
	for which := 0; which <= len(n.tables[p].List()); which++ {
		m, position := n.restore(p, which)
		if !n.reaches(position) {
			break // the local log does not reach back so far
		}
		held, ok := m.Outbox(number)
		if !ok {
			continue
		}
		outputs := slices.Clone(held)
		m.Listen(engine.Listener{Made: func(o *engine.Output) {
			if o.Number > number {
				outputs = append(outputs, *o)
			}
		}})
		for _, r := range n.local[n.after(position):n.after(n.applied)] {
			if e := w.layout.Decode(&r); concerns(&e, p) {
				if _, err := m.Apply(&e); err != nil {
					w.fail("%s cannot replay: %v", n.name(), err)
				}
			}
		}
		for i := range outputs {
			n.check(p, &outputs[i])
		}
		w.note("%s makes outputs of partition %d again after %d", n.name(), p, number)
		return outputs, true
	}
	return nil, false
}

// checkpoint begins a checkpoint.
func (n *node) checkpoint() {
	p := n.world.rng.IntN(len(n.parts))
	if part := n.parts[p]; part != nil && part.stopped == nil {
		n.beginCheckpoint(p)
	}
}

func (n *node) beginCheckpoint(p int) {
	part := n.parts[p]
	if part.written {
		part.saving.Committed()
	}
	part.saving, part.written = part.machine.BeginCheckpoint(), false
	part.savingAt = max(n.applied, n.tables[p].View().Position) // the partition may come from a node that was further
	n.checkpointSlice()
}

// checkpointSlice saves the next slices of the checkpoint. After the last slice the checkpoint becomes durable, all at
// once; a crash may come before the machine knows that. The log is cut below what the older checkpoint needs.
func (n *node) checkpointSlice() {
	w := n.world
	for p, part := range n.followed() {
		switch {
		case part.saving == nil:
		case part.written:
			part.saving.Committed()
			part.saving, part.written = nil, false
			if from := n.after(n.oldest()); from > 0 && from <= n.synced {
				n.base = n.local[from-1].Seq
				n.local = slices.Clone(n.local[from:])
				n.synced -= from
			}
		case part.saving.Next(1 + w.rng.IntN(8)):
		case w.unseen.IntN(20) == 0:
			if w.o.Sabotage.Save {
				part.saving.Committed()
			}
			part.saving.Abandon()
			part.saving = nil
		default:
			b := n.tables[p].Begin()
			part.saving.Write(b, part.savingAt)
			if err := b.Commit(); err != nil {
				w.fail("%s cannot take a checkpoint of partition %d: %v", n.name(), p, err)
			}
			part.written = true
			w.note("%s has a checkpoint of partition %d at %d", n.name(), p, part.savingAt)
		}
	}
}

// measure learns the streams' clock, within a few ms.
func (n *node) measure() {
	if n.world.clocks.apart > 0 {
		n.ask()
		return
	}
	n.offset = n.world.skew - n.drift + n.world.rng.Int64N(5) - 2
}

func (n *node) jumpClock() {
	w := n.world
	if w.clocks.apart > 0 {
		n.sleep()
		return
	}
	d := w.rng.Int64N(2*hour) - hour
	if w.chance(50) {
		d /= 1000
	}
	n.drift += d
	w.note("%s: the clock jumps by %d ms", n.name(), d)
}

// prompt is the usual way of a trigger, with nothing in between: a tick, its record, the outputs.
func (n *node) prompt() {
	n.tick()
	n.follow()
	n.publish(1 << 20)
}

// follow reads and applies the whole log.
func (n *node) follow() {
	n.read(1 << 30)
	n.sync()
	n.apply(1 << 30)
}
