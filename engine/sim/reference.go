package sim

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

// reference is a partition as the design describes it, without regard to cost: no wheel, no queue, and nothing
// kept between ticks but the jobs. It finds what is due by looking at every job.
type reference struct {
	layout    engine.Layout
	partition int
	bounds    engine.Bounds

	now, to    int64
	epoch      uint64
	claim      engine.Claim
	diskLow    bool
	jobs       []*refJob
	created    uint64
	finished   uint64
	armed      uint64
	reached    [3]int64 // by rank: fires due up to then have become ready
	goneAt     int64    // jobs that completed up to then are gone
	gone       uint64   // and so are the first so many jobs that completed
	gaps       [][2]int64
	forced     []*refForced
	refused    []*refRefusal
	tombstones []refTombstone
	outputs    []expected
	answers    map[uint64]string // by sequence: the outcome of a command, or of each job of an import
	versions   []*jobVersion
	left       int
	logged     int64 // when the tick was
	moves      int
}

const never = math.MaxInt64

type refJob struct {
	id                   string
	spec                 put
	size                 int // about how many bytes the engine's form of it has
	current              *jobVersion
	version, order       uint64
	request              string
	next, last           int64
	fires                uint64
	counted              uint64
	countedFirst, skipTo int64
	missedTo             int64  // fires before it were missed before the job was put back,
	missedAs             string // and fall under this policy; "": the job's own
	paused, completed    bool
	announced            bool // it was completed when it was put, and its event waits
	ready                bool // its next fire is due and has become ready
	armed                uint64
	completedAt          int64
	completion           uint64
}

// jobVersion is one version of a job, from its acceptance on, with all that it fired or skipped.
type jobVersion struct {
	job                    string
	incarnation, version   uint64
	times                  times
	accepted               int64
	from                   int64 // the first fire is at or after this
	ended                  bool
	fires, missed, skipped uint64
	decided                int64 // fires up to here are accounted for
}

// refTombstone is what remains of a deleted job that has fired, for as long as a completed job is kept.
type refTombstone struct {
	id       string
	last, at int64
}

type refForced struct {
	seq  uint64
	at   int64
	job  *refJob
	body *string
}

type refRefusal struct {
	seq       uint64
	at        int64
	verb, job string
	code      carillon.Code
	count     uint64
}

// expected is an output as it must be, as far as the reference says.
type expected struct {
	job, id   string // of a trigger
	version   uint64
	missed    uint64
	due       int64
	topic, of string // the job's topic and header
	payload   string
	event     carillon.Event
}

// times is a schedule, with its own arithmetic.
type times struct {
	kind       byte // 'a' once, 'e' every, 'c' cron, 0 none
	at         int64
	period     int64
	start, end int64
	offset     int64
}

func (r *reference) times(id string, p *put, now int64) times {
	t := times{end: never}
	if p.Start != nil {
		t.start = p.Start.UnixMilli()
	}
	if p.End != nil {
		t.end = p.End.UnixMilli()
	}
	if p.Spread != "" {
		t.offset = schedule.Offset(id, duration(p.Spread))
	}
	form, rest, _ := strings.Cut(p.Schedule, " ")
	switch form {
	case "":
	case "@at":
		at, err := time.Parse(time.RFC3339Nano, rest)
		if err != nil {
			panic(err) // the client wrote it
		}
		t.kind, t.at = 'a', at.UnixMilli()
	case "@in":
		t.kind, t.at = 'a', now+duration(rest)
	case "@every":
		t.kind, t.period, t.at = 'e', duration(rest), t.start
		if t.start == 0 {
			t.at = now + t.period
		}
	default:
		t.kind, t.period = 'c', map[string]int64{
			"* * * * * *": 1000, "*/10 * * * * *": 10_000, "* * * * *": 60_000, "0 * * * *": hour,
		}[p.Schedule]
	}
	return t
}

func duration(s string) int64 {
	d, err := time.ParseDuration(s)
	if err != nil {
		panic(err) // the client wrote it
	}
	return d.Milliseconds()
}

// after is the first fire after a time, or never.
func (t *times) after(after int64) int64 {
	after = max(after-t.offset, -1)
	at := int64(never)
	switch t.kind {
	case 'a':
		if t.at > after && t.at >= t.start {
			at = t.at
		}
	case 'e':
		at = t.at
		if at <= after {
			at += ((after-at)/t.period + 1) * t.period
		}
	case 'c':
		at = max(after+1, t.start)
		at = (at + t.period - 1) / t.period * t.period
	}
	if at == never || at >= t.end {
		return never
	}
	return at + t.offset
}

// count is how many fires there are in [from, until], and the last of them.
func (t *times) count(from, until int64) (n uint64, last int64) {
	first := t.after(from - 1)
	if first > until {
		return 0, 0
	}
	if t.kind == 'a' {
		return 1, first
	}
	if t.end != never {
		until = min(until, t.end-1+t.offset)
	}
	k := (until - first) / t.period
	return uint64(k) + 1, first + k*t.period
}

func (r *reference) apply(rec *engine.Record) {
	e := r.layout.Decode(rec)
	if !concerns(&e, r.partition) {
		return
	}
	before := r.now
	r.now = max(r.now, e.Time)
	switch e.Kind {
	case engine.KindGarbage:
	case engine.KindTick:
		for _, t := range e.Ticks {
			if t.Partition == r.partition {
				now := r.now
				r.now = before // during the tick its record's timestamp does not count yet
				r.tick(&e, &t)
				r.now = now
				break
			}
		}
	case engine.KindClaim:
		if e.Claim.Node != "old" {
			r.epoch, r.claim = e.Seq, e.Claim
		}
	case engine.KindDisk:
		if e.Disk.Epoch == r.epoch && r.epoch > 0 {
			r.diskLow = e.Disk.Low
		}
	case engine.KindImport:
		for i := range e.Pack {
			p := &e.Pack[i]
			job, err := p.Job()
			if err != nil {
				panic(err) // the client packed it
			}
			put := engine.Entry{Seq: e.Seq, Kind: engine.KindPut, Verb: "put", Job: p.ID, Request: p.Request, Body: carillon.AppendPut(nil, &job, p.IfVersion)}
			r.decide(&put, p)
		}
	default:
		r.decide(&e, &engine.PackedJob{})
	}
}

func (r *reference) decide(e *engine.Entry, packed *engine.PackedJob) {
	r.expire(r.now)
	changed, code := r.command(e, packed)
	if code != "" {
		r.refuse(e, code)
	}
	if r.answers == nil {
		r.answers = make(map[uint64]string)
	}
	r.answers[e.Seq] += outcome(changed, code)
}

// outcome is what a command's sender is told of it.
func outcome(changed bool, refused carillon.Code) string {
	switch {
	case refused != "":
		return string(refused) + " "
	case changed:
		return "changed "
	}
	return "unchanged "
}

// find returns the job with an id. If the job is gone by now, find removes it.
func (r *reference) find(id string) *refJob {
	for _, j := range r.jobs {
		if j.id == id && r.isGone(j) {
			r.drop(j)
			return nil
		}
		if j.id == id {
			return j
		}
	}
	return nil
}

// isGone tells whether a completed job has been kept for long enough, or enough others have completed after it, and
// nothing of it still waits.
func (r *reference) isGone(j *refJob) bool {
	return j.completed && (j.completedAt <= r.goneAt || j.completion <= r.gone) &&
		!j.announced && !slices.ContainsFunc(r.forced, func(f *refForced) bool { return f.job == j })
}

func (r *reference) expire(now int64) {
	if r.epoch > 0 {
		r.goneAt = max(r.goneAt, now-r.claim.RetentionMS)
		r.gone = max(r.gone, r.finished-min(r.finished, uint64(r.claim.CompletedMax)))
	}
}

func (r *reference) command(e *engine.Entry, packed *engine.PackedJob) (changed bool, refused carillon.Code) {
	switch {
	case e.Kind == engine.KindUnknown:
		return false, carillon.CodeInvalidField
	case len(e.Job) > 128 || strings.Contains(e.Job, "*"):
		return false, carillon.CodeInvalidJobID
	case engine.PartitionOf(e.Job, r.layout.Partitions) != r.partition:
		return false, carillon.CodeInvalidJobID
	}
	j := r.find(e.Job)
	if e.Kind == engine.KindPut {
		return r.put(e, j, packed)
	}
	repeated := j != nil && e.Kind != engine.KindDelete && e.Request != "" && j.request == e.Request
	var c condition
	if e.Kind != engine.KindFire && len(e.Body) > 0 && json.Unmarshal(e.Body, &c) != nil {
		return false, carillon.CodeInvalidJSON
	}
	switch {
	case j == nil:
		return false, carillon.CodeNotFound
	case c.IfVersion != nil && *c.IfVersion != j.version && !repeated:
		return false, carillon.CodeVersionConflict
	}
	switch e.Kind {
	case engine.KindDelete:
		if j.last > 0 {
			r.tombstones = append(r.tombstones, refTombstone{j.id, j.last, r.now})
			for len(r.tombstones) > 0 && r.now >= r.tombstones[0].at+r.claim.RetentionMS {
				r.tombstones = r.tombstones[1:]
			}
		}
		r.drop(j)
		return true, ""
	case engine.KindPause:
		if j.paused || j.completed {
			return false, ""
		}
		j.paused, j.ready = true, false
	case engine.KindResume:
		if !j.paused {
			return false, ""
		}
		j.paused = false
		if j.next <= r.now {
			j.skipTo = r.now
		}
		r.arm(j)
	case engine.KindFire:
		if repeated {
			return false, ""
		}
		f := &refForced{seq: e.Seq, at: r.now, job: j}
		var body struct{ Payload json.RawMessage }
		if len(e.Body) > 0 {
			if err := json.Unmarshal(e.Body, &body); err != nil {
				return false, carillon.CodeInvalidJSON
			}
			f.body = ptr(string(body.Payload))
		}
		r.forced = append(r.forced, f)
	}
	j.request = e.Request
	return true, ""
}

func (r *reference) put(e *engine.Entry, j *refJob, packed *engine.PackedJob) (changed bool, refused carillon.Code) {
	state := packed.State
	if code, ok := badBodies[string(e.Body)]; ok {
		return false, code
	}
	var p put
	if err := json.Unmarshal(e.Body, &p); err != nil {
		panic(err) // the client wrote it
	}
	condition := p.IfVersion
	p.IfVersion = nil
	if j != nil && packed.IfAbsent {
		return false, ""
	}
	if j != nil && e.Request != "" && j.request == e.Request {
		return false, ""
	}
	asWanted := func() bool {
		if state == nil {
			return !j.completed
		}
		return j.version >= state.Version && j.accepted() == state.Accepted && j.last >= state.Last
	}
	if j != nil && same(p, j.spec) && asWanted() {
		if packed.Paused && !j.paused && !j.completed {
			j.paused, j.ready, j.request = true, false, e.Request
			return true, ""
		}
		return false, ""
	}
	switch {
	case condition == nil:
	case j == nil && *condition != 0:
		return false, carillon.CodeNotFound
	case j != nil && *condition != j.version:
		return false, carillon.CodeVersionConflict
	}
	job, _, err := carillon.ParsePut(e.Body)
	if err != nil {
		panic(err) // the client wrote it
	}
	packedSpec := engine.Pack(&job, nil, "").Spec
	accepted, from := r.now, r.now
	if strings.HasPrefix(p.Schedule, "@at") {
		from = 0
	}
	if state != nil {
		accepted, from = state.Accepted, state.From
	}
	t := r.times(e.Job, &p, accepted)
	var last int64
	tombstone := slices.IndexFunc(r.tombstones, func(g refTombstone) bool { return g.id == e.Job })
	switch {
	case j != nil:
		last = j.last
	case tombstone >= 0:
		last = r.tombstones[tombstone].last
	}
	if state != nil {
		last = max(last, state.Last)
	}
	if last > 0 {
		from = max(from, last+1)
	}
	next := t.after(from - 1)
	if state != nil && p.MaxFires > 0 && state.Fires >= p.MaxFires {
		next = never
	}
	if next == never && t.kind != 0 && last == 0 && state == nil {
		return false, carillon.CodeInvalidField
	}
	if j == nil && r.diskLow {
		return false, carillon.CodeLimitExceeded
	}
	if j == nil {
		if tombstone >= 0 {
			r.tombstones = slices.Delete(r.tombstones, tombstone, tombstone+1)
		}
		r.created++
		j = &refJob{id: e.Job, order: r.created, last: last}
		r.jobs = append(r.jobs, j)
	} else {
		j.current.ended = true
	}
	paused := j.paused || packed.Paused
	*j = refJob{id: j.id, order: j.order, version: j.version + 1, spec: p, size: rough(len(packedSpec)), request: e.Request, last: last, next: next, paused: paused}
	if state != nil {
		j.version, j.fires = max(j.version, state.Version), state.Fires
		if next < r.now-1000 {
			j.missedTo, j.missedAs = r.now-1000, []string{"", "fire_once", "fire_all", "skip"}[state.Missed]
		}
	}
	j.current = &jobVersion{job: j.id, incarnation: j.order, version: j.version, times: t, accepted: accepted, from: from, decided: from - 1}
	r.versions = append(r.versions, j.current)
	if next == never && t.kind != 0 {
		r.complete(j)
		j.announced = t.kind != 'a' && state == nil
	} else if !paused {
		r.arm(j)
	}
	return true, ""
}

func same(a, b put) bool { return encode(canonical(a)) == encode(canonical(b)) }

func canonical(p put) put {
	if p.Misfire == "fire_once" {
		p.Misfire = ""
	}
	if p.Topic == carillon.DefaultTopic {
		p.Topic = ""
	}
	return p
}

func (r *reference) drop(j *refJob) {
	j.current.ended = true
	r.jobs = slices.DeleteFunc(r.jobs, func(o *refJob) bool { return o == j })
	r.forced = slices.DeleteFunc(r.forced, func(f *refForced) bool { return f.job == j })
}

func (r *reference) complete(j *refJob) {
	r.finished++
	j.completed, j.paused, j.ready, j.completedAt, j.completion, j.next = true, false, false, max(r.to, r.now), r.finished, never
	j.current.ended = true
}

func (r *reference) refuse(e *engine.Entry, code carillon.Code) {
	cut := func(s string) string { return s[:min(len(s), 128)] }
	for _, f := range r.refused {
		if f.verb == cut(e.Verb) && f.job == cut(e.Job) && f.code == code {
			f.count++
			return
		}
	}
	r.refused = append(r.refused, &refRefusal{e.Seq, r.now, cut(e.Verb), cut(e.Job), code, 1})
}

func (r *reference) tick(e *engine.Entry, t *engine.Tick) {
	if t.Epoch != r.epoch || r.epoch == 0 {
		return
	}
	before := r.to
	r.to = max(r.to, min(t.To, e.Time+50))
	if r.to > before+1000 {
		r.gaps = append(r.gaps, [2]int64{before, r.to})
	}
	r.left, r.moves = int(min(t.Limit, 1<<16)), r.bounds.Moves
	at := min(max(e.Time, before), r.to)
	r.logged = at
	r.countOn(countTurns)
	for {
		all := r.gather(at)
		for r.left > 0 && r.turn() {
		}
		if at >= r.to || !all || r.left <= 0 {
			break
		}
		next := r.to
		for _, j := range r.jobs {
			if j.waits() {
				next = min(next, j.next)
			}
		}
		at = max(next, at+1)
	}
	if waits := slices.ContainsFunc(r.jobs, func(j *refJob) bool { return j.announced || j.ready && !j.counting() }); !waits &&
		len(r.forced)+len(r.refused) == 0 {
		r.countOn(r.left)
	}
	r.expire(r.to)
	waiting := slices.Min(r.reached[:]) < r.to || len(r.forced)+len(r.refused) > 0
	for _, j := range r.jobs {
		waiting = waiting || j.announced || j.ready
	}
	if !waiting {
		r.gaps = nil
	}
}

var ranks = map[string]int{"high": 0, "": 1, "low": 2}

func (j *refJob) rank() int { return ranks[j.spec.Priority] }

// waits tells whether the job's next fire is still to become ready.
func (j *refJob) waits() bool { return !j.paused && !j.completed && !j.ready && j.next != never }

// arm makes a job wait for its next fire, or makes it ready if fires of that time have become ready already.
func (r *reference) arm(j *refJob) {
	if j.next != never {
		r.armed++
		j.armed, j.ready = r.armed, j.next <= r.reached[j.rank()]
	}
}

// moveStep is how many fires become ready between two looks at how many are.
const moveStep = 32

// rough rounds a length down: to a multiple of 16 that has three bits.
func rough(n int) int {
	unit := 16
	for n >= 8*unit {
		unit *= 2
	}
	return n / unit * unit
}

// gather makes fires ready that are due at a time, by priority, then due time, then the order in which they were
// computed, but none of a priority of which enough are ready. It tells whether all that are due have become ready.
func (r *reference) gather(at int64) (all bool) {
	all = true
	for rank := range r.reached {
		var due []*refJob
		ready, bytes, counting, countingBytes := 0, 0, 0, 0
		for _, j := range r.jobs {
			switch {
			case j.rank() != rank:
			case j.counting():
				counting++
				countingBytes += j.size
			case j.ready || j.announced:
				ready++
				bytes += j.size
			case j.waits() && j.next <= at:
				due = append(due, j)
			}
		}
		slices.SortFunc(due, func(a, b *refJob) int { return cmp.Or(cmp.Compare(a.next, b.next), cmp.Compare(a.armed, b.armed)) })
		n := 0
		few := ready < r.bounds.Ready && counting < 4*r.bounds.Ready
		for n < len(due) && few && r.moves > 0 && (n%moveStep > 0 || bytes < r.bounds.ReadyBytes && countingBytes < r.bounds.ReadyBytes) {
			due[n].ready = true
			if due[n].counting() {
				counting++
				countingBytes += due[n].size
			} else {
				bytes += due[n].size
				ready++
			}
			n++
			r.moves--
		}
		switch {
		case n == len(due):
			r.reached[rank] = max(r.reached[rank], at)
		case n > 0:
			r.reached[rank] = due[n-1].next
		}
		all = all && n == len(due)
	}
	return all
}

// turn takes the first fire that is ready: by priority, then due time, then order.
func (r *reference) turn() bool {
	type key struct {
		rank  int
		due   int64
		order uint64
		kind  int
	}
	less := func(a, b key) bool {
		switch {
		case a.rank != b.rank:
			return a.rank < b.rank
		case a.due != b.due:
			return a.due < b.due
		case a.order != b.order:
			return a.order < b.order
		}
		return a.kind < b.kind
	}
	best, act := key{rank: 3}, func() {}
	for _, j := range r.jobs {
		if k := (key{j.rank(), j.next, j.order, 0}); j.ready && !j.counting() && less(k, best) {
			best, act = k, func() { r.takeTurn(j) }
		}
	}
	for _, j := range r.jobs {
		if k := (key{j.rank(), j.completedAt, j.order, 0}); j.announced && less(k, best) {
			best, act = k, func() {
				j.announced = false
				r.completed(j)
			}
		}
	}
	for i, f := range r.forced {
		if k := (key{f.job.rank(), f.at, f.seq, 1}); less(k, best) {
			best, act = k, func() {
				r.forced = slices.Delete(r.forced, i, i+1)
				r.fire(f)
			}
		}
	}
	for i, f := range r.refused {
		if k := (key{2, f.at, f.seq, 2}); less(k, best) {
			best, act = k, func() {
				r.refused = slices.Delete(r.refused, i, i+1)
				r.event(carillon.Event{
					Kind: carillon.EventRejected, Verb: f.verb, Job: f.job, Error: &carillon.Error{Code: f.code}, Count: f.count, Time: millis(f.at),
				})
			}
		}
	}
	if best.rank == 3 {
		return false
	}
	r.left--
	act()
	return true
}

func (r *reference) fire(f *refForced) {
	body := payload(f.job.spec)
	if f.body != nil {
		body = *f.body
	}
	r.outputs = append(r.outputs, expected{
		job: f.job.id, id: carillon.FormatForcedID(f.job.id, f.seq), version: f.job.version, due: f.at,
		topic: f.job.spec.Topic, of: f.job.spec.Headers[headerOf], payload: body,
	})
}

func payload(p put) string {
	if p.Payload == nil {
		return ""
	}
	return encode(p.Payload)
}

func (r *reference) event(e carillon.Event) {
	r.left--
	r.outputs = append(r.outputs, expected{event: e})
}

const (
	countSlice = 512 // fires of a cron schedule that are counted in one turn
	countTurns = 64  // such turns of a tick while other fires are ready
)

// counting tells whether the job is ready, and some of its missed fires have been counted, but not all.
func (j *refJob) counting() bool { return j.ready && j.counted > 0 }

// countOn counts on, up to n turns, beginning with the job that has the latest fire to count next, then by order.
func (r *reference) countOn(n int) {
	for ; n > 0 && r.left > 0; n-- {
		var next *refJob
		for _, j := range r.jobs {
			if j.counting() && (next == nil || cmp.Or(cmp.Compare(next.next, j.next), cmp.Compare(j.order, next.order)) < 0) {
				next = j
			}
		}
		if next == nil {
			return
		}
		made := len(r.outputs)
		if r.takeTurn(next); len(r.outputs) > made {
			r.left--
		}
	}
}

// count counts the job's fires from its next one up to a time; for a cron schedule it takes several turns.
func (r *reference) count(j *refJob, until int64) (last int64, done bool) {
	if j.counted == 0 {
		j.countedFirst = j.next
	}
	n, last := j.current.times.count(j.next, until)
	if j.current.times.kind == 'c' && n > countSlice {
		last -= int64(n-countSlice) * j.current.times.period
		j.counted += countSlice
		j.next, j.ready = last+j.current.times.period, true
		return last, false
	}
	j.counted += n
	return last, true
}

func (r *reference) takeTurn(j *refJob) {
	j.ready = false
	if j.next <= j.skipTo {
		if last, done := r.count(j, j.skipTo); done {
			j.skipTo = 0
			r.skip(j, carillon.ReasonPaused, last)
		}
		return
	}
	until, policy, missed := r.missed(j)
	recurring := j.current.times.kind != 'a'
	if missed && policy != "fire_all" && (recurring || policy == "skip") {
		last, done := r.count(j, until)
		if !done {
			return
		}
		if policy == "skip" {
			r.skip(j, carillon.ReasonMisfire, last)
			return
		}
		j.next = last
	} else {
		j.counted, j.countedFirst = 1, j.next
	}
	if j.spec.Expires != "" && r.logged-j.next > duration(j.spec.Expires) {
		r.skip(j, carillon.ReasonExpired, j.next)
		return
	}
	others := j.counted - 1
	j.counted = 0
	j.fires++
	j.last = j.next
	j.current.fires, j.current.missed, j.current.decided = j.current.fires+1, j.current.missed+others, j.last
	r.outputs = append(r.outputs, expected{
		job: j.id, id: carillon.FormatTriggerID(j.id, j.last), version: j.version, missed: others, due: j.last,
		topic: j.spec.Topic, of: j.spec.Headers[headerOf], payload: payload(j.spec),
	})
	if j.spec.MaxFires > 0 && j.fires >= j.spec.MaxFires {
		r.end(j)
		return
	}
	r.advance(j, j.last)
}

// missed tells whether a job's next fire was missed, up to when others were, and under which policy they fall.
func (r *reference) missed(j *refJob) (until int64, policy string, missed bool) {
	policy = j.spec.Misfire
	if j.next < j.accepted() {
		return 0, policy, false
	}
	if j.next < j.missedTo {
		if j.missedAs != "" {
			policy = j.missedAs
		}
		return j.missedTo - 1, policy, true
	}
	for _, g := range r.gaps {
		if g[0] < j.next && j.next < g[1]-1000 {
			return g[1] - 1001, policy, true
		}
	}
	return 0, policy, false
}

// accepted is when the job's version was; fires before never existed, except that of a one-shot put late.
func (j *refJob) accepted() int64 { return j.current.accepted }

func (r *reference) skip(j *refJob, reason string, last int64) {
	r.event(carillon.Event{
		Kind: carillon.EventSkipped, Job: j.id, Version: j.version, Reason: reason, Count: j.counted,
		First: millis(j.countedFirst), Last: millis(last), Time: millis(r.to),
	})
	j.current.skipped, j.current.decided = j.current.skipped+j.counted, last
	j.counted = 0
	r.advance(j, last)
}

func (r *reference) advance(j *refJob, after int64) {
	if j.next = j.current.times.after(after); j.next == never {
		r.end(j)
		return
	}
	r.arm(j)
}

func (r *reference) end(j *refJob) {
	if j.current.times.kind != 'a' {
		r.completed(j)
	}
	r.complete(j)
}

func (r *reference) completed(j *refJob) {
	r.event(carillon.Event{Kind: carillon.EventCompleted, Job: j.id, Version: j.version, Last: lastOf(j), Time: millis(r.to)})
}

func lastOf(j *refJob) time.Time {
	if j.last == 0 {
		return time.Time{}
	}
	return millis(j.last)
}
