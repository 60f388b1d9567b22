package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/carillon-scheduler/carillon"
)

// reached wakes the goroutines that wait until the log has been applied up to a sequence.
type reached struct {
	mu      sync.Mutex
	waiting []awaited
	over    bool // no more is applied
}

// awaited is one that waits. done gets nil when the log has been applied up to seq, or errStops when it will not be.
type awaited struct {
	seq  uint64
	done chan error
}

var errStops = errors.New("node: the engine stops")

// told must be called when everything up to seq has been applied, after n.applied was set.
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

// end must be called when no more records will be applied. The requests that wait get errStops, so that their clients can ask another
// node at once.
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
	case n.applied.Load() >= seq: // set before told is called, so no call of told is missed
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
		return ctx.Err() // w stays in the list until seq is reached
	}
}

// catchUp waits until everything that the log had when it was called is applied.
func (n *Node) catchUp(ctx context.Context) error {
	end, err := n.logEnd.ask(ctx, n.askLogEnd)
	if err != nil {
		return err
	}
	return n.reach(ctx, end)
}

// current waits, for a request that reads these partitions, until this node has applied all that any node may have answered for by now:
// a client that was told of a change must not see the state before it from the next node. It also fails if one of the partitions has
// stopped here, because other nodes may go on with it. A node with an embedded server is the only one, and need not wait. Error:
// CodeUnavailable.
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

// ends shares one question for the log's end among all callers that ask at the same time. Each caller gets the answer to a question
// that was sent after its call.
type ends struct {
	mu   sync.Mutex
	busy bool // run is running
	next *end // its question has not been sent yet
}

// end is the answer to one question; seq and err are set when known is closed.
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
