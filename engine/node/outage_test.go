package node_test

import (
	"errors"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/node"
)

// An external nats-server is killed and comes back: red, then green, and nothing is missing.
func TestOutage(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	r := run(t, e.options(t))
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	put(t, c, beat)
	for range 3 {
		beats(t, c, 10)
		e.kill()
		notReady(t, r.HTTP, "NATS cannot be reached")
		e.start()
		ready(t, r)
	}
	beats(t, c, 20)
	unbroken(t, nc, c)
	r.stop(t)
}

// A node that starts before its nats-server waits for it.
func TestOutageAtStart(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	o := e.options(t)
	o.HTTP = freeAddress(t)
	e.kill()
	r := launch(t, o)
	eventually(t, "it says what it waits for", func() bool { return contains(r.log, "waiting for NATS") })
	notReady(t, "http://"+o.HTTP, "NATS cannot be reached")
	e.start()
	r.Ready = <-r.readies
	fires(t, client(t, r.NATS), "after")
	r.stop(t)
}

// A second node on the same data directory is told so, whatever else they would fight about.
func TestDataInUse(t *testing.T) {
	t.Parallel()
	s := settings{Data: t.TempDir(), Partitions: partitions}
	p := mustSpawn(t, s)
	_, err := spawn(t, s)
	words(t, err, "the data directory is in use by another process", s.Data)
	o := s.options()
	o.HTTP, o.Listen = p.HTTP[len("http://"):], p.NATS[len("nats://"):]
	if err := refused(t, o); !errors.Is(err, node.ErrDataInUse) {
		t.Errorf("a second node ended with %v", err)
	}
	fires(t, client(t, p.NATS), "undisturbed")
	p.terminate(t)
}
