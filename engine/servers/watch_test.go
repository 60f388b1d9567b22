package servers

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// Which servers are slow follows from when each last answered in time; if most are silent, it is this node's own network.
func TestSlowness(t *testing.T) {
	const silent, doubtful, well = SilentAfter + time.Millisecond, doubtfulAfter + time.Millisecond, doubtfulAfter
	for name, c := range map[string]struct {
		ages map[string]time.Duration // since an answer came in time
		died []string
		want string
		now  []string // the servers that are asked to step down
	}{
		"all are well":                {ages: map[string]time.Duration{"own": well, "b": well, "c": well}, want: "none"},
		"one is slow":                 {ages: map[string]time.Duration{"own": well, "b": silent, "c": well}, want: "b", now: []string{"b"}},
		"one is, another may be":      {ages: map[string]time.Duration{"own": well, "b": silent, "c": doubtful}, want: "none"},
		"both others":                 {ages: map[string]time.Duration{"own": well, "b": silent, "c": silent}, want: "this node's own network"},
		"its own, and no other":       {ages: map[string]time.Duration{"own": stallMost + 1}, want: "none"},
		"its own server":              {ages: map[string]time.Duration{"own": stallMost + 1, "b": well, "c": well}, want: "this node's own network"},
		"all stall":                   {ages: map[string]time.Duration{"own": silent, "b": silent, "c": silent}, want: "none"},
		"all may, and one does":       {ages: map[string]time.Duration{"own": doubtful, "b": silent, "c": well}, want: "none"},
		"the only other one":          {ages: map[string]time.Duration{"own": well, "b": silent}, want: "this node's own network"},
		"its own is the only one":     {ages: map[string]time.Duration{"own": silent}, want: "none"},
		"two of four":                 {ages: map[string]time.Duration{"own": well, "b": silent, "c": silent, "d": well, "e": well}, want: "b, c", now: []string{"b", "c"}},
		"three of four":               {ages: map[string]time.Duration{"own": well, "b": silent, "c": silent, "d": silent, "e": well}, want: "this node's own network"},
		"one died":                    {ages: map[string]time.Duration{"own": well, "b": silent, "c": well}, died: []string{"b"}, want: "none"},
		"one has been away for long":  {ages: map[string]time.Duration{"own": well, "b": goneAfter + 1, "c": well}, want: "none"},
		"one is slow, the other died": {ages: map[string]time.Duration{"own": well, "b": silent, "c": silent}, died: []string{"c"}, want: "this node's own network"},
	} {
		now := time.Now()
		s := Watch{all: make(map[string]*natsServer)}
		for server, age := range c.ages {
			s.all["nats://"+server] = &natsServer{name: server, died: slices.Contains(c.died, server), responsiveness: responsiveness{lastGood: now.Add(-age)}}
		}
		slow := s.Judge("own", now)
		if asked := slices.Sorted(maps.Keys(slow.Silent)); slow.String() != c.want || !slices.Equal(asked, c.now) || slow.Unseen != slow.Self {
			t.Errorf("%s: slow is %s, asked are %v, others see it: %t", name, slow, asked, !slow.Unseen)
		}
		s.all["nats://own"].local = true
		if slow := s.Judge("own", now); slow.Unseen {
			t.Errorf("%s: others do not see it by the server on this machine", name)
		}
	}
}

// Slowness.Responsive has the servers that answer in time, except the node's own.
func TestResponsiveServers(t *testing.T) {
	for name, c := range map[string]struct {
		b, c time.Duration // since an answer came in time
		want []string
	}{
		"all are well":         {0, 0, []string{"b", "c"}},
		"one is silent":        {SilentAfter + 1, 0, []string{"c"}},
		"the other one may be": {SilentAfter + 1, doubtfulAfter + 1, nil},
	} {
		now := time.Now()
		s := Watch{all: make(map[string]*natsServer)}
		for server, age := range map[string]time.Duration{"own": 0, "b": c.b, "c": c.c} {
			s.all[server] = &natsServer{url: server, name: server, responsiveness: responsiveness{lastGood: now.Add(-age)}}
		}
		var urls []string
		for _, w := range s.Judge("own", now).Responsive {
			urls = append(urls, w.URL)
		}
		slices.Sort(urls)
		if !slices.Equal(urls, c.want) {
			t.Errorf("%s: they are %v", name, urls)
		}
	}
}

// A node goes back to the server on its own machine when that has answered in time for long, without a silence.
func TestLocalEndpoint(t *testing.T) {
	now := time.Now()
	local := &natsServer{url: "home", name: "home", local: true}
	s := Watch{all: map[string]*natsServer{"home": local, "b": {url: "b", name: "b", responsiveness: responsiveness{lastGood: now, goodSince: now.Add(-time.Hour)}}}}
	is := func(what, own string, want bool) {
		t.Helper()
		if to, ok := s.LocalEndpoint(own, now); ok != want || ok && to.URL != "home" {
			t.Errorf("%s: there is a local endpoint %q: %t", what, to.URL, ok)
		}
	}
	is("it never answered", "b", false)
	for at := -2 * ReturnAfter; at <= 0; at += answerEvery {
		local.answered(now.Add(at), now.Add(at+time.Millisecond))
	}
	is("it has been well", "b", true)
	is("the node is there", "home", false)
	local.died = true
	is("it died", "b", false)
	local.died = false
	for at := -2 * ReturnAfter; at <= 0; at += answerEvery {
		if at < -ReturnAfter || at > -ReturnAfter+SilentAfter+answerEvery {
			local.answered(now.Add(at), now.Add(at+time.Millisecond))
		}
	}
	is("it was silent", "b", false)
}

// A node leaves a server on another machine that alone is silent for one of the others, that on its own machine first.
func TestAlternatives(t *testing.T) {
	const silent, doubtful, well = leaveAfter + time.Millisecond, doubtfulAfter + time.Millisecond, doubtfulAfter
	for name, c := range map[string]struct {
		ages  map[string]time.Duration // since an answer came in time
		local string
		want  []string // the first as here, the rest in any order
	}{
		"it alone is silent":              {ages: map[string]time.Duration{"own": silent, "b": well}, want: []string{"b"}},
		"one of the others is near":       {ages: map[string]time.Duration{"own": silent, "b": well, "c": well, "d": well}, local: "c", want: []string{"c", "b", "d"}},
		"it is near itself":               {ages: map[string]time.Duration{"own": silent, "b": well, "c": well}, local: "own"},
		"it may yet answer":               {ages: map[string]time.Duration{"own": leaveAfter, "b": well, "c": well}},
		"another may be silent, too":      {ages: map[string]time.Duration{"own": silent, "b": well, "c": doubtful}, local: "b"},
		"there is no other":               {ages: map[string]time.Duration{"own": silent}},
		"others have been away for long":  {ages: map[string]time.Duration{"own": silent, "b": well, "c": goneAfter + 1}, want: []string{"b"}},
		"the node is connected elsewhere": {ages: map[string]time.Duration{"b": silent, "c": well}},
	} {
		now := time.Now()
		s := Watch{all: make(map[string]*natsServer)}
		for server, age := range c.ages {
			s.all[server] = &natsServer{url: server, name: server, local: server == c.local, responsiveness: responsiveness{lastGood: now.Add(-age)}}
		}
		for range 20 { // the order of a map is different each time
			var got []string
			for _, to := range s.Alternatives("own", now) {
				got = append(got, to.URL)
			}
			if len(got) > 1 {
				slices.Sort(got[1:])
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: it may go to %q", name, got)
			}
		}
	}
}

// The main connection goes once to the server that it is sent to, and later to whichever the library chooses.
func TestSwitchTo(t *testing.T) {
	var urls []string
	for range 3 {
		urls = append(urls, natstest.Start(t, &server.Options{}).ClientURL())
	}
	var s Watch
	nc, err := nats.Connect(strings.Join(urls, ","), nats.DontRandomize(), nats.ReconnectToServer(s.Choose))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := s.SwitchTo(nc, urls[2]); err != nil {
		t.Fatal(err)
	}
	natstest.Eventually(t, "it is there", func() bool { return nc.IsConnected() && nc.ConnectedUrl() == urls[2] })
	if err := s.SwitchTo(nc, "nats://elsewhere:4222"); err != nil {
		t.Fatal(err)
	}
	natstest.Eventually(t, "it is at one of the others", func() bool { return nc.IsConnected() && nc.ConnectedUrl() != urls[2] })
}

// A server that is known by several addresses is judged by the best of them.
func TestSlownessByTheBestEndpoint(t *testing.T) {
	for range 20 { // the order of a map is different each time
		now := time.Now()
		well, silent := responsiveness{lastGood: now}, responsiveness{lastGood: now.Add(-time.Second)}
		s := Watch{all: map[string]*natsServer{
			"nats://own": {name: "own", responsiveness: well}, "nats://c": {name: "c", responsiveness: well},
			"nats://b": {name: "b", responsiveness: silent}, "nats://b.example": {name: "b", responsiveness: well},
		}}
		if slow := s.Judge("own", now); slow.String() != "none" {
			t.Fatalf("slow is %s", slow)
		}
	}
}

// A server that was slow counts as slow for a while longer, and a node counts itself as slow for even longer, so that nothing moves back
// and forth.
func TestSlownessLasts(t *testing.T) {
	began := time.Now()
	at := func(after time.Duration, ages map[string]time.Duration, s *Watch) Slowness {
		now := began.Add(after)
		for server, age := range ages {
			s.all[server].lastGood = now.Add(-age)
		}
		return s.Judge("own", now)
	}
	make3 := func() *Watch {
		return &Watch{all: map[string]*natsServer{"own": {name: "own"}, "b": {name: "b"}, "c": {name: "c"}}}
	}
	const silent = time.Second
	is := func(what string, slow Slowness, want string, now bool) {
		t.Helper()
		if slow.String() != want || slow.Now != now {
			t.Errorf("%s: slow is %s, now: %t", what, slow, slow.Now)
		}
	}
	other := make3()
	is("it is slow", at(0, map[string]time.Duration{"own": 0, "b": silent, "c": 0}, other), "b", false)
	was := at(slowFor-1, map[string]time.Duration{"own": 0, "b": 0, "c": 0}, other)
	is("it was", was, "b", false)
	if len(was.Silent) > 0 {
		t.Error("one that answers is asked to lead no longer")
	}
	is("it is well", at(slowFor, map[string]time.Duration{"own": 0, "b": 0, "c": 0}, other), "none", false)

	self := make3()
	const own = "this node's own network"
	is("all are silent", at(0, map[string]time.Duration{"own": 0, "b": silent, "c": silent}, self), own, true)
	was = at(settleFor-1, map[string]time.Duration{"own": 0, "b": silent, "c": 0}, self)
	is("one answers first", was, own, false)
	if len(was.Silent) > 0 {
		t.Error("one that may yet answer is asked to lead no longer")
	}
	is("all answer", at(selfSlowFor-1, map[string]time.Duration{"own": 0, "b": 0, "c": 0}, self), own, false)
	is("all have answered for long", at(selfSlowFor, map[string]time.Duration{"own": 0, "b": 0, "c": 0}, self), "none", false)

	both := make3()
	is("it is slow", at(0, map[string]time.Duration{"own": 0, "b": silent, "c": 0}, both), "b", false)
	is("then all are silent", at(time.Second, map[string]time.Duration{"own": 0, "b": silent, "c": silent}, both), own, true)

	is("its own stalls", at(0, map[string]time.Duration{"own": SilentAfter + 1, "b": 0, "c": 0}, make3()), "none", true)

	self = make3()
	is("all are silent", at(0, map[string]time.Duration{"own": 0, "b": silent, "c": silent}, self), own, true)
	never := map[string]time.Duration{"own": 0, "b": selfSlowFor + silent, "c": 0}
	is("one has yet to answer", at(selfSlowFor-1, never, self), own, false)
	is("one never answers", at(selfSlowFor, never, self), "b", false)

	self = make3()
	is("all are silent", at(0, map[string]time.Duration{"own": 0, "b": silent, "c": silent}, self), own, true)
	is("one answers, and is silent again", at(settleFor+silent, map[string]time.Duration{"own": 0, "b": silent, "c": 0}, self), "b", false)
}

// A server that died while it answered in time is not slow. One that comes back, or is new, has as long to answer
// as any other. One that was slow when its connection broke stays slow until it answers.
func TestServerComesBack(t *testing.T) {
	ns := natstest.Start(t, &server.Options{ServerName: "b"})
	nc, err := nats.Connect(ns.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var s Watch
	var one natsServer
	s.connected(&one, nc)
	if one.name != "b" || one.died || one.silent(time.Now()) {
		t.Errorf("one that is new: %+v", &one)
	}
	s.disconnected(&one)
	if !one.died {
		t.Error("one that was well when it broke did not die")
	}
	one.lastGood = time.Now().Add(-time.Second)
	s.connected(&one, nc)
	if one.died || one.silent(time.Now()) {
		t.Error("one that died and is back is held to what it did not answer while it was away")
	}
	slow := time.Now().Add(-time.Second)
	one.lastGood = slow
	s.disconnected(&one)
	s.connected(&one, nc)
	if one.died || !one.lastGood.Equal(slow) {
		t.Error("one that was slow is well again because its connection broke")
	}
	one.lastGood = time.Now().Add(-goneAfter - time.Second)
	s.connected(&one, nc)
	if one.silent(time.Now()) {
		t.Error("one that was away for long is held to that")
	}
	one.lastGood = slow
	one.died = true
	nc.Close()
	s.connected(&one, nc)
	if !one.died {
		t.Error("one is back that is not connected")
	}
}

// What counts as late depends on what is usual: a server far away is not slow, and one that has become quicker is soon measured by that.
func TestResponsiveness(t *testing.T) {
	var p responsiveness
	now := time.Now()
	answer := func(took time.Duration) (inTime bool) {
		now = now.Add(answerEvery)
		p.answered(now, now.Add(took))
		return p.lastGood.Equal(now)
	}
	is := func(what string, inTime, want bool) {
		t.Helper()
		if inTime != want {
			t.Errorf("%s: in time is %t", what, inTime)
		}
	}
	is("the first of a server far away", answer(200*time.Millisecond), true)
	is("as usual", answer(300*time.Millisecond), true)
	is("ten times as long", answer(2*time.Second), false)
	for range 50 {
		answer(time.Millisecond)
	}
	is("no longer usual", answer(200*time.Millisecond), false)
	is("a busy machine", answer(LateAfter), true)
	for range int(time.Minute / answerEvery) {
		answer(200 * time.Millisecond)
	}
	is("for a minute", answer(200*time.Millisecond), false)
	for range int(30 * time.Minute / answerEvery) {
		answer(200 * time.Millisecond)
	}
	is("for half an hour", answer(200*time.Millisecond), true)
}

// A server far away that answers as it usually does is neither silent nor doubtful at any time, though it is asked again only when it has
// answered, nor is a node's own network slow for that.
func TestFarServers(t *testing.T) {
	for _, took := range []time.Duration{time.Millisecond, 99 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond} {
		w := Watch{all: make(map[string]*natsServer)}
		for _, name := range []string{"a", "b", "c"} {
			w.all[name] = &natsServer{name: name}
		}
		begin := time.Now()
		sent := begin
		for now := begin; now.Before(begin.Add(10 * time.Second)); now = now.Add(time.Millisecond) {
			if now.Sub(sent) == took {
				for _, one := range w.all {
					one.answered(sent, now)
				}
			}
			if now.Sub(begin) > took { // else nothing is known
				for _, one := range w.all {
					if one.silent(now) || one.doubtful(now) {
						t.Fatalf("%s away: %s after the question that was answered it is silent: %t", took, now.Sub(one.lastGood), one.silent(now))
					}
				}
				if slow := w.Judge("a", now); slow.Now || slow.Self || len(slow.Responsive) != 2 {
					t.Fatalf("%s away: %+v", took, slow)
				}
			}
			if now.Sub(sent) >= took && now.Sub(begin)%answerEvery == 0 {
				sent = now
			}
		}
	}
}

// If a connection breaks while its server is slow, the server stays slow; otherwise it died.
func TestSlownessOfBroken(t *testing.T) {
	var s Watch
	now := time.Now()
	well, slow := &natsServer{responsiveness: responsiveness{lastGood: now}}, &natsServer{responsiveness: responsiveness{lastGood: now.Add(-time.Second)}}
	s.disconnected(well)
	s.disconnected(slow)
	if !well.died || slow.died {
		t.Errorf("died: %t and %t", well.died, slow.died)
	}
}

// A server that is gone, and that the others no longer name, is no longer asked. A server that is named still is, and so is one that was
// there a moment ago.
func TestForgetServers(t *testing.T) {
	known, other := natstest.Start(t, &server.Options{}).ClientURL(), natstest.Start(t, &server.Options{}).ClientURL()
	s := Watch{Config: Config{Node: "a", URL: known}, all: make(map[string]*natsServer)}
	ctx, cancel := context.WithCancel(t.Context())
	defer s.work.Wait()
	defer cancel()
	s.add(ctx, known)
	s.add(ctx, other)
	gone := s.all[other].nc
	s.forget([]string{known}, time.Now())
	if len(s.all) != 2 {
		t.Fatalf("%d are asked", len(s.all))
	}
	s.forget([]string{known}, time.Now().Add(2*goneAfter))
	if s.all[known] == nil || len(s.all) != 1 {
		t.Errorf("%d are asked, and the known one: %t", len(s.all), s.all[known] != nil)
	}
	natstest.Eventually(t, "its connection is closed", gone.IsClosed)
}

// A slow server is told something over two connections: on one of them nothing waits for lost packets.
func TestSpareConnection(t *testing.T) {
	url := natstest.Start(t, &server.Options{}).ClientURL()
	s := Watch{Config: Config{Node: "a", URL: url}, all: make(map[string]*natsServer)}
	ctx, cancel := context.WithCancel(t.Context())
	s.add(ctx, url)
	one := s.all[url]
	natstest.Eventually(t, "it has two connections", func() bool {
		at := time.Now().Add(2 * SilentAfter)
		s.mu.Lock()
		for _, name := range []string{"own", "c"} { // these answer meanwhile
			s.all[name] = &natsServer{name: name, responsiveness: responsiveness{lastGood: at}}
		}
		name := one.name
		s.mu.Unlock()
		slow := s.Judge("own", at).Silent[name]
		return len(slow) == 2 && slow[0].IsConnected() && slow[1].IsConnected()
	})
	cancel()
	s.work.Wait()
	if !one.nc.IsClosed() || !one.spare.IsClosed() {
		t.Error("they are not closed")
	}
}

// A node that stops connects to no more servers: each silent one would hold it up for as long as connecting may take.
func TestStopConnectsToNoMoreServers(t *testing.T) {
	o := Config{Node: "a", URL: natstest.Start(t, &server.Options{}).ClientURL()}
	nc, err := o.Connect("")
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	s := Watch{Config: o}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s.Ask(ctx, nc); len(s.all) > 0 {
		t.Errorf("it connected to %d", len(s.all))
	}
}

// All servers that the connection knows of are asked, again and again, and their answers count.
func TestAsk(t *testing.T) {
	nc, err := nats.Connect(natstest.Start(t, &server.Options{}).ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var w Watch
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		w.Ask(ctx, nc)
		close(ended)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	good := func() (last time.Time) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, one := range w.all {
			last = one.lastGood
		}
		return last
	}
	natstest.Eventually(t, "there is a connection to ask on", func() bool { return !good().IsZero() })
	connected := good()
	natstest.Eventually(t, "an answer counts", func() bool { return good().After(connected) })
}
