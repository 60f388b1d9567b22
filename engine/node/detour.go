package node

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/servers"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// detour is which way a node takes to the streams. It begins with the nats-server of its own machine (servers.Config), and goes to another
// one where a leader is reached by that alone (goAround), or nobody by its own (leaveCutOff), and home again once its own is well
// (goHome).
type detour struct {
	looking atomic.Bool // another way is being looked for

	mu   sync.Mutex
	went time.Time // another one was taken last
}

const (
	aroundAgain = 10 * time.Second // another way is taken: by then a leader whom most do not reach has been replaced
	// cutOffAfter is how long the log stream may stay silent before it is asked by way of another server: longer than
	// an election takes, which is the same by way of any.
	cutOffAfter = 10 * time.Second
)

// within tells whether another way was taken no longer ago than lately.
func (d *detour) within(lately time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.went) < lately
}

// goAround goes to another server where the leader of a stream that this node needs does not answer by way of its own, but quickly by
// way of that: nothing passes between two hosts, and a third one reaches both. Servers pass nothing on for each other. A leader that is
// slow, or none, answers quickly by way of nobody.
func (n *Node) goAround(ctx context.Context, slow servers.Slowness, well cluster.View) {
	if slow.Now || slow.Self || len(slow.Well) == 0 || n.detour.within(aroundAgain) || !n.nc.IsConnected() {
		return
	}
	names := n.leaders.silent(slow)
	if len(names) == 0 {
		return
	}
	taken := n.takes(well)
	names = slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(taken, name) })
	names = names[:min(len(names), leadersMost)]
	if len(names) == 0 || !n.detour.looking.CompareAndSwap(false, true) {
		return
	}
	n.work.Go(func() {
		defer n.detour.looking.Store(false)
		for _, by := range slow.Well {
			led := quicklyLed(ctx, by, names)
			if len(led) == 0 || n.leaderAnswers(ctx, led[0]) {
				continue
			}
			if now := n.servers.Slow(); now.Now || now.Self || !n.nc.IsConnected() {
				return // its own server, or its network, stood still just now, or it goes elsewhere as it is
			}
			n.log.Warn("the leader of a stream answers by way of another nats-server alone; going to that", "stream", led[0], "server", by.Conn.ConnectedUrlRedacted())
			n.goTo(by)
			return
		}
	})
}

// goHome goes back to this machine's own server, once that has been well for long and the leaders answer by way of it. By the server to
// which a node is connected others judge whether its network is slow.
func (n *Node) goHome(ctx context.Context, slow servers.Slowness, well cluster.View) {
	if n.detour.within(servers.HomeAfter) || slow.Now || slow.Self || len(slow.Lately) > 0 || n.nc.Opts.NoRandomize {
		return
	}
	home, ok := n.servers.WayHome(n.nc.ConnectedServerName(), time.Now())
	if !ok || !n.detour.looking.CompareAndSwap(false, true) {
		return
	}
	n.work.Go(func() {
		defer n.detour.looking.Store(false)
		names := n.takes(well)
		names = names[:min(len(names), leadersMost)]
		if len(quicklyLed(ctx, home, names)) < len(names) {
			return
		}
		n.log.Info("going back to the nats-server of this machine", "server", home.Conn.ConnectedUrlRedacted())
		n.goTo(home)
	})
}

// goTo goes to a server, and to none other for a while.
func (n *Node) goTo(to servers.Way) {
	n.detour.mu.Lock()
	n.detour.went = time.Now()
	n.detour.mu.Unlock()
	if err := n.servers.GoTo(n.nc, to.URL); err != nil {
		n.log.Warn("could not leave the nats-server", "error", err) // the connection is closed: the node stops
	}
}

// takes are the streams that this node's triggers take: what all need, and the outputs of what it serves or is to serve.
func (n *Node) takes(well cluster.View) []string {
	names := n.sharedStreams()
	for _, p := range n.partitions {
		if n.putsOut(p, well) {
			names = append(names, n.streams.Out[p.number].Name())
		}
	}
	return names
}

// quicklyLed are those of some streams whose leaders answer quickly by way of a server.
func quicklyLed(ctx context.Context, by servers.Way, names []string) (led []string) {
	ctx, cancel := context.WithTimeout(ctx, servers.AnswerLate)
	defer cancel()
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, name := range names {
		asked.Go(func() {
			if leader, _, err := streams.LeaderBy(ctx, by.Conn, name); err == nil && leader != "" {
				mu.Lock()
				defer mu.Unlock()
				led = append(led, name)
			}
		})
	}
	asked.Wait()
	return led
}

// leaderAnswers tells whether the leader of a stream answers by way of this node's own server.
func (n *Node) leaderAnswers(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, servers.SilentAfter)
	defer cancel()
	return n.lookAtLeader(ctx, name) != ""
}

// leaveCutOff goes to another server where the one that this node is connected to lives, but the log stream's leader has
// not answered by way of it for long: it is cut off from the others. The library knows of no reason to leave it. Where it is
// the node's own network that is slow, it would not be better off elsewhere. left is when this was last done, since the clock
// began; the result is the same, afterwards.
func (n *Node) leaveCutOff(left time.Duration) time.Duration {
	now := n.clock.running()
	if now-max(left, time.Duration(n.logHeard.Load())) < cutOffAfter || !n.nc.IsConnected() || len(n.nc.Servers()) < 2 {
		return left
	}
	if n.servers.Slow().Self {
		return left
	}
	n.log.Warn("the log stream does not answer by way of this nats-server; going to another one", "server", n.nc.ConnectedUrlRedacted())
	if err := n.nc.ForceReconnect(); err != nil {
		n.log.Warn("could not leave the nats-server", "error", err) // the connection is closed: the node stops
	}
	return now
}
