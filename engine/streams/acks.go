package streams

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// acks publishes and routes the answers. All of them come back on one wildcard subscription: the last
// token of the reply subject is the number of the publish in base 36. An answer, the timeout, a broken
// connection and close race for each awaited publish; whoever takes it out of the map calls it back.
type acks struct {
	nc      *nats.Conn
	prefix  string // of the reply subjects, with the dot
	timeout time.Duration
	sub     *nats.Subscription
	status  chan nats.Status
	done    sync.WaitGroup

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]func(uint64, error)
	// Deadlines in the order of publishing, which is their order in time as the timeout is constant.
	// Entries that were answered stay until their time; timer is set for the first.
	deadlines []deadline
	timer     *time.Timer
	closed    bool
}

type deadline struct {
	at time.Time
	id uint64
}

func newAcks(nc *nats.Conn, timeout time.Duration) (*acks, error) {
	a := &acks{
		nc:      nc,
		prefix:  nc.NewInbox() + ".",
		timeout: timeout,
		waiting: make(map[uint64]func(uint64, error)),
	}
	a.timer = time.AfterFunc(timeout, a.expire)
	a.timer.Stop()
	var err error
	if a.sub, err = nc.Subscribe(a.prefix+"*", a.receive); err != nil {
		a.timer.Stop()
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
func (a *acks) publish(m *nats.Msg, onAck func(uint64, error)) error {
	if onAck == nil {
		return sendError(a.nc.PublishMsg(m))
	}
	id, err := a.await(onAck)
	if err != nil {
		return err
	}
	m.Reply = string(a.appendReply(make([]byte, 0, len(a.prefix)+13), id))
	if err := sendError(a.nc.PublishMsg(m)); err != nil && a.take(id) != nil {
		return err
	}
	return nil
}

// await registers a publish whose answer is awaited.
func (a *acks) await(onAck func(uint64, error)) (id uint64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return 0, ErrClosed
	}
	a.next++
	id = a.next
	a.waiting[id] = onAck
	a.deadlines = append(a.deadlines, deadline{time.Now().Add(a.timeout), id})
	if len(a.deadlines) == 1 {
		a.timer.Reset(a.timeout)
	}
	return id, nil
}

// appendReply appends the subject to which the answer goes.
func (a *acks) appendReply(dst []byte, id uint64) []byte {
	return strconv.AppendUint(append(dst, a.prefix...), id, 36)
}

func sendError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionClosed),
		errors.Is(err, nats.ErrConnectionReconnecting), errors.Is(err, nats.ErrConnectionDraining):
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
	var late []func(uint64, error)
	a.mu.Lock()
	now := time.Now()
	for len(a.deadlines) > 0 {
		d := a.deadlines[0]
		f, awaited := a.waiting[d.id]
		if awaited && d.at.After(now) {
			a.timer.Reset(d.at.Sub(now))
			break
		}
		a.deadlines = a.deadlines[1:]
		if awaited {
			delete(a.waiting, d.id)
			late = append(late, f)
		}
	}
	a.mu.Unlock()
	for _, f := range late {
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
	a.timer.Stop()
	_ = a.sub.Unsubscribe() // fails only on a connection that is closed, and then nothing is left to do
	a.nc.RemoveStatusListener(a.status)
	a.done.Wait()
	a.failAll(ErrClosed)
}
