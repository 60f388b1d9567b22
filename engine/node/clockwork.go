package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// Bounds of the clockwork.
const (
	longestSleep = time.Second            // Go's monotonic clock stands still during suspend: look at the wall again
	tickTimeout  = 2 * time.Second        // without a tick read back the node says so
	tickPause    = 50 * time.Millisecond  // after one that was refused, or could not be sent
	tickAgain    = 250 * time.Millisecond // after one that has not come back
	ticksAway    = 64                     // that are known when they come back, at the most
	deadAfter    = 15 * time.Second       // without one the embedded server's log stream counts as dead
	leadMin      = 2                      // ms
	leadMax      = 5                      // ms
)

// clockwork is the walk of a trigger on the owner's side: it appends a tick when one is needed, and
// publishes outputs in the millisecond in which they are due.
func (n *Node) clockwork(ctx context.Context) {
	for {
		now := n.clock.ms()
		wake := now + longestSleep.Milliseconds()
		for _, p := range n.partitions {
			wake = min(wake, n.publish(ctx, p, now))
		}
		n.streams.Flush()
		wake = min(wake, n.tick(now))
		if err := n.bell.set(n.clock.until(wake)); err != nil {
			n.fail(fmt.Errorf("node: timer: %w", err))
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-n.bell.rang:
		}
	}
}

// publish sends what a partition's chain has to send now, and says when it has to send more.
func (n *Node) publish(ctx context.Context, p *partition, now int64) (wake int64) {
	p.out.Lock()
	defer p.out.Unlock()
	if p.chain.Lost() {
		if !p.serving {
			return math.MaxInt64
		}
		if p.lostSince.IsZero() {
			p.lostSince = time.Now()
		}
		if !p.resyncing {
			p.resyncing = true
			n.work.Go(func() { n.resync(ctx, p) })
		}
		return math.MaxInt64
	}
	if p.overdue.upTo > 0 && !p.resyncing {
		p.resyncing = true
		n.work.Go(func() { n.awaitAnswers(ctx, p) })
	}
	for {
		m, ok := p.chain.Next(now)
		if !ok {
			break
		}
		var onAck func(uint64, error)
		if m.Ack {
			run := p.run
			onAck = func(seq uint64, err error) { n.acked(p, run, seq, err) }
		}
		n.write(&n.chained, p, m)
		n.chained.Patient = true
		err := n.streams.Out[p.number].PublishChained(&n.chained, onAck)
		if err != nil {
			n.log.Warn("publish failed", "partition", p.number, "output", m.Output.Number, "error", err)
			p.chain.Lose()
			return now
		}
	}
	if at, ok := p.chain.HoldUntil(); ok {
		return at
	}
	return math.MaxInt64
}

// write renders a publish into a message.
func (n *Node) write(c *streams.Chained, p *partition, m engine.Publish) {
	o := m.Output
	c.Expect = m.Expect
	c.Subject = o.AppendSubject(c.Subject[:0], n.layout, p.number)
	c.Header = c.Header[:0]
	if m.Named {
		c.Header = n.appendMessageID(append(c.Header, nats.MsgIdHdr+": "...), p, o.Number)
	}
	if m.Linked {
		c.Header = n.appendMessageID(append(c.Header, nats.ExpectedLastMsgIdHdr+": "...), p, o.Number-1)
	}
	c.Header = o.AppendHeader(c.Header)
	c.Data = o.Payload()
}

// appendMessageID appends the name of one message of one run of a chain. It is not for de-duplication: the next message
// expects it right before itself, so that a foreign message between the two is noticed. The partition is in it since a
// topic queue does de-duplicate, and takes in the messages of all chains.
func (n *Node) appendMessageID(dst []byte, p *partition, output uint64) []byte {
	dst = append(dst, n.session...)
	for _, v := range [...]uint64{uint64(p.number), p.run, output} {
		dst = strconv.AppendUint(append(dst, '.'), v, 36)
	}
	return append(dst, "\r\n"...)
}

var errLeftOut = errors.New("node: an answer came without those before it")

// acked takes the answer to a publish.
func (n *Node) acked(p *partition, run, seq uint64, err error) {
	now := n.clock.ns()
	p.out.Lock()
	defer p.out.Unlock()
	if run != p.run {
		return // it speaks for a message that may stand for another output now
	}
	if err != nil {
		switch {
		case p.chain.Lost():
		case errors.Is(err, streams.ErrLate):
			p.overdue.tell(p.chain.Stored().Seq + uint64(p.chain.InFlight()))
			n.bell.ring()
		default:
			n.lose(p, err)
			n.bell.ring()
		}
		return
	}
	if p.chain.Lost() {
		return
	}
	_, sending := p.chain.HoldUntil()
	full := p.chain.Room() == 0
	stored := p.chain.Acked(seq)
	if len(stored) > 0 {
		p.lostSince = time.Time{}
	}
	n.lateness(stored, now)
	if p.chain.Lost() { // the leader that owed the answers before this one is gone
		n.lose(p, errLeftOut)
		n.bell.ring()
		return
	}
	if n.server == nil {
		p.durable = p.chain.Stored() // a replicated stream's ack is its word
	}
	if _, sends := p.chain.HoldUntil(); sends && !sending || full && p.chain.Room() > 0 {
		n.bell.ring() // more can be sent, or made, now
	}
}

// chainsSaid is how many lost chains are told at a time, and how many resumed ones: each partition's, and then the next. A stream that
// refuses what it is given has its chain lost and resumed again and again.
func (n *Node) chainsSaid() int { return 2 * len(n.partitions) }

// lose gives a chain up; its caller holds out.
func (n *Node) lose(p *partition, why error) {
	if !errors.Is(why, streams.ErrClosed) {
		n.troubles.chains.tellFirst(n.chainsSaid(), n.log.Warn, time.Now(), "chain lost", "partition", p.number, "error", why)
	}
	n.meters.lost.Inc()
	p.chain.Lose()
}

// lateness notes how late triggers are stored, all that are due in one millisecond together.
func (n *Node) lateness(stored []engine.Output, now int64) {
	for i := 0; i < len(stored); {
		due, triggers := stored[i].Due, 0
		for ; i < len(stored) && stored[i].Due == due; i++ {
			if stored[i].Kind != engine.OutputEvent {
				triggers++
			}
		}
		if triggers > 0 {
			n.meters.late(now-due*1e6, triggers)
		}
	}
}

// ticking knows the node's ticks that are on their way, and how long ticks take.
//
// Mostly that is one, which comes back within milliseconds. Where it does not, because its leader died or the network is
// slow, others follow it: with one at a time, what comes due after that was sent would wait for it to be missed, and then
// for the whole way of the next. To append a tick twice does no harm.
type ticking struct {
	mu     sync.Mutex
	away   []sentTick // oldest first; one that is behind another which came back is forgotten
	ended  bool       // no more are sent
	rested bool       // all that was due is in
	since  time.Time  // when the first of a row of ticks was sent of which none has come back
	round  float64    // smoothed round trip, ms
	spread float64    // smoothed deviation, ms
}

// sentTick is a tick on its way.
type sentTick struct {
	at     time.Time
	to     int64 // its partitions' time, to know it by
	epoch  uint64
	failed error // why it is not stored, or streams.ErrTimeout where that is not known
}

// lost tells whether a tick is known not to be stored.
func (s *sentTick) lost() bool { return s.failed != nil && !errors.Is(s.failed, streams.ErrTimeout) }

// newest is the one sent last; nil: none is on its way. Its caller holds mu.
func (t *ticking) newest() *sentTick {
	if len(t.away) == 0 {
		return nil
	}
	return &t.away[len(t.away)-1]
}

// until is when another tick may go out; in the past where one may at once.
func (t *ticking) until() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch last := t.newest(); {
	case last == nil:
		return time.Time{}
	case last.failed != nil:
		return last.at.Add(tickPause)
	default:
		return last.at.Add(tickAgain)
	}
}

// fail notes that the tick which was sent then was refused, or was not answered.
func (t *ticking) fail(sent time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := t.index(sent); i >= 0 {
		t.away[i].failed = err
	}
}

// index finds the tick that was sent then; -1: it is not waited for any more. Its caller holds mu.
func (t *ticking) index(sent time.Time) int {
	return slices.IndexFunc(t.away, func(s sentTick) bool { return s.at == sent })
}

// start notes that a tick goes out; none may when it says no.
func (t *ticking) start(first engine.Tick, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return false
	}
	if len(t.away) == 0 || t.rested {
		t.since, t.rested = now, false
	}
	t.away = slices.DeleteFunc(t.away, func(s sentTick) bool { return s.lost() })
	if len(t.away) == ticksAway {
		t.away = slices.Delete(t.away, 0, 1)
	}
	t.away = append(t.away, sentTick{at: now, to: first.To, epoch: first.Epoch})
	return true
}

// end lets no more ticks go out, and tells whether one is on its way that may be stored.
func (t *ticking) end() (away bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	return slices.ContainsFunc(t.away, func(s sentTick) bool { return !s.lost() })
}

// abort forgets the ticks on their way: none was sent, or none is waited for.
func (t *ticking) abort() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.away = t.away[:0]
}

// rest notes that all that was due is in: no tick is waited for. Those that were lost are forgotten; others may be stored yet.
func (t *ticking) rest() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.away, t.rested = slices.DeleteFunc(t.away, func(s sentTick) bool { return s.lost() }), true
}

// ours tells whether a tick read from the log is one that is on its way, and when that was sent.
func (t *ticking) ours(e *engine.Entry) (sent time.Time, ours bool) {
	if len(e.Ticks) == 0 {
		return time.Time{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.away {
		if s.to == e.Ticks[0].To && s.epoch == e.Ticks[0].Epoch {
			return s.at, true
		}
	}
	return time.Time{}, false
}

// back notes that the tick that was sent then has come back.
func (t *ticking) back(sent, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.away, t.since = slices.Delete(t.away, 0, t.index(sent)+1), now
	ms := float64(now.Sub(sent)) / 1e6
	t.spread += (math.Abs(ms-t.round) - t.spread) / 16
	t.round += (ms - t.round) / 16
}

// refused tells whether the latest tick was refused.
func (t *ticking) refused() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.newest()
	return last != nil && last.lost()
}

// silent is how long ticks have gone unanswered.
func (t *ticking) silent(now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last := t.newest(); last == nil || last.lost() || t.rested {
		return 0
	}
	return now.Sub(t.since)
}

// fruitless is how long ticks have been sent without one coming back, unless the log has no room: no node has it then.
func (t *ticking) fruitless(now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last := t.newest(); last == nil || errors.Is(last.failed, streams.ErrNoSpace) || t.rested {
		return 0
	}
	return now.Sub(t.since)
}

// lead is how far ahead ticks are appended, ms: the time in which nearly all of them come back.
func (t *ticking) lead() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return min(max(int64(math.Ceil(t.round+4*t.spread)), leadMin), leadMax)
}

// tick appends one record with a tick for every partition that needs one, unless one has just gone out, and
// says when to look again.
func (n *Node) tick(now int64) (wake int64) {
	at := time.Now()
	if n.holdTicks.Load() {
		return math.MaxInt64
	}
	if wait := n.ticking.until().Sub(at); wait > 0 {
		return now + 1 + wait.Milliseconds()
	}
	lead := n.ticking.lead()
	space := n.outboxSpace()
	wake, owns := n.nextTick(now, lead, space)
	if !owns {
		// One whose partitions others have taken would go on waiting for its last tick, count as stuck, and be given none (report).
		n.ticking.abort()
	}
	if wake > now {
		if owns {
			n.ticking.rest()
		}
		return wake
	}
	// One of them needs a tick: the record and its fsync are paid for, so it takes along what comes due in
	// any partition within the longest lead. Outputs are held to their millisecond all the same.
	var ticks []engine.Tick
	n.owners(space, func(p *partition, room int, durable engine.Acked) {
		if t, ok := p.owner.Tick(p.machine, now, leadMax, room, durable); ok {
			ticks = append(ticks, t)
		}
	})
	if len(ticks) == 0 {
		return now + 1
	}
	partition := engine.Everyone
	if len(ticks) == 1 {
		partition = ticks[0].Partition
	}
	if !n.ticking.start(ticks[0], at) {
		return math.MaxInt64
	}
	err := n.streams.Log.PublishAsync(n.layout.LogSubject(partition, "tick"), nil, engine.EncodeTicks(ticks), func(_ uint64, err error) {
		if err == nil || errors.Is(err, streams.ErrClosed) {
			return
		}
		n.troubles.ticksLost.tell(n.log, time.Now(), "tick not stored", "error", err)
		if !errors.Is(err, streams.ErrTimeout) {
			n.meters.ticksFailed.Inc()
		}
		n.ticking.fail(at, err)
		n.bell.ring()
	})
	n.meters.ticks.Inc()
	if err != nil {
		n.ticking.abort()
		return now + tickPause.Milliseconds() // the connection is down; publishing says so again
	}
	return now + tickAgain.Milliseconds()
}

// nextTick tells when a partition of this node needs a tick, and whether it has any. Those that have something to put out within
// the longest lead share the window from there on.
func (n *Node) nextTick(now, lead int64, space int) (wake int64, owns bool) {
	wake = math.MaxInt64
	sharing := 0
	n.owners(space, func(p *partition, room int, durable engine.Acked) {
		owns, wake = true, min(wake, p.owner.Wake(p.machine, now, lead, room, durable))
		if at, ok := p.machine.NextDeadline(); ok && at <= now+leadMax {
			sharing++
		}
	})
	n.sharing = sharing
	return wake, owns
}

// lastTick ends ticking, and waits until the tick that is on its way is applied, and all that other nodes appended, so
// that the checkpoint of a clean stop has it: behind that a version with other rules could not take it. Nothing is waited
// for long, nor while NATS is away.
func (n *Node) lastTick(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, tickTimeout)
	defer cancel()
	for n.ticking.end() && n.nc.IsConnected() && pause(ctx, time.Millisecond) {
		continue
	}
	if n.joined.takes.Load() && n.nc.IsConnected() {
		if err := n.catchUp(ctx); err != nil && ctx.Err() == nil {
			n.log.Warn("the checkpoint may be before the log's end", "error", err)
		}
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		n.log.Warn("the checkpoint may be before the log's end", "waited", tickTimeout)
	}
}

// owners visits the partitions that this node owns, with the room in their shares of the window: no more than the space for a
// partition's outputs holds of its largest. A tick is in the log, and whoever reads it makes what it allows.
func (n *Node) owners(space int, visit func(p *partition, room int, durable engine.Acked)) {
	for _, p := range n.partitions {
		p.mu.Lock()
		p.out.Lock()
		_, sending := p.chain.HoldUntil()
		p.chain.Share(n.sharing)
		if _, sends := p.chain.HoldUntil(); sends && !sending {
			n.bell.ring() // what waited for its share may be sent, and publishing is behind
		}
		room, durable := p.chain.Room(), p.durable
		p.out.Unlock()
		if space <= 0 {
			room = 0
		} else {
			room = min(room, max(1, space/p.machine.LargestOutput()))
		}
		if p.owner.Epoch != 0 {
			visit(p, room, durable)
		}
		p.mu.Unlock()
	}
}

// outboxSpace is how many bytes of outputs each partition of this node may still make before some are stored for good.
// Those of others are bounded by their owners in the same way.
func (n *Node) outboxSpace() int {
	total, owned := 0, 0
	for _, p := range n.partitions {
		p.mu.Lock()
		if p.owner.Epoch != 0 {
			total, owned = total+p.machine.OutboxBytes(), owned+1
		}
		p.mu.Unlock()
	}
	return (n.o.OutboxMax - total) / max(1, owned)
}
