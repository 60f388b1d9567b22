package node_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon"
)

// The oracle says what must have fired. It knows only what the client was told, and steps through schedules by
// brute force; it shares no code with the engine. All times are unix ms.

// grid lists a schedule's due times from one time to another, both included.
type grid func(from, to int64) []int64

func at(t int64) grid {
	return func(from, to int64) []int64 {
		if from <= t && t <= to {
			return []int64{t}
		}
		return nil
	}
}

func every(start, interval int64) grid {
	return func(from, to int64) (due []int64) {
		d := start
		if from > start {
			d = start + (from-start)/interval*interval
		}
		for ; d <= to; d += interval {
			if d >= from {
				due = append(due, d)
			}
		}
		return due
	}
}

// cron steps second by second; only the fields for seconds and minutes may be other than *.
func cron(expression string) grid {
	field := strings.Fields(expression)
	second, minute := set(field[0]), set(field[1])
	return func(from, to int64) (due []int64) {
		for s := (from + 999) / 1000; s*1000 <= to; s++ {
			if second[s%60] && minute[s/60%60] {
				due = append(due, s*1000)
			}
		}
		return due
	}
}

func set(field string) (in [60]bool) {
	for part := range strings.SplitSeq(field, ",") {
		span, step, stepped := strings.Cut(part, "/")
		n := 1
		if stepped {
			n, _ = strconv.Atoi(step)
		}
		first, last := 0, 59
		if span != "*" {
			a, b, ranged := strings.Cut(span, "-")
			first, _ = strconv.Atoi(a)
			if last = first; ranged {
				last, _ = strconv.Atoi(b)
			}
		}
		for v := first; v <= last; v += n {
			in[v] = true
		}
	}
	return in
}

// era is the life of one version of a job, as far as the client can tell.
type era struct {
	job     string
	version uint64
	grid    grid
	misfire carillon.Misfire
	expires bool
	limit   int // of fires: with the last of them it completes; 0: it has no end, or is a one-shot
	payload string

	mayFrom, mustFrom int64 // due times from here on may fire; from here on they must be accounted for
	mustTo            int64 // up to here they must
	fireTo, skipTo    int64 // up to here they may fire, may be skipped
	pauses            []span
}

type span struct{ from, to int64 }

const forever = int64(1) << 60

// refusal is what a refused command's event names.
type refusal struct {
	job, verb string
	code      carillon.Code
}

// times bounds how often something may have happened.
type times struct{ least, most uint64 }

const anyNumber = ^uint64(0)

// history is everything the client was told.
type history struct {
	eras       []*era
	forced     map[string]bool   // ids of forced triggers that must be there
	maybeFired map[string]int    // fire commands of a job whose outcome is unknown
	refused    map[refusal]times // there must be no others
	downs      []span            // from a kill until the node was ready again
}

// account is what the streams say about one version.
type account struct {
	covered   map[int64]int // due time → how often it fired, was skipped or counted as missed
	fired     []int64
	completed int
}

// verify compares all outputs with the history.
func (h *history) verify(t testing.TB, all []output, end int64) {
	t.Helper()
	type key struct {
		job     string
		version uint64
	}
	eras := make(map[key]*era, len(h.eras))
	for _, e := range h.eras {
		if eras[key{e.job, e.version}] != nil {
			t.Fatalf("the test itself is wrong: %s version %d twice", e.job, e.version)
		}
		eras[key{e.job, e.version}] = e
	}
	accounts := make(map[*era]*account, len(h.eras))
	of := func(job string, version uint64) (*era, *account) {
		e := eras[key{job, version}]
		if e == nil {
			return nil, nil
		}
		if accounts[e] == nil {
			accounts[e] = &account{covered: make(map[int64]int)}
		}
		return e, accounts[e]
	}
	failures := 0
	fail := func(format string, v ...any) {
		if failures++; failures <= 20 {
			t.Errorf(format, v...)
		}
	}
	// A trigger must have what was put with its version. The payload shows that, because it differs with each put.
	payload := func(e *era, tr *carillon.Trigger) {
		if string(tr.Payload) != e.payload {
			fail("%s of version %d carries %q, expected %q", tr.ID, tr.Version, tr.Payload, e.payload)
		}
	}
	forced, rejected := make(map[string]int), make(map[refusal]uint64)
	var triggers, missed, skipped, stalls int
	for _, o := range all {
		switch {
		case o.trigger != nil && o.trigger.Forced():
			forced[o.trigger.ID]++
			if e, _ := of(o.trigger.Job, o.trigger.Version); e == nil {
				fail("%s is of version %d, which the client never made", o.trigger.ID, o.trigger.Version)
			} else {
				payload(e, o.trigger)
			}
		case o.trigger != nil:
			triggers++
			tr := o.trigger
			e, a := of(tr.Job, tr.Version)
			if e == nil {
				fail("%s of version %d fired, which the client never made", tr.ID, tr.Version)
				continue
			}
			payload(e, tr)
			ms := tr.Scheduled.UnixMilli()
			a.fired = append(a.fired, ms)
			a.covered[ms]++
			if ms < e.mayFrom || ms > e.fireTo {
				fail("%s of version %d fired outside its time, %d to %d", tr.ID, tr.Version, e.mayFrom, e.fireTo)
			}
			if tr.Missed == 0 {
				continue
			}
			missed += int(tr.Missed)
			before := e.grid(e.mayFrom, ms-1)
			if e.misfire != carillon.FireOnce || len(before) < int(tr.Missed) {
				fail("%s stands for %d others, of %d possible; its policy is %s", tr.ID, tr.Missed, len(before), e.misfire)
				continue
			}
			before = before[len(before)-int(tr.Missed):]
			if !h.down(before[0], ms) {
				stalls++
			}
			for _, d := range before {
				a.covered[d]++
			}
		case o.event.Kind == carillon.EventSkipped:
			ev := o.event
			skipped += int(ev.Count)
			e, a := of(ev.Job, ev.Version)
			if e == nil {
				fail("%s version %d was skipped, which the client never made", ev.Job, ev.Version)
				continue
			}
			first, last := ev.First.UnixMilli(), ev.Last.UnixMilli()
			due := e.grid(first, last)
			if len(due) == 0 || due[0] != first || due[len(due)-1] != last || uint64(len(due)) != ev.Count {
				fail("skipped event %+v: the schedule has %d due times there", *ev, len(due))
			}
			if first < e.mayFrom || last > e.skipTo {
				fail("skipped event %+v lies outside of the version's time, %d to %d", *ev, e.mayFrom, e.skipTo)
			}
			switch {
			case ev.Reason == carillon.ReasonMisfire && e.misfire == carillon.Skip:
				if !h.down(first, last) {
					stalls++
				}
			case ev.Reason == carillon.ReasonExpired && e.expires:
			case ev.Reason == carillon.ReasonPaused && slices.ContainsFunc(e.pauses, func(p span) bool { return p.from <= last && first <= p.to }):
			default:
				fail("skipped event %+v has no such reason", *ev)
			}
			for _, d := range due {
				a.covered[d]++
			}
		case o.event.Kind == carillon.EventCompleted:
			ev := o.event
			e, a := of(ev.Job, ev.Version)
			if e == nil {
				fail("%s version %d completed, which the client never made", ev.Job, ev.Version)
				continue
			}
			a.completed++
			if e.limit > 0 && (len(a.fired) != e.limit || ev.Last.UnixMilli() != a.fired[e.limit-1]) {
				fail("completed event %+v comes after the fires %v, of %d", *ev, a.fired, e.limit)
			}
		case o.event.Kind == carillon.EventRejected && o.event.Error != nil:
			rejected[refusal{o.event.Job, o.event.Verb, o.event.Error.Code}] += o.event.Count
		default:
			fail("no event of the protocol: %+v", *o.event)
		}
	}
	checked, completed := 0, 0
	for _, e := range h.eras {
		_, a := of(e.job, e.version)
		to := min(max(e.mustTo, e.fireTo, e.skipTo), end)
		n, ends := 0, 0
		if e.limit > 0 {
			completed++
			if to, ends = 0, 1; len(a.fired) > 0 {
				to = a.fired[min(len(a.fired), e.limit)-1]
			}
		}
		if a.completed != ends {
			fail("%s completed %d times, expected %d", e, a.completed, ends)
		}
		for _, d := range e.grid(e.mayFrom, to) {
			must := d >= e.mustFrom && d <= e.mustTo
			if must {
				checked++
			}
			if a.covered[d] > 0 {
				n++
			}
			if a.covered[d] > 1 || must && a.covered[d] == 0 {
				fail("%s version %d due at %d (%s) is in the streams %d times; known: from %d/%d, must to %d, may fire to %d",
					e.job, e.version, d, time.UnixMilli(d).UTC().Format("05.000"), a.covered[d], e.mayFrom, e.mustFrom, e.mustTo, e.fireTo)
			}
		}
		if n != len(a.covered) {
			fail("%s version %d: %d due times were decided, %d of them by its schedule", e.job, e.version, len(a.covered), n)
		}
		if !slices.IsSorted(a.fired) {
			fail("%s version %d fired out of order: %v", e.job, e.version, a.fired)
		}
	}
	for id := range h.forced {
		if forced[id] != 1 {
			fail("forced %s is in the streams %d times", id, forced[id])
		}
	}
	for id, n := range forced {
		if h.forced[id] {
			continue
		}
		job, _, _, _ := carillon.SplitTriggerID(id)
		if h.maybeFired[job]--; n != 1 || h.maybeFired[job] < 0 {
			fail("forced %s is in the streams %d times, and nobody asked for it", id, n)
		}
	}
	refused := 0
	for r, n := range h.refused {
		if n.least > 0 {
			refused++
		}
		if rejected[r] < n.least || rejected[r] > n.most {
			fail("%s of %s was rejected as %s %d times, expected %d to %d", r.verb, r.job, r.code, rejected[r], n.least, n.most)
		}
	}
	for r, n := range rejected {
		if _, known := h.refused[r]; !known {
			fail("%s of %s was rejected as %s %d times, which the client does not know of", r.verb, r.job, r.code, n)
		}
	}
	if failures > 20 {
		t.Errorf("… and %d more", failures-20)
	}
	t.Logf("%d triggers, %d forced, %d missed, %d skipped; %d due times of %d versions, %d completions, %d refusals checked; %d misfires without a kill",
		triggers, len(forced), missed, skipped, checked, len(h.eras), completed, refused, stalls)
	if checked == 0 || len(h.forced) == 0 || completed == 0 || refused == 0 {
		t.Error("the oracle had nothing to check")
	}
}

// down tells whether the engine was down near a time.
func (h *history) down(from, to int64) bool {
	return slices.ContainsFunc(h.downs, func(d span) bool { return from <= d.to+1000 && d.from-1000 <= to })
}

func (e *era) String() string { return fmt.Sprintf("%s version %d", e.job, e.version) }

// errorRecorder keeps the errors that a check reports.
type errorRecorder struct {
	testing.TB
	errors []string
}

func (c *errorRecorder) Helper()             {}
func (c *errorRecorder) Logf(string, ...any) {}
func (c *errorRecorder) Error(v ...any)      { c.errors = append(c.errors, fmt.Sprint(v...)) }
func (c *errorRecorder) Errorf(format string, v ...any) {
	c.errors = append(c.errors, fmt.Sprintf(format, v...))
}

// expect checks that there are just the complaints that contain the wanted texts.
func (c *errorRecorder) expect(t *testing.T, name string, want ...string) {
	t.Helper()
	same := slices.EqualFunc(c.errors, want, func(said, want string) bool { return strings.Contains(said, want) })
	if !same {
		t.Errorf("%s: it says %q, expected %q", name, c.errors, want)
	}
}

// TestOracle compares made-up outputs with a history: those that are right pass, and for each defect there are its own complaints only.
func TestOracle(t *testing.T) {
	trigger := func(job string, version uint64, ms int64) output {
		return output{trigger: &carillon.Trigger{
			Job: job, ID: carillon.FormatTriggerID(job, ms), Version: version, Scheduled: time.UnixMilli(ms),
			Payload: []byte(fmt.Sprint(job, version)),
		}}
	}
	forced := func(job string, seq uint64) output {
		o := trigger(job, 1, 1150)
		o.trigger.ID = carillon.FormatForcedID(job, seq)
		return o
	}
	skipped := func(job string, reason string, count uint64, first, last int64) output {
		return output{event: &carillon.Event{
			Kind: carillon.EventSkipped, Job: job, Version: 1, Reason: reason, Count: count,
			First: time.UnixMilli(first), Last: time.UnixMilli(last),
		}}
	}
	completed := func(job string, version uint64, last int64) output {
		return output{event: &carillon.Event{Kind: carillon.EventCompleted, Job: job, Version: version, Last: time.UnixMilli(last)}}
	}
	rejected := func(job, verb string, code carillon.Code, count uint64) output {
		return output{event: &carillon.Event{Kind: carillon.EventRejected, Job: job, Verb: verb, Error: &carillon.Error{Code: code}, Count: count}}
	}
	of := func(job string, version uint64, misfire carillon.Misfire, g grid) *era {
		return &era{
			job: job, version: version, grid: g, misfire: misfire, payload: fmt.Sprint(job, version),
			mayFrom: 1000, mustFrom: 1000, mustTo: 1500, fireTo: 1500, skipTo: 1500,
		}
	}
	const once, skip, all = "once", "skip", "all" // jobs, by their policies
	known := func() *history {
		tenths := every(1000, 100)
		replaced, paused := of(all, 1, carillon.FireAll, tenths), of("paused", 1, carillon.FireAll, tenths)
		expiring := of("expiring", 1, carillon.FireOnce, at(1200))
		replaced.mustTo, replaced.fireTo = 1200, 1200
		by := of(all, 2, carillon.FireAll, tenths)
		by.mayFrom, by.mustFrom = 1300, 1300
		paused.pauses, expiring.expires = []span{{1150, 1350}}, true
		taken := of("taken", 1, carillon.FireOnce, at(1200)) // deleted before it was due
		taken.mustTo, taken.fireTo, taken.skipTo = 0, 0, 0
		unsure := of("unsure", 1, carillon.FireAll, tenths) // of which it is not known exactly when it began and ended
		unsure.mustFrom, unsure.mustTo, unsure.fireTo, unsure.skipTo = 1200, 1300, forever, forever
		few := of("few", 1, carillon.FireOnce, tenths)
		few.limit, few.mustTo, few.fireTo, few.skipTo = 2, forever, forever, forever
		return &history{
			eras: []*era{
				of(once, 1, carillon.FireOnce, tenths), of(skip, 1, carillon.Skip, cron("0-2 * * * * *")), replaced, by, paused, expiring, taken, unsure, few,
			},
			forced: map[string]bool{once + "!7": true}, maybeFired: map[string]int{once: 1},
			refused: map[refusal]times{
				{"none", "pause", carillon.CodeNotFound}: {1, 1}, {"none", "put", carillon.CodeInvalidSchedule}: {2, 3},
				{"taken", "delete", carillon.CodeNotFound}: {0, anyNumber},
			},
		}
	}
	outputs := func() []output {
		missed := trigger(once, 1, 1400)
		missed.trigger.Missed = 2
		fewLast := trigger("few", 1, 1200)
		fewLast.trigger.Missed = 1
		return []output{
			trigger(once, 1, 1000), trigger(once, 1, 1100), missed, trigger(once, 1, 1500), forced(once, 7), forced(once, 8),
			skipped(skip, carillon.ReasonMisfire, 1, 1000, 1000),
			trigger(all, 1, 1000), trigger(all, 1, 1100), trigger(all, 1, 1200), trigger(all, 2, 1300), trigger(all, 2, 1400), trigger(all, 2, 1500),
			trigger("paused", 1, 1000), trigger("paused", 1, 1100), skipped("paused", carillon.ReasonPaused, 2, 1200, 1300),
			trigger("paused", 1, 1400), trigger("paused", 1, 1500),
			skipped("expiring", carillon.ReasonExpired, 1, 1200, 1200), trigger("unsure", 1, 1200), trigger("unsure", 1, 1300),
			trigger("few", 1, 1000), fewLast, completed("few", 1, 1200),
			rejected("none", "pause", carillon.CodeNotFound, 1), rejected("none", "put", carillon.CodeInvalidSchedule, 2),
		}
	}
	// index returns where the output of that name is.
	index := func(o []output, id string) int {
		return slices.IndexFunc(o, func(o output) bool {
			return o.trigger != nil && o.trigger.ID == id || o.event != nil && strings.TrimLeft(o.event.Verb+" "+o.event.Job+" "+o.event.Kind, " ") == id
		})
	}
	without := func(id string) func([]output) []output {
		return func(o []output) []output { return slices.Delete(o, index(o, id), index(o, id)+1) }
	}
	with := func(more ...output) func([]output) []output {
		return func(o []output) []output { return append(o, more...) }
	}
	change := func(id string, by func(*output)) func([]output) []output {
		return func(o []output) []output {
			by(&o[index(o, id)])
			return o
		}
	}
	for name, c := range map[string]struct {
		spoil func([]output) []output
		want  []string // what each complaint says
	}{
		"right":                 {spoil: with()},
		"where it may":          {spoil: with(trigger("unsure", 1, 1400))},
		"missing where it must": {without("unsure@1300"), []string{"unsure version 1 due at 1300 (01.300) is in the streams 0 times"}},
		"after the end of all":  {with(trigger("unsure", 1, 1600)), []string{"unsure version 1: 3 due times were decided, 2 of them"}},
		"a fire is missing":     {without("once@1100"), []string{"once version 1 due at 1100 (01.100) is in the streams 0 times"}},
		"the first is missing":  {without("all@1000"), []string{"all version 1 due at 1000 (01.000) is in the streams 0 times"}},
		"the last is missing":   {without("all@1500"), []string{"all version 2 due at 1500 (01.500) is in the streams 0 times"}},
		"a fire comes twice":    {with(trigger(all, 2, 1500)), []string{"all version 2 due at 1500 (01.500) is in the streams 2 times"}},
		"a fire comes after later": {func(o []output) []output { return append(without("all@1400")(o), trigger(all, 2, 1400)) }, []string{
			"all version 2 fired out of order",
		}},
		"beyond the end": {with(trigger(all, 2, 1600)), []string{
			"outside its time, 1300 to 1500", "4 due times were decided, 3 of them",
		}},
		"between due times": {func(o []output) []output { return slices.Insert(o, index(o, "all@1400"), trigger(all, 2, 1399)) }, []string{
			"all version 2: 4 due times were decided, 3 of them",
		}},
		"the older version goes on": {change("all@1300", func(o *output) { *o = trigger(all, 1, 1300) }), []string{
			"outside its time, 1000 to 1200", "all version 2 due at 1300 (01.300) is in the streams 0",
		}},
		"the newer version begins early": {change("all@1200", func(o *output) { *o = trigger(all, 2, 1200) }), []string{
			"outside its time, 1300 to", "all version 1 due at 1200 (01.200) is in the streams 0", "4 due times were decided, 3 of them",
		}},
		"a version nobody made": {with(trigger(all, 3, 1500)), []string{"version 3 fired, which the client never made"}},
		"a deleted job": {with(trigger("taken", 1, 1200)), []string{
			"outside its time, 1000 to 0", "1 due times were decided, 0 of them",
		}},
		"another version's payload": {change("all@1400", func(o *output) { o.trigger.Payload = []byte("all1") }), []string{
			`carries "all1", expected "all2"`,
		}},

		"one missed too few": {change("once@1400", func(o *output) { o.trigger.Missed = 1 }), []string{
			"once version 1 due at 1200 (01.200) is in the streams 0",
		}},
		"one missed too many": {change("once@1400", func(o *output) { o.trigger.Missed = 3 }), []string{
			"once version 1 due at 1100 (01.100) is in the streams 2",
		}},
		"all missed": {change("once@1400", func(o *output) { o.trigger.Missed = 4 }), []string{
			"due at 1000 (01.000) is in the streams 2", "due at 1100 (01.100) is in the streams 2",
		}},
		"more missed than there are": {change("once@1400", func(o *output) { o.trigger.Missed = 5 }), []string{
			"stands for 5 others, of 4 possible", "due at 1200 (01.200) is in the streams 0", "due at 1300 (01.300) is in the streams 0",
		}},
		"missed under a policy that fires all": {change("all@1500", func(o *output) { o.trigger.Missed = 1 }), []string{
			"stands for 1 others, of 2 possible; its policy is fire_all",
		}},

		"skipped and fired": {with(trigger(skip, 1, 1000)), []string{"skip version 1 due at 1000 (01.000) is in the streams 2"}},
		"skipped twice": {with(skipped(skip, carillon.ReasonMisfire, 1, 1000, 1000)), []string{
			"skip version 1 due at 1000 (01.000) is in the streams 2",
		}},
		"a skip is missing": {without("skip skipped"), []string{"skip version 1 due at 1000 (01.000) is in the streams 0"}},
		"a skip of a wrong count": {change("paused skipped", func(o *output) { o.event.Count = 1 }), []string{
			"the schedule has 2 due times there",
		}},
		"a skip that begins too soon": {change("paused skipped", func(o *output) { o.event.First = time.UnixMilli(1199) }), []string{
			"the schedule has 2 due times there",
		}},
		"a skip that ends too late": {change("paused skipped", func(o *output) { o.event.Last = time.UnixMilli(1301) }), []string{
			"the schedule has 2 due times there",
		}},
		"a skip beyond the end": {with(skipped(skip, carillon.ReasonMisfire, 1, 2000, 2000)), []string{
			"lies outside of the version's time, 1000 to 1500", "2 due times were decided, 1 of them",
		}},
		"a skip before the beginning": {with(skipped(skip, carillon.ReasonMisfire, 1, 0, 0)), []string{
			"lies outside of the version's time, 1000 to 1500", "2 due times were decided, 1 of them",
		}},
		"a skip of nothing": {with(skipped(skip, carillon.ReasonMisfire, 0, 1001, 1001)), []string{
			"the schedule has 0 due times there",
		}},
		"a skip of what nobody made": {with(skipped("no", carillon.ReasonMisfire, 1, 2000, 2000)), []string{
			"no version 1 was skipped, which the client never made",
		}},
		"skipped under another policy": {change("once@1100", func(o *output) { *o = skipped(once, carillon.ReasonMisfire, 1, 1100, 1100) }), []string{
			"has no such reason",
		}},
		"expired, and never does": {change("skip skipped", func(o *output) { o.event.Reason = carillon.ReasonExpired }), []string{
			"has no such reason",
		}},
		"expired, and was paused": {change("paused skipped", func(o *output) { o.event.Reason = carillon.ReasonExpired }), []string{
			"has no such reason",
		}},
		"paused, and never was": {change("expiring skipped", func(o *output) { o.event.Reason = carillon.ReasonPaused }), []string{
			"has no such reason",
		}},
		"paused before the pause": {change("paused@1000", func(o *output) { *o = skipped("paused", carillon.ReasonPaused, 1, 1000, 1000) }), []string{
			"has no such reason",
		}},
		"paused after the pause": {change("paused@1500", func(o *output) { *o = skipped("paused", carillon.ReasonPaused, 1, 1500, 1500) }), []string{
			"has no such reason",
		}},

		"a fire by command is missing":      {without("once!7"), []string{"forced once!7 is in the streams 0 times"}},
		"a fire by command comes twice":     {with(forced(once, 7)), []string{"forced once!7 is in the streams 2 times"}},
		"one that may be there comes twice": {with(forced(once, 8)), []string{"forced once!8 is in the streams 2 times, and nobody"}},
		"one more than may be there":        {with(forced(once, 9)), []string{"is in the streams 1 times, and nobody asked for it"}},
		"of a job that nobody fired":        {with(forced(all, 9)), []string{"forced all!9 is in the streams 1 times, and nobody"}},
		"of a version nobody made": {change("once!7", func(o *output) { o.trigger.Version = 2 }), []string{
			"once!7 is of version 2, which the client never made",
		}},
		"a completion is missing":  {without("few completed"), []string{"few version 1 completed 0 times, expected 1"}},
		"a completion comes twice": {with(completed("few", 1, 1200)), []string{"few version 1 completed 2 times, expected 1"}},
		"it names another fire":    {change("few completed", func(o *output) { o.event.Last = time.UnixMilli(1100) }), []string{"comes after the fires [1000 1200], of 2"}},
		"it comes before the last": {func(o []output) []output {
			last := o[index(o, "few@1200")]
			return append(without("few@1200")(o), last)
		}, []string{"comes after the fires [1000], of 2"}},
		"of another job":             {with(completed(all, 2, 1500)), []string{"all version 2 completed 1 times, expected 0"}},
		"of what nobody made":        {with(completed("few", 2, 1500)), []string{"few version 2 completed, which the client never made"}},
		"it fires once more":         {with(trigger("few", 1, 1300)), []string{"few version 1: 4 due times were decided, 3 of them"}},
		"none, and it fires once":    {func(o []output) []output { return without("few completed")(without("few@1200")(o)) }, []string{"few version 1 completed 0 times, expected 1"}},
		"once more, as may be":       {with(rejected("none", "put", carillon.CodeInvalidSchedule, 1)), nil},
		"a refusal is missing":       {without("pause none rejected"), []string{"pause of none was rejected as not_found 0 times, expected 1 to 1"}},
		"a refusal comes twice":      {with(rejected("none", "pause", carillon.CodeNotFound, 1)), []string{"pause of none was rejected as not_found 2 times, expected 1 to 1"}},
		"it counts too few":          {change("put none rejected", func(o *output) { o.event.Count = 1 }), []string{"put of none was rejected as invalid_schedule 1 times, expected 2 to 3"}},
		"it counts too many":         {change("put none rejected", func(o *output) { o.event.Count = 4 }), []string{"put of none was rejected as invalid_schedule 4 times, expected 2 to 3"}},
		"refusals that may be there": {with(rejected("taken", "delete", carillon.CodeNotFound, 9)), nil},
		"a refusal nobody knows of":  {with(rejected("taken", "put", carillon.CodeNotFound, 1)), []string{"put of taken was rejected as not_found 1 times, which"}},
		"refusals that name nobody":  {with(rejected("", "", carillon.CodeNotFound, 1)), []string{" was rejected as not_found 1 times, which"}},
		"a refusal for another cause": {change("pause none rejected", func(o *output) { o.event.Error.Code = carillon.CodeInternal }), []string{
			"pause of none was rejected as not_found 0 times", "pause of none was rejected as internal 1 times, which",
		}},
		"a refusal without a cause": {change("pause none rejected", func(o *output) { o.event.Error = nil }), []string{
			"no event of the protocol", "pause of none was rejected as not_found 0 times",
		}},
		"an event of no kind": {with(output{event: &carillon.Event{Kind: "rung", Job: all}}), []string{"no event of the protocol"}},

		"with another payload": {change("once!7", func(o *output) { o.trigger.Payload = nil }), []string{
			`once!7 of version 1 carries "", expected "once1"`,
		}},
	} {
		said := &errorRecorder{TB: t}
		known().verify(said, c.spoil(outputs()), 1500)
		said.expect(t, name, c.want...)
	}

	nothing := &errorRecorder{TB: t}
	(&history{}).verify(nothing, nil, 1500)
	nothing.expect(t, "nothing at all", "nothing to check")
	h, unforced := known(), &errorRecorder{TB: t}
	h.forced, h.maybeFired = nil, map[string]int{once: 2}
	h.verify(unforced, outputs(), 1500)
	unforced.expect(t, "no fire by command", "nothing to check")
	h, unrefused := known(), &errorRecorder{TB: t}
	h.refused = map[refusal]times{{"none", "pause", carillon.CodeNotFound}: {0, 1}, {"none", "put", carillon.CodeInvalidSchedule}: {0, 3}}
	h.verify(unrefused, outputs(), 1500)
	unrefused.expect(t, "no refusal that must be there", "nothing to check")

	for name, c := range map[string]struct {
		numbers []uint64
		stored  int64
		want    []string
	}{
		"right":        {numbers: []uint64{1, 2, 3}, stored: 1000},
		"early":        {[]uint64{1, 2, 3}, 999, []string{"all@1000 was stored at 1970-01-01T00:00:00.999Z, early"}},
		"a gap":        {[]uint64{1, 3}, 1000, []string{"message 2 of 2 has output number 3"}},
		"a repeat":     {[]uint64{1, 1}, 1000, []string{"message 2 of 2 has output number 1"}},
		"no first":     {[]uint64{2}, 1000, []string{"message 1 of 1 has output number 2"}},
		"out of order": {[]uint64{2, 1}, 1000, []string{"message 1 of 2", "message 2 of 2"}},
	} {
		var of []output
		for _, n := range c.numbers {
			o := trigger(all, 1, 900)
			if o.number, o.stored = n, time.UnixMilli(900).UTC(); n == 1 {
				o = trigger(all, 1, 1000)
				o.number, o.stored = n, time.UnixMilli(c.stored).UTC()
			}
			of = append(of, o)
		}
		said := &errorRecorder{TB: t}
		checkStream(said, 0, of)
		said.expect(t, name, c.want...)
	}
}

// The oracle's own schedules.
func TestGrids(t *testing.T) {
	for name, c := range map[string]struct {
		of       grid
		from, to int64
		want     []int64
	}{
		"once":                 {at(5), 5, 5, []int64{5}},
		"once, before":         {at(5), 6, 9, nil},
		"once, after":          {at(5), 1, 4, nil},
		"interval":             {every(1000, 300), 0, 1700, []int64{1000, 1300, 1600}},
		"interval, in between": {every(1000, 300), 1301, 2200, []int64{1600, 1900, 2200}},
		"interval, at one":     {every(1000, 300), 1300, 1599, []int64{1300}},
		"each second":          {cron("* * * * * *"), 999, 3000, []int64{1000, 2000, 3000}},
		"seconds":              {cron("0,7,20-29/3 * * * * *"), 1, 61_000, []int64{7000, 20_000, 23_000, 26_000, 29_000, 60_000}},
		"steps":                {cron("*/30 1-2 * * * *"), 0, 3_700_000, []int64{60_000, 90_000, 120_000, 150_000, 3_660_000, 3_690_000}},
	} {
		if got := c.of(c.from, c.to); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, expected %v", name, got, c.want)
		}
	}
}
