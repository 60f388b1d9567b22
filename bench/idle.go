package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
)

// Kinds of jobs of IdleConfig.
const (
	IdleIntervals = "intervals" // @every 24h
	IdleCron      = "cron"      // a six-field expression that is due once a day, with a spread
	IdleOneShots  = "one_shots" // @at
)

// IdleConfig says how RunIdle runs. The zero value of a field is its default.
type IdleConfig struct {
	Service Service `json:"-"` // one that is started for the run

	Jobs int    `json:"jobs"` // default 1,000,000
	Kind string `json:"kind"` // default IdleIntervals
	// Ahead is how far ahead the first job is due; the last one is half as far again. An engine keeps in memory what is due
	// within half an hour; jobs due later are on disk only. Default 20 min: all jobs stay hot, and none is due during the run.
	Ahead        time.Duration `json:"-"`
	AheadSeconds float64       `json:"ahead_s"`       // Ahead, as it stands in the result
	PayloadBytes int           `json:"payload_bytes"` // default 200
	Duration     time.Duration `json:"-"`             // of the measurement of CPU; default 30 s
	Seconds      float64       `json:"duration_s"`    // Duration, as it stands in the result
	// Settle is for how long the engine's memory must have stopped falling before it is read. Default 250 s: Go
	// collects garbage in an idle process every two minutes, and returns to the system, bit by bit, what the last
	// two collections found to be free. Without jobs an eighth of Settle is enough.
	Settle        time.Duration `json:"-"`
	SettleSeconds float64       `json:"settle_s"`

	Progress func(step string, done, total int) `json:"-"`
}

func (c IdleConfig) withDefaults() (IdleConfig, error) {
	var err error
	if c.Service, err = c.Service.withDefaults(); err != nil {
		return c, err
	}
	c.Jobs = cmp.Or(c.Jobs, 1_000_000)
	if c.Kind == "" {
		c.Kind = IdleIntervals
	}
	c.PayloadBytes = cmp.Or(c.PayloadBytes, 200)
	c.Ahead = cmp.Or(c.Ahead, 20*time.Minute)
	c.Duration = cmp.Or(c.Duration, 30*time.Second)
	c.Settle = cmp.Or(c.Settle, 250*time.Second)
	c.AheadSeconds, c.Seconds, c.SettleSeconds = c.Ahead.Seconds(), c.Duration.Seconds(), c.Settle.Seconds()
	c.Progress = defaultProgress(c.Progress)
	return c, nil
}

// Validate names the first field that cannot be used.
func (c IdleConfig) Validate() error {
	c, err := c.withDefaults()
	switch {
	case err != nil:
		return err
	case c.Service.Server != "" || c.Service.NATS != "":
		return errors.New("bench: idle looks at the engine's process, so it must be one of its own")
	case c.Jobs < 1:
		return fmt.Errorf("bench: Jobs is %d, must be 1 or more", c.Jobs)
	case c.Kind != IdleIntervals && c.Kind != IdleCron && c.Kind != IdleOneShots:
		return fmt.Errorf("bench: Kind is %q, must be %s, %s or %s", c.Kind, IdleIntervals, IdleCron, IdleOneShots)
	case c.PayloadBytes < 2 || c.PayloadBytes > carillon.MaxPayload:
		return fmt.Errorf("bench: PayloadBytes is %d, must be 2 to %d", c.PayloadBytes, carillon.MaxPayload)
	case c.Ahead < time.Minute || c.Ahead > 12*time.Hour:
		return fmt.Errorf("bench: Ahead is %s, must be 1m to 12h", c.Ahead)
	case c.Duration < 0:
		return fmt.Errorf("bench: Duration %s is negative", c.Duration)
	case c.Settle < 0:
		return fmt.Errorf("bench: Settle %s is negative", c.Settle)
	}
	return nil
}

// Limits of idle.
const (
	limitIdleCPU  = 1   // percent of a core
	limitJobBytes = 200 // of a recurring job in memory, besides its payload

	hotWithin = 30 * time.Minute // by default a job that is due within it is in memory
)

// RunIdle measures what pending jobs cost while nothing is due: CPU in percent of a core, and resident bytes of
// each job. The jobs are in memory or, with Ahead beyond what the engine keeps there, on disk. The bytes are what
// the process holds once its memory has settled, minus what it held without jobs, minus the payloads, divided by
// the number of jobs. So everything counts that came with the jobs: a job's entry, a cache, or garbage that the
// collector leaves in the process.
func RunIdle(ctx context.Context, c IdleConfig) (r Result, err error) {
	if err := c.Validate(); err != nil {
		return r, err
	}
	if c, err = c.withDefaults(); err != nil {
		return r, err
	}
	r = Result{Workload: "idle", Params: c, Series: make(map[string][]Point)}
	e, nc, end, err := c.Service.begin(ctx, &r)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, end()) }()
	began := time.Now()
	if _, err := c.settle(ctx, e, &r, "settling without jobs", began, c.Settle/8); err != nil {
		return r, err
	}
	empty, err := look(ctx, e)
	if err != nil {
		return r, err
	}
	put, err := c.put(ctx, e, nc)
	if err != nil {
		return r, err
	}
	settling, err := c.settle(ctx, e, &r, "settling", began, c.Settle)
	if err != nil {
		return r, err
	}

	before := time.Now()
	first, err := look(ctx, e)
	if err != nil {
		return r, err
	}
	if err := waitUntil(ctx, c.Progress, "measuring", before.Add(c.Duration)); err != nil {
		return r, err
	}
	last, err := look(ctx, e)
	if err != nil {
		return r, err
	}
	window := time.Since(before).Seconds()
	hot, err := e.metric(ctx, "carillon_jobs_hot")
	if err != nil {
		return r, err
	}
	r.Machine.Load[1] = load1()
	if r.Checks, err = c.check(ctx, e, nc); err != nil {
		return r, err
	}

	perJob := func(with, without float64) float64 {
		return (with-without)/float64(c.Jobs) - float64(c.PayloadBytes)
	}
	r.Figures.add("cpu_percent", 100*(last.cpu-first.cpu).Seconds()/window)
	r.Figures.add("settling_cpu_percent", settling)
	r.Figures.add("wakeups_per_s", float64(last.switches-first.switches)/window)
	r.Figures.add("resident_bytes_per_job", perJob(last.residentMiB*(1<<20), empty.residentMiB*(1<<20)))
	r.Figures.add("heap_bytes_per_job", perJob(last.heap, empty.heap))
	r.Figures.add("hot_jobs", hot)
	r.Figures.add("payload_bytes", float64(c.PayloadBytes))
	r.Figures.add("resident_mib", last.residentMiB)
	r.Figures.add("resident_empty_mib", empty.residentMiB)
	r.Figures.add("disk_bytes_per_job", (last.diskMiB-empty.diskMiB)*(1<<20)/float64(c.Jobs))
	r.Figures.add("puts_per_s", float64(c.Jobs)/put.Seconds())
	r.Targets = []Target{newTarget(r.Figures, "cpu_percent", limitIdleCPU, 0)}
	if c.Ahead*3/2 <= hotWithin {
		r.Targets = append(r.Targets, newMinTarget(r.Figures, "hot_jobs", float64(c.Jobs)))
		if c.Kind != IdleOneShots {
			r.Targets = append(r.Targets, newTarget(r.Figures, "resident_bytes_per_job", limitJobBytes, 0))
		}
	}
	return r, nil
}

func (c *IdleConfig) job(i int, now time.Time, payload []byte) carillon.Job {
	j := carillon.Job{ID: "bench-idle-" + strconv.Itoa(i), Topic: topic, Payload: payload}
	// Due times differ, as those of real jobs do, and even the nearest is a good while ahead.
	due := now.Add(c.Ahead + time.Duration(float64(c.Ahead/2)*float64(i)/float64(c.Jobs))).Truncate(time.Millisecond).UTC()
	switch c.Kind {
	case IdleIntervals:
		j.Schedule, j.Start = "@every 24h", due
	case IdleCron:
		from := now.Add(c.Ahead).UTC()
		j.Schedule, j.Spread = fmt.Sprintf("%d %d %d * * *", from.Second(), from.Minute(), from.Hour()), c.Ahead/2
	default:
		j.Schedule = "@at " + due.Format(carillon.TimeFormat)
	}
	return j
}

func (c *IdleConfig) put(ctx context.Context, e *engine, nc *nats.Conn) (took time.Duration, err error) {
	p, err := newPipe(nc, e.Names)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	payload, began := payloadOf(c.PayloadBytes), time.Now()
	err = p.fill(ctx, 0, c.Jobs, func(i int) carillon.Job { return c.job(i, began, payload) }, func(done int) {
		c.Progress("putting jobs", done, c.Jobs)
	})
	return time.Since(began), err
}

// settled is the factor by which memory must have become less to count as fallen.
const settled = 1.01

// settle waits until the engine's memory has not fallen for a time, and returns the CPU of that time in
// percent of a core.
func (c *IdleConfig) settle(ctx context.Context, e *engine, r *Result, step string, began time.Time, quiet time.Duration) (cpu float64, err error) {
	t := time.NewTicker(min(time.Second, quiet/4+1))
	defer t.Stop()
	least, since := e.usage(), time.Now()
	for {
		u := e.usage()
		if u.residentMiB*settled < least.residentMiB {
			least, since = u, time.Now()
		}
		r.Series["resident_mib"] = append(r.Series["resident_mib"], Point{time.Since(began).Seconds(), u.residentMiB})
		so := time.Since(since)
		c.Progress(step, int(so.Milliseconds()), int(quiet.Milliseconds()))
		if so >= quiet {
			return 100 * (u.cpu - least.cpu).Seconds() / so.Seconds(), nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-t.C:
		}
	}
}

// seen is what can be seen of the engine's process from outside.
type seen struct {
	usage
	switches int     // voluntary context switches of its threads: one for each time that a thread was woken up before
	heap     float64 // bytes of objects on Go's heap, dead or alive
	diskMiB  float64
}

func look(ctx context.Context, e *engine) (s seen, err error) {
	if s.usage = e.usage(); !s.known {
		return s, errors.New("bench: this system does not say what the engine's process uses, or the engine has ended")
	}
	s.diskMiB = dirMiB(filepath.Join(e.dir, "data"))
	threads, err := filepath.Glob("/proc/" + strconv.Itoa(e.cmd.Process.Pid) + "/task/*/status")
	if err != nil {
		return s, fmt.Errorf("bench: %w", err)
	}
	for _, t := range threads {
		n, _ := strconv.Atoi(field(t, "voluntary_ctxt_switches")) // 0 if the thread has ended
		s.switches += n
	}
	s.heap, err = e.metric(ctx, "go_memstats_heap_alloc_bytes")
	return s, err
}

// check checks that all jobs are pending and that nothing was due.
func (c *IdleConfig) check(ctx context.Context, e *engine, nc *nats.Conn) (*Checks, error) {
	status, err := carillon.Connect(nc, carillon.WithNames(e.Names)).Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	checks := &Checks{Expected: c.Jobs, Missing: c.Jobs}
	for _, p := range status.Partitions {
		checks.Missing -= int(p.Jobs[carillon.StatusScheduled])
		checks.Stray += int(p.Outputs)
	}
	return checks, nil
}
