package node

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/engine/cluster"
)

// A node that is new, or was away for long, may find that the log no longer reaches back to the node's position. Other nodes have what it
// missed. So it gives up all it has, which came from the log, begins with nothing at the log's end, and follows one
// partition after the other (cluster_follow.go). If no other node follows what it would give up, it stops with an error instead.

// leftBehindError says that the log stream no longer has the records that this node needs next.
type leftBehindError struct {
	at, first  uint64 // the last record here; the first one in the log stream
	partitions int
	replicas   int   // of the log stream; 0: not known
	followed   []int // partitions whose jobs this node has
	cause      error // the error that showed it, whose text is used; nil: none
}

// leftBehind makes the error for this node, whose last record is at, while the log stream begins at first.
func (n *Node) leftBehind(at, first uint64, cause error) error {
	e := &leftBehindError{at: at, first: first, partitions: n.layout.Partitions, replicas: n.streams.Log.Replicas(), cause: cause}
	for _, p := range n.followed() {
		if at > 0 {
			e.followed = append(e.followed, p.number)
		}
	}
	return e
}

func (e *leftBehindError) Error() string {
	if e.cause != nil {
		return e.cause.Error()
	}
	return fmt.Sprintf("node: the log stream begins at %d, and this node is at %d; see docs/operations.md", e.first, e.at)
}

func (e *leftBehindError) Unwrap() error { return e.cause }

const (
	othersTimeout = 30 * time.Second // bounds the wait for other nodes that follow this one's partitions
	aloneTimeout  = 2 * time.Second  // the same if there is no other node, and was none lately
)

// resetData empties a data directory that no run uses, once other nodes follow the partitions whose jobs it has. Errors: behind, with a
// reason, if nobody follows one of them; errUnreachable while NATS is away.
func resetData(ctx context.Context, o Options, behind *leftBehindError) (err error) {
	nc, err := o.servers().Connect(" state")
	if err != nil {
		return unreachable(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	m, err := cluster.Join(ctx, js, cluster.Options{
		Bucket: nodesBucket(o.Stream), Replicas: o.Replicas, MakeReplicas: behind.replicas, Name: o.Name, Zone: o.Zone, Version: Version(),
		Partitions: behind.partitions, Standbys: o.Standbys, Report: func() cluster.Report { return cluster.Report{Draining: true, Needs: behind.at} },
	})
	if err != nil {
		return unreachable(fmt.Errorf("node: %w", err))
	}
	defer func() {
		leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
		defer cancel()
		if lerr := m.Leave(leave); err == nil && lerr != nil {
			o.Logger.Warn("the other nodes were not told that this one begins anew; they will notice", "error", lerr)
		}
	}()
	for began := time.Now(); ; {
		v := m.View()
		lacks, waited := behind.unfollowed(v), time.Since(began)
		switch {
		case lacks == "":
			return removeStores(o)
		case !nc.IsConnected(): // which says nothing about the other nodes
			return fmt.Errorf("%w: %w", errUnreachable, behind)
		case waited > othersWait(v):
			return fmt.Errorf("%w; no other node follows %s", behind, lacks)
		case !sleep(ctx, followPoll):
			return ctx.Err()
		}
	}
}

// othersWait is how long to wait for other nodes. A silent one may only be late, as on a busy host.
func othersWait(v cluster.View) time.Duration {
	if len(v.Members)+len(v.Silent) < 2 {
		return aloneTimeout
	}
	return othersTimeout
}

// unfollowed names the first partition that this node has and no live node follows; "" if there is none. If this node has no partition,
// it is enough that any partition is followed.
func (e *leftBehindError) unfollowed(v cluster.View) string {
	for _, p := range e.followed {
		if v.Follower(p) == "" {
			return fmt.Sprintf("partition %d", p)
		}
	}
	if len(e.followed) > 0 {
		return ""
	}
	for p := range e.partitions {
		if v.Follower(p) != "" {
			return ""
		}
	}
	return "any partition"
}

// startEmpty makes a node that has nothing go on from the log's end. It takes the partitions that it should follow from other nodes.
func (n *Node) startEmpty(end uint64) {
	for _, p := range n.partitions {
		p.follows.Store(false)
	}
	n.logStart = end
	n.applied.Store(end)
}
