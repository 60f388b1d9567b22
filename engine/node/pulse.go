package node

import (
	"context"
	"sync"
	"time"
)

// pulse tells a node whether the requests that it gets from NATS are fresh.
//
// A client that gets no answer in time asks again, and another node answers. If the first node was frozen, or cut off
// from NATS for a while, the request is still in a buffer, and the node reads it when it wakes up. A pause that another
// node carried out, and that a resume has undone since, would be carried out once more. The machine recognizes a repeated
// request only if nothing else happened to the job since. So a node must recognize an old request, although a request
// carries no time that could be trusted.
//
// A connection delivers in order. So the node pings its server ten times a second, and ignores requests while the last
// ping that was answered is too old, and for a moment after that, until the requests that came before the answer have
// been read, too.
type pulse struct {
	mu   sync.Mutex
	last time.Time // when the ping was sent that was answered last
	ill  time.Time // when a ping was last answered too late, or too long after the one before was sent
}

const (
	pulseEvery  = 100 * time.Millisecond
	pulseOld    = 500 * time.Millisecond // well below the time after which a client asks again
	pulseSettle = 200 * time.Millisecond // by then the library has called the handlers for what it had read
)

// beat notes that the ping sent at a time was answered.
func (p *pulse) beat(sent, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.last) > pulseOld || now.Sub(sent) > pulseOld {
		p.ill = now
	}
	p.last = sent
}

// fresh tells whether a request that is read now was sent to the node just before.
func (p *pulse) fresh(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Sub(p.last) <= pulseOld && now.Sub(p.ill) > pulseSettle
}

// feelPulse pings the node's server until ctx ends. It goes to another server if that one is cut off (leaveCutOff).
func (n *Node) feelPulse(ctx context.Context) {
	t := time.NewTicker(pulseEvery)
	defer t.Stop()
	var left time.Duration
	for {
		sent := time.Now()
		answer, cancel := context.WithTimeout(ctx, replyTimeout)
		if n.nc.FlushWithContext(answer) == nil { // a ping and its answer
			n.pulse.beat(sent, time.Now())
		}
		cancel()
		left = n.leaveCutOff(left)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}
