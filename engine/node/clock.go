package node

import (
	"sync"
	"sync/atomic"
	"time"
)

// clock is this node's clock set to that of the stream, which is the reference for everybody: its own,
// plus the offset measured from the timestamps of its records. The embedded server reads our own clock.
type clock struct {
	external bool
	offset   atomic.Int64 // ns

	mu sync.Mutex
	at time.Time // of the latest measurement
}

// ms is the present time of the stream's clock in unix ms, rounded down: what is held until a
// millisecond leaves when that has begun.
func (c *clock) ms() int64 { return (time.Now().UnixNano() + c.offset.Load()) / 1e6 }

// until is how long it is until a millisecond of the stream's clock.
func (c *clock) until(ms int64) time.Duration {
	return time.Duration(ms*1e6 - time.Now().UnixNano() - c.offset.Load())
}

// measured learns from something that the stream stamped after it was asked for here, and before the answer was
// received here. So the offset lies between the two; the least is taken for it, so that nothing is early, and of
// several the one that the quickest answer gave. That is given up slowly, as clocks drift, and at once when it
// cannot be: one of the clocks was set. An answer without a stamp tells nothing.
func (c *clock) measured(sent, received, stamp time.Time) {
	if !c.external || stamp.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at := stamp.UnixNano()
	least, most := at-received.UnixNano(), at-sent.UnixNano()
	now := max(least, c.offset.Load()-received.Sub(c.at).Nanoseconds()/driftPerNano)
	if now > most || c.at.IsZero() {
		now = least
	}
	c.offset.Store(now)
	c.at = received
}

const driftPerNano = 10_000 // 100 ppm
