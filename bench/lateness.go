package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
)

// LatenessConfig says how RunLateness runs. The zero value of a field is its default.
type LatenessConfig struct {
	Service Service `json:"-"`

	Rate         int           `json:"triggers_per_s"` // default 5,000
	Duration     time.Duration `json:"-"`              // whole seconds; default 60 s
	Seconds      int           `json:"duration_s"`     // Duration, as it stands in the result
	PayloadBytes int           `json:"payload_bytes"`  // default 200
	Mix          Mix           `json:"mix"`            // default intervals
	Concurrency  int           `json:"concurrency"`    // handlers of the worker; default 64
	Raw          string        `json:"-"`              // file to which every trigger is written, as CSV; empty: none

	// Progress, if not nil, is told how far the run is.
	Progress func(step string, done, total int) `json:"-"`

	lead   time.Duration                   // between the last put and the first due time; default settle
	before func(ctx context.Context) error // called in that time
	after  func(ctx context.Context) error // called when all has arrived, before the run is removed from a service that goes on
	disk   string                          // a directory on the disk of a service that runs already; "": the disk is not measured
}

func (c LatenessConfig) withDefaults() (LatenessConfig, error) {
	var err error
	if c.Service, err = c.Service.withDefaults(); err != nil {
		return c, err
	}
	c.Rate = cmp.Or(c.Rate, 5000)
	c.Duration = cmp.Or(c.Duration, time.Minute)
	c.Seconds = int(c.Duration / time.Second)
	c.PayloadBytes = cmp.Or(c.PayloadBytes, 200)
	if c.Mix.total() == 0 {
		c.Mix.Intervals = 1
	}
	c.Concurrency = cmp.Or(c.Concurrency, 64)
	c.Progress = defaultProgress(c.Progress)
	c.lead = cmp.Or(c.lead, settle)
	none := func(context.Context) error { return nil }
	if c.before == nil {
		c.before = none
	}
	if c.after == nil {
		c.after = none
	}
	return c, nil
}

// Validate names the first field that cannot be used.
func (c LatenessConfig) Validate() error {
	c, err := c.withDefaults()
	switch {
	case err != nil:
		return err
	case c.Rate < 1 || c.Rate > 1_000_000:
		return fmt.Errorf("bench: Rate is %d, must be 1 to 1,000,000 triggers a second", c.Rate)
	case c.Duration < time.Second || c.Duration%time.Second != 0:
		return fmt.Errorf("bench: Duration is %s, must be whole seconds", c.Duration)
	case c.PayloadBytes < 2 || c.PayloadBytes > carillon.MaxPayload:
		return fmt.Errorf("bench: PayloadBytes is %d, must be 2 to %d", c.PayloadBytes, carillon.MaxPayload)
	case min(c.Mix.Intervals, c.Mix.Cron, c.Mix.OneShots) < 0 || max(c.Mix.Intervals, c.Mix.Cron, c.Mix.OneShots) > mostWeight:
		return fmt.Errorf("bench: a weight of the Mix is below 0 or above 1,000,000")
	case c.Concurrency < 1 || c.Concurrency > mostHandlers:
		return fmt.Errorf("bench: Concurrency is %d, must be 1 to 100,000", c.Concurrency)
	case c.Raw != "": // it is written at the end, so it is made now: otherwise the whole run might be for nothing
		f, err := os.OpenFile(c.Raw, os.O_CREATE|os.O_WRONLY, 0o666)
		if err != nil {
			return fmt.Errorf("bench: Raw: %w", err)
		}
		return f.Close()
	}
	return nil
}

// Limits of lateness, ms. The target of a tail percentile also counts as met up to three times what a bare time.Sleep
// did at the same percentile of the same run: no scheduler is more punctual than the machine that it runs on.
const (
	limitP50, limitP50Fast = 1, 1.5
	limitP99, limitP99Fast = 5, 10
	limitP999              = 20
	limitsFast             = 5000 // triggers a second; above it the second limits apply
	floorMultiple          = 3
)

// latenessTargets returns the targets at a rate of so many triggers a second. sleep returns the bare sleep's percentiles, ms.
func latenessTargets(f Figures, rate int, sleep func(q float64) float64) []Target {
	p50, p99 := float64(limitP50), float64(limitP99)
	if rate > limitsFast {
		p50, p99 = limitP50Fast, limitP99Fast
	}
	return []Target{
		newTarget(f, "received_p50_ms", p50, 0),
		newTarget(f, "received_p99_ms", p99, floorMultiple*sleep(99)),
		newTarget(f, "received_p999_ms", limitP999, floorMultiple*sleep(99.9)),
	}
}

// RunLateness measures how late triggers reach a worker in another process over TCP, at a fixed rate for a
// time, and checks that each arrives once. In the same run it measures how late a bare time.Sleep is in this
// process, and JetStream's round trip on a stream beside the engine's.
func RunLateness(ctx context.Context, c LatenessConfig) (r Result, err error) {
	if err := c.Validate(); err != nil {
		return r, err
	}
	if c, err = c.withDefaults(); err != nil {
		return r, err
	}
	r = Result{Workload: "lateness", Params: c}
	e, nc, end, err := c.Service.begin(ctx, &r)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, end()) }()
	run := runName()
	// Before the worker is started, which makes consumers, and after it is stopped, because it would make them again.
	defer func() { err = errors.Join(err, e.cleanUp(ctx, nc, run)) }()
	w, err := e.startWorker(ctx, workerStart{Name: run, Prefix: run + "-", Concurrency: c.Concurrency, Raw: c.Raw})
	if err != nil {
		return r, err
	}
	defer w.stop()

	l := newLoad(run+"-", c.Mix, c.Rate, c.Duration, c.PayloadBytes)
	l.ends = c.Service.Server != ""
	var m latenessRun
	if m.puts, err = c.putInTime(ctx, carillon.Connect(nc, carillon.WithNames(e.Names)), l); err != nil {
		return r, err
	}
	if err := w.send(&l.plan); err != nil {
		return r, err
	}
	m.window, err = e.measureWindow(ctx, nc, l, cmp.Or(e.dir, c.disk), c.Progress, func() error {
		return waitUntil(ctx, c.Progress, "measuring", time.UnixMilli(l.plan.To))
	})
	if err != nil {
		return r, err
	}
	c.Progress("collecting", 0, 1)
	if m.report, err = w.report(); err != nil {
		return r, err
	}
	r.Machine.Load[1] = load1()
	if err := c.after(ctx); err != nil {
		return r, err
	}
	err = c.results(&m, &r)
	return r, err
}

// latenessRun is what a run of lateness has found.
type latenessRun struct {
	puts   time.Duration // how long it took to put the jobs
	window window
	report workerReport
}

// results adds what a run has found to its result.
func (c *LatenessConfig) results(m *latenessRun, r *Result) error {
	received, err := decode(m.report.Received)
	if err != nil {
		return err
	}
	stored, err := decode(m.report.Stored)
	if err != nil {
		return err
	}
	sleep, err := encode(m.window.sleep)
	if err != nil {
		return err
	}
	r.Checks = &m.report.Checks
	f := &r.Figures
	f.add("triggers_per_s", float64(received.TotalCount())/float64(c.Seconds))
	f.quantiles("received", received, 50, 90, 99, 99.9, 99.99, 100)
	f.quantiles("stored", stored, 50, 99, 99.9, 100)
	f.quantiles("sleep", m.window.sleep, 50, 99, 99.9, 100)
	f.quantiles("round_trip", m.window.round, 50, 99, 100)
	f.quantiles("fsync", m.window.sync, 50, 99, 100)
	if m.window.known {
		f.add("engine_cpu_percent", m.window.cpuPercent())
		f.add("engine_cpu_us_per_trigger", float64(m.window.cpu.Microseconds())/float64(max(received.TotalCount(), 1)))
		f.add("engine_resident_mib", m.window.residentMiB)
	}
	f.add("puts_s", m.puts.Seconds())
	r.Targets = latenessTargets(*f, c.Rate, func(q float64) float64 { return float64(m.window.sleep.ValueAtQuantile(q)) / 1000 })
	r.Histograms = map[string]string{"received_us": m.report.Received, "stored_us": m.report.Stored, "sleep_us": sleep}
	return m.report.failure()
}

// putInTime puts the jobs before the first of them is due, and returns how long that took. If the machine is too slow for the lead,
// it deletes them, and puts them again for a later time.
func (c *LatenessConfig) putInTime(ctx context.Context, client *carillon.Client, l *load) (took time.Duration, err error) {
	for try, lead := 1, c.lead; ; try++ {
		began := time.Now()
		if err := l.put(ctx, client, lead, func(done int) { c.Progress("putting jobs", done, len(l.plan.First)) }); err != nil {
			return 0, err
		}
		took = time.Since(began)
		if err := c.before(ctx); err != nil {
			return 0, err
		}
		late := time.Since(time.UnixMilli(l.plan.From))
		if late <= 0 {
			return took, nil
		}
		if try == putTries {
			return 0, fmt.Errorf("bench: the first job was due %s before the measurement could begin", late.Round(time.Millisecond))
		}
		c.Progress(beginAgain, try, putTries)
		if err := l.deleteAll(ctx, client); err != nil {
			return 0, err
		}
		lead = 2*lead + late
	}
}

// beginAgain is the name of the step in which a run begins again, because its first job was due too early.
const beginAgain = "beginning again"

// waitUntil waits until a time and reports its progress.
func waitUntil(ctx context.Context, progress func(step string, done, total int), step string, until time.Time) error {
	t := time.NewTicker(250 * time.Millisecond)
	defer t.Stop()
	total := time.Until(until)
	for {
		left := time.Until(until)
		progress(step, int((total - left).Milliseconds()), int(total.Milliseconds()))
		if left <= 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(left):
		case <-t.C:
		}
	}
}

// cleanUp removes what a run left in a service that goes on: its jobs, and the consumers with the run's name and the others.
func (e *engine) cleanUp(ctx context.Context, nc *nats.Conn, run string, others ...string) error {
	return e.cleanUpWithin(ctx, nc, carillon.DefaultTimeout, run, others...)
}

// cleanUpWithin is cleanUp, but gives up when nothing answers for patience: the service may have ended, and the run because of that.
func (e *engine) cleanUpWithin(ctx context.Context, nc *nats.Conn, patience time.Duration, run string, others ...string) error {
	if e.Server == "" {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	err := deleteJobs(ctx, carillon.Connect(nc, carillon.WithNames(e.Names), carillon.WithTimeout(patience)), run)
	js, e2 := nc.JetStream()
	if e2 != nil {
		return errors.Join(err, e2)
	}
	for p := range e.partitions {
		for _, name := range append(others, run) {
			asking, cancel := context.WithTimeout(ctx, patience)
			e2 := js.DeleteConsumer(e.Names.OutStream(p), name, nats.Context(asking))
			cancel()
			switch {
			case errors.Is(e2, context.DeadlineExceeded):
				return fmt.Errorf("bench: what is left of %s in the service stays there: %w", run, errors.Join(err, e2))
			case !errors.Is(e2, nats.ErrConsumerNotFound):
				err = errors.Join(err, e2)
			}
		}
	}
	return err
}

const (
	deletePause  = 250 * time.Millisecond
	deletePasses = 40
)

// deleteJobs deletes all jobs with a prefix, again and again until there are none. Once is not enough: when a run ends early, its puts may
// still be on their way into the service, and a service that is full refuses deletes.
func deleteJobs(ctx context.Context, client *carillon.Client, prefix string) error {
	for pass := 1; ; pass++ {
		r, err := client.DeleteWhere(ctx, carillon.Selection{Prefix: prefix})
		switch {
		case err != nil:
			return err
		case r.Matched == 0 && pass > 1:
			return nil
		case pass == deletePasses:
			return fmt.Errorf("bench: the service still has jobs of %s", prefix)
		}
		time.Sleep(deletePause)
	}
}
