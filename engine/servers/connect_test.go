package servers

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// An engine connects to a nats-server on its own machine first, in whatever order the servers were given. If there is
// none, or the order must be kept, the library chooses as usual.
func TestNearestFirst(t *testing.T) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	own := []string{"nats://127.0.0.1:4222", "nats://user:word@localhost", "127.0.0.1", "tls://[::1]:4222"}
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok {
			own = append(own, "nats://"+net.JoinHostPort(ip.IP.String(), "4222"))
		}
	}
	away := []string{"nats://203.0.113.1:4222", "nats://203.0.113.2", "nats://203.0.113.3:bad"}
	for _, near := range own {
		for at := range len(away) + 1 {
			servers := slices.Insert(slices.Clone(away), at, near)
			o := nats.Options{Servers: slices.Clone(servers)}
			if err := (Config{}).order(&o); err != nil {
				t.Fatal(err)
			}
			if o.Url != near || !slices.Equal(o.Servers, away) {
				t.Errorf("of %q the first is %q, and %q are left", servers, o.Url, o.Servers)
			}
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if onThisMachine(over, "nats://no.such.host.invalid") {
		t.Error("a name that was not found in time is this machine's")
	}
	for name, o := range map[string]nats.Options{
		"none is near":   {Servers: away},
		"kept in order":  {Servers: append(slices.Clone(away), own[0]), NoRandomize: true},
		"one and only":   {Servers: own[:1]},
		"another is set": {Servers: append(slices.Clone(away), own[0]), Url: away[1]},
	} {
		before := o
		if err := (Config{}).order(&o); err != nil || o.Url != before.Url || !slices.Equal(o.Servers, before.Servers) {
			t.Errorf("%s: the first is %q, and %q are left (%v)", name, o.Url, o.Servers, err)
		}
	}
	chosen := make(map[string]bool)
	for range 1000 { // if there are several, each is chosen sometimes
		o := nats.Options{Servers: slices.Clone(own[:3])}
		if err := (Config{}).order(&o); err != nil {
			t.Fatal(err)
		}
		chosen[o.Url] = true
	}
	if len(chosen) != 3 {
		t.Errorf("of three on this machine only %v are ever first", chosen)
	}
}

// Servers that are to be tried last are, the last of them last, whether the others are in any order or keep theirs, and one on this machine
// does not come before them. The library does not reorder them.
func TestTriedLast(t *testing.T) {
	const near = "nats://e:p@127.0.0.1"
	away := []string{"203.0.113.1", "tls://203.0.113.2", "nats://203.0.113.3:4223"}
	given := append([]string{near}, away...)
	c := Config{Last: []string{"nats://e:p@127.0.0.1:4222", "nats://203.0.113.9:4222", "tls://203.0.113.2:4222"}}
	seen := make(map[string]bool)
	for range 100 {
		o := nats.Options{Servers: slices.Clone(given)}
		if err := c.order(&o); err != nil {
			t.Fatal(err)
		}
		if o.Url != "" || !o.NoRandomize || len(o.Servers) != 4 || !slices.Equal(o.Servers[2:], []string{near, away[1]}) {
			t.Fatalf("first is %q, then %q", o.Url, o.Servers)
		}
		seen[o.Servers[0]] = true
	}
	if !seen[away[0]] || !seen[away[2]] {
		t.Errorf("of two that are not last, only %v are ever first", seen)
	}
	o := nats.Options{Servers: slices.Clone(given), NoRandomize: true}
	if err := c.order(&o); err != nil || o.Url != "" || !slices.Equal(o.Servers, []string{away[0], away[2], near, away[1]}) {
		t.Errorf("where the order is kept, first is %q, then %q (%v)", o.Url, o.Servers, err)
	}
	c.Last = []string{"nats://203.0.113.2:4222"}
	o = nats.Options{Servers: slices.Clone(given)}
	if err := c.order(&o); err != nil || o.Url != "" || o.Servers[0] != near || o.Servers[3] != away[1] {
		t.Errorf("the nearest is not first: %q, then %q (%v)", o.Url, o.Servers, err)
	}
	c.Last = []string{"nats://203.0.113.9:4222"}
	o = nats.Options{Servers: slices.Clone(given)}
	if err := c.order(&o); err != nil || o.Url != near || o.NoRandomize {
		t.Errorf("servers that are not given change the order: %q, then %q (%v)", o.Url, o.Servers, err)
	}
	if c.KeepsOrder() || !(Config{Options: []nats.Option{nats.Name(""), nats.DontRandomize()}}).KeepsOrder() {
		t.Error("it is not known whether the order is to be kept")
	}
	for server, want := range map[string]string{
		"a": "a:4222", "nats://a:": "a:4222", "tls://u:p@a": "a:4222", "ws://a": "a:80", "wss://a": "a:443", "wss://[::1]:5": "[::1]:5", "nats://a:b": "",
	} {
		if got := address(server); got != want {
			t.Errorf("the address of %q is %q", server, got)
		}
	}
}

// A connection beside another one follows it to a server that once did not take it. While that server does not, it is tried once, and the
// others in turn.
func TestBesideTriesAgain(t *testing.T) {
	var urls, hosts []string
	for range 3 {
		url := natstest.Start(t, &server.Options{}).ClientURL()
		urls, hosts = append(urls, url), append(hosts, strings.TrimPrefix(url, "nats://"))
	}
	var to Watch
	o := []nats.Option{nats.DontRandomize(), nats.MaxReconnects(-1), nats.ReconnectWait(5 * time.Millisecond)}
	connect := func(more ...nats.Option) *nats.Conn {
		nc, err := nats.Connect(strings.Join(urls, ","), append(more, o...)...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	main := connect(nats.ReconnectToServer(to.Choose))
	way := &brokenWay{}
	beside := connect(Beside(main), nats.SetCustomDialer(way))
	if err := to.SwitchTo(main, urls[1]); err != nil {
		t.Fatal(err)
	}
	natstest.Eventually(t, "the main one is there", func() bool { return main.IsConnected() && main.ConnectedUrl() == urls[1] })
	for i, c := range []struct {
		broken []string
		at     string
	}{
		{[]string{hosts[1]}, urls[0]},
		{nil, urls[1]},
		{[]string{hosts[1], hosts[0]}, urls[2]},
		{nil, urls[1]},
	} {
		way.set(c.broken)
		if err := beside.ForceReconnect(); err != nil {
			t.Fatal(err)
		}
		natstest.Eventually(t, "it is connected", beside.IsConnected)
		if at := beside.ConnectedUrl(); at != c.at {
			t.Errorf("%d: it is at %s, not at %s, with %s, %s and %s", i, at, c.at, urls[0], urls[1], urls[2])
		}
		if n := way.tries(hosts[1]); n != 1 {
			t.Errorf("%d: %d attempts to go to the same server", i, n)
		}
	}
}

// brokenWay dials all addresses but some.
type brokenWay struct {
	mu     sync.Mutex
	broken []string
	dialed []string
}

func (w *brokenWay) set(broken []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken, w.dialed = broken, nil
}

func (w *brokenWay) tries(address string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.dialed {
		if one == address {
			n++
		}
	}
	return n
}

func (w *brokenWay) Dial(network, address string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dialed = append(w.dialed, address)
	if slices.Contains(w.broken, address) {
		return nil, errors.New("broken")
	}
	return net.Dial(network, address)
}

// A proxy with nobody behind it, or a server that stops, closes a connection before it says anything.
func TestNotAccepting(t *testing.T) {
	closes, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer closes.Close()
	go func() {
		for {
			c, err := closes.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	_, err = Config{URL: closes.Addr().String()}.Connect("")
	if !errors.Is(err, ErrNotAccepting) || !strings.Contains(err.Error(), "--tlsfirst") {
		t.Errorf("it ends with %v", err)
	}
	for _, word := range []string{nats.MAX_CONNECTIONS_ERR, nats.MAX_ACCOUNT_CONNECTIONS_ERR} {
		if err := notAccepting(errors.New("nats: " + word)); !errors.Is(err, ErrNotAccepting) {
			t.Errorf("a server that says so does not turn away: %v", err)
		}
	}
}

// The error about a URL does not have its password.
func TestConnectKeepsSecrets(t *testing.T) {
	for _, url := range []string{"nats://engine:s3c%zzret@127.0.0.1:1", "nats://engine:s3c#ret@127.0.0.1:1", "nats://engine:s3c ret@127.0.0.1:1"} {
		if _, err := (Config{URL: url}).Connect(""); err == nil || strings.Contains(err.Error(), "s3c") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// Errors of a connection go to the engine's log, and those of connections that only watch servers nowhere. The library by itself would
// write them to standard error.
func TestConnectionsTellTheLog(t *testing.T) {
	url := natstest.Start(t, &server.Options{}).ClientURL()
	var lines bytes.Buffer
	o := Config{Node: "a", URL: url, Logger: slog.New(slog.NewTextHandler(&lines, nil))}
	nc, err := o.Connect("")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	s := Watch{Config: o, all: make(map[string]*natsServer)}
	ctx, cancel := context.WithCancel(t.Context())
	s.add(ctx, url)
	defer s.work.Wait()
	defer cancel()
	for _, nc := range []*nats.Conn{nc, s.all[url].nc} {
		nc.Opts.AsyncErrorCB(nc, nil, nats.ErrAuthorization)
	}
	if got := lines.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `level=WARN msg="error of the NATS connection" error=`) {
		t.Errorf("logged: %s", got)
	}
}

func TestWithUser(t *testing.T) {
	for _, c := range []struct{ found, given, want string }{
		{"nats://10.0.0.2:4222", "nats://10.0.0.1:4222", "nats://10.0.0.2:4222"},
		{"nats://10.0.0.2:4222", "nats://e:p@10.0.0.1:4222, nats://10.0.0.3:4222", "nats://e:p@10.0.0.2:4222"},
		{"nats://10.0.0.2:4222", "e:p@10.0.0.1:4222", "nats://e:p@10.0.0.2:4222"},
		{"nats://me@10.0.0.2:4222", "nats://e:p@10.0.0.1:4222", "nats://me@10.0.0.2:4222"},
	} {
		if got := withUser(c.found, c.given); got != c.want {
			t.Errorf("%s beside %s became %s", c.found, c.given, got)
		}
	}
}
