package node

import (
	"errors"
	"net"
	"time"

	"github.com/nats-io/nats.go"
)

// A server that is cut off, or whose machine lost power, says nothing when it goes: to TCP the connection lives on for a
// quarter of an hour, to the library's defaults for six minutes. Meanwhile the others, who have a leader again, are
// not asked. So an engine asks its server for a sign of life, and goes to another one when there is none.
const (
	pingEvery = time.Second
	// pingsUnanswered is how many may be. Why not fewer: a server that elects leaders on a busy machine, or whose
	// packets are lost now and then, comes back sooner than a new connection takes the streams up again.
	pingsUnanswered = 2
	// writeFor bounds one write. It holds up everything else on the connection, pings included.
	writeFor = 2 * time.Second
	// cutOffAfter is how long the log stream may stay silent before it is asked by way of another server: longer than
	// an election takes, which is the same by way of any.
	cutOffAfter = 10 * time.Second
)

// connect connects to an external NATS. What the connection is for is in its name.
func (o Options) connect(purpose string, more ...nats.Option) (*nats.Conn, error) {
	options := []nats.Option{
		nats.Name("carillon " + o.Name + purpose), nats.SetCustomDialer(dialer{}),
		nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(pingsUnanswered), nats.FlusherTimeout(writeFor),
	}
	return nats.Connect(o.NATS, append(append(options, more...), o.NATSOptions...)...)
}

// dialer makes connections that take with them what they have not sent when they are given up: the system would go on
// trying for minutes, and a command that its sender has long repeated elsewhere would be carried out once more. Who
// closes one that works waits first until all is sent.
type dialer struct{}

func (dialer) Dial(network, address string) (net.Conn, error) {
	c, err := net.DialTimeout(network, address, nats.DefaultTimeout)
	if err != nil {
		return nil, err
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		if err := tcp.SetLinger(0); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// leaveCutOff goes to another server where the one that this node is connected to lives, but the log stream's leader has
// not answered by way of it for long: it is cut off from the others. The library knows of no reason to leave it. left is
// when the node last did, by its clock, and so it gives back.
func (n *Node) leaveCutOff(left time.Duration) time.Duration {
	now := n.clock.running()
	if now-max(left, time.Duration(n.answered.Load())) < cutOffAfter || !n.nc.IsConnected() || len(n.nc.Servers()) < 2 {
		return left
	}
	n.log.Warn("the log stream does not answer by way of this nats-server; going to another one", "server", n.nc.ConnectedUrlRedacted())
	if err := n.nc.ForceReconnect(); err != nil {
		n.log.Warn("the nats-server was not left", "error", err) // the connection is closed: the node stops
	}
	return now
}
