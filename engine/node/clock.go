package node

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
)

// wall is this machine's clock. Only clock reads it: all other times in the package are measured by the monotonic clock, or come from
// the streams.
var wall = time.Now

// clock is the streams' clock, the reference for all nodes, as far as this node knows it. The embedded server makes its timestamps by this
// machine's clock, so with it that is the streams' clock. With an external NATS, the node has a clock of its own: the machine's clock when
// the node began, carried on by the monotonic clock. The streams' clock is that plus an offset, which is measured from timestamps of the
// streams. So nothing is early or late because the machine's clock is wrong, or is set. After the machine was suspended, the clock
// is behind by as long, until the offset is measured again.
type clock struct {
	external bool
	began    time.Time // for the monotonic clock
	start    int64     // the machine's clock then, unix ns

	offset atomic.Int64 // ns
	mu     sync.Mutex
	known  engine.ClockOffset
	slack  time.Duration // by how much more than offset the streams' clock may be ahead: the answer that told offset took so long

	// When jumped last looked:
	ahead    int64         // how far the streams' clock was ahead of the node's own, ns
	slackAgo time.Duration // slack
}

// begin starts the clock, before anybody reads it.
func (c *clock) begin(external bool) {
	c.external, c.began, c.start = external, time.Now(), wall().UnixNano()
}

// running is how long ago the clock began.
func (c *clock) running() time.Duration { return time.Since(c.began) }

// own converts a moment to the node's own clock, unix ns.
func (c *clock) own(t time.Time) int64 { return c.start + int64(t.Sub(c.began)) }

// ns is the present time of the streams' clock.
func (c *clock) ns() int64 {
	if !c.external {
		return wall().UnixNano()
	}
	return c.own(time.Now()) + c.offset.Load()
}

// ms is ns in ms, rounded down, so that what is held until a millisecond is published only after that has begun.
func (c *clock) ms() int64 { return c.ns() / 1e6 }

// until is how long it is until a millisecond of the streams' clock.
func (c *clock) until(ms int64) time.Duration { return time.Duration(ms*1e6 - c.ns()) }

// measured adjusts the offset by a timestamp that a stream made between two moments. A zero timestamp changes nothing.
func (c *clock) measured(sent, received, stamp time.Time) {
	if !c.external || stamp.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.Measured(c.own(sent), c.own(received), stamp.UnixNano())
	if c.known.NS() == stamp.UnixNano()-c.own(received) {
		c.slack = received.Sub(sent)
	}
	c.offset.Store(c.known.NS())
}

// machineOffset is how far the streams' clock is ahead of this machine's; 0 with an embedded server.
func (c *clock) machineOffset() time.Duration {
	if !c.external {
		return 0
	}
	return time.Duration(c.ns() - wall().UnixNano())
}

// jumpLeast is the least jump of the clock that is logged: of fires that come due by a smaller one, none counts as missed.
const jumpLeast = time.Second

// jumped is how far the streams' clock, as this node knows it, was set since the last call, or ran on while this machine was suspended;
// negative: back. A jump of less than jumpLeast is 0, and so are the first measurement of the offset, and what a quicker answer adds to
// that of a slow one. Only watch calls it.
func (c *clock) jumped() time.Duration {
	c.mu.Lock()
	ahead, slack := c.offset.Load(), c.slack
	c.mu.Unlock()
	if !c.external {
		ahead = wall().UnixNano() - c.own(time.Now())
	}
	before, unsure := c.ahead, c.slackAgo
	c.ahead, c.slackAgo = ahead, slack
	by := time.Duration(ahead - before)
	if by < 0 {
		unsure = slack
	}
	if by.Abs()-unsure < jumpLeast || c.external && before == 0 {
		return 0
	}
	return by
}
