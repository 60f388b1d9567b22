package node

import (
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// openStreams makes the streams of one partition on a server of their own.
func openStreams(t *testing.T) (*nats.Conn, *streams.Streams) {
	t.Helper()
	ns := natstest.Start(t, &server.Options{JetStream: true})
	nc, err := nats.Connect(ns.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc, streamsOn(t, nc)
}

// streamsOn makes the streams of one partition.
func streamsOn(t *testing.T, nc *nats.Conn) *streams.Streams {
	t.Helper()
	s, err := streams.Open(t.Context(), nc, streams.Config{Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Messages that an output stream drops for their age between two looks are not taken for outputs that are missing, which would
// be published again.
func TestSurveyWhileMessagesGo(t *testing.T) {
	nc, s := openStreams(t)
	out := s.Out[0]
	const messages, gone = 10, 4
	for expect := range uint64(messages) {
		stored := make(chan error, 1)
		m := streams.Chained{Subject: []byte("carillon.trigger.0.a"), Expect: expect}
		if err := out.PublishChained(&m, func(_ uint64, err error) { stored <- err }); err != nil {
			t.Fatal(err)
		}
		s.Flush()
		if err := <-stored; err != nil {
			t.Fatal(err)
		}
	}
	n := &Node{o: Options{Prefix: "carillon"}, streams: s}
	p := &partition{machine: engine.New(engine.Layout{Prefix: "carillon", Partitions: 1}, 0), chain: engine.NewChain()}
	survey := func(info streams.Info) error {
		_, err := n.survey(t.Context(), p, info, engine.Acked{}, 0)
		return err
	}
	before, err := out.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.chain.Watch(true)
	p.durable, p.settling = engine.Acked{Output: 3, Seq: 3}, engine.Acked{Output: 7, Seq: 7}
	if err := survey(before); err != nil {
		t.Errorf("a stream that stays as it is: %v", err)
	}
	if p.chain.Watched() || p.settling != p.durable { // all of its messages are foreign
		t.Errorf("foreign messages are there, the chain relies on hearing of them: %t, and %+v is to be durable", p.chain.Watched(), p.settling)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "CARILLON_OUT_0")
	if err == nil {
		err = stream.Purge(t.Context(), jetstream.WithPurgeSequence(gone+1))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := survey(before); err == nil {
		t.Error("the outputs that age took count as missing")
	}
	after, err := out.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := survey(after); err != nil || after.First != gone+1 {
		t.Errorf("a stream that begins at %d: %v", after.First, err)
	}
}

// A partition that was given up while displaced outputs are replaced has no such outputs any more.
func TestDisplacedInGivenUp(t *testing.T) {
	n := &Node{log: slog.New(slog.DiscardHandler)}
	p := &partition{machine: engine.New(engine.Layout{Prefix: "carillon", Partitions: 1}, 0)}
	if _, err := n.replaceDisplaced(t.Context(), p, 7, 9, []uint64{9}); !errors.Is(err, errNotOwner) {
		t.Errorf("it is replaced: %v", err)
	}
}

// A partition that this node gets back is published at once, however long the pauses had become by when it was taken.
func TestPublishedOnceClaimed(t *testing.T) {
	wake := newAlarm(t)
	synctest.Test(t, func(t *testing.T) {
		n := &Node{o: Options{Name: "a"}, layout: engine.Layout{Prefix: "carillon", Partitions: 1}, log: slog.New(slog.DiscardHandler), alarm: wake}
		n.membership.changed = make(chan struct{}, 1)
		p := &partition{machine: engine.New(n.layout, 0), chain: engine.NewChain(), sentClaim: true, begun: make(chan struct{}, 1)}
		p.resumed, p.pause = time.Now(), resumePauseMax/2
		resync := func() (took time.Duration) {
			began := time.Now()
			n.resync(t.Context(), p)
			return time.Since(began)
		}
		took := make(chan time.Duration)
		go func() { took <- resync() }()
		synctest.Wait()

		claim := engine.Rules()
		claim.Node = "a"
		e := n.layout.Decode(&engine.Record{Seq: 1, Time: 1, Subject: n.layout.LogSubject(0, "claim"), Data: claim.Encode()})
		p.mu.Lock()
		if _, err := p.machine.Apply(&e); err != nil {
			t.Error(err)
		}
		n.claimApplied(p)
		p.stopped = errors.New("so that the next attempt is the last one")
		p.mu.Unlock()
		if d := <-took; d != 0 {
			t.Errorf("the attempt that waited came %s later", d)
		}
		if d := resync(); d != 0 {
			t.Errorf("one more came %s later", d)
		}
		notify(p.begun) // nobody waited then
		if d := resync(); d != resumePauseMin {
			t.Errorf("one after that came %s later, want %s", d, resumePauseMin)
		}
		p.resumed = time.Now().Add(-resumePauseMax - 1)
		if d := resync(); d != 0 {
			t.Errorf("one of a chain that had long been resumed came %s later", d)
		}
	})
}

// An output that cannot even be sent, as when nats-server came back with a lower limit for messages, is a lost chain like any other: it is
// counted, told in few lines, and the reason why the node is not ready.
func TestPublishNotSent(t *testing.T) {
	nc, s := openStreams(t)
	var lines strings.Builder
	n := &Node{
		layout: engine.Layout{Prefix: "carillon", Partitions: 1}, streams: s, meters: newMeters(nil),
		log: slog.New(slog.NewTextHandler(&lines, nil)),
	}
	p := &partition{chain: engine.NewChain(), serving: true, resyncing: true} // as if a goroutine were to resume the chain
	n.partitions = []*partition{p}
	outputs := []engine.Output{{Number: 1, Kind: engine.OutputEvent, Event: "created", Job: "large", Body: strings.Repeat("x", int(nc.MaxPayload())+1)}}
	const times = 10
	for range times {
		p.chain.Resume(0, 0, outputs)
		for range 2 {
			n.publish(t.Context(), p, math.MaxInt64) // the second time to have it resumed
		}
	}
	if lost := n.meters.lost.Get(); lost != times {
		t.Errorf("%d lost chains are counted, not %d", lost, times)
	}
	if told := strings.Count(lines.String(), "\n"); told != n.chainLines() || !strings.Contains(lines.String(), "output 1 cannot be sent") {
		t.Errorf("it is told in %d lines:\n%s", told, lines.String())
	}
	p.lostSince = p.lostSince.Add(-2 * lostTooLong)
	if why := n.problem(p); !strings.Contains(why, nats.ErrMaxPayload.Error()) {
		t.Errorf("the node is not ready: %q", why)
	}
}

// A stream that is mostly full, or that holds messages for a time, may have dropped outputs that are not found at its beginning. They are
// not published again then, and they are where neither can be.
func TestKeptSince(t *testing.T) {
	n := &Node{}
	n.clock.began = time.Now()
	now := n.clock.ms()
	const long = time.Hour
	for name, c := range map[string]struct {
		streams.Info
		least, most int64
		former      streams.Bounds
	}{
		"no bounds":  {streams.Info{Bytes: 1 << 30, MaxBytes: -1}, math.MinInt64, math.MinInt64, streams.Bounds{}},
		"old":        {streams.Info{MaxAge: long}, now - long.Milliseconds(), now - long.Milliseconds() + time.Minute.Milliseconds(), streams.Bounds{}},
		"full":       {streams.Info{Bytes: 900, MaxBytes: 1000, MaxAge: long}, math.MaxInt64, math.MaxInt64, streams.Bounds{}},
		"a half":     {streams.Info{Bytes: 500, MaxBytes: 1000}, math.MaxInt64, math.MaxInt64, streams.Bounds{}},
		"not nearly": {streams.Info{Bytes: 200, MaxBytes: 1000, Messages: 20, MaxMessages: 100}, math.MinInt64, math.MinInt64, streams.Bounds{}},
		"many":       {streams.Info{Messages: 100, MaxMessages: 100, MaxBytes: -1, MaxAge: long}, math.MaxInt64, math.MaxInt64, streams.Bounds{}},
		"only one":   {streams.Info{Messages: 1, MaxMessages: 1, MaxBytes: -1}, math.MaxInt64, math.MaxInt64, streams.Bounds{}},
		"was full":   {streams.Info{Bytes: 900, MaxBytes: 9000}, math.MaxInt64, math.MaxInt64, streams.Bounds{Bytes: 1000}},
		"forgot":     {streams.Info{MaxAge: 9 * long}, now - long.Milliseconds(), now - long.Milliseconds() + time.Minute.Milliseconds(), streams.Bounds{Age: long}},
		"forgets":    {streams.Info{MaxAge: long}, now - long.Milliseconds(), now - long.Milliseconds() + time.Minute.Milliseconds(), streams.Bounds{Age: 9 * long}},
		"forgot all": {streams.Info{}, now - long.Milliseconds(), now - long.Milliseconds() + time.Minute.Milliseconds(), streams.Bounds{Age: long}},
	} {
		if got := n.keptSince(&c.Info, c.former); got < c.least || got > c.most {
			t.Errorf("%s: %d, want %d to %d", name, got, c.least, c.most)
		}
	}
}
