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
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// A server that is cut off, or whose machine lost power, goes silently. For TCP the connection then lives on for a
// quarter of an hour, with the library's defaults for six minutes. Meanwhile the engine would not ask the other servers, which have a
// leader again. So it pings its server, and goes to another one when there is no answer.
const (
	pingEvery = time.Second
	// pingsUnanswered is how many pings may be unanswered. Why not fewer: a server that elects leaders on a busy machine, or that
	// loses packets now and then, is back sooner than a new connection would have taken up the streams again.
	pingsUnanswered = 2
	// writeFor bounds one write, because a write holds up everything else on the connection, pings included.
	writeFor = 2 * time.Second
)

// Config says how a node connects to an external NATS.
type Config struct {
	Node    string        // its name, which is part of its connections' names
	URL     string        // of one server, or of several, separated by commas
	Options []nats.Option // credentials and TLS
	Last    []string      // URLs of servers that are tried after all others, whatever their order is; the last of them last
	Logger  *slog.Logger  // for errors of the connections
}

// Connect connects to NATS. purpose becomes part of the connection's name. The error is ErrNotAccepting if a server takes no
// connections at the moment.
func (c Config) Connect(purpose string, more ...nats.Option) (*nats.Conn, error) {
	return c.connect(c.URL, purpose, more...)
}

// ConnectTo connects to one of the servers, by an address that may come from another server.
func (c Config) ConnectTo(server, purpose string, more ...nats.Option) (*nats.Conn, error) {
	return c.connect(withUser(server, c.URL), purpose, more...)
}

func (c Config) connect(servers, purpose string, more ...nats.Option) (*nats.Conn, error) {
	options := []nats.Option{
		nats.Name("carillon " + c.Node + purpose), nats.SetCustomDialer(dialer{}),
		nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(pingsUnanswered), nats.FlusherTimeout(writeFor),
		nats.ReconnectOnFlusherError(), // after a failed write data is lost, and otherwise nobody would know
		nats.SkipHostLookup(),          // the dialer does that, within its time limit
		nats.ReconnectJitter(nats.DefaultReconnectJitter, nats.DefaultReconnectJitter), // the library's default for TLS is ten times that
		// The library's own handler writes to standard error, whatever the log's format is.
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			c.Logger.Warn("error of the NATS connection", "error", err)
		}),
	}
	options = append(append(options, more...), c.Options...)
	nc, err := nats.Connect(servers, append(options, c.order)...)
	if _, ok := errors.AsType[*url.Error](err); ok { // its text has the whole URL, secrets included
		err = errors.New("a server's address is no URL")
	}
	return nc, notAccepting(err)
}

// Beside has a connection made to the server to which main is connected, at first and at each reconnect. If that server does not take it, or
// main is not connected, the library chooses, until the connection has come to a server.
func Beside(main *nats.Conn) nats.Option {
	return func(o *nats.Options) error {
		o.Url = main.ConnectedUrl()
		inVain := make(map[string]bool) // addresses that were proposed since the connection was lost
		before := 0                     // attempts that the library had counted at the last call
		o.ReconnectToServerCB = func(pool []nats.Server, _ nats.ServerInfo) (*nats.Server, time.Duration) {
			// The library counts the attempts at each server until that server takes the connection. One attempt follows each call. So if
			// there are no more now, it did not fail.
			attempts := 0
			for _, one := range pool {
				attempts += one.Reconnects
			}
			if attempts <= before {
				clear(inVain)
			}
			before = attempts
			at, err := url.Parse(main.ConnectedUrl())
			if err != nil {
				return nil, 0
			}
			i := slices.IndexFunc(pool, func(one nats.Server) bool { return one.URL.Host == at.Host })
			if i < 0 || inVain[at.Host] {
				return nil, 0
			}
			inVain[at.Host] = true
			return &pool[i], 0
		}
		return nil
	}
}

// withUser adds the user of the given URLs to the URL of a server that was found.
func withUser(found, given string) string {
	u, err := url.Parse(found)
	if err != nil || u.User != nil {
		return found
	}
	for g := range strings.SplitSeq(given, ",") {
		if from, err := parse(strings.TrimSpace(g)); err == nil && from.User != nil {
			u.User = from.User
		}
	}
	return u.String()
}

// ErrNotAccepting: a server, or a proxy in front of it, takes no connections at the moment.
var ErrNotAccepting = errors.New("the connection was closed at once")

// notAccepting turns an error of nats.Connect into ErrNotAccepting if it means that. It compares texts, because the library has no error
// values for what a server says before it lets a client in.
func notAccepting(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w (a server with handshake_first wants --tlsfirst): %w", ErrNotAccepting, err)
	case err != nil && (strings.HasSuffix(err.Error(), nats.MAX_CONNECTIONS_ERR) || strings.HasSuffix(err.Error(), nats.MAX_ACCOUNT_CONNECTIONS_ERR)):
		return fmt.Errorf("%w: %w", ErrNotAccepting, err)
	}
	return err
}

// KeepsOrder tells whether the options say to keep the servers' order.
func (c Config) KeepsOrder() bool {
	var o nats.Options
	for _, option := range c.Options {
		if option != nil {
			_ = option(&o) // Connect tells its error
		}
	}
	return o.NoRandomize
}

// order has the nearest server tried first, and those of c.Last after all others.
func (c Config) order(o *nats.Options) error {
	if o.Url != "" || len(o.Servers) < 2 {
		return nil
	}
	nearestFirst(o)
	last := make([]string, len(c.Last))
	for i, one := range c.Last {
		last[i] = address(one)
	}
	place := func(server string) int { return slices.Index(last, address(server)) }
	if !slices.ContainsFunc(o.Servers, func(one string) bool { return place(one) >= 0 }) && place(o.Url) < 0 {
		return nil
	}
	all := slices.Clone(o.Servers)
	if !o.NoRandomize {
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	if o.Url != "" {
		all = slices.Insert(all, 0, o.Url)
	}
	slices.SortStableFunc(all, func(a, b string) int { return place(a) - place(b) })
	o.Url, o.Servers, o.NoRandomize = "", all, true // the library can put one server first, but none last
	return nil
}

// address is the host and port of a server's URL.
func address(server string) string {
	u, err := parse(server)
	switch {
	case err != nil: // the library will report what is wrong with it
		return ""
	case u.Port() != "":
		return u.Host
	}
	port := strconv.Itoa(nats.DefaultPort)
	switch u.Scheme {
	case "ws":
		port = "80"
	case "wss":
		port = "443"
	}
	return strings.TrimSuffix(u.Host, ":") + ":" + port
}

// parse reads a server's URL as the library does.
func parse(server string) (*url.URL, error) {
	if !strings.Contains(server, "://") {
		server = "nats://" + server
	}
	return url.Parse(server)
}

// nearestFirst has a server on this machine tried first (a random one if there are several): there is no network in between that could
// break, and if the machine fails, both fail. If the options say to keep the servers' order, it is kept.
func nearestFirst(o *nats.Options) {
	if o.NoRandomize {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), nats.DefaultTimeout)
	defer cancel()
	for _, i := range rand.Perm(len(o.Servers)) {
		if onThisMachine(ctx, o.Servers[i]) {
			o.Url = o.Servers[i] // the library tries it before the others
			o.Servers = slices.Delete(slices.Clone(o.Servers), i, i+1)
			return
		}
	}
}

// onThisMachine tells whether a server's name or address is one of this machine's; false if that is not known.
func onThisMachine(ctx context.Context, server string) bool {
	u, err := parse(server)
	if err != nil {
		return false // the library will report what is wrong with it
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

// dialer makes connections that discard unsent data when they are closed (SO_LINGER 0). Otherwise the system would go on
// trying to send it for minutes, and a command that its sender has long repeated elsewhere would be carried out once more. So a
// caller who closes a working connection must first wait until everything is sent.
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
		return nil, &net.OpError{Op: "dial", Net: network, Err: err} // like net.Dial: engine/node (unreachable) recognizes it by that
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

// dialOne connects to the first address that answers. Each address gets its share of the time. The net package by itself would spend
// all of so short a time on one silent address, such as that of a machine without power.
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
