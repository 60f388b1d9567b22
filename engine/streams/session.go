package streams

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// While the consumer is being made, is silent or is late, the stream itself is asked for messages this often.
	askEvery   = 50 * time.Millisecond
	askAtOnce  = time.Millisecond
	askTimeout = 500 * time.Millisecond
	// When JetStream did not make the consumer, for example because its servers have no leader, the next attempt is this soon.
	createAgain = 250 * time.Millisecond
	// Every lateLook the reader looks whether the consumer is late: it is if a record that was stored before the last look has
	// not come by this one, although nothing else waits to be read, and the stream has not said that it is gone. A consumer that stays
	// late for lateMost is made anew, maybe on another server: while JetStream's servers have no leader, the log's leader gives no
	// message by its sequence. One that has a long way to the log's end is not, for as long as it sends and the stream is not quicker.
	lateLook = 100 * time.Millisecond
	lateMost = 2 * time.Second
	// For so long after a message with a subject that would end the connection (breaks) no consumer is made, as more of them may follow.
	breakRest = 10 * time.Second
)

// A session is the life of one consumer, and the questions to the stream itself meanwhile.
type session struct {
	*reader
	inbox string // where the consumer sends to
	sub   *nats.Subscription
	queue chan *nats.Msg // what the consumer has sent

	requests sync.WaitGroup   // the goroutines that wait for JetStream
	made     chan error       // the result of making the consumer
	again    <-chan time.Time // when to make it again
	answers  chan answer      // of the stream
	asking   bool             // an answer is awaited

	idle *time.Ticker // the consumer's heartbeat
	look *time.Ticker // when to look whether the consumer is late
	ask  *time.Ticker // when to ask the stream; stopped while the consumer works

	running bool      // the consumer was made, or has been heard
	silent  int       // heartbeats since it was last heard
	late    bool      // it has not delivered what the stream is known to have
	since   time.Time // since when it has been late; not before it was made, nor before it last sent what the stream had not given
	seen    uint64    // a sequence that the stream had at the latest look
	sent    uint64    // what it had sent at the latest look
	given   uint64    // the stream has given all that it still has up to here
}

// session runs one consumer until something is wrong. While the consumer is being made, is silent or is late, the reader asks the
// stream itself for its messages. The reason: the leader of all JetStream makes consumers, and may put one on any of the servers.
// When that server is killed, cut off or slow, the stream goes on with a leader on another one, and only the consumer is missing.
func (r *reader) session(ctx context.Context) error {
	broken := r.nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	defer r.nc.RemoveStatusListener(broken)
	if err := r.checkPosition(ctx); err != nil {
		return err
	}
	if r.broke { // by a message that would end it again, maybe
		r.broke = false
		if _, err := r.answered(r.next(ctx, r.upTo(), r.until)); err != nil || r.done {
			return err
		}
	}
	s, err := r.begin()
	if err != nil {
		return err
	}
	defer s.end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.create(ctx)
	for err == nil && !r.done {
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-broken:
			r.broke = true
			err = fmt.Errorf("%w: the connection broke", errReset)
		case refused := <-s.made:
			err = s.wasMade(refused)
		case <-s.again:
			s.create(ctx)
		case <-s.idle.C:
			err = s.checkSilent()
		case <-s.look.C:
			err = s.checkLate()
		case <-s.ask.C:
			s.askStream(ctx)
		case a := <-s.answers:
			err = s.takeAnswer(a)
		case m := <-s.queue:
			s.heard()
			err = r.take(ctx, m, s.queue)
		}
	}
	return err
}

// begin subscribes to what the consumer will send.
func (r *reader) begin() (*session, error) {
	s := &session{
		reader: r, inbox: r.nc.NewInbox(), queue: make(chan *nats.Msg, r.queueSize()),
		made: make(chan error, 1), answers: make(chan answer, 1),
	}
	var err error
	if s.sub, err = r.nc.ChanSubscribe(s.inbox, s.queue); err != nil {
		return nil, sendError(err)
	}
	s.idle, s.look, s.ask = time.NewTicker(r.heartbeat), time.NewTicker(lateLook), time.NewTicker(askEvery)
	if r.behind && r.replicas > 1 {
		s.ask.Reset(askAtOnce)
	}
	if r.known == nil {
		s.look.Stop()
	}
	return s, nil
}

// end waits for the goroutines that the session began, because the next session's consumer has the same name. The session's context
// has ended.
func (s *session) end() {
	for _, t := range []*time.Ticker{s.idle, s.look, s.ask} {
		t.Stop()
	}
	s.requests.Wait()
	_ = s.sub.Unsubscribe() // fails on a closed connection, which has none
}

// create begins to make the consumer, which starts behind what has been read.
func (s *session) create(ctx context.Context) {
	if rest := time.Until(s.restUntil); rest > 0 {
		s.again = time.After(rest)
		s.ask.Reset(askAtOnce)
		return
	}
	from := s.at.Seq + 1
	s.lastSent, s.cseq = s.at.Seq, 0
	s.requests.Go(func() { s.made <- s.reader.create(ctx, s.inbox, from) })
}

func (s *session) wasMade(refused error) error {
	switch {
	case refused == nil:
		s.alive()
	case errors.Is(refused, ErrNoStream):
		return refused
	default: // JetStream has no leader, or allows no more consumers; the stream can be asked meanwhile
		s.again = time.After(createAgain)
	}
	return nil
}

// heard notes that the consumer sent something.
func (s *session) heard() {
	s.silent = 0
	s.alive()
}

// alive notes that the consumer works, and mostly stops asking the stream.
func (s *session) alive() {
	if !s.running { // before, it could deliver nothing: if making it took longer than lateMost, it would be given up at once, every time
		s.running, s.since = true, time.Now()
	}
	switch {
	case s.until > 0: // a scan asks on: a consumer on a replica that is behind may not come to the end
		s.ask.Reset(askEvery)
	case !s.late:
		s.ask.Stop()
	}
}

// checkSilent has the stream asked if heartbeats are missing, and ends the session if too many are.
func (s *session) checkSilent() error {
	if s.running {
		s.silent++
	}
	switch {
	case s.silent > 4:
		return fmt.Errorf("%w: the server is silent", errReset)
	case s.silent > 2: // the first tick may come right after the consumer was heard
		s.ask.Reset(askEvery)
	}
	return nil
}

// checkLate has the stream asked if the consumer is behind what the stream is known to have, and ends the session if it stays behind.
func (s *session) checkLate() error {
	was, moved := s.late, s.lastSent > s.sent
	ahead := s.at.Seq > s.lastSent // the stream gave a message that the consumer has not sent
	s.late = s.seen > s.lastSent && len(s.queue) == 0 && (ahead || s.seen > s.given)
	s.seen, s.sent = s.known(), s.lastSent
	if s.late && !was {
		s.ask.Reset(askEvery)
	}
	switch {
	case s.late && (!was || moved && !ahead):
		s.since = time.Now()
	case s.late && s.running && time.Since(s.since) > lateMost:
		return fmt.Errorf("%w: the consumer is late", errReset)
	}
	return nil
}

// askStream asks the stream for the next few messages, unless an answer is awaited already.
func (s *session) askStream(ctx context.Context) {
	if s.asking {
		return
	}
	s.asking = true
	after, seen := s.upTo(), s.seen
	s.requests.Go(func() {
		a := s.next(ctx, after, s.until)
		a.seen = seen
		s.answers <- a
	})
}

// takeAnswer delivers the stream's answer, and has the stream asked again for as long as the consumer does not work.
func (s *session) takeAnswer(a answer) error {
	s.asking = false
	more, err := s.answered(a)
	if a.err == nil && a.upTo >= a.info.Last && a.info.Last >= a.seen { // else who answered knew less than is known here
		s.given = a.seen
	}
	switch {
	case err != nil:
		return err
	case more && (s.late || s.until > 0), time.Until(s.restUntil) > 0: // it may be long until the consumer delivers
		s.ask.Reset(askAtOnce)
	case s.late || s.until > 0 || !s.running:
		s.ask.Reset(askEvery)
	}
	return nil
}

// queueSize is how many messages the queue must hold. A queue of readerQueue takes 2 MiB, and there may be scans of a
// thousand output streams at once. But it is known how much a scan has to deliver, so it gets a queue for that.
func (r *reader) queueSize() int {
	if r.until == 0 {
		return readerQueue
	}
	return int(min(readerQueue, r.until-min(r.at.Seq, r.until)+scanSlack))
}

// answer is the stream's answer to the question for its messages behind a sequence.
type answer struct {
	err   error // there was no answer, or only a part: the stream is asked again
	info  Info
	batch []Message // the next few messages
	upTo  uint64    // all messages that the stream has up to here are in the batch
	seen  uint64    // a sequence that the stream was known to have when it was asked
}

// next asks the stream for its next few messages behind a sequence, for at most askTimeout. The reader goes on meanwhile.
func (s *stream) next(ctx context.Context, after, until uint64) (a answer) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if a.info, a.err = s.Info(ctx); a.err != nil {
		return a
	}
	a.upTo = max(after, a.info.before())
	if last := min(a.last(until), a.upTo+scanFew); a.upTo < last {
		a.upTo, a.err = s.getFew(ctx, a.upTo, last, func(batch []Message) error {
			a.batch = batch
			return nil
		})
	}
	return a
}

// last is the last sequence that a reader needs which reads up to until; with until 0, the stream's last.
func (a *answer) last(until uint64) uint64 {
	if until > 0 {
		return min(a.info.Last, until)
	}
	return a.info.Last
}

// breaks tells whether a message that a consumer sends with this subject ends the connection. nats-server stores a message with a carriage
// return in its subject, and sends it as it is; to the client library the line is malformed, so it connects anew, each time. Anybody who
// may send commands can send one. In the answer to a question the subject is in JSON.
func breaks(subject string) bool { return strings.Contains(subject, "\r") }

// answered delivers the messages of an answer, without those that the consumer has delivered meanwhile. more says that it is worth
// asking again at once: the stream gave something, and has more.
func (r *reader) answered(a answer) (more bool, err error) {
	if a.info.Last == 0 { // it has no leader, or nothing
		return false, nil
	}
	if r.cut(a.info) {
		return false, fmt.Errorf("%w: the stream begins at %d, behind %d", errReset, a.info.First, r.upTo())
	}
	before := r.upTo()
	for _, m := range a.batch {
		if m.Seq > before {
			r.batch = append(r.batch, m)
		}
		if breaks(m.Subject) {
			r.restUntil = time.Now().Add(breakRest)
		}
	}
	if err := r.deliverBatch(); err != nil {
		return false, err
	}
	r.passed = max(r.upTo(), a.upTo)
	r.done = r.until > 0 && r.passed >= r.until
	return a.err == nil && before < r.passed && r.passed < a.last(r.until), nil
}
