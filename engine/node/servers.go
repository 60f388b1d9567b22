package node

import (
	"context"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/engine/cluster"
)

// servers knows which nats-servers of the cluster are slow to answer just now.
//
// A server whose network loses packets stays in the cluster, and leads what it leads: for JetStream all is well. But what
// goes to it waits in the one connection between two servers until TCP has sent again what was lost, behind all else that
// they have for each other, and that is more every moment. So the partitions of an engine there and the streams that are led
// from there are best moved away, and early. By the answers of the streams that would be told too late: they come by the same
// connection. So a node asks each server ten times a second, on a connection of its own that carries nothing else.
//
// A server is slow in comparison: with what was usual for it, and with the others. To who finds most of them slow it
// is his own network that is.
type servers struct {
	o    Options
	main *nats.Conn
	work sync.WaitGroup

	mu     sync.Mutex
	all    map[string]*natsServer // by URL
	self   time.Time              // when this node's own network was found slow last
	judged slowness
	next   string // the URL of the one that the main connection is to go to; "": whichever
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
	serversLook = 5 * time.Second        // for servers that are new
	serverRetry = time.Second            // to connect to one
)

// ask asks all servers until ctx ends.
func (s *servers) ask(ctx context.Context) {
	s.mu.Lock()
	s.all = make(map[string]*natsServer)
	s.mu.Unlock()
	t := time.NewTicker(serversLook)
	defer t.Stop()
	defer s.work.Wait()
	for {
		for _, u := range s.main.Servers() {
			s.mu.Lock()
			known := s.all[u] != nil
			s.mu.Unlock()
			if !known && ctx.Err() == nil { // a stop waits for one that says nothing, not for one after the other
				s.add(ctx, u)
			}
		}
		s.forget(s.main.Servers(), time.Now())
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// add begins to ask a server.
func (s *servers) add(ctx context.Context, url string) {
	one := &natsServer{url: url, home: onThisMachine(ctx, url)}
	changed := func(nc *nats.Conn) { s.connected(one, nc) }
	nc, err := s.o.connectTo(withUser(url, s.o.NATS), " to ask", nats.IgnoreDiscoveredServers(), nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1), nats.ReconnectWait(serverRetry), nats.ReconnectBufSize(-1),
		nats.IgnoreAuthErrorAbort(),                                       // one that refuses for a moment, as its own resolver is away, is asked again
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // the node's own connection says the same
		nats.ConnectHandler(changed), nats.ReconnectHandler(changed),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { s.broke(one) }))
	if err != nil {
		return // the URL is none, or its server refuses: nothing is known of it
	}
	ctx, end := context.WithCancel(ctx)
	one.nc, one.end = nc, end
	s.mu.Lock()
	s.all[url] = one
	s.mu.Unlock()
	s.connected(one, nc)
	s.work.Go(func() {
		defer nc.Close()
		s.askOne(ctx, one)
	})
}

// forget ends the connections to servers of which others tell no more and that are gone: one that comes back elsewhere, as pods do,
// would leave one behind each time.
func (s *servers) forget(known []string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for u, one := range s.all {
		if one.gone(now) && !slices.Contains(known, u) {
			one.end()
			delete(s.all, u)
		}
	}
}

// goTo has the main connection go to a server. A request whose answer is lost with the old one is made again, as ever.
func (s *servers) goTo(url string) error {
	s.mu.Lock()
	s.next = url
	s.mu.Unlock()
	return s.main.ForceReconnect()
}

// wayHome is to a server of this machine that has been well for long, where the node is connected to another one.
func (s *servers) wayHome(own string, now time.Time) (home way, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.all {
		switch {
		case !one.home:
		case one.name == own: // it is there
			return way{}, false
		case one.died || one.doubtful(now):
		case now.Sub(one.since) > homeAfter:
			home, ok = way{one.url, one.nc}, true
		}
	}
	return home, ok
}

// choose is for nats.ReconnectToServer: the server that goTo named, once; nil is the library's own choice.
func (s *servers) choose(pool []nats.Server, _ nats.ServerInfo) (*nats.Server, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := s.next
	s.next = ""
	i := slices.IndexFunc(pool, func(one nats.Server) bool { return one.URL.Scheme+"://"+one.URL.Host == to }) // as Conn.Servers writes it
	if i < 0 {
		return nil, 0
	}
	return &pool[i], 0
}

// withUser gives the URL of a server that others told of the user of those that were given.
func withUser(found, given string) string {
	u, err := url.Parse(found)
	if err != nil || u.User != nil {
		return found
	}
	for g := range strings.SplitSeq(given, ",") {
		if g = strings.TrimSpace(g); !strings.Contains(g, "://") {
			g = "nats://" + g // as the library takes it
		}
		if from, err := url.Parse(g); err == nil && from.User != nil {
			u.User = from.User
		}
	}
	return u.String()
}

func (s *servers) connected(one *natsServer, nc *nats.Conn) {
	if !nc.IsConnected() {
		return
	}
	now, name := time.Now(), nc.ConnectedServerName() // which may wait for a connection that breaks in this moment
	s.mu.Lock()
	defer s.mu.Unlock()
	one.name = name
	if one.died || one.gone(now) {
		one.died, one.quick, one.since = false, now, now
	}
}

func (s *servers) broke(one *natsServer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one.died = !one.silent(time.Now())
}

// askOne asks one server until ctx ends.
func (s *servers) askOne(ctx context.Context, one *natsServer) {
	t := time.NewTicker(answerEvery)
	defer t.Stop()
	for {
		answer, cancel := context.WithTimeout(ctx, replyTimeout)
		sent := time.Now()
		if one.nc.IsConnected() && one.nc.FlushWithContext(answer) == nil {
			s.mu.Lock()
			one.came(sent, time.Now())
			s.mu.Unlock()
		}
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// slow is who was slow when that was last judged.
func (s *servers) slow() slowness {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.judged
}

// judge looks how all servers answer a node that is connected to one of them.
func (s *servers) judge(own string, now time.Time) (slow slowness) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.judged = slow }()
	by := make(map[string]*natsServer) // of several ways to one the best
	for _, one := range s.all {
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
	slow = slowness{silent: make(map[string]*nats.Conn), lately: make(map[string]bool)}
	if others == 0 { // there is nothing to compare with
		return slow
	}
	home, mostly := by[own], 2*len(silent) > others
	stalls := home != nil && home.doubtful(now)
	if mostly && !stalls || home != nil && now.Sub(home.quick) > stallMost {
		s.self = now
	}
	slow.now, slow.self = mostly || home != nil && home.silent(now), now.Sub(s.self) < selfSlowFor
	settling := now.Sub(s.self) < settleFor // so it is where most are silent and its own server is not
	for name, one := range by {
		if slices.Contains(silent, one) && !doubtful && !stalls && !settling {
			one.slow, slow.silent[name] = now, one.nc
		}
		if name != own && !one.doubtful(now) {
			slow.well = append(slow.well, way{one.url, one.nc})
		}
		if now.Sub(one.slow) < slowFor && !settling {
			slow.lately[name] = true
		}
	}
	return slow
}

// slowness is who is slow: some servers, or this node itself.
type slowness struct {
	now    bool                  // most or its own do not answer this node
	self   bool                  // it is this node's network that is slow, or was a moment ago
	silent map[string]*nats.Conn // the servers by name, with a way to each
	lately map[string]bool       // those, and who were slow a moment ago
	well   []way                 // to servers that answer, but its own
}

// way is one to a server.
type way struct {
	url string
	nc  *nats.Conn
}

// String is for the log.
func (s slowness) String() string {
	switch {
	case len(s.lately) > 0:
		return strings.Join(slices.Sorted(maps.Keys(s.lately)), ", ")
	case s.self:
		return "this node's own network"
	}
	return "none"
}

// without is the view without those whose nats-server is slow: others are to serve what they do, until they are well again.
func (s slowness) without(v cluster.View, self string) cluster.View {
	if len(s.lately) > 0 {
		v.Members = slices.DeleteFunc(slices.Clone(v.Members), func(b cluster.Beat) bool { return b.Name != self && s.lately[b.Server] })
	}
	return v
}

// promptness judges a server by when it answered.
type promptness struct {
	usual time.Duration // how long it takes
	quick time.Time     // when the latest question was sent that was answered in about as long
	since time.Time     // the first of those without silence between them
	slow  time.Time     // when it was found slow last
}

const (
	// answerLate is how long an answer may take and is not late: more than what the stalls of a busy machine take, mostly.
	answerLate = 80 * time.Millisecond
	// answerLater is how many times as long as usual it may.
	answerLater = 4
	// silentAfter is how long there may be no answer in time: two of them may be late.
	silentAfter   = 250 * time.Millisecond
	doubtfulAfter = 150 * time.Millisecond
	// slowFor is how long a server that was slow is to answer in time before it counts as well: packets are lost at
	// random, and what moves there would have to leave again. To itself a node is slow for longer, so that nobody takes
	// away again what it takes back.
	slowFor     = 3 * time.Second
	selfSlowFor = slowFor + time.Second
	goneAfter   = 30 * time.Second
	// stallMost is how long its own server may be silent before a node takes that for its network: a busy machine stalls.
	stallMost = time.Second
	// settleFor is how long others may need to answer, one after the other, once this node's network is well again.
	settleFor = time.Second
)

// came notes the answer to a question. What is quicker than usual is soon usual, what is slower after a quarter of an hour.
func (p *promptness) came(sent, now time.Time) {
	took := now.Sub(sent)
	switch {
	case p.usual == 0:
		p.usual = took
	case took < p.usual:
		p.usual += (took - p.usual) / 8
	default:
		p.usual += (took - p.usual) / 8192
	}
	if took <= max(answerLate, answerLater*p.usual) {
		if p.silent(sent) {
			p.since = sent
		}
		p.quick = sent
	}
}

func (p *promptness) silent(now time.Time) bool { return now.Sub(p.quick) > silentAfter }

// gone tells whether it has been silent for so long that it is not slow, but dead.
func (p *promptness) gone(now time.Time) bool { return now.Sub(p.quick) > goneAfter }

// doubtful tells whether it may be about to be silent.
func (p *promptness) doubtful(now time.Time) bool { return now.Sub(p.quick) > doubtfulAfter }
