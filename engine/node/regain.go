package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// rightsWithin bounds the wait for the answer whether a user may do all.
const rightsWithin = 2 * time.Second

// regain gets back the subscriptions that nats-server took away with a right or a limit, as by a reload of its configuration. It does
// not give them back with it, and the library makes them again on a new connection alone: answers to this node and requests to it would
// stay away for good.
type regain struct {
	refused atomic.Bool // a subscription was
	outputs atomic.Bool // an output was; nothing is lost for good by that, but others may be allowed to

	mu      sync.Mutex
	missing error     // what the user may not do by now
	went    time.Time // a new connection was made last
}

// note takes an error of the connection.
func (r *regain) note(err error, prefix string) {
	word, outputs := err.Error(), `Violation for Publish to "`+prefix
	switch {
	case errors.Is(err, nats.ErrMaxSubscriptionsExceeded),
		errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(word, "Violation for Subscription"):
		r.refused.Store(true)
	case errors.Is(err, nats.ErrPermissionViolation) && (strings.Contains(word, outputs+".trigger.") || strings.Contains(word, outputs+".event.")):
		r.outputs.Store(true)
	}
}

func (r *regain) lacks(missing error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing = missing
}

// silenced tells whether outputs were refused, and nats-server says that the user may not do all.
func (r *regain) silenced() bool { return r.outputs.Load() && r.problem() != nil }

// problem is what the user may not do; nil where nothing is known to be missing.
func (r *regain) problem() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.missing
}

// may tells whether a new connection is to be made: firing pauses for it, so not again and again where that is of no use.
func (r *regain) may(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.went) < aroundAgain {
		return false
	}
	r.went = now
	return true
}

// regainRights looks whether the user may do all again, once a subscription or an output was refused.
func (n *Node) regainRights(ctx context.Context) error {
	if !n.regain.refused.Load() && !n.regain.outputs.Load() || !n.nc.IsConnected() {
		return nil
	}
	missing := n.askRights(ctx)
	n.regain.lacks(missing)
	if missing != nil {
		return nil
	}
	n.regain.outputs.Store(false)
	if !n.regain.refused.Load() || !n.regain.may(time.Now()) {
		return nil
	}
	n.regain.refused.Store(false)
	n.log.Warn("nats-server had refused a subscription, and would no more; connecting anew", "server", n.nc.ConnectedUrlRedacted())
	if err := n.nc.ForceReconnect(); err != nil {
		n.log.Warn("could not leave the nats-server", "error", err) // the connection is closed: the node stops
	}
	return nil
}

// askRights asks this node's own nats-server, over a connection that has lost nothing yet.
func (n *Node) askRights(ctx context.Context) error {
	nc, err := n.servers.Config.ConnectTo(n.nc.ConnectedUrl(), " to ask", nats.NoReconnect(),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // what is refused is the answer
	if err != nil {
		return err
	}
	defer nc.Close()
	if err := n.streams.CheckRights(ctx, nc); err != nil {
		return err
	}
	return asMany(ctx, nc, n.nc.NumSubscriptions())
}

// asMany refuses a connection that may not have so many subscriptions.
func asMany(ctx context.Context, nc *nats.Conn, most int) error {
	ctx, cancel := context.WithTimeout(ctx, rightsWithin)
	defer cancel()
	for range most {
		if _, err := nc.Subscribe(nc.NewInbox(), func(*nats.Msg) {}); err != nil {
			return err
		}
	}
	if err := nc.FlushWithContext(ctx); err != nil {
		return err
	}
	if word := nc.LastError(); errors.Is(word, nats.ErrMaxSubscriptionsExceeded) {
		return fmt.Errorf("the %d subscriptions that the engine needs are more than its user or account may have: %w", most, word)
	}
	return nil
}
