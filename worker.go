package carillon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Handler does the work of one trigger. A nil error acknowledges it; Permanent gives it up; any other
// has it delivered again after the worker's RetryDelay. The context ends only when the worker was
// stopped and its Grace is over. The same trigger may come more than once, after a crash of the worker
// for one: Trigger.ID is the key to notice it by.
type Handler func(ctx context.Context, t *Trigger) error

// Permanent marks an error that no retry will mend.
func Permanent(err error) error { return permanentError{err} }

type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// WorkerOptions says what a worker takes and how. Topic and Name are needed.
type WorkerOptions struct {
	Topic string // may hold wildcards, as in NATS subjects
	Name  string // of the durable consumers: workers of one name share the work, each trigger going to one

	Concurrency int           // handlers at a time; default 16
	AckWait     time.Duration // silence after which a trigger is taken to be lost and goes to another; default 30 s
	MaxAttempts int           // deliveries before a failing trigger is given up; default no bound
	Grace       time.Duration // what handlers get to end in when the worker is stopped; default 30 s

	// RetryDelay is how long a trigger waits after its attempt-th delivery failed with err; default a
	// second, doubling up to a minute.
	RetryDelay func(attempt int, err error) time.Duration

	// StartNew, where the name is new, leaves out the triggers the output streams hold already.
	StartNew bool

	// OnError, where there is one, is told of every handler's error, and, with a nil trigger, of what
	// went wrong in between, which the worker tries again by itself. It may be called from several
	// goroutines at once.
	OnError func(t *Trigger, err error)
}

func (o WorkerOptions) withDefaults() WorkerOptions {
	if o.Concurrency == 0 {
		o.Concurrency = 16
	}
	if o.AckWait == 0 {
		o.AckWait = 30 * time.Second
	}
	if o.Grace == 0 {
		o.Grace = 30 * time.Second
	}
	if o.RetryDelay == nil {
		o.RetryDelay = func(attempt int, _ error) time.Duration {
			return min(time.Second<<min(attempt-1, 6), time.Minute)
		}
	}
	if o.OnError == nil {
		o.OnError = func(*Trigger, error) {}
	}
	return o
}

// Validate checks the options. The error is an *Error of CodeInvalidTopic or CodeInvalidField.
func (o WorkerOptions) Validate() error {
	if err := CheckTopicFilter(o.Topic); err != nil {
		return err
	}
	switch {
	case o.Name == "" || len(o.Name) > 128 || strings.ContainsAny(o.Name, ".*>/\\") || strings.ContainsFunc(o.Name, notPrintable):
		return errField(CodeInvalidField, "name", `%s is no name of a consumer: 1 to 128 printable characters without space . * > / \`, quote(o.Name))
	case o.Concurrency < 0:
		return errField(CodeInvalidField, "concurrency", "is %d; expected 1 or more", o.Concurrency)
	case o.AckWait < 0 || o.AckWait > 0 && o.AckWait < 100*time.Millisecond:
		return errField(CodeInvalidField, "ack_wait", "is %s; expected 100ms or more", o.AckWait)
	case o.MaxAttempts < 0:
		return errField(CodeInvalidField, "max_attempts", "is %d; expected 1 or more", o.MaxAttempts)
	case o.Grace < 0:
		return errField(CodeInvalidField, "grace", "is %s; expected 0 or more", o.Grace)
	}
	return nil
}

func notPrintable(c rune) bool { return c <= ' ' || c > '~' }

// Work handles the triggers of a topic until ctx ends, from the output streams of all partitions, with
// a durable consumer of the worker's name on each. When ctx ends it takes no more, gives back what it
// has not begun, lets the handlers under way finish within Grace, and returns nil, or an error if some
// had to be cancelled.
//
// A worker takes ahead what it begins within some hundredths of a second: of each partition at least
// Concurrency triggers, at most 2,048 and no more than about 8 MiB. They are kept from being delivered
// again while they wait. Order between triggers is not kept.
//
// Errors: CodeInvalidTopic and CodeInvalidField for options; CodeInvalidField when the name is in use
// with another topic; CodeNotFound when the service has no streams; the errors of jetstream's
// CreateConsumer.
func (c *Client) Work(ctx context.Context, o WorkerOptions, handle Handler) error {
	if err := o.Validate(); err != nil {
		return err
	}
	js, err := jetstream.New(c.nc)
	if err != nil {
		return err
	}
	w := &worker{
		Client: c, WorkerOptions: o.withDefaults(), js: js, do: handle, work: make(chan *delivery), held: make(map[*delivery]struct{}),
	}
	outputs, err := c.outputs(ctx, js)
	if err != nil {
		return err
	}
	consumers := make([]jetstream.Consumer, len(outputs))
	for p := range outputs {
		if consumers[p], err = w.consumer(ctx, p); err != nil {
			return err
		}
	}
	return w.run(ctx, consumers)
}

// pullWait is how long one pull waits for messages, and with it the longest a stop takes beyond the
// handlers: what a pull still asks for must not come to a worker that has gone.
const pullWait = time.Second

type worker struct {
	*Client
	WorkerOptions
	js   jetstream.JetStream
	do   Handler
	work chan *delivery // unbuffered: whoever takes one begins at once

	mu   sync.Mutex
	held map[*delivery]struct{} // received and not yet answered
}

// delivery is one message in the worker's hands.
type delivery struct {
	msg      jetstream.Msg
	received time.Time
}

// run takes triggers until ctx ends, and then winds down: pullers first, then handlers, and at last the
// heartbeat that kept their triggers from going to others.
func (w *worker) run(ctx context.Context, consumers []jetstream.Consumer) error {
	handlerCtx, cancelHandlers := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelHandlers()
	var pullers, handlers, heart sync.WaitGroup
	stopHeart := make(chan struct{})
	heart.Go(func() { w.heartbeat(stopHeart) })
	for range w.Concurrency {
		handlers.Go(func() {
			for d := range w.work {
				w.handle(handlerCtx, d)
			}
		})
	}
	for p, consumer := range consumers {
		for range 2 { // one pull on its way while the messages of the other are handed out
			pullers.Go(func() { w.pull(ctx, p, consumer) })
		}
	}

	<-ctx.Done()
	overtime := time.AfterFunc(w.Grace, cancelHandlers)
	pullers.Wait()
	close(w.work)
	handlers.Wait()
	inTime := overtime.Stop()
	close(stopHeart)
	heart.Wait()
	if err := w.nc.FlushTimeout(pullWait); err != nil {
		return fmt.Errorf("carillon: the last acks may be lost: %w", err)
	}
	if !inTime {
		return fmt.Errorf("carillon: handlers did not end within %s and were cancelled", w.Grace)
	}
	return nil
}

// consumer finds or makes the durable consumer of one partition.
func (w *worker) consumer(ctx context.Context, p int) (jetstream.Consumer, error) {
	want := jetstream.ConsumerConfig{
		Durable:       w.Name,
		Description:   "Carillon: workers " + w.Name,
		FilterSubject: w.names.Trigger(p, w.Topic),
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       w.AckWait,
		MaxDeliver:    -1,
		MaxAckPending: 10000, // of all workers of the name together; the default of 1000 would hold a large group back
		DeliverPolicy: jetstream.DeliverAllPolicy,
	}
	if w.StartNew {
		want.DeliverPolicy = jetstream.DeliverNewPolicy
	}
	stream := w.names.OutStream(p)
	consumer, err := w.js.Consumer(ctx, stream, w.Name)
	if err == nil {
		have := consumer.CachedInfo().Config
		if have.FilterSubject != want.FilterSubject {
			return nil, errField(CodeInvalidField, "name", "the workers %s on %s take %s, not %s", w.Name, stream, have.FilterSubject, want.FilterSubject)
		}
		want.DeliverPolicy, want.OptStartSeq, want.OptStartTime = have.DeliverPolicy, have.OptStartSeq, have.OptStartTime
	} else if !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil, fmt.Errorf("carillon: consumer %s on %s: %w", w.Name, stream, err)
	}
	if consumer, err = w.js.CreateOrUpdateConsumer(ctx, stream, want); err != nil {
		return nil, fmt.Errorf("carillon: consumer %s on %s: %w", w.Name, stream, err)
	}
	return consumer, nil
}

// pull fetches messages and hands them to the handlers until ctx ends. A consumer that has gone is made
// anew: by then its acks are lost, and triggers come again.
func (w *worker) pull(ctx context.Context, p int, consumer jetstream.Consumer) {
	size := pullSize{least: (w.Concurrency + 1) / 2}
	for ctx.Err() == nil {
		messages, err := consumer.Fetch(size.next(), jetstream.FetchMaxWait(pullWait))
		if err == nil {
			size.took(w.handOut(ctx, messages.Messages()))
			err = messages.Error()
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		w.OnError(nil, fmt.Errorf("carillon: fetching from %s: %w", w.names.OutStream(p), err))
		select {
		case <-ctx.Done():
		case <-time.After(pullWait):
		}
		if errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, nats.ErrNoResponders) {
			if again, err := w.consumer(ctx, p); err == nil {
				consumer = again
			} else if ctx.Err() == nil {
				w.OnError(nil, err)
			}
		}
	}
}

// pullSize fits what a pull asks for to how fast its messages are begun: a small one costs a fast worker
// a round trip every few messages, a large one keeps work from others that are idle.
type pullSize struct {
	least, now int
	largest    int // message so far, bytes
}

const (
	pullShort = 20 * time.Millisecond // a full pull that is begun sooner doubles the next one
	pullLong  = 4 * pullShort         // one that takes longer halves it
	pullMost  = 1024
	pullBytes = 4 << 20
)

func (s *pullSize) next() int {
	most := min(pullMost, pullBytes/max(s.largest, 1))
	s.now = min(max(s.now, s.least), max(most, s.least))
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

// handOut passes on what one pull brings. It takes messages in as they come, so that the heartbeat knows
// of those that wait for a handler. Once ctx has ended, what has not been begun goes back.
func (w *worker) handOut(ctx context.Context, messages <-chan jetstream.Msg) (n, largest int, took time.Duration) {
	var waiting []*delivery
	var first time.Time
	done := ctx.Done()
	for messages != nil || len(waiting) > 0 {
		var work chan *delivery
		var next *delivery
		if len(waiting) > 0 {
			work, next = w.work, waiting[0]
		}
		select {
		case msg, ok := <-messages:
			switch {
			case !ok:
				messages = nil
			case done == nil:
				w.answer(nil, nil, msg.Nak)
			default:
				d := w.hold(msg)
				if n++; n == 1 {
					first = d.received
				}
				largest = max(largest, len(msg.Data()))
				waiting = append(waiting, d)
			}
		case work <- next:
			waiting = waiting[1:]
		case <-done:
			done = nil
			for _, d := range waiting {
				w.answer(d, nil, d.msg.Nak)
			}
			waiting = nil
		}
	}
	if n > 0 {
		took = time.Since(first)
	}
	return n, largest, took
}

func (w *worker) handle(ctx context.Context, d *delivery) {
	t, err := w.trigger(d)
	if err != nil {
		w.OnError(nil, err)
		w.answer(d, nil, func() error { return d.msg.TermWithReason(err.Error()) })
		return
	}
	err = w.do(ctx, t)
	if err == nil {
		w.answer(d, t, d.msg.Ack)
		return
	}
	w.OnError(t, err)
	_, permanent := errors.AsType[permanentError](err)
	if permanent || w.MaxAttempts > 0 && t.Attempt >= w.MaxAttempts {
		// The reason ends up in one line of the protocol and in an advisory.
		reason := strings.Join(strings.Fields(cut(err.Error())), " ")
		w.answer(d, t, func() error { return d.msg.TermWithReason(reason) })
		return
	}
	w.answer(d, t, func() error { return d.msg.NakWithDelay(w.RetryDelay(t.Attempt, err)) })
}

func (w *worker) trigger(d *delivery) (*Trigger, error) {
	t, err := w.names.ParseTrigger(d.msg.Subject(), d.msg.Headers(), d.msg.Data())
	if err != nil {
		return nil, fmt.Errorf("carillon: no trigger on %s: %w", d.msg.Subject(), err)
	}
	meta, err := d.msg.Metadata()
	if err != nil {
		return nil, fmt.Errorf("carillon: no trigger on %s: %w", d.msg.Subject(), err)
	}
	t.Stored, t.Attempt, t.Received = meta.Timestamp, int(meta.NumDelivered), d.received
	return &t, nil
}

func (w *worker) hold(msg jetstream.Msg) *delivery {
	d := &delivery{msg: msg, received: time.Now()}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[d] = struct{}{}
	return d
}

// answer sends the outcome of a delivery. Where that fails, the trigger comes again after AckWait.
func (w *worker) answer(d *delivery, t *Trigger, send func() error) {
	if d != nil {
		w.mu.Lock()
		delete(w.held, d)
		w.mu.Unlock()
	}
	if err := send(); err != nil {
		w.OnError(t, fmt.Errorf("carillon: answering: %w", err))
	}
}

// heartbeat tells the server, three times an AckWait, that what is held is still being worked on.
func (w *worker) heartbeat(stop <-chan struct{}) {
	beat := time.NewTicker(w.AckWait / 3)
	defer beat.Stop()
	for {
		select {
		case <-stop:
			return
		case <-beat.C:
		}
		if err := w.beat(); err != nil {
			w.OnError(nil, fmt.Errorf("carillon: heartbeat: %w", err))
		}
	}
}

// beat sends under the lock, so that no heartbeat follows its trigger's answer.
func (w *worker) beat() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for d := range w.held {
		if err := d.msg.InProgress(); err != nil {
			return err
		}
	}
	return nil
}
