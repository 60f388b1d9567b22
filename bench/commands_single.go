package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/carillon-scheduler/carillon"
)

// runSingle measures one client with one command at a time, in turns with the least that a durable command consists of.
func (m *commands) runSingle(ctx context.Context) (err error) {
	s := &single{
		commands: m, client: carillon.Connect(m.nc, carillon.WithNames(m.engine.Names)), prefix: m.prefix("single"), payload: payloadOf(m.PayloadBytes),
		creates: newHistogram(), updates: newHistogram(), deletes: newHistogram(),
	}
	l, err := s.openBaseline(ctx)
	defer func() { err = errors.Join(err, l.close()) }()
	if err != nil {
		return err
	}
	m.result.Machine.Replicas = l.log.replicas
	var p50 []float64 // of the creates, by round
	made := 0
	for round := range m.Rounds {
		m.Progress("one client", round, m.Rounds)
		if err := l.measure(ctx, s, round); err != nil {
			return err
		}
		var create float64
		if made, create, err = s.round(ctx, made); err != nil {
			return err
		}
		p50 = append(p50, create)
	}
	m.want[s.prefix] = group{from: made, to: made}
	f := &m.result.Figures
	f.add("single_creates_per_s", 1000/max(s.creates.Mean()/1000, 1e-3))
	f.quantiles("single_latency", s.creates, 50, 99, 99.9)
	f.quantiles("single_update_latency", s.updates, 50, 99)
	f.quantiles("single_delete_latency", s.deletes, 50, 99)
	l.figures(f, p50)
	m.result.Histograms["single_latency_us"], err = encode(s.creates)
	return err
}

// single is the client of one.
type single struct {
	*commands
	client                    *carillon.Client
	prefix                    string // of its jobs
	payload                   []byte
	creates, updates, deletes *hdrhistogram.Histogram
}

// round creates jobs from number from on, then updates them, then deletes them, each for the round's time. p50 is of the creates, ms.
func (s *single) round(ctx context.Context, from int) (made int, p50 float64, err error) {
	put := func(version int) func(int) error {
		return func(i int) error {
			_, err := s.client.Put(ctx, commandJob(s.prefix, i, version, s.due, s.payload))
			return err
		}
	}
	remove := func(i int) error {
		_, err := s.client.Delete(ctx, s.prefix+strconv.Itoa(i))
		return err
	}
	if made, p50, err = s.timed(s.creates, from, 0, put(0)); err != nil {
		return made, 0, err
	}
	updated, _, err := s.timed(s.updates, from, made, put(1))
	if err != nil {
		return made, 0, err
	}
	deleted, _, err := s.timed(s.deletes, from, updated, remove)
	// Jobs that were not deleted in time are deleted now, so that all jobs of the round are gone.
	for i := deleted; i < made && err == nil; i++ {
		if err = remove(i); err != nil {
			err = fmt.Errorf("bench: %s%d: %w", s.prefix, i, err)
		}
	}
	return made, p50, err
}

// timed runs do for i = from, from+1, … until the round's time is over; if to is not 0, only for i below to. p50 is in ms.
func (s *single) timed(total *hdrhistogram.Histogram, from, to int, do func(i int) error) (next int, p50 float64, err error) {
	h := newHistogram()
	defer func() { total.Merge(h) }()
	i := from
	for end := time.Now().Add(s.RoundTime); time.Now().Before(end) && (to == 0 || i < to); i++ {
		began := time.Now()
		if err := do(i); err != nil {
			return i, 0, fmt.Errorf("bench: %s%d: %w", s.prefix, i, err)
		}
		record(h, int64(time.Since(began)))
	}
	return i, float64(h.ValueAtQuantile(50)) / 1000, nil
}

// baseline measures what a single client's create is compared with: a round trip of the log, on a connection like the client's to the
// engine's own server, and a synced commit. If the engine embeds its server, also a round trip inside one process, as an engine's
// reader has it, and the create of a bare service, which goes the same way between two processes, but without an engine.
type baseline struct {
	log    *ceiling
	inside *ceiling    // nil if the engine does not embed its server
	bare   *bareClient // the same

	trips, insideTrips, commits, bares []float64 // p50, ms, by round
}

func (s *single) openBaseline(ctx context.Context) (l *baseline, err error) {
	l = &baseline{}
	own := s.Service
	own.Server = s.engine.url
	if l.log, err = openCeiling(ctx, CeilingConfig{Service: own, PayloadBytes: s.PayloadBytes, LatencyTime: s.RoundTime}); err != nil {
		return l, err
	}
	if s.Service.Server != "" || s.Service.NATS != "" {
		return l, nil
	}
	if l.inside, err = openCeiling(ctx, CeilingConfig{Service: s.Service, PayloadBytes: s.PayloadBytes, LatencyTime: s.RoundTime}); err != nil {
		return l, err
	}
	job := commandJob(s.prefix, 0, 0, s.due, s.payload)
	l.bare, err = startBare(ctx, s.engine, job.AppendJSON(nil))
	return l, err
}

func (l *baseline) close() (err error) {
	if l.bare != nil {
		err = l.bare.stop()
	}
	if l.inside != nil {
		err = errors.Join(err, l.inside.close())
	}
	if l.log != nil {
		err = errors.Join(err, l.log.close())
	}
	return err
}

// measure takes each of them for the round's time.
func (l *baseline) measure(ctx context.Context, s *single, round int) error {
	trip, err := l.log.logRoundTrip(ctx)
	if err != nil {
		return fmt.Errorf("bench: log round trip: %w", err)
	}
	l.trips = append(l.trips, float64(trip.ValueAtQuantile(50))/1000)
	if l.inside != nil {
		if trip, err = l.inside.logRoundTrip(ctx); err != nil {
			return fmt.Errorf("bench: log round trip in this process: %w", err)
		}
		l.insideTrips = append(l.insideTrips, float64(trip.ValueAtQuantile(50))/1000)
		_, p50, err := s.timed(newHistogram(), 0, 0, func(int) error { return l.bare.create(ctx) })
		if err != nil {
			return err
		}
		l.bares = append(l.bares, p50)
	}
	var f Figures
	if err := l.log.commits(ctx, filepath.Join(l.log.own.dir, strconv.Itoa(round)), &f); err != nil {
		return err
	}
	l.commits = append(l.commits, f.Get("commit_p50_ms"))
	return nil
}

// figures adds the medians of all rounds, and how many times as long creates took as what they are compared with in the same round.
func (l *baseline) figures(f *Figures, creates []float64) {
	times := func(of func(round int) float64) float64 {
		var ratios []float64
		for round, p50 := range creates {
			ratios = append(ratios, p50/of(round))
		}
		return median(ratios)
	}
	overTCP := times(func(round int) float64 { return l.trips[round] + l.commits[round] })
	ratio := overTCP
	if l.inside != nil {
		ratio = times(func(round int) float64 { return l.insideTrips[round] + l.commits[round] })
		f.add("single_latency_bare_ratio", times(func(round int) float64 { return l.bares[round] }))
		f.add("bare_create_p50_ms", median(l.bares))
		f.add("log_round_trip_in_process_p50_ms", median(l.insideTrips))
	}
	f.add("single_latency_ratio", ratio)
	f.add("single_latency_tcp_ratio", overTCP)
	f.add("log_round_trip_p50_ms", median(l.trips))
	f.add("commit_p50_ms", median(l.commits))
}
