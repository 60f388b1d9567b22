package carillon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Handler does the work of one trigger. A nil error acknowledges the trigger, an error made by Permanent gives it up, and with any
// other error it is delivered again after the worker's RetryDelay. The context ends only when the worker was
// stopped and its Grace is over: however long a handler takes, its trigger goes to nobody else while the worker lives, so bound by
// a context of its own what may hang. The same trigger may come more than once, for example after a worker crashed; it then has
// the same Trigger.ID. A panic ends the program, as in any goroutine.
type Handler func(ctx context.Context, t *Trigger) error

// Permanent marks an error that no retry will mend: the trigger is given up, as after MaxAttempts. Of nil it is nil.
//
// A trigger that is given up goes to no worker of the name any more. It stays in its output stream, and JetStream tells of it, with the
// error, in an advisory that a stream can keep; docs/protocol.md says on which subject.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanentError{err}
}

// ErrGivenUp is wrapped by the error that OnError is called with when its trigger is given up, beside the handler's own.
var ErrGivenUp = errors.New("given up")

type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// WorkerOptions says what a worker takes and how. Topic and Name are needed.
type WorkerOptions struct {
	Topic string // may hold wildcards, as in NATS subjects
	Name  string // of the durable consumers: workers of one name share the work, and each trigger goes to one of them

	Concurrency int           // handlers at a time, up to 100,000; default 16
	AckWait     time.Duration // how long a worker may be silent before others get its triggers; default 30 s; the longest of a name counts
	Grace       time.Duration // the time that handlers have to end in when the worker is stopped; default 30 s

	// MaxAttempts is after how many deliveries a failing trigger is given up, including those that no handler began; default no bound.
	// Only a handler's error is a failure: a trigger whose handler ends the process comes again whatever this says, with a greater
	// Attempt each time.
	MaxAttempts int

	// RetryDelay is how long a trigger waits after its attempt-th delivery failed with err; default a
	// second, doubling up to a minute.
	RetryDelay func(attempt int, err error) time.Duration

	// Partitions, when over 0, is how many output streams there are. It is for workers that may not make consumers: somebody else has
	// made them (MakeConsumers), and the worker only pulls and acknowledges. If these were made with
	// an AckWait under 30 s, give the worker the same.
	Partitions int

	// StartNew leaves out the triggers that the output streams hold already, if the name is new.
	StartNew bool

	// OnError, if not nil, is called with every handler's error, and, with a nil trigger, with what
	// else goes wrong and the worker tries again by itself. Where the trigger is given up after that error,
	// errors.Is(err, ErrGivenUp). It may be called from several goroutines at once.
	OnError func(t *Trigger, err error)
}

const defaultAckWait = 30 * time.Second

func (o WorkerOptions) withDefaults() WorkerOptions {
	o.Concurrency = cmp.Or(o.Concurrency, 16)
	o.AckWait = cmp.Or(o.AckWait, defaultAckWait)
	o.Grace = cmp.Or(o.Grace, 30*time.Second)
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
	case o.Concurrency < 0 || o.Concurrency > mostHandlers:
		return errField(CodeInvalidField, "concurrency", "is %d; expected 1 to %d", o.Concurrency, mostHandlers)
	case o.AckWait < 0 || o.AckWait > 0 && o.AckWait < 100*time.Millisecond:
		return errField(CodeInvalidField, "ack_wait", "is %s; expected 100ms or more", o.AckWait)
	case o.MaxAttempts < 0:
		return errField(CodeInvalidField, "max_attempts", "is %d; expected 1 or more", o.MaxAttempts)
	case o.Partitions < 0 || o.Partitions > mostPartitions:
		return errField(CodeInvalidField, "partitions", "is %d; expected 1 to %d", o.Partitions, mostPartitions)
	case o.Grace < 0:
		return errField(CodeInvalidField, "grace", "is %s; expected 0 or more", o.Grace)
	}
	return nil
}

const (
	mostPartitions = 1024    // a service may have
	mostHandlers   = 100_000 // of a worker: each has its place in memory from the start
)

func notPrintable(c rune) bool { return c <= ' ' || c > '~' }

// Work handles the triggers of a topic until ctx ends, from the output streams of all partitions, with
// a durable consumer of the worker's name on each. When ctx ends it takes no more triggers, gives back those that it
// has not begun, lets running handlers finish within Grace, and returns nil, or an error if some
// had to be cancelled. It ends in the same way when the connection is closed, and then returns nats.ErrConnectionClosed.
// (Unless nats.MaxReconnects says otherwise, nats.go closes a connection that it could not restore for two minutes.) Do not stop a
// worker by draining the connection: the answers of running handlers would be lost, and their triggers come again.
//
// A worker takes ahead as many triggers as it begins within some hundredths of a second: of each partition at least
// Concurrency of them, at most 2,048 and no more than about 8 MiB. While they wait they are kept from being delivered
// again. The order of triggers is not kept. At most 10,000 triggers of a partition are unanswered at a time
// among all workers of the name, including those that wait for their RetryDelay; the others stay in the stream until one is answered.
//
// Errors: CodeInvalidTopic and CodeInvalidField for options and for a missing handler; CodeInvalidField when the name is in use
// with another topic (with Partitions only when a trigger of that topic comes); CodeNotFound when the service has no streams;
// context.DeadlineExceeded when the servers did not answer about a consumer for half a minute; nats.ErrPermissionViolation; the errors of
// jetstream's CreateConsumer.
func (c *Client) Work(ctx context.Context, o WorkerOptions, handle Handler) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if handle == nil {
		return errField(CodeInvalidField, "handler", "is missing")
	}
	w, err := c.worker(o)
	if err != nil {
		return err
	}
	w.do = handle
	if o.Partitions > 0 {
		return w.run(ctx, o.Partitions)
	}
	partitions, err := w.makeConsumers(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil // it was stopped before it began
	case err != nil:
		return err
	}
	return w.run(ctx, partitions)
}

// MakeConsumers makes the consumers for workers that may not do so themselves, and returns how many output streams there are, which
// these workers need as WorkerOptions.Partitions. Errors: those of Work.
func (c *Client) MakeConsumers(ctx context.Context, o WorkerOptions) (partitions int, err error) {
	if err := o.Validate(); err != nil {
		return 0, err
	}
	w, err := c.worker(o)
	if err != nil {
		return 0, err
	}
	return w.makeConsumers(ctx)
}

func (c *Client) worker(o WorkerOptions) (*worker, error) {
	js, err := c.jetStream()
	if err != nil {
		return nil, err
	}
	o = o.withDefaults()
	return &worker{Client: c, WorkerOptions: o, js: js, held: newDeliveries(o.Concurrency), from: make(map[int]beginning)}, nil
}

func (w *worker) makeConsumers(ctx context.Context) (partitions int, err error) {
	outputs, err := w.outputs(ctx, w.js)
	if err != nil {
		return 0, err
	}
	for p := range outputs {
		if err := w.insistConsumer(ctx, p); err != nil {
			return 0, err
		}
	}
	return len(outputs), nil
}

// How long a worker that begins waits for the consumer of one partition, and for one answer about it: a replicated
// consumer has no leader when another worker of the name has only just made it, and a question that no leader hears
// goes without an answer.
const (
	consumerTimeout = 30 * time.Second
	consumerAnswer  = 2 * time.Second
)

// insistConsumer is makeConsumer until it is answered, for consumerTimeout.
func (w *worker) insistConsumer(ctx context.Context, p int) error {
	whole, cancel := context.WithTimeout(ctx, consumerTimeout)
	defer cancel()
	consumer := w.names.OutStream(p) + "." + w.Name
	whole, forbidden := w.watchRights(whole, jetstream.DefaultAPIPrefix+"CONSUMER.INFO."+consumer,
		jetstream.DefaultAPIPrefix+"CONSUMER.CREATE."+consumer+"."+w.names.Trigger(p, w.Topic))
	for {
		asking, cancel := context.WithTimeout(whole, consumerAnswer)
		err := w.makeConsumer(asking, p)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || whole.Err() != nil {
			return forbidden(err)
		}
	}
}

type worker struct {
	*Client
	WorkerOptions
	js   jetstream.JetStream
	do   Handler
	held *deliveries
	stop context.CancelCauseFunc // of a worker that runs

	mu   sync.Mutex
	from map[int]beginning // of the consumers, by partition
}

// beginning is where a consumer begins in its stream.
type beginning struct {
	policy jetstream.DeliverPolicy
	seq    uint64
	at     *time.Time
}

// beginningOf is where one that is made in the place of this one begins, so that no trigger is left out in between.
func beginningOf(c *jetstream.ConsumerInfo) beginning {
	if c.Config.DeliverPolicy == jetstream.DeliverNewPolicy {
		return beginning{policy: jetstream.DeliverByStartTimePolicy, at: &c.Created}
	}
	return beginning{c.Config.DeliverPolicy, c.Config.OptStartSeq, c.Config.OptStartTime}
}

// run takes triggers until ctx ends, and then winds down: pullers first, then handlers, and at last the
// heartbeat that kept their triggers from going to others.
func (w *worker) run(ctx context.Context, partitions int) error {
	ctx, w.stop = context.WithCancelCause(ctx)
	defer w.stop(nil)
	handlerCtx, cancelHandlers := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelHandlers()
	var pullers, handlers, heart sync.WaitGroup
	stopHeart := make(chan struct{})
	heart.Go(func() { w.heartbeat(stopHeart) })
	for h := range w.Concurrency {
		handlers.Go(func() { w.handleAll(handlerCtx, h) })
	}
	pullFrom := func(p int) {
		for range 2 { // one pull on its way while the messages of the other are handed out
			pullers.Go(func() { w.pullAll(ctx, p) })
		}
	}
	for p := range partitions {
		pullFrom(p)
	}
	if w.Partitions == 0 {
		pullers.Go(func() { w.grow(ctx, partitions, pullFrom) })
	}

	<-ctx.Done()
	var cancelled atomic.Bool
	overtime := time.AfterFunc(w.Grace, func() {
		cancelled.Store(w.held.busy())
		cancelHandlers()
	})
	pullers.Wait()
	w.held.close()
	handlers.Wait()
	overtime.Stop()
	close(stopHeart)
	heart.Wait()
	if err := w.nc.FlushTimeout(pullWait); err != nil {
		return fmt.Errorf("carillon: the last acks may be lost: %w", err)
	}
	if cancelled.Load() {
		return fmt.Errorf("carillon: handlers did not end within %s and were cancelled", w.Grace)
	}
	if wrong, ok := errors.AsType[otherTopic](context.Cause(ctx)); ok {
		return wrong
	}
	return nil
}

// growEvery is how often a worker looks whether there are more partitions than it began with.
const growEvery = 10 * time.Second

// grow begins to pull from partitions that are new: a service that was restored may have more than before, on new streams under the
// same names.
func (w *worker) grow(ctx context.Context, next int, pullFrom func(p int)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(growEvery):
		}
		for {
			if _, err := w.js.Stream(ctx, w.names.OutStream(next)); err != nil {
				break // there is none, mostly; else the next look will tell
			}
			w.mu.Lock()
			w.from[next] = beginning{policy: jetstream.DeliverAllPolicy} // what it holds came after the worker
			w.mu.Unlock()
			if err := w.makeConsumer(ctx, next); err != nil {
				if ctx.Err() == nil {
					w.OnError(nil, err)
				}
				break
			}
			pullFrom(next)
			next++
		}
	}
}

// otherTopic ends a worker whose consumers were made for another topic than its own.
type otherTopic struct{ error }

func (e otherTopic) Unwrap() error { return e.error }

// codeMaxAckPending is JetStream's word that a consumer is to have more unanswered than the server, the account or the stream allows.
const codeMaxAckPending = 10121

// makeConsumer finds or makes the durable consumer of one partition. If one was there and is gone, the new one begins where that one
// began.
func (w *worker) makeConsumer(ctx context.Context, p int) error {
	w.mu.Lock() // the partition's two pullers may both miss it
	defer w.mu.Unlock()
	want := jetstream.ConsumerConfig{
		Durable:       w.Name,
		Description:   "Carillon: workers " + w.Name,
		FilterSubject: w.names.Trigger(p, w.Topic),
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       w.AckWait,
		MaxDeliver:    -1,
		MaxAckPending: 10000, // of all workers of the name together; the default of 1000 would hold a large group back
		MaxWaiting:    10000, // pulls, two a worker; the default of 512 would refuse those of a large group
		DeliverPolicy: jetstream.DeliverAllPolicy,
	}
	if w.StartNew {
		want.DeliverPolicy = jetstream.DeliverNewPolicy
	}
	if from, ok := w.from[p]; ok {
		want.DeliverPolicy, want.OptStartSeq, want.OptStartTime = from.policy, from.seq, from.at
	}
	stream := w.names.OutStream(p)
	// ask has JetStream make or change the consumer; where so many unanswered are not allowed, with as many as it gives by itself.
	ask := func(do func(context.Context, string, jetstream.ConsumerConfig) (jetstream.Consumer, error)) (jetstream.Consumer, error) {
		consumer, err := do(ctx, stream, want)
		if refused, ok := errors.AsType[*jetstream.APIError](err); ok && refused.ErrorCode == codeMaxAckPending {
			want.MaxAckPending = 0
			consumer, err = do(ctx, stream, want)
		}
		return consumer, err
	}
	made := false
	consumer, err := w.js.Consumer(ctx, stream, w.Name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		consumer, err = ask(w.js.CreateConsumer)
		made = err == nil
		if errors.Is(err, jetstream.ErrConsumerExists) { // another worker of the name was first, with options of its own
			consumer, err = w.js.Consumer(ctx, stream, w.Name)
		}
	}
	if err == nil && !made {
		have := consumer.CachedInfo().Config
		if have.FilterSubject != want.FilterSubject {
			return errField(CodeInvalidField, "name", "the workers %s on %s take %s, not %s", w.Name, stream, have.FilterSubject, want.FilterSubject)
		}
		want.DeliverPolicy, want.OptStartSeq, want.OptStartTime = have.DeliverPolicy, have.OptStartSeq, have.OptStartTime
		want.MaxWaiting = have.MaxWaiting              // it cannot be changed
		want.AckWait = max(want.AckWait, have.AckWait) // others may give signs of life by it
		consumer, err = ask(w.js.CreateOrUpdateConsumer)
	}
	if err != nil {
		return fmt.Errorf("carillon: consumer %s on %s: %w", w.Name, stream, err)
	}
	w.from[p] = beginningOf(consumer.CachedInfo())
	return nil
}

// handleAll does what comes to one handler, one trigger after the other.
func (w *worker) handleAll(ctx context.Context, h int) {
	for {
		d, ok := w.held.begin(h)
		if !ok {
			return
		}
		w.handle(ctx, h, d)
	}
}

func (w *worker) handle(ctx context.Context, h int, d delivery) {
	t, err := w.trigger(d)
	if err != nil {
		if wrong, ok := errors.AsType[otherTopic](err); ok {
			w.refuse(h, d, nil, nak) // it is another's
			w.stop(wrong)
			return
		}
		w.OnError(nil, err)
		w.refuse(h, d, nil, termination(err))
		return
	}
	err = w.do(ctx, t)
	if err == nil {
		w.answer(d.msg, t, ack) // a heartbeat after it is one of a trigger that the server knows no longer
		return
	}
	_, permanent := errors.AsType[permanentError](err)
	if permanent || w.MaxAttempts > 0 && t.Attempt >= w.MaxAttempts {
		w.OnError(t, fmt.Errorf("%w, %w", err, ErrGivenUp))
		w.refuse(h, d, t, termination(err))
		return
	}
	w.OnError(t, err)
	w.refuse(h, d, t, delayedNak(w.RetryDelay(t.Attempt, err)))
}

func (w *worker) trigger(d delivery) (*Trigger, error) {
	t := &Trigger{Received: d.received}
	if err := w.names.parseTrigger(t, d.msg.Subject, d.msg.Header, d.msg.Data); err != nil {
		return nil, fmt.Errorf("carillon: no trigger on %s: %w", d.msg.Subject, err)
	}
	if w.Partitions > 0 && !MatchTopic(w.Topic, t.Topic) { // with consumers that it has made itself that was found before
		return nil, otherTopic{errField(CodeInvalidField, "name", "the workers %s on %s take %s, too, not only %s",
			w.Name, w.names.OutStream(t.Partition), t.Topic, w.Topic)}
	}
	var ok bool
	if t.Attempt, t.Stored, ok = splitReply(d.msg.Reply); !ok {
		return nil, fmt.Errorf("carillon: no trigger on %s: its reply subject is %s", d.msg.Subject, quote(d.msg.Reply))
	}
	return t, nil
}

// splitReply reads from the subject for acks how often a message was delivered and when the stream took it:
//
//	$JS.ACK.<stream>.<consumer>.<delivered>.<stream sequence>.<consumer sequence>.<unix ns>.<pending>
//	$JS.ACK.<domain>.<account>.<stream>.<consumer>.<delivered>. … .<pending>[.<any>]
//
// Metadata of a message reads all of it into a struct of its own.
func splitReply(reply string) (delivered int, stored time.Time, ok bool) {
	const short, long = 9, 11 // tokens
	tokens := strings.Count(reply, ".") + 1
	if !strings.HasPrefix(reply, "$JS.ACK.") || tokens < short || tokens > short && tokens < long {
		return 0, time.Time{}, false
	}
	before := 4
	if tokens >= long {
		before += 2
	}
	for range before {
		_, reply, _ = strings.Cut(reply, ".")
	}
	number, reply, _ := strings.Cut(reply, ".")
	for range 2 { // sequences
		_, reply, _ = strings.Cut(reply, ".")
	}
	at, _, _ := strings.Cut(reply, ".")
	delivered, err := strconv.Atoi(number)
	if err != nil {
		return 0, time.Time{}, false
	}
	ns, err := strconv.ParseInt(at, 10, 64)
	return delivered, time.Unix(0, ns), err == nil
}

// The answers to a delivery, and the heartbeat, as JetStream takes them.
var (
	ack      = []byte("+ACK")
	nak      = []byte("-NAK")
	progress = []byte("+WPI")
)

func delayedNak(d time.Duration) []byte {
	if d <= 0 {
		return nak
	}
	return fmt.Appendf(nil, `%s {"delay": %d}`, nak, d.Nanoseconds())
}

// termination gives a delivery up. The reason ends up in one line of the protocol and in an advisory.
func termination(reason error) []byte {
	return fmt.Appendf(nil, "+TERM %s", strings.Join(strings.Fields(cut(reason.Error())), " "))
}

// refuse answers that a delivery was not dealt with. It lets go of it first: a heartbeat after a delayed nak
// would undo the delay.
func (w *worker) refuse(h int, d delivery, t *Trigger, answer []byte) {
	w.held.let(h)
	w.answer(d.msg, t, answer)
}

// giveBack answers deliveries that were not begun.
func (w *worker) giveBack(all []delivery, answer []byte) {
	for _, d := range all {
		w.answer(d.msg, nil, answer)
	}
}

// beatOf is how often a worker with an AckWait gives signs of life. The AckWait of consumers that others made is not known, but is
// mostly the default; so it is never less often than that takes.
func beatOf(ackWait time.Duration) time.Duration { return min(ackWait, defaultAckWait) / 3 }

// answer sends the outcome of a delivery. Where that fails, the trigger comes again after AckWait.
func (w *worker) answer(m *nats.Msg, t *Trigger, answer []byte) {
	if err := w.nc.Publish(m.Reply, answer); err != nil {
		w.OnError(t, fmt.Errorf("carillon: answering: %w", err))
	}
}

// heartbeat tells the server, three times an AckWait, that what is held is still being worked on.
func (w *worker) heartbeat(stop <-chan struct{}) {
	beat := time.NewTicker(beatOf(w.AckWait))
	defer beat.Stop()
	for kept := false; ; { // a beat that was sent while the connection is down is kept by it; more would take the room of acks
		select {
		case <-stop:
			return
		case <-beat.C:
		}
		down := w.nc.IsReconnecting()
		if down && kept {
			continue
		}
		kept = down
		err := w.held.each(func(m *nats.Msg) error { return w.nc.Publish(m.Reply, progress) })
		if err != nil {
			w.OnError(nil, fmt.Errorf("carillon: heartbeat: %w", err))
		}
		if errors.Is(err, nats.ErrConnectionClosed) { // what waits for a handler goes to other workers
			w.stop(nil)
		}
	}
}
