package node

import (
	"context"
	"sync"
	"time"
)

// pulse tells a node whether what it gets from NATS is fresh.
//
// A client that gets no answer in time asks again, and another node answers. If the first node was frozen, or cut off
// from NATS for a while, the request still lies in a buffer, and is read when the node wakes up: a pause that was
// carried out by another node, and taken back by a resume since, would be carried out once more. The machine knows a
// request again only if nothing else happened to the job since. So a node must know that a request is old, which
// carries no time that could be trusted.
//
// What is old is read in the order in which it came. So the node pings its server ten times a second, and lets requests
// go by unheard while the last ping that was answered is too old, and a moment longer: until those that came before
// the answer have gone by, too.
type pulse struct {
	mu   sync.Mutex
	last time.Time // sent, of the ping that was answered last
	ill  time.Time // when one was answered that was too old, or came after too long a time
}

const (
	pulseEvery  = 100 * time.Millisecond
	pulseOld    = 500 * time.Millisecond // well below the time after which a client asks again
	pulseSettle = 200 * time.Millisecond // what was read from the connection is handed out by then
)

// beat notes an answer.
func (p *pulse) beat(sent, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.last) > pulseOld || now.Sub(sent) > pulseOld {
		p.ill = now
	}
	p.last = sent
}

// fresh tells whether what comes now was sent to the node a moment ago.
func (p *pulse) fresh(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Sub(p.last) <= pulseOld && now.Sub(p.ill) > pulseSettle
}

// feelPulse keeps the pulse of the node's connection going until ctx ends, by way of a server that is not cut off.
func (n *Node) feelPulse(ctx context.Context) {
	t := time.NewTicker(pulseEvery)
	defer t.Stop()
	var left time.Duration
	for {
		sent := time.Now()
		answer, cancel := context.WithTimeout(ctx, replyTimeout)
		if n.nc.FlushWithContext(answer) == nil { // one that is not answered is no beat
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
