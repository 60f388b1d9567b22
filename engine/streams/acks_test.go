package streams

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// unanswered are streams whose messages to the subject "hole" arrive, and only the test answers them. The log has given an answer
// before.
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

// answerNext answers the next message that has arrived there.
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

// The answer to a publish may be in any form of JSON, and have more fields than are needed here, as from the domain behind a leaf node.
func TestFormsOfAcks(t *testing.T) {
	for _, form := range []string{
		`{"stream":"S","seq":7}`, `{"stream":"S","domain":"hub","seq":7}`, `{"stream":"S","seq":7,"duplicate":true}`, `{ "seq": 7, "stream": "S" }`,
	} {
		if seq, err := parseAck([]byte(form)); seq != 7 || err != nil {
			t.Errorf("%s is %d, %v", form, seq, err)
		}
	}
}

// A publish with ReportLate gets ErrLate once if its answer is late, and the answer when it comes. If none comes, it gets ErrTimeout in
// time.
func TestLate(t *testing.T) {
	s, hole := unanswered(t)
	type answer struct {
		seq uint64
		err error
	}
	m := chained("hole", nil, 0)
	if m.kind() != awaitPlain {
		t.Error("one without ReportLate would get ErrLate")
	}
	m.ReportLate = true
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
	records := make(chan answer, 2)
	if err := s.Log.PublishReportLate("hole", nil, func(seq uint64, err error) { records <- answer{seq, err} }); err != nil {
		t.Fatal(err)
	}
	s.Flush()
	if a := <-records; !errors.Is(a.err, ErrLate) {
		t.Errorf("the first word about a record is %v", a.err)
	}
	answerNext(t, hole)
	if a := <-records; a.err != nil || a.seq != 2 {
		t.Errorf("the answer about a record is %d, %v", a.seq, a.err)
	}

	answers = publish()
	s.acks.mu.Lock()
	s.acks.timeout = lateAfter
	s.acks.mu.Unlock()
	if a := <-answers; !errors.Is(a.err, ErrTimeout) {
		t.Errorf("the last word is %v", a.err)
	}
	s.acks.expire() // calls nobody
	if len(answers) > 0 {
		t.Errorf("one more word came: %v", (<-answers).err)
	}
}

// Late answers are noticed in time, whatever else is published meanwhile.
func TestLookIsNotPutOff(t *testing.T) {
	a := &acks{began: time.Now(), waiting: make(map[uint64]func(uint64, error)), look: time.NewTimer(time.Hour)}
	for awaited := range 3 {
		if _, err := a.await(awaitPlain, nil); err != nil {
			t.Fatal(err)
		}
		if set := a.look.Stop(); set && awaited > 0 {
			t.Errorf("while %d answers are awaited another publish sets the timer again", awaited)
		}
	}
}

// A publish that fails because there is no connection is told from one that can never be sent.
func TestSendErrors(t *testing.T) {
	for _, err := range []error{
		ErrDisconnected, nats.ErrReconnectBufExceeded, nats.ErrConnectionClosed, nats.ErrConnectionReconnecting, nats.ErrConnectionDraining,
		nats.ErrDisconnected,
	} {
		if got := sendError(err); !errors.Is(got, ErrDisconnected) || !errors.Is(got, err) {
			t.Errorf("%v becomes %v", err, got)
		}
	}
	if got := sendError(nats.ErrMaxPayload); !errors.Is(got, nats.ErrMaxPayload) || errors.Is(got, ErrDisconnected) {
		t.Errorf("what is too large: %v", got)
	}
	if got := sendError(nil); got != nil {
		t.Error(got)
	}
}

// A question that is lost is asked again.
func TestAskedAgain(t *testing.T) {
	h := newHost(t)
	nc := h.connect()
	asked := 0
	if _, err := nc.Subscribe("question", func(m *nats.Msg) {
		if asked++; asked == 3 {
			_ = m.Respond([]byte("answer")) // a failure shows below
		}
	}); err != nil {
		t.Fatal(err)
	}
	s := stream{nc: nc}
	if m, err := s.ask(t.Context(), "question", nil); err != nil || string(m.Data) != "answer" {
		t.Errorf("the answer is %v (%v)", m, err)
	}
}

// A direct get goes to a random replica each time. It is repeated after one that does not answer, and after one that lacks the message, but
// not for ever if all lack it.
func TestDirectAskedAgain(t *testing.T) {
	h := newHost(t)
	nc := h.connect()
	asked := 0
	var gone atomic.Int64
	if _, err := nc.Subscribe(apiPrefix+directGet+"X", func(m *nats.Msg) {
		asked++
		answer := nats.NewMsg("")
		isGone := string(m.Data) == `{"seq":8}`
		if isGone {
			gone.Add(1)
		}
		switch {
		case asked <= 2:
			return
		case asked <= 4 || isGone:
			answer.Header = nats.Header{"Status": {"404"}, "Description": {"Message Not Found"}}
		default:
			answer.Header = nats.Header{nats.JSStream: {"X"}, nats.JSSubject: {"x"}, nats.JSSequence: {"7"}, nats.JSTimeStamp: {"2026-01-02T03:04:05Z"}}
		}
		_ = m.RespondMsg(answer) // a failure shows below
	}); err != nil {
		t.Fatal(err)
	}
	s := stream{nc: nc, name: "X"}
	if m, err := s.direct(t.Context(), 7); err != nil || m.Seq != 7 {
		t.Errorf("after two requests without an answer and two replicas without the message: %+v (%v)", m, err)
	}
	if m, err := s.direct(t.Context(), 8); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a message that no replica has: %+v (%v)", m, err)
	}
	if n := gone.Load(); n < directTries {
		t.Errorf("%d replicas were asked for it, want %d", n, directTries)
	}
}

// A question whose connection breaks before the answer fails like one that could not be sent, because nats.go ends it.
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
