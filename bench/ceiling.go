package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/embedded"
	"github.com/carillon-scheduler/carillon/internal/memory"
	"github.com/carillon-scheduler/carillon/wal"
)

// CeilingConfig says how RunCeiling runs. The zero value of a field is its default.
type CeilingConfig struct {
	Service      Service `json:"-"`             // only Data, Server, NATS and Connect count
	Messages     int     `json:"messages"`      // of each measurement of a rate; default 500,000
	Streams      int     `json:"streams"`       // how many are published to at once; default 8
	PayloadBytes int     `json:"payload_bytes"` // default 200
	Rounds       int     `json:"rounds"`        // default 3; each rate is their median

	LatencyTime time.Duration `json:"-"` // how long each latency is measured; default 3 s

	Progress func(step string, done, total int) `json:"-"`
}

func (c CeilingConfig) withDefaults() (CeilingConfig, error) {
	var err error
	if c.Service, err = c.Service.withDefaults(); err != nil {
		return c, err
	}
	c.Messages = cmp.Or(c.Messages, 500_000)
	c.Streams = cmp.Or(c.Streams, 8)
	c.PayloadBytes = cmp.Or(c.PayloadBytes, 200)
	c.Rounds = cmp.Or(c.Rounds, 3)
	c.LatencyTime = cmp.Or(c.LatencyTime, 3*time.Second)
	c.Progress = defaultProgress(c.Progress)
	return c, nil
}

// Validate names the first field that cannot be used.
func (c CeilingConfig) Validate() error {
	c, err := c.withDefaults()
	switch {
	case err != nil:
		return err
	case c.Messages < 1000:
		return fmt.Errorf("bench: Messages is %d, must be 1,000 or more", c.Messages)
	case c.Streams < 1 || c.Streams > 256:
		return fmt.Errorf("bench: Streams is %d, must be 1 to 256", c.Streams)
	case c.PayloadBytes < 2 || c.PayloadBytes > carillon.MaxPayload:
		return fmt.Errorf("bench: PayloadBytes is %d, must be 2 to %d", c.PayloadBytes, carillon.MaxPayload)
	case c.LatencyTime < 0:
		return fmt.Errorf("bench: LatencyTime %s is negative", c.LatencyTime)
	case c.Rounds < 1:
		return fmt.Errorf("bench: Rounds is %d, must be 1 or more", c.Rounds)
	}
	return nil
}

// sync says what is on disk when: there is no engine to sync the embedded server's streams.
func (c *CeilingConfig) sync() string {
	if c.Service.Server != "" || c.Service.NATS != "" {
		return c.Service.sync()
	}
	return "commits: fsync; streams: page cache"
}

// RunCeiling measures, without an engine, the best that one could reach here: bare messages with the payload
// and headers of a trigger, published in the usual way and in chains; an append to a log stream that is read back;
// a bare time.Sleep; a synced commit to the local log. The server is embedded in this process, with the same rule
// for the garbage collector as in `carillon serve`; or, with Service.Server or NATS, it is one that runs already,
// over TCP, and the streams have as many replicas as the output streams of a service there.
func RunCeiling(ctx context.Context, c CeilingConfig) (r Result, err error) {
	if err := c.Validate(); err != nil {
		return r, err
	}
	if c, err = c.withDefaults(); err != nil {
		return r, err
	}
	m, err := openCeiling(ctx, c)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	r = Result{Workload: "ceiling", Params: c, Machine: thisMachine(m.own.dir, c.sync())}
	r.Machine.NATS, r.Machine.Replicas = m.nc.ConnectedServerVersion(), m.replicas

	figures := []struct {
		name    string
		measure func(context.Context) (float64, error)
	}{
		{"async_per_s", func(ctx context.Context) (float64, error) { return m.async(ctx, jetstream.DefaultPersistMode) }},
		{"chained_1_stream_per_s", m.chains(chains{streams: 1})},
		{"chained_per_s", m.chains(chains{streams: c.Streams})},
		{"chained_linked_per_s", m.chains(chains{streams: c.Streams, linked: true})},
		{"chained_persist_async_per_s", m.chains(chains{streams: c.Streams, mode: jetstream.AsyncPersistMode})},
	}
	rates := make([][]float64, len(figures))
	for round := range c.Rounds { // interleaved, so that a disturbance does not affect one measurement alone
		for i, f := range figures {
			c.Progress("publishing", round*len(figures)+i, c.Rounds*len(figures))
			rate, err := f.measure(ctx)
			if err != nil {
				return r, fmt.Errorf("bench: %s: %w", f.name, err)
			}
			rates[i] = append(rates[i], rate)
		}
	}
	for i, f := range figures {
		r.Figures.add(f.name, median(rates[i]))
	}

	c.Progress("measuring latencies", 0, 3)
	round, err := m.logRoundTrip(ctx)
	if err != nil {
		return r, fmt.Errorf("bench: log round trip: %w", err)
	}
	r.Figures.quantiles("log_round_trip", round, 50, 99, 99.9)
	c.Progress("measuring latencies", 1, 3)
	sleep := newHistogram()
	sleeping, stop := context.WithTimeout(ctx, c.LatencyTime)
	sleepUntilDone(sleeping, sleep)
	stop()
	r.Figures.quantiles("sleep", sleep, 50, 99, 99.9)
	c.Progress("measuring latencies", 2, 3)
	if err := m.commits(ctx, m.own.dir, &r.Figures); err != nil {
		return r, err
	}
	r.Machine.Load[1] = load1()
	return r, ctx.Err()
}

// median is the middle one of some values, or the mean of the two middle ones if their number is even. It
// sorts them.
func median(v []float64) float64 {
	slices.Sort(v)
	if len(v) == 0 {
		return 0
	}
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// ceiling is a connection, and streams on it that live as long as one measurement.
type ceiling struct {
	CeilingConfig
	nc      *nats.Conn
	js      jetstream.JetStream
	server  *embedded.Server // nil where one runs already
	untend  func()           // ends tendCollector
	own     *scratch
	payload []byte
	job     string // in the headers
	made    int    // streams so far

	replicas int // of each stream: as many as the output streams of a service that runs already
}

// openCeiling embeds a server, or connects to one. c has its defaults.
func openCeiling(ctx context.Context, c CeilingConfig) (m *ceiling, err error) {
	m = &ceiling{CeilingConfig: c, payload: payloadOf(c.PayloadBytes), job: "invoice-12345678", replicas: 1}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	if m.own, err = makeScratch(c.Service.Data); err != nil {
		return m, fmt.Errorf("bench: %w", err)
	}
	if there := cmp.Or(c.Service.Server, c.Service.NATS); there != "" {
		if m.nc, err = c.Service.Connect(there); err != nil {
			return m, fmt.Errorf("bench: connect: %w", err)
		}
	} else {
		m.untend = tendCollector()
		m.server, err = embedded.Start(embedded.Options{Dir: filepath.Join(m.own.dir, "nats"), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return m, err
		}
		if m.nc, err = m.server.Connect(); err != nil {
			return m, err
		}
	}
	if m.js, err = jetstream.New(m.nc, jetstream.WithPublishAsyncMaxPending(4000)); err != nil {
		return m, fmt.Errorf("bench: %w", err)
	}
	if c.Service.Server != "" {
		name := c.Service.Names.OutStream(0)
		s, err := m.js.Stream(ctx, name)
		switch {
		case err == nil:
			m.replicas = s.CachedInfo().Config.Replicas
		case !errors.Is(err, jetstream.ErrStreamNotFound): // a bare server
			return m, fmt.Errorf("bench: %s: %w", name, err)
		}
	}
	return m, nil
}

// tended counts the ceilings in this process that embed a server: they share one garbage collector.
var tended struct {
	sync.Mutex
	ceilings int
	end      func()
}

// tendCollector makes the garbage collector of this process work as an engine's does, until end. An embedded server allocates for each
// message, and how often that is collected is a good part of a message's cost: it must be the same for the ceiling and the engine.
func tendCollector() (end func()) {
	tended.Lock()
	defer tended.Unlock()
	if tended.ceilings++; tended.ceilings == 1 {
		tended.end = memory.TendCollector()
	}
	return sync.OnceFunc(func() {
		tended.Lock()
		defer tended.Unlock()
		if tended.ceilings--; tended.ceilings == 0 {
			tended.end()
		}
	})
}

func (m *ceiling) close() error {
	if m.nc != nil {
		m.nc.Close()
	}
	if m.server != nil {
		m.server.Shutdown()
	}
	if m.untend != nil {
		m.untend()
	}
	if m.own == nil {
		return nil
	}
	return m.own.remove()
}

// streamTimeout is for making or removing a stream: with replicas, their leader has other work to do.
const streamTimeout = 30 * time.Second

// stream makes an empty stream with a name of its own, which is also its subject, and returns the name. The stream has no bound,
// because the engine's streams that it is compared with have none: dropping the oldest messages is work.
func (m *ceiling) stream(ctx context.Context, mode jetstream.PersistModeType) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), streamTimeout) // else nobody knows whether there is one to be removed
	defer cancel()
	m.made++
	name := fmt.Sprintf("BENCH_%d_%d", os.Getpid(), m.made)
	_, err := m.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{name + ".>"}, Storage: jetstream.FileStorage, PersistMode: mode, Replicas: m.replicas,
		MaxBytes: -1, Duplicates: 100 * time.Millisecond, DenyDelete: true, AllowDirect: true,
	})
	return name, err
}

// remove removes a stream, even when the run's context has ended.
func (m *ceiling) remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), streamTimeout)
	defer cancel()
	return m.js.DeleteStream(ctx, name)
}

// subject is about as long as a trigger's.
func subject(stream string) string { return stream + ".trigger.billing" }

// header is that of the n-th trigger.
func (m *ceiling) header(n int) nats.Header {
	return nats.Header{
		carillon.HeaderJob:       {m.job},
		carillon.HeaderTrigger:   {m.job + "@1796115600250"},
		carillon.HeaderScheduled: {"2026-12-01T09:00:00.250Z"},
		carillon.HeaderVersion:   {"3"},
		carillon.HeaderOutput:    {strconv.Itoa(n)},
	}
}

// async publishes in the usual way: PublishAsync, an ack for each message, at most 4,000 of them awaited at a time.
func (m *ceiling) async(ctx context.Context, mode jetstream.PersistModeType) (rate float64, err error) {
	name, err := m.stream(ctx, mode)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, m.remove(ctx, name)) }()
	if err := recycle(ctx, m.Messages); err != nil {
		return 0, err
	}
	began := time.Now()
	for i := range m.Messages {
		msg := &nats.Msg{Subject: subject(name), Header: m.header(i + 1), Data: m.payload}
		if _, err := m.js.PublishMsgAsync(msg, jetstream.WithStallWait(stallWait)); err != nil {
			return 0, err
		}
	}
	select {
	case <-m.js.PublishAsyncComplete():
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(stallWait):
		return 0, errNoAck
	}
	return m.rate(began), m.stored(ctx, name, m.Messages)
}

// stallWait is how long the client library waits for room among the awaited acks. A busy disk may well exceed
// its default, 200 ms. Everything else is waited for no longer than this, because the server may have ended.
const stallWait = 30 * time.Second

var errNoAck = fmt.Errorf("no ack for %s", stallWait)

func (m *ceiling) rate(began time.Time) float64 {
	return float64(m.Messages) / time.Since(began).Seconds()
}

// stored checks that a stream has stored all messages and still has them.
func (m *ceiling) stored(ctx context.Context, name string, want int) error {
	s, err := m.js.Stream(ctx, name)
	if err != nil {
		return err
	}
	switch state := s.CachedInfo().State; {
	case state.LastSeq != uint64(want):
		return fmt.Errorf("%s ends at %d, expected %d", name, state.LastSeq, want)
	case state.Msgs != uint64(want):
		return fmt.Errorf("%s dropped %d of %d messages", name, uint64(want)-min(state.Msgs, uint64(want)), want)
	}
	return nil
}

// A chain asks for an ack of every 500th message, and has up to 8 of those on their way.
const (
	chainAck    = 500
	chainFlying = 8
)

// link is one stream's chain.
type link struct {
	name string
	last int // messages sent
	acks chan error
}

// chains are the options of chained.
type chains struct {
	streams int
	mode    jetstream.PersistModeType
	// linked: each message also has an id and expects the id of the one before it, as linked messages of the engine do
	// (see engine/chain.go): two more headers to send and to store, one more to check.
	linked bool
}

// chains is chained in the form of the other measurements.
func (m *ceiling) chains(c chains) func(context.Context) (float64, error) {
	return func(ctx context.Context) (float64, error) { return m.chained(ctx, c) }
}

// id is as long as an engine's.
func (*link) id(n int) string {
	return "ABCDEFGHIJ.0.1." + strconv.FormatInt(int64(n), 36)
}

// chained publishes with Nats-Expected-Last-Sequence, to several streams in turn.
func (m *ceiling) chained(ctx context.Context, c chains) (rate float64, err error) {
	inbox := m.nc.NewInbox()
	links := make([]*link, c.streams)
	for i := range links {
		l := &link{acks: make(chan error, chainFlying)}
		if l.name, err = m.stream(ctx, c.mode); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, m.remove(ctx, l.name)) }()
		for range chainFlying {
			l.acks <- nil
		}
		links[i] = l
		sub, err := m.nc.Subscribe(inbox+"."+strconv.Itoa(i), func(ack *nats.Msg) { l.acks <- refusal(ack) })
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, sub.Unsubscribe()) }()
	}
	if err := recycle(ctx, m.Messages); err != nil {
		return 0, err
	}
	began := time.Now()
	for i := range m.Messages {
		n := i % c.streams
		l := links[n]
		msg := &nats.Msg{Subject: subject(l.name), Header: m.header(l.last + 1), Data: m.payload}
		msg.Header["Nats-Expected-Last-Sequence"] = []string{strconv.Itoa(l.last)}
		if c.linked {
			msg.Header[nats.MsgIdHdr] = []string{l.id(l.last + 1)}
			if l.last > 0 {
				msg.Header[nats.ExpectedLastMsgIdHdr] = []string{l.id(l.last)}
			}
		}
		if l.last++; l.last%chainAck == 0 || i >= m.Messages-c.streams {
			msg.Reply = inbox + "." + strconv.Itoa(n)
			if err := l.await(ctx); err != nil {
				return 0, err
			}
		}
		if err := m.nc.PublishMsg(msg); err != nil {
			return 0, err
		}
	}
	for _, l := range links {
		for range chainFlying {
			if err := l.await(ctx); err != nil {
				return 0, err
			}
		}
	}
	rate = m.rate(began)
	for _, l := range links {
		if err := m.stored(ctx, l.name, l.last); err != nil {
			return 0, err
		}
	}
	return rate, nil
}

func (l *link) await(ctx context.Context) error {
	select {
	case err := <-l.acks:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(stallWait):
		return errNoAck
	}
}

func refusal(ack *nats.Msg) error {
	var answer struct {
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(ack.Data, &answer); err != nil {
		return fmt.Errorf("publish ack: %w", err)
	}
	if answer.Error != nil {
		return errors.New(answer.Error.Description)
	}
	return nil
}

// logRoundTrip appends to a stream, 500 times a second, and has it delivered back.
func (m *ceiling) logRoundTrip(ctx context.Context) (h *hdrhistogram.Histogram, err error) {
	name, err := m.stream(ctx, jetstream.DefaultPersistMode)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.remove(ctx, name)) }()
	old, err := m.nc.JetStream()
	if err != nil {
		return nil, err
	}
	got := make(chan *nats.Msg, 16)
	sub, err := old.ChanSubscribe(name+".>", got, nats.OrderedConsumer(), nats.BindStream(name))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sub.Unsubscribe()) }()
	ctx, cancel := context.WithTimeout(ctx, m.LatencyTime+stallWait)
	defer cancel()
	h = newHistogram()
	t := time.NewTicker(2 * time.Millisecond)
	defer t.Stop()
	for end := time.Now().Add(m.LatencyTime); time.Now().Before(end); {
		<-t.C
		began := time.Now()
		if err := m.nc.Publish(name+".tick", m.payload); err != nil {
			return nil, err
		}
		select {
		case <-got:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		record(h, int64(time.Since(began)))
	}
	return h, nil
}

// commitGroup is how many records share one synced commit when many come at once.
const commitGroup = 500

// commits measures the local log: commits of one record, and commits of many.
func (m *ceiling) commits(ctx context.Context, dir string, f *Figures) error {
	store, err := wal.OpenStore(wal.Options{Dir: filepath.Join(dir, "log")})
	if err != nil {
		return err
	}
	defer store.Close()
	log := store.Log()
	next := uint64(1)
	batch := func(n int) []wal.Record {
		records := make([]wal.Record, n)
		for i := range records {
			records[i] = wal.Record{Seq: next, Data: m.payload}
			next++
		}
		return records
	}
	single := newHistogram()
	for end := time.Now().Add(m.LatencyTime); time.Now().Before(end) && ctx.Err() == nil; {
		began := time.Now()
		if err := log.Append(batch(1)); err != nil {
			return err
		}
		record(single, int64(time.Since(began)))
	}
	f.quantiles("commit", single, 50, 99, 99.9)
	records := 0
	began := time.Now()
	for time.Since(began) < m.LatencyTime && ctx.Err() == nil {
		if err := log.Append(batch(commitGroup)); err != nil {
			return err
		}
		records += commitGroup
	}
	f.add("grouped_commits_records_per_s", float64(records)/time.Since(began).Seconds())
	return nil
}
