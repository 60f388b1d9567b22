package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/carillon-scheduler/carillon"
)

// reached wakes those who wait for the log to be applied up to a sequence.
type reached struct {
	mu      sync.Mutex
	waiting []awaited
	over    bool // no more is applied
}

// awaited is told nil when the log has been applied up to a sequence, and errStops when it will not be.
type awaited struct {
	seq  uint64
	done chan error
}

var errStops = errors.New("node: the engine stops")

// told is called when all up to seq has been applied.
func (r *reached) told(seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = slices.DeleteFunc(r.waiting, func(w awaited) bool {
		if w.seq <= seq {
			w.done <- nil
		}
		return w.seq <= seq
	})
}

// end is called when no more is applied: who waits is to ask another node, and not to wait in vain.
func (r *reached) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.waiting {
		w.done <- errStops
	}
	r.waiting, r.over = nil, true
}

// reach waits until the log has been applied up to a sequence. Errors: errStops, the context's.
func (n *Node) reach(ctx context.Context, seq uint64) error {
	w := awaited{seq, make(chan error, 1)}
	n.reached.mu.Lock()
	switch {
	case n.applied.Load() >= seq: // told comes after it was set
		w.done <- nil
	case n.reached.over:
		w.done <- errStops
	default:
		n.reached.waiting = append(n.reached.waiting, w)
	}
	n.reached.mu.Unlock()
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		return ctx.Err() // it stays in the list until its time
	}
}

// catchUp waits until all is applied that the log had when it was called.
func (n *Node) catchUp(ctx context.Context) error {
	end, err := n.logEnd.ask(ctx, n.askLogEnd)
	if err != nil {
		return err
	}
	return n.reach(ctx, end)
}

// current waits, for a request that reads these partitions, until this node knows what any other has done by now: who was told of a
// change must not be told of the state before it by the next node that answers. Nor does one answer whose partition has stopped where
// others may go on with it. One that is alone with its server knows all. Error: CodeUnavailable.
func (n *Node) current(read ...*partition) error {
	if n.server != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), replyTimeout)
	defer cancel()
	if err := n.catchUp(ctx); err != nil {
		return &carillon.Error{Code: carillon.CodeUnavailable, Message: fmt.Sprintf("node %s does not know the latest changes: %v", n.o.Name, err)}
	}
	for _, p := range read {
		if err := p.whyStopped(); err != nil {
			return &carillon.Error{Code: carillon.CodeUnavailable, Message: fmt.Sprintf("partition %d stopped on node %s: %v", p.number, n.o.Name, err)}
		}
	}
	return nil
}

func (n *Node) askLogEnd() (uint64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), replyTimeout)
	defer cancel()
	info, err := n.lookAtLog(ctx)
	return info.Last, err
}

// ends shares a question among those who ask it at the same time. Each is told an answer to a question that was put after he asked.
type ends struct {
	mu   sync.Mutex
	busy bool
	next *end // that has not been asked for yet
}

type end struct {
	known chan struct{}
	seq   uint64
	err   error
}

func (e *ends) ask(ctx context.Context, get func() (uint64, error)) (uint64, error) {
	e.mu.Lock()
	if e.next == nil {
		e.next = &end{known: make(chan struct{})}
	}
	mine := e.next
	if !e.busy {
		e.busy = true
		go e.run(get)
	}
	e.mu.Unlock()
	select {
	case <-mine.known:
		return mine.seq, mine.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (e *ends) run(get func() (uint64, error)) {
	for {
		e.mu.Lock()
		next := e.next
		e.next = nil
		e.busy = next != nil
		e.mu.Unlock()
		if next == nil {
			return
		}
		next.seq, next.err = get()
		close(next.known)
	}
}
