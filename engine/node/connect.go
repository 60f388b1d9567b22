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
