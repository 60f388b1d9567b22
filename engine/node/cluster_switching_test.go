package node

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/engine/servers"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// A server through which the log's leader has not answered for too long is left, whatever is known of the other servers. The next server
// is given as long.
func TestSwitchIfCutOff(t *testing.T) {
	first, second := natstest.Start(t, &server.Options{}).ClientURL(), natstest.Start(t, &server.Options{}).ClientURL()
	nc, err := nats.Connect(first+","+second, nats.DontRandomize())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	n := &Node{nc: nc, log: slog.New(slog.DiscardHandler)}
	n.clock.began = time.Now().Add(-time.Hour)
	n.logHeard.Store(int64(n.clock.running() - cutOffAfter/2))
	if left := n.switchIfCutOff(0); left != 0 || nc.ConnectedUrl() != first {
		t.Fatal("a server by way of which the log has answered is left")
	}
	n.logHeard.Store(int64(n.clock.running() - 2*cutOffAfter))
	left := n.switchIfCutOff(0)
	if left == 0 {
		t.Fatal("it is not left")
	}
	natstest.Eventually(t, "the other one is taken", func() bool { return nc.IsConnected() && nc.ConnectedUrl() == second })
	if again := n.switchIfCutOff(left); again != left || nc.ConnectedUrl() != second {
		t.Error("the other one was left at once")
	}
}

// So it is while a node that starts waits for the log's end.
func TestStartLeavesCutOffServer(t *testing.T) {
	first := natstest.Start(t, &server.Options{JetStream: true}).ClientURL()
	second := natstest.Start(t, &server.Options{}).ClientURL()
	nc, err := nats.Connect(first+","+second, nats.DontRandomize())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	s := streamsOn(t, nc)
	if _, err := s.Log.Publish(t.Context(), "carillon.log.0.tick", nil, nil); err != nil {
		t.Fatal(err)
	}
	n := &Node{nc: nc, requestConn: nc, streams: s, log: slog.New(slog.DiscardHandler)}
	n.clock.began = time.Now().Add(-time.Hour)
	n.logAnswered(n.clock.running())
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan error, 1)
	go func() { started <- n.participate(ctx) }()
	natstest.Eventually(t, "the end is waited for", func() bool {
		n.waiters.mu.Lock()
		defer n.waiters.mu.Unlock()
		return len(n.waiters.waiting) > 0
	})
	n.logHeard.Store(int64(n.clock.running() - 2*cutOffAfter))
	natstest.Eventually(t, "the other server is taken", func() bool { return nc.IsConnected() && nc.ConnectedUrl() == second })
	cancel()
	if err := natstest.Receive(t, "the start ends", started); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	n.work.Wait()
}

// The connection of requests goes with the other one to another server, once each time: if that server does not take it, it stays where it
// is.
func TestKeepTogether(t *testing.T) {
	first, second := natstest.Start(t, &server.Options{}).ClientURL(), natstest.Start(t, &server.Options{}).ClientURL()
	next := first
	connect := func(o ...nats.Option) *nats.Conn {
		nc, err := nats.Connect(first+","+second, append(o, nats.DontRandomize(), nats.MaxReconnects(-1), nats.ReconnectWait(5*time.Millisecond))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	nc := connect(nats.ReconnectToServer(func(pool []nats.Server, _ nats.ServerInfo) (*nats.Server, time.Duration) {
		i := slices.IndexFunc(pool, func(one nats.Server) bool { return one.URL.String() == next })
		return &pool[i], 0
	}))
	var closed closedTo
	n := &Node{nc: nc, requestConn: connect(servers.Beside(nc), nats.SetCustomDialer(&closed)), log: slog.New(slog.DiscardHandler)}
	goTo := func(url string) {
		next = url
		if err := nc.ForceReconnect(); err != nil {
			t.Fatal(err)
		}
		natstest.Eventually(t, "it is there", func() bool { return nc.ConnectedUrl() == url })
	}
	n.keepTogether()
	for _, url := range []string{second, first, second} {
		goTo(url)
		before := n.switching.together
		if n.keepTogether(); n.switching.together == before {
			t.Error("nothing has changed")
		}
		natstest.Eventually(t, "requests come by way of the same server", func() bool { return n.requestConn.ConnectedUrl() == url })
	}

	// Requests alone lose the server, which lets nobody in any more.
	closed.to.Store(strings.TrimPrefix(second, "nats://"))
	if err := n.requestConn.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	natstest.Eventually(t, "they come by way of another one", func() bool { return n.requestConn.ConnectedUrl() == first })
	before := n.switching.together
	if n.keepTogether(); n.switching.together != before || n.requestConn.ConnectedUrl() != first {
		t.Error("it leaves that for the one that does not let it in")
	}
}

// closedTo makes connections to all addresses but one.
type closedTo struct{ to atomic.Value }

func (d *closedTo) Dial(network, address string) (net.Conn, error) {
	if address == d.to.Load() {
		return nil, errors.New("closed")
	}
	return net.Dial(network, address)
}

// A connection that breaks and is made again does not end a hand-over; one whose server is gone does.
func TestConnectsSoon(t *testing.T) {
	ns := natstest.Start(t, &server.Options{})
	nc, err := nats.Connect(ns.ClientURL(), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	broken := nc.StatusChanged(nats.RECONNECTING)
	if err := nc.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	<-broken
	if !connectsSoon(t.Context(), nc) {
		t.Error("it is connected again, and that was not waited for")
	}
	ns.Shutdown()
	<-broken
	if connectsSoon(t.Context(), nc) {
		t.Error("there is no server")
	}
}
