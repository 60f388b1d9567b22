package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/carillon-scheduler/carillon"
)

// Waiting until the log is applied: up to a sequence, or, before a read, up to its end.

// appliedWaiters wakes the goroutines that wait until the log has been applied up to a sequence.
type appliedWaiters struct {
	mu      sync.Mutex
	waiting []waiter
	closed  bool // no more is applied
}

// waiter is one that waits. done gets nil when the log has been applied up to seq, or errStops when it will not be.
type waiter struct {
	seq  uint64
	done chan error
}

var errStops = errors.New("node: the engine stops")

// advance must be called when everything up to seq has been applied, after n.applied was set.
func (r *appliedWaiters) advance(seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = slices.DeleteFunc(r.waiting, func(w waiter) bool {
		if w.seq <= seq {
			w.done <- nil
		}
		return w.seq <= seq
	})
}

// close must be called when no more records will be applied. The requests that wait get errStops, so that their clients can ask another
// node at once.
func (r *appliedWaiters) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.waiting {
		w.done <- errStops
	}
	r.waiting, r.closed = nil, true
}

// forget removes one that no longer waits.
func (r *appliedWaiters) forget(w waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = slices.DeleteFunc(r.waiting, func(other waiter) bool { return other == w })
}

// awaitApplied waits until the log has been applied up to a sequence. Errors: errStops, the context's.
func (n *Node) awaitApplied(ctx context.Context, seq uint64) error {
	w := waiter{seq, make(chan error, 1)}
	n.waiters.mu.Lock()
	switch {
	case n.applied.Load() >= seq: // set before advance is called, so no call of advance is missed
		w.done <- nil
	case n.waiters.closed:
		w.done <- errStops
	default:
		n.waiters.waiting = append(n.waiters.waiting, w)
	}
	n.waiters.mu.Unlock()
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		n.waiters.forget(w)
		return ctx.Err()
	}
}

// awaitLogEnd waits until everything that the log had when it was called is applied.
func (n *Node) awaitLogEnd(ctx context.Context) error {
	end, err := n.logEnd.ask(ctx, n.askLogEnd)
	if err != nil {
		return err
	}
	return n.awaitApplied(ctx, end)
}

// readBarrier waits, for a request that reads these partitions, until this node has applied all that any node may have answered for by now:
// a client that was told of a change must not see the state before it from the next node. It also fails if one of the partitions has
// stopped here, because other nodes may go on with it. A node with an embedded server is the only one, and need not wait. Error:
// CodeUnavailable.
func (n *Node) readBarrier(read ...*partition) error {
	if n.server != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), replyTimeout)
	defer cancel()
	if err := n.awaitLogEnd(ctx); err != nil {
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
	info, err := n.queryLog(ctx)
	return info.Last, err
}

// logEndQuery shares one question for the log's end among all callers that ask at the same time. Each caller gets the answer to a question
// that was sent after its call.
type logEndQuery struct {
	mu   sync.Mutex
	busy bool          // run is running
	next *logEndAnswer // its question has not been sent yet
}

// logEndAnswer is the answer to one question; seq and err are set when known is closed.
type logEndAnswer struct {
	known chan struct{}
	seq   uint64
	err   error
}

func (e *logEndQuery) ask(ctx context.Context, get func() (uint64, error)) (uint64, error) {
	e.mu.Lock()
	if e.next == nil {
		e.next = &logEndAnswer{known: make(chan struct{})}
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

func (e *logEndQuery) run(get func() (uint64, error)) {
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

// nearLogEnd waits until all that the log has is applied. It is false if more than handOverLag records are missing, or if this takes longer
// than handOverAsk.
func (n *Node) nearLogEnd(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, handOverAsk)
	defer cancel()
	end, err := n.logEnd.ask(ctx, n.askLogEnd)
	return err == nil && end-min(end, n.applied.Load()) <= handOverLag && n.awaitApplied(ctx, end) == nil
}
