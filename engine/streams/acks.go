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

// acks publishes and routes the answers. All of them come back on one wildcard subscription: the last
// token of the reply subject is the number of the publish in base 36, the time when it went out. An answer,
// the timeout, a broken connection and close race for each awaited publish; whoever takes it out of the map
// calls it back.
type acks struct {
	nc      *nats.Conn
	prefix  string // of the reply subjects, with the dot
	timeout time.Duration
	began   time.Time
	sub     *nats.Subscription
	status  chan nats.Status
	done    sync.WaitGroup

	mu      sync.Mutex
	last    uint64 // µs since began, unless there are more than one in a µs
	waiting map[uint64]func(uint64, error)
	// Numbers in the order of publishing. Those that were answered stay until they are looked at, which is every
	// ackLook while there are any.
	sent   [kinds][]uint64
	look   *time.Timer
	closed bool
}

const (
	ackLook   = 50 * time.Millisecond  // between two looks which answers have not come in time
	lateAfter = 250 * time.Millisecond // a busy machine's stalls take less, mostly; who is told asks, and goes on
)

// The kinds of publishes that are awaited.
const (
	once    = iota // it is waited for as long as allowed
	patient        // the same, and its sender is told that it is late: ErrLate
	told           // a patient one whose sender was told
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
	// Limits would drop answers, which are small and as many as there are publishes awaiting them.
	if err := a.sub.SetPendingLimits(-1, -1); err != nil {
		return nil, fmt.Errorf("streams: subscribe to acks: %w", err)
	}
	// A frame on the wire may overtake what the library has not sent yet.
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

// publish sends m. With onAck it asks for an answer and calls onAck once, from another goroutine,
// unless publish itself returns an error.
func (a *acks) publish(m *nats.Msg, kind int, onAck func(uint64, error)) error {
	return a.publishBy(nil, m, kind, onAck)
}

// publishBy is publish by a wire, unless that is nil.
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
	a.last = max(a.last+1, uint64(a.passed().Microseconds()))
	a.waiting[a.last] = onAck
	if !a.awaits() {
		a.look.Reset(ackLook)
	}
	a.sent[kind] = append(a.sent[kind], a.last)
	return a.last, nil
}

// awaits tells whether there is anything to look at; its caller holds mu.
func (a *acks) awaits() bool {
	return slices.ContainsFunc(a.sent[:], func(sent []uint64) bool { return len(sent) > 0 })
}

// passed is the time since the first number.
func (a *acks) passed() time.Duration { return time.Since(a.began) }

// patience is how long an answer is waited for, or for how long nothing is said of it; its caller holds mu.
func (a *acks) patience(kind int) time.Duration {
	if kind == patient {
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

// noResponders recognizes the server's word that nobody listens on a subject.
func noResponders(m *nats.Msg) bool {
	return len(m.Data) == 0 && m.Header.Get("Status") == "503"
}

func (a *acks) expire() {
	var late, over []func(uint64, error)
	a.mu.Lock()
	for kind := range a.sent {
		sent, since := a.sent[kind], a.passed()-a.patience(kind)
		for ; len(sent) > 0; sent = sent[1:] {
			id := sent[0]
			f, awaited := a.waiting[id]
			if awaited && since < time.Duration(id)*time.Microsecond {
				break
			}
			switch {
			case !awaited:
			case kind == patient:
				a.sent[told] = append(a.sent[told], id)
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
