package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// Publishing: how a chain's outputs get into its output stream.

// publish sends what a partition's chain has to send now, and tells when to look again, unix ms. It starts the goroutine that resumes a
// lost chain, or waits for late answers.
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
		n.render(&n.chained, p, m)
		n.chained.ReportLate = true
		err := n.streams.Out[p.number].PublishChained(&n.chained, onAck)
		if err != nil {
			n.lose(p, fmt.Errorf("output %d cannot be sent: %w", m.Output.Number, err))
			return now
		}
	}
	if at, ok := p.chain.HoldUntil(); ok {
		return at
	}
	return math.MaxInt64
}

// render renders a publish into a message.
func (n *Node) render(c *streams.Chained, p *partition, m engine.Publish) {
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

// appendMessageID appends the id of one message of one run of a chain. The next message expects the message right before it to have this
// id, so that a foreign message between the two is noticed. The id is not meant for de-duplication. But a topic queue, which sources the
// messages of all chains, does de-duplicate, so the partition is part of the id.
func (n *Node) appendMessageID(dst []byte, p *partition, output uint64) []byte {
	dst = append(dst, n.session...)
	for _, v := range [...]uint64{uint64(p.number), p.run, output} {
		dst = strconv.AppendUint(append(dst, '.'), v, 36)
	}
	return append(dst, "\r\n"...)
}

var errLeftOut = errors.New("node: an answer came without those before it")

// acked takes the answer to a message: an ack of sequence seq, or err. run is the run of the chain in which the message was sent.
func (n *Node) acked(p *partition, run, seq uint64, err error) {
	now := n.clock.ns()
	p.out.Lock()
	defer p.out.Unlock()
	if run != p.run {
		return // another output may be at that sequence by now
	}
	if err != nil {
		switch {
		case p.chain.Lost():
		case errors.Is(err, streams.ErrLate):
			p.overdue.tell(p.chain.Stored().Seq + uint64(p.chain.InFlight()))
			n.alarm.Wake()
		default:
			n.lose(p, err)
			n.alarm.Wake()
		}
		return
	}
	if p.chain.Lost() {
		return
	}
	_, sending := p.chain.HoldUntil()
	full := p.chain.FreeWindow() == 0
	stored := p.chain.Acked(seq)
	if len(stored) > 0 {
		p.lostSince = time.Time{}
	}
	n.lateness(stored, now)
	if p.chain.Lost() { // by that ack, which left one out: the leader that should have sent it is gone
		n.lose(p, errLeftOut)
		n.alarm.Wake()
		return
	}
	if n.server == nil {
		p.durable = p.chain.Stored() // with an external NATS what is acknowledged counts as durable
	}
	if _, sends := p.chain.HoldUntil(); sends && !sending || full && p.chain.FreeWindow() > 0 {
		n.alarm.Wake() // now more outputs can be sent, or made
	}
}

// chainLines is how many lost chains, and how many resumed ones, are logged in a while (logAtMost): two for each partition. While a
// stream refuses messages, its chain is lost and resumed again and again.
func (n *Node) chainLines() int { return 2 * len(n.partitions) }

// lose gives a chain up. Its caller holds out.
func (n *Node) lose(p *partition, why error) {
	if !errors.Is(why, streams.ErrClosed) {
		n.limitedLogs.chains.logAtMost(n.chainLines(), n.log.Warn, "chain lost", "partition", p.number, "error", why)
	}
	n.meters.lost.Inc()
	p.lostBy = why
	p.chain.Lose()
}

// lateness notes how late triggers were stored, at now in unix ns. Those that were due in the same millisecond are noted together.
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
