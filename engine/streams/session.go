package streams

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// While the consumer is not heard the stream is asked for what it holds, this often.
	askEvery   = 50 * time.Millisecond
	askAtOnce  = time.Millisecond
	askTimeout = 500 * time.Millisecond
	// A consumer that JetStream did not make, for example because it has no leader of all servers, is asked for again this soon.
	createAgain = 250 * time.Millisecond
	// A record that was stored before the last look, and has not come by this one though nothing else has, is late.
	// A consumer that is late for as long as lateMost is made anew, maybe on another server: without a leader of all JetStream
	// the log's leader gives no message by its number.
	lateLook = 100 * time.Millisecond
	lateMost = 2 * time.Second
)

// A session is the life of one consumer, and what is asked of the stream itself meanwhile.
type session struct {
	*reader
	inbox string // where the consumer sends to
	sub   *nats.Subscription
	queue chan *nats.Msg // what it has sent

	beside  sync.WaitGroup   // the goroutines that wait for JetStream
	made    chan error       // whether the consumer was made
	again   <-chan time.Time // when to make it again
	answers chan answer
	asking  bool // an answer is waited for

	idle *time.Ticker // the consumer's heartbeat
	look *time.Ticker // when it is looked whether the consumer is late
	ask  *time.Ticker // when the stream is asked; stopped while the consumer is well

	running bool      // the consumer was made, or has been heard
	silent  int       // heartbeats without a word from it
	late    bool      // it has not delivered what the stream is known to have
	since   time.Time // since when it is late
	seen    uint64    // a sequence that the stream had at the latest look
}

// session runs one consumer until something is wrong. While the consumer is being made, is silent or is late, the stream itself is
// asked for its messages: the leader of all JetStream makes a consumer, and it may run on any of the servers. When that server is
// killed or cut off, or is slow, the stream goes on under a leader on another one, and only its consumer is missed.
func (r *reader) session(ctx context.Context) error {
	broken := r.nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	defer r.nc.RemoveStatusListener(broken)
	if err := r.holds(ctx); err != nil {
		return err
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
		reader: r, inbox: r.nc.NewInbox(), queue: make(chan *nats.Msg, r.room()),
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

// end waits for what the session began, as the next one's consumer has the same name. Its context has ended.
func (s *session) end() {
	for _, t := range []*time.Ticker{s.idle, s.look, s.ask} {
		t.Stop()
	}
	s.beside.Wait()
	_ = s.sub.Unsubscribe() // fails on a closed connection, which has none
}

// create has the consumer made, from behind what has been read.
func (s *session) create(ctx context.Context) {
	from := s.at.Seq + 1
	s.told, s.cseq = s.at.Seq, 0
	s.beside.Go(func() { s.made <- s.reader.create(ctx, s.inbox, from) })
}

func (s *session) wasMade(refused error) error {
	switch {
	case refused == nil:
		s.alive()
	case errors.Is(refused, ErrNoStream):
		return refused
	default: // nobody leads all of JetStream, or no more are allowed; the stream can be asked
		s.again = time.After(createAgain)
	}
	return nil
}

// heard notes that the consumer is heard.
func (s *session) heard() {
	s.silent = 0
	s.alive()
}

// alive stops asking the stream where the consumer delivers.
func (s *session) alive() {
	s.running = true
	switch {
	case s.until > 0: // a consumer on a replica that is behind does not come to the end
		s.ask.Reset(askEvery)
	case !s.late:
		s.ask.Stop()
	}
}

// checkSilent has the stream asked where heartbeats are missing, and ends the session where too many are.
func (s *session) checkSilent() error {
	if s.running {
		s.silent++
	}
	switch {
	case s.silent > 4:
		return fmt.Errorf("%w: the server is silent", errReset)
	case s.silent > 2: // the first may be of the same moment as the last word
		s.ask.Reset(askEvery)
	}
	return nil
}

// checkLate has the stream asked where the consumer is behind what the stream is known to have, and ends the session where it stays so.
func (s *session) checkLate() error {
	was := s.late
	s.late, s.seen = s.seen > s.told && len(s.queue) == 0, s.known()
	switch {
	case s.late && !was:
		s.since = time.Now()
		s.ask.Reset(askEvery)
	case s.late && s.running && time.Since(s.since) > lateMost:
		return fmt.Errorf("%w: the consumer is late", errReset)
	}
	return nil
}

// askStream asks for the next few messages, unless that is being done.
func (s *session) askStream(ctx context.Context) {
	if s.asking {
		return
	}
	s.asking = true
	after := s.upTo()
	s.beside.Go(func() { s.answers <- s.next(ctx, after, s.until) })
}

// takeAnswer delivers what the stream gave, and has it asked again for as long as the consumer is of no use.
func (s *session) takeAnswer(a answer) error {
	s.asking = false
	more, err := s.answered(a)
	switch {
	case err != nil:
		return err
	case more && (s.late || s.until > 0): // it may be long until the consumer is of use
		s.ask.Reset(askAtOnce)
	case s.late || s.until > 0 || !s.running:
		s.ask.Reset(askEvery)
	}
	return nil
}

// room is how many messages may be on the way. A queue of readerQueue takes 2 MiB, and there may be a scan of each of a
// thousand output streams at once; what one has to deliver is known.
func (r *reader) room() int {
	if r.until == 0 {
		return readerQueue
	}
	return int(min(readerQueue, r.until-min(r.at.Seq, r.until)+scanSlack))
}

// answer is what the stream said of its messages behind a sequence.
type answer struct {
	err   error // it did not say: it is asked again
	info  Info
	batch []Message // the next few that it holds
	upTo  uint64    // what it holds up to here is in the batch
}

// next asks the stream for its next few messages behind a sequence, for askTimeout at most. The reader goes on meanwhile.
func (s *stream) next(ctx context.Context, after, until uint64) (a answer) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if a.info, a.err = s.Info(ctx); a.err != nil {
		return a
	}
	a.upTo = max(after, a.info.before())
	if last := min(a.last(until), a.upTo+scanFew); a.upTo < last {
		a.upTo, a.err = s.few(ctx, a.upTo, last, func(batch []Message) error {
			a.batch = batch
			return nil
		})
	}
	return a
}

// last is up to where there are messages of interest to who reads up to a sequence, or on and on if that is 0.
func (a *answer) last(until uint64) uint64 {
	if until > 0 {
		return min(a.info.Last, until)
	}
	return a.info.Last
}

// answered delivers what the stream gave, without what the consumer has delivered meanwhile. more says that it pays to ask again at
// once: the stream gave something, and has more.
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
	}
	if err := r.hand(); err != nil {
		return false, err
	}
	r.passed = max(r.upTo(), a.upTo)
	r.done = r.until > 0 && r.passed >= r.until
	return a.err == nil && before < r.passed && r.passed < a.last(r.until), nil
}
