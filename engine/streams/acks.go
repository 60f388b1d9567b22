package streams

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// acks publishes messages and routes the answers. All answers come back on one wildcard subscription: the last
// token of the reply subject is the number of the publish in base 36, which is also the time when it was sent. An answer,
// the timeout, a broken connection and close race for each awaited publish; the one that takes it out of waiting
// calls its callback. ErrLate is reported beside that.
type acks struct {
	nc      *nats.Conn
	prefix  string // of the reply subjects, with the dot
	timeout time.Duration
	began   time.Time
	sub     *nats.Subscription
	status  chan nats.Status
	done    sync.WaitGroup

	mu      sync.Mutex
	last    uint64 // the last number: µs since began, or one more than the number before
	waiting map[uint64]func(uint64, error)
	// Numbers in the order of publishing. Those that were answered stay until the next look (expire), which is every
	// ackLook while there are any.
	sent   [kinds][]uint64
	look   *time.Timer
	closed bool
}

const (
	ackLook   = 50 * time.Millisecond  // between two looks for answers that have not come in time
	lateAfter = 250 * time.Millisecond // longer than most stalls of a busy machine; who gets ErrLate asks the stream, and goes on
)

// The kinds of awaited publishes.
const (
	awaitPlain      = iota // the answer is awaited until the timeout
	awaitReportLate        // the same, but after lateAfter its sender gets ErrLate
	awaitReported          // an awaitReportLate whose sender got ErrLate
	kinds
)

func newAcks(nc *nats.Conn, timeout time.Duration) (*acks, error) {
	a := &acks{
		nc:      nc,
		prefix:  nc.NewInbox() + ".",
		timeout: timeout,
		began:   time.Now(),
		waiting: make(map[uint64]func(uint64, error)),
	}
	a.look = time.AfterFunc(ackLook, a.expire)
	var err error
	if a.sub, err = nc.Subscribe(a.prefix+"*", a.receive); err != nil {
		a.look.Stop()
		return nil, fmt.Errorf("streams: subscribe to acks: %w", err)
	}
	// No limits, which would drop answers: answers are small, and no more than awaited publishes.
	if err := a.sub.SetPendingLimits(-1, -1); err != nil {
		return nil, fmt.Errorf("streams: subscribe to acks: %w", err)
	}
	// A frame on the wire may overtake the subscription, which the library may not have sent yet.
	if err := nc.Flush(); err != nil {
		return nil, fmt.Errorf("streams: subscribe to acks: %w", err)
	}
	a.status = nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	a.done.Go(func() {
		for range a.status {
			a.failAll(ErrDisconnected)
		}
	})
	return a, nil
}

// publish sends m. With onAck it asks for an answer and calls onAck once, from another goroutine, unless publish itself returns an
// error. With awaitReportLate it calls onAck twice if the answer is late: first with ErrLate.
func (a *acks) publish(m *nats.Msg, kind int, onAck func(uint64, error)) error {
	return a.publishBy(nil, m, kind, onAck)
}

// publishBy is publish on a wire, if w is not nil.
func (a *acks) publishBy(w *Wire, m *nats.Msg, kind int, onAck func(uint64, error)) error {
	if onAck == nil {
		return sendError(a.send(w, m))
	}
	id, err := a.await(kind, onAck)
	if err != nil {
		return err
	}
	m.Reply = string(a.appendReply(make([]byte, 0, len(a.prefix)+13), id))
	if err := sendError(a.send(w, m)); err != nil && a.take(id) != nil {
		return err
	}
	return nil
}

func (a *acks) send(w *Wire, m *nats.Msg) error {
	if w != nil {
		return w.Publish(a.nc, m)
	}
	return a.nc.PublishMsg(m)
}

// await registers a publish whose answer is awaited.
func (a *acks) await(kind int, onAck func(uint64, error)) (id uint64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return 0, ErrClosed
	}
	a.last = max(a.last+1, uint64(a.elapsed().Microseconds()))
	a.waiting[a.last] = onAck
	if !a.awaits() {
		a.look.Reset(ackLook)
	}
	a.sent[kind] = append(a.sent[kind], a.last)
	return a.last, nil
}

// awaits tells whether there is anything to look at. The caller holds mu.
func (a *acks) awaits() bool {
	return slices.ContainsFunc(a.sent[:], func(sent []uint64) bool { return len(sent) > 0 })
}

// elapsed is the time since began, which numbers count from.
func (a *acks) elapsed() time.Duration { return time.Since(a.began) }

// answerTimeout is how long an answer may take before its sender gets ErrTimeout, or ErrLate. The caller holds mu.
func (a *acks) answerTimeout(kind int) time.Duration {
	if kind == awaitReportLate {
		return min(lateAfter, a.timeout)
	}
	return a.timeout
}

// appendReply appends the subject to which the answer goes.
func (a *acks) appendReply(dst []byte, id uint64) []byte {
	return strconv.AppendUint(append(dst, a.prefix...), id, 36)
}

func sendError(err error) error {
	switch {
	case err == nil, errors.Is(err, ErrDisconnected):
		return err
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionClosed),
		errors.Is(err, nats.ErrConnectionReconnecting), errors.Is(err, nats.ErrConnectionDraining),
		errors.Is(err, nats.ErrDisconnected):
		return fmt.Errorf("%w: %w", ErrDisconnected, err)
	}
	return fmt.Errorf("streams: publish: %w", err)
}

func (a *acks) take(id uint64) func(uint64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.waiting[id]
	delete(a.waiting, id)
	return f
}

func (a *acks) receive(m *nats.Msg) {
	id, err := strconv.ParseUint(m.Subject[len(a.prefix):], 36, 64)
	if err != nil {
		return // not a reply of ours
	}
	f := a.take(id)
	if f == nil {
		return // timed out before
	}
	if noResponders(m) {
		f(0, ErrNoStream)
		return
	}
	f(parseAck(m.Data))
}

// noResponders recognizes the server's message that nobody listens on a subject.
func noResponders(m *nats.Msg) bool {
	return len(m.Data) == 0 && m.Header.Get("Status") == "503"
}

func (a *acks) expire() {
	var late, over []func(uint64, error)
	a.mu.Lock()
	for kind := range a.sent {
		sent, since := a.sent[kind], a.elapsed()-a.answerTimeout(kind)
		for ; len(sent) > 0; sent = sent[1:] {
			id := sent[0]
			f, awaited := a.waiting[id]
			if awaited && since < time.Duration(id)*time.Microsecond {
				break
			}
			switch {
			case !awaited:
			case kind == awaitReportLate:
				a.sent[awaitReported] = append(a.sent[awaitReported], id)
				late = append(late, f)
			default:
				delete(a.waiting, id)
				over = append(over, f)
			}
		}
		a.sent[kind] = sent
	}
	if a.awaits() {
		a.look.Reset(ackLook)
	}
	a.mu.Unlock()
	for _, f := range late {
		f(0, ErrLate)
	}
	for _, f := range over {
		f(0, ErrTimeout)
	}
}

func (a *acks) failAll(err error) {
	a.mu.Lock()
	waiting := a.waiting
	a.waiting = make(map[uint64]func(uint64, error))
	a.mu.Unlock()
	for _, f := range waiting {
		f(0, err)
	}
}

func (a *acks) close() {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return
	}
	a.closed = true
	a.mu.Unlock()
	a.look.Stop()
	_ = a.sub.Unsubscribe() // fails only on a connection that is closed, and then nothing is left to do
	a.nc.RemoveStatusListener(a.status)
	a.done.Wait()
	a.failAll(ErrClosed)
}
