package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/carillon-scheduler/carillon/internal/leaktest"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

func TestMain(m *testing.M) {
	if name := os.Getenv("CLUSTER_TEST_NAME"); name != "" {
		member(name, os.Getenv("CLUSTER_TEST_URL"))
	}
	leaktest.Main(m,
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/ats.init.0.func1"))
}

// member is the process that gets stopped and killed: it writes its views, a line of JSON each, and its end.
func member(name, url string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	nc, err := nats.Connect(url)
	if err != nil {
		fail(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		fail(err)
	}
	m, err := Join(context.Background(), js, options(name))
	if err != nil {
		fail(err)
	}
	out := json.NewEncoder(os.Stdout)
	for v := range m.Views() {
		if err := out.Encode(v); err != nil {
			fail(err)
		}
	}
	if errors.Is(m.Err(), ErrNameTaken) {
		os.Exit(3)
	}
	os.Exit(0)
}

func options(name string) Options {
	return Options{
		Name: name, Partitions: 8, Interval: 50 * time.Millisecond, Bound: time.Second,
		Report: func() Report { return Report{} },
	}
}

// patiently has a member take nobody for dead although the machine may stand still for seconds.
func patiently(o *Options) { o.Bound = 4 * time.Second }

// host is a server on a port of its own that can be stopped and started under its clients.
type host struct {
	t    testing.TB
	dir  string
	port int
	ns   *server.Server
}

func newHost(t testing.TB) *host {
	h := &host{t: t, dir: t.TempDir(), port: server.RANDOM_PORT}
	h.start()
	t.Cleanup(h.stop)
	return h
}

func (h *host) start() {
	h.t.Helper()
	ns, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: h.port, JetStream: true, StoreDir: h.dir, NoLog: true, NoSigs: true,
	})
	if err != nil {
		h.t.Fatal(err)
	}
	ns.Start()
	if !ns.ReadyForConnections(time.Minute) {
		h.t.Fatal("server is not ready")
	}
	h.ns, h.port = ns, ns.Addr().(*net.TCPAddr).Port
}

func (h *host) stop() {
	h.ns.Shutdown()
	h.ns.WaitForShutdown()
}

func (h *host) connect() (jetstream.JetStream, *nats.Conn) {
	h.t.Helper()
	nc, err := nats.Connect(h.ns.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.ReconnectBufSize(-1), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		h.t.Fatal(err)
	}
	return js, nc
}

// joined is a member with all views that it sent.
type joined struct {
	*Member
	t  testing.TB
	js jetstream.JetStream
	nc *nats.Conn

	troubles atomic.Int64
	mu       sync.Mutex
	views    []View
}

func (h *host) join(name string, change ...func(*Options)) *joined {
	h.t.Helper()
	j := &joined{t: h.t}
	j.js, j.nc = h.connect()
	o := options(name)
	o.OnError = func(error) { j.troubles.Add(1) }
	for _, c := range change {
		c(&o)
	}
	m, err := Join(h.t.Context(), j.js, o)
	if err != nil {
		h.t.Fatal(err)
	}
	j.Member = m
	h.t.Cleanup(m.Close)
	go func() {
		for v := range m.Views() {
			j.add(v)
		}
	}()
	return j
}

func (j *joined) add(v View) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.views = append(j.views, v)
}

func (j *joined) told() []View {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.views)
}

// until waits for a condition on the last view, which may be empty.
func (j *joined) until(what string, ok func(View) bool) (last View) {
	j.t.Helper()
	defer func() {
		if j.t.Failed() {
			j.t.Logf("the last view has %v, placement %d of %v", names(last.Members), last.Revision, last.Placement)
		}
	}()
	natstest.Eventually(j.t, "there is a view in which "+what, func() bool {
		if all := j.told(); len(all) > 0 {
			last = all[len(all)-1]
		}
		return ok(last)
	})
	return last
}

// placedFor waits until exactly these are live, and the placement is made for them.
func (j *joined) placedFor(want ...string) View {
	j.t.Helper()
	return j.until(fmt.Sprintf("%v are live and have all partitions", want), func(v View) bool {
		counts := owned(v.Placement)
		for _, name := range want {
			if counts[name] == 0 {
				return false
			}
		}
		return slices.Equal(names(v.Members), want) && len(counts) == len(want) && v.Revision > 0
	})
}

func TestJoinAndLeave(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	a, b := h.join("a"), h.join("b", func(o *Options) { o.Bound = time.Hour })
	two := a.placedFor("a", "b")
	c := h.join("c", func(o *Options) { o.Zone, o.Version = "cellar", "1.2" })
	three := a.placedFor("a", "b", "c")
	for _, p := range moves(two.Placement, three.Placement) {
		if three.Placement[p].Owner != "c" {
			t.Errorf("c came, and partition %d went to %s", p, three.Placement[p].Owner)
		}
	}
	for _, other := range []*joined{b, c} {
		if v := other.placedFor("a", "b", "c"); !v.Placement.Equal(three.Placement) || v.Revision != three.Revision {
			t.Errorf("%s has placement %v, a has %v", other.o.Name, v.Placement, three.Placement)
		}
	}
	if got, ok := three.Member("c"); !ok || got.Zone != "cellar" || got.Version != "1.2" || got.Session != c.session {
		t.Errorf("c is told as %+v", got)
	}
	if err := c.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.kv.Get(t.Context(), c.key); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("c's key after it left: %v", err)
	}
	back := a.placedFor("a", "b")
	for _, p := range moves(three.Placement, back.Placement) {
		if three.Placement[p].Owner != "c" {
			t.Errorf("c left, and partition %d of %s moved", p, three.Placement[p].Owner)
		}
	}
	// The first member leaves, and the answer to its last beat was lost. The next one places, and does not wait for the bound.
	a.Close()
	a.revision--
	if err := a.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.kv.Get(t.Context(), a.key); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("a's key after it left: %v", err)
	}
	b.placedFor("b")
	again := h.join("a") // at once: the name is free
	again.placedFor("a", "b")
}

// If the context ends while the first beat is on its way, the beat is not left behind: Join returns a member, which can leave.
func TestJoinEndsMeanwhile(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	js, _ := h.connect()
	ctx, cancel := context.WithCancel(t.Context())
	o := options("a")
	o.Report = func() Report { // called right before the beat is written
		cancel()
		return Report{}
	}
	m, err := Join(ctx, js, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.kv.Get(t.Context(), m.key); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("the key after it left: %v", err)
	}
}

func TestDrainingGetsNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	var draining atomic.Bool
	a := h.join("a", func(o *Options) { o.Report = func() Report { return Report{Draining: draining.Load()} } })
	b := h.join("b")
	b.placedFor("a", "b")
	draining.Store(true)
	v := b.until("a is live and has no partition", func(v View) bool {
		return slices.Equal(names(v.Members), []string{"a", "b"}) && owned(v.Placement)["b"] == 8
	})
	if v.Placement[0].Standbys != nil {
		t.Errorf("a node that drains is a standby: %v", v.Placement[0])
	}
	draining.Store(false)
	a.placedFor("a", "b")
}

// Positions and offsets come with each beat, and do not make a new view. Clocks that are hours off change nothing.
func TestReports(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	var position atomic.Uint64
	a := h.join("a", patiently, func(o *Options) {
		o.Report = func() Report {
			return Report{ClockOffsetMS: 3_600_000, Partitions: []Progress{{Partition: 3, Position: position.Add(1), Epoch: 9}}}
		}
	})
	b := h.join("b", patiently, func(o *Options) { o.Report = func() Report { return Report{ClockOffsetMS: -3_600_000} } })
	b.placedFor("a", "b")
	a.placedFor("a", "b")
	told := len(b.told())
	from := position.Load()
	natstest.Eventually(t, "a's position comes", func() bool {
		got, _ := b.View().Member("a")
		p, ok := got.Progress(3)
		if !ok || p.Position <= from+20 {
			return false
		}
		if p.Epoch != 9 || got.ClockOffsetMS != 3_600_000 {
			t.Errorf("a is told as %+v", got)
		}
		return true
	})
	if more := len(b.told()) - told; more != 0 {
		t.Errorf("%d views for figures alone", more)
	}
}

func TestBucketIsChecked(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	js, _ := h.connect()
	for name, cfg := range map[string]jetstream.KeyValueConfig{
		"memory": {Storage: jetstream.MemoryStorage}, "forgets": {TTL: time.Hour},
	} {
		cfg.Bucket = name
		if _, err := js.CreateKeyValue(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		o := options("a")
		o.Bucket = name
		if _, err := Join(t.Context(), js, o); !errors.Is(err, ErrBucket) {
			t.Errorf("%s: %v", name, err)
		}
	}
	a := h.join("a")
	a.placedFor("a")
	status, err := a.kv.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c := status.Config(); c.History != 1 || c.Replicas != 1 || c.Storage != jetstream.FileStorage || c.TTL != 0 {
		t.Errorf("the bucket is made as %+v", c)
	}
	o := options("b")
	o.Replicas = 3
	if _, err := Join(t.Context(), js, o); !errors.Is(err, ErrBucket) {
		t.Errorf("three replicas of a bucket that has one: %v", err)
	}
	o = options("b")
	o.Partitions = 16
	if _, err := Join(t.Context(), js, o); !errors.Is(err, ErrPartitions) || !strings.Contains(err.Error(), "nats stream rm KV_"+a.o.Bucket) {
		t.Errorf("16 partitions in a cluster with 8: %v", err)
	}
}

// How long beats have failed counts from the last one that was stored, and is over with the next.
func TestBeatsFailing(t *testing.T) {
	m := &Member{start: time.Now().Add(-time.Hour)}
	m.stored(1)
	if since, err := m.BeatsFailing(); since != 0 || err != nil {
		t.Errorf("%v, %v, and none has failed", since, err)
	}
	m.start = m.start.Add(-time.Minute)
	refused := errors.New("refused")
	m.failed.Store(&refused)
	if since, err := m.BeatsFailing(); since < time.Minute || since > 30*time.Minute || !errors.Is(err, refused) {
		t.Errorf("%v, %v; a minute ago the last one was stored", since, err)
	}
}

// lateSight is a JetStream of several servers whose leader hears of a new bucket only after some questions.
type lateSight struct {
	jetstream.JetStream
	late int
}

func (j *lateSight) CreateKeyValue(ctx context.Context, cfg jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	kv, err := j.JetStream.CreateKeyValue(ctx, cfg)
	return unseenBucket{kv, j}, err
}

func (j *lateSight) KeyValue(ctx context.Context, bucket string) (jetstream.KeyValue, error) {
	kv, err := j.JetStream.KeyValue(ctx, bucket)
	return unseenBucket{kv, j}, err
}

type unseenBucket struct {
	jetstream.KeyValue
	by *lateSight
}

func (b unseenBucket) Status(ctx context.Context) (jetstream.KeyValueStatus, error) {
	if b.by.late--; b.by.late >= 0 {
		return nil, jetstream.ErrStreamNotFound
	}
	return b.KeyValue.Status(ctx)
}

func TestJoinsWhereTheBucketIsNew(t *testing.T) {
	t.Parallel()
	js, _ := newHost(t).connect()
	late := &lateSight{js, 3}
	m, err := Join(t.Context(), late, options("a"))
	if err != nil || late.late != -1 {
		t.Fatalf("%v after %d more questions", err, late.late)
	}
	m.Close()
}

func TestOptionsAreChecked(t *testing.T) {
	for field, changes := range map[string][]func(*Options){
		"Name": {func(o *Options) { o.Name = "a.b" }}, "Bucket": {func(o *Options) { o.Bucket = "a b" }},
		"Replicas":     {func(o *Options) { o.Replicas = -1 }, func(o *Options) { o.Replicas = maxReplicas + 1 }},
		"MakeReplicas": {func(o *Options) { o.Replicas, o.MakeReplicas = 3, 1 }, func(o *Options) { o.MakeReplicas = maxReplicas + 1 }},
		"Weight":       {func(o *Options) { o.Weight = -1 }, func(o *Options) { o.Weight = MaxWeight + 1 }},
		"Partitions":   {func(o *Options) { o.Partitions = 0 }, func(o *Options) { o.Partitions = maxPartitions + 1 }},
		"Standbys":     {func(o *Options) { o.Standbys = -2 }, func(o *Options) { o.Standbys = MaxStandbys + 1 }},
		"Interval":     {func(o *Options) { o.Interval = -1 }}, "Bound": {func(o *Options) { o.Bound = 3*o.Interval - 1 }},
		"Report": {func(o *Options) { o.Report = nil }},
	} {
		for _, change := range changes {
			o := options("a")
			change(&o)
			if err := o.Validate(); err == nil {
				t.Errorf("a bad %s is taken: %+v", field, o)
			}
		}
	}
	for _, o := range []Options{
		{Replicas: 1, Weight: 1, Partitions: 1, Standbys: -1, Interval: time.Millisecond, Bound: 3 * time.Millisecond},
		{Replicas: maxReplicas, Weight: MaxWeight, Partitions: maxPartitions, Standbys: MaxStandbys},
	} {
		o.Name, o.Report = "a", func() Report { return Report{} }
		if err := o.Validate(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	o := Options{Replicas: 3}.withDefaults()
	if o.Bucket != "CARILLON_NODES" || o.MakeReplicas != 3 || o.Weight != 1 || o.Standbys != 1 || o.Interval != 200*time.Millisecond || o.Bound != 800*time.Millisecond {
		t.Errorf("defaults are %+v", o)
	}
	bad := options("a.b")
	if _, err := Join(t.Context(), nil, bad); err == nil {
		t.Error("Join takes a bad name")
	}
}

// The holder of a name counts as alive if its key goes on changing, but not if only replicas differ in how far they are.
func TestHolder(t *testing.T) {
	const interval, bound = 200 * time.Millisecond, time.Second
	for what, c := range map[string]struct {
		revisions     []uint64
		lives, silent bool
	}{
		"a dead one":                          {[]uint64{7, 7, 7, 7, 7, 7, 7}, false, true},
		"a dead one, a replica far behind":    {[]uint64{3, 7, 3, 7, 3, 7, 3, 7}, false, true},
		"a dead one, a replica catches up":    {[]uint64{3, 5, 7, 6, 7, 7, 7, 7, 7}, false, true},
		"it caught up a moment ago":           {[]uint64{3, 3, 3, 3, 3, 3, 7, 7}, false, false},
		"a live one":                          {[]uint64{7, 8, 9, 10, 11, 12}, true, false},
		"a live one, and a replica is behind": {[]uint64{7, 3, 9, 10, 3, 12, 13, 14}, true, false},
	} {
		h := holder{bound: bound}
		now := time.Minute
		for _, revision := range c.revisions {
			h.read(now, revision)
			now += interval
		}
		if h.alive() != c.lives || h.silent(now) != c.silent {
			t.Errorf("%s: it lives: %t, is silent: %t", what, h.alive(), h.silent(now))
		}
	}
}
