package node

import (
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
)

// watchOutputs has the node hear of every message in its output streams that it did not publish itself, so
// that its chains need no links. It can where the embedded server stands alone: under a configuration file
// it may be part of a cluster, and then the word may come long after the message. In a cluster a stream may be, or
// become, replicated, and such a one must not be asked for links. The connection, which knows of no cluster while it is down,
// is not asked alone.
func (n *Node) watchOutputs() error {
	if n.nc.ConnectedClusterName() != "" || n.streams.Log.Replicas() > 1 {
		for _, p := range n.partitions {
			p.chain.Confirm()
		}
		return nil
	}
	if n.server == nil || n.o.NATSConfig != "" {
		return nil
	}
	for _, p := range n.partitions {
		for _, kind := range []string{".trigger.", ".event."} {
			subject := n.o.Prefix + kind + strconv.Itoa(p.number) + ".>"
			if _, err := n.nc.Subscribe(subject, func(m *nats.Msg) { n.heardForeign(p, m) }); err != nil {
				return fmt.Errorf("node: watch %s: %w", subject, err)
			}
		}
		p.chain.Watch(true)
	}
	return nil
}

// heardForeign is told of a message that somebody else has put into an output stream. Where there is one there
// may be more: from now on the chain links its messages.
func (n *Node) heardForeign(p *partition, m *nats.Msg) {
	_ = m.Sub.Unsubscribe() // it fails only when the connection is closed
	p.out.Lock()
	defer p.out.Unlock()
	if !p.chain.Watched() {
		return
	}
	n.log.Warn("a foreign message in an output stream", "partition", p.number, "subject", m.Subject)
	p.chain.Watch(false)
	p.settling = p.durable
	if !p.chain.Lost() {
		n.meters.lost.Inc()
		p.chain.Lose()
	}
	n.bell.Ring()
}
