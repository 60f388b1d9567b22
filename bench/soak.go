package bench

import (
	"cmp"
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/cespare/xxhash/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
)

// SoakConfig says how RunSoak runs. The zero value of a field is its default.
type SoakConfig struct {
	Service       Service  `json:"-"`
	WorkerCommand []string `json:"-"` // as in LatenessConfig

	Rate         int           `json:"triggers_per_s"` // half of recurring jobs, half of one-shots; default 1,000
	Duration     time.Duration `json:"-"`              // whole rounds; default an hour
	Seconds      int           `json:"duration_s"`     // Duration, as it stands in the result
	Round        time.Duration `json:"-"`              // what is judged and told at once, whole seconds; default a minute
	RoundSeconds int           `json:"round_s"`        // Round, as it stands in the result
	KillEvery    time.Duration `json:"-"`              // kill -9 and start the engine; 0: never
	KillSeconds  float64       `json:"kill_every_s,omitempty"`
	PayloadBytes int           `json:"payload_bytes"` // default 200
	Concurrency  int           `json:"concurrency"`   // handlers of the worker; default 64

	// Report, where there is one, is told of each round.
	Report func(SoakRound) `json:"-"`
}

func (c SoakConfig) withDefaults() (SoakConfig, error) {
	var err error
	if c.Service, err = c.Service.withDefaults(); err != nil {
		return c, err
	}
	if len(c.WorkerCommand) == 0 {
		exe, err := os.Executable()
		if err != nil {
			return c, fmt.Errorf("bench: %w", err)
		}
		c.WorkerCommand = []string{exe, "bench", "worker", "--server"}
	}
	if c.Rate == 0 {
		c.Rate = 1000
	}
	if c.Duration == 0 {
		c.Duration = time.Hour
	}
	if c.Round == 0 {
		c.Round = time.Minute
	}
	c.Seconds, c.RoundSeconds, c.KillSeconds = int(c.Duration/time.Second), int(c.Round/time.Second), c.KillEvery.Seconds()
	if c.PayloadBytes == 0 {
		c.PayloadBytes = 200
	}
	if c.Concurrency == 0 {
		c.Concurrency = 64
	}
	if c.Report == nil {
		c.Report = func(SoakRound) {}
	}
	return c, nil
}

// Validate names the first field that cannot be used.
func (c SoakConfig) Validate() error {
	c, err := c.withDefaults()
	switch {
	case err != nil:
		return err
	case c.Rate < 100 || c.Rate > 100_000:
		return fmt.Errorf("bench: Rate is %d, must be 100 to 100,000 triggers a second", c.Rate)
	case c.Round < 2*time.Second || c.Round%time.Second != 0:
		return fmt.Errorf("bench: Round is %s, must be whole seconds, 2 or more", c.Round)
	case c.Duration < c.Round || c.Duration%c.Round != 0:
		return fmt.Errorf("bench: Duration is %s, must be whole rounds of %s", c.Duration, c.Round)
	case c.KillEvery < 0:
		return fmt.Errorf("bench: KillEvery %s is negative", c.KillEvery)
	case c.KillEvery > 0 && c.Service.Server != "":
		return errors.New("bench: KillEvery kills the engine, so it must be one of its own")
	case c.PayloadBytes < 3 || c.PayloadBytes > carillon.MaxPayload:
		return fmt.Errorf("bench: PayloadBytes is %d, must be 3 to %d", c.PayloadBytes, carillon.MaxPayload)
	case c.Concurrency < 1:
		return fmt.Errorf("bench: Concurrency is %d, must be 1 or more", c.Concurrency)
	}
	return nil
}

// SoakRound is what came of one round.
type SoakRound struct {
	Since       time.Duration // the end of the round since the beginning of the first
	Triggers    int           // received
	P50, P99    float64       // ms, due to received
	Max         float64       // ms
	Commands    int           // answered
	CommandP99  float64       // ms
	ResidentMiB float64
	DiskMiB     float64 // of the data directory
	CPU         float64 // percent of a core
	Killed      bool    // the engine, or it was still recovering
	Checks      Checks
	Missing     []string // the first few of the triggers that are, <job>@<due unix ms>
}

// String is one line.
func (s SoakRound) String() string {
	notes := ""
	if s.Killed {
		notes = ", killed"
	}
	if len(s.Missing) > 0 {
		notes += ", missing " + strings.Join(s.Missing, " ")
	}
	return fmt.Sprintf("%s: %d triggers, received p50 %s p99 %s max %s ms, early %d missing %d duplicate %d gaps %d stray %d, %d commands p99 %s ms, %.0f MiB resident, %.0f MiB on disk, CPU %.0f %%%s",
		s.Since, s.Triggers, number(s.P50), number(s.P99), number(s.Max), s.Checks.Early, s.Checks.Missing, s.Checks.Duplicate, s.Checks.Gaps, s.Checks.Stray,
		s.Commands, number(s.CommandP99), s.ResidentMiB, s.DiskMiB, s.CPU, notes)
}

// RunSoak has an engine under mixed load for a long time, and judges every round of it as RunLateness does.
//
// Half of the triggers are of recurring jobs that live as long as the run. The others are of one-shots: each
// is put one round before it is due and deleted one round after, and of sixteen one is cancelled shortly
// before, one is moved, one is replaced, one is paused over its due time and one resumed in time. A few jobs
// are fired by command. All output streams are read, and their numbers must go on without a gap or a repeat.
//
// A fire that a command was to prevent, but was not acknowledged in time to be sure, may come or not. When
// the engine is killed, commands are repeated until they are answered.
//
// A run that is ended early returns the figures of the rounds so far with the context's error.
func RunSoak(ctx context.Context, c SoakConfig) (r Result, err error) {
	if err := c.Validate(); err != nil {
		return r, err
	}
	if c, err = c.withDefaults(); err != nil {
		return r, err
	}
	r = Result{Workload: "soak", Params: c}
	e, err := c.Service.open(ctx)
	if err != nil {
		return r, err
	}
	r.Machine = thisMachine(e.dir)
	defer func() { err = errors.Join(err, e.close()) }()
	nc, err := e.Connect(e.url)
	if err != nil {
		return r, fmt.Errorf("bench: connect to %s: %w", e.url, err)
	}
	defer nc.Close()
	r.Machine.NATS = nc.ConnectedServerVersion()
	nc.SetErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}) // a kill is no news
	run := "bench-" + strconv.FormatInt(time.Now().UnixMilli(), 36)
	w, err := startWorker(c.WorkerCommand, e, workerStart{Name: run, Concurrency: c.Concurrency, Soak: true})
	if err != nil {
		return r, err
	}
	defer w.stop()
	defer func() { err = errors.Join(err, e.forget(ctx, nc, run)) }()

	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s := &soak{
		SoakConfig: c, engine: e, nc: nc, worker: w,
		client: carillon.Connect(nc, carillon.WithNames(e.Names), carillon.WithTimeout(soakTry)), run: run, fail: fail,
		payload: payloadOf(c.PayloadBytes), room: make(chan struct{}, soakWindow), commands: newHistogram(), result: &r,
		received: newHistogram(), afterKill: newHistogram(), allCommands: newHistogram(),
	}
	err = s.carryOut(ctx)
	if err != nil && context.Cause(ctx) != nil {
		err = context.Cause(ctx)
	}
	fail(err)
	s.work.Wait()
	r.Machine.Load[1] = load1()
	return r, errors.Join(err, s.sum())
}

const (
	soakWindow   = 4096                   // commands under way at once
	soakForced   = 50                     // one job fired by command for so many one-shots
	soakNearest  = 100 * time.Millisecond // between a change and the due time at the least
	soakFarthest = 5 * time.Second        // and at most, or a quarter of a round
	soakTry      = 6 * time.Second        // of the client, which asks three times in that
	soakRetry    = 5 * time.Minute        // how long a command is repeated
	soakRecovers = 10 * time.Second       // how long after a kill lateness is told apart
)

// soak is a run.
type soak struct {
	SoakConfig
	client  *carillon.Client
	nc      *nats.Conn
	worker  *workerProcess
	run     string
	payload []byte
	begin   time.Time // of round 0
	base    *plan     // of the recurring jobs
	fail    context.CancelCauseFunc
	work    sync.WaitGroup
	room    chan struct{}
	result  *Result

	process sync.Mutex // the engine is not killed while it is held
	engine  *engine
	kills   []time.Time
	ready   time.Duration // the longest time from a kill until the engine was ready again

	mu       sync.Mutex
	commands *hdrhistogram.Histogram // µs, of this round

	streams                          []soakStream        // by partition
	ids, idsBefore                   map[uint64]struct{} // hashes of the triggers' ids read in this round and in the one before
	received, afterKill, allCommands *hdrhistogram.Histogram
	rounds                           []SoakRound
	cpu                              time.Duration // of the engine's process when it was looked at
	looked                           time.Time
}

// soakStream is how far an output stream has been read.
type soakStream struct{ seq, output uint64 }

// soakBatch is the one-shots of a round, and its jobs that are fired by command.
type soakBatch struct {
	round int
	// By one-shot, and by job fired by command: the service has it.
	put, putForced []atomic.Bool
	mu             sync.Mutex // guards the plans
	shots, forced  plan
	ops            []soakOp     // in order of time
	open           atomic.Int64 // commands to come that have to do with a plan
}

// at is when a round begins.
func (s *soak) at(round int) time.Time { return s.begin.Add(time.Duration(round) * s.Round) }

func (s *soak) carryOut(ctx context.Context) error {
	if err := s.ends(ctx); err != nil {
		return err
	}
	if err := s.putRecurring(ctx); err != nil {
		return err
	}
	rounds := int(s.Duration / s.Round)
	if s.KillEvery > 0 {
		s.work.Go(func() { s.killer(ctx) })
	}
	batches := make(chan *soakBatch, rounds)
	s.work.Go(func() {
		for round := range rounds { // a round's jobs are put in the one before
			if sleepUntil(ctx, s.at(round-1)) != nil {
				return
			}
			b := s.newBatch(round)
			s.work.Go(func() { s.drive(ctx, b) })
			batches <- b
		}
	})
	for range rounds {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b := <-batches:
			if err := s.judgeRound(ctx, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// sleepUntil waits until a time.
func sleepUntil(ctx context.Context, t time.Time) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(t)):
		return nil
	}
}

// putRecurring puts the jobs that live as long as the run: intervals, and every fourth one of cron.
func (s *soak) putRecurring(ctx context.Context) error {
	n := s.Rate / 2
	s.begin = time.Now().Truncate(time.Second).Add(s.Round + 2*time.Second + time.Duration(n/5000)*time.Second)
	s.base = &plan{Prefix: s.run + "-recurring-", First: make([]int64, n), Every: make([]int64, n)}
	jobs := func(yield func(carillon.Job) bool) {
		for i := range n {
			s.base.First[i], s.base.Every[i] = int64(i)*everySecond/int64(n), everySecond
			job := carillon.Job{
				// fire_all, so that every fire is expected, however long the engine was away.
				ID: s.base.Prefix + strconv.Itoa(i), Topic: topic, Payload: s.payload, Misfire: carillon.FireAll,
				Schedule: "@every 1s", Start: s.begin.Add(time.Duration(s.base.First[i]) * time.Millisecond).UTC(),
			}
			if i%4 == 3 {
				job.Schedule, job.Spread, job.Start = "* * * * * *", time.Second, s.begin.UTC()
			}
			if !yield(job) {
				return
			}
		}
	}
	var failed error
	err := s.client.PutAll(ctx, jobs, putWindow, func(j carillon.Job, r carillon.JobReply, err error) {
		if err != nil {
			failed = cmp.Or(failed, fmt.Errorf("bench: put %s: %w", j.ID, err))
			return
		}
		if i, ok := s.base.index(j.ID); ok && i%4 == 3 {
			s.base.First[i] = r.Next.UnixMilli() - s.begin.UnixMilli()
		}
	})
	return cmp.Or(failed, err)
}

// newBatch plans a batch: nothing of it has been carried out.
func (s *soak) newBatch(round int) *soakBatch {
	b := &soakBatch{round: round}
	group := func(name string, n int) plan {
		p := plan{
			Prefix: fmt.Sprintf("%s-%s%d-", s.run, name, round), From: s.at(round).UnixMilli(), To: s.at(round + 1).UnixMilli(),
			First: make([]int64, n), Every: make([]int64, n), Then: make([]int64, n), May: make([]int64, n),
		}
		for i := range n {
			p.First[i], p.Then[i], p.May[i] = int64(i)*s.Round.Milliseconds()/int64(n), -1, -1
		}
		return p
	}
	n := (s.Rate - s.Rate/2) * s.RoundSeconds
	b.shots, b.forced = group("shot", n), group("forced", max(n/soakForced, 1))
	b.put, b.putForced = make([]atomic.Bool, n), make([]atomic.Bool, len(b.forced.First))
	b.forced.Forced = true
	b.ops = s.ops(b)
	for _, op := range b.ops {
		b.open.Add(int64(bit(op.kind.planned())))
	}
	return b
}

// soakKind is what is done with a job of a batch.
type soakKind uint8

const (
	soakPut soakKind = iota
	soakDelete
	soakCancel
	soakMove
	soakReplace
	soakPauseOver // its due time
	soakPauseShortly
	soakPutForced
	soakForce
	soakDeleteForced
)

// planned tells whether a round can only be judged when that is done.
func (k soakKind) planned() bool { return k != soakDelete && k != soakDeleteForced }

// soakOp is one command, or a pause and its resume.
type soakOp struct {
	at   int64 // unix ns
	job  int32
	kind soakKind
}

// soakChanges are what happens to each of sixteen one-shots shortly before it is due.
var soakChanges = [16]soakKind{1: soakCancel, 4: soakMove, 7: soakReplace, 10: soakPauseOver, 13: soakPauseShortly}

// ops is all that is done with a batch, in order of time.
func (s *soak) ops(b *soakBatch) (ops []soakOp) {
	add := func(at time.Time, job int, kind soakKind) { ops = append(ops, soakOp{at.UnixNano(), int32(job), kind}) }
	farthest := min(soakFarthest, s.Round/4)
	for i := range b.put {
		due := time.UnixMilli(s.due(b, i))
		add(due.Add(-s.Round), i, soakPut)
		if kind := soakChanges[i%16]; kind != soakPut && due.Sub(s.at(b.round)) > farthest {
			add(due.Add(-soakNearest-rand.N(farthest-soakNearest)), i, kind)
		}
		add(due.Add(2*s.Round), i, soakDelete)
	}
	for i := range b.putForced {
		at := s.at(b.round).Add(time.Duration(i) * s.Round / time.Duration(len(b.putForced)))
		add(at.Add(-s.Round), i, soakPutForced)
		add(at, i, soakForce)
		add(at.Add(2*s.Round), i, soakDeleteForced)
	}
	slices.SortFunc(ops, func(a, b soakOp) int { return cmp.Compare(a.at, b.at) })
	return ops
}

// drive carries out what is done with a batch, each command at its time, whatever the answers.
func (s *soak) drive(ctx context.Context, b *soakBatch) {
	err := pace(ctx, len(b.ops), func(i int) time.Time { return time.Unix(0, b.ops[i].at) }, func(i int, _ time.Time) error {
		select {
		case s.room <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		s.work.Go(func() {
			defer func() { <-s.room }()
			if err := s.do(ctx, b, b.ops[i]); err != nil && ctx.Err() == nil {
				s.fail(fmt.Errorf("bench: round %d, job %d: %w", b.round, b.ops[i].job, err))
			}
		})
		return nil
	})
	if err != nil && ctx.Err() == nil {
		s.fail(err)
	}
}

// do carries out one command. What it changes of the batch's plan it knows once it is answered.
func (s *soak) do(ctx context.Context, b *soakBatch, op soakOp) error {
	i := int(op.job)
	shot, forced := b.shots.Prefix+strconv.Itoa(i), b.forced.Prefix+strconv.Itoa(i)
	due := s.due(b, i)
	if op.kind.planned() {
		defer b.open.Add(-1)
	}
	switch op.kind {
	case soakPut:
		err := s.put(ctx, s.shot(shot, due, s.payload))
		b.put[i].Store(err == nil)
		return err
	case soakDelete:
		if err := b.settled(ctx); err != nil {
			return err
		}
		return s.delete(ctx, shot)
	case soakPutForced:
		err := s.put(ctx, carillon.Job{ID: forced, Topic: topic, Payload: s.payload})
		b.putForced[i].Store(err == nil)
		return err
	case soakDeleteForced:
		if err := b.settled(ctx); err != nil {
			return err
		}
		return s.delete(ctx, forced)
	}
	if op.kind == soakForce {
		if !b.putForced[i].Load() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.forced.First[i] = -1
			return nil
		}
		return s.persist(ctx, func(request string) error {
			_, err := s.client.Fire(ctx, forced, carillon.RequestID(request))
			return err
		})
	}
	if !b.put[i].Load() {
		return nil // the put waits for an engine that was killed: this job stays as it is
	}
	switch op.kind {
	case soakCancel:
		err := s.delete(ctx, shot)
		b.prevented(i, due)
		return err
	case soakMove:
		to := due + 1 + rand.N(s.Round.Milliseconds()/2-1)
		err := s.put(ctx, s.shot(shot, to, s.payload))
		b.prevented(i, due)
		b.moved(i, to)
		return err
	case soakReplace: // due as before
		payload := slices.Clone(s.payload)
		payload[1] = 'y'
		return s.put(ctx, s.shot(shot, due, payload))
	case soakPauseOver:
		if err := s.change(ctx, s.client.Pause, shot); err != nil {
			return err
		}
		b.prevented(i, due)
		if err := sleepUntil(ctx, time.UnixMilli(due).Add(soakNearest/2)); err != nil {
			return err
		}
		return s.change(ctx, s.client.Resume, shot)
	}
	err := cmp.Or(s.change(ctx, s.client.Pause, shot), s.change(ctx, s.client.Resume, shot))
	if !inTime(due) { // the fire may have been skipped
		b.prevented(i, due)
	}
	return err
}

// settled waits until all commands that have to do with the batch's plan are answered.
func (b *soakBatch) settled(ctx context.Context) error {
	for b.open.Load() > 0 {
		if err := sleepUntil(ctx, time.Now().Add(10*time.Millisecond)); err != nil {
			return err
		}
	}
	return nil
}

// due is when a one-shot is due at first, unix ms.
func (s *soak) due(b *soakBatch, i int) int64 {
	return s.at(b.round).UnixMilli() + int64(i)*s.Round.Milliseconds()/int64(len(b.put))
}

// inTime tells whether what is acknowledged now wins for sure over what is due.
func inTime(due int64) bool { return !time.Now().Add(surely).After(time.UnixMilli(due)) }

// prevented notes that a fire must not come, or, where the command is late, may come or not.
func (b *soakBatch) prevented(i int, due int64) {
	sure := inTime(due)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shots.First[i] = -1; !sure {
		b.shots.May[i] = due - b.shots.From
	}
}

// moved notes another fire that must come.
func (b *soakBatch) moved(i int, to int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shots.Then[i] = to - b.shots.From
	b.shots.To = max(b.shots.To, to+1)
}

func (s *soak) shot(id string, due int64, payload []byte) carillon.Job {
	return carillon.Job{ID: id, Topic: topic, Payload: payload, Schedule: "@at " + time.UnixMilli(due).UTC().Format(carillon.TimeFormat)}
}

func (s *soak) put(ctx context.Context, job carillon.Job) error {
	return s.persist(ctx, func(request string) error {
		_, err := s.client.Put(ctx, job, carillon.RequestID(request))
		return err
	})
}

// delete takes a job that is not there any more for deleted.
func (s *soak) delete(ctx context.Context, id string) error {
	return s.persist(ctx, func(request string) error {
		_, err := s.client.Delete(ctx, id, carillon.RequestID(request))
		if errors.Is(err, &carillon.Error{Code: carillon.CodeNotFound}) {
			return nil
		}
		return err
	})
}

// change pauses or resumes.
func (s *soak) change(ctx context.Context, do func(context.Context, string, ...carillon.CommandOption) (carillon.JobReply, error), id string) error {
	return s.persist(ctx, func(request string) error {
		_, err := do(ctx, id, carillon.RequestID(request))
		return err
	})
}

// persist repeats a command, under one name, until the service has answered it.
func (s *soak) persist(ctx context.Context, do func(request string) error) error {
	request, began := cryptorand.Text(), time.Now()
	for {
		err := do(request)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		_, answered := errors.AsType[*carillon.Error](err) // else it is an error of the connection
		if err == nil || answered && !isTransient(err) || time.Since(began) > soakRetry {
			s.mu.Lock()
			defer s.mu.Unlock()
			record(s.commands, int64(time.Since(began)))
			return err
		}
	}
}

// killer kills the engine again and again, as long as the rounds last.
func (s *soak) killer(ctx context.Context) {
	for at := s.KillEvery; at < s.Duration; at += s.KillEvery {
		if sleepUntil(ctx, s.begin.Add(at)) != nil {
			return
		}
		if err := s.kill(ctx); err != nil {
			s.fail(err)
			return
		}
	}
}

func (s *soak) kill(ctx context.Context) error {
	s.process.Lock()
	defer s.process.Unlock()
	if err := s.engine.kill(); err != nil {
		return err
	}
	killed := time.Now()
	if err := s.engine.start(ctx, strings.TrimPrefix(s.engine.url, "nats://"), nil); err != nil {
		return err
	}
	s.kills = append(s.kills, killed)
	s.cpu, s.looked = 0, killed
	s.ready = max(s.ready, time.Since(killed))
	for !s.nc.IsConnected() { // who waits for the lock is going to ask
		if err := sleepUntil(ctx, time.Now().Add(10*time.Millisecond)); err != nil {
			return err
		}
	}
	return nil
}

// judgeRound has the worker judge a batch and the recurring jobs of its round, reads the streams, looks at
// the engine, and tells of all that.
func (s *soak) judgeRound(ctx context.Context, b *soakBatch) error {
	// By the middle of the next round all fires are over, those that were moved, too.
	if err := sleepUntil(ctx, s.at(b.round+1).Add(s.Round/2)); err != nil {
		return err
	}
	if err := b.settled(ctx); err != nil {
		return err
	}
	recurring := *s.base
	recurring.From, recurring.To = s.at(b.round).UnixMilli(), s.at(b.round+1).UnixMilli()
	round := SoakRound{Since: time.Duration(b.round+1) * s.Round}
	b.forced.To = time.Now().Add(time.Second).UnixMilli() // a fire that an outage held up is expected, too
	received := newHistogram()
	stop := context.AfterFunc(ctx, func() { _ = s.worker.cmd.Process.Kill() })
	defer stop()
	for _, p := range []*plan{&recurring, &b.shots, &b.forced} {
		p.Kills = s.KillEvery > 0
		if err := s.worker.send(p); err != nil {
			return err
		}
		report, err := s.worker.report()
		if err != nil {
			return err
		}
		round.Checks.add(report.Checks)
		round.Missing = append(round.Missing, report.Missing...)
		if p.Forced {
			continue // a fire by command has no due time to be late for
		}
		h, err := decode(report.Received)
		if err != nil {
			return err
		}
		received.Merge(h)
	}
	if err := s.look(ctx, &round); err != nil {
		return err
	}
	s.mu.Lock()
	commands := s.commands
	s.commands = newHistogram()
	s.mu.Unlock()
	s.allCommands.Merge(commands)
	if round.Killed {
		s.afterKill.Merge(received)
	} else {
		s.received.Merge(received)
	}
	ms := func(h *hdrhistogram.Histogram, q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1000 }
	round.Triggers, round.P50, round.P99, round.Max = int(received.TotalCount()), ms(received, 50), ms(received, 99), ms(received, 100)
	round.Commands, round.CommandP99 = int(commands.TotalCount()), ms(commands, 99)
	s.rounds = append(s.rounds, round)
	s.Report(round)
	return nil
}

// look reads the streams and the engine's process.
func (s *soak) look(ctx context.Context, round *SoakRound) error {
	s.process.Lock()
	defer s.process.Unlock()
	if err := s.follow(ctx, &round.Checks); err != nil {
		return err
	}
	from, to := s.begin.Add(round.Since-s.Round), s.begin.Add(round.Since+s.Round/2) // some fires were moved
	for _, killed := range s.kills {
		round.Killed = round.Killed || killed.Before(to) && killed.Add(soakRecovers).After(from)
	}
	u := s.engine.usage()
	now := time.Now()
	if !s.looked.IsZero() {
		round.CPU = 100 * (u.cpu - s.cpu).Seconds() / now.Sub(s.looked).Seconds()
	}
	s.cpu, s.looked = u.cpu, now
	round.ResidentMiB = u.residentMiB
	if s.engine.dir != "" {
		round.DiskMiB = dirMiB(filepath.Join(s.engine.dir, "data"))
	}
	return nil
}

// ends notes where the output streams end before the run.
func (s *soak) ends(ctx context.Context) error {
	s.streams = make([]soakStream, s.engine.partitions)
	js, err := jetstream.New(s.nc)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	for p := range s.streams {
		stream, err := js.Stream(ctx, s.engine.Names.OutStream(p))
		if err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		s.streams[p].seq = stream.CachedInfo().State.LastSeq
	}
	return nil
}

// follow reads what the output streams have taken since, and checks that the numbers go on and that no
// trigger is there twice.
func (s *soak) follow(ctx context.Context, checks *Checks) error {
	js, err := jetstream.New(s.nc)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	s.ids, s.idsBefore = make(map[uint64]struct{}), s.ids
	for p := range s.streams {
		name, at := s.engine.Names.OutStream(p), &s.streams[p]
		var lost error
		err := readStream(ctx, js, name, from{seq: at.seq + 1}, func(m jetstream.Msg) {
			meta, err := m.Metadata()
			if err != nil {
				return // no message of a stream
			}
			if meta.Sequence.Stream > at.seq+1 {
				lost = fmt.Errorf("bench: %s dropped messages %d to %d before they were read: shorten the rounds or lengthen its retention", name, at.seq+1, meta.Sequence.Stream-1)
			}
			at.seq = meta.Sequence.Stream
			number, err := strconv.ParseUint(m.Headers().Get(carillon.HeaderOutput), 10, 64)
			switch {
			case err != nil:
				return // foreign
			case at.output == 0 || number == at.output+1:
			case number <= at.output:
				checks.Duplicate++
			default:
				checks.Gaps += int(number - at.output - 1)
			}
			at.output = number
			if id := m.Headers().Get(carillon.HeaderTrigger); id != "" {
				h := xxhash.Sum64String(id)
				_, again := s.ids[h]
				_, before := s.idsBefore[h]
				checks.Duplicate += bit(again || before)
				s.ids[h] = struct{}{}
			}
		})
		if err := cmp.Or(err, lost); err != nil {
			return fmt.Errorf("bench: read %s: %w", name, err)
		}
	}
	return nil
}

// sum makes the figures of all rounds.
func (s *soak) sum() (err error) {
	if len(s.rounds) == 0 {
		return nil
	}
	r := s.result
	r.Checks, r.Series = &Checks{}, make(map[string][]Point)
	var resident, disk, cpu []float64
	triggers, commands := 0, 0
	for _, round := range s.rounds {
		r.Checks.add(round.Checks)
		triggers, commands = triggers+round.Triggers, commands+round.Commands
		resident, disk, cpu = append(resident, round.ResidentMiB), append(disk, round.DiskMiB), append(cpu, round.CPU)
		for name, v := range map[string]float64{
			"resident_mib": round.ResidentMiB, "disk_mib": round.DiskMiB, "engine_cpu_percent": round.CPU, "received_p50_ms": round.P50,
			"received_p99_ms": round.P99, "received_max_ms": round.Max, "command_p99_ms": round.CommandP99,
			"triggers_per_s": float64(round.Triggers) / s.Round.Seconds(),
		} {
			r.Series[name] = append(r.Series[name], Point{round.Since.Seconds(), v})
		}
	}
	took := s.rounds[len(s.rounds)-1].Since
	f := &r.Figures
	f.add("soaked_s", took.Seconds())
	f.add("triggers_per_s", float64(triggers)/took.Seconds())
	f.add("commands_per_s", float64(commands)/took.Seconds())
	f.quantiles("received", s.received, 50, 90, 99, 99.9, 99.99, 100)
	f.quantiles("command", s.allCommands, 50, 99, 99.9, 100)
	f.add("kills", float64(len(s.kills)))
	if len(s.kills) > 0 {
		f.add("ready_max_s", s.ready.Seconds())
		f.quantiles("received_after_kill", s.afterKill, 50, 99, 100)
	}
	if s.engine.dir != "" {
		f.add("resident_first_mib", resident[0])
		f.add("resident_last_mib", resident[len(resident)-1])
		f.add("resident_max_mib", slices.Max(resident))
		f.add("resident_growth_mib_per_h", slope(resident[len(resident)/2:], s.Round.Hours()))
		f.add("disk_first_mib", disk[0])
		f.add("disk_last_mib", disk[len(disk)-1])
		f.add("disk_max_mib", slices.Max(disk))
		f.add("disk_growth_mib_per_h", slope(disk[len(disk)/2:], s.Round.Hours()))
		f.add("engine_cpu_percent", median(cpu))
	}
	r.Histograms = make(map[string]string)
	for name, h := range map[string]*hdrhistogram.Histogram{"received_us": s.received, "received_after_kill_us": s.afterKill, "command_us": s.allCommands} {
		if h.TotalCount() == 0 {
			continue
		}
		if r.Histograms[name], err = encode(h); err != nil {
			return err
		}
	}
	return nil
}

// slope is that of the line with the least squares through values that are step apart; 0 for fewer than two.
func slope(v []float64, step float64) float64 {
	n := float64(len(v))
	var mean, sxy, sxx float64
	for _, y := range v {
		mean += y / n
	}
	for i, y := range v {
		x := float64(i) - (n-1)/2
		sxy += x * (y - mean)
		sxx += x * x
	}
	if sxx == 0 {
		return 0
	}
	return sxy / sxx / step
}
