package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/bench"
)

const (
	payloadBytes = 200
	underWay     = 256 // creates at once where a library has no bulk call of its own
	// sample is how many jobs are created first to see how long creating all of them will take.
	sample = 1000
	// far is how long after their creation jobs are due which are not to fire.
	far = time.Hour
	// singles is where the numbers begin of the jobs that a single caller creates.
	singles = 1_000_000_000
)

// params are what a result was measured with.
type params struct {
	System       string   `json:"system"`
	Tuned        bool     `json:"tuned"`
	Versions     string   `json:"versions"`
	Settings     []string `json:"settings,omitempty"`
	Rate         int      `json:"triggers_per_s,omitempty"`
	Seconds      int      `json:"duration_s,omitempty"`
	Jobs         int      `json:"jobs,omitempty"`
	Callers      int      `json:"callers,omitempty"`
	PayloadBytes int      `json:"payload_bytes"`
}

// session is a system that runs for one measurement.
type session struct {
	*system
	site    *site
	address string
	client  client
	result  bench.Result
}

// begin starts a system, empty; close ends and removes it.
func (s *system) begin(ctx context.Context, at *site, workload string, p params) (*session, error) {
	e := &session{system: s, site: at}
	address, err := s.start(ctx, at)
	if err == nil {
		e.address = address
		e.client, err = s.open(ctx, address)
	}
	if err == nil {
		p.Versions, err = e.client.version(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	p.System, p.Tuned, p.Settings, p.PayloadBytes = s.name, s.tuned, s.settings, payloadBytes
	m := bench.ThisMachine(at.dir, s.durability)
	e.result = bench.Result{Workload: workload, Params: p, Machine: m}
	return e, nil
}

func (e *session) close() error {
	if e.client != nil {
		e.client.close()
	}
	return e.site.clear()
}

func (e *session) add(name string, value float64) {
	e.result.Figures = append(e.result.Figures, bench.Figure{Name: name, Value: value})
}

// lateness fires rate jobs a second for a time.
func lateness(ctx context.Context, at *site, s *system, rate, seconds int) (r bench.Result, err error) {
	e, err := s.begin(ctx, at, "lateness", params{Rate: rate, Seconds: seconds})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	f, err := e.fire(ctx, rate*seconds, time.Duration(seconds)*time.Second)
	if err != nil {
		return r, err
	}
	e.add("triggers_per_s", float64(f.received.TotalCount())/math.Max(float64(seconds), time.Duration(f.Last).Seconds()))
	e.describe(f)
	return e.result, nil
}

// burst fires jobs that are all due at the same moment, a whole second. The rate counts from then.
func burst(ctx context.Context, at *site, s *system, jobs int) (r bench.Result, err error) {
	e, err := s.begin(ctx, at, "burst", params{Jobs: jobs})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	f, err := e.fire(ctx, jobs, 0)
	if err != nil {
		return r, err
	}
	if n := float64(f.received.TotalCount()); f.Last > 0 {
		e.add("drained_per_s", n/time.Duration(f.Last).Seconds())
		if f.Stored > 0 {
			e.add("stored_per_s", n/time.Duration(f.Stored).Seconds())
		}
		e.add("first_ms", float64(f.First)/1e6)
		e.add("drained_s", time.Duration(f.Last).Seconds())
	}
	e.describe(f)
	return e.result, nil
}

// fired is a worker's report, and how the jobs came there.
type fired struct {
	report
	received *hdrhistogram.Histogram
	off      *hdrhistogram.Histogram
	perS     float64 // jobs created a second
}

func (e *session) describe(f fired) {
	figures := &e.result.Figures
	figures.Quantiles("received", f.received, 50, 90, 99, 99.9, 100)
	figures.Quantiles("off", f.off, 50, 99, 99.9, 100)
	e.add("early_max_ms", float64(f.EarlyMax)/1e6)
	e.add("puts_per_s", f.perS)
	e.result.Checks = &f.Checks
	e.result.Histograms = map[string]string{"received_us": f.Received, "off_us": f.Off}
	e.ended()
}

// ended notes the load at the end.
func (e *session) ended() { e.result.Machine.Load[1] = bench.ThisMachine("", "").Load[0] }

// fire creates jobs, due over a span of time, and has the worker take them.
func (e *session) fire(ctx context.Context, jobs int, span time.Duration) (f fired, err error) {
	w, err := e.site.startWorker(workerStart{System: e.key(), Address: e.address, Jobs: jobs})
	if err != nil {
		return f, err
	}
	defer w.close()
	if err := e.client.create(ctx, newJob(probe, time.Now().Add(time.Second), payloadBytes)); err != nil {
		return f, fmt.Errorf("create the probe: %w", err)
	}
	probing, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var ready workerReady
	if err := w.receive(probing, &ready); err != nil {
		return f, err
	}
	p, err := e.fill(ctx, jobs, span, &f)
	if err != nil {
		return f, fmt.Errorf("create the jobs: %w", err)
	}
	if err := w.send(p); err != nil {
		return f, err
	}
	if err := w.receive(ctx, &f.report); err != nil {
		return f, err
	}
	if f.Error != "" {
		return f, fmt.Errorf("the worker met an error: %s", f.Error)
	}
	if f.received, err = bench.DecodeHistogram(f.Received); err != nil {
		return f, err
	}
	f.off, err = bench.DecodeHistogram(f.Off)
	return f, err
}

// fill creates the jobs before the first of them is due. How long that takes is seen on a few others first,
// whose numbers are beyond the plan's and which stay behind.
func (e *session) fill(ctx context.Context, n int, span time.Duration, f *fired) (p plan, err error) {
	some := make([]job, sample)
	for i := range some {
		some[i] = newJob(n+i, time.Now().Add(far), payloadBytes)
	}
	began := time.Now()
	if err := e.client.createAll(ctx, some); err != nil {
		return p, err
	}
	estimate := time.Since(began) * time.Duration(n) / sample
	// A first sample is small and an empty store fast: allow twice the estimate. And what a service does ahead
	// of time, as River does 5 s ahead, it is to do in time.
	from := time.Now().Add(2*estimate + 5*time.Second).Truncate(time.Second).Add(time.Second)
	p = plan{Jobs: n, From: from.UnixMilli(), Span: span.Milliseconds()}
	jobs := make([]job, n)
	for i := range jobs {
		jobs[i] = newJob(i, p.due(i), payloadBytes)
	}
	began = time.Now()
	if err := e.client.createAll(ctx, jobs); err != nil {
		return p, err
	}
	took := time.Since(began)
	f.perS = float64(n) / took.Seconds()
	if time.Until(from) < 2*time.Second {
		return p, fmt.Errorf("%d jobs took %s, too long for the %s that was estimated", n, took, estimate)
	}
	return p, nil
}

// commands creates jobs, each in a call of its own whose answer is waited for, by many callers at once and
// then by one.
func commands(ctx context.Context, at *site, s *system, callers int, d time.Duration) (r bench.Result, err error) {
	e, err := s.begin(ctx, at, "commands", params{Callers: callers, Seconds: int(d.Seconds())})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	many, manyPerS, err := e.call(ctx, callers, d, 0)
	if err != nil {
		return r, err
	}
	one, onePerS, err := e.call(ctx, 1, d/2, singles)
	if err != nil {
		return r, err
	}
	e.add("creates_per_s", manyPerS)
	e.result.Figures.Quantiles("latency", many, 50, 99, 99.9, 100)
	e.add("single_creates_per_s", onePerS)
	e.result.Figures.Quantiles("single_latency", one, 50, 99, 100)
	text, err := bench.EncodeHistogram(many)
	if err != nil {
		return r, err
	}
	e.result.Histograms = map[string]string{"latency_us": text}
	e.ended()
	return e.result, nil
}

// call has callers create jobs for a time, and tells the latencies and how many were created a second. Jobs
// are numbered from first on, each caller's in steps of callers.
func (e *session) call(ctx context.Context, callers int, d time.Duration, first int) (*hdrhistogram.Histogram, float64, error) {
	all := bench.NewHistogram()
	var mu sync.Mutex
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for c := range callers {
		g.Go(func() error {
			h := bench.NewHistogram()
			for n := first + c; time.Since(began) < d; n += callers {
				before := time.Now()
				if err := e.client.create(ctx, newJob(n, before.Add(far), payloadBytes)); err != nil {
					return err
				}
				bench.Record(h, int64(time.Since(before)))
			}
			mu.Lock()
			defer mu.Unlock()
			all.Merge(h)
			return nil
		})
	}
	err := g.Wait()
	return all, float64(all.TotalCount()) / time.Since(began).Seconds(), err
}

// config is what a run measures.
type config struct {
	systems   []string
	workloads []string
	rates     []int
	seconds   int
	jobs      int
	callers   int
	creates   time.Duration
}

// limit is the longest that one measurement of one system may take, beyond the time that its jobs are due in.
const limit = 5 * time.Minute

// run measures, workload by workload and in each every system, and hands every outcome to keep. One that
// fails does not stop the others.
func run(ctx context.Context, at *site, c config, log io.Writer, keep func(bench.Result) error) error {
	type step struct {
		name string
		do   func(context.Context, *system) (bench.Result, error)
		time time.Duration
	}
	var steps []step
	for _, w := range c.workloads {
		switch w {
		case "lateness":
			for _, rate := range c.rates {
				steps = append(steps, step{measured("lateness", rate), func(ctx context.Context, s *system) (bench.Result, error) {
					return lateness(ctx, at, s, rate, c.seconds)
				}, time.Duration(c.seconds) * time.Second})
			}
		case "burst":
			steps = append(steps, step{fmt.Sprintf("burst of %d", c.jobs), func(ctx context.Context, s *system) (bench.Result, error) {
				return burst(ctx, at, s, c.jobs)
			}, 0})
		case "commands":
			steps = append(steps, step{fmt.Sprintf("commands of %d callers", c.callers), func(ctx context.Context, s *system) (bench.Result, error) {
				return commands(ctx, at, s, c.callers, c.creates)
			}, 2 * c.creates})
		default:
			return fmt.Errorf("%q is no workload; there are lateness, burst and commands", w)
		}
	}
	var failed error
	for i, step := range steps {
		for j, key := range c.systems {
			s, err := find(key)
			if err != nil {
				return err
			}
			fmt.Fprintf(log, "[%d/%d] %s: %s\n", i*len(c.systems)+j+1, len(steps)*len(c.systems), step.name, key)
			bounded, cancel := context.WithTimeout(ctx, limit+step.time)
			r, err := step.do(bounded, s)
			cancel()
			if ctx.Err() != nil {
				return errors.Join(failed, ctx.Err())
			}
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s: %s: %w", step.name, key, err))
				continue
			}
			if err := keep(r); err != nil {
				return err
			}
		}
	}
	return failed
}
