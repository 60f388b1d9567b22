package streams

import (
	"errors"
	"math"
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

// unanswered are streams whose messages to the subject "hole" arrive, and are answered by the test alone. An answer from
// the log has come before.
func unanswered(t *testing.T) (s *Streams, hole *nats.Subscription) {
	t.Helper()
	h := newHost(t)
	nc := h.connect()
	s = open(t, nc, Config{Partitions: 1, AckTimeout: time.Hour})
	hole, err := nc.SubscribeSync("hole")
	if err != nil {
		t.Fatal(err)
	}
	appendLog(t, s.Log, 1)
	return s, hole
}

// answerNext answers the next message that has come there.
func answerNext(t *testing.T, hole *nats.Subscription) {
	t.Helper()
	m, err := hole.NextMsg(time.Minute)
	if err == nil {
		err = m.Respond([]byte(`{"stream":"CARILLON_LOG","seq":2}`))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// What can be sent again is missed as soon as it should have been answered, and what cannot be is not. An answer that
// comes after that tells that it was too soon.
func TestMissedSoon(t *testing.T) {
	s, hole := unanswered(t)
	patience := func() time.Duration {
		s.acks.mu.Lock()
		defer s.acks.mu.Unlock()
		return s.acks.patience(again)
	}
	before := patience()
	waits, errs := make(chan error, 1), make(chan error, 2)
	missed := func(_ uint64, err error) { errs <- err }
	if err := s.Log.PublishRepeated("hole", nil, missed); err != nil {
		t.Fatal(err)
	}
	if err := s.Out[0].PublishChained(chained("hole", nil, 0), missed); err != nil {
		t.Fatal(err)
	}
	if err := s.Log.PublishAsync("hole", nil, nil, func(_ uint64, err error) { waits <- err }); err != nil {
		t.Fatal(err)
	}
	s.Flush()
	for range cap(errs) {
		if err := <-errs; !errors.Is(err, ErrTimeout) {
			t.Errorf("it was missed with %v", err)
		}
	}
	if now := patience(); len(waits) > 0 || now != before {
		t.Errorf("what cannot be sent again is waited for: %t; without an answer the next is waited for for %s, not %s", len(waits) == 0, now, before)
	}
	answerNext(t, hole)
	eventually(t, "the next is waited for longer", func() bool { return patience() > before })
	answerNext(t, hole)
	answerNext(t, hole)
	if err := <-waits; err != nil {
		t.Error(err)
	}
}

// Who is patient is told once that an answer is late, and gets it when it comes; where none comes that is told in time.
func TestLate(t *testing.T) {
	s, hole := unanswered(t)
	type answer struct {
		seq uint64
		err error
	}
	m := chained("hole", nil, 0)
	m.Patient = true
	publish := func() <-chan answer {
		t.Helper()
		answers := make(chan answer, 3)
		if err := s.Out[0].PublishChained(m, func(seq uint64, err error) { answers <- answer{seq, err} }); err != nil {
			t.Fatal(err)
		}
		s.Flush()
		if a := <-answers; !errors.Is(a.err, ErrLate) {
			t.Fatalf("the first word is %v", a.err)
		}
		return answers
	}
	answers := publish()
	answerNext(t, hole)
	if a := <-answers; a.err != nil || a.seq != 2 {
		t.Errorf("the answer is %d, %v", a.seq, a.err)
	}

	s.acks.mu.Lock()
	s.acks.rounds.took(time.Minute, s.acks.passed())
	if s.acks.patience(patient) != patienceMin || s.acks.patience(again) < time.Minute {
		t.Errorf("after a late answer one is late after %s, and missed after %s", s.acks.patience(patient), s.acks.patience(again))
	}
	s.acks.mu.Unlock()
	answers = publish()
	s.acks.mu.Lock()
	s.acks.timeout = patienceMin
	s.acks.mu.Unlock()
	if a := <-answers; !errors.Is(a.err, ErrTimeout) {
		t.Errorf("the last word is %v", a.err)
	}
	s.acks.expire() // nothing is left to tell
	if len(answers) > 0 {
		t.Errorf("one more word came: %v", (<-answers).err)
	}
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
