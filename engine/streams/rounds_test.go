package streams

import (
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

func TestRounds(t *testing.T) {
	const ms = time.Millisecond
	var r rounds
	want := func(what string, want time.Duration) {
		t.Helper()
		if got := r.patience(); got != want {
			t.Errorf("%s an answer is waited for for %s, want %s", what, got, want)
		}
	}
	want("before the first", math.MaxInt64)
	r.took(ms, time.Second)
	want("after a quick one", patienceMin)
	r.took(2*time.Second, 3*time.Second)
	want("after a slow one", 4*time.Second)
	for i := range 1000 { // they are no reason to forget it
		r.took(ms, 3*time.Second+time.Duration(i)*roundsHalve/1000)
	}
	r.took(ms, 3*time.Second+roundsHalve)
	if got := r.patience(); (got - 2*time.Second).Abs() > ms {
		t.Errorf("after many quick ones an answer is waited for for %s, want half of what it was", got)
	}
	r.took(ms, time.Minute)
	want("a minute later", patienceMin)
}

// What can be sent again is missed as soon as it should have been answered, and what cannot be is not. An answer that
// comes after that tells that it was too soon.
func TestMissedSoon(t *testing.T) {
	h := newHost(t)
	nc := h.connect()
	s := open(t, nc, Config{Partitions: 1, AckTimeout: time.Hour})
	hole, err := nc.SubscribeSync("hole")
	if err != nil {
		t.Fatal(err)
	}
	appendLog(t, s.Log, 1)

	var waits atomic.Bool
	waits.Store(true)
	if err := s.Log.PublishAsync("hole", nil, nil, func(uint64, error) { waits.Store(false) }); err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 2)
	missed := func(_ uint64, err error) { errs <- err }
	if err := s.Log.PublishRepeated("hole", nil, missed); err != nil {
		t.Fatal(err)
	}
	if err := s.Out[0].PublishChained(chained("hole", nil, 0), missed); err != nil {
		t.Fatal(err)
	}
	s.Flush()
	eventually(t, "both are missed", func() bool { return len(errs) == cap(errs) })
	for range cap(errs) {
		if err := <-errs; !errors.Is(err, ErrTimeout) {
			t.Errorf("it was missed with %v", err)
		}
	}
	if !waits.Load() {
		t.Error("what cannot be sent again is no longer waited for")
	}

	patience := func() time.Duration {
		s.acks.mu.Lock()
		defer s.acks.mu.Unlock()
		return s.acks.patience(again)
	}
	before := patience()
	m, err := hole.NextMsg(time.Minute)
	if err == nil {
		m, err = hole.NextMsg(time.Minute) // the first is the one that is waited for
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Respond([]byte(`{"stream":"CARILLON_LOG","seq":2}`)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the next is waited for longer", func() bool { return patience() > before })
}

// A question that is lost is asked again.
func TestAskedAgain(t *testing.T) {
	h := newHost(t)
	nc := h.connect()
	asked := 0
	if _, err := nc.Subscribe("question", func(m *nats.Msg) {
		if asked++; asked == 3 {
			_ = m.Respond([]byte("answer")) // what fails shows
		}
	}); err != nil {
		t.Fatal(err)
	}
	s := stream{nc: nc}
	if m, err := s.ask(t.Context(), "question", nil); err != nil || string(m.Data) != "answer" {
		t.Errorf("the answer is %v (%v)", m, err)
	}
}

// A question whose connection breaks before there is an answer fails as one that could not be sent: nats.go ends it.
func TestAskedAndLeft(t *testing.T) {
	h := newHost(t)
	nc := h.connect()
	other := h.connect()
	asked := make(chan *nats.Msg, 1)
	_, err := other.ChanSubscribe(apiPrefix+"question", asked)
	if err == nil {
		err = other.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	answer := make(chan error, 1)
	go func() { answer <- (&stream{nc: nc}).request(t.Context(), "question", nil, nil) }()
	<-asked
	if err := nc.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; !errors.Is(err, ErrDisconnected) {
		t.Errorf("it was answered with %v", err)
	}
}
