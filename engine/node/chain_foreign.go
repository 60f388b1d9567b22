package node

import (
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
)

// Foreign messages in the output streams: how a chain notices them.

// watchOutputs chooses how the chains cope with foreign messages (engine/chain.go). In a cluster a stream may be replicated, or become so,
// and the messages of a replicated stream must not be linked: there the chains confirm each message. The log's replicas are asked for,
// too, because the connection knows of no cluster while it is down. If the embedded server stands alone, the node subscribes to its own
// output subjects, and so hears of every message there that it did not publish itself. Then chains need no links. An embedded server with
// a configuration file may be part of a cluster, where the node may hear of a message long after it was stored. There, and where an
// external NATS is no cluster, chains link their messages.
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

// heardForeign handles a message that somebody else has put into an output stream. The chain is lost, and links its messages from now on,
// because there may be more foreign ones.
func (n *Node) heardForeign(p *partition, m *nats.Msg) {
	_ = m.Sub.Unsubscribe() // fails only on a closed connection
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
	n.alarm.Wake()
}
