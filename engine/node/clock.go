package node

import (
	"sync/atomic"
	"time"
)

// clock is this node's clock set to that of the stream, which is the reference for everybody: its own,
// plus the offset measured from the timestamps of its ticks. The embedded server reads our own clock.
type clock struct {
	external bool
	offset   atomic.Int64 // ns
	at       time.Time    // of the latest measurement; the reader's
}

// ms is the present time of the stream's clock in unix ms, rounded down: what is held until a
// millisecond leaves when that has begun.
func (c *clock) ms() int64 { return (time.Now().UnixNano() + c.offset.Load()) / 1e6 }

// until is how long it is until a millisecond of the stream's clock.
func (c *clock) until(ms int64) time.Duration {
	return time.Duration(ms*1e6 - time.Now().UnixNano() - c.offset.Load())
}

// measured learns from one of our records: stamped there before it was received here. What that leaves
// between the two clocks is a lower bound of the offset, so nothing is early by it; the quickest record
// gives the best bound. The bound is given up slowly, as clocks drift, and at once when it is off by much.
func (c *clock) measured(received time.Time, stamp int64) {
	if !c.external {
		return
	}
	bound, current := stamp-received.UnixNano(), c.offset.Load()
	drifted := current - received.Sub(c.at).Nanoseconds()/driftPerNano
	if bound < current-clockJump.Nanoseconds() || c.at.IsZero() {
		drifted = bound
	}
	c.offset.Store(max(bound, drifted))
	c.at = received
}

const (
	driftPerNano = 10_000 // 100 ppm
	clockJump    = 20 * time.Millisecond
)
