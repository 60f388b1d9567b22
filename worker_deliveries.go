package carillon

import (
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// deliveries are what a worker has received and not yet answered: the triggers that wait for a handler, and those
// that handlers have begun. One lock is taken once for each trigger and once for each batch of them, which is
// what a hand-over costs; a channel would wake a handler for each.
type deliveries struct {
	mu      sync.Mutex
	more    sync.Cond
	waiting []delivery // in the order they came, from next on
	next    int
	begun   []delivery // by handler; zero where it has none
	idle    int        // handlers asleep that nobody has woken
	closed  bool
}

// delivery is one message that a worker holds.
type delivery struct {
	msg      *nats.Msg
	received time.Time
	pull     *pull // that brought it
}

func newDeliveries(handlers int) *deliveries {
	s := &deliveries{begun: make([]delivery, handlers)}
	s.more.L = &s.mu
	return s
}

// add takes in what came. One handler is woken, and that one wakes the next while there is more: quick
// handlers are left asleep when few of them keep up.
func (s *deliveries) add(all []delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next > len(s.waiting)/2 { // what is gone gives its place to what comes
		s.waiting, s.next = slices.Delete(s.waiting, 0, s.next), 0
	}
	s.waiting = append(s.waiting, all...)
	for _, d := range all {
		d.pull.waiting++
	}
	s.wake()
}

func (s *deliveries) wake() {
	if s.idle > 0 && s.next < len(s.waiting) {
		s.idle--
		s.more.Signal()
	}
}

// begin lets go of what the handler had and gives it the next, waiting for one; ok is false when they
// are closed and empty.
func (s *deliveries) begin(h int) (d delivery, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun[h] = delivery{}
	for s.next == len(s.waiting) {
		if s.closed {
			return delivery{}, false
		}
		s.idle++
		s.more.Wait()
	}
	d, s.waiting[s.next] = s.waiting[s.next], delivery{}
	s.next++
	s.begun[h] = d
	d.pull.left(1)
	s.wake()
	return d, true
}

// let lets go of what the handler has.
func (s *deliveries) let(h int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun[h] = delivery{}
}

// busy tells whether any handler has something.
func (s *deliveries) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.begun, func(d delivery) bool { return d.msg != nil })
}

// withdraw takes out what waits of a pull.
func (s *deliveries) withdraw(of *pull) (out []delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.DeleteFunc(slices.Delete(s.waiting, 0, s.next), func(d delivery) bool {
		if d.pull == of {
			out = append(out, d)
		}
		return d.pull == of
	})
	s.next = 0
	of.left(len(out))
	return out
}

// waits tells whether any message of a pull waits for a handler.
func (s *deliveries) waits(of *pull) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return of.waiting > 0
}

// close has begin end once nothing waits any more.
func (s *deliveries) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.more.Broadcast()
}

// each calls f with all messages held until it fails. It holds the lock, so that no heartbeat follows an
// answer that let goes before.
func (s *deliveries) each(f func(*nats.Msg) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, all := range [][]delivery{s.waiting, s.begun} {
		for _, d := range all {
			if d.msg == nil {
				continue
			}
			if err := f(d.msg); err != nil {
				return err
			}
		}
	}
	return nil
}
