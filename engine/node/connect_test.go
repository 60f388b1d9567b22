package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// An engine goes to a nats-server of its own machine first, whatever the order in which they were given; where there is
// none, or the order is to be kept, the library chooses as ever.
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
			if err := nearestFirst(&o); err != nil {
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
		if err := nearestFirst(&o); err != nil || o.Url != before.Url || !slices.Equal(o.Servers, before.Servers) {
			t.Errorf("%s: the first is %q, and %q are left (%v)", name, o.Url, o.Servers, err)
		}
	}
	chosen := make(map[string]bool)
	for range 1000 { // of several all are taken, each by some engines
		o := nats.Options{Servers: slices.Clone(own[:3])}
		if err := nearestFirst(&o); err != nil {
			t.Fatal(err)
		}
		chosen[o.Url] = true
	}
	if len(chosen) != 3 {
		t.Errorf("of three on this machine only %v are ever first", chosen)
	}
}

// A start that finds no leader begins anew, and one that is refused for good does not.
func TestUnreachable(t *testing.T) {
	for _, err := range []error{
		nats.ErrNoServers, jetstream.ErrNoStreamResponse, &jetstream.APIError{Code: 503, ErrorCode: 10008}, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED},
	} {
		if !errors.Is(unreachable(fmt.Errorf("cluster: join: %w", err)), errUnreachable) {
			t.Errorf("%v is for good", err)
		}
	}
	for _, err := range []error{jetstream.ErrStreamNotFound, &jetstream.APIError{Code: 400, ErrorCode: 10052}, syscall.ENOSPC} {
		if errors.Is(unreachable(err), errUnreachable) {
			t.Errorf("%v is not for good", err)
		}
	}
}

// A server by way of which the log's leader has not answered for long is left, whatever is known of the others, and the next one gets as long.
func TestLeaveCutOff(t *testing.T) {
	first, second := natstest.Start(t, &server.Options{}).ClientURL(), natstest.Start(t, &server.Options{}).ClientURL()
	nc, err := nats.Connect(first+","+second, nats.DontRandomize())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	n := &Node{nc: nc, log: slog.New(slog.DiscardHandler)}
	n.clock.began = time.Now().Add(-time.Hour)
	n.answered.Store(int64(n.clock.running() - cutOffAfter/2))
	if left := n.leaveCutOff(0); left != 0 || nc.ConnectedUrl() != first {
		t.Fatal("a server by way of which the log has answered is left")
	}
	n.answered.Store(int64(n.clock.running() - 2*cutOffAfter))
	left := n.leaveCutOff(0)
	if left == 0 {
		t.Fatal("it is not left")
	}
	within(t, "the other one is taken", func() bool { return nc.IsConnected() && nc.ConnectedUrl() == second })
	if again := n.leaveCutOff(left); again != left || nc.ConnectedUrl() != second {
		t.Error("the other one was left at once")
	}
}
