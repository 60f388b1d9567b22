package carillon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// pullWait is how long one pull waits for messages, and with it the longest a stop takes beyond the
// handlers: what a pull still asks for must not come to a worker that has gone.
const pullWait = time.Second

// puller asks the consumer of one partition for messages, pull after pull. It speaks JetStream's protocol
// itself: jetstream's Fetch costs a timer, two channels and a goroutine's turn for every message.
type puller struct {
	*worker
	partition int
	inbox     string // of the replies to pull n: <inbox>.<n>
	came      chan *nats.Msg
	batch     []delivery // the memory of the latest
	pulls     uint64
	size      pullSize
	silent    bool  // the latest pull was lost, and nothing has come since
	said      error // by the server, at the latest look
}

// pullAll pulls until ctx ends. A consumer that has gone is made anew: by then its acks are lost, and
// triggers come again.
func (w *worker) pullAll(ctx context.Context, partition int) {
	p := &puller{worker: w, partition: partition, inbox: w.nc.NewInbox(), size: pullSize{least: (w.Concurrency + 1) / 2}, said: w.nc.LastError()}
	p.came = make(chan *nats.Msg, 2*max(pullMost, p.size.least)) // the rest of a pull taken to be lost may come beside the next
	sub := p.subscribe(ctx)
	defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection, which has no subscriptions
	for ctx.Err() == nil {
		err := p.pull(ctx)
		if p.silent { // the server may have taken the subscription away with a right or a limit, and does not give it back
			_ = sub.Drain() // what is on its way still comes
			sub = p.subscribe(ctx)
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		if !p.failed(ctx, err) {
			return
		}
		if w.Partitions > 0 {
			continue // who made the consumer may make it again
		}
		if errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, nats.ErrNoResponders) {
			if err := w.makeConsumer(ctx, partition); err != nil && ctx.Err() == nil {
				w.OnError(nil, err)
			}
		}
	}
}

// subscribe listens to what comes of pulls; nil where ctx ends before that.
func (p *puller) subscribe(ctx context.Context) *nats.Subscription {
	for {
		sub, err := p.nc.ChanSubscribe(p.inbox+".*", p.came)
		if err == nil || !p.failed(ctx, err) {
			return sub
		}
	}
}

// failed tells of an error and waits before the next try, unless ctx ends. A closed connection ends the worker: it does
// not come back.
func (p *puller) failed(ctx context.Context, err error) bool {
	why := ""
	if errors.Is(err, nats.ErrNoResponders) {
		why = fmt.Sprintf("the consumer %s is not there, see MakeConsumers, or nobody leads it: ", p.Name)
	}
	p.OnError(nil, fmt.Errorf("carillon: fetching from %s: %s%w", p.names.OutStream(p.partition), why, err))
	if p.nc.IsClosed() {
		p.stop(err)
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pullWait):
		return true
	}
}

// pull is one request for messages, and what came of it.
type pull struct {
	reply   string // where the server says how it goes
	most    int    // messages asked for
	came    int
	largest int       // bytes
	first   time.Time // of the first one's coming
	ended   bool      // the server sends no more
	err     error     // why, where that is no matter of course

	waiting int           // for a handler; under the deliveries' lock
	begun   chan struct{} // holds a token when none waits any more
}

// pull asks for messages once, hands them to the handlers as they come, so that the heartbeat knows of those
// that wait, and returns when all have been begun. Once ctx has ended, what has not been begun goes back.
func (p *puller) pull(ctx context.Context) error {
	if !p.connected(ctx) { // pulls that are taken to be lost, one after the other, would all be answered together
		return nil
	}
	of, err := p.ask()
	if err != nil {
		return err
	}
	p.receive(of, ctx.Done())
	if bound, ok := errors.AsType[pullBound](of.err); ok {
		p.size.bound, of.err = int(bound), nil
	}
	if of.came > 0 {
		p.size.took(min(of.came, of.most), of.largest, time.Since(of.first))
	}
	return cmp.Or(of.err, p.forbidden())
}

// forbidden is what the server has said since the latest look of a right that is missing to pull, to be answered or to acknowledge.
// It says so to the connection; here it is only quiet, or the same triggers come again and again.
func (p *puller) forbidden() error {
	before := p.said
	if p.said = p.nc.LastError(); p.said == before || !errors.Is(p.said, nats.ErrPermissionViolation) {
		return nil
	}
	acks := "$JS.ACK." + p.names.OutStream(p.partition) + "." + p.Name + "."
	for _, subject := range []string{p.api() + `"`, p.inbox + `.*"`, acks} {
		if strings.Contains(p.said.Error(), `"`+subject) {
			return p.said
		}
	}
	return nil
}

// api is where messages are asked for.
func (p *puller) api() string {
	return jetstream.DefaultAPIPrefix + "CONSUMER.MSG.NEXT." + p.names.OutStream(p.partition) + "." + p.Name
}

// receive hands over what comes until the pull is over and all of it has been begun. When done ends, that goes back.
// What comes of an earlier pull meanwhile, which was taken to be lost, is treated as if it were of this one.
func (p *puller) receive(of *pull, done <-chan struct{}) {
	lost := time.NewTimer(2 * pullWait) // silence for so long means that the request or the reply is lost
	defer lost.Stop()
	for !of.over() || p.held.waits(of) {
		select {
		case m := <-p.came:
			p.silent = false
			lost.Reset(2 * pullWait)
			batch := p.take(of, m)
			if done == nil {
				// Not at once: this pull, or the partition's other one, would bring it here again and again.
				p.giveBack(batch, delayedNak(pullWait))
			} else {
				p.held.add(batch)
			}
			clear(batch) // its memory is used again; the messages are not to stay for that
		case <-lost.C:
			p.silent = !of.over()
			of.ended = true
		case <-of.begun:
		case <-done:
			p.giveBack(p.held.withdraw(of), nak)
			done = nil
		}
	}
}

// over tells whether no more is to come.
func (p *pull) over() bool { return p.ended || p.came >= p.most }

func (p *puller) ask() (*pull, error) {
	p.pulls++
	of := &pull{reply: p.inbox + "." + strconv.FormatUint(p.pulls, 10), most: p.size.next(), begun: make(chan struct{}, 1)}
	if p.silent {
		of.most = 1 // the one before may still be answered, and the one before that
	}
	bound := ""
	if of.most > pullBytes/MaxPayload { // what comes may be larger than all before
		// A pull that takes less than the largest message there can be would never get it.
		bound = fmt.Sprintf(`"max_bytes":%d,`, max(pullBytes, p.nc.MaxPayload()+pullSpare))
	}
	return of, p.nc.PublishRequest(p.api(), of.reply, fmt.Appendf(nil, `{"batch":%d,%s"expires":%d}`, of.most, bound, pullWait.Nanoseconds()))
}

// take reads a message and those that have come behind it. The time is taken once for them, and after they
// came, so that none seems to have been received before it was sent.
func (p *puller) take(of *pull, m *nats.Msg) []delivery {
	more := len(p.came)
	now := time.Now()
	if of.came == 0 {
		of.first = now
	}
	p.batch = p.batch[:0]
	for ; ; more-- {
		switch {
		case m.Subject == of.reply:
			if of.ended, of.err = outcome(m.Header); errors.Is(of.err, errPullFull) && of.came > 0 {
				of.err = nil
			}
		case strings.HasPrefix(m.Subject, p.inbox): // of a pull taken to be lost
		default:
			of.came++
			of.largest = max(of.largest, len(m.Data))
			p.batch = append(p.batch, delivery{m, now, of})
		}
		if more == 0 {
			return p.batch
		}
		m = <-p.came
	}
}

// left counts what waits no longer. The deliveries' lock is held.
func (p *pull) left(n int) {
	if p.waiting -= n; p.waiting > 0 {
		return
	}
	select {
	case p.begun <- struct{}{}:
	default: // it is there
	}
}

// outcome reads a message about a pull: whether it ended the pull, and why, where that is an error.
func outcome(h nats.Header) (ended bool, err error) {
	status, description := h.Get("Status"), h.Get("Description")
	switch {
	case status == "100": // it goes on
		return false, nil
	case status == "404" || status == "408": // no more in its time
		return true, nil
	case status == "503":
		return true, nats.ErrNoResponders
	case strings.EqualFold(description, "Consumer Deleted"):
		return true, jetstream.ErrConsumerDeleted
	case strings.EqualFold(description, "Message Size Exceeds MaxBytes"):
		return true, errPullFull
	case strings.EqualFold(description, "Batch Completed"): // and more bytes could have come
		return true, nil
	}
	if most, ok := strings.CutPrefix(description, "Exceeded MaxRequestBatch of "); ok {
		if n, err := strconv.Atoi(most); err == nil && n > 0 {
			return true, pullBound(n)
		}
	}
	return true, fmt.Errorf("%s %s", status, description)
}

// pullBound is the answer to a pull that asked for more messages than the server allows: how many it does.
type pullBound int

func (b pullBound) Error() string { return fmt.Sprintf("a pull may ask for %d messages", int(b)) }

// errPullFull says that the next message would be too much for a pull; a matter of course, but for the first one.
var errPullFull = errors.New("the next message is larger than one pull may bring")

// pullSize fits what a pull asks for to how fast its messages are begun: a small one costs a fast worker
// a round trip every few messages, a large one keeps work from others that are idle.
type pullSize struct {
	least, now int
	bound      int // by the server; 0: none is known
	largest    int // message so far, bytes
}

const (
	pullShort = 20 * time.Millisecond // a full pull that is begun sooner doubles the next one
	pullLong  = 4 * pullShort         // one that takes longer halves it
	pullMost  = 1024
	pullBytes = 4 << 20
	pullSpare = 8 << 10 // for a message's subjects
)

func (s *pullSize) next() int {
	most := min(pullMost, pullBytes/max(s.largest, 1))
	s.now = min(max(s.now, s.least), max(most, s.least), cmp.Or(s.bound, math.MaxInt))
	return s.now
}

// took is told of a pull: how many messages came, the largest of them, and the time from the first one's
// coming to the last one's beginning.
func (s *pullSize) took(messages, largest int, took time.Duration) {
	s.largest = max(s.largest, largest)
	switch {
	case messages == s.now && took < pullShort:
		s.now *= 2
	case took > pullLong:
		s.now /= 2
	}
}
