package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// Membership: how a node joins and leaves the others, and what its beats report.

const (
	// membersTimeout bounds how long a node that starts waits until it knows the others.
	membersTimeout = 3 * time.Second
	// leaveTimeout bounds the time to tell the others that this node leaves, and the time for the last answers.
	leaveTimeout = time.Second
)

// nodesBucket names the bucket in which the nodes of a service write their beats.
func nodesBucket(stream string) string { return stream + "_NODES" }

// nodesStream is the stream of that bucket.
func nodesStream(stream string) string { return "KV_" + nodesBucket(stream) }

// requiredRights returns the rights that a node needs beside those for its streams.
func (n *Node) requiredRights() streams.Rights {
	r := streams.Rights{Subscribe: []string{n.o.Prefix + ".api.>", n.o.Prefix + ".tenant.>", "$SRV.>"}, Answer: true}
	if n.o.NATS == "" {
		return r
	}
	bucket := nodesStream(n.o.Stream)
	r.Publish = []string{
		"$KV." + nodesBucket(n.o.Stream) + ".>", "$JS.API.STREAM.INFO." + bucket, "$JS.API.STREAM.CREATE." + bucket,
		"$JS.API.DIRECT.GET." + bucket + ".>", "$JS.API.CONSUMER.CREATE." + bucket + ".>", "$JS.API.CONSUMER.DELETE." + bucket + ".*",
		"$JS.API.STREAM.LEADER.STEPDOWN." + bucket,
		n.nodeSubject("*") + ".>", n.cancelSubject(),
	}
	r.Subscribe = append(r.Subscribe, n.nodeSubject(n.o.Name)+".>")
	return r
}

// memberOptions returns this node's options as a member.
func (n *Node) memberOptions() cluster.Options {
	return cluster.Options{
		Bucket: nodesBucket(n.o.Stream), Replicas: n.o.Replicas, MakeReplicas: n.streams.Log.Replicas(), Name: n.o.Name, Weight: n.o.Weight, Zone: n.o.Zone,
		Version: Version(), Partitions: n.layout.Partitions, Standbys: n.o.Standbys, Report: n.report,
		OnError: n.logMembershipError,
	}
}

// join begins to make this node a member. It does so in a goroutine, because a name that was just in use takes a while to become free.
// Beats report no partitions yet (participate).
func (n *Node) join(ctx context.Context) {
	j := &n.membership
	j.joinEnded, j.changed = make(chan struct{}), make(chan struct{}, 1)
	n.work.Go(func() {
		defer close(j.joinEnded)
		js, err := jetstream.New(n.nc)
		if err == nil {
			j.member, err = cluster.Join(ctx, js, n.memberOptions())
		}
		if err != nil {
			j.err = fmt.Errorf("node: %w", err)
			return
		}
		if has, log := j.member.BucketReplicas(), n.streams.Log.Replicas(); has < log {
			n.log.Warn("the nodes' bucket has fewer replicas than the log stream, so it is lost sooner", "replicas", has, "log", log,
				"change_it_with", fmt.Sprintf("nats stream edit %s --replicas %d", nodesStream(n.o.Stream), log))
		}
	})
}

// awaitMembers waits, for membersTimeout at most, until this node knows the others. Before that it would answer a request about a partition
// that it does not follow with: nobody follows it.
func (n *Node) awaitMembers(ctx context.Context) {
	if n.membership.member == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, membersTimeout)
	defer cancel()
	select {
	case <-n.membership.member.Known():
	case <-ctx.Done():
	}
}

// participate waits until everything in the log is applied, and begins to claim.
func (n *Node) participate(ctx context.Context) error {
	n.membership.reporting.Store(true)
	n.freshness.last = time.Now()
	n.work.Go(func() { n.pingLoop(ctx) }) // already now: the server may be cut off before the log's end has come
	if err := n.awaitLogEnd(ctx); err != nil {
		return err
	}
	<-n.membership.joinEnded
	if n.membership.err != nil {
		return n.membership.err
	}
	if err := n.subscribeCancels(); err != nil {
		return fmt.Errorf("node: %w", err)
	}
	n.membership.since = n.clock.running()
	n.membership.participating.Store(true)
	n.work.Go(func() { n.servers.Ask(ctx, n.nc) })
	n.work.Go(func() { n.every(ctx, claimPoll, n.checkServers) })
	n.work.Go(func() { n.every(ctx, leadersPoll, n.pollLeaders) })
	n.work.Go(func() { n.claimLoop(ctx) })
	n.work.Go(func() {
		if err := n.followLoop(ctx); err != nil {
			n.fail(err)
		}
	})
	return nil
}

// drains tells whether this node should be given no partitions: it was asked to drain, it stops, or nats-server refuses its outputs.
func (n *Node) drains() bool {
	return n.membership.draining.Load() || n.membership.stopping.Load() || n.lostRights.blocksOutputs()
}

// report is this node's part of each beat. A node that can neither fire nor read reports no partitions, so that others take them. One
// whose outputs nats-server refuses drains: it keeps serving what nobody else can, and still answers.
func (n *Node) report() cluster.Report {
	r := cluster.Report{
		Draining: n.drains(), ClockOffsetMS: n.clock.machineOffset().Milliseconds(), Server: n.nc.ConnectedServerName(), Slow: n.servers.Slow().Unseen,
	}
	if !n.membership.reporting.Load() {
		return r
	}
	r.Needs = n.needs()
	if n.holdTicks.Load() || n.stuck() {
		return r
	}
	position := n.applied.Load()
	for _, p := range n.partitions {
		p.mu.Lock()
		if p.stopped == nil && p.follows.Load() {
			r.Partitions = append(r.Partitions, cluster.Progress{Partition: p.number, Position: position, Epoch: p.ownedEpoch()})
		}
		p.mu.Unlock()
	}
	return r
}

// stuck tells whether ticks do not come back although the log stream has answered all the time: then this node is at fault, unless the log
// is long for every node.
func (n *Node) stuck() bool {
	now := n.clock.running()
	return n.ticking.failingFor(time.Now()) > tickTimeout &&
		now-time.Duration(n.logHeard.Load()) < tickTimeout && now-time.Duration(n.logHeardSince.Load()) > tickTimeout &&
		!n.longLog(n.view())
}

// longLog tells whether this node's ticks are in the log, it goes on reading that, and no other node is so much further that it would
// claim before this one has caught up (View.Claimant). Then others could not serve sooner: each would wait for its claim to come back, and
// soon be stuck itself, so the nodes would take the partitions from each other for as long as the log is long.
func (n *Node) longLog(v cluster.View) bool {
	if !n.ticking.stored() || n.clock.running()-time.Duration(n.readAt.Load()) > tickTimeout {
		return false
	}
	limit := n.applied.Load() + caughtUp
	return !slices.ContainsFunc(v.Members, func(b cluster.Beat) bool {
		return slices.ContainsFunc(b.Partitions, func(p cluster.Progress) bool { return p.Position > limit })
	})
}

// leave ends the membership, so that the other nodes know at once. It waits for join, whose context has ended or will not.
func (n *Node) leave() {
	j := &n.membership
	if j.joinEnded == nil {
		return
	}
	<-j.joinEnded
	if j.member == nil {
		return
	}
	j.leaving.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		if err := j.member.Leave(ctx); err != nil {
			n.log.Warn("the other nodes were not told that this one stops; they will notice", "error", err)
		}
	})
}

// member returns this node as a member; nil if it has not joined, or not yet.
func (n *Node) member() *cluster.Member {
	j := &n.membership
	if j.joinEnded == nil {
		return nil
	}
	select {
	case <-j.joinEnded:
		return j.member
	default:
		return nil
	}
}

// view is the cluster as this node sees it. It is empty for a node with an embedded server, and until the node knows the others.
func (n *Node) view() cluster.View {
	if m := n.member(); m != nil {
		return m.View()
	}
	return cluster.View{}
}

// beatProblems reports that no beat of this node has been stored for a while although it is connected to NATS. A node that does not hear
// its own beats takes no other node for dead.
func (n *Node) beatProblems() []string {
	m := n.member()
	if m == nil || !n.nc.IsConnected() {
		return nil
	}
	since, err := m.BeatsFailing()
	if err == nil || since < lostTooLong {
		return nil
	}
	return []string{fmt.Sprintf("no beat of this node has been stored for %s, so others are not known to be gone and not taken over from: %s",
		since.Round(time.Second), err)}
}

// membership is what this node knows as one of several over the same NATS.
type membership struct {
	joinEnded     chan struct{} // closed when joining has ended, well or not; nil: the node does not join
	member        *cluster.Member
	err           error // why it could not join
	leaving       sync.Once
	participating atomic.Bool   // the node claims partitions, and answers other nodes
	since         time.Duration // when that began, since the clock began; set before participating
	draining      atomic.Bool   // it was asked to drain
	stopping      atomic.Bool   // it hands its partitions over for good
	reporting     atomic.Bool   // the node's beats tell of its partitions
	catchingUp    atomic.Bool   // a goroutine waits until nearly all of the log is applied (claimDue)
	changed       chan struct{} // notified when it may have changed which node serves, or could serve, a partition

	mu            sync.Mutex
	unservedSince []time.Time // by partition: since when no node says that it serves it; zero if one does
}

// noteUnserved notes which partitions nobody serves.
func (j *membership) noteUnserved(v cluster.View, partitions int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.unservedSince == nil {
		j.unservedSince = make([]time.Time, partitions)
	}
	for p, since := range j.unservedSince {
		switch served := v.Serving(p) != ""; {
		case served:
			j.unservedSince[p] = time.Time{}
		case since.IsZero():
			j.unservedSince[p] = time.Now()
		}
	}
}

// servedElsewhere tells whether some node says that it serves a partition.
func (j *membership) servedElsewhere(partition int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.unservedSince != nil && j.unservedSince[partition].IsZero()
}

// unserved reports the partitions that nobody has served for more than lostTooLong.
func (j *membership) unserved() (problems []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for p, since := range j.unservedSince {
		if !since.IsZero() && time.Since(since) > lostTooLong {
			problems = append(problems, fmt.Sprintf("no node has served partition %d for %s", p, time.Since(since).Round(time.Second)))
		}
	}
	return problems
}
