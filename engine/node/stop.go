package node

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/wal"
)

// How a run stops.

// finish brings what a run has in progress to its end, in order: other nodes take over the partitions, and forward no more requests about
// them; the commands that were taken are answered; ticking ends. What follows is at the end of run.
func (n *Node) finish(ctx context.Context) {
	n.handOver(ctx)
	n.awaitNoForwards(ctx)
	n.finishCommands(ctx)
	n.finishTicking(ctx)
}

// quietChecks is how many times in a row, a millisecond apart, finishCommands must find no command in progress: the client
// library may not have handed out all of them yet.
const quietChecks = 10

// finishCommands stops taking requests, and waits until the commands that were taken have come back through the log, or until their
// clients have stopped waiting (replyTimeout). Until it returns, the log must still be read.
func (n *Node) finishCommands(ctx context.Context) {
	api := n.api.Load()
	if api == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	// A connection that breaks before the server has heard of the end subscribes once more when it is back, and the library forgets the
	// subscriptions without telling the server.
	connectsSoon(ctx, n.requestConn)
	before := n.requestConn.Stats().Reconnects
	_ = (*api).Stop() // fails only on a connection that is gone, and then no requests come
	// After this the server delivers no more requests. Those that it delivered are in the client library, which calls handlers one after
	// the other.
	err := n.requestConn.FlushWithContext(ctx)
	n.requests.lingering = err != nil || n.requestConn.Stats().Reconnects != before
	for quiet := 0; quiet < quietChecks; {
		if quiet++; n.replies.inProgress() {
			quiet = 0
		}
		if !sleep(ctx, time.Millisecond) {
			return
		}
	}
}

// finishTicking ends ticking. It waits until the tick that is on its way, and all that other nodes appended, is applied, so that the
// checkpoint of a clean stop has it: a version with other rules could not apply a tick behind the checkpoint. It waits for tickTimeout at
// most, and not while NATS is away.
func (n *Node) finishTicking(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, tickTimeout)
	defer cancel()
	for n.ticking.end() && n.nc.IsConnected() && sleep(ctx, time.Millisecond) {
		continue
	}
	if n.membership.participating.Load() && n.nc.IsConnected() {
		if err := n.awaitLogEnd(ctx); err != nil && ctx.Err() == nil {
			n.log.Warn("the checkpoint may be before the log's end", "error", err)
		}
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		n.log.Warn("the checkpoint may be before the log's end", "waited", tickTimeout)
	}
}

// windDown ends the membership, the goroutines and the saves of a run, whose context has ended. Calling it again does nothing.
func (n *Node) windDown() {
	n.leave()
	n.work.Wait()
	n.snapshots.close()
	n.partSaves.close()
}

// lastAnswers waits, for leaveTimeout at most, until all requests that came before the API was stopped are answered.
func (n *Node) lastAnswers() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	for n.requests.calls.Load() > 0 && sleep(ctx, time.Millisecond) {
		continue
	}
}

// endRequests closes the connection of requests if nats-server may still send this node its share of them, which would get no answer
// for as long as the last checkpoints take.
func (n *Node) endRequests() {
	if n.requests.lingering {
		n.disconnect(n.requestConn)
	}
}

func (n *Node) close() error {
	if n.streams != nil {
		n.streams.Close()
	}
	n.endedAt = n.nc.ConnectedUrl()
	for _, nc := range []*nats.Conn{n.requestConn, n.nc} {
		if nc != nil {
			n.disconnect(nc)
		}
	}
	if n.server != nil {
		n.server.Shutdown()
	}
	var err error
	for _, p := range n.partitions {
		if p != nil {
			p.mu.Lock()
			err = errors.Join(err, p.table.close())
			p.mu.Unlock()
		}
	}
	for _, store := range []*wal.Store{n.logStore, n.jobStore} {
		if store != nil {
			err = errors.Join(err, store.Close())
		}
	}
	return err
}

// disconnect closes a connection; again, it does nothing.
func (n *Node) disconnect(nc *nats.Conn) {
	if n.server == nil && nc.IsConnected() {
		_ = nc.FlushTimeout(leaveTimeout) // sends the last answers: closing would drop them (servers.dialer)
	}
	nc.Close()
}
