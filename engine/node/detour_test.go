package node

import (
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

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
	n.logHeard.Store(int64(n.clock.running() - cutOffAfter/2))
	if left := n.leaveCutOff(0); left != 0 || nc.ConnectedUrl() != first {
		t.Fatal("a server by way of which the log has answered is left")
	}
	n.logHeard.Store(int64(n.clock.running() - 2*cutOffAfter))
	left := n.leaveCutOff(0)
	if left == 0 {
		t.Fatal("it is not left")
	}
	within(t, "the other one is taken", func() bool { return nc.IsConnected() && nc.ConnectedUrl() == second })
	if again := n.leaveCutOff(left); again != left || nc.ConnectedUrl() != second {
		t.Error("the other one was left at once")
	}
}
