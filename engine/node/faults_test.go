package node_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
)

// Three nats-servers hold each stream, and three engines serve. Random faults happen to the processes; if there are three
// hosts with one server and one engine each, also to the network between them. In the end everything that was published is
// checked.
func TestFaults(t *testing.T) {
	t.Parallel()
	t.Run("processes", func(t *testing.T) {
		t.Parallel()
		survive(t, nil, processFaults, envInt(t, "CARILLON_FAULTS", 1))
	})
	t.Run("network", func(t *testing.T) {
		t.Parallel()
		rounds, faults := envInt(t, "CARILLON_FAULTS", 1), networkFaults
		if rounds > 1 {
			faults = slices.Concat(processFaults, networkFaults)
		}
		if hosts, ok := startHosts(t, 4); ok {
			survive(t, hosts, faults, rounds)
		}
	})
}

// Two nodes do not see each other, while both are well connected to NATS. Each takes the other for dead, and claims all
// partitions, again and again, for as long as that lasts. Each output is published once. In the end each partition has one owner.
func TestSplitViews(t *testing.T) {
	t.Parallel()
	apart := time.Duration(envInt(t, "CARILLON_SPLIT", 3)) * time.Second
	url, replicas := startNATS(t)
	last := url[strings.LastIndex(url, ",")+1:]
	w := startProxy(t, strings.TrimPrefix(last, "nats://"))
	f := newFleet(t, url, 4)
	f.replicas = replicas
	f.settings["b"] = settings{Data: t.TempDir(), Name: "b", NATS: w.url(), Confined: true, Partitions: 4, Replicas: replicas, CheckpointEvery: 2 * time.Second}
	f.start("a")
	f.start("b")
	c := carillon.Connect(dial(t, url), carillon.WithTimeout(10*time.Second))
	f.shared(c, "a", "b")
	l := startLoad(t, url, "v", true)
	before := map[string]int{"a": f.lost("a"), "b": f.lost("b")}
	split := time.Now()
	w.rename("CARILLON_NODES", "CARILLON_NODEZ") // b looks for others in another bucket, where there are none
	time.Sleep(apart)
	eventually(t, "each has taken what the other one took from it", func() bool {
		return f.lost("a") > before["a"]+f.partitions && f.lost("b") > before["b"]+f.partitions
	})
	w.rename("", "")
	f.shared(c, "a", "b")
	t.Logf("in %s a lost a partition to b %d times, and b to a %d times",
		time.Since(split).Round(time.Second), f.lost("a")-before["a"], f.lost("b")-before["b"])
	h, end := l.finish()
	all := allOutputs(t, l.nc, f.partitions)
	h.verify(t, all, end)
	t.Logf("the latest trigger came %s late", latest(all, span{from: split.UnixMilli(), to: end}).Round(time.Millisecond))
	f.terminate()
}

// An engine whose nats-server is cut off from the others goes to one of these, although its server still answers it. It leaves that one in
// turn once it alone does not answer, before the connection's pings would tell.
func TestServerCutOff(t *testing.T) {
	t.Parallel()
	hosts, ok := startHosts(t, 4)
	if !ok {
		return
	}
	servers, urls := startExternals(t, hosts...)
	f := newFleet(t, urls, 4)
	// It is given one server, and learns of the others from that.
	f.settings["a"] = settings{Data: t.TempDir(), Name: "a", NATS: servers[0].url, Partitions: f.partitions, Replicas: 3, on: hosts[3]}
	f.start("a")
	hosts[0].sever(hosts[1], hosts[2])
	eventually(t, "the engine leaves the server", func() bool {
		return contains(f.nodes["a"].log, "answers by way of another nats-server alone")
	})
	c := carillon.Connect(dial(t, servers[1].url, from(hosts)...), carillon.WithTimeout(20*time.Second))
	fires(t, c, "elsewhere")

	left := false
	for range 10 { // on a busy machine the others may seem to stall, too, and then the pings are waited for
		again := lines(f.nodes["a"].log, "connected to NATS again", "connection=main")
		i := slices.IndexFunc(servers, func(s *external) bool { return strings.Contains(again[len(again)-1], s.url) })
		for _, h := range hosts {
			h.heal()
		}
		hosts[i].sever(hosts[3])
		eventually(t, "the engine is connected to another server", func() bool {
			return len(lines(f.nodes["a"].log, "connected to NATS again", "connection=main")) > len(again)
		})
		if left = contains(f.nodes["a"].log, "this nats-server alone does not answer", servers[i].url); left {
			break
		}
	}
	if !left {
		t.Error("the engine waited for its pings each time")
	}
	fires(t, c, "away")
	f.nodes["a"].terminate(t)
}

// Nothing passes between two hosts, but the third one reaches both, and all streams have a leader that most replicas follow. An engine
// whose server cannot reach that leader goes to the third host's server, and back when all is well again.
func TestLinkCut(t *testing.T) {
	t.Parallel()
	hosts, ok := startHosts(t, 4)
	if !ok {
		return
	}
	servers, urls := startExternals(t, hosts...)
	f := newFleet(t, urls, 4)
	f.settings["a"] = settings{Data: t.TempDir(), Name: "a", NATS: urls, Partitions: f.partitions, Replicas: 3, on: hosts[0]}
	f.start("a")
	nc := dial(t, servers[2].url, append(from(hosts), nats.IgnoreDiscoveredServers())...)
	c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	eventually(t, "the server that stays in reach leads what would be missed otherwise", func() bool { return ledBy(nc, servers[2].Name, needed...) })
	var outs []string
	for p := range f.partitions {
		outs = append(outs, outStream(p))
	}
	eventually(t, "the other one leads all outputs", func() bool { return ledBy(nc, servers[1].Name, outs...) })
	put(t, c, beat)
	hosts[0].sever(hosts[1])
	eventually(t, "the engine goes to the third server", func() bool {
		return contains(f.nodes["a"].log, "answers by way of another nats-server alone", servers[2].url)
	})
	fires(t, c, "around") // and its output is stored
	hosts[0].heal()
	eventually(t, "it comes back to its own, which others judge it by", func() bool {
		return strings.Contains(connected(f.nodes["a"]), servers[0].url)
	})
	fires(t, c, "at-home")

	// It may leave again at once, and go on from there to the one that leads the outputs. On a busy machine either may take as long as if it
	// might not, so they are tried more than once.
	const leaves = "answers by way of another nats-server alone"
	leavesAt := func(from, to *host) (at time.Time, ok bool) {
		before := len(lines(f.nodes["a"].log, leaves))
		from.sever(to)
		eventually(t, "it goes to another server, or replicas that do not hear the leader elect another one", func() bool {
			return len(lines(f.nodes["a"].log, leaves)) > before || slices.ContainsFunc(outs, func(out string) bool {
				by := leaderOf(nc, out)
				return by != "" && by != servers[1].Name
			})
		})
		told := lines(f.nodes["a"].log, leaves)
		return lastTime(t, told), len(told) > before
	}
	again, onward := false, false
	for range 5 {
		for _, h := range hosts {
			h.heal()
		}
		eventually(t, "it is at home", func() bool { return strings.Contains(connected(f.nodes["a"]), servers[0].url) })
		eventually(t, "the other one leads all outputs still, or again", func() bool { return ledBy(nc, servers[1].Name, outs...) })
		returned := lastTime(t, []string{connected(f.nodes["a"])})
		left, ok := leavesAt(hosts[0], hosts[1])
		if again = again || ok && left.Sub(returned) < 8*time.Second; !ok {
			continue
		}
		hosts[0].heal()
		eventually(t, "the other one leads all outputs still, or again", func() bool { return ledBy(nc, servers[1].Name, outs...) })
		gone, ok := leavesAt(hosts[1], hosts[2])
		if onward = onward || ok && gone.Sub(left) < 8*time.Second; again && onward {
			break
		}
	}
	if !again || !onward {
		t.Errorf("it stays where it is for a while each time, although the leaders are out of reach: at home %t, away %t", !again, !onward)
	}

	// While it is away, the link to the server where it is breaks. Its own server does not reach what that one leads either.
	const silent = "this nats-server alone does not answer"
	left := false
	for range 10 { // on a busy machine the others may seem to stall, too, and then the pings are waited for, or it is back at home
		for _, h := range hosts {
			h.heal()
		}
		eventually(t, "the third one leads what every node needs", func() bool { return ledBy(nc, servers[2].Name, needed...) })
		eventually(t, "the other one leads all outputs", func() bool { return ledBy(nc, servers[1].Name, outs...) })
		at := slices.IndexFunc(servers, func(s *external) bool { return strings.Contains(connected(f.nodes["a"]), s.url) })
		before, moves := len(lines(f.nodes["a"].log, silent)), connected(f.nodes["a"])
		hosts[0].sever(hosts[max(at, 1)]) // from home, that makes it leave, unless other leaders are elected first
		eventually(t, "it is connected to another server, or need not be", func() bool {
			return connected(f.nodes["a"]) != moves || at == 0 && slices.ContainsFunc(outs, func(out string) bool {
				by := leaderOf(nc, out)
				return by != "" && by != servers[1].Name
			})
		})
		if told := lines(f.nodes["a"].log, silent); len(told) > before {
			left = true
			if other := servers[3-at]; !strings.Contains(told[len(told)-1], "to="+other.url) {
				t.Errorf("from server %d it went to one that does not reach the leaders there: %s", at, told[len(told)-1])
			}
			break
		}
	}
	if !left {
		t.Error("the engine waited for its pings each time")
	}
	f.nodes["a"].terminate(t)
}

// connected is the last line of an engine's log about its connection to NATS.
func connected(p *process) string {
	all := lines(p.log, "connected to NATS", "connection=main")
	return all[len(all)-1]
}

// The server of a host with a slow and lossy network leads no stream that triggers need, although to JetStream it is a replica as
// good as any, and the host's engine serves nothing. When the network is well again the engine takes its share again.
func TestSlowHost(t *testing.T) {
	t.Parallel()
	hosts, ok := startHosts(t, 4)
	if !ok {
		return
	}
	servers, urls := startExternals(t, hosts...)
	f := newFleet(t, urls, 4)
	names := []string{"a", "b", "c"}
	for i, name := range names {
		f.settings[name] = settings{Data: t.TempDir(), Name: name, NATS: urls, Partitions: f.partitions, Replicas: 3, Follow: f.follow, on: hosts[i]}
		f.start(name)
	}
	nc := dial(t, servers[1].url, append(from(hosts), nats.IgnoreDiscoveredServers())...)
	c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	f.shared(c, names...)
	put(t, c, beat)
	leads := func(server string) (streams []string) {
		for _, stream := range streamsOf(f.partitions) {
			if leaderOf(nc, stream) == server {
				streams = append(streams, stream)
			}
		}
		return streams
	}
	slow := servers[0].Name
	eventually(t, "one server leads all streams", func() bool { return ledBy(nc, slow, streamsOf(f.partitions)...) })
	beats(t, c, 20)
	hosts[0].slow(100*time.Millisecond, 25*time.Millisecond, 0.1)
	eventually(t, "another leads each of them", func() bool {
		return len(leads(servers[1].Name))+len(leads(servers[2].Name)) == len(streamsOf(f.partitions))
	})
	eventually(t, "others serve all partitions", func() bool { return !slices.Contains(owners(status(t, c)), "a") })
	beats(t, c, 20)
	if again := leads(slow); len(again) > 0 {
		t.Errorf("%s leads %v again", slow, again)
	}
	hosts[0].heal()
	f.shared(c, names...)
	beats(t, c, 20)
	f.terminate()
}

// An engine has no nats-server on its host, and that host's network is slow. Nobody could tell by the server that the engine is connected to,
// and its beats go on. It says so itself, and others serve its partitions until it is well again.
func TestSlowHostWithoutServer(t *testing.T) {
	t.Parallel()
	hosts, ok := startHosts(t, 5)
	if !ok {
		return
	}
	_, urls := startExternals(t, hosts...)
	f := newFleet(t, urls, 4)
	names := []string{"a", "b", "d"}
	alone := hosts[3] // d's: the servers are on the first three
	for i, on := range []*host{hosts[0], hosts[1], alone} {
		name := names[i]
		f.settings[name] = settings{Data: t.TempDir(), Name: name, NATS: urls, Partitions: f.partitions, Replicas: 3, Follow: f.follow, on: on}
		f.start(name)
	}
	c := carillon.Connect(dial(t, urls, from(hosts)...), carillon.WithTimeout(20*time.Second))
	f.shared(c, names...)
	put(t, c, beat)
	beats(t, c, 20)
	alone.slow(60*time.Millisecond, 0, 0)
	eventually(t, "others serve all partitions", func() bool { return !slices.Contains(owners(status(t, c)), "d") })
	beats(t, c, 20)
	if by := owners(status(t, c)); slices.Contains(by, "d") {
		t.Errorf("the slow engine has taken a partition back: %v", by)
	}
	alone.heal()
	f.shared(c, names...)
	beats(t, c, 20)
	f.terminate()
}

// If the network between all hosts is slow, no node is well enough to judge which one is dead. An owner that is killed then is replaced
// all the same, because by the log nothing that is due fires.
func TestSlowEverywhere(t *testing.T) {
	t.Parallel()
	hosts, ok := startHosts(t, 4)
	if !ok {
		return
	}
	servers, urls := startExternals(t, hosts...)
	f := newFleet(t, urls, 4)
	names := []string{"a", "b", "c"}
	for i, name := range names {
		f.settings[name] = settings{Data: t.TempDir(), Name: name, NATS: servers[i].url, Partitions: f.partitions, Replicas: 3, on: hosts[i]}
		f.start(name)
	}
	l := startLoad(t, urls, "s", true, from(hosts)...)
	c := carillon.Connect(dial(t, urls, from(hosts)...), carillon.WithTimeout(20*time.Second))
	f.shared(c, names...)
	l.firesBeyond(f.partitions, time.Now())
	for _, h := range hosts[:3] {
		h.slow(25*time.Millisecond, 5*time.Millisecond, 0)
	}
	for _, name := range names {
		eventually(t, name+" finds its network slow", func() bool { return contains(f.nodes[name].log, "slow to answer", "this node's own network") })
	}
	f.nodes["c"].kill()
	eventually(t, "others serve all partitions", func() bool {
		by := owners(status(t, c))
		return !slices.Contains(by, "c") && !slices.Contains(by, "")
	})
	for _, name := range []string{"a", "b"} {
		log := f.nodes[name].log.String()
		finding, _, _ := strings.Cut(log[strings.LastIndex(log, "slow to answer"):], "\n")
		if !strings.Contains(finding, "this node's own network") {
			t.Errorf("%s no longer found its network slow: %s", name, finding)
		}
	}
	l.firesBeyond(f.partitions, time.Now())
	for _, h := range hosts {
		h.heal()
	}
	l.verify(f.partitions)
	f.terminate()
}

// ledBy asks that a server lead streams, and tells whether it leads each of them.
func ledBy(nc *nats.Conn, server string, names ...string) (all bool) {
	all = true
	for _, stream := range names {
		if leaderOf(nc, stream) != server {
			_ = nc.Publish("$JS.API.STREAM.LEADER.STEPDOWN."+stream, fmt.Appendf(nil, `{"placement":{"preferred":%q}}`, server)) // again if it fails
			all = false
		}
	}
	return all
}

// leaderOf returns which server leads a stream, or "" if no answer says so within a second.
func leaderOf(nc *nats.Conn, stream string) string {
	var info struct{ Cluster struct{ Leader string } }
	m, err := nc.Request("$JS.API.STREAM.INFO."+stream, nil, time.Second)
	if err != nil || json.Unmarshal(m.Data, &info) != nil {
		return ""
	}
	return info.Cluster.Leader
}

// faulty is a service with faults.
type faulty struct {
	*fleet
	servers []*external
	hosts   []*host // each with a server and an engine, the last one with the clients; nil: all are on this machine
	led     *leaders
	nc      *nats.Conn
	c       *carillon.Client
	rng     *rand.Rand // decides what happens, and when
}

// upTo is a random time.
func (f *faulty) upTo(most time.Duration) time.Duration {
	return time.Duration(f.rng.Int64N(int64(most)))
}

// A fault begins, lasts for a while and ends. do first tells, for the log, what it is going to do.
type fault struct {
	name string
	do   func(f *faulty, tell func(format string, v ...any))
}

var processFaults = []fault{
	{"server killed", func(f *faulty, tell func(string, ...any)) {
		s := f.servers[f.rng.IntN(3)]
		away := f.upTo(2 * time.Second) // back at once, or after a while
		tell("%s for %s", s.Name, away)
		s.kill()
		time.Sleep(away)
		s.start()
	}},
	{"leader stepped down", func(f *faulty, tell func(string, ...any)) {
		stream := []string{"CARILLON_LOG", fmt.Sprintf("CARILLON_OUT_%d", f.rng.IntN(f.partitions)), "KV_CARILLON_NODES"}[f.rng.IntN(3)]
		tell("of %s", stream)
		if _, err := f.nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+stream, nil, 5*time.Second); err != nil {
			f.t.Log(err) // the leader that should step down was not there any more
		}
	}},
	{"owner killed", func(f *faulty, tell func(string, ...any)) {
		victim := f.owner()
		tell("%s", victim)
		f.nodes[victim].kill()
		f.start(victim)
	}},
	{"owner frozen", func(f *faulty, tell func(string, ...any)) {
		victim, away := f.owner(), time.Second+f.upTo(3*time.Second)
		tell("%s for %s", victim, away)
		f.nodes[victim].signal(f.t, syscall.SIGSTOP)
		time.Sleep(away)
		f.nodes[victim].signal(f.t, syscall.SIGCONT)
	}},
}

// networkFaults are of one host. Elections take nats-server four to nine seconds: some faults end before that, some do not.
var networkFaults = []fault{
	{"cut off", func(f *faulty, tell func(string, ...any)) {
		h, away := f.hosts[f.rng.IntN(3)], f.upTo(9*time.Second)
		tell("%s for %s", h.ip, away)
		h.cut(true, true)
		time.Sleep(away)
		h.heal()
	}},
	{"cut one way", func(f *faulty, tell func(string, ...any)) {
		h, away, out := f.hosts[f.rng.IntN(3)], f.upTo(9*time.Second), f.rng.IntN(2) == 0
		tell("%s for %s, outwards: %t", h.ip, away, out)
		h.cut(out, !out)
		time.Sleep(away)
		h.heal()
	}},
	{"cut off from its peers", func(f *faulty, tell func(string, ...any)) {
		i, away := f.rng.IntN(3), f.upTo(9*time.Second)
		tell("%s for %s", f.hosts[i].ip, away)
		defer f.led.leadsNobody(f.servers[i].Name)()
		f.hosts[i].sever(f.hosts[(i+1)%3], f.hosts[(i+2)%3]) // clients still reach it
		time.Sleep(away)
		f.hosts[i].heal()
	}},
	{"cut off from one of its peers", func(f *faulty, tell func(string, ...any)) {
		i, away := f.rng.IntN(3), f.upTo(9*time.Second)
		other := (i + 1 + f.rng.IntN(2)) % 3
		tell("%s from %s for %s", f.hosts[i].ip, f.hosts[other].ip, away)
		f.hosts[i].sever(f.hosts[other]) // the third one reaches both
		time.Sleep(away)
		f.hosts[i].heal()
	}},
	{"slow and lossy", func(f *faulty, tell func(string, ...any)) {
		h, away := f.hosts[f.rng.IntN(3)], 2*time.Second+f.upTo(6*time.Second)
		delay, loss := 50*time.Millisecond+f.upTo(150*time.Millisecond), 0.05+0.25*f.rng.Float64()
		tell("%s for %s: %s, %.0f %% lost", h.ip, away, delay, 100*loss)
		h.slow(delay, delay/4, loss)
		time.Sleep(away)
		h.heal()
	}},
}

// owner returns the name of a node that serves some partition.
func (f *faulty) owner() string { return owners(status(f.t, f.c))[f.rng.IntN(f.partitions)] }

// round is what happened, and when.
type round struct {
	fault    string
	from, to time.Time
}

func survive(t *testing.T, hosts []*host, faults []fault, rounds int) {
	servers, urls := startExternals(t, hosts...)
	nc := dial(t, urls, from(hosts)...)
	f := &faulty{fleet: newFleet(t, urls, 4), servers: servers, hosts: hosts, nc: nc, c: carillon.Connect(nc, carillon.WithTimeout(20*time.Second))}
	seed := uint64(envInt(t, "CARILLON_SEED", rand.IntN(1_000_000)))
	t.Logf("seed %d", seed)
	f.rng = rand.New(rand.NewPCG(seed, 0))
	names := []string{"a", "b", "c"}
	for i, name := range names {
		s := settings{Data: t.TempDir(), Name: name, NATS: urls, Partitions: f.partitions, Replicas: 3, CheckpointEvery: 2 * time.Second, OutMaxBytes: -1}
		if hosts != nil {
			s.on = hosts[i]
		}
		f.settings[name] = s
		f.start(name)
	}
	f.shared(f.c, names...)
	l := startLoad(t, urls, "r", true, from(hosts)...)
	l.late.Store(hosts != nil)
	plain := startPlain(t, nc, urls, hosts)
	taken := watchClaims(t, nc)
	f.led = watchLeaders(t, servers, hosts, append(streamsOf(f.partitions), append(plain.streams, relayFrom, relayTo)...))
	var done []round
	var downs []span
	if only := os.Getenv("CARILLON_FAULT"); only != "" {
		faults = slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return !slices.Contains(strings.Split(only, ","), f.name) })
	}
	order := f.rng.Perm(len(faults)) // each kind as often as any other
	for n := range rounds {
		time.Sleep(time.Second + f.upTo(time.Second)) // a random moment
		what := faults[order[n%len(order)]]
		r := round{fault: what.name, from: time.Now()}
		what.do(f, func(format string, v ...any) { t.Logf("round %d: %s: %s", n, what.name, fmt.Sprintf(format, v...)) })
		f.shared(f.c, names...)
		f.calm()
		f.firesAgain(l, fmt.Sprintf("after-%d", n))
		l.settled()
		r.to = time.Now()
		done = append(done, r)
		downs = append(downs, span{r.from.UnixMilli(), r.to.UnixMilli()})
		if t.Failed() {
			t.FailNow()
		}
	}
	h, end := l.finish()
	h.downs = downs
	plain.stop()
	f.terminate()
	h.verify(t, allOutputs(t, l.nc, f.partitions), end)
	reportPauses(t, f, done, f.led, plain, taken)
}

// calm waits until each connection has once had nothing to send: what a network held back has come by then.
func (f *faulty) calm() {
	f.t.Helper()
	for _, h := range f.hosts {
		idle := make(map[string]bool)
		eventually(f.t, "all has come that was sent", func() bool {
			now, err := h.connections()
			if err != nil {
				f.t.Fatal(err)
			}
			all := true
			for c, is := range now {
				idle[c] = idle[c] || is
				all = all && idle[c]
			}
			return all
		})
	}
}

// firesAgain puts a job into every partition, one after the other, and waits until it has fired.
func (f *faulty) firesAgain(l *load, name string) {
	f.t.Helper()
	for p := range f.partitions {
		again := name
		for engine.PartitionOf(again, f.partitions) != p {
			again += "-"
		}
		due := now() + 20
		put(f.t, f.c, carillon.Job{ID: again, Schedule: "@at " + time.UnixMilli(due).UTC().Format(carillon.TimeFormat)})
		l.add(&era{job: again, version: 1, grid: at(due), mustTo: forever, fireTo: forever, skipTo: forever})
		eventually(f.t, "it fires again", func() bool {
			r, err := f.c.Get(f.t.Context(), again)
			return err == nil && r.Status == carillon.StatusCompleted
		})
	}
}
