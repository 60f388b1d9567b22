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

// detour is about the nats-server by way of which a node reaches the streams. At first this is the one on the node's own machine, if there
// is one (servers.Config). The node goes to another one if a leader answers only by way of that (goAround), or if the log's leader does not
// answer by way of its present one (leaveCutOff). It goes home once the server of its machine is well again (goHome).
type detour struct {
	looking atomic.Bool // a goroutine looks for another way

	mu   sync.Mutex
	went time.Time // when another way was last taken
}

const (
	aroundAgain = 10 * time.Second // between two other ways: a leader that most servers cannot reach is replaced sooner
	// cutOffAfter is how long the log stream may stay silent before the node goes to another server. It is longer than an election takes,
	// during which the stream is silent by way of every server.
	cutOffAfter = 10 * time.Second
)

// within tells whether another way was taken less than lately ago.
func (d *detour) within(lately time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.went) < lately
}

// goAround goes to another server if the leader of a stream that this node needs does not answer by way of its present server, but answers
// quickly by way of the other one. That is so if the link between two hosts is broken and a third one reaches both, because servers do not
// route messages around a broken link. If the leader is slow, or there is none, it does not answer quickly by way of any server.
func (n *Node) goAround(ctx context.Context, slow servers.Slowness, well cluster.View) {
	if slow.Now || slow.Self || len(slow.Responsive) == 0 || n.detour.within(aroundAgain) || !n.nc.IsConnected() {
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
		for _, by := range slow.Responsive {
			led := quicklyLed(ctx, by, names)
			if len(led) == 0 || n.leaderAnswers(ctx, led[0]) {
				continue
			}
			if now := n.servers.Slow(); now.Now || now.Self || !n.nc.IsConnected() {
				return // its own server, or its network, stalled just now, or the node is reconnecting anyway
			}
			n.log.Warn("the leader of a stream answers by way of another nats-server alone; going to that", "stream", led[0], "server", by.Conn.ConnectedUrlRedacted())
			n.goTo(by)
			return
		}
	})
}

// goHome goes back to this machine's own server, once that has been well for servers.ReturnAfter and the leaders answer by way of it. That is
// where a node should be: other nodes judge by the server to which it is connected whether its network is slow.
func (n *Node) goHome(ctx context.Context, slow servers.Slowness, well cluster.View) {
	if n.detour.within(servers.ReturnAfter) || slow.Now || slow.Self || len(slow.Recent) > 0 || n.nc.Opts.NoRandomize {
		return
	}
	home, ok := n.servers.LocalEndpoint(n.nc.ConnectedServerName(), time.Now())
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

// goTo goes to a server, and notes when, so that the node does not soon go to another one.
func (n *Node) goTo(to servers.Endpoint) {
	n.detour.mu.Lock()
	n.detour.went = time.Now()
	n.detour.mu.Unlock()
	if err := n.servers.SwitchTo(n.nc, to.URL); err != nil {
		n.log.Warn("could not leave the nats-server", "error", err) // the connection is closed: the node stops
	}
}

// takes names the streams that this node's triggers need: the shared streams, and the output streams of the partitions that it serves or
// should serve.
func (n *Node) takes(well cluster.View) []string {
	names := n.sharedStreams()
	for _, p := range n.partitions {
		if n.putsOut(p, well) {
			names = append(names, n.streams.Out[p.number].Name())
		}
	}
	return names
}

// quicklyLed names those of some streams whose leaders answer by way of a server within servers.LateAfter.
func quicklyLed(ctx context.Context, by servers.Endpoint, names []string) (led []string) {
	ctx, cancel := context.WithTimeout(ctx, servers.LateAfter)
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

// leaderAnswers tells whether the leader of a stream answers by way of this node's present server within servers.SilentAfter.
func (n *Node) leaderAnswers(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, servers.SilentAfter)
	defer cancel()
	return n.lookAtLeader(ctx, name) != ""
}

// leaveCutOff goes to another server if the present one is alive, but the log stream's leader has not answered by way of it for
// cutOffAfter: the server is cut off from the others. The client library would stay, because the connection works. If the
// node's own network is slow, another server would be no better. left is when the node last left a server for this reason, since the
// clock began; the result is the new value of left.
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
