package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/carillon-scheduler/carillon"
)

// BurstConfig says how RunBurst runs. The zero value of a field is its default.
type BurstConfig struct {
	Service Service `json:"-"`

	Jobs         int  `json:"jobs"`                 // due in one millisecond; default 1,000,000
	SideRate     int  `json:"side_triggers_per_s"`  // of unrelated jobs, of high and of normal priority each; default 500
	PayloadBytes int  `json:"payload_bytes"`        // default 200
	Partitions   int  `json:"partitions,omitempty"` // of an engine that is started for the run; default its own
	PersistAsync bool `json:"persist_async"`        // the output streams of the engine, and the ceiling's, acknowledge before they write
	Rounds       int  `json:"rounds"`               // of the ceiling, before the burst and again after it; default 2

	Pause time.Duration `json:"-"` // between the ceiling, the puts and the burst; default 3 s

	Progress func(step string, done, total int) `json:"-"`
}

func (c BurstConfig) withDefaults() (BurstConfig, error) {
	var err error
	if c.Service, err = c.Service.withDefaults(); err != nil {
		return c, err
	}
	c.Jobs = cmp.Or(c.Jobs, 1_000_000)
	c.SideRate = cmp.Or(c.SideRate, 500)
	c.PayloadBytes = cmp.Or(c.PayloadBytes, 200)
	c.Rounds = cmp.Or(c.Rounds, 2)
	c.Pause = cmp.Or(c.Pause, 3*time.Second)
	c.Progress = defaultProgress(c.Progress)
	return c, nil
}

// Validate names the first field that cannot be used.
func (c BurstConfig) Validate() error {
	c, err := c.withDefaults()
	switch {
	case err != nil:
		return err
	case c.Jobs < 1000 || c.Jobs > 20_000_000:
		return fmt.Errorf("bench: Jobs is %d, must be 1,000 to 20,000,000", c.Jobs)
	case c.SideRate < 1 || c.SideRate > 10_000:
		return fmt.Errorf("bench: SideRate is %d, must be 1 to 10,000 triggers a second", c.SideRate)
	case c.PayloadBytes < 2 || c.PayloadBytes > carillon.MaxPayload:
		return fmt.Errorf("bench: PayloadBytes is %d, must be 2 to %d", c.PayloadBytes, carillon.MaxPayload)
	case c.Rounds < 1:
		return fmt.Errorf("bench: Rounds is %d, must be 1 or more", c.Rounds)
	case c.Pause < 0:
		return fmt.Errorf("bench: Pause %s is negative", c.Pause)
	}
	return c.Service.validateOwn(c.Partitions, c.PersistAsync)
}

// Targets of a burst.
const (
	leastDrain   = 0.8 // of the chained ceiling
	limitHighP99 = 50  // ms
)

// Of the burst's jobs, one in a thousand has high priority and one low: enough to see them overtake, but too
// few for other jobs of high priority to have to wait behind them.
const priorityShare = 1000

var priorities = []carillon.Priority{carillon.High, carillon.Normal, carillon.Low}

func priorityOf(i int) carillon.Priority {
	switch i % priorityShare {
	case 0:
		return carillon.High
	case 1:
		return carillon.Low
	}
	return carillon.Normal
}

// RunBurst makes many jobs due in one millisecond, and measures how fast they drain into the output streams,
// by the streams' own timestamps, beside the chained ceiling of the same run. Meanwhile unrelated jobs of high
// and of normal priority come due, and two workers in processes of their own take their triggers. Of these,
// the ones count that are due between the burst's millisecond and the time when its last trigger is stored.
func RunBurst(ctx context.Context, c BurstConfig) (r Result, err error) {
	if err := c.Validate(); err != nil {
		return r, err
	}
	if c, err = c.withDefaults(); err != nil {
		return r, err
	}
	e, err := c.Service.unbounded(c.Partitions, c.PersistAsync).open(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	r = Result{Workload: "burst", Params: c, Machine: thisMachine(e.dir, e.sync()), Checks: &Checks{}, Histograms: make(map[string]string)}
	o, err := e.outputs(ctx)
	if err != nil {
		return r, err
	}
	defer o.nc.Close()
	r.Machine.NATS = o.nc.ConnectedServerVersion()
	if err := o.holds(c.Jobs, c.PayloadBytes); err != nil {
		return r, err
	}

	run := runName()
	m, err := openCeiling(ctx, CeilingConfig{Service: c.Service, Messages: c.Jobs, PayloadBytes: c.PayloadBytes})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	m.job = run + "b-123456"
	r.Machine.Replicas = m.replicas
	var ceilings []float64
	measureCeiling := func() error {
		for range c.Rounds {
			c.Progress("ceiling", len(ceilings), 2*c.Rounds)
			rate, err := m.chained(ctx, chains{streams: e.partitions, mode: o.mode})
			if err != nil {
				return fmt.Errorf("bench: ceiling: %w", err)
			}
			ceilings = append(ceilings, rate)
			if err := waitUntil(ctx, c.Progress, "pause", time.Now().Add(c.Pause)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := measureCeiling(); err != nil {
		return r, err
	}
	b := &burst{BurstConfig: c, engine: e, out: o, result: &r}
	if err := errors.Join(b.measure(ctx, run), e.cleanUp(ctx, o.nc, run, highSide(run), normalSide(run))); err != nil {
		return r, err
	}
	if err := e.close(); err != nil { // else the unrelated jobs would go on firing beside the ceiling
		return r, err
	}
	runtime.GC()
	if err := measureCeiling(); err != nil {
		return r, err
	}
	r.Machine.Load[1] = load1()
	ceiling := median(ceilings)
	r.Figures.add("ceiling_chained_per_s", ceiling)
	r.Figures.add("ratio_chained", r.Figures.Get("drained_per_s")/ceiling)
	r.Targets = []Target{
		newMinTarget(r.Figures, "ratio_chained", leastDrain),
		newTarget(r.Figures, "high_lateness_p99_ms", limitHighP99, 0),
	}
	return r, nil
}

// burst is the part of a run with the engine.
type burst struct {
	BurstConfig
	engine *engine
	out    *outputs
	result *Result
}

// The names of the unrelated loads of a run.
func highSide(run string) string   { return run + "h" }
func normalSide(run string) string { return run + "n" }

func (b *burst) measure(ctx context.Context, run string) (err error) {
	s := newJobBurst(run+"b-", b.Jobs, 1)
	s.progress = b.Progress
	payload := payloadOf(b.PayloadBytes)
	var high, normal *side
	s.job = func(i int) carillon.Job {
		due := time.UnixMilli(s.From).UTC().Format(carillon.TimeFormat)
		return carillon.Job{ID: s.id(i), Topic: s.topic(), Priority: priorityOf(i), Payload: payload, Schedule: "@at " + due}
	}
	if high, err = b.side(ctx, highSide(run), carillon.High); err != nil {
		return err
	}
	defer high.worker.stop()
	if normal, err = b.side(ctx, normalSide(run), carillon.Normal); err != nil {
		return err
	}
	defer normal.worker.stop()
	after, err := b.out.ends(ctx)
	if err != nil {
		return err
	}

	s.placed = func() error { return errors.Join(high.put(ctx, b, s.From), normal.put(ctx, b, s.From)) }
	if err := s.put(ctx, b.out.nc, b.engine.Names, new(time.Duration), b.Pause); err != nil {
		return err
	}
	before := b.engine.usage()
	measuring, stop := context.WithCancel(ctx)
	floors := watchMachine(measuring, b.engine.dir, payload)
	awaited := b.out.await(ctx, s)
	stop()
	beside, err := floors()
	if err := errors.Join(awaited, err); err != nil {
		return err
	}
	used := b.engine.usage()

	var times []int64
	lateness := make(map[carillon.Priority]*hdrhistogram.Histogram)
	for _, p := range priorities {
		lateness[p] = newHistogram()
	}
	found, err := b.out.tally(ctx, after, s, func(i int, due, stored int64) {
		times = append(times, stored)
		record(lateness[priorityOf(i)], stored-due)
	})
	if err != nil {
		return err
	}
	b.result.Checks.add(found)
	if len(times) == 0 {
		return fmt.Errorf("bench: none of %d triggers was stored", s.triggers())
	}
	s.drained(times, b.result)
	f := &b.result.Figures
	for _, v := range []*side{high, normal} {
		if err := v.report(s, b.result); err != nil {
			return err
		}
	}
	for _, p := range priorities {
		f.quantiles("burst_"+p.String()+"_stored", lateness[p], 50, 99, 100)
		if b.result.Histograms["burst_"+p.String()+"_stored_us"], err = encode(lateness[p]); err != nil {
			return err
		}
	}
	f.quantiles("sleep", beside.sleep, 50, 99, 100)
	f.quantiles("fsync", beside.sync, 50, 99, 100)
	if b.result.Histograms["sleep_us"], err = encode(beside.sleep); err != nil {
		return err
	}
	if used.known {
		f.add("engine_cpu_us_per_trigger", float64((used.cpu-before.cpu).Microseconds())/float64(len(times)))
		f.add("engine_resident_mib", used.residentMiB)
	}
	return nil
}

// drainStep is the width of the drain's histogram over time.
const drainStep = 100 * time.Millisecond

// drained adds to the result how a burst came into the streams. times are unix ns, at least one; it sorts them.
func (s *jobBurst) drained(times []int64, r *Result) {
	all, middle := rates(times)
	due := s.From * 1e6
	took := time.Duration(max(times[len(times)-1]-due, int64(time.Millisecond))) // else a burst that came early would make it negative
	r.Figures.add("drained_per_s", float64(len(times))/took.Seconds())
	r.Figures.add("drained_s", took.Seconds())
	r.Figures.add("stored_per_s", all)
	r.Figures.add("stored_middle_per_s", middle)
	counts := make([]Point, took/drainStep+1)
	for i := range counts {
		counts[i][0] = (time.Duration(i) * drainStep).Seconds()
	}
	for _, t := range times {
		counts[max(0, time.Duration(t-due)/drainStep)][1]++
	}
	r.Series = map[string][]Point{"stored_per_100ms": counts}
}

// side is a small load of jobs that have nothing to do with the burst, each due once a second, with its worker.
type side struct {
	name     string // what its jobs' ids begin with; also its topic, and the name of its consumers
	priority carillon.Priority
	plan     plan
	worker   *workerProcess
}

func (b *burst) side(ctx context.Context, name string, priority carillon.Priority) (v *side, err error) {
	v = &side{name: name, priority: priority, plan: plan{Prefix: name + "-"}}
	for i := range b.SideRate {
		v.plan.First = append(v.plan.First, int64(i)*everySecond/int64(b.SideRate))
		v.plan.Every = append(v.plan.Every, everySecond)
	}
	v.worker, err = b.engine.startWorker(ctx, workerStart{Name: name, Prefix: v.plan.Prefix, Topic: name, Concurrency: 16})
	return v, err
}

// put puts the jobs, which are due from that time on, unix ms.
func (v *side) put(ctx context.Context, b *burst, from int64) error {
	v.plan.From = from
	payload := payloadOf(b.PayloadBytes)
	jobs := func(yield func(carillon.Job) bool) {
		for i, first := range v.plan.First {
			job := carillon.Job{
				ID: v.plan.Prefix + strconv.Itoa(i), Topic: v.name, Priority: v.priority, Payload: payload,
				Schedule: "@every 1s", Start: time.UnixMilli(from + first).UTC(), Misfire: carillon.FireAll,
			}
			if b.Service.Server != "" {
				job.End = time.UnixMilli(from).Add(time.Hour).UTC() // longer than any burst drains
			}
			if !yield(job) {
				return
			}
		}
	}
	return putJobs(ctx, carillon.Connect(b.out.nc, carillon.WithNames(b.engine.Names)), jobs, nil)
}

// report asks the worker for its report on what was due while the burst drained.
func (v *side) report(s *jobBurst, r *Result) error {
	v.plan.To = s.From + int64(r.Figures.Get("drained_s")*1000)
	if err := v.worker.send(&v.plan); err != nil {
		return err
	}
	w, err := v.worker.report()
	if err != nil {
		return err
	}
	r.Checks.add(w.Checks)
	received, err := decode(w.Received)
	if err != nil {
		return err
	}
	name := v.priority.String()
	stored, err := decode(w.Stored)
	if err != nil {
		return err
	}
	r.Figures.quantiles(name+"_lateness", received, 50, 99, 100)
	r.Figures.quantiles(name+"_stored", stored, 50, 99, 100)
	r.Histograms[name+"_received_us"], r.Histograms[name+"_stored_us"] = w.Received, w.Stored
	return w.failure()
}
