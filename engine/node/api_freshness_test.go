package node

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

func TestFreshness(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	p := freshness{last: start}
	is := func(ms int, want bool) {
		t.Helper()
		if p.fresh(at(ms)) != want {
			t.Errorf("at %d ms: fresh is %v", ms, !want)
		}
	}
	is(100, true)
	p.answered(at(100), at(101))
	is(600, true)
	is(602, false) // frozen since, or cut off
	p.answered(at(200), at(3000))
	is(3001, false) // it woke up, but this answer is old
	p.answered(at(3000), at(3002))
	is(3010, false) // requests from before may still wait
	is(3203, true)
	p.answered(at(4000), at(4001)) // frozen again, and this answer came before fresh was called
	is(4002, false)
	is(4202, true)
	p.answered(at(4100), at(4202))
	p.answered(at(4202), at(4203))
	is(4204, true) // as ever
}

// A node is fresh only if its server answers on both of its connections: requests come by one, and commands go to the log by the other.
func TestPingsOnBothConnections(t *testing.T) {
	ns := natstest.Start(t, &server.Options{})
	connect := func() *nats.Conn {
		nc, err := nats.Connect(ns.ClientURL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	gone := connect()
	gone.Close()
	for what, c := range map[string]struct {
		n    *Node
		want bool
	}{
		"both":                  {&Node{nc: connect(), requestConn: connect()}, true},
		"not that of requests":  {&Node{nc: connect(), requestConn: gone}, false},
		"only that of requests": {&Node{nc: gone, requestConn: connect()}, false},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if got := c.n.ping(ctx); got != c.want {
			t.Errorf("%s answered: %v", what, got)
		}
		cancel()
	}
}
