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
}

// ms is the present time of the stream's clock in unix ms, rounded down: what is held until a
// millisecond leaves when that has begun.
func (c *clock) ms() int64 { return (time.Now().UnixNano() + c.offset.Load()) / 1e6 }

// until is how long it is until a millisecond of the stream's clock.
func (c *clock) until(ms int64) time.Duration {
	return time.Duration(ms*1e6 - time.Now().UnixNano() - c.offset.Load())
}

// measured learns from one of our records: sent and received here, stamped there. What lies within the
// round trip is no offset.
func (c *clock) measured(sent, received time.Time, stamp int64) {
	if !c.external {
		return
	}
	round := received.Sub(sent)
	offset := stamp - sent.UnixNano() - int64(round)/2
	if current := c.offset.Load(); abs(offset-current) > int64(round)/2+int64(time.Millisecond) {
		c.offset.Store(offset)
	}
}

func abs(v int64) int64 { return max(v, -v) }
