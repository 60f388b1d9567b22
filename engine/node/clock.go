package node

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
)

// wall is this machine's clock. Nobody else in the package reads it: all other times are differences between two
// moments, of the monotonic clock, or the streams'.
var wall = time.Now

// clock is the streams' clock, the reference for everybody, as this node knows it. The embedded server stamps by the
// machine's clock, so that is it. Elsewhere it is the node's own, the machine's when the node began and carried on by the
// monotonic clock, plus the offset measured from what the streams stamp. So a machine whose clock is wrong, or is set,
// makes nothing early or late; one that slept lags by that until it measures again.
type clock struct {
	external bool
	began    time.Time // for the monotonic clock
	start    int64     // the machine's clock then, unix ns

	offset atomic.Int64 // ns
	mu     sync.Mutex
	known  engine.ClockOffset
}

// begin starts the clock, before anybody reads it.
func (c *clock) begin(external bool) {
	c.external, c.began, c.start = external, time.Now(), wall().UnixNano()
}

// running is how long ago the clock began.
func (c *clock) running() time.Duration { return time.Since(c.began) }

// own is a moment by the node's own clock, unix ns.
func (c *clock) own(t time.Time) int64 { return c.start + int64(t.Sub(c.began)) }

// ns is the present time of the streams' clock.
func (c *clock) ns() int64 {
	if !c.external {
		return wall().UnixNano()
	}
	return c.own(time.Now()) + c.offset.Load()
}

// ms is the same in ms, rounded down: what is held until a millisecond leaves when that has begun.
func (c *clock) ms() int64 { return c.ns() / 1e6 }

// until is how long it is until a millisecond of the streams' clock.
func (c *clock) until(ms int64) time.Duration { return time.Duration(ms*1e6 - c.ns()) }

// measured learns from something that the streams' clock stamped between two moments. The zero stamp tells nothing.
func (c *clock) measured(sent, received, stamp time.Time) {
	if !c.external || stamp.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.Measured(c.own(sent), c.own(received), stamp.UnixNano())
	c.offset.Store(c.known.NS())
}

// wrong is how far the streams' clock is ahead of this machine's.
func (c *clock) wrong() time.Duration {
	if !c.external {
		return 0
	}
	return time.Duration(c.ns() - wall().UnixNano())
}
