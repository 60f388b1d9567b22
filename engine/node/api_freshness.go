package node

import (
	"context"
	"sync"
	"time"
)

// freshness tells a node whether the requests that it gets from NATS are fresh.
//
// A client that gets no answer in time asks again, and another node answers. If the first node was frozen, or cut off
// from NATS for a while, the request is still in a buffer, and the node reads it when it wakes up. A pause that another
// node carried out, and that a resume has undone since, would be carried out once more. The machine recognizes a repeated
// request only if nothing else happened to the job since. So a node must recognize an old request, although a request
// carries no time that could be trusted.
//
// A connection delivers in order. So the node pings its server ten times a second on the connection of requests, and ignores requests while
// the last ping that was answered is too old, and for a moment after that, until the requests that came before the answer have
// been read, too. It pings on the other connection as well, since commands go to the log by that.
type freshness struct {
	mu     sync.Mutex
	last   time.Time // when the ping was sent that was answered last
	lateAt time.Time // when a ping was last answered too long after the one before was sent
}

const (
	pingEvery = 100 * time.Millisecond
	freshFor  = 500 * time.Millisecond // well below the time after which a client asks again
	settleFor = 200 * time.Millisecond // by then the library has called the handlers for what it had read
)

// answered notes that the ping sent at a time was answered. A ping is sent once the one before is over.
func (f *freshness) answered(sent, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.last) > freshFor {
		f.lateAt = now
	}
	f.last = sent
}

// fresh tells whether a request that is read now was sent to the node just before.
func (f *freshness) fresh(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return now.Sub(f.last) <= freshFor && now.Sub(f.lateAt) > settleFor
}

// ping waits until the node's server has answered on both connections, and tells whether it did before ctx ended.
func (n *Node) ping(ctx context.Context) bool {
	requests := make(chan error, 1)
	go func() { requests <- n.requestConn.FlushWithContext(ctx) }() // a ping and its answer
	err := n.nc.FlushWithContext(ctx)
	return <-requests == nil && err == nil
}

// pingLoop pings the node's server until ctx ends. It goes to another server if that one is cut off (switchIfCutOff).
func (n *Node) pingLoop(ctx context.Context) {
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	var left time.Duration
	for {
		sent := time.Now()
		answer, cancel := context.WithTimeout(ctx, replyTimeout)
		if n.ping(answer) {
			n.freshness.answered(sent, time.Now())
		}
		cancel()
		left = n.switchIfCutOff(left)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}
