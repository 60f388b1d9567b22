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
	payloadBytes      = 200
	concurrentCreates = 256 // concurrent creates where a library has no bulk call
	// sample is how many jobs are created first, to estimate how long it takes to create all of them.
	sample = 1000
	// notDueFor is how far ahead jobs are due that must not fire during the run.
	notDueFor = time.Hour
	// firstSingle is the number of the first job that the single caller creates: beyond those of the many callers.
	firstSingle = 1_000_000_000
)

// params are the parameters of a result.
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

// session is a system that was started for one measurement, and the result of that.
type session struct {
	*system
	workspace *workspace
	address   string
	client    client
	result    bench.Result
}

// begin starts a system without any data. close ends it and removes its data.
func (s *system) begin(ctx context.Context, ws *workspace, workload string, p params) (*session, error) {
	e := &session{system: s, workspace: ws}
	address, err := s.start(ctx, ws)
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
	m := bench.ThisMachine(ws.dir, s.durability)
	e.result = bench.Result{Workload: workload, Params: p, Machine: m}
	return e, nil
}

func (e *session) close() error {
	if e.client != nil {
		e.client.close()
	}
	return e.workspace.clear()
}

func (e *session) add(name string, value float64) {
	e.result.Figures = append(e.result.Figures, bench.Figure{Name: name, Value: value})
}

// lateness measures how late jobs are, at a fixed rate for a time.
func lateness(ctx context.Context, ws *workspace, s *system, rate, seconds int) (r bench.Result, err error) {
	e, err := s.begin(ctx, ws, "lateness", params{Rate: rate, Seconds: seconds})
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

// burst measures jobs that are all due at the same time, which is a whole second. Its rates count from that time.
func burst(ctx context.Context, ws *workspace, s *system, jobs int) (r bench.Result, err error) {
	e, err := s.begin(ctx, ws, "burst", params{Jobs: jobs})
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

// fired is the outcome of jobs that were created and fired: the worker's report, and how fast the jobs were created.
type fired struct {
	report
	received    *hdrhistogram.Histogram
	off         *hdrhistogram.Histogram
	createsPerS float64 // jobs created a second
}

func (e *session) describe(f fired) {
	figures := &e.result.Figures
	figures.Quantiles("received", f.received, 50, 90, 99, 99.9, 100)
	figures.Quantiles("off", f.off, 50, 99, 99.9, 100)
	e.add("early_max_ms", float64(f.EarlyMax)/1e6)
	e.add("puts_per_s", f.createsPerS)
	e.result.Checks = &f.Checks
	e.result.Histograms = map[string]string{"received_us": f.Received, "off_us": f.Off}
	e.ended()
}

// ended notes the machine's load at the end of the run.
func (e *session) ended() { e.result.Machine.Load[1] = bench.ThisMachine("", "").Load[0] }

// fire starts a worker, creates jobs that are due evenly over a span of time, and waits for the worker's report.
func (e *session) fire(ctx context.Context, jobs int, span time.Duration) (f fired, err error) {
	w, err := e.workspace.startWorker(workerStart{System: e.key(), Address: e.address, Jobs: jobs})
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

// fill creates the jobs, all of them before the first one is due. To estimate how long that takes, it first creates a few others. Their
// numbers are above those of the plan, and they are not due during the run.
func (e *session) fill(ctx context.Context, n int, span time.Duration, f *fired) (p plan, err error) {
	some := make([]job, sample)
	for i := range some {
		some[i] = newJob(n+i, time.Now().Add(notDueFor), payloadBytes)
	}
	began := time.Now()
	if err := e.client.createAll(ctx, some); err != nil {
		return p, err
	}
	estimate := time.Since(began) * time.Duration(n) / sample
	// Allow twice the estimate, because the sample is small and an empty store is fast. Add 5 s, because River prepares jobs 5 s ahead.
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
	f.createsPerS = float64(n) / took.Seconds()
	if time.Until(from) < 2*time.Second {
		return p, fmt.Errorf("%d jobs took %s, too long for the %s that was estimated", n, took, estimate)
	}
	return p, nil
}

// commands measures creates, one job a call, by many concurrent callers and then by a single one. The loop is closed: each caller waits
// for the answer before its next call.
func commands(ctx context.Context, ws *workspace, s *system, callers int, d time.Duration) (r bench.Result, err error) {
	e, err := s.begin(ctx, ws, "commands", params{Callers: callers, Seconds: int(d.Seconds())})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	many, manyPerS, err := e.call(ctx, callers, d, 0)
	if err != nil {
		return r, err
	}
	one, onePerS, err := e.call(ctx, 1, d/2, firstSingle)
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

// call makes a number of callers create jobs for a time. It returns the latencies and how many jobs were created a second. Job numbers
// begin at first, and those of one caller are callers apart.
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
				if err := e.client.create(ctx, newJob(n, before.Add(notDueFor), payloadBytes)); err != nil {
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

// config says which workloads a run measures, on which systems, and how.
type config struct {
	systems   []string
	workloads []string
	rates     []int
	seconds   int
	jobs      int
	callers   int
	creates   time.Duration
}

// measureTimeout is how long one measurement of one system may take, besides the time in which its jobs are due.
const measureTimeout = 5 * time.Minute

// run runs each workload on each system and calls keep with each result. If one of them fails, the others still run.
func run(ctx context.Context, ws *workspace, c config, log io.Writer, keep func(bench.Result) error) error {
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
					return lateness(ctx, ws, s, rate, c.seconds)
				}, time.Duration(c.seconds) * time.Second})
			}
		case "burst":
			steps = append(steps, step{fmt.Sprintf("burst of %d", c.jobs), func(ctx context.Context, s *system) (bench.Result, error) {
				return burst(ctx, ws, s, c.jobs)
			}, 0})
		case "commands":
			steps = append(steps, step{fmt.Sprintf("commands of %d callers", c.callers), func(ctx context.Context, s *system) (bench.Result, error) {
				return commands(ctx, ws, s, c.callers, c.creates)
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
			bounded, cancel := context.WithTimeout(ctx, measureTimeout+step.time)
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
