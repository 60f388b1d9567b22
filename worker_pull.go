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

// pullWait is how long one pull waits for messages. So it is also the longest that a stop takes besides waiting for
// handlers: messages that a pull still asks for must not be sent to a worker that has gone.
const pullWait = time.Second

// puller asks the consumer of one partition for messages, pull after pull. It speaks JetStream's protocol
// itself: jetstream's Fetch costs a timer, two channels, and a switch to a goroutine for every message.
type puller struct {
	*worker
	partition int
	inbox     string // of the replies to pull n: <inbox>.<n>
	came      chan *nats.Msg
	batch     []delivery // the latest batch, whose memory is used again
	pulls     uint64
	size      pullSize
	silent    bool  // the latest pull counts as lost, and nothing has come since
	said      error // the connection's last error at the latest look (forbidden)
}

// pullAll pulls until ctx ends. If the consumer is gone, pullAll makes a new one: the acks are lost with the old one, and
// triggers are delivered again.
func (w *worker) pullAll(ctx context.Context, partition int) {
	p := &puller{worker: w, partition: partition, inbox: w.nc.NewInbox(), size: pullSize{least: (w.Concurrency + 1) / 2}, said: w.nc.LastError()}
	p.came = make(chan *nats.Msg, 2*max(pullMost, p.size.least)) // the rest of a pull that counted as lost may come beside the next pull
	sub := p.subscribe(ctx)
	defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection, which has no subscriptions
	for ctx.Err() == nil {
		err := p.pull(ctx)
		// The server may have removed the subscription, for a right or a limit, and does not restore it. While the connection is down there is
		// nothing to do: nats.go subscribes again, and would do so for the drained subscription as well, and never end that.
		if p.silent && !p.nc.IsReconnecting() {
			_ = sub.Drain() // messages on their way still come
			sub = p.subscribe(ctx)
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		if !p.failed(ctx, err) {
			return
		}
		if w.Partitions > 0 {
			continue // whoever made the consumer may make it again
		}
		if errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, nats.ErrNoResponders) {
			if err := w.makeConsumer(ctx, partition); err != nil && ctx.Err() == nil {
				w.OnError(nil, err)
			}
		}
	}
}

// subscribe subscribes to the inbox of the pulls, trying until ctx ends; then it returns nil.
func (p *puller) subscribe(ctx context.Context) *nats.Subscription {
	for {
		sub, err := p.nc.ChanSubscribe(p.inbox+".*", p.came)
		if err == nil || !p.failed(ctx, err) {
			return sub
		}
	}
}

// failed reports an error and waits before the next try; it returns false if ctx ended. A closed connection does not come
// back, and ends the worker.
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
	reply   string    // the subject on which the server reports the pull's status
	most    int       // messages asked for
	came    int       // messages
	largest int       // of those, bytes
	first   time.Time // when the first message came
	ended   bool      // the server sends no more
	err     error     // why it ended, if that is an error

	waiting int           // messages that wait for a handler; under the deliveries' lock
	begun   chan struct{} // holds a token when none waits any more
}

// pull asks for messages once, hands them over as they come (so that the heartbeat includes those that wait for a
// handler), and returns when all have been begun. Once ctx has ended, messages that have not been begun go back.
func (p *puller) pull(ctx context.Context) error {
	if !p.connected(ctx) { // else pull after pull would be sent and count as lost, and at last all be answered together
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

// forbidden returns the server's error, if there was one since the latest look, that the worker lacks a right to pull, to get the answers or
// to acknowledge. The server reports that only to the connection; a puller would see only silence, or the same triggers again and again. The
// connection keeps its last error alone, which may be about what another puller asked for.
func (p *puller) forbidden() error {
	before := p.said
	if p.said = p.nc.LastError(); p.said == before || !errors.Is(p.said, nats.ErrPermissionViolation) {
		return nil
	}
	said, outs := p.said.Error(), strings.TrimSuffix(p.names.OutStream(0), "0")
	about := func(subject string) bool { return strings.Contains(said, `"`+subject) }
	if about(p.inbox[:strings.LastIndexByte(p.inbox, '.')+1]) ||
		strings.Contains(said, "."+p.Name) && (about(jetstream.DefaultAPIPrefix+"CONSUMER.MSG.NEXT."+outs) || about("$JS.ACK."+outs)) {
		return p.said
	}
	return nil
}

// api is the subject of requests for messages.
func (p *puller) api() string {
	return jetstream.DefaultAPIPrefix + "CONSUMER.MSG.NEXT." + p.names.OutStream(p.partition) + "." + p.Name
}

// receive hands over messages as they come, until the pull is over and all of them have been begun. Once done is closed, messages that
// have not been begun go back. Messages that come meanwhile of an earlier pull, which counted as lost, are treated as this pull's.
func (p *puller) receive(of *pull, done <-chan struct{}) {
	lost := time.NewTimer(2 * pullWait) // after so long a silence the request or the reply counts as lost
	defer lost.Stop()
	for !of.over() || p.held.waits(of) {
		select {
		case m := <-p.came:
			p.silent = false
			lost.Reset(2 * pullWait)
			batch := p.take(of, m)
			if done == nil {
				// Not at once: this pull, or the partition's other one, would bring it here again and again.
				p.answerUnbegun(batch, delayedNak(pullWait))
			} else {
				p.held.add(batch)
			}
			clear(batch) // its memory is used again, and must not hold on to the messages
		case <-lost.C:
			p.silent = !of.over()
			of.ended = true
		case <-of.begun:
		case <-done:
			p.answerUnbegun(p.held.withdraw(of), nak)
			done = nil
		}
	}
}

// over tells whether no more messages will come.
func (p *pull) over() bool { return p.ended || p.came >= p.most }

func (p *puller) ask() (*pull, error) {
	p.pulls++
	of := &pull{reply: p.inbox + "." + strconv.FormatUint(p.pulls, 10), most: p.size.next(), begun: make(chan struct{}, 1)}
	if p.silent {
		of.most = 1 // the earlier pulls that count as lost may still be answered
	}
	bound := ""
	if of.most > pullBytes/MaxPayload { // messages may be larger than any so far
		// A pull with a bound below the largest possible message would never get that one.
		bound = fmt.Sprintf(`"max_bytes":%d,`, max(pullBytes, p.nc.MaxPayload()+pullSpare))
	}
	return of, p.nc.PublishRequest(p.api(), of.reply, fmt.Appendf(nil, `{"batch":%d,%s"expires":%d}`, of.most, bound, pullWait.Nanoseconds()))
}

// take reads a message and those that have come behind it. It reads the clock once for all of them, and after they
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
		case strings.HasPrefix(m.Subject, p.inbox): // the status of a pull that counted as lost
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

// noteBegun notes that n messages of the pull wait no longer. Its caller holds the deliveries' lock.
func (p *pull) noteBegun(n int) {
	if p.waiting -= n; p.waiting > 0 {
		return
	}
	select {
	case p.begun <- struct{}{}:
	default: // the token is there already
	}
}

// outcome reads a status message: whether it ended the pull, and why, if that is an error.
func outcome(h nats.Header) (ended bool, err error) {
	status, description := h.Get("Status"), h.Get("Description")
	switch {
	case status == "100": // it goes on
		return false, nil
	case status == "404" || status == "408": // no more messages came in time
		return true, nil
	case status == "503":
		return true, nats.ErrNoResponders
	case strings.EqualFold(description, "Consumer Deleted"):
		return true, jetstream.ErrConsumerDeleted
	case strings.EqualFold(description, "Message Size Exceeds MaxBytes"):
		return true, errPullFull
	case strings.EqualFold(description, "Batch Completed"): // all messages came before max_bytes was used up
		return true, nil
	}
	if most, ok := strings.CutPrefix(description, "Exceeded MaxRequestBatch of "); ok {
		if n, err := strconv.Atoi(most); err == nil && n > 0 {
			return true, pullBound(n)
		}
	}
	return true, fmt.Errorf("%s %s", status, description)
}

// pullBound is the error of a pull that asked for more messages than the server allows: how many it allows.
type pullBound int

func (b pullBound) Error() string { return fmt.Sprintf("a pull may ask for %d messages", int(b)) }

// errPullFull says that the next message is larger than what is left of a pull's max_bytes. It is an error only if no message came before.
var errPullFull = errors.New("the next message is larger than one pull may bring")

// pullSize adapts how much a pull asks for to how fast its messages are begun: small pulls cost a fast worker
// a round trip every few messages, large pulls keep work from other workers that are idle.
type pullSize struct {
	least, now int
	bound      int // the server's; 0: none is known
	largest    int // largest message so far, bytes
}

const (
	pullShort = 20 * time.Millisecond // a full pull that is begun sooner doubles the next one
	pullLong  = 4 * pullShort         // one that takes longer halves it
	pullMost  = 1024
	pullBytes = 4 << 20
	pullSpare = 8 << 10 // for a message's subjects, which count in max_bytes
)

func (s *pullSize) next() int {
	most := min(pullMost, pullBytes/max(s.largest, 1))
	s.now = min(max(s.now, s.least), max(most, s.least), cmp.Or(s.bound, math.MaxInt))
	return s.now
}

// took adapts the size after a pull: how many messages came, the largest of them in bytes, and the time from when the
// first one came until the last one was begun.
func (s *pullSize) took(messages, largest int, took time.Duration) {
	s.largest = max(s.largest, largest)
	switch {
	case messages == s.now && took < pullShort:
		s.now *= 2
	case took > pullLong:
		s.now /= 2
	}
}
