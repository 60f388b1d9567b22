package servers

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Watch finds out which nats-servers of the cluster are slow to answer at the moment.
//
// A server whose network loses packets stays in the cluster, and goes on leading its streams: for JetStream all is well. But
// messages to it wait in the one connection between two servers until TCP has sent again what was lost, behind everything else that
// the two have for each other, and that becomes more every moment. So it is best to move the partitions of an engine there, and
// the streams that are led from there, away early. The answers of the streams would show that too late, because they come by the same
// connection. So a node asks each server ten times a second, on a connection that carries nothing else.
//
// A server is slow by comparison: with what was usual for it, and with the other servers. A node that finds most of them slow
// concludes that its own network is slow.
type Watch struct {
	Config Config // of the connections to ask on; set before Ask

	work sync.WaitGroup

	mu     sync.Mutex
	all    map[string]*natsServer // by URL
	self   time.Time              // when this node's own network was last found slow
	judged Slowness
	next   string // the URL that SwitchTo named; "": any server
}

// natsServer is a server that is asked.
type natsServer struct {
	url   string
	nc    *nats.Conn         // on which it is asked
	spare *nats.Conn         // on which a slow server is told to step down: nothing waits there; nil at first
	end   context.CancelFunc // ends the asking
	local bool               // it is on this machine
	name  string
	died  bool // the connection broke while answers came in time: the server is dead, not slow
	responsiveness
}

const (
	answerEvery   = 100 * time.Millisecond // between two questions
	answerTimeout = 5 * time.Second        // for an answer
	discoverEvery = 5 * time.Second        // between two looks for new servers
	serverRetry   = time.Second            // between two attempts to connect to a server

	// ReturnAfter is how long a server on this machine must have answered in time before a node goes back to it.
	ReturnAfter = 15 * time.Second
)

// Ask asks all servers that the connection main knows of, until ctx ends.
func (w *Watch) Ask(ctx context.Context, main *nats.Conn) {
	w.mu.Lock()
	w.all = make(map[string]*natsServer)
	w.mu.Unlock()
	t := time.NewTicker(discoverEvery)
	defer t.Stop()
	defer w.work.Wait()
	for {
		for _, u := range main.Servers() {
			w.mu.Lock()
			known := w.all[u] != nil
			w.mu.Unlock()
			if !known && ctx.Err() == nil { // so that a stop waits for one silent server at most, not for all
				w.add(ctx, u)
			}
		}
		w.forget(main.Servers(), time.Now())
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// add begins to ask a server.
func (w *Watch) add(ctx context.Context, url string) {
	one := &natsServer{url: url, local: onThisMachine(ctx, url)}
	changed := func(nc *nats.Conn) { w.connected(one, nc) }
	nc, err := w.connectTo(url, " to ask", nats.ConnectHandler(changed), nats.ReconnectHandler(changed),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { w.disconnected(one) }))
	if err != nil {
		return // not a URL, or the server refuses: then it is not watched
	}
	ctx, end := context.WithCancel(ctx)
	one.nc, one.end = nc, end
	w.mu.Lock()
	w.all[url] = one
	w.mu.Unlock()
	w.connected(one, nc)
	w.work.Go(func() {
		defer nc.Close()
		w.askOne(ctx, one)
	})
	w.work.Go(func() { // a silent server must not hold up the others once more
		spare, err := w.connectTo(url, " to tell")
		if err != nil {
			return // as above
		}
		defer spare.Close()
		w.mu.Lock()
		one.spare = spare
		w.mu.Unlock()
		<-ctx.Done()
	})
}

// connectTo connects to one server, now or later, and again whenever the connection breaks.
func (w *Watch) connectTo(url, purpose string, more ...nats.Option) (*nats.Conn, error) {
	return w.Config.ConnectTo(url, purpose, append(more, nats.IgnoreDiscoveredServers(), nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1), nats.ReconnectWait(serverRetry), nats.ReconnectBufSize(-1),
		nats.IgnoreAuthErrorAbort(),                                           // a server may refuse for a moment, while its account resolver is away
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...) // the node's own connection reports the same errors
}

// forget ends the connections to servers that are gone and no longer known to the others. Otherwise a server that comes back under
// another address, as pods do, would leave one behind each time.
func (w *Watch) forget(known []string, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for u, one := range w.all {
		if one.gone(now) && !slices.Contains(known, u) {
			one.end()
			delete(w.all, u)
		}
	}
}

// SwitchTo has a connection reconnect to the server of a URL. The connection's nats.ReconnectToServer option must be Choose. Requests whose
// answers are lost with the old connection are made again, as after any reconnect.
func (w *Watch) SwitchTo(main *nats.Conn, url string) error {
	w.mu.Lock()
	w.next = url
	w.mu.Unlock()
	return main.ForceReconnect()
}

// LocalEndpoint returns the endpoint of a server on this machine that has answered in time for ReturnAfter, if the node is connected to a
// server elsewhere.
func (w *Watch) LocalEndpoint(own string, now time.Time) (local Endpoint, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.all {
		switch {
		case !one.local:
		case one.name == own: // the node is connected to it
			return Endpoint{}, false
		case one.died || one.doubtful(now):
		case now.Sub(one.goodSince) > ReturnAfter:
			local, ok = Endpoint{one.url, one.nc}, true
		}
	}
	return local, ok
}

// Alternatives returns the other servers, the one on this machine first, if the node's own one is on another machine and has been silent
// for leaveAfter, while all the others answer in time: then the way to that machine is broken, and not this node's network. Otherwise it
// returns none.
func (w *Watch) Alternatives(own string, now time.Time) (to []Endpoint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	by := w.byName(now)
	mine := by[own]
	if mine == nil || mine.local || mine.quiet(now) <= leaveAfter {
		return nil
	}
	for name, one := range by {
		switch {
		case name == own:
		case one.doubtful(now):
			return nil
		case one.local:
			to = slices.Insert(to, 0, Endpoint{one.url, one.nc})
		default:
			to = append(to, Endpoint{one.url, one.nc})
		}
	}
	return to
}

// Choose is for nats.ReconnectToServer: it returns the server that SwitchTo named, once; otherwise nil, which leaves the choice to the
// library.
func (w *Watch) Choose(pool []nats.Server, _ nats.ServerInfo) (*nats.Server, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	to := w.next
	w.next = ""
	i := slices.IndexFunc(pool, func(one nats.Server) bool { return one.URL.Scheme+"://"+one.URL.Host == to }) // as Conn.Servers writes it
	if i < 0 {
		return nil, 0
	}
	return &pool[i], 0
}

func (w *Watch) connected(one *natsServer, nc *nats.Conn) {
	if !nc.IsConnected() {
		return
	}
	now, name := time.Now(), nc.ConnectedServerName() // not under mu: it may wait while the connection breaks
	w.mu.Lock()
	defer w.mu.Unlock()
	one.name = name
	if one.died || one.gone(now) {
		one.died, one.lastGood, one.goodSince = false, now, now
	}
}

func (w *Watch) disconnected(one *natsServer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one.died = !one.silent(time.Now())
}

// askOne asks one server until ctx ends.
func (w *Watch) askOne(ctx context.Context, one *natsServer) {
	t := time.NewTicker(answerEvery)
	defer t.Stop()
	for {
		answer, cancel := context.WithTimeout(ctx, answerTimeout)
		sent := time.Now()
		if one.nc.IsConnected() && one.nc.FlushWithContext(answer) == nil {
			w.mu.Lock()
			one.answered(sent, time.Now())
			w.mu.Unlock()
		}
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// Slow is the result of the last Judge.
func (w *Watch) Slow() Slowness {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.judged
}

// Judge judges how all servers answer this node, which is connected to the one named own.
func (w *Watch) Judge(own string, now time.Time) (slow Slowness) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.judged = slow }()
	by := w.byName(now)
	var silent []*natsServer // those of the others that are silent
	others, doubtful := 0, false
	for name, one := range by {
		if name == own {
			continue
		}
		others++
		if one.silent(now) {
			silent = append(silent, one)
		}
		doubtful = doubtful || !one.silent(now) && one.doubtful(now)
	}
	slow = Slowness{Silent: make(map[string][]*nats.Conn), Recent: make(map[string]bool)}
	if others == 0 { // there is nothing to compare with
		return slow
	}
	mine, mostly := by[own], 2*len(silent) > others
	stalls := mine != nil && mine.doubtful(now)
	if mostly && !stalls || mine != nil && mine.quiet(now) > stallMost {
		w.self = now
	}
	slow.Now, slow.Self = mostly || mine != nil && mine.silent(now), now.Sub(w.self) < selfSlowFor
	slow.Unseen = slow.Self && mine != nil && !mine.local
	settling := now.Sub(w.self) < settleFor // also while most are silent and the node's own server is not
	for name, one := range by {
		heard := one.lastGood.After(w.self) || !slow.Self
		if slices.Contains(silent, one) && !doubtful && !stalls && !settling && heard {
			one.lastSlow, slow.Silent[name] = now, []*nats.Conn{one.nc}
			if one.spare != nil {
				slow.Silent[name] = append(slow.Silent[name], one.spare)
			}
		}
		if name != own && !one.doubtful(now) {
			slow.Responsive = append(slow.Responsive, Endpoint{one.url, one.nc})
		}
		if now.Sub(one.lastSlow) < slowFor && !settling {
			slow.Recent[name] = true
		}
	}
	return slow
}

// byName returns the servers that have not died by their names; of several endpoints of one server the best. w.mu is held.
func (w *Watch) byName(now time.Time) map[string]*natsServer {
	by := make(map[string]*natsServer)
	for _, one := range w.all {
		if best := by[one.name]; !one.died && !one.gone(now) && (best == nil || one.lastGood.After(best.lastGood)) {
			by[one.name] = one
		}
	}
	return by
}

// Slowness says who is slow: some servers, or this node itself.
type Slowness struct {
	Now        bool                    // most servers, or the node's own, do not answer this node
	Self       bool                    // this node's own network is slow, or was a moment ago
	Unseen     bool                    // it is, and others cannot tell by the node's server, because that is on another machine
	Silent     map[string][]*nats.Conn // the slow servers by name, with one or two connections to each: one may lose what the other does not
	Recent     map[string]bool         // these, and servers that were slow a moment ago
	Responsive []Endpoint              // the servers that answer in time, without the node's own
}

// Endpoint is an address of a server, with a connection to it.
type Endpoint struct {
	URL  string
	Conn *nats.Conn
}

// String names who is slow, for the log.
func (s Slowness) String() string {
	switch {
	case len(s.Recent) > 0:
		return strings.Join(slices.Sorted(maps.Keys(s.Recent)), ", ")
	case s.Self:
		return "this node's own network"
	}
	return "none"
}
