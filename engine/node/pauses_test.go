package node_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// needed are the streams that triggers need besides the output streams.
var needed = []string{"CARILLON_LOG", "KV_CARILLON_NODES"}

func outStream(p int) string { return fmt.Sprintf("CARILLON_OUT_%d", p) }

func streamsOf(partitions int) []string {
	all := slices.Clone(needed)
	for p := range partitions {
		all = append(all, outStream(p))
	}
	return all
}

// plainLoad publishes to streams beside those of a service, with as many replicas but without an engine: what these acknowledge
// is what JetStream and the network allow.
type plainLoad struct {
	streams []string
	stop    func()

	mu    sync.Mutex
	acked [][]time.Time // by stream
}

const (
	plainStreams = 3
	plainEvery   = 20 * time.Millisecond

	// A trigger goes through two streams, one after the other. Relays do the same with as little else as possible. There is one
	// on each host. It publishes to the first stream, which republishes what it has stored to all relays, without a consumer.
	// Each relay publishes that to the second stream. There is no order, and nothing is waited for, so one host that is well is enough.
	relayFrom, relayTo = "PLAIN_FROM", "PLAIN_TO"
	relayStored        = "plain.stored"
	relayEvery         = 50 * time.Millisecond
)

// startRelays publishes from each host until its connections are closed.
func startRelays(t *testing.T, js jetstream.JetStream, urls string, hosts []*host) {
	t.Helper()
	for _, s := range []jetstream.StreamConfig{
		{Name: relayFrom, Subjects: []string{relayFrom}, RePublish: &jetstream.RePublish{Source: relayFrom, Destination: relayStored}},
		{Name: relayTo, Subjects: []string{relayTo}},
	} {
		s.Replicas = 3
		if _, err := js.CreateStream(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		var on []*host
		if hosts != nil {
			on = hosts[:i+1]
		}
		nc := dial(t, urls, from(on)...)
		if _, err := nc.Subscribe(relayStored, func(*nats.Msg) { _ = nc.Publish(relayTo, nil) }); err != nil { // not while the connection is away
			t.Fatal(err)
		}
		go func() {
			next := time.NewTicker(relayEvery)
			defer next.Stop()
			for ; !nc.IsClosed(); <-next.C {
				_ = nc.Publish(relayFrom, nil)
			}
		}()
	}
}

// startPlain makes the plain streams and the relays, and publishes to all until it is stopped, whatever the answers.
func startPlain(t *testing.T, nc *nats.Conn, urls string, hosts []*host) *plainLoad {
	t.Helper()
	js := jetStream(t, nc)
	startRelays(t, js, urls, hosts)
	p := &plainLoad{acked: make([][]time.Time, plainStreams)}
	for i := range plainStreams {
		p.streams = append(p.streams, fmt.Sprintf("PLAIN_%d", i))
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: p.streams[i], Subjects: []string{p.streams[i]}, Replicas: 3}); err != nil {
			t.Fatal(err)
		}
	}
	inbox := nc.NewInbox()
	acks, err := nc.Subscribe(inbox+".*", func(m *nats.Msg) {
		var ack struct{ Stream string }
		i, err := strconv.Atoi(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
		if err == nil {
			err = json.Unmarshal(m.Data, &ack)
		}
		if err != nil || ack.Stream == "" {
			return // no stream stored it
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.acked[i] = append(p.acked[i], time.Now())
	})
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		next := time.NewTicker(plainEvery)
		defer next.Stop()
		for {
			select {
			case <-over:
				return
			case <-next.C:
			}
			for i, stream := range p.streams {
				_ = nc.PublishRequest(stream, inbox+"."+strconv.Itoa(i), nil) // not while the connection is away
			}
		}
	})
	p.stop = sync.OnceFunc(func() {
		close(over)
		work.Wait()
		_ = acks.Unsubscribe() // it fails only when the connection is closed
	})
	t.Cleanup(p.stop)
	return p
}

// standing returns for how much of a time some of the streams acknowledged nothing while others did: for so long JetStream had a leader
// that stored nothing, or none, and it was not the client's own connection that was slow. Its caller holds mu.
func (p *plainLoad) standing(from, to time.Time) (total time.Duration) {
	const step = 10 * time.Millisecond
	for at := from; at.Before(to); at = at.Add(step) {
		still := 0
		for _, acked := range p.acked {
			next, _ := slices.BinarySearchFunc(acked, at, time.Time.Compare)
			if next > 0 && (next == len(acked) || acked[next].Sub(acked[next-1]) > leaderSilent) {
				still++
			}
		}
		if 0 < still && still < len(p.acked) {
			total += step
		}
	}
	return total
}

// worst is about the pauses between two moments in rounds of one kind of fault: the longest, the longest less the time
// without a leader, and the sum.
type worst struct {
	pause, beyond time.Duration
	all           time.Duration // the sum of those over shortPause
	where         string        // beyond was
	from, to      time.Time     // of beyond
}

// add takes the moments of a stream that are in a round. Only the pauses that chosen returns true for count, or all if it is nil.
func (w *worst) add(moments []time.Time, r round, led *leaders, what string, streams []string, chosen func(from, to time.Time) bool) {
	from, _ := slices.BinarySearchFunc(moments, r.from, time.Time.Compare)
	for i := max(from, 1); i < len(moments) && moments[i-1].Before(r.to); i++ {
		from, to := moments[i-1], moments[i]
		pause := to.Sub(from)
		if pause <= 100*time.Millisecond || chosen != nil && !chosen(from, to) {
			continue
		}
		w.pause = max(w.pause, pause)
		if pause > shortPause {
			w.all += pause
		}
		if beyond := pause - led.without(from, to, streams...); beyond > w.beyond {
			w.from, w.to = from, to
			w.beyond, w.where = beyond, fmt.Sprintf("%s, from %s to %s", what, from.Format("15:04:05.000"), to.Format("15:04:05.000"))
		}
	}
}

func (w *worst) String() string {
	return fmt.Sprintf("%s at most, and %s at most while there were leaders (%s); %s in all, by pauses of %s and more",
		w.pause.Round(time.Millisecond), w.beyond.Round(time.Millisecond), w.where, w.all.Round(100*time.Millisecond), shortPause)
}

const (
	shortPause = 300 * time.Millisecond
	// The reason of a longer pause while there were leaders is worth looking for. longClaim is for pauses in which a partition was
	// claimed: it may take 1.5 s to find out that an owner is gone.
	longPause = 500 * time.Millisecond
	longClaim = 1500 * time.Millisecond
)

// reportPauses logs, for each kind of fault, for how long outputs paused at most, with and without the time in which JetStream had
// no leader of a stream that they need. Pauses in which a partition was claimed are apart, because another node had to find out
// first that the owner was gone. It also logs the same of the plain streams, and what the engines logged in a long pause.
func reportPauses(t *testing.T, f *faulty, rounds []round, led *leaders, plain *plainLoad, taken *claims) {
	type kind struct {
		rounds                     int
		kept, moved, bare, relayed worst
	}
	kinds := make(map[string]*kind)
	for _, r := range rounds {
		if kinds[r.fault] == nil {
			kinds[r.fault] = &kind{}
		}
		kinds[r.fault].rounds++
	}
	for p := range f.partitions {
		var stored []time.Time
		for _, o := range outputs(t, f.nc, p) {
			stored = append(stored, o.stored)
		}
		for n, r := range rounds {
			k, what, takes := kinds[r.fault], fmt.Sprintf("partition %d in round %d", p, n), append(slices.Clone(needed), outStream(p))
			k.kept.add(stored, r, led, what, takes, func(from, to time.Time) bool { return !taken.within(p, from, to) })
			k.moved.add(stored, r, led, what, takes, func(from, to time.Time) bool { return taken.within(p, from, to) })
		}
	}
	var relayed []time.Time
	read(t, f.nc, relayTo, func(_ jetstream.Msg, meta *jetstream.MsgMetadata) { relayed = append(relayed, meta.Timestamp) })
	for n, r := range rounds {
		kinds[r.fault].relayed.add(relayed, r, led, fmt.Sprintf("round %d", n), []string{relayFrom, relayTo}, nil)
	}
	plain.mu.Lock()
	defer plain.mu.Unlock()
	for i, acked := range plain.acked {
		for n, r := range rounds {
			kinds[r.fault].bare.add(acked, r, led, fmt.Sprintf("%s in round %d", plain.streams[i], n), plain.streams[i:i+1], nil)
		}
	}
	for name, k := range kinds {
		for _, w := range []struct {
			*worst
			of   string
			long time.Duration
		}{{&k.kept, "nobody claimed", longPause}, {&k.moved, "was claimed", longClaim}} {
			t.Logf("%s, %d rounds: outputs of a partition that %s paused for %s", name, k.rounds, w.of, w.worst)
			if from := w.from.Add(-time.Second); w.beyond > w.long {
				t.Logf("of that, some plain streams acknowledged nothing for %s, while others did", plain.standing(w.from, w.to))
				t.Logf("%s\nwhat the engines said then:\n%s", led.said(from, w.to, streamsOf(f.partitions)...), f.said(from, w.to))
			}
		}
		t.Logf("%s, %d rounds: plain streams acknowledged nothing for %s", name, k.rounds, &k.bare)
		t.Logf("%s, %d rounds: plain relays over two streams stored nothing for %s", name, k.rounds, &k.relayed)
	}
}

// leaders knows when the streams had a leader: when it answered, and when it had heard a replica. A leader that is cut off
// from the others goes on answering until it finds that no replica follows it any more; it does not count.
type leaders struct {
	mu       sync.Mutex
	answered map[string][]time.Time
	who      map[string][]string // answered, by name
	heard    map[string][]time.Time
	alone    map[string][]span // servers, by name, that were cut off from the others
}

// leadsNobody must be called before a server is cut off from the others, and over when it no longer is.
func (led *leaders) leadsNobody(server string) (over func()) {
	led.mu.Lock()
	defer led.mu.Unlock()
	led.alone[server] = append(led.alone[server], span{from: now(), to: forever})
	return func() {
		led.mu.Lock()
		defer led.mu.Unlock()
		led.alone[server][len(led.alone[server])-1].to = now()
	}
}

// followed tells whether others can follow a server at a time.
func (led *leaders) followed(server string, at time.Time) bool {
	return !slices.ContainsFunc(led.alone[server], func(s span) bool { return s.from <= at.UnixMilli() && at.UnixMilli() < s.to })
}

const (
	leaderAsked  = 100 * time.Millisecond
	leaderSilent = 400 * time.Millisecond  // longer is without one
	leaderAlone  = 2500 * time.Millisecond // the same; an idle leader asks the others every other second
)

// watchLeaders asks the leader of each stream how it is, again and again and by way of each server.
func watchLeaders(t *testing.T, servers []*external, hosts []*host, streams []string) *leaders {
	led := &leaders{
		answered: make(map[string][]time.Time), who: make(map[string][]string), heard: make(map[string][]time.Time), alone: make(map[string][]span),
	}
	for _, s := range servers {
		nc := dial(t, s.url, append(from(hosts), nats.IgnoreDiscoveredServers())...)
		inbox := nats.NewInbox()
		if _, err := nc.Subscribe(inbox+".*", func(m *nats.Msg) {
			var info struct {
				Cluster struct {
					Leader   string
					Replicas []struct{ Active time.Duration }
				}
			}
			if err := json.Unmarshal(m.Data, &info); err != nil || info.Cluster.Leader == "" {
				return // a replica that has no leader answers, too
			}
			heard := time.Hour // since it heard any of them
			for _, r := range info.Cluster.Replicas {
				if r.Active > 0 {
					heard = min(heard, r.Active)
				}
			}
			if heard > 3*time.Second {
				return // nobody follows it any more
			}
			led.mu.Lock()
			defer led.mu.Unlock()
			stream, now := m.Subject[len(inbox)+1:], time.Now()
			if !led.followed(info.Cluster.Leader, now) {
				return
			}
			led.answered[stream] = append(led.answered[stream], now)
			led.who[stream] = append(led.who[stream], info.Cluster.Leader)
			at := now.Add(-heard)
			if n := len(led.heard[stream]); n == 0 || at.After(led.heard[stream][n-1]) {
				led.heard[stream] = append(led.heard[stream], at)
			}
		}); err != nil {
			t.Fatal(err)
		}
		go func() {
			ask := time.NewTicker(leaderAsked)
			defer ask.Stop()
			for ; !nc.IsClosed(); <-ask.C {
				for _, stream := range streams {
					_ = nc.PublishRequest("$JS.API.STREAM.INFO."+stream, inbox+"."+stream, nil) // not while its server is away
				}
			}
		}()
	}
	return led
}

// said returns which servers answered for these streams, and from when until when.
func (led *leaders) said(from, to time.Time, streams ...string) string {
	led.mu.Lock()
	defer led.mu.Unlock()
	var text strings.Builder
	for _, stream := range streams {
		fmt.Fprintf(&text, "%s was answered for by", stream)
		last, who := time.Time{}, ""
		for i, at := range led.answered[stream] {
			if at.Before(from) || at.After(to) {
				continue
			}
			if who != led.who[stream][i] || at.Sub(last) > leaderSilent {
				if who != "" {
					fmt.Fprintf(&text, " until %s,", last.Format("05.000"))
				}
				who = led.who[stream][i]
				fmt.Fprintf(&text, " %s from %s", who, at.Format("05.000"))
			}
			last = at
		}
		fmt.Fprintf(&text, " until %s\n", last.Format("05.000"))
	}
	return text.String()
}

// without returns for how much of a time one or more of these streams had no leader.
func (led *leaders) without(from, to time.Time, streams ...string) (total time.Duration) {
	led.mu.Lock()
	defer led.mu.Unlock()
	type gap struct{ from, to time.Time }
	var gaps []gap
	find := func(times []time.Time, longer time.Duration) {
		for i, at := range times[1:] {
			if before := times[i]; at.Sub(before) > longer && at.After(from) && before.Before(to) {
				gaps = append(gaps, gap{before, at})
			}
		}
	}
	for _, stream := range streams {
		find(led.answered[stream], leaderSilent)
		find(led.heard[stream], leaderAlone)
	}
	slices.SortFunc(gaps, func(a, b gap) int { return a.from.Compare(b.from) })
	for _, g := range gaps {
		if g.from.After(from) {
			from = g.from
		}
		if g.to.After(to) {
			g.to = to
		}
		if g.to.After(from) {
			total += g.to.Sub(from)
			from = g.to
		}
	}
	return total
}
