package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// Who reads jobs from a node that is behind the log, and stops before it has caught up, is told so at once, as is who comes later:
// another node has the answer.
func TestReadsEndWithTheNode(t *testing.T) {
	ns := natstest.Start(t, &server.Options{JetStream: true})
	nc, err := nats.Connect(ns.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	s, err := streams.Open(t.Context(), nc, streams.Config{Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Log.Publish(t.Context(), "carillon.log.0.tick", nil, nil); err != nil {
		t.Fatal(err)
	}
	n := &Node{streams: s}
	n.clock.begin(true)
	wanted := &carillon.Error{Code: carillon.CodeUnavailable}
	answer := make(chan error, 1)
	go func() { answer <- n.current() }()
	for waiting := 0; waiting == 0; time.Sleep(time.Millisecond) {
		n.reached.mu.Lock()
		waiting = len(n.reached.waiting)
		n.reached.mu.Unlock()
	}
	n.reached.end()
	if err := <-answer; !errors.Is(err, wanted) || !strings.Contains(err.Error(), errStops.Error()) {
		t.Errorf("who waits is told: %v", err)
	}
	if err := n.current(); !errors.Is(err, wanted) || !strings.Contains(err.Error(), errStops.Error()) {
		t.Errorf("who comes later is told: %v", err)
	}
	n.applied.Store(1)
	if err := n.current(); err != nil {
		t.Errorf("what the node knows it does not say: %v", err)
	}
}

// A node that stops does not go before those who asked have their answers.
func TestLastAnswers(t *testing.T) {
	n := &Node{}
	n.calls.Store(1)
	go func() {
		time.Sleep(20 * time.Millisecond)
		n.calls.Add(-1)
	}()
	if n.lastAnswers(); n.calls.Load() > 0 {
		t.Error("it goes while somebody waits for an answer")
	}
}
