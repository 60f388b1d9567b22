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

// Watch knows which nats-servers of the cluster are slow to answer just now.
//
// A server whose network loses packets stays in the cluster, and leads what it leads: for JetStream all is well. But what
// goes to it waits in the one connection between two servers until TCP has sent again what was lost, behind all else that
// they have for each other, and that is more every moment. So the partitions of an engine there and the streams that are led
// from there are best moved away, and early. By the answers of the streams that would be told too late: they come by the same
// connection. So a node asks each server ten times a second, on a connection of its own that carries nothing else.
//
// A server is slow in comparison: with what was usual for it, and with the others. To who finds most of them slow it
// is his own network that is.
type Watch struct {
	Config Config // of the connections by which they are asked; set before Ask

	work sync.WaitGroup

	mu     sync.Mutex
	all    map[string]*natsServer // by URL
	self   time.Time              // when this node's own network was found slow last
	judged Slowness
	next   string // the URL of the one that GoTo named; "": whichever
}

// natsServer is one that is asked.
type natsServer struct {
	url  string
	nc   *nats.Conn
	end  context.CancelFunc // of asking it
	home bool               // it is on this machine
	name string
	died bool // the connection broke while all was well: that is not slowness
	promptness
}

const (
	answerEvery = 100 * time.Millisecond // an answer is asked for
	answerMost  = 5 * time.Second        // it is waited for
	serversLook = 5 * time.Second        // for servers that are new
	serverRetry = time.Second            // to connect to one

	// HomeAfter is how long this machine's own server is to be well before a node goes back to it.
	HomeAfter = 15 * time.Second
)

// Ask asks all servers that main knows of until ctx ends.
func (w *Watch) Ask(ctx context.Context, main *nats.Conn) {
	w.mu.Lock()
	w.all = make(map[string]*natsServer)
	w.mu.Unlock()
	t := time.NewTicker(serversLook)
	defer t.Stop()
	defer w.work.Wait()
	for {
		for _, u := range main.Servers() {
			w.mu.Lock()
			known := w.all[u] != nil
			w.mu.Unlock()
			if !known && ctx.Err() == nil { // a stop waits for one that says nothing, not for one after the other
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
	one := &natsServer{url: url, home: onThisMachine(ctx, url)}
	changed := func(nc *nats.Conn) { w.connected(one, nc) }
	nc, err := w.Config.ConnectTo(url, " to ask", nats.IgnoreDiscoveredServers(), nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1), nats.ReconnectWait(serverRetry), nats.ReconnectBufSize(-1),
		nats.IgnoreAuthErrorAbort(),                                       // one that refuses for a moment, as its own resolver is away, is asked again
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // the node's own connection says the same
		nats.ConnectHandler(changed), nats.ReconnectHandler(changed),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { w.broke(one) }))
	if err != nil {
		return // the URL is none, or its server refuses: nothing is known of it
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
}

// forget ends the connections to servers of which others tell no more and that are gone: one that comes back elsewhere, as pods do,
// would leave one behind each time.
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

// GoTo has a connection go to the server of a URL, if its nats.ReconnectToServer is Choose. A request whose answer is lost with the old one is made again, as ever.
func (w *Watch) GoTo(main *nats.Conn, url string) error {
	w.mu.Lock()
	w.next = url
	w.mu.Unlock()
	return main.ForceReconnect()
}

// WayHome is to a server of this machine that has been well for long, where the node is connected to another one.
func (w *Watch) WayHome(own string, now time.Time) (home Way, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.all {
		switch {
		case !one.home:
		case one.name == own: // it is there
			return Way{}, false
		case one.died || one.doubtful(now):
		case now.Sub(one.since) > HomeAfter:
			home, ok = Way{one.url, one.nc}, true
		}
	}
	return home, ok
}

// Choose is for nats.ReconnectToServer: the server that GoTo named, once; nil is the library's own choice.
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
	now, name := time.Now(), nc.ConnectedServerName() // which may wait for a connection that breaks in this moment
	w.mu.Lock()
	defer w.mu.Unlock()
	one.name = name
	if one.died || one.gone(now) {
		one.died, one.quick, one.since = false, now, now
	}
}

func (w *Watch) broke(one *natsServer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one.died = !one.silent(time.Now())
}

// askOne asks one server until ctx ends.
func (w *Watch) askOne(ctx context.Context, one *natsServer) {
	t := time.NewTicker(answerEvery)
	defer t.Stop()
	for {
		answer, cancel := context.WithTimeout(ctx, answerMost)
		sent := time.Now()
		if one.nc.IsConnected() && one.nc.FlushWithContext(answer) == nil {
			w.mu.Lock()
			one.came(sent, time.Now())
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

// Slow is who was slow when that was last judged.
func (w *Watch) Slow() Slowness {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.judged
}

// Judge looks how all servers answer a node that is connected to one of them.
func (w *Watch) Judge(own string, now time.Time) (slow Slowness) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.judged = slow }()
	by := make(map[string]*natsServer) // of several ways to one the best
	for _, one := range w.all {
		if best := by[one.name]; !one.died && !one.gone(now) && (best == nil || one.quick.After(best.quick)) {
			by[one.name] = one
		}
	}
	var silent []*natsServer // of the others
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
	slow = Slowness{Silent: make(map[string]*nats.Conn), Lately: make(map[string]bool)}
	if others == 0 { // there is nothing to compare with
		return slow
	}
	home, mostly := by[own], 2*len(silent) > others
	stalls := home != nil && home.doubtful(now)
	if mostly && !stalls || home != nil && now.Sub(home.quick) > stallMost {
		w.self = now
	}
	slow.Now, slow.Self = mostly || home != nil && home.silent(now), now.Sub(w.self) < selfSlowFor
	settling := now.Sub(w.self) < settleFor // so it is where most are silent and its own server is not
	for name, one := range by {
		if slices.Contains(silent, one) && !doubtful && !stalls && !settling {
			one.slow, slow.Silent[name] = now, one.nc
		}
		if name != own && !one.doubtful(now) {
			slow.Well = append(slow.Well, Way{one.url, one.nc})
		}
		if now.Sub(one.slow) < slowFor && !settling {
			slow.Lately[name] = true
		}
	}
	return slow
}

// Slowness is who is slow: some servers, or this node itself.
type Slowness struct {
	Now    bool                  // most or its own do not answer this node
	Self   bool                  // it is this node's network that is slow, or was a moment ago
	Silent map[string]*nats.Conn // the servers by name, with a way to each
	Lately map[string]bool       // those, and who were slow a moment ago
	Well   []Way                 // to servers that answer, but its own
}

// Way is one to a server.
type Way struct {
	URL  string
	Conn *nats.Conn
}

// String is for the log.
func (s Slowness) String() string {
	switch {
	case len(s.Lately) > 0:
		return strings.Join(slices.Sorted(maps.Keys(s.Lately)), ", ")
	case s.Self:
		return "this node's own network"
	}
	return "none"
}
