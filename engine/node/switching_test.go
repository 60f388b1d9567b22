package node

import (
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

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

// A connection that breaks and is made again does not end a hand-over; one whose server is gone does.
func TestConnectsSoon(t *testing.T) {
	ns := natstest.Start(t, &server.Options{})
	nc, err := nats.Connect(ns.ClientURL(), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	n := &Node{nc: nc}
	broken := nc.StatusChanged(nats.RECONNECTING)
	if err := nc.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	<-broken
	if !n.connectsSoon(t.Context()) {
		t.Error("it is connected again, and that was not waited for")
	}
	ns.Shutdown()
	<-broken
	if n.connectsSoon(t.Context()) {
		t.Error("there is no server")
	}
}
