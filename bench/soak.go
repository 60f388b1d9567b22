package bench

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
)

// RunSoak puts an engine under mixed load for a long time, and judges each round of it as RunLateness does.
//
// Half of the triggers are of recurring jobs that exist as long as the run. The others are of one-shots. Each is
// put one round before it is due, and deleted one round after. Of sixteen, shortly before they are due, one is
// cancelled, one moved, one replaced, one paused over its due time, and one paused and resumed in time. A few jobs
// are fired by command. All output streams are read, and their numbers must go on without a gap or a repeat.
//
// A run whose engine ends by itself is over: nothing is repeated then.
//
// If a command should prevent a fire, but was not acknowledged early enough to be certain to win, the fire may come
// or not. When the engine is killed, commands are repeated until they are answered. Lateness is reported over all
// rounds, including those with a kill, and besides that for rounds with a kill and for rounds without one.
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
	e, nc, end, err := c.Service.begin(ctx, &r)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, end()) }()
	nc.SetErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}) // kills are expected
	run := runName()
	defer func() { err = errors.Join(err, e.cleanUp(ctx, nc, run)) }() // as in RunLateness
	w, err := e.startWorker(ctx, workerStart{Name: run, Concurrency: c.Concurrency, Soak: true})
	if err != nil {
		return r, err
	}
	defer w.stop()

	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s := &soak{
		SoakConfig: c, engine: e, nc: nc, worker: w,
		client: carillon.Connect(nc, carillon.WithNames(e.Names), carillon.WithTimeout(soakTry)), run: run, fail: fail,
		payload: payloadOf(c.PayloadBytes), room: make(chan struct{}, soakWindow), commands: newHistogram(), result: &r,
		received: newHistogram(), afterKill: newHistogram(), withoutKills: newHistogram(), allCommands: newHistogram(),
		cpu: e.usage().cpu, looked: time.Now(),
	}
	if e.cmd != nil {
		s.work.Go(func() { s.watch(ctx) })
	}
	err = s.carryOut(ctx)
	if err != nil && context.Cause(ctx) != nil {
		err = context.Cause(ctx)
	}
	fail(err)
	s.work.Wait()
	r.Machine.Load[1] = load1()
	err = errors.Join(err, s.sum())
	return r, err
}

const (
	soakWindow   = 4096                   // commands under way at once
	soakForced   = 50                     // for so many one-shots, one job is fired by command
	soakNearest  = 100 * time.Millisecond // the least time between a change and the due time
	soakFarthest = 5 * time.Second        // and the most, but not over a quarter of a round
	soakTry      = 6 * time.Second        // the client's timeout, in which it sends a request three times
	soakRetry    = 5 * time.Minute        // how long a command, or the read of a stream, is repeated
	soakPause    = 100 * time.Millisecond // before a command is repeated for which there was no room
	soakRecovers = 10 * time.Second       // how long after a kill lateness is reported separately
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
	base    *plan     // the recurring jobs
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

	streams                 []soakStream        // by partition
	repeated                atomic.Int64        // reads of streams that failed
	ids, idsBefore          map[uint64]struct{} // hashes of the trigger ids read in this round and in the previous one
	received, allCommands   *hdrhistogram.Histogram
	afterKill, withoutKills *hdrhistogram.Histogram // of received: rounds with a kill, and the others
	rounds                  []SoakRound
	cpu                     time.Duration // of the engine's process, at the latest look
	looked                  time.Time
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
		for round := range rounds { // a round's jobs are put in the previous round
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

// putRecurring puts the jobs that exist as long as the run: intervals, but every fourth one is a cron job.
func (s *soak) putRecurring(ctx context.Context) error {
	n := s.Rate / 2
	s.begin = time.Now().Truncate(time.Second).Add(s.Round + 2*time.Second + time.Duration(n/5000)*time.Second)
	s.base = &plan{Prefix: s.run + "-recurring-", First: make([]int64, n), Every: make([]int64, n)}
	jobs := func(yield func(carillon.Job) bool) {
		for i := range n {
			s.base.First[i], s.base.Every[i] = int64(i)*everySecond/int64(n), everySecond
			job := carillon.Job{
				// FireAll, so that every fire is expected, however long the engine was down.
				ID: s.base.Prefix + strconv.Itoa(i), Topic: topic, Payload: s.payload, Misfire: carillon.FireAll,
				Schedule: "@every 1s", Start: s.begin.Add(time.Duration(s.base.First[i]) * time.Millisecond).UTC(),
			}
			if i%4 == 3 {
				job.Schedule, job.Spread, job.Start = "* * * * * *", time.Second, s.begin.UTC()
			}
			if s.Service.Server != "" {
				job.End = s.begin.Add(s.Duration + outlives).UTC()
			}
			if !yield(job) {
				return
			}
		}
	}
	return putJobs(ctx, s.client, jobs, func(j carillon.Job, r carillon.JobReply) {
		if i, ok := s.base.index(j.ID); ok && i%4 == 3 {
			s.base.First[i] = r.Next.UnixMilli() - s.begin.UnixMilli()
		}
	})
}
