package node_test

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
)

// load is about 2,000 triggers a second of one-shots, intervals (some of which end) and cron, under updates, pauses, forced
// fires, deletes and commands that are refused, by request and by raw command. It keeps a history of what it was told.
type load struct {
	t      testing.TB
	nc     *nats.Conn
	client *carillon.Client
	far    uint64 // jobs that are there beside it, due in years
	raw    bool   // raw commands too: their acks promise less than replies when power fails

	late atomic.Bool // a network may hold commands back: when one was sent again, it is not known when the first copy comes

	ctx  context.Context
	stop context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	history history
	live    []*recurring
	last    int64 // the latest due time of a one-shot
	ops     int
}

// recurring is a job that one goroutine works on, one command at a time.
type recurring struct {
	id     string
	era    *era  // in force
	known  int64 // scheduled time of the latest fire known to be decided, of whichever version
	forced bool  // a fire was forced: the job is not deleted then, which could cancel that fire
	rests  bool  // a command may be carried out late: as long as that may happen, no other follows
}

const (
	loaders       = 16
	jobsPerLoader = 10
	opPause       = 60 * time.Millisecond
	tryFor        = 3 * time.Second // the client waits a third of it for an answer that a kill has lost
	oneShotPause  = 10 * time.Millisecond
)

func startLoad(t testing.TB, url, name string, raw bool, options ...nats.Option) *load {
	nc := dial(t, url, options...)
	l := &load{t: t, nc: nc, client: carillon.Connect(nc, carillon.WithTimeout(tryFor)), raw: raw}
	l.history.forced, l.history.maybeFired, l.history.refused = make(map[string]bool), make(map[string]int), make(map[refusal]times)
	l.ctx, l.stop = context.WithCancel(t.Context())
	t.Cleanup(func() {
		l.stop()
		l.work.Wait()
	})
	for i := range loaders {
		l.work.Go(func() { l.recurring(fmt.Sprintf("%s-r%d", name, i)) })
	}
	for i := range 2 {
		l.work.Go(func() { l.oneShots(fmt.Sprintf("%s-o%d", name, i)) })
	}
	return l
}

// firesBeyond waits until every partition has stored a trigger that was due after a moment: then what was due before is stored, too.
func (l *load) firesBeyond(partitions int, moment time.Time) {
	l.t.Helper()
	names := carillon.DefaultNames()
	js := jetStream(l.t, l.nc)
	for p := range partitions {
		out, err := js.Stream(l.t.Context(), names.OutStream(p))
		if err != nil {
			l.t.Fatal(err)
		}
		eventually(l.t, fmt.Sprintf("partition %d fires beyond %s", p, moment.Format(carillon.TimeFormat)), func() bool {
			m, err := out.GetLastMsgForSubject(l.t.Context(), names.Trigger(p, ">"))
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				return false
			}
			if err != nil {
				l.t.Fatal(err)
			}
			trigger, err := names.ParseTrigger(m.Subject, m.Header, m.Data)
			if err != nil {
				l.t.Fatal(err)
			}
			return !trigger.Forced() && trigger.Scheduled.After(moment)
		})
	}
}

func now() int64 { return time.Now().UnixMilli() }

// wait waits between two commands. It returns false if the load has ended.
func (l *load) wait(d time.Duration) bool {
	l.mu.Lock()
	l.ops++
	l.mu.Unlock()
	select {
	case <-l.ctx.Done():
		return false
	case <-time.After(d/2 + rand.N(d)):
		return true
	}
}

func (l *load) add(e *era) *era {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.history.eras = append(l.history.eras, e)
	return e
}

var unavailable = &carillon.Error{Code: carillon.CodeUnavailable}

// sure asks until there is an answer, even if the load ends meanwhile, so that every outcome is known. It must be harmless
// to ask again. If a copy of the command may still come late, the job rests: the copy changes nothing as long as nothing
// else has happened to the job; after that it would.
func (l *load) sure(j *recurring, ask func(ctx context.Context, options ...carillon.CommandOption) (carillon.JobReply, error)) (r carillon.JobReply, err error) {
	same := carillon.RequestID(crand.Text())
	ctx := context.WithoutCancel(l.ctx)
	began := time.Now()
	if l.late.Load() {
		if r, err = ask(timeout(ctx, tryFor/3), same, carillon.NoRetry()); !errors.Is(err, unavailable) {
			return r, err
		}
		l.mu.Lock()
		j.rests = true
		l.mu.Unlock()
	}
	for {
		if r, err = ask(ctx, same); !errors.Is(err, unavailable) || time.Since(began) > time.Minute {
			return r, err
		}
	}
}

func (l *load) get(id string) (r carillon.JobReply, err error) {
	ctx := context.WithoutCancel(l.ctx)
	for began := time.Now(); ; {
		if r, err = l.client.Get(ctx, id); !errors.Is(err, unavailable) || time.Since(began) > time.Minute {
			return r, err
		}
	}
}

func (l *load) ask(j *recurring, job carillon.Job) (carillon.JobReply, error) {
	return l.sure(j, func(ctx context.Context, options ...carillon.CommandOption) (carillon.JobReply, error) {
		return l.client.Put(ctx, job, options...)
	})
}

var intervals = []time.Duration{20, 50, 50, 100, 100, 100, 100, 250, 250}

var crons = []string{"* * * * * *", "*/2 * * * * *", "0,7,20-50/3 * * * * *", "30-45 * * * * *"}

// spec returns a job with a random schedule, and when it is due.
func spec(id string) (carillon.Job, grid) {
	// The payload is never the same twice: a put of what is there already changes nothing.
	job := carillon.Job{ID: id, Topic: "kill." + id[:1], Payload: []byte(crand.Text()), Misfire: carillon.Misfire(rand.N(3)), Priority: carillon.Priority(rand.N(3))}
	if rand.N(6) == 0 {
		job.Schedule = crons[rand.N(len(crons))]
		return job, cron(job.Schedule)
	}
	interval := intervals[rand.N(len(intervals))] * time.Millisecond
	start := now() - rand.Int64N(10_000)
	job.Schedule, job.Start = "@every "+interval.String(), time.UnixMilli(start).UTC()
	return job, every(start, interval.Milliseconds())
}

func (l *load) recurring(name string) {
	jobs := make([]*recurring, jobsPerLoader)
	for i, made := 0, 0; ; i, made = rand.N(len(jobs)), made+1 {
		if made < len(jobs) {
			i = made
		}
		j := jobs[i]
		var err error
		switch op := rand.N(10); {
		case j != nil && l.resting(j):
		case j == nil:
			jobs[i], err = l.create(fmt.Sprintf("%s-%d", name, made))
		case op < 3:
			err = l.put(j, l.raw && rand.N(2) == 0)
		case op < 5:
			err = l.pause(j)
		case op < 6 && !j.forced:
			if err = l.delete(j); err == nil {
				jobs[i] = nil
			}
		case op < 8:
			err = l.fire(j)
		default:
			var r carillon.JobReply
			if r, err = l.get(j.id); err == nil {
				l.learn(j, r)
			}
		}
		if err != nil && l.ctx.Err() == nil {
			l.t.Errorf("%s: %v", name, err)
			return
		}
		if !l.wait(opPause) {
			return
		}
	}
}

func (l *load) resting(j *recurring) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return j.rests
}

// settled tells the load that no copy of a command that was sent before can still come.
func (l *load) settled() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, j := range l.live {
		j.rests = false
	}
}

func (l *load) create(id string) (*recurring, error) {
	j := &recurring{id: id}
	if err := l.put(j, false); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live = append(l.live, j)
	return j, nil
}

// learn notes what a reply says about a job whose version is known.
func (l *load) learn(j *recurring, r carillon.JobReply) {
	if r.Version != j.era.version {
		l.t.Errorf("%s is at version %d", j.era, r.Version)
	}
	if r.Fires > 0 {
		j.known = max(j.known, r.LastScheduled.UnixMilli())
		l.mu.Lock()
		j.era.mustTo = max(j.era.mustTo, j.known)
		l.mu.Unlock()
	}
}

// end closes the version in force. decided is the latest fire that it decided, -1 if that is not known.
func (l *load) end(j *recurring, decided int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := j.era
	e.skipTo = now() + 100
	if decided < 0 {
		e.fireTo = e.skipTo
		return
	}
	if decided < j.known {
		l.t.Errorf("%s: the latest fire was %d, now it is %d", e, j.known, decided)
	}
	j.known = decided
	e.mustTo, e.fireTo = decided, decided
}

// steady adds jobs that fire once a second and are left alone until the load ends.
func (l *load) steady(n int) {
	var work sync.WaitGroup
	defer work.Wait()
	for first := range loaders {
		work.Go(func() {
			for i := first; i < n; i += loaders {
				j, start := &recurring{id: fmt.Sprintf("steady-%d", i)}, now()-rand.Int64N(1000)
				job := carillon.Job{ID: j.id, Topic: "steady", Schedule: "@every 1s", Start: time.UnixMilli(start).UTC(), Misfire: carillon.FireAll}
				if err := l.putAs(j, job, every(start, 1000), false); err != nil {
					l.t.Error(err)
					return
				}
				l.mu.Lock()
				l.live = append(l.live, j)
				l.mu.Unlock()
			}
		})
	}
}

func (l *load) put(j *recurring, raw bool) error {
	job, due := spec(j.id)
	return l.putAs(j, job, due, raw)
}

// putAs puts a job whose due times are a grid.
func (l *load) putAs(j *recurring, job carillon.Job, due grid, raw bool) error {
	before := now()
	var r carillon.JobReply
	var err error
	if raw {
		r, err = l.putRaw(j, job)
	} else {
		r, err = l.ask(j, job)
	}
	if err != nil {
		return err
	}
	after := now()
	want := uint64(1)
	if j.era != nil {
		want = j.era.version + 1
	}
	if r.Version != want {
		return fmt.Errorf("%s is at version %d after a put, expected %d", j.id, r.Version, want)
	}
	// A reply that counts no fire of the new version was made before its first. Then it is known exactly where the old version ends and
	// where the new one begins.
	exact := r.Fires == 0 && r.Skipped == 0
	if j.era != nil {
		decided := int64(-1)
		if exact {
			decided = millis(r.LastScheduled)
		}
		l.end(j, decided)
	}
	e := &era{
		job: j.id, version: r.Version, grid: due, misfire: job.Misfire, payload: string(job.Payload),
		mayFrom: before, mustFrom: after + 1, mustTo: 0, fireTo: forever, skipTo: forever,
	}
	if exact {
		e.mayFrom, e.mustFrom = millis(r.Next), millis(r.Next)
		// What the earlier version has fired within the lead, a few ms ahead, this one does not fire again.
		if between := due(max(after, millis(r.LastScheduled))+1, e.mayFrom-1); e.mayFrom < before || len(between) > 0 {
			return fmt.Errorf("%s was put between %d and %d and fires first at %d, after %v: %+v", e, before, after, e.mayFrom, between, r)
		}
	}
	j.era = l.add(e)
	return nil
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// send publishes a raw command until it is acknowledged.
func (l *load) send(j *recurring, cmd carillon.Command) error {
	_, err := l.sure(j, func(ctx context.Context, _ ...carillon.CommandOption) (carillon.JobReply, error) {
		_, err := l.client.Send(ctx, cmd)
		return carillon.JobReply{}, err
	})
	return err
}

// putRaw sends a put as a raw command and asks until it was applied.
func (l *load) putRaw(j *recurring, job carillon.Job) (carillon.JobReply, error) {
	if err := l.send(j, carillon.Command{Verb: carillon.VerbPut, Job: j.id, Body: carillon.AppendPut(nil, &job, nil)}); err != nil {
		return carillon.JobReply{}, err
	}
	for {
		r, err := l.get(j.id)
		if err != nil || r.Version != j.era.version {
			return r, err
		}
	}
}

func (l *load) pause(j *recurring) error {
	r, err := l.sure(j, func(ctx context.Context, options ...carillon.CommandOption) (carillon.JobReply, error) {
		return l.client.Pause(ctx, j.id, options...)
	})
	if err != nil {
		return err
	}
	l.learn(j, r)
	paused := span{from: j.known + 1} // what was due and not yet decided is paused, too
	for l.resting(j) && l.ctx.Err() == nil {
		l.wait(opPause)
	}
	l.wait(opPause)
	if r, err = l.sure(j, func(ctx context.Context, options ...carillon.CommandOption) (carillon.JobReply, error) {
		return l.client.Resume(ctx, j.id, options...)
	}); err != nil {
		return err
	}
	l.learn(j, r)
	paused.to = now()
	l.mu.Lock()
	defer l.mu.Unlock()
	j.era.pauses = append(j.era.pauses, paused)
	return nil
}

func (l *load) delete(j *recurring) error {
	r, err := l.sure(j, func(ctx context.Context, options ...carillon.CommandOption) (carillon.JobReply, error) {
		return l.client.Delete(ctx, j.id, options...)
	})
	decided := int64(-1)
	l.mayRefuse(refusal{j.id, string(carillon.VerbDelete), carillon.CodeNotFound}, times{0, anyNumber}) // when it was sent again
	switch {
	case errors.Is(err, &carillon.Error{Code: carillon.CodeNotFound}) || err == nil && r.Version == 0: // by an earlier try
	case err != nil:
		return err
	case r.Status != carillon.StatusDeleted || r.Version != j.era.version:
		return fmt.Errorf("%s was deleted: %+v", j.era, r)
	default:
		decided = max(millis(r.LastScheduled), j.known)
	}
	l.end(j, decided)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.live {
		if l.live[i] == j {
			l.live = append(l.live[:i], l.live[i+1:]...)
			break
		}
	}
	return nil
}

// timeout returns a context with a timeout, which needs no cancel.
func timeout(ctx context.Context, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(ctx, d)
	context.AfterFunc(ctx, cancel)
	return ctx
}

func (l *load) fire(j *recurring) error {
	j.forced = true
	var id string
	if l.raw && rand.N(2) == 0 {
		seq, err := l.client.Send(timeout(context.WithoutCancel(l.ctx), time.Second), carillon.Command{Verb: carillon.VerbFire, Job: j.id})
		if err == nil {
			id = carillon.FormatForcedID(j.id, seq)
		} else if !errors.Is(err, unavailable) {
			return err
		}
	} else {
		r, err := l.client.Fire(timeout(context.WithoutCancel(l.ctx), time.Second), j.id)
		if err == nil {
			id = r.Trigger
		} else if !errors.Is(err, unavailable) {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if id == "" {
		l.history.maybeFired[j.id]++
		late := refusal{j.id, string(carillon.VerbFire), carillon.CodeNotFound} // when the job is gone already
		l.history.refused[late] = times{0, l.history.refused[late].most + 1}
	} else {
		l.history.forced[id] = true
	}
	return nil
}

func (l *load) oneShots(name string) {
	for i := 0; ; i++ {
		shoot := l.oneShot
		switch i % 16 {
		case 3:
			shoot = l.few
		case 5:
			shoot = l.refused
		case 7, 15:
			shoot = l.importOneShots
		}
		if err := shoot(fmt.Sprintf("%s-%d", name, i)); err != nil && l.ctx.Err() == nil {
			l.t.Errorf("%s: %v", name, err)
			return
		}
		if !l.wait(oneShotPause) {
			return
		}
	}
}

// few puts a job that fires a few times, in intervals from its acceptance on, and completes.
func (l *load) few(id string) error {
	interval, limit := 20+rand.Int64N(80), 1+rand.N(8)
	job := carillon.Job{
		ID: id, Topic: "few", Schedule: fmt.Sprintf("@every %dms", interval), MaxFires: uint64(limit), Misfire: carillon.Misfire(rand.N(3)),
		Payload: []byte(crand.Text()),
	}
	first := now() + interval // or later
	r, err := l.ask(&recurring{id: id}, job)
	if err != nil {
		return err
	}
	next, exact := millis(r.Next), r.Fires == 0 && r.Skipped == 0
	if next == 0 { // it has completed
		next = millis(r.LastScheduled)
	}
	if next < first || exact && next > now()+interval {
		return fmt.Errorf("%s each %d ms, first at %d or later, is due at %d: %+v", id, interval, first, next, r)
	}
	e := &era{
		job: id, version: 1, misfire: job.Misfire, limit: limit, payload: string(job.Payload),
		mayFrom: first, mustFrom: now() + interval, mustTo: forever, fireTo: forever, skipTo: forever,
	}
	if exact {
		e.mayFrom, e.mustFrom = next, next
	}
	e.grid = every(next-(next-e.mayFrom)/interval*interval, interval)
	l.add(e)
	l.mu.Lock()
	l.last = max(l.last, next+int64(limit)*interval)
	l.mu.Unlock()
	return nil
}

// refused sends a command that is refused, once.
func (l *load) refused(id string) (err error) {
	of := refusal{id, string(carillon.VerbPause), carillon.CodeNotFound}
	ctx := timeout(context.WithoutCancel(l.ctx), time.Second)
	if l.raw && rand.N(2) == 0 {
		of.verb, of.code = string(carillon.VerbPut), carillon.CodeInvalidSchedule
		_, err = l.client.Send(ctx, carillon.Command{Verb: carillon.VerbPut, Job: id, Body: []byte(`{"schedule":"@never","topic":"once"}`)})
	} else if _, err = l.client.Pause(ctx, id, carillon.NoRetry()); errors.Is(err, &carillon.Error{Code: of.code}) {
		err = nil
	} else if err == nil {
		return fmt.Errorf("%s was paused, which nobody put", id)
	}
	switch {
	case err == nil:
		l.mayRefuse(of, times{1, 1})
	case errors.Is(err, unavailable):
		l.mayRefuse(of, times{0, 1})
	default:
		return err
	}
	return nil
}

func (l *load) mayRefuse(of refusal, n times) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.history.refused[of] = n
}

// importOneShots puts some one-shots in one request, which it sends again, as the same one, until its outcome is known. Each fires once.
func (l *load) importOneShots(id string) error {
	var body []byte
	var eras []*era
	due := now() + 20 + rand.Int64N(1500)
	for i := range int64(6) {
		e := &era{job: fmt.Sprintf("%s-i%d", id, i), version: 1, mustTo: forever, fireTo: forever, skipTo: forever, grid: at(due + i)}
		job := carillon.Job{ID: e.job, Schedule: "@at " + time.UnixMilli(due+i).UTC().Format(carillon.TimeFormat), Topic: "once"}
		body = append(carillon.AppendImport(body, &carillon.ImportJob{Job: job}), '\n')
		eras = append(eras, e)
	}
	if err := l.importSurely(body, id); err != nil {
		return err
	}
	for _, e := range eras {
		l.add(e)
	}
	l.mu.Lock()
	l.last = max(l.last, due+6)
	l.mu.Unlock()
	return nil
}

func (l *load) importSurely(body []byte, request string) error {
	m := nats.NewMsg(carillon.DefaultNames().API(carillon.VerbImport, ""))
	m.Data = body
	m.Header.Set(carillon.HeaderRequest, request)
	deadline := time.Now().Add(10 * tryFor)
	for {
		ctx := timeout(context.WithoutCancel(l.ctx), tryFor/3)
		answer, err := l.nc.RequestMsgWithContext(ctx, m)
		var reply carillon.ImportReply
		if err == nil {
			reply, err = carillon.ParseImportReply(answer.Data)
		}
		if err == nil && len(reply.Failed) > 0 {
			return reply.Failed[0].Error
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
		l.wait(oneShotPause)
	}
}

// oneShot puts a one-shot. Whatever happens to it, it fires once, unless its deletion is answered before.
func (l *load) oneShot(id string) error {
	ctx := context.WithoutCancel(l.ctx) // so that its outcome is always known
	j := &recurring{id: id}
	due := now() + 20 + rand.Int64N(1500)
	job := carillon.Job{ID: id, Schedule: "@at " + time.UnixMilli(due).UTC().Format(carillon.TimeFormat), Topic: "once"}
	e := &era{job: id, version: 1, mustTo: forever, fireTo: forever, skipTo: forever}
	if rand.N(10) == 0 {
		job.Expires, e.expires = 100*time.Millisecond, true
	}
	kind := rand.N(10)
	switch {
	case kind < 6 && l.raw:
		if err := l.send(j, carillon.Command{Verb: carillon.VerbPut, Job: id, Body: carillon.AppendPut(nil, &job, nil), Request: id}); err != nil {
			return err
		}
	case kind < 7:
		delay := 1 + rand.Int64N(1500)
		job.Schedule = fmt.Sprintf("@in %dms", delay)
		before := now()
		r, err := l.ask(j, job)
		if err != nil {
			return err
		}
		if due = millis(r.Next); due == 0 {
			due = millis(r.LastScheduled)
		}
		if due == 0 && e.expires { // skipped already; the event tells when it was due
			e.mayFrom, e.mustFrom = before+delay, forever
			e.grid = func(from, to int64) []int64 { return every(before+delay, 1)(max(from, before+delay), min(to, now())) }
			l.add(e)
			return nil
		}
		if due < before+delay || due > now()+delay {
			return fmt.Errorf("%s in %d ms, put at %d, is due at %d", id, delay, before, due)
		}
	default:
		if _, err := l.ask(j, job); err != nil {
			return err
		}
	}
	e.grid = at(due)
	l.add(e)
	l.mu.Lock()
	l.last = max(l.last, due)
	l.mu.Unlock()
	if kind != 9 || e.expires || l.resting(j) || !l.wait(200*time.Millisecond) {
		return nil
	}
	l.mayRefuse(refusal{id, string(carillon.VerbDelete), carillon.CodeNotFound}, times{0, anyNumber}) // when it is sent again
	r, err := l.client.Delete(timeout(ctx, time.Second), id)
	answered := now()
	if err != nil || r.Version == 0 {
		l.mu.Lock()
		e.mustTo = 0 // it may fire, or not
		l.mu.Unlock()
		return nil
	}
	if r.LastScheduled.IsZero() {
		l.mu.Lock()
		e.mustTo, e.fireTo, e.skipTo = 0, 0, 0
		l.mu.Unlock()
	} else if answered < due-10 {
		return fmt.Errorf("%s was deleted at %d, and had fired at %d", id, answered, due)
	}
	return nil
}

// finish ends the load, waits until all that is due has been published, and returns the history and its end.
func (l *load) finish() (h *history, end int64) {
	l.t.Helper()
	eventually(l.t, "there is something to check", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		refusals := slices.ContainsFunc(slices.Collect(maps.Values(l.history.refused)), func(n times) bool { return n.least > 0 })
		completions := slices.ContainsFunc(l.history.eras, func(e *era) bool { return e.limit > 0 })
		return len(l.history.forced) > 0 && refusals && completions || l.t.Failed()
	})
	l.stop()
	l.work.Wait()
	l.ctx = l.t.Context()
	if l.t.Failed() {
		l.t.FailNow()
	}
	l.drained("forced fires are out", func(p carillon.PartitionStatus) bool { return p.Ready == 0 })
	for len(l.live) > 0 {
		if err := l.delete(l.live[0]); err != nil {
			l.t.Fatal(err)
		}
	}
	// The last one-shot is due, and so is what was decided within the lead before the jobs were deleted.
	over := max(l.last, now()) + 100
	eventually(l.t, "nothing is due any more", func() bool { return now() > over })
	end = now()
	eventually(l.t, "all one-shots are decided", func() bool { return countJobs(l.t, l.client, carillon.StatusScheduled) == l.far })
	l.drained("everything is out", func(p carillon.PartitionStatus) bool { return p.Ready == 0 && p.Published == p.Outputs })
	return &l.history, end
}

// verify ends the load, reads all outputs, and compares them with what the client was told. No engine was up during downs.
func (l *load) verify(partitions int, downs ...span) (all []output) {
	l.t.Helper()
	h, end := l.finish()
	h.downs = downs
	all = allOutputs(l.t, l.nc, partitions)
	h.verify(l.t, all, end)
	return all
}

func (l *load) drained(what string, done func(carillon.PartitionStatus) bool) {
	l.t.Helper()
	eventuallyEach(l.t, l.client, what, func(p carillon.PartitionStatus) bool {
		if p.Stopped != "" {
			l.t.Fatalf("partition %d stopped: %s", p.Partition, p.Stopped)
		}
		return done(p)
	})
}
