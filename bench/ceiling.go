package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/embedded"
	"github.com/carillon-scheduler/carillon/wal"
)

// CeilingConfig says how RunCeiling runs. The zero value of a field is its default.
type CeilingConfig struct {
	Service      Service `json:"-"`             // only Data, Server and Connect count
	Messages     int     `json:"messages"`      // of each measurement of a rate; default 500,000
	Streams      int     `json:"streams"`       // that are published to at once; default 8
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
	if c.Messages == 0 {
		c.Messages = 500_000
	}
	if c.Streams == 0 {
		c.Streams = 8
	}
	if c.PayloadBytes == 0 {
		c.PayloadBytes = 200
	}
	if c.Rounds == 0 {
		c.Rounds = 3
	}
	if c.LatencyTime == 0 {
		c.LatencyTime = 3 * time.Second
	}
	if c.Progress == nil {
		c.Progress = func(string, int, int) {}
	}
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

// RunCeiling measures, without an engine, what one could at best reach here: bare messages with the payload
// and headers of a trigger, published in the usual way and in chains; an append to a log stream read back;
// a bare time.Sleep; a synced commit to the local log. The server is embedded in this process as it is in
// `carillon serve`, or, with Service.Server, one that runs already, over TCP.
func RunCeiling(ctx context.Context, c CeilingConfig) (r Result, err error) {
	if err := c.Validate(); err != nil {
		return r, err
	}
	if c, err = c.withDefaults(); err != nil {
		return r, err
	}
	if err := os.MkdirAll(c.Service.Data, 0o755); err != nil {
		return r, fmt.Errorf("bench: %w", err)
	}
	dir, err := os.MkdirTemp(c.Service.Data, "carillon-bench-")
	if err != nil {
		return r, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r = Result{Workload: "ceiling", Params: c, Machine: thisMachine(dir)}
	nc, end, err := c.connect(dir)
	if err != nil {
		return r, err
	}
	defer end()
	r.Machine.NATS = nc.ConnectedServerVersion()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(4000))
	if err != nil {
		return r, fmt.Errorf("bench: %w", err)
	}
	m := &ceiling{CeilingConfig: c, nc: nc, js: js, payload: payloadOf(c.PayloadBytes)}

	figures := []struct {
		name    string
		measure func(context.Context) (float64, error)
	}{
		{"async_per_s", m.async},
		{"chained_1_stream_per_s", func(ctx context.Context) (float64, error) { return m.chained(ctx, 1, jetstream.DefaultPersistMode) }},
		{"chained_per_s", func(ctx context.Context) (float64, error) {
			return m.chained(ctx, c.Streams, jetstream.DefaultPersistMode)
		}},
		{"chained_persist_async_per_s", func(ctx context.Context) (float64, error) {
			return m.chained(ctx, c.Streams, jetstream.AsyncPersistMode)
		}},
	}
	rates := make([][]float64, len(figures))
	for round := range c.Rounds { // interleaved, so that a disturbance does not meet one of them alone
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
		slices.Sort(rates[i])
		r.Figures.add(f.name, rates[i][len(rates[i])/2])
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
	if err := m.commits(ctx, dir, &r.Figures); err != nil {
		return r, err
	}
	r.Machine.Load[1] = load1()
	return r, ctx.Err()
}

// connect embeds a server, or reaches one. end closes what was opened.
func (c *CeilingConfig) connect(dir string) (nc *nats.Conn, end func(), err error) {
	if c.Service.Server != "" {
		if nc, err = c.Service.Connect(c.Service.Server); err != nil {
			return nil, nil, fmt.Errorf("bench: connect to %s: %w", c.Service.Server, err)
		}
		return nc, nc.Close, nil
	}
	s, err := embedded.Start(embedded.Options{Dir: filepath.Join(dir, "nats"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, err
	}
	if nc, err = s.Connect(); err != nil {
		s.Shutdown()
		return nil, nil, err
	}
	return nc, func() { nc.Close(); s.Shutdown() }, nil
}

type ceiling struct {
	CeilingConfig
	nc      *nats.Conn
	js      jetstream.JetStream
	payload []byte
	made    int // streams so far
}

// stream makes an empty stream of its own name and subject, and returns that.
func (m *ceiling) stream(ctx context.Context, mode jetstream.PersistModeType) (string, error) {
	m.made++
	name := fmt.Sprintf("BENCH_%d_%d", os.Getpid(), m.made)
	_, err := m.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{name + ".>"}, Storage: jetstream.FileStorage, PersistMode: mode,
		MaxBytes: 1 << 30, Duplicates: 100 * time.Millisecond, DenyDelete: true, AllowDirect: true,
	})
	return name, err
}

// header is that of the n-th trigger.
func header(n int) nats.Header {
	return nats.Header{
		carillon.HeaderJob:       {"invoice-12345678"},
		carillon.HeaderTrigger:   {"invoice-12345678@1796115600250"},
		carillon.HeaderScheduled: {"2026-12-01T09:00:00.250Z"},
		carillon.HeaderVersion:   {"3"},
		carillon.HeaderOutput:    {strconv.Itoa(n)},
	}
}

// async is the usual way: PublishAsync, an ack a message, 4,000 of them awaited at most.
func (m *ceiling) async(ctx context.Context) (rate float64, err error) {
	name, err := m.stream(ctx, jetstream.DefaultPersistMode)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, m.js.DeleteStream(ctx, name)) }()
	began := time.Now()
	for i := range m.Messages {
		msg := &nats.Msg{Subject: name + ".x", Header: header(i + 1), Data: m.payload}
		if _, err := m.js.PublishMsgAsync(msg, jetstream.WithStallWait(stallWait)); err != nil {
			return 0, err
		}
	}
	select {
	case <-m.js.PublishAsyncComplete():
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return m.rate(began), m.stored(ctx, name, m.Messages)
}

// stallWait is how long the client library waits for room among the awaited acks. Its default, 200 ms, a
// busy disk may well exceed.
const stallWait = 30 * time.Second

func (m *ceiling) rate(began time.Time) float64 {
	return float64(m.Messages) / time.Since(began).Seconds()
}

func (m *ceiling) stored(ctx context.Context, name string, want int) error {
	s, err := m.js.Stream(ctx, name)
	if err != nil {
		return err
	}
	if got := s.CachedInfo().State.LastSeq; got != uint64(want) {
		return fmt.Errorf("%s ends at %d, expected %d", name, got, want)
	}
	return nil
}

// A chain asks for every 500th ack and has 8 of them on the way.
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

// chained publishes with Nats-Expected-Last-Sequence, to several streams in turn.
func (m *ceiling) chained(ctx context.Context, streams int, mode jetstream.PersistModeType) (rate float64, err error) {
	inbox := m.nc.NewInbox()
	links := make([]*link, streams)
	for i := range links {
		l := &link{acks: make(chan error, chainFlying)}
		if l.name, err = m.stream(ctx, mode); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, m.js.DeleteStream(ctx, l.name)) }()
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
	began := time.Now()
	for i := range m.Messages {
		n := i % streams
		l := links[n]
		msg := &nats.Msg{Subject: l.name + ".x", Header: header(l.last + 1), Data: m.payload}
		msg.Header["Nats-Expected-Last-Sequence"] = []string{strconv.Itoa(l.last)}
		if l.last++; l.last%chainAck == 0 || i >= m.Messages-streams {
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
	defer func() { err = errors.Join(err, m.js.DeleteStream(ctx, name)) }()
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

// commitGroup is how many records share one synced commit when they come in bulk.
const commitGroup = 500

// commits measures the local log: one record a commit, and many.
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
