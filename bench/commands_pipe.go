package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/carillon-scheduler/carillon"
)

// pipe sends requests over one connection without waiting for the answers, which come back on one
// subscription. It is the cheapest client of carillon.api.<verb>.<job>: a goroutine and an inbox for each
// request would take cores away from the engine.
type pipe struct {
	nc      *nats.Conn
	names   carillon.Names
	inbox   string // what the subjects of the answers begin with, up to the dot; the last token is the number of a slot
	request string // what this pipe's Carillon-Request headers begin with
	sub     *nats.Subscription

	mu       sync.Mutex
	slots    []func(answer)
	free     []int
	sent     uint64
	answered uint64
}

// answer is the answer to a request: err is an *Error of the service.
type answer struct {
	body []byte
	err  error
}

func newPipe(nc *nats.Conn, names carillon.Names) (*pipe, error) {
	p := &pipe{nc: nc, names: names, inbox: nc.NewInbox() + ".", request: rand.Text()[:16] + "-"}
	var err error
	if p.sub, err = nc.Subscribe(p.inbox+"*", p.receive); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if err := p.sub.SetPendingLimits(-1, -1); err != nil {
		return nil, errors.Join(fmt.Errorf("bench: %w", err), p.sub.Unsubscribe())
	}
	return p, nil
}

func (p *pipe) close() error { return p.sub.Unsubscribe() }

// send sends one request. done is called once, with the answer, by the goroutine that reads the answers.
func (p *pipe) send(verb carillon.Verb, job string, body []byte, done func(answer)) error {
	p.mu.Lock()
	slot := len(p.slots)
	if n := len(p.free); n > 0 {
		slot, p.free = p.free[n-1], p.free[:n-1]
		p.slots[slot] = done
	} else {
		p.slots = append(p.slots, done)
	}
	p.sent++
	n := p.sent
	p.mu.Unlock()
	err := p.nc.PublishMsg(&nats.Msg{
		Subject: p.names.API(verb, job), Reply: p.inbox + strconv.Itoa(slot), Data: body,
		Header: nats.Header{carillon.HeaderRequest: []string{p.request + strconv.FormatUint(n, 36)}},
	})
	if err != nil {
		return fmt.Errorf("bench: %s %s: %w", verb, job, err)
	}
	return nil
}

func (p *pipe) receive(m *nats.Msg) {
	slot, err := strconv.Atoi(m.Subject[len(p.inbox):])
	p.mu.Lock()
	if err != nil || slot >= len(p.slots) || p.slots[slot] == nil {
		p.mu.Unlock()
		return // it answers no request
	}
	done := p.slots[slot]
	p.slots[slot] = nil
	p.free = append(p.free, slot)
	p.mu.Unlock()
	a := answer{body: m.Data}
	switch {
	case m.Header.Get(micro.ErrorCodeHeader) != "":
		a.err = carillon.ParseError(m.Data)
	case len(m.Data) == 0 && m.Header.Get("Status") == "503": // the server says that nobody listens
		a.err = &carillon.Error{Code: carillon.CodeUnavailable, Message: "no service answers"}
	}
	done(a)
	p.mu.Lock()
	p.answered++ // only now: after a drain the caller reads what done has written
	p.mu.Unlock()
}

// answerPatience is the longest time without any answer while some are outstanding. The engine itself gives
// a command up after 5 s.
const answerPatience = 20 * time.Second

// acquireSlot waits until one more request may be under way. If no request is answered for patience, the answers were lost.
func acquireSlot(ctx context.Context, room chan<- struct{}, patience time.Duration) error {
	select {
	case room <- struct{}{}:
		return nil
	default:
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case room <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return fmt.Errorf("bench: of %d requests under way none was answered for %s", cap(room), patience)
	}
}

// drain waits until everything that was sent is answered.
func (p *pipe) drain(ctx context.Context) error {
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	var before uint64
	for since := time.Now(); ; {
		p.mu.Lock()
		open, answered := p.sent-p.answered, p.answered
		p.mu.Unlock()
		switch {
		case open == 0:
			return nil
		case answered != before:
			before, since = answered, time.Now()
		case time.Since(since) > answerPatience:
			return fmt.Errorf("bench: %d requests were not answered", open)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}

// drainAll drains one pipe after the other, up to the first whose answers were lost: then the others' were lost, too.
func drainAll(ctx context.Context, pipes []*pipe) error {
	for _, p := range pipes {
		if err := p.drain(ctx); err != nil {
			return err
		}
	}
	return nil
}

// leastSleep is the shortest sleep of sendOnTime: at 30,000 a second a wakeup for each send would take cores away from the engine.
// A send that is late because of this is still measured from its own time.
const leastSleep = time.Millisecond

// sendOnTime calls send for 0 … n-1, each at its time or up to leastSleep after it, or at once if that time is over already.
func sendOnTime(ctx context.Context, n int, at func(int) time.Time, send func(i int, at time.Time) error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range n {
		due := at(i)
		if wait := time.Until(due); wait > 0 {
			timer.Reset(max(wait, leastSleep))
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-timer.C:
			}
		}
		if err := send(i, due); err != nil {
			return err
		}
	}
	return ctx.Err()
}

const (
	fillWindow = 1024 // puts under way at once
	fillPasses = 20   // each puts the jobs again that the one before could not put for the moment
	fillPause  = 500 * time.Millisecond
)

// fill puts jobs from … to-1 as fast as the engine accepts them. It does not keep the jobs, so that this process's
// memory does not bound their number.
func (p *pipe) fill(ctx context.Context, from, to int, job func(int) carillon.Job, progress func(done int)) error {
	var mu sync.Mutex
	var failed, refused error
	var again []int
	done := 0
	room := make(chan struct{}, fillWindow)
	put := func(i int) error {
		j := job(i)
		if err := acquireSlot(ctx, room, answerPatience); err != nil {
			return err
		}
		return p.send(carillon.VerbPut, j.ID, carillon.AppendPut(nil, &j, nil), func(a answer) {
			<-room
			mu.Lock()
			defer mu.Unlock()
			switch {
			case a.err == nil:
				done++
				progress(done)
			case isTransient(a.err): // to be put again, which is harmless
				again, refused = append(again, i), a.err
			default:
				failed = fmt.Errorf("bench: put %s: %w", j.ID, a.err)
			}
		})
	}
	todo := func(yield func(int) bool) {
		for i := from; i < to && yield(i); i++ {
		}
	}
	for range fillPasses {
		for i := range todo {
			if err := put(i); err != nil {
				return err
			}
		}
		if err := p.drain(ctx); err != nil {
			return err
		}
		mu.Lock()
		rest, err := again, failed
		again = nil
		mu.Unlock()
		if err != nil || len(rest) == 0 {
			return err
		}
		todo = slices.Values(rest)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(fillPause):
		}
	}
	return fmt.Errorf("bench: the engine refuses jobs: %w", refused)
}

// isTransient tells whether a later try may succeed after this error.
func isTransient(err error) bool {
	return errors.Is(err, &carillon.Error{Code: carillon.CodeUnavailable}) || errors.Is(err, &carillon.Error{Code: carillon.CodeLimitExceeded})
}
