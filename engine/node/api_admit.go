package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"golang.org/x/sync/semaphore"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/embedded"
)

// How requests are admitted, counted and bounded.

// requests counts and bounds the requests in progress.
type requests struct {
	calls, bytes atomic.Int64 // of all kinds: how many, and the bytes of their bodies
	congestion   congestion   // bounds calls where a command comes
	imports      atomic.Int64
	importJobs   *semaphore.Weighted // the jobs of imports that are in the log and not answered
	selections   atomic.Int64        // those that change a selection of jobs
	lists        chan struct{}       // holds a value for each list in progress
	statuses     chan struct{}       // the same for statuses
	queries      chan struct{}       // the same for gets and previews
	lingering    bool                // nats-server may still send requests although none are taken any more (finishCommands)
	crowded      sync.Map            // subscriptions, as keys, of which the library dropped requests that came faster than they were looked at
}

// Bounds of the requests in progress. A request beyond them is refused, and nothing is done. They are needed because a tick may have to
// wait in the log behind the bytes of all of them.
const (
	maxCalls     = 8192
	maxCallBytes = 16 << 20 // one request alone may be larger
)

// begin admits a request; an error says why it does not. c is nil if the request must not be answered. Otherwise the caller must call end
// when the request is over, also after an error.
func (n *Node) begin(r micro.Request) (c *call, err error) {
	if n.reservedReply(r.Reply()) {
		return nil, nil
	}
	if n.server == nil && !n.freshness.fresh(time.Now()) {
		n.meters.ignoredRequests("old").Inc()
		return nil, nil // the request may be old; a client that still wants an answer asks again, and another node answers
	}
	c = &call{Request: r, node: n}
	err = c.split(n.o.Prefix)
	size := int64(len(r.Data()))
	calls, bytes := n.requests.calls.Add(1), n.requests.bytes.Add(size)
	switch {
	case calls > maxCalls:
		err = &carillon.Error{Code: carillon.CodeLimitExceeded, Message: fmt.Sprintf("more than %d requests are in progress", maxCalls)}
	case bytes > max(maxCallBytes, size):
		err = &carillon.Error{Code: carillon.CodeLimitExceeded, Message: fmt.Sprintf("more than %d MiB of requests are in progress", maxCallBytes>>20)}
	}
	return c, err
}

// noteConnError takes an error of the connection of requests.
func (n *Node) noteConnError(_ *nats.Conn, sub *nats.Subscription, err error) {
	if errors.Is(err, nats.ErrSlowConsumer) && sub != nil {
		n.requests.crowded.Store(sub, true) // the library tells of the first request that it drops, not of those after it
	}
	n.logConnError(err)
}

// dropped counts the requests that the library dropped.
func (r *requests) dropped() (count int) {
	for sub := range r.crowded.Range {
		if of, err := sub.(*nats.Subscription).Dropped(); err == nil { // an error: the subscription has ended, with the run
			count += of
		}
	}
	return count
}

// reservedReply tells whether a reply subject must not get an answer. A client chooses that subject, but answers are published with the
// engine's rights. So it must not be one on which only engines may publish, one of this service's, or one of NATS's own.
func (n *Node) reservedReply(reply string) bool {
	if strings.HasPrefix(reply, "$") {
		return true
	}
	rest, ours := strings.CutPrefix(reply, n.o.Prefix+".")
	token, _, _ := strings.Cut(rest, ".")
	return ours && slices.Contains(embedded.ReservedTokens[:], token)
}

// end ends a request. If there is an error, that is its answer.
func (n *Node) end(c *call, err error) {
	n.requests.calls.Add(-1)
	n.requests.bytes.Add(-int64(len(c.Data())))
	if err == nil {
		return
	}
	refusal := carillon.AsError(err)
	n.meters.refused(refusal.Code).Inc()
	if err := c.refuse(refusal); err != nil {
		n.log.Debug("request could not be answered", "error", err)
	}
}

// acquire waits, for acquireTimeout at most, for a place in a channel that has one for each request that may be in progress. The caller
// frees its place by a receive.
func acquire(slots chan struct{}, what string) error {
	patience := time.NewTimer(acquireTimeout)
	defer patience.Stop()
	select {
	case slots <- struct{}{}:
		return nil
	case <-patience.C:
		return &carillon.Error{Code: carillon.CodeLimitExceeded, Message: fmt.Sprintf("more than %d %s are in progress", cap(slots), what)}
	}
}
