package node

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// leaders knows which servers lead the streams that this node's triggers take, so that it can have one that is slow give
// that up at once. To ask only then would take as long as the answers of a slow server take.
type leaders struct {
	next   int         // of the partitions that are asked about in turn
	around atomic.Bool // another way to one is being looked for

	mu    sync.Mutex
	known map[string]*led // by stream
	went  time.Time       // to another server, because of them, or back, last
}

// led is who leads a stream, and what may take its place.
type led struct {
	by        string
	followers []string
	asked     time.Time // who leads it, last
	told      time.Time // by whom
	deposed   time.Time // when it was asked to step down last
}

const (
	leadersLook = time.Second     // for who leads
	leadersMost = 64              // output streams that are asked about at a time
	deposeAgain = 2 * time.Second // an election takes milliseconds where the way to the leader is not lost
	deposedLook = 50 * time.Millisecond

	aroundAgain = 10 * time.Second // another way is taken: by then a leader whom most do not reach has been replaced
)

// lookAtLeaders asks who leads the log, the nodes' bucket, and what this node follows, a part of that each time.
func (n *Node) lookAtLeaders(ctx context.Context) error {
	names := []string{n.streams.Log.Name(), "KV_" + nodesBucket(n.o.Stream)}
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
	before := n.servers.slow().String()
	slow := n.servers.judge(n.nc.ConnectedServerName(), time.Now())
	if now := slow.String(); now != before {
		n.log.Warn("nats-servers that are slow to answer", "which", now)
	}
	well := slow.without(n.joined.member.View(), n.o.Name)
	n.evade(ctx, slow, well)
	n.goAround(ctx, slow, well)
	n.goHome(ctx, slow, well)
	return nil
}

// evade has the servers that are slow lead no more what this node serves, nor, where it is the first of those who are well,
// what all need.
func (n *Node) evade(ctx context.Context, slow slowness, well cluster.View) {
	if len(slow.silent) == 0 {
		return
	}
	if len(well.Members) > 0 && well.Members[0].Name == n.o.Name {
		n.depose(ctx, n.streams.Log.Name(), slow, nil)
		n.depose(ctx, "KV_"+nodesBucket(n.o.Stream), slow, nil)
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

// goAround goes to another server where the leader of a stream that this node needs does not answer by way of its own, but quickly by
// way of that: nothing passes between two hosts, and a third one reaches both. Servers pass nothing on for each other. A leader that is
// slow, or none, answers quickly by way of nobody.
func (n *Node) goAround(ctx context.Context, slow slowness, well cluster.View) {
	if slow.now || slow.self || len(slow.well) == 0 {
		return
	}
	l := &n.leaders
	names := l.silent(slow)
	if len(names) == 0 {
		return
	}
	taken := n.takes(well)
	names = slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(taken, name) })
	names = names[:min(len(names), leadersMost)]
	if len(names) == 0 || !l.around.CompareAndSwap(false, true) {
		return
	}
	n.work.Go(func() {
		defer l.around.Store(false)
		for _, by := range slow.well {
			led := quicklyLed(ctx, by, names)
			if len(led) == 0 || !n.unanswered(ctx, led[0]) {
				continue
			}
			if now := n.servers.slow(); now.now || now.self {
				return // its own server, or its network, stood still just now
			}
			n.log.Warn("the leader of a stream answers by way of another nats-server alone; going to that", "stream", led[0], "server", by.nc.ConnectedUrlRedacted())
			n.goTo(by)
			return
		}
	})
}

// goHome goes back to this machine's own server, once that has been well for long and the leaders answer by way of it. By the server to
// which a node is connected others judge whether its network is slow.
func (n *Node) goHome(ctx context.Context, slow slowness, well cluster.View) {
	l := &n.leaders
	l.mu.Lock()
	lately := time.Since(l.went) < homeAfter
	l.mu.Unlock()
	if lately || slow.now || slow.self || len(slow.lately) > 0 || n.nc.Opts.NoRandomize {
		return
	}
	home, ok := n.servers.wayHome(n.nc.ConnectedServerName(), time.Now())
	if !ok || !l.around.CompareAndSwap(false, true) {
		return
	}
	n.work.Go(func() {
		defer l.around.Store(false)
		names := n.takes(well)
		names = names[:min(len(names), leadersMost)]
		if len(quicklyLed(ctx, home, names)) < len(names) {
			return
		}
		n.log.Info("going back to the nats-server of this machine", "server", home.nc.ConnectedUrlRedacted())
		n.goTo(home)
	})
}

// goTo goes to a server, and to none other for a while.
func (n *Node) goTo(to way) {
	n.leaders.mu.Lock()
	n.leaders.went = time.Now()
	n.leaders.mu.Unlock()
	if err := n.servers.goTo(to.url); err != nil {
		n.log.Warn("the nats-server was not left", "error", err) // the connection is closed: the node stops
	}
}

// takes are the streams that this node's triggers take: what all need, and the outputs of what it serves or is to serve.
func (n *Node) takes(well cluster.View) []string {
	names := []string{n.streams.Log.Name(), "KV_" + nodesBucket(n.o.Stream)}
	for _, p := range n.partitions {
		if n.putsOut(p, well) {
			names = append(names, n.streams.Out[p.number].Name())
		}
	}
	return names
}

// silent are the streams, in any order, whose leaders have not said who they are, or are slow; none while another way was taken lately.
func (l *leaders) silent(slow slowness) (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.went) < aroundAgain {
		return nil
	}
	for name, s := range l.known {
		if slow.silent[s.by] != nil || !s.told.After(s.asked) && time.Since(s.asked) >= silentAfter {
			names = append(names, name)
		}
	}
	return names
}

// quicklyLed are those of some streams whose leaders answer quickly by way of a server.
func quicklyLed(ctx context.Context, by way, names []string) (led []string) {
	ctx, cancel := context.WithTimeout(ctx, answerLate)
	defer cancel()
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, name := range names {
		asked.Go(func() {
			if leader, _, err := streams.LeaderBy(ctx, by.nc, name); err == nil && leader != "" {
				mu.Lock()
				defer mu.Unlock()
				led = append(led, name)
			}
		})
	}
	asked.Wait()
	return led
}

// unanswered tells whether the leader of a stream does not answer by way of this node's own server.
func (n *Node) unanswered(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, silentAfter)
	defer cancel()
	return n.lookAtLeader(ctx, name) == ""
}

// depose asks the leader of a stream to step down if it is slow: for this node's server, or else another that is not. What
// was on its way to it is lost, or its answer is: a partition's chain is given up once there is another leader.
func (n *Node) depose(ctx context.Context, name string, slow slowness, p *partition) {
	l := &n.leaders
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.known[name]
	if s == nil || slow.silent[s.by] == nil || time.Since(s.deposed) < deposeAgain {
		return
	}
	heirs := slices.DeleteFunc(slices.Clone(s.followers), func(f string) bool { return slow.lately[f] })
	if len(heirs) == 0 {
		return
	}
	to := heirs[0]
	if own := n.nc.ConnectedServerName(); slices.Contains(heirs, own) {
		to = own
	}
	by := s.by
	s.deposed = time.Now()
	if err := streams.StepDown(slow.silent[by], name, to); err != nil {
		n.log.Warn("a slow nats-server was not asked to lead a stream no longer", "stream", name, "server", by, "error", err)
		return
	}
	n.log.Info("a slow nats-server is to lead a stream no longer", "stream", name, "server", by, "to", to)
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

// succeeded gives up a chain that was resumed under another leader, and waits for answers of that.
func (n *Node) succeeded(p *partition, leader string) {
	if p == nil {
		return
	}
	p.out.Lock()
	defer p.out.Unlock()
	if !p.chain.Lost() && p.chain.InFlight() > 0 && p.leader.Name != leader {
		n.lose(p, errElected)
		n.bell.ring()
	}
}
