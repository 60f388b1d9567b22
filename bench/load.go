package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon"
)

// Mix is how the triggers of a load are shared out among kinds of jobs. Only the ratios count.
type Mix struct {
	Intervals int `json:"intervals,omitempty"` // jobs of @every 1s
	Cron      int `json:"cron,omitempty"`      // jobs of a six-field cron expression, each second
	OneShots  int `json:"one_shots,omitempty"` // a job of @at for each trigger, all put beforehand
}

// mostWeight is how great a weight may be: Rate times a weight must be a number.
const mostWeight = 1_000_000

// ParseMix reads "intervals=2,cron=1,one_shots=1", or the name of one kind.
func ParseMix(s string) (m Mix, err error) {
	for part := range strings.SplitSeq(s, ",") {
		name, weight, given := strings.Cut(part, "=")
		n := 1
		if given {
			if n, err = strconv.Atoi(weight); err != nil || n < 0 || n > mostWeight {
				return Mix{}, fmt.Errorf("the weight of %s is %q, expected a number from 0 to 1,000,000", name, weight)
			}
		}
		switch name {
		case "intervals":
			m.Intervals = n
		case "cron":
			m.Cron = n
		case "one_shots":
			m.OneShots = n
		default:
			return Mix{}, fmt.Errorf("%q is no kind of jobs, expected intervals, cron or one_shots", name)
		}
	}
	if m.total() == 0 {
		return Mix{}, errors.New("all weights are 0")
	}
	return m, nil
}

func (m Mix) total() int { return m.Intervals + m.Cron + m.OneShots }

// plan says what must fire: job i at From + First[i], and then every Every[i] ms as long as that is before To; if
// Every[i] is 0, never again. First is below 0 for a job that was not put.
type plan struct {
	Prefix string  `json:"prefix"` // of the jobs' ids, which end with i
	From   int64   `json:"from"`   // unix ms
	To     int64   `json:"to"`     // unix ms
	First  []int64 `json:"first"`  // ms
	Every  []int64 `json:"every"`  // ms

	// If commands change jobs during the run: one more fire of job i, and one that may come or not, because the
	// command came at about the time of the fire. Below 0, or without such a list: none.
	Then []int64 `json:"then,omitempty"` // ms
	May  []int64 `json:"may,omitempty"`  // ms
	// Forced says that the fires are forced ones, which have no due time: First and May only say whether one must or may come.
	Forced bool `json:"forced,omitempty"`
	// Kills says that the server was killed: then it may call a repeated delivery the first one.
	Kills bool `json:"kills,omitempty"`
}

// also returns an entry of Then or May.
func also(list []int64, i int) int64 {
	if list == nil {
		return -1
	}
	return list[i]
}

// regular is how often job i is due in the window by First and Every.
func (p *plan) regular(i int) int {
	rest := p.To - p.From - p.First[i]
	switch {
	case p.First[i] < 0 || rest <= 0:
		return 0
	case p.Every[i] == 0:
		return 1
	}
	return int((rest-1)/p.Every[i]) + 1
}

// fires is how often job i must fire in the window; slots is how often it may fire.
func (p *plan) fires(i int) int { return p.regular(i) + bit(also(p.Then, i) >= 0) }
func (p *plan) slots(i int) int { return p.fires(i) + bit(also(p.May, i) >= 0) }

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// due is when the k-th of those fires is due, unix ms.
func (p *plan) due(i, k int) int64 {
	if k < p.regular(i) {
		return p.From + p.First[i] + int64(k)*p.Every[i]
	}
	return p.From + p.Then[i]
}

// fireIndex returns the k for which the k-th fire of job i is due at ms. If k is below fires(i), that fire must come.
func (p *plan) fireIndex(i int, ms int64) (k int, ok bool) {
	at := ms - p.From
	since := at - p.First[i]
	switch {
	case at < 0 || ms >= p.To:
		return 0, false
	case p.Forced:
		return 0, p.slots(i) > 0
	case since == 0:
		return 0, true
	case p.First[i] >= 0 && p.Every[i] > 0 && since > 0 && since%p.Every[i] == 0:
		return int(since / p.Every[i]), true
	case at == also(p.Then, i):
		return p.regular(i), true
	}
	return p.fires(i), at == also(p.May, i)
}

// load puts jobs so that rate triggers a second are due, spread evenly over the milliseconds of each second.
type load struct {
	mix     Mix
	rate    int
	seconds int
	payload []byte
	ends    bool // the recurring jobs have an end, because the service is not the run's own
	plan    plan
}

// outlives is how long recurring jobs go on after the run in a service that is not its own: a run that is killed does not delete them.
const outlives = 10 * time.Minute

const everySecond = 1000 // ms between two fires of a recurring job

func newLoad(prefix string, mix Mix, rate int, d time.Duration, payloadBytes int) *load {
	l := &load{mix: mix, rate: rate, seconds: int(d / time.Second), payload: payloadOf(payloadBytes)}
	l.plan.Prefix = prefix
	add := func(n int, every, span int64) {
		for i := range n {
			l.plan.First = append(l.plan.First, int64(i)*span/int64(n))
			l.plan.Every = append(l.plan.Every, every)
		}
	}
	oneShots := rate * mix.OneShots / mix.total()
	cron := rate * mix.Cron / mix.total()
	add(rate-oneShots-cron, everySecond, everySecond)
	add(cron, everySecond, everySecond)
	add(oneShots*l.seconds, 0, int64(l.seconds)*1000)
	return l
}

// payloadOf makes a payload: a JSON string of n bytes.
func payloadOf(n int) []byte {
	return []byte(`"` + string(bytes.Repeat([]byte("x"), max(n, 2)-2)) + `"`)
}

// recurring is how many of the jobs recur; crons are the last of them.
func (l *load) recurring() (intervals, crons int) {
	crons = l.rate * l.mix.Cron / l.mix.total()
	return l.rate - l.rate*l.mix.OneShots/l.mix.total() - crons, crons
}

func (l *load) job(i int) carillon.Job {
	j := carillon.Job{ID: l.plan.Prefix + strconv.Itoa(i), Topic: topic, Payload: l.payload, Labels: map[string]string{"bench": ""}}
	intervals, crons := l.recurring()
	due := time.UnixMilli(l.plan.From + l.plan.First[i]).UTC()
	switch {
	case i < intervals:
		j.Schedule, j.Start = "@every 1s", due
	case i < intervals+crons:
		// Cron fires in whole seconds; the spread gives each job a millisecond of its own.
		j.Schedule, j.Spread, j.Start = "* * * * * *", time.Second, time.UnixMilli(l.plan.From).UTC()
	default:
		j.Schedule = "@at " + due.Format(carillon.TimeFormat)
		return j
	}
	j.Misfire = carillon.FireAll // else a long stall would leave out the very triggers that it made latest
	if l.ends {
		j.End = time.UnixMilli(l.plan.To).Add(outlives).UTC()
	}
	return j
}

// topic is the topic of every job of a load.
const topic = "bench.load"

const (
	putWindow = 256 // puts under way at once
	// settle is the usual time between the last put and the first due job.
	settle = 2 * time.Second
	// sample is how many jobs are put first, to estimate how long putting all of them will take.
	sample = 2000
)

// put puts all jobs, so that the first is due some time after the last was put. Due times are fixed before the first
// put, so it first estimates how long all puts will take; if they take longer, it begins again with more time.
func (l *load) put(ctx context.Context, client *carillon.Client, lead time.Duration, progress func(done int)) error {
	n := len(l.plan.First)
	l.plan.From = time.Now().Add(time.Hour).UnixMilli()
	l.plan.To = l.plan.From + int64(l.seconds)*1000
	began := time.Now()
	few := min(n, sample)
	if err := l.putAll(ctx, client, few, func(int) {}); err != nil {
		return err
	}
	estimate := time.Since(began) * time.Duration(n) / time.Duration(few)
	allowed := estimate + estimate/2
	for try := 1; ; try++ {
		began = time.Now()
		first := began.Add(allowed + lead).Truncate(time.Second).Add(time.Second)
		l.plan.From = first.UnixMilli()
		l.plan.To = l.plan.From + int64(l.seconds)*1000
		if err := l.putAll(ctx, client, n, progress); err != nil {
			return err
		}
		took := time.Since(began)
		if time.Until(first) >= lead/2 {
			return nil
		}
		if try == putTries {
			return fmt.Errorf("bench: putting %d jobs took %s, too long for %s that were allowed", n, took, allowed)
		}
		if err := l.deleteAll(ctx, client); err != nil {
			return err
		}
		allowed = 2 * max(allowed, took)
	}
}

// deleteAll deletes all jobs, so that they can be put again for a later time. Fires before the plan's window do not count.
func (l *load) deleteAll(ctx context.Context, client *carillon.Client) error {
	if _, err := client.DeleteWhere(ctx, carillon.Selection{Prefix: l.plan.Prefix}); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}

// putAll puts the first n jobs. The service chooses a cron job's millisecond, and its reply says which.
func (l *load) putAll(ctx context.Context, client *carillon.Client, n int, progress func(done int)) error {
	jobs := func(yield func(carillon.Job) bool) {
		for i := range n {
			if !yield(l.job(i)) {
				return
			}
		}
	}
	done := 0
	intervals, crons := l.recurring()
	return putJobs(ctx, client, jobs, func(j carillon.Job, r carillon.JobReply) {
		if i, ok := l.plan.index(j.ID); ok && i >= intervals && i < intervals+crons {
			l.plan.First[i] = r.Next.UnixMilli() - l.plan.From
		}
		done++
		progress(done)
	})
}

// putJobs puts jobs, many at once, and ends with the first that is refused. told, if not nil, is called with each of the others, one
// call at a time.
func putJobs(ctx context.Context, client *carillon.Client, jobs iter.Seq[carillon.Job], told func(carillon.Job, carillon.JobReply)) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err := client.PutAll(ctx, jobs, putWindow, func(j carillon.Job, r carillon.JobReply, err error) {
		switch {
		case err != nil:
			stop(fmt.Errorf("put %s: %w", j.ID, err))
		case told != nil:
			told(j, r)
		}
	})
	if err = cmp.Or(context.Cause(ctx), err); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}

// index returns a job's number by its id.
func (p *plan) index(id string) (int, bool) {
	rest, ok := strings.CutPrefix(id, p.Prefix)
	if !ok {
		return 0, false
	}
	i, err := strconv.Atoi(rest)
	return i, err == nil && i >= 0 && i < len(p.First)
}

// importEach is how many jobs are imported between two reports of progress.
const importEach = 1000

// importJobs imports jobs, and ends with the first that is refused. When it returns, the service has applied them.
func importJobs(ctx context.Context, client *carillon.Client, jobs iter.Seq[carillon.ImportJob], progress func(done int)) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	done := 0
	err := client.Import(ctx, jobs, func(i int, err error) {
		if done++; done%importEach == 0 {
			progress(done)
		}
		if err != nil {
			stop(fmt.Errorf("of job %d: %w", i, err))
		}
	})
	if err = cmp.Or(context.Cause(ctx), err); err != nil {
		return fmt.Errorf("bench: import: %w", err)
	}
	return nil
}
