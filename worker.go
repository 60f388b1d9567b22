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

// Handler does the work of one trigger. A nil error acknowledges the trigger, an error made by Permanent gives it up, and after any
// other error the trigger is delivered again after the worker's RetryDelay.
//
// The context ends only when the worker was stopped and its Grace is over. However long a handler takes, its trigger goes to no other
// worker while this one lives; so give work that may hang a timeout of your own. The same trigger may be delivered more than once, for
// example after a worker crashed; it then has the same Trigger.ID. A panic ends the program, as in any goroutine.
type Handler func(ctx context.Context, t *Trigger) error

// Permanent marks an error that no retry can cure: the trigger is given up, as after MaxAttempts. Permanent(nil) is nil.
//
// A trigger that is given up is delivered to no worker of the name any more. It stays in its output stream, and JetStream publishes an
// advisory with the error, which a stream can keep; docs/protocol.md has the subject.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanentError{err}
}

// ErrGivenUp is wrapped, beside the handler's own error, by the error that OnError gets for a trigger that is given up.
var ErrGivenUp = errors.New("given up")

type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// WorkerOptions says which triggers a worker takes and how. Topic and Name are required.
type WorkerOptions struct {
	Topic string // may have wildcards, as in NATS subjects
	Name  string // of the durable consumers: workers of one name share the work, and each trigger goes to one of them

	Concurrency int           // handlers at a time, up to 100,000; default 16
	AckWait     time.Duration // how long a worker may be silent before others get its triggers; default 30 s; the longest of a name counts
	Grace       time.Duration // how long handlers may take to end when the worker is stopped; default 30 s

	// MaxAttempts is the number of deliveries after which a failing trigger is given up, including deliveries that no handler began
	// or that the end of a worker cut off; default no bound. Only a handler's error is a failure: a trigger whose handler ends the
	// process, or is cancelled after Grace, is delivered again whatever MaxAttempts says, with a greater Attempt each time.
	MaxAttempts int

	// RetryDelay is how long a trigger waits after its attempt-th delivery failed with err. Default: a
	// second, doubling up to a minute.
	RetryDelay func(attempt int, err error) time.Duration

	// Partitions, if over 0, is the number of output streams. It is for workers that are not allowed to make consumers: these have been
	// made beforehand (Client.MakeConsumers), and the worker only pulls and acknowledges. If they were made with an AckWait below 30 s,
	// give the worker the same AckWait.
	Partitions int

	// StartNew leaves out the triggers that the output streams hold already, if the name is new.
	StartNew bool

	// OnError, if not nil, is called with every handler's error, and with a nil trigger for any other problem, which the worker
	// deals with itself. errors.Is(err, ErrGivenUp) says that the trigger is given up after this error. OnError may be called from
	// several goroutines at once.
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
	mostPartitions = 1024    // of a service
	mostHandlers   = 100_000 // of a worker: each takes memory from the start
)

func notPrintable(c rune) bool { return c <= ' ' || c > '~' }

// Work handles the triggers of a topic until ctx ends. It takes them from the output streams of all partitions, with a durable consumer
// of the worker's name on each.
//
// When ctx ends, Work takes no more triggers, gives back those that no handler has begun, and lets running handlers finish within Grace.
// Then it returns nil, or an error if some handlers had to be cancelled; their triggers are given back, too, unless the handler's error is
// nil or Permanent. It also returns an error if the server does not answer then: the last acks may be lost. It ends in the same way when
// the connection is closed, and then returns nats.ErrConnectionClosed. (Unless nats.MaxReconnects says otherwise, nats.go closes a
// connection that it could not restore for two minutes.) Do not stop a worker by draining the connection: the acks of running handlers
// would be lost, and their triggers delivered again.
//
// A worker fetches triggers ahead: of each partition as many as it begins within some hundredths of a second, but at least Concurrency,
// and at most 2,048 (or Concurrency, if that is more) or about 8 MiB. While they wait for a handler they are not delivered again. The
// order of triggers is not kept. Of each partition at most 10,000 triggers are unanswered at a time among all workers of the name,
// including those that wait for their RetryDelay; the others stay in the stream until one of these is answered.
//
// Errors: CodeInvalidTopic and CodeInvalidField for the options or a missing handler; CodeInvalidField when the name is in use with
// another topic (with Partitions set, or where somebody changes the consumers later, when a trigger of that topic comes); CodeNotFound when
// the service has no streams; context.DeadlineExceeded when the servers did not answer about a consumer for half a minute;
// nats.ErrPermissionViolation; the errors of jetstream's CreateConsumer.
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
		return nil // the worker was stopped before it began
	case err != nil:
		return err
	}
	return w.run(ctx, partitions)
}

// MakeConsumers makes the consumers for workers that are not allowed to make them. It returns the number of output streams, which those
// workers need as WorkerOptions.Partitions. Errors: those of Work.
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
	return &worker{Client: c, WorkerOptions: o, js: js, held: newDeliveries(o.Concurrency), consumers: make(map[int]*consumer)}, nil
}

func (w *worker) makeConsumers(ctx context.Context) (partitions int, err error) {
	outputs, err := w.outputs(ctx, w.js)
	if err != nil {
		return 0, err
	}
	for p := range outputs {
		if err := w.retryMakeConsumer(ctx, p); err != nil {
			return 0, err
		}
	}
	return len(outputs), nil
}

// How long a worker that begins waits for the consumer of one partition, and for the answers about it in its first attempt. A
// replicated consumer that another worker of the name has only just made has no leader yet, and a request that no leader hears gets no
// answer.
const (
	consumerTimeout = 30 * time.Second
	consumerAnswer  = 2 * time.Second
)

// retryMakeConsumer calls makeConsumer until that gets its answers, for at most consumerTimeout. Each attempt may take twice as long as the
// one before: on a slow server the few answers that are needed may take longer than consumerAnswer every time.
func (w *worker) retryMakeConsumer(ctx context.Context, p int) error {
	whole, cancel := context.WithTimeout(ctx, consumerTimeout)
	defer cancel()
	consumer := w.names.OutStream(p) + "." + w.Name
	whole, forbidden := w.watchRights(whole, jetstream.DefaultAPIPrefix+"CONSUMER.INFO."+consumer,
		jetstream.DefaultAPIPrefix+"CONSUMER.CREATE."+consumer+"."+w.names.Trigger(p, w.Topic))
	for answer := consumerAnswer; ; answer *= 2 {
		asking, cancel := context.WithTimeout(whole, answer)
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
	stop context.CancelCauseFunc // ends run

	consumersMu sync.Mutex
	consumers   map[int]*consumer // by partition
}

// consumer is what a worker knows of the consumer of one partition.
type consumer struct {
	mu   sync.Mutex // held while the consumer is looked for and made: the partition's two pullers may both find it missing
	from *beginning // nil: not known

	ackWait time.Duration // as it was found or made; 0: not known
}

func (w *worker) consumer(p int) *consumer {
	w.consumersMu.Lock()
	defer w.consumersMu.Unlock()
	c := w.consumers[p]
	if c == nil {
		c = &consumer{}
		w.consumers[p] = c
	}
	return c
}

// beginning is the place in its stream at which a consumer begins.
type beginning struct {
	policy jetstream.DeliverPolicy
	seq    uint64
	at     *time.Time
	made   time.Time // of the consumer; zero: it does not matter
}

// beginningOf is where a consumer that replaces c must begin, so that no trigger is left out in between.
func beginningOf(c *jetstream.ConsumerInfo) beginning {
	switch c.Config.DeliverPolicy {
	case jetstream.DeliverNewPolicy:
		return beginning{policy: jetstream.DeliverByStartTimePolicy, at: &c.Created, made: c.Created}
	case jetstream.DeliverLastPolicy, jetstream.DeliverLastPerSubjectPolicy: // what is last then may be another message
		return beginning{policy: jetstream.DeliverByStartSequencePolicy, seq: c.AckFloor.Stream + 1, made: c.Created}
	}
	return beginning{c.Config.DeliverPolicy, c.Config.OptStartSeq, c.Config.OptStartTime, c.Created}
}

// in returns where in a stream the consumer must begin: the sequences of one that was made since are others.
func (b beginning) in(s *jetstream.StreamInfo) beginning {
	if b.policy == jetstream.DeliverByStartSequencePolicy && s.Created.After(b.made) {
		return beginning{policy: jetstream.DeliverAllPolicy}
	}
	return b
}

// run takes triggers until ctx ends, and then winds down: first the pullers, then the handlers, and at last the
// heartbeat, which keeps the handlers' triggers from going to other workers.
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
		for range 2 { // one pull is on its way while the messages of the other are handed out
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

// growEvery is how often a worker looks whether there are new partitions.
const growEvery = 10 * time.Second

// grow begins to pull from partitions that are new: a service that was restored may have more partitions than before, on new streams
// under the same names.
func (w *worker) grow(ctx context.Context, next int, pullFrom func(p int)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(growEvery):
		}
		for {
			if _, err := w.js.Stream(ctx, w.names.OutStream(next)); err != nil {
				break // most often there is no such stream; after any other error, look again next time
			}
			w.consumer(next).from = &beginning{policy: jetstream.DeliverAllPolicy} // all that it holds came after the worker began
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

// codeMaxAckPending is JetStream's error code for a MaxAckPending that is greater than the server, the account or the stream allows.
const codeMaxAckPending = 10121

// makeConsumer finds or makes the durable consumer of one partition. If this worker knows a former consumer that is gone, the new one
// begins where that one began.
func (w *worker) makeConsumer(ctx context.Context, p int) error {
	known := w.consumer(p)
	known.mu.Lock()
	defer known.mu.Unlock()
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
	stream := w.names.OutStream(p)
	// ask makes or changes the consumer. If so great a MaxAckPending is not allowed, it leaves the choice to JetStream.
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
		if known.from != nil {
			s, err := w.js.Stream(ctx, stream)
			if err != nil {
				return fmt.Errorf("carillon: stream %s: %w", stream, err)
			}
			from := known.from.in(s.CachedInfo())
			want.DeliverPolicy, want.OptStartSeq, want.OptStartTime = from.policy, from.seq, from.at
		}
		want.AckWait = max(want.AckWait, known.ackWait)
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
		want.AckWait = max(want.AckWait, have.AckWait) // heartbeats of other workers may be timed by it
		consumer, err = ask(w.js.CreateOrUpdateConsumer)
	}
	if err != nil {
		return fmt.Errorf("carillon: consumer %s on %s: %w", w.Name, stream, err)
	}
	from := beginningOf(consumer.CachedInfo())
	known.from, known.ackWait = &from, consumer.CachedInfo().Config.AckWait
	return nil
}

// handleAll is one handler: it handles one delivery after the other.
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
			w.refuse(h, d, nil, nak) // it is for the workers of the other topic
			w.stop(wrong)
			return
		}
		w.OnError(nil, err)
		w.refuse(h, d, nil, termination(err))
		return
	}
	err = w.do(ctx, t)
	if err == nil {
		w.answer(d.msg, t, ack) // a heartbeat that follows does no harm: the server knows the delivery no longer
		return
	}
	_, permanent := errors.AsType[permanentError](err)
	switch cutOff, last := ctx.Err() != nil, w.MaxAttempts > 0 && t.Attempt >= w.MaxAttempts; {
	case permanent, last && !cutOff:
		w.OnError(t, fmt.Errorf("%w, %w", err, ErrGivenUp))
		w.refuse(h, d, t, termination(err))
	case cutOff: // by the worker's end, which is no failure
		w.OnError(t, err)
		w.refuse(h, d, t, nak)
	default:
		w.OnError(t, err)
		w.refuse(h, d, t, delayedNak(w.RetryDelay(t.Attempt, err)))
	}
}

func (w *worker) trigger(d delivery) (*Trigger, error) {
	t := &Trigger{Received: d.received}
	if err := w.names.parseTrigger(t, d.msg.Subject, d.msg.Header, d.msg.Data); err != nil {
		return nil, fmt.Errorf("carillon: no trigger on %s: %w", d.msg.Subject, err)
	}
	if !MatchTopic(w.Topic, t.Topic) { // somebody else made the consumer, or changed it since
		return nil, otherTopic{errField(CodeInvalidField, "name", "the workers %s on %s take %s, not only %s",
			w.Name, w.names.OutStream(t.Partition), t.Topic, w.Topic)}
	}
	var ok bool
	if t.Attempt, t.Stored, ok = splitReply(d.msg.Reply); !ok {
		return nil, fmt.Errorf("carillon: no trigger on %s: its reply subject is %s", d.msg.Subject, quote(d.msg.Reply))
	}
	return t, nil
}

// splitReply reads from a message's reply subject how often the message was delivered and when the stream stored it:
//
//	$JS.ACK.<stream>.<consumer>.<delivered>.<stream sequence>.<consumer sequence>.<unix ns>.<pending>
//	$JS.ACK.<domain>.<account>.<stream>.<consumer>.<delivered>. … .<pending>[.<any>]
//
// jetstream's Metadata would read all of the subject, into a struct of its own.
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

// The answers to a delivery, and the heartbeat, in JetStream's protocol.
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

// termination is the answer that gives a trigger up. The reason must fit on one line of the protocol; JetStream puts it into an advisory.
func termination(reason error) []byte {
	return fmt.Appendf(nil, "+TERM %s", strings.Join(strings.Fields(cut(reason.Error())), " "))
}

// refuse answers a delivery that was not dealt with. It removes the delivery from held first: a heartbeat after a
// delayed nak would undo the delay.
func (w *worker) refuse(h int, d delivery, t *Trigger, answer []byte) {
	w.held.remove(h)
	w.answer(d.msg, t, answer)
}

// answerUnbegun answers deliveries that no handler has begun.
func (w *worker) answerUnbegun(all []delivery, answer []byte) {
	for _, d := range all {
		w.answer(d.msg, nil, answer)
	}
}

// heartbeatInterval is the time between the heartbeats of a worker with an AckWait. The AckWait of consumers that somebody else has made is
// not known, but mostly the default; so it is never longer than the default requires.
func heartbeatInterval(ackWait time.Duration) time.Duration { return min(ackWait, defaultAckWait) / 3 }

// answer sends the answer to a delivery. If that fails, the trigger is delivered again after AckWait.
func (w *worker) answer(m *nats.Msg, t *Trigger, answer []byte) {
	if err := w.nc.Publish(m.Reply, answer); err != nil {
		w.OnError(t, fmt.Errorf("carillon: answering: %w", err))
	}
}

// heartbeat tells the server, three times in an AckWait, that the deliveries held are still being worked on.
func (w *worker) heartbeat(stop <-chan struct{}) {
	beat := time.NewTicker(heartbeatInterval(w.AckWait))
	defer beat.Stop()
	for kept := false; ; { // a connection that is down keeps a beat; more beats would take up the room for acks
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
		if errors.Is(err, nats.ErrConnectionClosed) { // what waits for a handler will go to other workers
			w.stop(nil)
		}
	}
}
