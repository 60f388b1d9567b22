package node

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/servers"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// leaders knows which servers lead the streams that this node's triggers go through. So when one of them is slow, the node can ask it
// at once to step down. If it asked only then which streams that server leads, it would have to wait for the slow answers.
type leaders struct {
	next int // the partition that is asked about next

	mu    sync.Mutex
	known map[string]*streamLeader // by stream
}

// streamLeader is what is known of a stream's leader.
type streamLeader struct {
	leader        string    // the leader
	followers     []string  // servers that may take its place
	asked         time.Time // when the node last asked who leads the stream
	answered      time.Time // when that was last answered
	stepDownAsked time.Time // when its leader was last asked to step down
}

const (
	leadersPoll   = time.Second           // how often the node asks who leads, and how long it waits for the answer
	leadersMost   = 64                    // output streams that are asked about at a time
	stepDownAgain = 2 * time.Second       // before a leader is asked to step down again: an election takes milliseconds if it can be reached
	stepDownPoll  = 50 * time.Millisecond // how often the node asks then whether another server leads
)

// sharedStreams are the streams that every node needs: the log, and the stream of the nodes' bucket.
func (n *Node) sharedStreams() []string {
	return []string{n.streams.Log.Name(), nodesStream(n.o.Stream)}
}

// pollLeaders asks who leads the shared streams, and the output streams of partitions that this node follows: of at most leadersMost
// partitions each time, in turn.
func (n *Node) pollLeaders(ctx context.Context) error {
	names := n.sharedStreams()
	l := &n.leaders
	for range min(len(n.partitions), leadersMost) {
		if p := n.partitions[l.next%len(n.partitions)]; p.follows.Load() {
			names = append(names, n.streams.Out[p.number].Name())
		}
		l.next++
	}
	var asked sync.WaitGroup
	for _, name := range names {
		asked.Go(func() { n.askLeader(ctx, name) })
	}
	asked.Wait()
	return nil
}

// askLeader asks who leads a stream; "" if nobody says so in time.
func (n *Node) askLeader(ctx context.Context, name string) (by string) {
	ctx, cancel := context.WithTimeout(ctx, leadersPoll)
	defer cancel()
	l := &n.leaders
	l.mu.Lock()
	if l.known == nil {
		l.known = make(map[string]*streamLeader)
	}
	s := l.known[name]
	if s == nil {
		s = &streamLeader{}
		l.known[name] = s
	}
	s.asked = time.Now()
	l.mu.Unlock()
	leader, followers, err := n.streams.LeaderOf(ctx, name)
	if err != nil {
		return "" // the stream has no leader just now, or a slow one
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.leader, s.followers, s.answered = leader, followers, time.Now()
	return leader
}

// checkServers judges how quickly the nats-servers answer. It has slow ones step down as leaders, and switches to another server, or back,
// with both connections.
func (n *Node) checkServers(ctx context.Context) error {
	before := n.servers.Slow().String()
	slow := n.servers.Judge(n.nc.ConnectedServerName(), time.Now())
	if now := slow.String(); now != before {
		n.log.Warn("nats-servers that are slow to answer", "which", now)
	}
	well := withoutSlow(n.membership.member.View(), slow, n.o.Name)
	n.stepDownSlow(ctx, slow, well)
	n.switchIfSilent(ctx, well)
	n.switchIfUnreachable(ctx, slow, well)
	n.switchBack(ctx, slow, well)
	n.keepTogether()
	return nil
}

// withoutSlow is a view without the other nodes that are slow: those whose nats-server is, and those that say so of themselves. Until they are
// well again, others should serve their partitions. A node whose own network is slow takes nobody's word for that: all may be.
func withoutSlow(v cluster.View, slow servers.Slowness, self string) cluster.View {
	left := func(b cluster.Beat) bool { return b.Name != self && (slow.Recent[b.Server] || b.Slow && !slow.Self) }
	if slices.ContainsFunc(v.Members, left) {
		v.Members = slices.DeleteFunc(slices.Clone(v.Members), left)
	}
	return v
}

// stepDownSlow asks slow servers to step down as leaders of the output streams that this node publishes to. The first of the nodes that are
// not slow does this for the shared streams, too.
func (n *Node) stepDownSlow(ctx context.Context, slow servers.Slowness, well cluster.View) {
	if len(slow.Silent) == 0 {
		return
	}
	if len(well.Members) > 0 && well.Members[0].Name == n.o.Name {
		for _, name := range n.sharedStreams() {
			n.requestStepDown(ctx, name, slow, nil)
		}
	}
	for _, p := range n.partitions {
		if n.servesOrShould(p, well) {
			n.requestStepDown(ctx, n.streams.Out[p.number].Name(), slow, p)
		}
	}
}

// servesOrShould tells whether this node serves a partition, or should: its claim may have to wait until the log has a leader.
func (n *Node) servesOrShould(p *partition, well cluster.View) bool {
	p.mu.Lock()
	owns := p.owner.Epoch != 0
	p.mu.Unlock()
	return owns || well.Claimant(p.number, caughtUp) == n.o.Name
}

// unresponsive returns the streams, in any order, whose leaders are slow, or have not answered for a while.
func (l *leaders) unresponsive(slow servers.Slowness) (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, s := range l.known {
		if slow.Silent[s.leader] != nil || !s.answered.After(s.asked) && time.Since(s.asked) >= servers.SilentAfter {
			names = append(names, name)
		}
	}
	return names
}

// requestStepDown asks the leader of a stream to step down if it is slow: in favour of this node's own server, or else of another one that
// is not slow. Messages on their way to the old leader are lost, or their answers are. So once another server leads the stream, the chain
// of p is given up. p is the partition whose output stream it is; nil: it is a shared stream.
func (n *Node) requestStepDown(ctx context.Context, name string, slow servers.Slowness, p *partition) {
	by, to := n.leaders.successor(name, slow, n.nc.ConnectedServerName())
	if to == "" {
		return
	}
	if err := askToStepDown(slow.Silent[by], name, to); err != nil {
		n.log.Warn("a slow nats-server could not be asked to step down as leader of a stream", "stream", name, "server", by, "error", err)
		return
	}
	n.log.Info("a slow nats-server was asked to step down as leader of a stream", "stream", name, "server", by, "to", to)
	n.work.Go(func() {
		until := time.Now().Add(stepDownAgain)
		for time.Now().Before(until) && sleep(ctx, stepDownPoll) {
			if now := n.askLeader(ctx, name); now != "" && now != by {
				n.leaderChanged(p, now)
				return
			}
		}
	})
}

// askToStepDown sends a request over several connections. The error is joined from theirs, if it could be sent over none.
func askToStepDown(over []*nats.Conn, name, to string) (err error) {
	sent := false
	for _, nc := range over {
		failed := streams.StepDown(nc, name, to)
		sent = sent || failed == nil
		err = errors.Join(err, failed)
	}
	if sent {
		return nil
	}
	return err
}

// successor names the leader of a stream, if that is slow, and the server that is to take its place. Both are "" if the leader is well or
// was asked to step down just now, or if no other server is well. Otherwise successor notes that the leader is asked now.
func (l *leaders) successor(name string, slow servers.Slowness, own string) (by, to string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.known[name]
	if s == nil || slow.Silent[s.leader] == nil || time.Since(s.stepDownAsked) < stepDownAgain {
		return "", ""
	}
	successors := slices.DeleteFunc(slices.Clone(s.followers), func(f string) bool { return slow.Recent[f] })
	if len(successors) == 0 {
		return "", ""
	}
	s.stepDownAsked = time.Now()
	if slices.Contains(successors, own) {
		return s.leader, own
	}
	return s.leader, successors[0]
}

// leaderChanged gives a partition's chain up if it waits for answers of another leader than its stream has now. p may be nil.
func (n *Node) leaderChanged(p *partition, leader string) {
	if p == nil {
		return
	}
	p.out.Lock()
	defer p.out.Unlock()
	if !p.chain.Lost() && p.chain.InFlight() > 0 && p.leader.Name != leader {
		n.lose(p, errElected)
		n.alarm.Wake()
	}
}
