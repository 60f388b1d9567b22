package carillon

import (
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// deliveries are the messages that a worker has received and not yet answered: those that wait for a handler, and those
// that handlers have begun. Their one lock is taken once for each batch that comes, and once for each message that a
// handler begins. A channel would wake a handler for each message.
type deliveries struct {
	mu      sync.Mutex
	more    sync.Cond
	waiting []delivery // from next on, in the order in which they came
	next    int
	begun   []delivery // by handler; zero if the handler has none
	idle    int        // handlers that are asleep and have not been woken
	closed  bool
}

// delivery is one message that a worker holds.
type delivery struct {
	msg      *nats.Msg
	received time.Time
	pull     *pull // the pull that brought it
}

func newDeliveries(handlers int) *deliveries {
	s := &deliveries{begun: make([]delivery, handlers)}
	s.more.L = &s.mu
	return s
}

// add adds deliveries that have come. It wakes one handler, and that one wakes the next while there are more: if
// a few quick handlers keep up, the others stay asleep.
func (s *deliveries) add(all []delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next > len(s.waiting)/2 { // use the place of those that have been begun
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

// begin removes the handler's delivery, waits for the next one and gives it to the handler; ok is false when s
// is closed and nothing waits.
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
	d.pull.noteBegun(1)
	s.wake()
	return d, true
}

// remove removes the handler's delivery.
func (s *deliveries) remove(h int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun[h] = delivery{}
}

// busy tells whether any handler has a delivery.
func (s *deliveries) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.begun, func(d delivery) bool { return d.msg != nil })
}

// withdraw removes and returns the deliveries of a pull that wait for a handler.
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
	of.noteBegun(len(out))
	return out
}

// waits tells whether any delivery of a pull waits for a handler.
func (s *deliveries) waits(of *pull) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return of.waiting > 0
}

// close makes begin return false once nothing waits any more.
func (s *deliveries) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.more.Broadcast()
}

// each calls f with each message held, until f fails. It holds the lock meanwhile: once remove has removed a
// delivery, no heartbeat for it follows the answer.
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
