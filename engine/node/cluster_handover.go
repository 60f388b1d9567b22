package node

import (
	"context"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// The hand-over: how a node that stops leaves its partitions to others.

const (
	// handOverTimeout bounds how long a stopping node waits for others to take over.
	handOverTimeout = 10 * time.Second
	// reconnectSoon is how long a node that stops waits for a broken connection to come back.
	reconnectSoon = time.Second
	// viewLag is how much later than this node another one may hear who serves a partition, with the time that its requests take.
	viewLag = 100 * time.Millisecond
)

// handOver lets other nodes take over the partitions that this node serves, which it ticks until then. It returns when they have taken all
// of them, when no other node could, when the connection stays broken for reconnectSoon, when the run ends, or after handOverTimeout.
func (n *Node) handOver(ctx context.Context) {
	if !n.membership.participating.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handOverTimeout)
	defer cancel()
	broken := n.nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	defer n.nc.RemoveStatusListener(broken)
	n.membership.stopping.Store(true)
	began := time.Now()
	for n.serves() > 0 && n.hasSuccessor() && connectsSoon(ctx, n.nc) && ctx.Err() == nil {
		select {
		case <-n.membership.changed:
		case <-broken:
		case <-ctx.Done():
		}
	}
	n.log.Info("handed over", "left", n.serves(), "took", time.Since(began))
}

// serves counts the partitions that this node has claimed and that nobody has claimed since, those included whose claim is on its way.
func (n *Node) serves() (count int) {
	for _, p := range n.partitions {
		p.mu.Lock()
		if p.owner.Epoch != 0 || p.claiming {
			count++
		}
		p.mu.Unlock()
	}
	return count
}

// hasSuccessor tells whether another node could take over partitions.
func (n *Node) hasSuccessor() bool {
	for _, b := range n.view().Members {
		if b.Name != n.o.Name && !b.Draining && b.Weight > 0 {
			return true
		}
	}
	return false
}

// connectsSoon tells whether a connection works, or does so again within reconnectSoon. A host that shuts down may stop its nats-server
// together with this node, and connecting to another server takes milliseconds.
func connectsSoon(ctx context.Context, nc *nats.Conn) bool {
	ctx, cancel := context.WithTimeout(ctx, reconnectSoon)
	defer cancel()
	for !nc.IsConnected() && !nc.IsClosed() {
		if !sleep(ctx, 5*time.Millisecond) {
			break
		}
	}
	return nc.IsConnected()
}

// awaitNoForwards waits until other nodes no longer forward to this node requests about the partitions that it handed over, and until those
// that they forwarded before have arrived. A request to a node that no longer listens is dropped. If the sender is connected to another
// server, it is not told so, and would wait for its whole timeout.
func (n *Node) awaitNoForwards(ctx context.Context) {
	if !n.membership.participating.Load() || n.serves() > 0 || !n.hasSuccessor() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	asked := func() bool {
		v := n.view()
		return slices.ContainsFunc(n.partitions, func(p *partition) bool { return v.Follower(p.number) == n.o.Name })
	}
	for asked() && sleep(ctx, 5*time.Millisecond) {
		continue
	}
	sleep(ctx, viewLag)
}
