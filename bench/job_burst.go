package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// A jobBurst is many triggers due at once, more than can be published in time. Its jobs are put, and the triggers
// that they made are read from the output streams when all is over.
type jobBurst struct {
	plan
	fires int // of each job, one a second
	// spread, if not 0, is the jobs' Spread: the service chooses an offset below it and adds that to each of a job's
	// fires. The job's first fire shows the offset, and the others must agree.
	spread time.Duration
	job    func(i int) carillon.Job // due as From says; set before put
	// placed, if not nil, is called each time when the burst's due time has been chosen, before its jobs are put.
	placed   func() error
	progress func(step string, done, total int)
}

// newJobBurst makes a burst of jobs that are all due at From, and then once a second.
func newJobBurst(prefix string, jobs, fires int) *jobBurst {
	s := &jobBurst{fires: fires, progress: func(string, int, int) {}}
	s.plan = plan{Prefix: prefix, First: make([]int64, jobs), Every: make([]int64, jobs)}
	if fires > 1 {
		for i := range s.Every {
			s.Every[i] = everySecond
		}
	}
	return s
}

func (s *jobBurst) id(i int) string { return s.Prefix + strconv.Itoa(i) }

// topic is the burst's own, so that the streams count its triggers alone.
func (s *jobBurst) topic() string { return strings.TrimSuffix(s.Prefix, "-") }

func (s *jobBurst) triggers() int { return s.fires * len(s.First) }

// A burst's due time is fixed before its jobs are put, so it must be known how long that takes: from the previous
// burst, or from a part of the jobs that is put first, far ahead. If it takes longer, for example because the disk stood
// still meanwhile, the burst begins again with more time.
const (
	putTries    = 4
	sampleShare = 10 // one in so many jobs, but at least sample of them
	sampleTimes = 3  // times as long as those suggest: checkpoints and a busy disk come later
	beforeTimes = 2  // times as long as for the previous burst
)

// start chooses when the first job is due: pause after all have been put, which takes about puts.
func (s *jobBurst) start(puts, pause time.Duration) {
	first := time.Now().Add(puts + pause).Truncate(time.Millisecond)
	if s.spread > 0 { // cron: whole seconds, and the expression's range of seconds must lie within one minute
		first = first.Truncate(time.Second).Add(time.Second)
		if first.Second()+s.fires > 60 {
			first = first.Truncate(time.Minute).Add(time.Minute)
		}
	}
	s.From = first.UnixMilli()
	s.To = s.From + int64(s.fires)*everySecond
}

// put puts all jobs, and returns once the first is due. perJob is how long one job took in the previous burst, 0 for
// the first burst; put sets it.
func (s *jobBurst) put(ctx context.Context, nc *nats.Conn, names carillon.Names, perJob *time.Duration, pause time.Duration) (err error) {
	held, err := holdFor(s.triggers())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, held.giveBack()) }()
	n := len(s.First)
	allowed := beforeTimes * *perJob * time.Duration(n)
	if *perJob == 0 {
		began := time.Now()
		s.From = began.Add(time.Hour).Truncate(time.Minute).UnixMilli()
		few := min(n, sample+n/sampleShare)
		if err := s.putFirst(ctx, nc, names, few); err != nil {
			return err
		}
		allowed = sampleTimes * time.Since(began) * time.Duration(n) / time.Duration(few)
	}
	var took time.Duration
	for try := 1; ; try++ {
		s.start(allowed, pause)
		began := time.Now()
		if s.placed != nil {
			if err := s.placed(); err != nil {
				return err
			}
		}
		if err := s.putFirst(ctx, nc, names, n); err != nil {
			return err
		}
		took = time.Since(began)
		if time.Now().UnixMilli() < s.From {
			break
		}
		if try == putTries {
			return fmt.Errorf("bench: putting %d jobs took %s, too long for %s that were allowed", n, took, allowed)
		}
		if _, err := carillon.Connect(nc, carillon.WithNames(names)).DeleteWhere(ctx, carillon.Selection{Prefix: s.Prefix}); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		s.Prefix = s.topic() + "x-" // a new topic, so that what has fired already does not count
		allowed = 2 * max(allowed, took)
	}
	*perJob = took / time.Duration(n)
	first := time.UnixMilli(s.From)
	if err := waitUntil(ctx, s.progress, "waiting for the first", first.Add(-pagesBefore)); err != nil {
		return err
	}
	if err := held.giveBack(); err != nil {
		return err
	}
	return waitUntil(ctx, s.progress, "waiting for the first", first)
}

// putFirst puts the first n jobs. It imports them: nats-server keeps an index of subjects, and of jobs that were put one by
// one the garbage collector would have to scan all entries since the checkpoint before the last.
func (s *jobBurst) putFirst(ctx context.Context, nc *nats.Conn, names carillon.Names, n int) error {
	jobs := func(yield func(carillon.ImportJob) bool) {
		for i := range n {
			if !yield(carillon.ImportJob{Job: s.job(i)}) {
				return
			}
		}
	}
	progress := func(done int) { s.progress("putting jobs", done, n) }
	return importJobs(ctx, carillon.Connect(nc, carillon.WithNames(names)), jobs, progress)
}

// validateOwn refuses settings of an engine that runs already.
func (s Service) validateOwn(partitions int, persistAsync bool) error {
	switch {
	case partitions < 0 || partitions > streams.MaxPartitions:
		return fmt.Errorf("bench: Partitions is %d, must be 1 to %d", partitions, streams.MaxPartitions)
	case s.Server != "" && partitions != 0:
		return errors.New("bench: Partitions is of an engine that is started for the run; one that runs already has its own")
	case s.Server != "" && persistAsync:
		return errors.New("bench: PersistAsync is of an engine that is started for the run; one that runs already has its own")
	}
	return nil
}

const persistAsyncFlag = "--persist-async"

// unbounded returns the service with an engine that keeps all its outputs, so that all can be counted.
func (s Service) unbounded(partitions int, persistAsync bool) Service {
	s.Command = append(slices.Clone(s.Command), "--out-max-bytes", "-1", "--log-max-bytes", "-1")
	if partitions > 0 {
		s.Command = append(s.Command, "--partitions", strconv.Itoa(partitions))
	}
	if persistAsync {
		s.Command = append(s.Command, persistAsyncFlag)
	}
	return s
}

// outputs are the output streams of an engine.
type outputs struct {
	names    carillon.Names
	nc       *nats.Conn // the caller's to close
	js       jetstream.JetStream
	streams  []jetstream.Stream // by partition
	mode     jetstream.PersistModeType
	maxBytes int64 // how many bytes each keeps; -1: no limit
}

func (e *engine) outputs(ctx context.Context) (o *outputs, err error) {
	o = &outputs{names: e.Names, streams: make([]jetstream.Stream, e.partitions)}
	if o.nc, err = e.Connect(e.url); err != nil {
		return nil, fmt.Errorf("bench: connect to %s: %w", e.url, err)
	}
	defer func() {
		if err != nil {
			o.nc.Close()
		}
	}()
	if o.js, err = jetstream.New(o.nc); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	for p := range o.streams {
		if o.streams[p], err = o.js.Stream(ctx, o.names.OutStream(p)); err != nil {
			return nil, fmt.Errorf("bench: %s: %w", o.names.OutStream(p), err)
		}
		c := o.streams[p].CachedInfo().Config
		o.mode = c.PersistMode
		if p == 0 || c.MaxBytes >= 0 && (o.maxBytes < 0 || c.MaxBytes < o.maxBytes) {
			o.maxBytes = c.MaxBytes
		}
	}
	return o, nil
}

// overhead is an upper bound of what a stored trigger takes besides its payload: subject, headers, record. Bytes.
const overhead = 512

// holds checks that the streams can keep so many triggers, which are spread over them evenly enough.
func (o *outputs) holds(triggers, payloadBytes int) error {
	need := int64(triggers) * int64(payloadBytes+overhead) / int64(len(o.streams))
	if o.maxBytes < 0 || o.maxBytes >= need {
		return nil
	}
	return fmt.Errorf("bench: %s keeps %d MiB, and the %d triggers of a turn take up to %d MiB in each stream: use fewer, or an engine whose streams were made with --out-max-bytes %d",
		o.names.OutStream(0), o.maxBytes>>20, triggers, need>>20, need)
}

// ends returns the last sequences, by partition.
func (o *outputs) ends(ctx context.Context) ([]uint64, error) {
	ends := make([]uint64, len(o.streams))
	for p, s := range o.streams {
		info, err := s.Info(ctx)
		if err != nil {
			return nil, fmt.Errorf("bench: %s: %w", o.names.OutStream(p), err)
		}
		ends[p] = info.State.LastSeq
	}
	return ends, nil
}

// stored counts the triggers of a topic.
func (o *outputs) stored(ctx context.Context, topic string) (n int, err error) {
	for p, s := range o.streams {
		subject := o.names.Trigger(p, topic)
		info, err := s.Info(ctx, jetstream.WithSubjectFilter(subject))
		if err != nil {
			return n, fmt.Errorf("bench: %s: %w", o.names.OutStream(p), err)
		}
		n += int(info.State.Subjects[subject])
	}
	return n, nil
}

// lookEvery is the time between two looks: short enough to end soon, and long enough to be no load.
const lookEvery = 200 * time.Millisecond

// await waits until all triggers of a burst are stored, or none was stored for as long as patience.
func (o *outputs) await(ctx context.Context, s *jobBurst) error {
	most, news := 0, time.Now()
	for {
		n, err := o.stored(ctx, s.topic())
		if err != nil {
			return err
		}
		s.progress("triggers stored", n, s.triggers())
		if n > most {
			most, news = n, time.Now()
		}
		if n >= s.triggers() || time.Since(news) > patience && time.Now().UnixMilli() > s.To {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookEvery):
		}
	}
}

// tally reads what the streams hold beyond their former ends. It calls each when it first sees an expected trigger
// (its job, when it was due and when stored, unix ns), and checks that output numbers go on without a gap.
func (o *outputs) tally(ctx context.Context, after []uint64, s *jobBurst, each func(job int, due, stored int64)) (c Checks, err error) {
	c.Expected = s.triggers()
	seen := make([]bool, c.Expected)
	known := make([]bool, len(s.First)) // by job: whether its offset is known
	read := 0
	for p := range o.streams {
		before, counting := uint64(0), after[p] == 0
		err := readStream(ctx, o.js, o.names.OutStream(p), from{seq: max(after[p], 1)}, func(m jetstream.Msg) {
			h := m.Headers()
			number, err := strconv.ParseUint(h.Get(carillon.HeaderOutput), 10, 64)
			meta, err2 := m.Metadata()
			if err != nil || err2 != nil {
				return // foreign
			}
			if read++; read%progressStep == 0 {
				s.progress("reading", read, c.Expected)
			}
			switch {
			case !counting:
				counting = true
			case number <= before:
				c.Duplicate++
			default:
				c.Gaps += int(number - before - 1)
			}
			before = max(before, number)
			id, due, _, ok := carillon.SplitTriggerID(h.Get(carillon.HeaderTrigger))
			i, ours := s.index(id)
			if !ok || !ours {
				return // an event, or somebody else's
			}
			if s.spread > 0 && !known[i] && due >= s.From {
				s.First[i], known[i] = (due-s.From)%everySecond, true
			}
			k, planned := s.fireIndex(i, due)
			if !planned {
				c.Stray++
				return
			}
			stored := meta.Timestamp.UnixNano()
			if stored < due*1e6 {
				c.Early++
			}
			if at := &seen[i*s.fires+k]; *at {
				c.Duplicate++
			} else {
				*at = true
				each(i, due*1e6, stored)
			}
		})
		if err != nil {
			return c, fmt.Errorf("bench: read %s: %w", o.names.OutStream(p), err)
		}
	}
	for _, yes := range seen {
		if !yes {
			c.Missing++
		}
	}
	return c, nil
}

// progressStep is how many items are dealt with between two reports of progress.
const progressStep = 1 << 14

// rates returns the rate a second of all and of the middle 90 % of some times in ns. It sorts them.
func rates(times []int64) (all, middle float64) {
	slices.Sort(times)
	rate := func(t []int64) float64 {
		if len(t) < 2 || t[0] == t[len(t)-1] {
			return 0
		}
		return float64(len(t)) / time.Duration(t[len(t)-1]-t[0]).Seconds()
	}
	cut := len(times) / 20
	return rate(times), rate(times[cut : len(times)-cut])
}
