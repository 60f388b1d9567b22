package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
)

// RecoveryConfig says how RunRecovery runs. The zero value of a field is its default.
type RecoveryConfig struct {
	Service      Service `json:"-"`              // one that is started for the run
	Jobs         int     `json:"jobs"`           // recurring jobs present; default 100,000
	Rate         int     `json:"triggers_per_s"` // of all jobs together; default 1,000
	Kills        int     `json:"kills"`          // default 3
	Fill         bool    `json:"fill"`           // fill every stream first, see RunRecovery
	PayloadBytes int     `json:"payload_bytes"`  // default 200

	Progress func(step string, done, total int) `json:"-"`
}

func (c RecoveryConfig) withDefaults() (RecoveryConfig, error) {
	var err error
	if c.Service, err = c.Service.withDefaults(); err != nil {
		return c, err
	}
	c.Jobs = cmp.Or(c.Jobs, 100_000)
	c.Rate = cmp.Or(c.Rate, 1000)
	c.Kills = cmp.Or(c.Kills, 3)
	c.PayloadBytes = cmp.Or(c.PayloadBytes, 200)
	c.Progress = defaultProgress(c.Progress)
	return c, nil
}

// Validate names the first field that cannot be used.
func (c RecoveryConfig) Validate() error {
	c, err := c.withDefaults()
	switch {
	case err != nil:
		return err
	case c.Service.Server != "" || c.Service.NATS != "":
		return errors.New("bench: recovery kills the engine, so it must be one of its own")
	case c.Jobs < c.Rate:
		return fmt.Errorf("bench: %d jobs cannot make %d triggers a second: each is due once a second at most", c.Jobs, c.Rate)
	case c.Rate < 10 || c.Jobs < 100: // each partition must have some jobs, and fire now and then
		return fmt.Errorf("bench: %d jobs and %d triggers a second are too few: 100 and 10 at least", c.Jobs, c.Rate)
	case c.Kills < 1:
		return fmt.Errorf("bench: Kills is %d, must be 1 or more", c.Kills)
	case c.PayloadBytes < 2 || c.PayloadBytes > carillon.MaxPayload:
		return fmt.Errorf("bench: PayloadBytes is %d, must be 2 to %d", c.PayloadBytes, carillon.MaxPayload)
	}
	return nil
}

// limitFirst is how soon after the process was started the first trigger must come, s; 0: there is no limit
// for so many jobs.
func limitFirst(jobs int) float64 {
	switch {
	case jobs <= 100_000:
		return 2
	case jobs <= 1_000_000:
		return 3
	}
	return 0
}

// RunRecovery kills an engine with kill -9 while it fires, starts it again on the same directory, and measures
// the time from just before exec until a client has received the first trigger that was stored after the kill,
// whenever that was due. It reports the median and the worst of the kills, and the least that streams and local
// log held. It checks that the output numbers go on over all kills without a gap or a repeat.
//
// With Fill every output stream holds as much as its default retention allows (nats-server may read all of it
// at a start), and the log as many updates of jobs as fit, or as many as there are between two checkpoints.
func RunRecovery(ctx context.Context, c RecoveryConfig) (r Result, err error) {
	if err := c.Validate(); err != nil {
		return r, err
	}
	if c, err = c.withDefaults(); err != nil {
		return r, err
	}
	r = Result{Workload: "recovery", Params: c}
	e, err := c.Service.open(ctx)
	if err != nil {
		return r, err
	}
	r.Machine = thisMachine(e.dir, e.sync())
	defer func() { err = errors.Join(err, e.close()) }()

	m := &recovery{RecoveryConfig: c}
	var runs []recovered
	for k := range c.Kills {
		if err := m.prepare(ctx, e, k == 0); err != nil {
			return r, err
		}
		c.Progress("killing", k, c.Kills)
		run, err := c.killAndStart(ctx, e)
		if err != nil {
			return r, err
		}
		run.filledMiB = m.filledMiB
		runs = append(runs, run)
	}
	r.Machine.Load[1] = load1()
	r.Figures.add("puts_per_s", float64(c.Jobs)/m.puts.Seconds())
	r.Figures.recovered("ready", runs, func(r recovered) time.Duration { return r.ready })
	r.Figures.recovered("first_stored", runs, func(r recovered) time.Duration { return r.stored })
	r.Figures.recovered("first_trigger", runs, func(r recovered) time.Duration { return r.received })
	r.Figures.recovered("caught_up", runs, func(r recovered) time.Duration { return r.caughtUp })
	least := func(name string, of func(recovered) float64) {
		v := of(runs[0])
		for _, run := range runs {
			v = min(v, of(run))
		}
		r.Figures.add(name+"_min_mib", v)
	}
	least("log", func(r recovered) float64 { return r.logMiB })
	if c.Fill { // a checkpoint may have cut the log before the kill
		least("log_filled", func(r recovered) float64 { return r.filledMiB })
	}
	least("outputs", func(r recovered) float64 { return r.outMiB })
	least("local_log", func(r recovered) float64 { return r.localMiB })
	r.Checks = &Checks{}
	for _, run := range runs {
		r.Checks.add(run.checks)
	}
	if limit := limitFirst(c.Jobs); limit > 0 {
		r.Targets = []Target{newTarget(r.Figures, "first_trigger_max_s", limit, 0)}
	}
	return r, nil
}

// recovery is a run.
type recovery struct {
	RecoveryConfig
	start time.Time     // from which the jobs' intervals count
	round int           // updates of all jobs so far
	puts  time.Duration // how long it took to put all jobs

	filledMiB float64 // the most that the log was seen to hold when it was last filled
}

// prepare puts the jobs, and with Fill it fills the streams. After the first kill everything is there already,
// except for the log, which checkpoints have cut.
func (c *recovery) prepare(ctx context.Context, e *engine, first bool) (err error) {
	nc, err := e.Connect(e.url)
	if err != nil {
		return fmt.Errorf("bench: connect to %s: %w", e.url, err)
	}
	defer nc.Close()
	p, err := newPipe(nc, e.Names)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if first {
		began := time.Now()
		c.start = began.Truncate(time.Millisecond)
		err := p.fill(ctx, 0, c.Jobs, c.jobs(), func(done int) { c.Progress("putting jobs", done, c.Jobs) })
		if err != nil {
			return err
		}
		c.puts = time.Since(began)
		if c.Fill {
			if err := c.fillOutputs(ctx, carillon.Connect(nc, carillon.WithNames(e.Names)), nc, e); err != nil {
				return err
			}
		}
	}
	if c.Fill {
		return c.fillLog(ctx, p, nc, e)
	}
	return nil
}

// jobs makes the jobs so that all of them together make Rate triggers a second, from when the first was put.
// Each round has a payload of its own, so that each put changes the job.
func (c *recovery) jobs() func(i int) carillon.Job {
	every := (time.Duration(c.Jobs) * time.Second / time.Duration(c.Rate)).Truncate(time.Millisecond)
	start, payload := c.start.Add(-every), payloadOf(c.PayloadBytes)
	copy(payload[1:len(payload)-1], strconv.Itoa(c.round))
	return func(i int) carillon.Job {
		return carillon.Job{
			ID: "bench-recovery-" + strconv.Itoa(i), Topic: topic, Payload: payload,
			Schedule: "@every " + every.String(), Start: start.Add(every / time.Duration(c.Jobs) * time.Duration(i)).Truncate(time.Millisecond),
		}
	}
}

// The streams are filled by jobs that fire as often as the machine can bear.
const (
	fillJobs  = 400
	fillEvery = 20 * time.Millisecond
	fillShare = 0.95 // a stream with this share of its limit counts as full
)

// fillOutputs makes jobs of the same payload fire until every output stream has reached its retention.
func (c *RecoveryConfig) fillOutputs(ctx context.Context, client *carillon.Client, nc *nats.Conn, e *engine) (err error) {
	jobs := func(yield func(carillon.Job) bool) {
		for i := range fillJobs {
			job := carillon.Job{ID: "bench-fill-" + strconv.Itoa(i), Topic: topic, Payload: payloadOf(c.PayloadBytes), Schedule: "@every " + fillEvery.String()}
			if !yield(job) {
				return
			}
		}
	}
	if err := putJobs(ctx, client, jobs, nil); err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	for full := 0; full < e.partitions; {
		full = 0
		var held, most int64
		for p := range e.partitions {
			s, err := js.Stream(ctx, e.Names.OutStream(p))
			if err != nil {
				return fmt.Errorf("bench: filling: %w", err)
			}
			info := s.CachedInfo()
			held, most = held+int64(info.State.Bytes), most+info.Config.MaxBytes
			if float64(info.State.Bytes) >= fillShare*float64(info.Config.MaxBytes) {
				full++
			}
		}
		c.Progress("filling output streams", int(held>>20), int(most>>20))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
	_, err = client.DeleteWhere(ctx, carillon.Selection{Prefix: "bench-fill-"})
	return err
}

// fillPart is how many jobs are updated between two looks at the log.
const fillPart = 10_000

// fillCuts is how often checkpoints may cut the log while it is being filled.
const fillCuts = 5

// fillLog updates jobs until the log has no room for another part of the updates. If a checkpoint cuts the log before
// that, the log never holds more than it did then, and is filled up to that again.
func (c *recovery) fillLog(ctx context.Context, p *pipe, nc *nats.Conn, e *engine) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	part := min(c.Jobs, fillPart)
	var before, grown, most int64
	cuts := 0
	c.filledMiB = 0
	for n := 0; ; n++ {
		s, err := js.Stream(ctx, e.Names.LogStream())
		if err != nil {
			return fmt.Errorf("bench: filling: %w", err)
		}
		held, room := int64(s.CachedInfo().State.Bytes), s.CachedInfo().Config.MaxBytes
		c.Progress("filling the log", int(held>>10), int(room>>10))
		c.filledMiB = max(c.filledMiB, float64(held)/(1<<20))
		if n > 0 && held < before {
			cuts, most = cuts+1, max(most, before)
		} else if n > 0 {
			grown = held - before
		}
		if cuts > 0 {
			room = most
		}
		if float64(held+grown) > fillShare*float64(room) || cuts > fillCuts {
			return nil
		}
		before = held
		c.round++
		from := n * part % (c.Jobs - part + 1)
		if err := p.fill(ctx, from, from+part, c.jobs(), func(int) {}); err != nil {
			return err
		}
	}
}

// recovered is the outcome of one kill and start; times count from just before exec.
type recovered struct {
	ready, stored, received, caughtUp time.Duration

	logMiB, filledMiB, outMiB, localMiB float64
	checks                              Checks
}

// recovered adds the median and the worst of a time after some kills.
func (f *Figures) recovered(name string, runs []recovered, of func(recovered) time.Duration) {
	var all []float64
	for _, run := range runs {
		all = append(all, of(run).Seconds())
	}
	f.add(name+"_s", median(all)) // which sorts them
	f.add(name+"_max_s", all[len(all)-1])
}

// caughtUpLateness is how late a partition's triggers are when it is no longer behind.
const caughtUpLateness = 50 * time.Millisecond

func (c *RecoveryConfig) killAndStart(ctx context.Context, e *engine) (r recovered, err error) {
	ends, err := c.ends(ctx, e, &r)
	if err != nil {
		return r, err
	}
	if err := e.kill(); err != nil {
		return r, err
	}
	r.localMiB = dirMiB(filepath.Join(e.dir, "data", "log")) + dirMiB(filepath.Join(e.dir, "data", "jobs"))
	listen := strings.TrimPrefix(e.url, "nats://")
	killed := time.Now()

	var began time.Time
	var watching sync.WaitGroup
	var seen watched
	var watchErr error
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	old := *e // because start writes to e
	err = e.start(ctx, listen, func(t time.Time) {
		began = t
		watching.Go(func() { seen, watchErr = c.watch(ctx, &old, killed) })
	})
	r.ready = time.Since(began)
	if err != nil {
		cancel()
	}
	watching.Wait()
	if err := errors.Join(err, watchErr); err != nil {
		return r, err
	}
	r.stored, r.received, r.caughtUp = seen.stored.Sub(began), seen.received.Sub(began), seen.caughtUp.Sub(began)
	return r, c.follow(ctx, e, ends, &r.checks)
}

// ends returns the last sequence of each output stream, and notes how much all of them and the log hold.
func (c *RecoveryConfig) ends(ctx context.Context, e *engine, r *recovered) ([]uint64, error) {
	nc, err := e.Connect(e.url)
	if err != nil {
		return nil, fmt.Errorf("bench: connect to %s: %w", e.url, err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	ends := make([]uint64, e.partitions)
	for p := range ends {
		s, err := js.Stream(ctx, e.Names.OutStream(p))
		if err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
		state := s.CachedInfo().State
		ends[p] = state.LastSeq
		r.outMiB += float64(state.Bytes) / (1 << 20)
	}
	s, err := js.Stream(ctx, e.Names.LogStream())
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	r.logMiB = float64(s.CachedInfo().State.Bytes) / (1 << 20)
	return ends, nil
}

func dirMiB(dir string) float64 {
	var bytes int64
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error { // files come and go
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				bytes += info.Size()
			}
		}
		return nil
	})
	return float64(bytes) / (1 << 20)
}

// watched is what a client saw of an engine that came back.
type watched struct{ stored, received, caughtUp time.Time }

// watch connects as soon as the engine accepts connections, and reads the output streams from the kill on, until
// every partition is on time again.
func (c *RecoveryConfig) watch(ctx context.Context, e *engine, killed time.Time) (w watched, err error) {
	var nc *nats.Conn
	for {
		if nc, err = e.Connect(e.url); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return w, fmt.Errorf("bench: the engine did not come back: %w", err)
		case <-time.After(2 * time.Millisecond):
		}
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return w, fmt.Errorf("bench: %w", err)
	}
	var mu sync.Mutex
	behind := e.partitions
	done := make(chan struct{})
	for p := range e.partitions {
		consumer, err := js.OrderedConsumer(ctx, e.Names.OutStream(p), jetstream.OrderedConsumerConfig{
			DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &killed,
		})
		if err != nil {
			return w, fmt.Errorf("bench: %w", err)
		}
		onTime := false
		consuming, err := consumer.Consume(func(m jetstream.Msg) {
			now := time.Now()
			t, err := e.Names.ParseTrigger(m.Subject(), m.Headers(), m.Data())
			meta, err2 := m.Metadata()
			if err != nil || err2 != nil {
				return // an event
			}
			mu.Lock()
			defer mu.Unlock()
			if w.received.IsZero() {
				w.received = now
			}
			if w.stored.IsZero() || meta.Timestamp.Before(w.stored) {
				w.stored = meta.Timestamp
			}
			if !onTime && now.Sub(t.Scheduled) < caughtUpLateness {
				onTime = true
				if behind--; behind == 0 {
					w.caughtUp = now
					close(done)
				}
			}
		})
		if err != nil {
			return w, fmt.Errorf("bench: %w", err)
		}
		defer consuming.Stop()
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
	mu.Lock()
	defer mu.Unlock()
	if behind > 0 {
		return w, fmt.Errorf("bench: %d partitions did not catch up: %w", behind, ctx.Err())
	}
	return w, nil
}

// followBefore is how many messages before the kill are read of each output stream: what fired then must not fire again.
const followBefore = 10_000

// follow reads the output streams from before the kill on and checks that numbers go on, and that nothing fired again.
func (c *RecoveryConfig) follow(ctx context.Context, e *engine, ends []uint64, checks *Checks) error {
	nc, err := e.Connect(e.url)
	if err != nil {
		return fmt.Errorf("bench: connect to %s: %w", e.url, err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	for p, end := range ends {
		var before uint64
		triggers := make(map[string]struct{})
		err := readStream(ctx, js, e.Names.OutStream(p), from{seq: max(end, followBefore+1) - followBefore}, func(m jetstream.Msg) {
			number, err := strconv.ParseUint(m.Headers().Get(carillon.HeaderOutput), 10, 64)
			meta, err2 := m.Metadata()
			if err != nil || err2 != nil {
				return // foreign
			}
			id := m.Headers().Get(carillon.HeaderTrigger)
			if meta.Sequence.Stream < end { // checked already, after an earlier kill
				before = max(before, number)
				triggers[id] = struct{}{}
				return
			}
			switch {
			case before == 0 || number == before+1:
			case number <= before:
				checks.Duplicate++
			default:
				checks.Gaps += int(number - before - 1)
			}
			before = max(before, number)
			if id == "" {
				return // an event
			}
			checks.Expected++
			if _, again := triggers[id]; again {
				checks.Duplicate++
			}
			triggers[id] = struct{}{}
			if _, due, forced, ok := carillon.SplitTriggerID(id); ok && !forced && meta.Timestamp.UnixMilli() < due {
				checks.Early++
			}
		})
		if err != nil {
			return fmt.Errorf("bench: read %s: %w", e.Names.OutStream(p), err)
		}
	}
	return nil
}
