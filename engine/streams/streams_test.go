package streams

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/internal/leaktest"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("STREAMS_TEST_SERVER"); dir != "" {
		serve(dir)
	}
	leaktest.Main(m,
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/ats.init.0.func1"))
}

// serve is the process that gets killed: a server on dir over TCP. It prints its address, and waits.
func serve(dir string) {
	ns, err := run(dir, 0)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(ns.ClientURL())
	ns.WaitForShutdown()
	os.Exit(0)
}

// run starts a server on dir; port -1 is none, 0 a free one.
func run(dir string, port int) (*server.Server, error) {
	o := &server.Options{Host: "127.0.0.1", JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true}
	if port < 0 {
		o.DontListen = true
	} else if port == 0 {
		o.Port = server.RANDOM_PORT
	}
	ns, err := server.NewServer(o)
	if err != nil {
		return nil, err
	}
	ns.Start()
	if !ns.ReadyForConnections(time.Minute) {
		return nil, errors.New("server is not ready")
	}
	return ns, nil
}

// host is a server in this process that can be stopped and started under its clients.
type host struct {
	t   testing.TB
	dir string
	ns  atomic.Pointer[server.Server]
}

func (h *host) InProcessConn() (net.Conn, error) {
	ns := h.ns.Load()
	if ns == nil {
		return nil, errors.New("down")
	}
	return ns.InProcessConn()
}

// account is the account of all clients, in which requests to JetStream can be led astray.
func (h *host) account() *server.Account {
	h.t.Helper()
	account, err := h.ns.Load().LookupAccount(server.DEFAULT_GLOBAL_ACCOUNT)
	if err != nil {
		h.t.Fatal(err)
	}
	return account
}

// answer has requests on a subject of JetStream's get an answer of the test's instead, until end is called. told is how often it was given.
func (h *host) answer(nc *nats.Conn, subject, with string) (told func() int32, end func()) {
	h.t.Helper()
	var n atomic.Int32
	sub, err := nc.Subscribe(nats.NewInbox(), func(m *nats.Msg) {
		n.Add(1)
		_ = m.Respond([]byte(with)) // if that fails, the request goes without an answer, which the test sees
	})
	if err != nil {
		h.t.Fatal(err)
	}
	account := h.account()
	if err := account.AddMapping(subject, sub.Subject); err != nil {
		h.t.Fatal(err)
	}
	return n.Load, func() {
		account.RemoveMapping(subject)
		if err := sub.Unsubscribe(); err != nil {
			h.t.Error(err)
		}
	}
}

func (h *host) start() {
	h.t.Helper()
	ns, err := run(h.dir, -1)
	if err != nil {
		h.t.Fatal(err)
	}
	h.ns.Store(ns)
}

func (h *host) stop() {
	if ns := h.ns.Swap(nil); ns != nil {
		ns.Shutdown()
		ns.WaitForShutdown()
	}
}

func newHost(t testing.TB) *host {
	h := &host{t: t, dir: t.TempDir()}
	h.start()
	t.Cleanup(h.stop)
	return h
}

func (h *host) connect(more ...nats.Option) *nats.Conn {
	h.t.Helper()
	nc, err := nats.Connect("", append([]nats.Option{
		nats.InProcessServer(h), nats.MaxReconnects(-1),
		nats.ReconnectWait(10 * time.Millisecond), nats.ReconnectBufSize(-1),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}, more...)...)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(nc.Close)
	return nc
}

func open(t testing.TB, nc *nats.Conn, cfg Config) *Streams {
	t.Helper()
	s, err := Open(t.Context(), nc, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func fresh(t testing.TB, cfg Config) (*Streams, *nats.Conn, *host) {
	t.Helper()
	h := newHost(t)
	nc := h.connect()
	return open(t, nc, cfg), nc, h
}

func appendLog(t testing.TB, l *Log, n int) []Position {
	t.Helper()
	var at []Position
	for i := range n {
		seq, err := l.Publish(t.Context(), "carillon.log.0.tick", nil, fmt.Appendf(nil, "%d", i))
		if err != nil {
			t.Fatal(err)
		}
		m, err := l.Get(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		at = append(at, m.Position())
	}
	return at
}

func chained(subject string, data []byte, expect uint64) *Chained {
	return &Chained{Subject: []byte(subject), Data: string(data), Expect: expect}
}

func publishChained(t testing.TB, o *OutStream, subject string, data []byte, expect uint64) (uint64, error) {
	t.Helper()
	type answer struct {
		seq uint64
		err error
	}
	ch := make(chan answer, 1)
	if err := o.PublishChained(chained(subject, data, expect), func(seq uint64, err error) { ch <- answer{seq, err} }); err != nil {
		t.Fatal(err)
	}
	o.sender.flush()
	a := <-ch
	return a.seq, a.err
}

// eventually waits for a condition that the machine's load may delay but not prevent.
var eventually = natstest.Eventually

// nats-server computes a job's partition as the engine does.
func TestPartitionOf(t *testing.T) {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-:=@+"
	h := newHost(t)
	nc := h.connect()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, p := range []int{1, 7, 8, 1024} {
		prefix := fmt.Sprintf("p%d", p)
		cfg := Config{Prefix: prefix, StreamPrefix: prefix, Partitions: p}.withDefaults()
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		st, err := js.CreateStream(t.Context(), cfg.logConfig())
		if err != nil {
			t.Fatal(err)
		}
		ids := []string{alphabet}
		for range 200 {
			b := make([]byte, 1+rng.IntN(128))
			for i := range b {
				b[i] = alphabet[rng.IntN(len(alphabet))]
			}
			ids = append(ids, string(b))
		}
		for i, id := range ids {
			if _, err := js.Publish(t.Context(), prefix+".cmd.put."+id, nil); err != nil {
				t.Fatal(err)
			}
			m, err := st.GetMsg(t.Context(), uint64(i+1))
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprintf("%s.log.%d.put.%s", prefix, engine.PartitionOf(id, p), id); m.Subject != want {
				t.Fatalf("the server stored %s, want %s", m.Subject, want)
			}
		}
	}
}

// What clients can and cannot put into the log through a command's subject.
func TestCommandSubjects(t *testing.T) {
	s, nc, _ := fresh(t, Config{})
	for subject, want := range map[string]string{
		"carillon.cmd.put.a":    "carillon.log.4.put.a",
		"carillon.cmd.tick.x":   fmt.Sprintf("carillon.log.%d.tick.x", engine.PartitionOf("x", 8)),
		"carillon.cmd.put.*":    "carillon.cmd.put.*", // stored as it is
		"carillon.cmd.put.a.b":  "",                   // no stream takes it
		"carillon.cmd.put":      "",
		"carillon.cmd.put.a.*":  "",
		"carillon.log.3.tick":   "carillon.log.3.tick",
		"carillon.log.3.put.zz": "carillon.log.3.put.zz",
	} {
		m, err := nc.Request(subject, nil, 5*time.Second)
		if want == "" {
			if !errors.Is(err, nats.ErrNoResponders) {
				t.Errorf("%s: %v, want no responders", subject, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", subject, err)
		}
		seq, err := parseAck(m.Data)
		if err != nil {
			t.Fatalf("%s: %v", subject, err)
		}
		got, err := s.Log.Get(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		if got.Subject != want {
			t.Errorf("%s was stored as %s, want %s", subject, got.Subject, want)
		}
	}
}

// Workers count the output streams from 0 on. A worker that starts while the streams are being made must not take some for all.
func TestFirstOutputStreamComesLast(t *testing.T) {
	_, nc, _ := fresh(t, Config{Partitions: 4})
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	var made [4]time.Time
	for p := range made {
		st, err := js.Stream(t.Context(), fmt.Sprintf("CARILLON_OUT_%d", p))
		if err != nil {
			t.Fatal(err)
		}
		made[p] = st.CachedInfo().Created
	}
	for p, at := range made[1:] {
		if !at.Before(made[0]) {
			t.Errorf("CARILLON_OUT_%d was made at %s, the first one at %s", p+1, at, made[0])
		}
	}
}

func TestOpenAgain(t *testing.T) {
	h := newHost(t)
	nc := h.connect()
	if _, err := Open(t.Context(), nc, Config{MustExist: true}); !errors.Is(err, ErrNoStream) { // and none is made
		t.Errorf("a log that is known and not there: %v", err)
	}
	if s := open(t, nc, Config{Partitions: 3, PersistAsync: true}); len(s.Out) != 3 || s.Log.Partitions() != 3 {
		t.Errorf("%d output streams, %d partitions, want 3", len(s.Out), s.Log.Partitions())
	}
	for _, p := range []int{0, 3} {
		// Limits are the operator's: asking for others here changes nothing.
		s := open(t, nc, Config{Partitions: p, OutMaxBytes: 1 << 20})
		if len(s.Out) != 3 {
			t.Errorf("asked for %d partitions, got %d, want 3", p, len(s.Out))
		}
		info, err := s.Out[0].Info(t.Context())
		if err != nil || info.MaxBytes != 512<<20/3 {
			t.Errorf("%+v, %v: want the limit it was made with", info, err)
		}
	}
	// With UpdateLimits, limits that are given are changed, and others stay.
	open(t, nc, Config{OutMaxAge: time.Hour, UpdateLimits: true})
	s := open(t, nc, Config{OutMaxBytes: 2 << 20, UpdateLimits: true})
	if out, err := s.Out[2].Info(t.Context()); err != nil || out.MaxAge != time.Hour {
		t.Errorf("an output stream is bounded by %s, %v", out.MaxAge, err)
	}
	s = open(t, nc, Config{LogMaxBytes: 3 << 20, OutMaxAge: -1, UpdateLimits: true})
	out, err := s.Out[2].Info(t.Context())
	if err != nil || out.MaxBytes != 2<<20 || out.MaxAge != 0 {
		t.Errorf("an output stream is bounded by %d bytes, %s, %v", out.MaxBytes, out.MaxAge, err)
	}
	if log, err := s.Log.Info(t.Context()); err != nil || log.MaxBytes != 3<<20 {
		t.Errorf("the log is bounded by %d bytes, %v", log.MaxBytes, err)
	}
	_, err = Open(t.Context(), nc, Config{Replicas: 3})
	if err == nil || !strings.Contains(err.Error(), "CARILLON_LOG cannot be used: it has 1 replicas, 3 are asked for (nats stream edit CARILLON_LOG --replicas 3)") {
		t.Errorf("asked for 3 replicas of a stream that has one: %v", err)
	}
	_, err = Open(t.Context(), nc, Config{Partitions: 16})
	if err == nil || !strings.Contains(err.Error(), "3 partitions") || !strings.Contains(err.Error(), "16 ") {
		t.Errorf("asked for 16 partitions: %v", err)
	}
}

// A log shows how many partitions it was made with, from the fewest to the most.
func TestPartitionsOf(t *testing.T) {
	for _, n := range []int{1, MaxPartitions} {
		c := Config{Partitions: n}.withDefaults()
		if got, ok := PartitionsOf(c.logConfig()); got != n || !ok {
			t.Errorf("%d, %t, want %d", got, ok, n)
		}
	}
}

func TestOpenRefusesOtherShapes(t *testing.T) {
	log, out := Config{Partitions: 8}.withDefaults().logConfig(), Config{Partitions: 8}.withDefaults().outConfig(5)
	for want, c := range map[string]struct {
		base   jetstream.StreamConfig
		change func(*jetstream.StreamConfig)
	}{
		"retention is WorkQueue":        {log, func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy }},
		"retention is Interest":         {out, func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }},
		"there is no subject transform": {log, func(c *jetstream.StreamConfig) { c.SubjectTransform = nil }},
		"{{wildcard(2)}}.{{wildcard(1)}}": {log, func(c *jetstream.StreamConfig) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{
				Source: "carillon.cmd.*.*", Destination: "carillon.log.{{partition(8,2)}}.{{wildcard(2)}}.{{wildcard(1)}}",
			}
		}},
		"there is a subject transform": {out, func(c *jetstream.StreamConfig) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "carillon.trigger.5.>", Destination: "carillon.event.5.>"}
		}},
		"subjects are":                  {out, func(c *jetstream.StreamConfig) { c.Subjects = c.Subjects[:1] }},
		"discard is DiscardOld":         {log, func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld }},
		"discard is DiscardNew":         {out, func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardNew }},
		"max age is 1h0m0s":             {log, func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }},
		"per subject is 1":              {log, func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 }},
		"acknowledgements are off":      {out, func(c *jetstream.StreamConfig) { c.NoAck = true }},
		"purge is denied":               {log, func(c *jetstream.StreamConfig) { c.DenyPurge = true }},
		"roll-up":                       {log, func(c *jetstream.StreamConfig) { c.AllowRollup = true }},
		"time to live":                  {log, func(c *jetstream.StreamConfig) { c.AllowMsgTTL = true }},
		"storage is Memory":             {out, func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }},
		"max messages is 1000":          {log, func(c *jetstream.StreamConfig) { c.MaxMsgs = 1000 }},
		"max message size is 65536":     {out, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 64 << 10 }},
		"max consumers is 1":            {log, func(c *jetstream.StreamConfig) { c.MaxConsumers = 1 }},
		"acknowledges before it writes": {log, func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode }},
		"it is a counter":               {out, func(c *jetstream.StreamConfig) { c.AllowMsgCounter = true }},
		"message schedules":             {out, func(c *jetstream.StreamConfig) { c.AllowMsgSchedules = true }},
		"sources another stream": {out, func(c *jetstream.StreamConfig) {
			c.Sources = []*jetstream.StreamSource{{Name: "ELSE"}}
		}},
	} {
		t.Run(want, func(t *testing.T) {
			h := newHost(t)
			nc := h.connect()
			js, err := jetstream.New(nc)
			if err != nil {
				t.Fatal(err)
			}
			cfg := c.base
			c.change(&cfg)
			if _, err := js.CreateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			_, err = Open(t.Context(), nc, Config{})
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), cfg.Name) {
				t.Errorf("error is %v", err)
			}
		})
	}
}

func TestConfigValidate(t *testing.T) {
	for want, c := range map[string]Config{
		"Prefix":             {Prefix: "a.b"},
		"StreamPrefix":       {StreamPrefix: "a b"},
		"Reader":             {Reader: "a>"},
		"Partitions is -1":   {Partitions: -1},
		"Partitions is 1025": {Partitions: 1025},
		"Replicas is 6":      {Replicas: 6},
		"LogMaxBytes":        {LogMaxBytes: -2},
		"OutMaxBytes":        {OutMaxBytes: -2},
		"OutMaxAge is 1ms":   {OutMaxAge: time.Millisecond},
		"OutMaxAge is -1s":   {OutMaxAge: -time.Second},
		"PersistAsync":       {PersistAsync: true, Replicas: 3},
		"AckTimeout":         {AckTimeout: -1},
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error is %v, want %s", c, err, want)
		}
	}
	if bound := (Config{Partitions: 1, OutMaxBytes: 2 << 20}).outConfig(0).MaxBytes; bound != 2<<20 {
		t.Errorf("an output stream that is to have 2 MiB is made with %d bytes", bound)
	}
	for _, c := range []Config{{}, {LogMaxBytes: -1, OutMaxBytes: -1, OutMaxAge: -1}} {
		if err := c.Validate(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// However many partitions share the default bound, each output stream can hold any trigger.
func TestDefaultHoldsAnyTrigger(t *testing.T) {
	largest := int64(carillon.MaxPayload + carillon.MaxHeaderBytes + 8<<10)
	if bound := (Config{Partitions: MaxPartitions}).withDefaults().outConfig(0).MaxBytes; bound < largest {
		t.Errorf("one of %d output streams is bounded by %d bytes, and a trigger may have %d", MaxPartitions, bound, largest)
	}
}

func TestServerVersion(t *testing.T) {
	for version, ok := range map[string]bool{
		"2.12.0": true, "2.15.2": true, "3.0.0": true, "2.12.0-RC.1": true,
		"2.11.9": false, "2.9.0": false, "1.4.1": false, "": false, "new": false,
	} {
		if err := checkVersion(version); (err == nil) != ok {
			t.Errorf("%q: %v", version, err)
		}
	}
}

// One refusal refuses the rest of the chain, and the server says how far the stream is.
func TestChain(t *testing.T) {
	for _, async := range []bool{false, true} {
		s, _, _ := fresh(t, Config{Partitions: 2, PersistAsync: async})
		o := s.Out[0]
		const subject = "carillon.trigger.0.x"
		var mu sync.Mutex
		var got []string
		var done sync.WaitGroup
		send := func(expect uint64) {
			done.Add(1)
			err := o.PublishChained(&Chained{Subject: []byte(subject), Header: []byte("Carillon-Job: j\r\n"), Data: "x", Expect: expect}, func(seq uint64, err error) {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, fmt.Sprint(seq, err))
				done.Done()
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, expect := range []uint64{0, 1, 3, 4, 5, 2} { // 2 is left out and comes last
			send(expect)
		}
		done.Wait()
		var want []string
		for _, a := range []struct {
			seq uint64
			err error
		}{
			{1, nil},
			{2, nil},
			{0, &WrongSequenceError{Last: 2, Known: true}},
			{0, &WrongSequenceError{Last: 2, Known: true}},
			{0, &WrongSequenceError{Last: 2, Known: true}},
			{3, nil},
		} {
			want = append(want, fmt.Sprint(a.seq, a.err))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("async %t: answers are\n%q, want\n%q", async, got, want)
		}

		// Without acks the same holds; the ack of the one that asks counts for all.
		for expect := uint64(3); expect < 500; expect++ {
			if err := o.PublishChained(chained(subject, nil, expect), nil); err != nil {
				t.Fatal(err)
			}
		}
		if seq, err := publishChained(t, o, subject, nil, 500); seq != 501 || err != nil {
			t.Errorf("async %t: the end of a window: %d, %v", async, seq, err)
		}
		info, m, err := o.Last(t.Context())
		if err != nil || info.Last != 501 || m == nil || m.Seq != 501 || m.Subject != subject {
			t.Errorf("async %t: Last: %d, %+v, %v", async, info.Last, m, err)
		}
		first, err := o.Get(t.Context(), 1)
		if err != nil || first.Header.Get("Carillon-Job") != "j" || first.Header.Get(ExpectedLastSequence) != "0" || string(first.Data) != "x" {
			t.Errorf("async %t: Get: %+v, %v", async, first, err)
		}
		if a := o.next(t.Context(), 0, 2); a.err != nil || len(a.batch) != 2 || a.upTo != 2 { // a scan delivers no more
			t.Errorf("async %t: up to 2 it gives %d, up to %d: %v", async, len(a.batch), a.upTo, a.err)
		}
		if info, m, err := s.Out[1].Last(t.Context()); info.Last != 0 || m != nil || err != nil {
			t.Errorf("async %t: an empty stream's Last: %d, %v, %v", async, info.Last, m, err)
		}
	}
}

// A stream that was emptied by age keeps its last sequence: a publish that expects 0 is refused, one that expects the true one is stored.
func TestChainOnEmptiedStream(t *testing.T) {
	s, _, _ := fresh(t, Config{Partitions: 1, OutMaxAge: 100 * time.Millisecond})
	o := s.Out[0]
	const subject = "carillon.trigger.0.x"
	for expect := range uint64(3) {
		if _, err := publishChained(t, o, subject, nil, expect); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "age empties the stream", func() bool {
		info, err := o.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return info.Messages == 0
	})
	if info, m, err := o.Last(t.Context()); info.Last != 3 || m != nil || err != nil {
		t.Errorf("Last: %d, %v, %v, want 3 and no message", info.Last, m, err)
	}
	var wrong *WrongSequenceError
	if _, err := publishChained(t, o, subject, nil, 0); !errors.As(err, &wrong) || wrong.Last != 3 || !errors.Is(err, ErrWrongSequence) {
		t.Errorf("expecting 0: %v", err)
	}
	if seq, err := publishChained(t, o, subject, nil, 3); seq != 4 || err != nil {
		t.Errorf("expecting 3: %d, %v", seq, err)
	}
}

// A full log refuses records, and does not drop any that were not read; trimming makes room.
func TestLogFull(t *testing.T) {
	s, _, _ := fresh(t, Config{Partitions: 1, LogMaxBytes: 64 << 10})
	var last uint64
	for {
		seq, err := s.Log.Publish(t.Context(), "carillon.log.0.tick", nil, make([]byte, 1000))
		if err != nil {
			if !errors.Is(err, ErrNoSpace) {
				t.Fatal(err)
			}
			break
		}
		last = seq
	}
	info, err := s.Log.Info(t.Context())
	if err != nil || info.First != 1 || info.Last != last || last < 10 {
		t.Errorf("%+v, %v: want 1 to %d", info, err, last)
	}
	if err := s.Log.Trim(t.Context(), last+1); err != nil {
		t.Fatal(err)
	}
	if seq, err := s.Log.Publish(t.Context(), "carillon.log.0.tick", nil, nil); seq != last+1 || err != nil {
		t.Errorf("after Trim: %d, %v", seq, err)
	}
}

func TestTrimAndBump(t *testing.T) {
	s, _, _ := fresh(t, Config{Partitions: 1})
	l := s.Log
	appendLog(t, l, 10)
	for _, step := range []struct {
		do          func() error
		first, last uint64
	}{
		{func() error { return l.Trim(t.Context(), 0) }, 1, 10},
		{func() error { return l.Trim(t.Context(), 1) }, 1, 10},
		{func() error { return l.Trim(t.Context(), 4) }, 4, 10},
		{func() error { return l.Trim(t.Context(), 3) }, 4, 10},
		{func() error { return l.Trim(t.Context(), 11) }, 11, 10},
		{func() error { return l.Bump(t.Context(), 10) }, 11, 10},
		{func() error { return l.Bump(t.Context(), 1000) }, 1001, 1000},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		info, err := l.Info(t.Context())
		if err != nil || info.First != step.first || info.Last != step.last {
			t.Errorf("%+v, %v: want %d to %d", info, err, step.first, step.last)
		}
	}
	if err := l.Trim(t.Context(), 1002); err == nil {
		t.Error("Trim beyond the end is a Bump")
	}
	if err := l.Bump(t.Context(), 999); err == nil {
		t.Error("Bump went back")
	}
	if seq, err := l.Publish(t.Context(), "carillon.log.0.tick", nil, nil); seq != 1001 || err != nil {
		t.Errorf("after Bump: %d, %v", seq, err)
	}
	for _, seq := range []uint64{0, 5, 1000, 1002} {
		if _, err := l.Get(t.Context(), seq); !errors.Is(err, ErrNotFound) {
			t.Errorf("Get(%d): %v", seq, err)
		}
	}
}

// process is a server in a process of its own, which can be killed.
func process(t testing.TB, dir string) (nc *nats.Conn, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "STREAMS_TEST_SERVER="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	kill = func() {
		once.Do(func() {
			if nc != nil {
				nc.Close()
			}
			cmd.Process.Kill()
			cmd.Wait()
		})
	}
	t.Cleanup(kill)
	buf := make([]byte, 256)
	n, err := out.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	nc, err = nats.Connect(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		t.Fatal(err)
	}
	return nc, kill
}

// kill -9 loses nothing that was acknowledged, and an emptied log keeps its last sequence, whether
// Trim or Bump emptied it.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	empty := func(do func(l *Log) error, want uint64) {
		t.Helper()
		nc, kill := process(t, dir)
		s := open(t, nc, Config{Partitions: 1})
		if err := do(s.Log); err != nil {
			t.Fatal(err)
		}
		s.Close()
		kill()
		nc, kill = process(t, dir)
		defer kill()
		s = open(t, nc, Config{})
		defer s.Close()
		info, err := s.Log.Info(t.Context())
		if err != nil || info.Last != want || info.First != want+1 {
			t.Errorf("%+v, %v: want an empty log at %d", info, err, want)
		}
		if seq, err := s.Log.Publish(t.Context(), "carillon.log.0.tick", nil, []byte("x")); seq != want+1 || err != nil {
			t.Errorf("the next is %d, %v, want %d", seq, err, want+1)
		}
	}
	empty(func(l *Log) error {
		appendLog(t, l, 50)
		return l.Trim(t.Context(), 51)
	}, 50)
	empty(func(l *Log) error { return l.Bump(t.Context(), 5000) }, 5000)
	empty(func(l *Log) error { return l.Bump(t.Context(), 1<<40) }, 1<<40)
}

// What was acknowledged survives a kill; of a stream that persists later, all but its tail. There is no hole
// and nothing else in it, and the chain goes on from the last sequence that is there.
func TestKillTail(t *testing.T) {
	for _, async := range []bool{false, true} {
		dir := t.TempDir()
		nc, kill := process(t, dir)
		s := open(t, nc, Config{Partitions: 1, PersistAsync: async})
		const n = 20_000
		subject := "carillon.trigger.0.x"
		for i := range uint64(n - 1) {
			if err := s.Out[0].PublishChained(chained(subject, strconv.AppendUint(nil, i+1, 10), i), nil); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := publishChained(t, s.Out[0], subject, []byte("20000"), n-1); err != nil {
			t.Fatal(err)
		}
		s.Close()
		kill()

		nc, kill = process(t, dir)
		s = open(t, nc, Config{})
		info, m, err := s.Out[0].Last(t.Context())
		last := info.Last
		switch {
		case err != nil:
			t.Fatal(err)
		case !async && last != n, last > n:
			t.Errorf("async %t: the stream ends at %d of %d", async, last, n)
		case last > 0 && (m == nil || string(m.Data) != strconv.FormatUint(last, 10)):
			t.Errorf("async %t: message %d is %+v", async, last, m)
		}
		if info.Messages != last {
			t.Errorf("async %t: %+v: there are holes below %d", async, info, last)
		}
		if seq, err := publishChained(t, s.Out[0], subject, nil, last); seq != last+1 || err != nil {
			t.Errorf("async %t: the next is %d, %v", async, seq, err)
		}
		s.Close()
		kill()
	}
}

// Every way a publish can end without an answer ends with exactly one call.
func TestAcksOnce(t *testing.T) {
	h := newHost(t)
	nc := h.connect()
	s := open(t, nc, Config{Partitions: 1, AckTimeout: 50 * time.Millisecond})
	hole, err := nc.Subscribe("hole", func(*nats.Msg) {}) // receives publishes, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer hole.Unsubscribe()

	var calls sync.Map
	send := func(l *Log, subject string) (string, error) {
		ch := make(chan error, 1)
		id := new(int)
		err := l.PublishAsync(subject, nil, nil, func(_ uint64, err error) {
			if _, twice := calls.LoadOrStore(id, true); twice {
				t.Error("called twice")
			}
			ch <- err
		})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(<-ch), nil
	}
	patient := open(t, nc, Config{Partitions: 1, AckTimeout: time.Hour})
	if got, err := send(patient.Log, "carillon.log.0.tick"); got != "<nil>" || err != nil {
		t.Errorf("stored: %s, %v", got, err)
	}
	if got, err := send(patient.Log, "nowhere"); got != ErrNoStream.Error() || err != nil {
		t.Errorf("nobody listens: %s, %v", got, err)
	}
	for range 3 {
		if got, err := send(s.Log, "hole"); got != ErrTimeout.Error() || err != nil {
			t.Errorf("no answer: %s, %v", got, err)
		}
	}
	if _, err := send(s.Log, ""); err == nil {
		t.Error("an empty subject was sent")
	}

	got := make(chan error, 100)
	for range cap(got) {
		if err := patient.Log.PublishAsync("hole", nil, nil, func(_ uint64, err error) { got <- err }); err != nil {
			t.Fatal(err)
		}
	}
	h.stop()
	for range cap(got) {
		if err := <-got; !errors.Is(err, ErrDisconnected) {
			t.Errorf("disconnected: %v", err)
		}
	}
	disconnected := func(l *Log, subject, when string) { // the library may notice in between that the connection broke
		if got, err := send(l, subject); got != ErrDisconnected.Error() && !errors.Is(err, ErrDisconnected) {
			t.Errorf("%s: %s, %v", when, got, err)
		}
	}
	disconnected(patient.Log, "carillon.log.0.tick", "while disconnected")
	h.start()
	eventually(t, "publishing works again", func() bool {
		_, err := s.Log.Publish(t.Context(), "carillon.log.0.tick", nil, nil)
		return err == nil
	})

	if err := patient.Log.PublishAsync("hole", nil, nil, func(_ uint64, err error) { got <- err }); err != nil {
		t.Fatal(err)
	}
	patient.Close()
	if err := <-got; !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := send(patient.Log, "hole"); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	patient.Close()
	nc.Close()
	disconnected(s.Log, "hole", "on a closed connection")
	s.Close()
}

func TestNoStream(t *testing.T) {
	s, nc, _ := fresh(t, Config{Partitions: 1})
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"CARILLON_LOG", "CARILLON_OUT_0"} {
		if err := js.DeleteStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Log.Info(t.Context()); !errors.Is(err, ErrNoStream) {
		t.Errorf("Info: %v", err)
	}
	if _, _, err := s.Out[0].Last(t.Context()); !errors.Is(err, ErrNoStream) {
		t.Errorf("Last: %v", err)
	}
	if _, err := publishChained(t, s.Out[0], "carillon.trigger.0.x", nil, 0); !errors.Is(err, ErrNoStream) {
		t.Errorf("PublishChained: %v", err)
	}
	if err := s.Log.Read(t.Context(), Position{}, func([]Message) error { return nil }); !errors.Is(err, ErrNoStream) {
		t.Errorf("Read: %v", err)
	}
}

func TestDisk(t *testing.T) {
	dir := t.TempDir()
	if err := Syncfs(dir); err != nil {
		t.Error(err)
	}
	if free, err := FreeBytes(dir); free == 0 || err != nil {
		t.Errorf("%d bytes free, %v", free, err)
	}
	if err := Syncfs(dir + "/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Syncfs of no directory: %v", err)
	}
	if _, err := FreeBytes(dir + "/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("FreeBytes of no directory: %v", err)
	}
}

// cancelled is a context a test ends by itself.
func cancelled(t testing.TB) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), 30*time.Second)
}

// A direct get returns the same as the API, whatever headers a message has; but a message that it does not have is not ErrNotFound.
func TestDirect(t *testing.T) {
	nc := newHost(t).connect()
	s := open(t, nc, Config{Partitions: 1})
	out := s.Out[0]
	for _, header := range []nats.Header{
		nil,
		{"Plain": {"one"}},
		{"Plain": {"one", "two"}, nats.JSStream: {"OTHER"}, nats.JSSequence: {"7", "8"}, nats.JSTimeStamp: {"never"}, nats.JSSubject: {""}},
		{"Status": {"404"}, "Description": {"Message Not Found"}},
	} {
		m := nats.NewMsg("carillon.trigger.0.topic")
		m.Header, m.Data = header, []byte{0, '\r', '\n', 0xff}
		ack, err := nc.RequestMsg(m, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		seq, err := parseAck(ack.Data)
		if err != nil {
			t.Fatal(err)
		}
		want, err := out.Get(t.Context(), seq)
		if err != nil || !reflect.DeepEqual(want.Header, header) {
			t.Fatalf("stored with %v, and is %+v (%v)", header, want, err)
		}
		if got, err := out.direct(t.Context(), seq); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("direct %+v (%v), want %+v", got, err, want)
		}
	}
	if m, err := out.direct(t.Context(), 100); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a message that is not there: %+v, %v", m, err)
	}
}
