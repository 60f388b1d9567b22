package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
)

// DispatchConfig says how RunDispatch runs. The zero value of a field is its default.
type DispatchConfig struct {
	Service      Service `json:"-"`
	Triggers     int     `json:"triggers"`             // of each kind of jobs in a pair; of cron jobs for whole seconds; default 1,000,000
	CronPerS     int     `json:"cron_due_per_s"`       // cron jobs due each second: too many to publish; default 500,000, at most Triggers
	Pairs        int     `json:"pairs"`                // turns of the engine and of the ceiling; default 5
	PayloadBytes int     `json:"payload_bytes"`        // default 200
	Partitions   int     `json:"partitions,omitempty"` // of an engine that is started for the run; default its own
	PersistAsync bool    `json:"persist_async"`        // the output streams of the engine, and the ceiling's, acknowledge before they write

	Pause time.Duration `json:"-"` // between two turns; default 3 s

	Progress func(step string, done, total int) `json:"-"`
}

func (c DispatchConfig) withDefaults() (DispatchConfig, error) {
	var err error
	if c.Service, err = c.Service.withDefaults(); err != nil {
		return c, err
	}
	c.Triggers = cmp.Or(c.Triggers, 1_000_000)
	c.CronPerS = cmp.Or(c.CronPerS, min(500_000, c.Triggers))
	c.Pairs = cmp.Or(c.Pairs, 5)
	c.PayloadBytes = cmp.Or(c.PayloadBytes, 200)
	c.Pause = cmp.Or(c.Pause, 3*time.Second)
	c.Progress = defaultProgress(c.Progress)
	return c, nil
}

// Validate names the first field that cannot be used.
func (c DispatchConfig) Validate() error {
	c, err := c.withDefaults()
	switch {
	case err != nil:
		return err
	case c.Triggers < 100 || c.Triggers > 20_000_000:
		return fmt.Errorf("bench: Triggers is %d, must be 100 to 20,000,000", c.Triggers)
	case c.CronPerS < 1 || c.CronPerS > c.Triggers || c.Triggers > 60*c.CronPerS:
		return fmt.Errorf("bench: CronPerS is %d, must be 1/60 of %d triggers to all of them", c.CronPerS, c.Triggers)
	case c.Pairs < 1:
		return fmt.Errorf("bench: Pairs is %d, must be 1 or more", c.Pairs)
	case c.PayloadBytes < 2 || c.PayloadBytes > carillon.MaxPayload:
		return fmt.Errorf("bench: PayloadBytes is %d, must be 2 to %d", c.PayloadBytes, carillon.MaxPayload)
	case c.Pause < 0:
		return fmt.Errorf("bench: Pause %s is negative", c.Pause)
	}
	return c.Service.validateOwn(c.Partitions, c.PersistAsync)
}

// Targets of the engine, as shares of the ceiling of the same run.
const (
	leastOfChained = 0.85
	leastOfAsync   = 1.3
)

// RunDispatch measures how many triggers a second the engine stores in its output streams when more are due
// than it can publish, and, in turns with it, what the transport does with bare messages of the same payload
// and headers, in as many streams. In each pair the engine is a new one (unless one runs already), and so are
// the streams on both sides.
//
// One-shots are all due within a second. Cron jobs of six fields, with a spread of a second, are due in as many
// seconds as make the same number of triggers. After those seconds their expressions do not match before the next
// day, so that no `completed` event is stored among the triggers and the engine is idle in the ceiling's turn.
//
// A rate is the number of triggers stored ÷ the time from the first to the last of them, by the streams' own
// timestamps; a second rate is the same without the first and the last 5 %. The streams are read, and checked,
// afterwards.
func RunDispatch(ctx context.Context, c DispatchConfig) (r Result, err error) {
	if err := c.Validate(); err != nil {
		return r, err
	}
	if c, err = c.withDefaults(); err != nil {
		return r, err
	}
	m, err := openCeiling(ctx, CeilingConfig{Service: c.Service, Messages: c.Triggers, PayloadBytes: c.PayloadBytes})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	disk := m.own.dir // the engines' directories are beside it
	if c.Service.Server != "" {
		disk = ""
	}
	r = Result{Workload: "dispatch", Params: c, Machine: thisMachine(disk, c.Service.unbounded(c.Partitions, c.PersistAsync).sync()), Checks: &Checks{}}
	r.Machine.NATS, r.Machine.Replicas = m.nc.ConnectedServerVersion(), m.replicas
	var p pairs
	for n := range c.Pairs {
		if err := c.pair(ctx, n, m, &p, r.Checks); err != nil {
			return r, err
		}
	}
	r.Machine.Load[1] = load1()
	p.figures(&r.Figures)
	r.Targets = []Target{
		newMinTarget(r.Figures, "ratio_chained", leastOfChained),
		newMinTarget(r.Figures, "ratio_async", leastOfAsync),
		newMinTarget(r.Figures, "cron_ratio_chained", leastOfChained),
		newMinTarget(r.Figures, "cron_ratio_async", leastOfAsync),
	}
	return r, nil
}

// pairs are the rates of all pairs, messages a second. Each slice is by pair.
type pairs struct {
	oneShots, cron         []saturation
	chained, linked, async []float64

	perJob time.Duration // the time for each job when jobs were last put
}

// saturation is what the engine did in one turn.
type saturation struct {
	rate, middle float64 // of all, and of the middle 90 %; triggers a second
	cpu          float64 // µs a trigger; 0 where the engine is not ours
}

// figures adds the medians over the pairs, also of the ratios: each ratio is of one pair.
func (p *pairs) figures(f *Figures) {
	f.add("ceiling_chained_per_s", median(append([]float64(nil), p.chained...)))
	f.add("ceiling_linked_per_s", median(append([]float64(nil), p.linked...)))
	f.add("ceiling_async_per_s", median(append([]float64(nil), p.async...)))
	for _, kind := range []struct {
		prefix string
		turns  []saturation
	}{{"", p.oneShots}, {"cron_", p.cron}} {
		of := func(value func(i int, s saturation) float64) float64 {
			var all []float64
			for i, s := range kind.turns {
				all = append(all, value(i, s))
			}
			return median(all)
		}
		f.add(kind.prefix+"triggers_per_s", of(func(_ int, s saturation) float64 { return s.rate }))
		f.add(kind.prefix+"triggers_middle_per_s", of(func(_ int, s saturation) float64 { return s.middle }))
		f.add(kind.prefix+"ratio_chained", of(func(i int, s saturation) float64 { return s.rate / p.chained[i] }))
		f.add(kind.prefix+"ratio_linked", of(func(i int, s saturation) float64 { return s.rate / p.linked[i] }))
		f.add(kind.prefix+"ratio_async", of(func(i int, s saturation) float64 { return s.rate / p.async[i] }))
		if cpu := of(func(_ int, s saturation) float64 { return s.cpu }); cpu > 0 {
			f.add(kind.prefix+"engine_cpu_us_per_trigger", cpu)
		}
	}
}

// pair is a turn of the engine and one of the ceiling.
func (c *DispatchConfig) pair(ctx context.Context, n int, m *ceiling, p *pairs, checks *Checks) error {
	mode, err := c.engineTurn(ctx, n, m, p, checks)
	if err != nil {
		return err
	}
	runtime.GC() // the records of what was stored are our garbage: the ceiling must not pay for collecting it
	for _, v := range []struct {
		rates   *[]float64
		measure func(context.Context) (float64, error)
	}{
		{&p.chained, m.chains(chains{streams: m.Streams, mode: mode})},
		{&p.linked, m.chains(chains{streams: m.Streams, mode: mode, linked: true})},
		{&p.async, func(ctx context.Context) (float64, error) { return m.async(ctx, mode) }},
	} {
		if err := waitUntil(ctx, c.Progress, c.step(n, "pause"), time.Now().Add(c.Pause)); err != nil {
			return err
		}
		c.Progress(c.step(n, "ceiling"), 0, 1)
		rate, err := v.measure(ctx)
		if err != nil {
			return fmt.Errorf("bench: ceiling: %w", err)
		}
		*v.rates = append(*v.rates, rate)
	}
	return nil
}

func (c *DispatchConfig) step(pair int, what string) string {
	return fmt.Sprintf("pair %d of %d: %s", pair+1, c.Pairs, what)
}

// engineTurn makes the engine fire one kind after the other, and returns how its output streams persist.
func (c *DispatchConfig) engineTurn(ctx context.Context, n int, m *ceiling, p *pairs, checks *Checks) (mode jetstream.PersistModeType, err error) {
	e, err := c.Service.unbounded(c.Partitions, c.PersistAsync).open(ctx)
	if err != nil {
		return mode, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	o, err := e.outputs(ctx)
	if err != nil {
		return mode, err
	}
	defer o.nc.Close()
	run := runName()
	defer func() { err = errors.Join(err, e.cleanUp(ctx, o.nc, run)) }()
	m.Streams, m.job = e.partitions, run+"o-123456"

	for _, kind := range []struct {
		name  string
		of    func(run string, c *DispatchConfig) *jobBurst
		turns *[]saturation
	}{{"one-shots", oneShots, &p.oneShots}, {"cron", cronJobs, &p.cron}} {
		s := kind.of(run+kind.name[:1]+"-", c)
		s.progress = func(what string, done, total int) { c.Progress(c.step(n, kind.name+": "+what), done, total) }
		if err := o.holds(s.triggers(), c.PayloadBytes); err != nil {
			return mode, err
		}
		after, err := o.ends(ctx)
		if err != nil {
			return mode, err
		}
		if err := s.put(ctx, o.nc, e.Names, &p.perJob, c.Pause); err != nil {
			return mode, err
		}
		before := e.usage()
		if err := o.await(ctx, s); err != nil {
			return mode, err
		}
		cpu := e.usage().cpu - before.cpu
		var times []int64
		found, err := o.tally(ctx, after, s, func(_ int, _, stored int64) { times = append(times, stored) })
		if err != nil {
			return mode, err
		}
		checks.add(found)
		turn := saturation{cpu: float64(cpu.Microseconds()) / float64(max(len(times), 1))}
		turn.rate, turn.middle = rates(times)
		*kind.turns = append(*kind.turns, turn)
	}
	return o.mode, nil
}

// dueWithin is the time in which so many triggers are due, evenly: a million a second, which is more than can be published, and at most a
// second.
func dueWithin(triggers int) time.Duration {
	return min(time.Duration(triggers)*time.Microsecond, time.Second).Truncate(time.Millisecond)
}

// oneShots are all due within a second at most.
func oneShots(prefix string, c *DispatchConfig) *jobBurst {
	s := newJobBurst(prefix, c.Triggers, 1)
	within := dueWithin(c.Triggers).Milliseconds()
	for i := range s.First {
		s.First[i] = int64(i) * within / int64(c.Triggers)
	}
	payload := payloadOf(c.PayloadBytes)
	s.job = func(i int) carillon.Job {
		due := time.UnixMilli(s.From + s.First[i]).UTC()
		return carillon.Job{ID: s.id(i), Topic: s.topic(), Payload: payload, Schedule: "@at " + due.Format(carillon.TimeFormat)}
	}
	return s
}

// cronJobs are due once a second.
func cronJobs(prefix string, c *DispatchConfig) *jobBurst {
	fires := (c.Triggers + c.CronPerS - 1) / c.CronPerS
	s := newJobBurst(prefix, c.CronPerS, fires)
	s.spread = time.Second
	if fires == 1 {
		s.spread = max(dueWithin(c.CronPerS), time.Millisecond)
	}
	payload := payloadOf(c.PayloadBytes)
	s.job = func(i int) carillon.Job {
		first := time.UnixMilli(s.From).UTC()
		schedule := fmt.Sprintf("%d-%d %d %d * * *", first.Second(), first.Second()+fires-1, first.Minute(), first.Hour())
		job := carillon.Job{ID: s.id(i), Topic: s.topic(), Payload: payload, Schedule: schedule, Spread: s.spread, Misfire: carillon.FireAll}
		if c.Service.Server != "" { // else they would fire each day from now on
			job.End = first.Add(time.Duration(fires)*time.Second + outlives)
		}
		return job
	}
	return s
}
