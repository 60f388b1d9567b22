package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/carillon-scheduler/carillon"
)

// ChurnConfig says how RunChurn runs. The zero value of a field is its default.
type ChurnConfig struct {
	Service Service `json:"-"`

	Rate         int           `json:"jobs_due_per_s"` // one-shots; half of them are changed; default 5,000
	Duration     time.Duration `json:"-"`              // whole seconds; default 30 s
	Seconds      int           `json:"duration_s"`     // Duration, as it stands in the result
	Nearest      time.Duration `json:"-"`              // a change is sent at least this long before the job is due; default 50 ms
	Farthest     time.Duration `json:"-"`              // and at most this long; default 500 ms
	NearestMS    float64       `json:"nearest_ms"`     // Nearest, as it stands in the result
	FarthestMS   float64       `json:"farthest_ms"`    // and Farthest
	PayloadBytes int           `json:"payload_bytes"`  // default 200
	Concurrency  int           `json:"concurrency"`    // handlers of the worker; default 64

	Progress func(step string, done, total int) `json:"-"`
}

func (c ChurnConfig) withDefaults() (ChurnConfig, error) {
	var err error
	if c.Service, err = c.Service.withDefaults(); err != nil {
		return c, err
	}
	c.Rate = cmp.Or(c.Rate, 5000)
	c.Duration = cmp.Or(c.Duration, 30*time.Second)
	c.Seconds = int(c.Duration / time.Second)
	if c.Nearest == 0 && c.Farthest == 0 {
		c.Nearest, c.Farthest = 50*time.Millisecond, 500*time.Millisecond
	}
	c.NearestMS, c.FarthestMS = c.Nearest.Seconds()*1000, c.Farthest.Seconds()*1000
	c.PayloadBytes = cmp.Or(c.PayloadBytes, 200)
	c.Concurrency = cmp.Or(c.Concurrency, 64)
	c.Progress = defaultProgress(c.Progress)
	return c, nil
}

// Validate names the first field that cannot be used.
func (c ChurnConfig) Validate() error {
	c, err := c.withDefaults()
	switch {
	case err != nil:
		return err
	case c.Rate < 1 || c.Rate > 1_000_000:
		return fmt.Errorf("bench: Rate is %d, must be 1 to 1,000,000 jobs due a second", c.Rate)
	case c.Duration < time.Second || c.Duration%time.Second != 0:
		return fmt.Errorf("bench: Duration is %s, must be whole seconds", c.Duration)
	case c.Nearest < 0 || c.Nearest > c.Farthest:
		return fmt.Errorf("bench: Nearest is %s, must be 0 to Farthest, %s", c.Nearest, c.Farthest)
	case c.Farthest > c.Duration:
		return fmt.Errorf("bench: Farthest is %s, must not exceed the Duration, %s", c.Farthest, c.Duration)
	case c.PayloadBytes < 2 || c.PayloadBytes > carillon.MaxPayload:
		return fmt.Errorf("bench: PayloadBytes is %d, must be 2 to %d", c.PayloadBytes, carillon.MaxPayload)
	case c.Concurrency < 1 || c.Concurrency > mostHandlers:
		return fmt.Errorf("bench: Concurrency is %d, must be 1 to 100,000", c.Concurrency)
	}
	return nil
}

const (
	// cancelMargin is how long before the due time a cancel must be acknowledged to be certain to win (docs/time.md).
	cancelMargin = 10 * time.Millisecond
	// Jobs that are moved to later are due again after one to three seconds.
	churnLater = 3 * time.Second
)

// RunChurn makes one-shots fire at a fixed rate while every second one of them is deleted, or moved to an
// earlier or a later time, shortly before it is due. The commands are sent at times fixed beforehand,
// whatever their answers. No cancelled fire may come, and everything else must fire exactly once.
//
// A cancel that was acknowledged 10 ms or more before the due time wins, whatever else the reply says. For a
// later one the reply says who won: if last_scheduled is the due time, the job has fired, otherwise it has not.
func RunChurn(ctx context.Context, c ChurnConfig) (r Result, err error) {
	if err := c.Validate(); err != nil {
		return r, err
	}
	if c, err = c.withDefaults(); err != nil {
		return r, err
	}
	r = Result{Workload: "churn", Params: c}
	e, nc, end, err := c.Service.begin(ctx, &r)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, end()) }()
	p, err := newPipe(nc, e.Names)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.close()) }()

	run := runName()
	defer func() { err = errors.Join(err, e.cleanUp(ctx, nc, run)) }() // as in RunLateness
	w, err := e.startWorker(ctx, workerStart{Name: run, Prefix: run + "-", Concurrency: c.Concurrency})
	if err != nil {
		return r, err
	}
	defer w.stop()
	l := newLoad(run+"-", Mix{OneShots: 1}, c.Rate, c.Duration, c.PayloadBytes)
	err = l.put(ctx, carillon.Connect(nc, carillon.WithNames(e.Names)), settle, func(done int) { c.Progress("putting jobs", done, len(l.plan.First)) })
	if err != nil {
		return r, err
	}
	m := churnRun{changes: c.changes(l), latency: newHistogram()}
	m.window, err = e.measureWindow(ctx, nc, l, e.dir, c.Progress, func() error { return c.send(ctx, p, l, m.changes, m.latency) })
	if err != nil {
		return r, err
	}
	if m.counts, err = settleChanges(&l.plan, m.changes); err != nil {
		return r, err
	}
	c.Progress("collecting", 0, 1)
	if err := w.send(&l.plan); err != nil {
		return r, err
	}
	if m.report, err = w.report(); err != nil {
		return r, err
	}
	r.Machine.Load[1] = load1()
	err = m.results(&l.plan, &r)
	return r, err
}

// churnRun is what a run of churn has found.
type churnRun struct {
	changes []change
	latency *hdrhistogram.Histogram // of the changes, µs
	counts  churned
	window  window
	report  workerReport
}

// results adds what a run has found to its result. p is the plan after the changes.
func (m *churnRun) results(p *plan, r *Result) error {
	received, err := decode(m.report.Received)
	if err != nil {
		return err
	}
	changed, err := encode(m.latency)
	if err != nil {
		return err
	}
	sleep, err := encode(m.window.sleep)
	if err != nil {
		return err
	}
	r.Checks = &m.report.Checks
	f := &r.Figures
	f.add("triggers_per_s", float64(received.TotalCount())/(float64(p.To-p.From)/1000)) // also those that were moved beyond the window
	f.add("changes_per_s", float64(len(m.changes))/m.window.took.Seconds())
	f.add("cancelled", float64(m.counts.cancelled))
	f.add("moved_later", float64(m.counts.later))
	f.add("moved_earlier", float64(m.counts.earlier))
	f.add("fired_before_the_change", float64(m.counts.fired))
	f.add("acknowledged_too_late_to_be_sure", float64(m.counts.late))
	f.quantiles("received", received, 50, 90, 99, 99.9, 100)
	f.quantiles("change_latency", m.latency, 50, 99, 99.9, 100)
	f.quantiles("sleep", m.window.sleep, 50, 99, 99.9, 100)
	f.quantiles("round_trip", m.window.round, 50, 99, 100)
	f.quantiles("fsync", m.window.sync, 50, 99, 100)
	if m.window.known {
		f.add("engine_cpu_percent", m.window.cpuPercent())
	}
	r.Histograms = map[string]string{"received_us": m.report.Received, "stored_us": m.report.Stored, "change_latency_us": changed, "sleep_us": sleep}
	return m.report.failure()
}

// change is one command that cancels or moves a job.
type change struct {
	job  int
	at   time.Time // when to send it
	due  int64     // when the job is due until then, unix ms
	move int64     // when it is due afterwards, unix ms; 0: it is cancelled

	acked time.Time
	reply carillon.JobReply
	err   error
}

// changes plans a change for every second job, except those due too early in the window. The changes are in order of time.
func (c *ChurnConfig) changes(l *load) (changes []change) {
	for i := 1; i < len(l.plan.First); i += 2 {
		if l.plan.First[i] <= c.Farthest.Milliseconds()+1 {
			continue
		}
		ahead := c.Nearest + rand.N(c.Farthest-c.Nearest+1)
		v := change{job: i, due: l.plan.From + l.plan.First[i]}
		v.at = time.UnixMilli(v.due).Add(-ahead)
		switch i / 2 % 4 {
		case 0:
			v.move = v.due + churnLater.Milliseconds()/3 + rand.N(churnLater.Milliseconds()*2/3)
		case 1:
			v.move = v.due - 1 - rand.N(ahead.Milliseconds()+1)
		}
		changes = append(changes, v)
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.at.UnixNano(), b.at.UnixNano()) })
	return changes
}

// send sends each change at its time, and waits for the answers and for the end of the window.
func (c *ChurnConfig) send(ctx context.Context, p *pipe, l *load, changes []change, latency *hdrhistogram.Histogram) error {
	err := sendOnTime(ctx, len(changes), func(i int) time.Time { return changes[i].at }, func(i int, at time.Time) error {
		v := &changes[i]
		c.Progress("measuring", i, len(changes))
		job := l.job(v.job)
		verb, body := carillon.VerbDelete, []byte(nil)
		if v.move != 0 {
			job.Schedule = "@at " + time.UnixMilli(v.move).UTC().Format(carillon.TimeFormat)
			verb, body = carillon.VerbPut, carillon.AppendPut(nil, &job, nil)
		}
		return p.send(verb, job.ID, body, func(a answer) {
			v.acked = time.Now()
			record(latency, int64(v.acked.Sub(at)))
			if v.err = a.err; v.err == nil {
				v.reply, v.err = carillon.ParseJobReply(a.body)
			}
		})
	})
	if err == nil {
		err = p.drain(ctx)
	}
	if err != nil {
		return err
	}
	return waitUntil(ctx, c.Progress, "measuring", time.UnixMilli(l.plan.To))
}

// churned counts changes by their kind and by their outcome.
type churned struct {
	cancelled, later, earlier int
	fired                     int // the job fired before the change
	late                      int // acknowledged less than 10 ms before the due time
}

// settleChanges makes the plan what it must be after the changes.
func settleChanges(p *plan, changes []change) (n churned, err error) {
	p.Then = make([]int64, len(p.First))
	for i := range p.Then {
		p.Then[i] = -1
	}
	for _, v := range changes {
		if v.err != nil {
			return n, fmt.Errorf("bench: changing %s%d: %w", p.Prefix, v.job, v.err)
		}
		sure := !v.acked.Add(cancelMargin).After(time.UnixMilli(v.due))
		fired := !v.reply.LastScheduled.IsZero() && v.reply.LastScheduled.UnixMilli() == v.due
		n.late += bit(!sure)
		n.fired += bit(fired)
		if sure || !fired {
			p.First[v.job] = -1
		}
		switch {
		case v.move == 0:
			n.cancelled++
			continue
		case v.move > v.due:
			n.later++
		default:
			n.earlier++
		}
		// No version fires at or before a time that was fired under the same id.
		if v.move > v.due || !fired {
			p.Then[v.job] = v.move - p.From
			p.To = max(p.To, v.move+1)
		}
	}
	return n, nil
}
