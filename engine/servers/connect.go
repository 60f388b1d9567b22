package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
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

// Config is how a node connects to an external NATS.
type Config struct {
	Node    string        // its name, of which those of its connections are made
	URL     string        // of NATS: of one server, or of several with commas between them
	Options []nats.Option // credentials and TLS
	Logger  *slog.Logger  // is told of what goes wrong with a connection
}

// Connect connects to NATS. What the connection is for is in its name. Its error is ErrTurnedAway where a server takes none now.
func (c Config) Connect(purpose string, more ...nats.Option) (*nats.Conn, error) {
	return c.connect(c.URL, purpose, more...)
}

// ConnectTo connects to one of the servers, by an address that others may have told.
func (c Config) ConnectTo(server, purpose string, more ...nats.Option) (*nats.Conn, error) {
	return c.connect(withUser(server, c.URL), purpose, more...)
}

func (c Config) connect(servers, purpose string, more ...nats.Option) (*nats.Conn, error) {
	options := []nats.Option{
		nats.Name("carillon " + c.Node + purpose), nats.SetCustomDialer(dialer{}),
		nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(pingsUnanswered), nats.FlusherTimeout(writeFor),
		nats.ReconnectOnFlusherError(), // what was to be written is lost, and nobody would know
		nats.SkipHostLookup(),          // the dialer looks it up, within its time
		nats.ReconnectJitter(nats.DefaultReconnectJitter, nats.DefaultReconnectJitter), // with TLS the library's is ten times that
		// The library's own handler writes to standard error, whatever the log is to be like.
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			c.Logger.Warn("error of the NATS connection", "error", err)
		}),
	}
	options = append(append(options, more...), c.Options...)
	nc, err := nats.Connect(servers, append(options, nearestFirst)...)
	if _, ok := errors.AsType[*url.Error](err); ok { // it has the URL in it, with all that is secret
		err = errors.New("a server's address is no URL")
	}
	return nc, turnedAway(err)
}

// withUser gives the URL of a server that others told of the user of those that were given.
func withUser(found, given string) string {
	u, err := url.Parse(found)
	if err != nil || u.User != nil {
		return found
	}
	for g := range strings.SplitSeq(given, ",") {
		if g = strings.TrimSpace(g); !strings.Contains(g, "://") {
			g = "nats://" + g // as the library takes it
		}
		if from, err := url.Parse(g); err == nil && from.User != nil {
			u.User = from.User
		}
	}
	return u.String()
}

// ErrTurnedAway is of a server, or what stands before it, that takes no connection just now.
var ErrTurnedAway = errors.New("the connection was closed at once")

// turnedAway marks an error of nats.Connect if it says that. The library has no error for what a server says before it lets one in.
func turnedAway(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w (a server with handshake_first wants --tlsfirst): %w", ErrTurnedAway, err)
	case err != nil && (strings.HasSuffix(err.Error(), nats.MAX_CONNECTIONS_ERR) || strings.HasSuffix(err.Error(), nats.MAX_ACCOUNT_CONNECTIONS_ERR)):
		return fmt.Errorf("%w: %w", ErrTurnedAway, err)
	}
	return err
}

// nearestFirst has a server of this machine tried first, one of them at random: there is no network between that could
// break, and what takes the machine away takes both. Options that keep the servers' order keep it.
func nearestFirst(o *nats.Options) error {
	if o.NoRandomize || o.Url != "" || len(o.Servers) < 2 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), nats.DefaultTimeout)
	defer cancel()
	for _, i := range rand.Perm(len(o.Servers)) {
		if onThisMachine(ctx, o.Servers[i]) {
			o.Url = o.Servers[i] // the library tries it before the others
			o.Servers = slices.Delete(slices.Clone(o.Servers), i, i+1)
			return nil
		}
	}
	return nil
}

// onThisMachine tells whether a server's name or address is one of this machine's. One that cannot be told is not.
func onThisMachine(ctx context.Context, server string) bool {
	if !strings.Contains(server, "://") {
		server = "nats://" + server
	}
	u, err := url.Parse(server)
	if err != nil {
		return false // the library says what is wrong with it
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		return false
	}
	ours, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(found, func(ip netip.Addr) bool {
		return ip.IsLoopback() || slices.ContainsFunc(ours, func(a net.Addr) bool {
			prefix, err := netip.ParsePrefix(a.String())
			return err == nil && prefix.Addr() == ip.Unmap()
		})
	})
}

// dialer makes connections that take with them what they have not sent when they are given up: the system would go on
// trying for minutes, and a command that its sender has long repeated elsewhere would be carried out once more. Who
// closes one that works waits first until all is sent.
type dialer struct{}

func (dialer) Dial(network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), nats.DefaultTimeout)
	defer cancel()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	found, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err} // as net.Dial has it: unreachable knows it by that
	}
	rand.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
	c, err := dialOne(ctx, network, found, port)
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

// dialOne connects to the first of some addresses that answers. Each has its share of the time: by itself the net package leaves nothing
// of so little to those behind one that is silent, as a machine without power is.
func dialOne(ctx context.Context, network string, addresses []string, port string) (c net.Conn, err error) {
	end, _ := ctx.Deadline()
	for i, a := range addresses {
		d := net.Dialer{Timeout: time.Until(end) / time.Duration(len(addresses)-i)}
		if c, err = d.DialContext(ctx, network, net.JoinHostPort(a, port)); err == nil {
			return c, nil
		}
	}
	return nil, err
}
