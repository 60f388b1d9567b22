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

// Rights that were lost: how a node gets the subscriptions back that it lost with them.

// rightsWithin bounds the wait for nats-server's answer to the test of subscriptions.
const rightsWithin = 2 * time.Second

// lostRights gets subscriptions back that nats-server removed when the user lost a right, or a limit became lower, as after a reload of its
// configuration. When the right comes back, nats-server does not restore the subscriptions, and the library makes them again only on a
// new connection. Without one, answers to this node and requests to it would never arrive again.
type lostRights struct {
	refused atomic.Bool // a subscription was refused
	outputs atomic.Bool // an output was refused; nothing is lost for good by that, but other nodes may be allowed to publish

	mu          sync.Mutex
	missing     error     // which right or limit the user lacks, as of the last question; nil: none
	reconnected time.Time // when a new connection was last made
}

// note looks whether an error of the connection says that a subscription or an output was refused.
func (r *lostRights) note(err error, prefix string) {
	word, outputs := err.Error(), `Violation for Publish to "`+prefix
	switch {
	case errors.Is(err, nats.ErrMaxSubscriptionsExceeded),
		errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(word, "Violation for Subscription"):
		r.refused.Store(true)
	case errors.Is(err, nats.ErrPermissionViolation) && (strings.Contains(word, outputs+".trigger.") || strings.Contains(word, outputs+".event.")):
		r.outputs.Store(true)
	}
}

func (r *lostRights) setMissing(missing error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing = missing
}

// blocksOutputs tells whether outputs were refused, and the user still lacks a right or limit.
func (r *lostRights) blocksOutputs() bool { return r.outputs.Load() && r.problem() != nil }

// problem says which right or limit the user lacks; nil if none is known to be missing.
func (r *lostRights) problem() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.missing
}

// mayReconnect tells whether a new connection may be made, and notes that it is. Firing pauses for it, so it is not made again within
// switchAgain.
func (r *lostRights) mayReconnect(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.reconnected) < switchAgain {
		return false
	}
	r.reconnected = now
	return true
}

// recheckRights asks, once a subscription or an output was refused, whether the user has all rights again. If so, it makes new
// connections for the sake of the subscriptions.
func (n *Node) recheckRights(ctx context.Context) error {
	if !n.lostRights.refused.Load() && !n.lostRights.outputs.Load() || !n.nc.IsConnected() {
		return nil
	}
	missing := n.askRights(ctx)
	n.lostRights.setMissing(missing)
	if missing != nil {
		return nil
	}
	n.lostRights.outputs.Store(false)
	if !n.lostRights.refused.Load() || !n.lostRights.mayReconnect(time.Now()) {
		return nil
	}
	n.lostRights.refused.Store(false)
	n.log.Warn("nats-server had refused a subscription, and would no more; connecting anew", "server", n.nc.ConnectedUrlRedacted())
	for _, nc := range []*nats.Conn{n.nc, n.requestConn} {
		if err := nc.ForceReconnect(); err != nil {
			n.log.Warn("could not leave the nats-server", "error", err) // the connection is closed: the node stops
		}
	}
	return nil
}

// askRights asks this node's own nats-server what the user lacks, over a new connection.
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
	return checkSubscriptions(ctx, nc, max(n.nc.NumSubscriptions(), n.requestConn.NumSubscriptions()))
}

// checkSubscriptions returns an error if a connection may not have so many subscriptions.
func checkSubscriptions(ctx context.Context, nc *nats.Conn, most int) error {
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
