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

// switching is about the nats-server by way of which a node reaches the streams, and clients reach the node (keepTogether). At first this
// is the one on the node's own machine, if there is one (servers.Config). The node goes to another one if its present one is on another
// machine and alone does not answer (switchIfSilent), if a leader is reached only by way of another one (switchIfUnreachable), or if the
// log's leader does not answer by way of its present one (switchIfCutOff). It goes back once the server of its machine is well again
// (switchBack).
type switching struct {
	probing atomic.Bool // a goroutine asks by way of other servers

	mu   sync.Mutex
	left map[string]time.Time // when the node last left each server because a leader was out of its reach

	together string // the server at which keepTogether last saw to both connections; used by checkServers alone
}

const (
	// switchAgain is how long the node does not go back to a server that it left. A leader that most servers cannot reach is replaced sooner.
	switchAgain = 10 * time.Second
	// cutOffAfter is how long the log stream may stay silent before the node goes to another server. It is longer than an election takes,
	// during which the stream is silent by way of every server.
	cutOffAfter = 10 * time.Second
)

// leftWithin tells whether the node left a server, because a leader was out of its reach, less than lately ago.
func (s *switching) leftWithin(server string, lately time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.left[server]) < lately
}

func (s *switching) noteLeft(server string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left == nil {
		s.left = make(map[string]time.Time)
	}
	s.left[server] = time.Now()
}

// switchIfSilent goes to another server if the present one, on another machine, is the only one that does not answer: the way to that
// machine is broken, or the server is frozen. The connection's own pings would find that out after two to three seconds. It goes to the one
// that reaches most leaders, because the present one may go on leading streams, and servers do not route messages around a broken link.
func (n *Node) switchIfSilent(ctx context.Context, well cluster.View) {
	others := n.servers.Alternatives(n.nc.ConnectedServerName(), time.Now())
	if len(others) == 0 || !n.nc.IsConnected() || !n.switching.probing.CompareAndSwap(false, true) {
		return
	}
	n.work.Go(func() { // leaving may take as long as a write that nobody takes
		defer n.switching.probing.Store(false)
		names := n.neededStreams(well)
		to := reachesMost(ctx, others, names[:min(len(names), leadersMost)])
		n.log.Warn("this nats-server alone does not answer; going to another one", "server", n.nc.ConnectedUrlRedacted(), "to", to.Conn.ConnectedUrlRedacted())
		n.switchTo(to)
	})
}

// switchIfUnreachable goes to another server if the leader of a stream that this node needs does not answer by way of its present server,
// but answers quickly by way of the other one. That is so if the link between two hosts is broken and a third one reaches both, because
// servers do not route messages around a broken link. If the leader is slow, or there is none, it does not answer quickly by way of any
// server.
func (n *Node) switchIfUnreachable(ctx context.Context, slow servers.Slowness, well cluster.View) {
	if slow.Now || slow.Self || len(slow.Responsive) == 0 || !n.nc.IsConnected() {
		return
	}
	names := n.leaders.unresponsive(slow)
	if len(names) == 0 {
		return
	}
	needed := n.neededStreams(well)
	names = slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(needed, name) })
	names = names[:min(len(names), leadersMost)]
	if len(names) == 0 || !n.switching.probing.CompareAndSwap(false, true) {
		return
	}
	n.work.Go(func() {
		defer n.switching.probing.Store(false)
		for _, by := range slow.Responsive {
			if n.switching.leftWithin(by.Conn.ConnectedServerName(), switchAgain) {
				continue
			}
			answered := reachable(ctx, by, names)
			if len(answered) == 0 || n.leaderAnswers(ctx, answered[0]) {
				continue
			}
			if now := n.servers.Slow(); now.Now || now.Self || !n.nc.IsConnected() {
				return // its own server, or its network, stalled just now, or the node is reconnecting anyway
			}
			n.log.Warn("the leader of a stream answers by way of another nats-server alone; going to that", "stream", answered[0], "server", by.Conn.ConnectedUrlRedacted())
			n.switching.noteLeft(n.nc.ConnectedServerName())
			n.switchTo(by)
			return
		}
	})
}

// switchBack goes back to this machine's own server, once that has been well for servers.ReturnAfter and the leaders answer by way of it.
// That is where a node should be: other nodes judge by the server to which it is connected whether its network is slow. It may leave again
// at once.
func (n *Node) switchBack(ctx context.Context, slow servers.Slowness, well cluster.View) {
	if slow.Now || slow.Self || len(slow.Recent) > 0 {
		return
	}
	local, ok := n.servers.LocalEndpoint(n.nc.ConnectedServerName(), time.Now())
	if !ok || n.switching.leftWithin(local.Conn.ConnectedServerName(), servers.ReturnAfter) || n.servers.Config.KeepsOrder() ||
		!n.switching.probing.CompareAndSwap(false, true) {
		return
	}
	n.work.Go(func() {
		defer n.switching.probing.Store(false)
		names := n.neededStreams(well)
		names = names[:min(len(names), leadersMost)]
		if len(reachable(ctx, local, names)) < len(names) {
			return
		}
		n.log.Info("going back to the nats-server of this machine", "server", local.Conn.ConnectedUrlRedacted())
		n.switchTo(local)
	})
}

// switchTo goes to a server.
func (n *Node) switchTo(to servers.Endpoint) {
	if err := n.servers.SwitchTo(n.nc, to.URL); err != nil {
		n.log.Warn("could not leave the nats-server", "error", err) // the connection is closed: the node stops
	}
}

// neededStreams names the streams that this node's triggers need: the shared streams, and the output streams of the partitions that it
// serves or should serve.
func (n *Node) neededStreams(well cluster.View) []string {
	names := n.sharedStreams()
	for _, p := range n.partitions {
		if n.servesOrShould(p, well) {
			names = append(names, n.streams.Out[p.number].Name())
		}
	}
	return names
}

// reachable names those of some streams whose leaders answer by way of a server within servers.LateAfter.
func reachable(ctx context.Context, by servers.Endpoint, names []string) (answered []string) {
	ctx, cancel := context.WithTimeout(ctx, servers.LateAfter)
	defer cancel()
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, name := range names {
		asked.Go(func() {
			if leader, _, err := streams.LeaderBy(ctx, by.Conn, name); err == nil && leader != "" {
				mu.Lock()
				defer mu.Unlock()
				answered = append(answered, name)
			}
		})
	}
	asked.Wait()
	return answered
}

// reachesMost returns that of some servers by way of which most leaders of some streams answer in time; of those that are equal, the first.
func reachesMost(ctx context.Context, by []servers.Endpoint, names []string) servers.Endpoint {
	answered := make([]int, len(by))
	var asked sync.WaitGroup
	for i, one := range by {
		asked.Go(func() { answered[i] = len(reachable(ctx, one, names)) })
	}
	asked.Wait()
	return by[slices.Index(answered, slices.Max(answered))]
}

// leaderAnswers tells whether the leader of a stream answers by way of this node's present server within servers.SilentAfter.
func (n *Node) leaderAnswers(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, servers.SilentAfter)
	defer cancel()
	return n.askLeader(ctx, name) != ""
}

// switchIfCutOff goes to another server if the present one is alive, but the log stream's leader has not answered by way of it for
// cutOffAfter: the server is cut off from the others. The client library would stay, because the connection works. If the
// node's own network is slow, another server would be no better. left is when the node last left a server for this reason, since the
// clock began; the result is the new value of left.
func (n *Node) switchIfCutOff(left time.Duration) time.Duration {
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

// keepTogether has the connection of requests follow the other one to another server: what cuts one off from the streams' leaders cuts it
// off from clients, too. It does so once after each change, because a server may refuse further connections.
func (n *Node) keepTogether() {
	at, requests := n.nc.ConnectedServerId(), n.requestConn.ConnectedServerId()
	if at == "" || requests == "" || at == n.switching.together {
		return
	}
	n.switching.together = at
	if requests != at {
		if err := n.requestConn.ForceReconnect(); err != nil { // to the other one's server (servers.Beside)
			n.log.Warn("could not leave the nats-server", "error", err) // the connection is closed: the node stops
		}
	}
}
