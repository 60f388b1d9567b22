package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/servers"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// leaders knows which servers lead the streams that this node's triggers take, so that it can have one that is slow give
// that up at once. To ask only then would take as long as the answers of a slow server take.
type leaders struct {
	next int // of the partitions that are asked about in turn

	mu    sync.Mutex
	known map[string]*led // by stream
}

// led is who leads a stream, and what may take its place.
type led struct {
	by        string
	followers []string
	asked     time.Time // when it was last asked who leads it
	told      time.Time // when that was last answered
	deposed   time.Time // when its leader was last asked to step down
}

const (
	leadersLook = time.Second     // for who leads
	leadersMost = 64              // output streams that are asked about at a time
	deposeAgain = 2 * time.Second // an election takes milliseconds where the way to the leader is not lost
	deposedLook = 50 * time.Millisecond
)

// sharedStreams are those that every node needs: the log, and that of the nodes' bucket.
func (n *Node) sharedStreams() []string {
	return []string{n.streams.Log.Name(), nodesStream(n.o.Stream)}
}

// lookAtLeaders asks who leads the shared streams, and the output streams of what this node follows, so many of these each time.
func (n *Node) lookAtLeaders(ctx context.Context) error {
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
		asked.Go(func() { n.lookAtLeader(ctx, name) })
	}
	asked.Wait()
	return nil
}

// lookAtLeader asks who leads a stream.
func (n *Node) lookAtLeader(ctx context.Context, name string) (by string) {
	ctx, cancel := context.WithTimeout(ctx, leadersLook)
	defer cancel()
	l := &n.leaders
	l.mu.Lock()
	if l.known == nil {
		l.known = make(map[string]*led)
	}
	s := l.known[name]
	if s == nil {
		s = &led{}
		l.known[name] = s
	}
	s.asked = time.Now()
	l.mu.Unlock()
	leader, followers, err := n.streams.LeaderOf(ctx, name)
	if err != nil {
		return "" // it has none just now, or that is slow
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.by, s.followers, s.told = leader, followers, time.Now()
	return leader
}

// lookAtServers judges how they answer, and has those that are slow lead no more.
func (n *Node) lookAtServers(ctx context.Context) error {
	before := n.servers.Slow().String()
	slow := n.servers.Judge(n.nc.ConnectedServerName(), time.Now())
	if now := slow.String(); now != before {
		n.log.Warn("nats-servers that are slow to answer", "which", now)
	}
	well := withoutSlow(n.joined.member.View(), slow, n.o.Name)
	n.evade(ctx, slow, well)
	n.goAround(ctx, slow, well)
	n.goHome(ctx, slow, well)
	return nil
}

// withoutSlow is a view without the other nodes whose nats-server is slow: what those serve others are to serve, until it is well again.
func withoutSlow(v cluster.View, slow servers.Slowness, self string) cluster.View {
	if len(slow.Lately) > 0 {
		v.Members = slices.DeleteFunc(slices.Clone(v.Members), func(b cluster.Beat) bool { return b.Name != self && slow.Lately[b.Server] })
	}
	return v
}

// evade has slow servers lead no more the streams that take the outputs of this node, nor, where it is the first node of those who are
// well, the shared streams.
func (n *Node) evade(ctx context.Context, slow servers.Slowness, well cluster.View) {
	if len(slow.Silent) == 0 {
		return
	}
	if len(well.Members) > 0 && well.Members[0].Name == n.o.Name {
		for _, name := range n.sharedStreams() {
			n.depose(ctx, name, slow, nil)
		}
	}
	for _, p := range n.partitions {
		if n.putsOut(p, well) {
			n.depose(ctx, n.streams.Out[p.number].Name(), slow, p)
		}
	}
}

// putsOut tells whether this node serves a partition, or is to: the claim itself may have to wait for a leader of the log.
func (n *Node) putsOut(p *partition, well cluster.View) bool {
	p.mu.Lock()
	owns := p.owner.Epoch != 0
	p.mu.Unlock()
	return owns || well.Claimant(p.number, caughtUp) == n.o.Name
}

// silent are the streams, in any order, whose leaders are slow, or have not answered for a while.
func (l *leaders) silent(slow servers.Slowness) (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, s := range l.known {
		if slow.Silent[s.by] != nil || !s.told.After(s.asked) && time.Since(s.asked) >= servers.SilentAfter {
			names = append(names, name)
		}
	}
	return names
}

// depose asks the leader of a stream to step down if it is slow: for this node's server, or else another one that is not. What was on
// its way to the leader is lost, or its answer is. So the chain of p, the partition whose stream it is, is given up once another one
// leads it; p is nil for a stream that is no partition's.
func (n *Node) depose(ctx context.Context, name string, slow servers.Slowness, p *partition) {
	by, to := n.leaders.heir(name, slow, n.nc.ConnectedServerName())
	if to == "" {
		return
	}
	if err := streams.StepDown(slow.Silent[by], name, to); err != nil {
		n.log.Warn("a slow nats-server could not be asked to step down as leader of a stream", "stream", name, "server", by, "error", err)
		return
	}
	n.log.Info("a slow nats-server was asked to step down as leader of a stream", "stream", name, "server", by, "to", to)
	n.work.Go(func() {
		until := time.Now().Add(deposeAgain)
		for time.Now().Before(until) && pause(ctx, deposedLook) {
			if now := n.lookAtLeader(ctx, name); now != "" && now != by {
				n.succeeded(p, now)
				return
			}
		}
	})
}

// heir names the leader of a stream, if that is slow, and who is to take its place; nobody where the leader is well, or was asked to step
// down just now. It notes that the leader is asked.
func (l *leaders) heir(name string, slow servers.Slowness, own string) (by, to string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.known[name]
	if s == nil || slow.Silent[s.by] == nil || time.Since(s.deposed) < deposeAgain {
		return "", ""
	}
	heirs := slices.DeleteFunc(slices.Clone(s.followers), func(f string) bool { return slow.Lately[f] })
	if len(heirs) == 0 {
		return "", ""
	}
	s.deposed = time.Now()
	if slices.Contains(heirs, own) {
		return s.by, own
	}
	return s.by, heirs[0]
}

// succeeded gives up the chain of a partition, if there is one, that waits for answers of another leader than its stream has now.
func (n *Node) succeeded(p *partition, leader string) {
	if p == nil {
		return
	}
	p.out.Lock()
	defer p.out.Unlock()
	if !p.chain.Lost() && p.chain.InFlight() > 0 && p.leader.Name != leader {
		n.lose(p, errElected)
		n.bell.Ring()
	}
}
