package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
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
