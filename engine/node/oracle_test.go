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
	a := newAudit(t, h)
	for _, o := range all {
		a.read(o)
	}
	for _, e := range h.eras {
		a.checkEra(e, end)
	}
	a.checkForced()
	a.checkRefusals()
	a.report()
}

// audit is one comparison of outputs with a history.
type audit struct {
	t        testing.TB
	h        *history
	eras     map[eraKey]*era
	accounts map[*era]*account
	forced   map[string]int // how often each forced trigger is in the streams
	rejected map[refusal]uint64
	failures int
	// Figures for the log, the last four of what had to be there.
	triggers, missed, skipped, stalls       int
	checked, versions, completions, refused int
}

type eraKey struct {
	job     string
	version uint64
}

func newAudit(t testing.TB, h *history) *audit {
	t.Helper()
	a := &audit{
		t: t, h: h, eras: make(map[eraKey]*era, len(h.eras)), accounts: make(map[*era]*account, len(h.eras)),
		forced: make(map[string]int), rejected: make(map[refusal]uint64),
	}
	for _, e := range h.eras {
		key := eraKey{e.job, e.version}
		if a.eras[key] != nil {
			t.Fatalf("the test itself is wrong: %s version %d twice", e.job, e.version)
		}
		a.eras[key], a.accounts[e] = e, &account{covered: make(map[int64]int)}
	}
	return a
}

// of returns a version and its account, or nil if the client never made it.
func (a *audit) of(job string, version uint64) (*era, *account) {
	e := a.eras[eraKey{job, version}]
	return e, a.accounts[e]
}

const mostFailures = 20

func (a *audit) fail(format string, v ...any) {
	a.t.Helper()
	if a.failures++; a.failures <= mostFailures {
		a.t.Errorf(format, v...)
	}
}

// read enters one output into the accounts.
func (a *audit) read(o output) {
	a.t.Helper()
	switch {
	case o.trigger != nil && o.trigger.Forced():
		a.readForced(o.trigger)
	case o.trigger != nil:
		a.readTrigger(o.trigger)
	case o.event.Kind == carillon.EventSkipped:
		a.readSkipped(o.event)
	case o.event.Kind == carillon.EventCompleted:
		a.readCompleted(o.event)
	case o.event.Kind == carillon.EventRejected && o.event.Error != nil:
		a.rejected[refusal{o.event.Job, o.event.Verb, o.event.Error.Code}] += o.event.Count
	default:
		a.fail("no event of the protocol: %+v", *o.event)
	}
}

func (a *audit) readForced(tr *carillon.Trigger) {
	a.t.Helper()
	a.forced[tr.ID]++
	e, _ := a.of(tr.Job, tr.Version)
	if e == nil {
		a.fail("%s is of version %d, which the client never made", tr.ID, tr.Version)
		return
	}
	a.checkPayload(e, tr)
}

// checkPayload checks that a trigger has what was put with its version. The payload shows that, because it differs with each put.
func (a *audit) checkPayload(e *era, tr *carillon.Trigger) {
	a.t.Helper()
	if string(tr.Payload) != e.payload {
		a.fail("%s of version %d carries %q, expected %q", tr.ID, tr.Version, tr.Payload, e.payload)
	}
}

func (a *audit) readTrigger(tr *carillon.Trigger) {
	a.t.Helper()
	a.triggers++
	e, account := a.of(tr.Job, tr.Version)
	if e == nil {
		a.fail("%s of version %d fired, which the client never made", tr.ID, tr.Version)
		return
	}
	a.checkPayload(e, tr)
	ms := tr.Scheduled.UnixMilli()
	account.fired = append(account.fired, ms)
	account.covered[ms]++
	if ms < e.mayFrom || ms > e.fireTo {
		a.fail("%s of version %d fired outside its time, %d to %d", tr.ID, tr.Version, e.mayFrom, e.fireTo)
	}
	if tr.Missed == 0 {
		return
	}
	a.missed += int(tr.Missed)
	before := e.grid(e.mayFrom, ms-1)
	if e.misfire != carillon.FireOnce || len(before) < int(tr.Missed) {
		a.fail("%s stands for %d others, of %d possible; its policy is %s", tr.ID, tr.Missed, len(before), e.misfire)
		return
	}
	before = before[len(before)-int(tr.Missed):]
	if !a.h.down(before[0], ms) {
		a.stalls++
	}
	for _, d := range before {
		account.covered[d]++
	}
}

func (a *audit) readSkipped(ev *carillon.Event) {
	a.t.Helper()
	a.skipped += int(ev.Count)
	e, account := a.of(ev.Job, ev.Version)
	if e == nil {
		a.fail("%s version %d was skipped, which the client never made", ev.Job, ev.Version)
		return
	}
	first, last := ev.First.UnixMilli(), ev.Last.UnixMilli()
	due := e.grid(first, last)
	if len(due) == 0 || due[0] != first || due[len(due)-1] != last || uint64(len(due)) != ev.Count {
		a.fail("skipped event %+v: the schedule has %d due times there", *ev, len(due))
	}
	if first < e.mayFrom || last > e.skipTo {
		a.fail("skipped event %+v lies outside of the version's time, %d to %d", *ev, e.mayFrom, e.skipTo)
	}
	switch {
	case ev.Reason == carillon.ReasonMisfire && e.misfire == carillon.Skip:
		if !a.h.down(first, last) {
			a.stalls++
		}
	case ev.Reason == carillon.ReasonExpired && e.expires:
	case ev.Reason == carillon.ReasonPaused && slices.ContainsFunc(e.pauses, func(p span) bool { return p.from <= last && first <= p.to }):
	default:
		a.fail("skipped event %+v has no such reason", *ev)
	}
	for _, d := range due {
		account.covered[d]++
	}
}

func (a *audit) readCompleted(ev *carillon.Event) {
	a.t.Helper()
	e, account := a.of(ev.Job, ev.Version)
	if e == nil {
		a.fail("%s version %d completed, which the client never made", ev.Job, ev.Version)
		return
	}
	account.completed++
	if e.limit > 0 && (len(account.fired) != e.limit || ev.Last.UnixMilli() != account.fired[e.limit-1]) {
		a.fail("completed event %+v comes after the fires %v, of %d", *ev, account.fired, e.limit)
	}
}

// checkEra checks the account of a version: each due time that must be in the streams is there once, and no other.
func (a *audit) checkEra(e *era, end int64) {
	a.t.Helper()
	account := a.accounts[e]
	a.versions++
	to := min(max(e.mustTo, e.fireTo, e.skipTo), end)
	decided, completions := 0, 0
	if e.limit > 0 {
		a.completions++
		if to, completions = 0, 1; len(account.fired) > 0 {
			to = account.fired[min(len(account.fired), e.limit)-1]
		}
	}
	if account.completed != completions {
		a.fail("%s completed %d times, expected %d", e, account.completed, completions)
	}
	for _, d := range e.grid(e.mayFrom, to) {
		must := d >= e.mustFrom && d <= e.mustTo
		if must {
			a.checked++
		}
		if account.covered[d] > 0 {
			decided++
		}
		if account.covered[d] > 1 || must && account.covered[d] == 0 {
			a.fail("%s due at %d (%s) is in the streams %d times; known: from %d/%d, must to %d, may fire to %d",
				e, d, time.UnixMilli(d).UTC().Format("05.000"), account.covered[d], e.mayFrom, e.mustFrom, e.mustTo, e.fireTo)
		}
	}
	if decided != len(account.covered) {
		a.fail("%s: %d due times were decided, %d of them by its schedule", e, len(account.covered), decided)
	}
	if !slices.IsSorted(account.fired) {
		a.fail("%s fired out of order: %v", e, account.fired)
	}
}

// checkForced checks that each fire by command that was confirmed is there once, and no other but those whose outcome is unknown.
func (a *audit) checkForced() {
	a.t.Helper()
	for id := range a.h.forced {
		if a.forced[id] != 1 {
			a.fail("forced %s is in the streams %d times", id, a.forced[id])
		}
	}
	for id, n := range a.forced {
		if a.h.forced[id] {
			continue
		}
		job, _, _, _ := carillon.SplitTriggerID(id)
		if a.h.maybeFired[job]--; n != 1 || a.h.maybeFired[job] < 0 {
			a.fail("forced %s is in the streams %d times, and nobody asked for it", id, n)
		}
	}
}

// checkRefusals checks that each refusal that the client knows of is there as often as it must be, and no other.
func (a *audit) checkRefusals() {
	a.t.Helper()
	for r, n := range a.h.refused {
		if n.least > 0 {
			a.refused++
		}
		if a.rejected[r] < n.least || a.rejected[r] > n.most {
			a.fail("%s of %s was rejected as %s %d times, expected %d to %d", r.verb, r.job, r.code, a.rejected[r], n.least, n.most)
		}
	}
	for r, n := range a.rejected {
		if _, known := a.h.refused[r]; !known {
			a.fail("%s of %s was rejected as %s %d times, which the client does not know of", r.verb, r.job, r.code, n)
		}
	}
}

// report logs the figures. It fails the test if there was nothing of some kind to check.
func (a *audit) report() {
	a.t.Helper()
	if a.failures > mostFailures {
		a.t.Errorf("… and %d more", a.failures-mostFailures)
	}
	a.t.Logf("%d triggers, %d forced, %d missed, %d skipped; %d due times of %d versions, %d completions, %d refusals checked; %d misfires without a kill",
		a.triggers, len(a.forced), a.missed, a.skipped, a.checked, a.versions, a.completions, a.refused, a.stalls)
	if a.checked == 0 || len(a.h.forced) == 0 || a.completions == 0 || a.refused == 0 {
		a.t.Error("the oracle had nothing to check")
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

// The tests of the oracle compare made-up outputs with a history. Those that are right pass, and for each defect there are its own
// complaints only. Jobs are named after what is special about them; a version's payload is its job's name and number.

func makeTrigger(job string, version uint64, ms int64) output {
	return output{trigger: &carillon.Trigger{
		Job: job, ID: carillon.FormatTriggerID(job, ms), Version: version, Scheduled: time.UnixMilli(ms),
		Payload: []byte(fmt.Sprint(job, version)),
	}}
}

func makeForced(job string, seq uint64) output {
	o := makeTrigger(job, 1, 1150)
	o.trigger.ID = carillon.FormatForcedID(job, seq)
	return o
}

func makeSkipped(job string, reason string, count uint64, first, last int64) output {
	return output{event: &carillon.Event{
		Kind: carillon.EventSkipped, Job: job, Version: 1, Reason: reason, Count: count,
		First: time.UnixMilli(first), Last: time.UnixMilli(last),
	}}
}

func makeCompleted(job string, version uint64, last int64) output {
	return output{event: &carillon.Event{Kind: carillon.EventCompleted, Job: job, Version: version, Last: time.UnixMilli(last)}}
}

func makeRejected(job, verb string, code carillon.Code, count uint64) output {
	return output{event: &carillon.Event{Kind: carillon.EventRejected, Job: job, Verb: verb, Error: &carillon.Error{Code: code}, Count: count}}
}

// knownHistory is what the client was told of all jobs up to 1500.
func knownHistory() *history {
	of := func(job string, version uint64, misfire carillon.Misfire, g grid) *era {
		return &era{
			job: job, version: version, grid: g, misfire: misfire, payload: fmt.Sprint(job, version),
			mayFrom: 1000, mustFrom: 1000, mustTo: 1500, fireTo: 1500, skipTo: 1500,
		}
	}
	tenths := every(1000, 100)
	replaced, paused := of("all", 1, carillon.FireAll, tenths), of("paused", 1, carillon.FireAll, tenths)
	expiring := of("expiring", 1, carillon.FireOnce, at(1200))
	replaced.mustTo, replaced.fireTo = 1200, 1200
	by := of("all", 2, carillon.FireAll, tenths)
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
			of("once", 1, carillon.FireOnce, tenths), of("skip", 1, carillon.Skip, cron("0-2 * * * * *")), replaced, by, paused, expiring, taken, unsure, few,
		},
		forced: map[string]bool{"once!7": true}, maybeFired: map[string]int{"once": 1},
		refused: map[refusal]times{
			{"none", "pause", carillon.CodeNotFound}: {1, 1}, {"none", "put", carillon.CodeInvalidSchedule}: {2, 3},
			{"taken", "delete", carillon.CodeNotFound}: {0, anyNumber},
		},
	}
}

// rightOutputs are those that agree with knownHistory.
func rightOutputs() []output {
	missed := makeTrigger("once", 1, 1400)
	missed.trigger.Missed = 2
	fewLast := makeTrigger("few", 1, 1200)
	fewLast.trigger.Missed = 1
	return []output{
		makeTrigger("once", 1, 1000), makeTrigger("once", 1, 1100), missed, makeTrigger("once", 1, 1500), makeForced("once", 7), makeForced("once", 8),
		makeSkipped("skip", carillon.ReasonMisfire, 1, 1000, 1000),
		makeTrigger("all", 1, 1000), makeTrigger("all", 1, 1100), makeTrigger("all", 1, 1200),
		makeTrigger("all", 2, 1300), makeTrigger("all", 2, 1400), makeTrigger("all", 2, 1500),
		makeTrigger("paused", 1, 1000), makeTrigger("paused", 1, 1100), makeSkipped("paused", carillon.ReasonPaused, 2, 1200, 1300),
		makeTrigger("paused", 1, 1400), makeTrigger("paused", 1, 1500),
		makeSkipped("expiring", carillon.ReasonExpired, 1, 1200, 1200), makeTrigger("unsure", 1, 1200), makeTrigger("unsure", 1, 1300),
		makeTrigger("few", 1, 1000), fewLast, makeCompleted("few", 1, 1200),
		makeRejected("none", "pause", carillon.CodeNotFound, 1), makeRejected("none", "put", carillon.CodeInvalidSchedule, 2),
	}
}

// defect is a change of the right outputs, and what each complaint about it says.
type defect struct {
	spoil func([]output) []output
	want  []string
}

// indexOf returns where an output is: a trigger by its id, an event by what it is about and its kind.
func indexOf(o []output, id string) int {
	return slices.IndexFunc(o, func(o output) bool {
		return o.trigger != nil && o.trigger.ID == id || o.event != nil && strings.TrimLeft(o.event.Verb+" "+o.event.Job+" "+o.event.Kind, " ") == id
	})
}

func remove(id string) func([]output) []output {
	return func(o []output) []output { return slices.Delete(o, indexOf(o, id), indexOf(o, id)+1) }
}

func add(more ...output) func([]output) []output {
	return func(o []output) []output { return append(o, more...) }
}

func change(id string, by func(*output)) func([]output) []output {
	return func(o []output) []output {
		by(&o[indexOf(o, id)])
		return o
	}
}

func testOracle(t *testing.T, defects map[string]defect) {
	t.Helper()
	for name, d := range defects {
		said := &errorRecorder{TB: t}
		knownHistory().verify(said, d.spoil(rightOutputs()), 1500)
		said.expect(t, name, d.want...)
	}
}

func TestOracleOfFires(t *testing.T) {
	testOracle(t, map[string]defect{
		"right":                 {spoil: add()},
		"where it may":          {spoil: add(makeTrigger("unsure", 1, 1400))},
		"missing where it must": {remove("unsure@1300"), []string{"unsure version 1 due at 1300 (01.300) is in the streams 0 times"}},
		"after the end of all":  {add(makeTrigger("unsure", 1, 1600)), []string{"unsure version 1: 3 due times were decided, 2 of them"}},
		"a fire is missing":     {remove("once@1100"), []string{"once version 1 due at 1100 (01.100) is in the streams 0 times"}},
		"the first is missing":  {remove("all@1000"), []string{"all version 1 due at 1000 (01.000) is in the streams 0 times"}},
		"the last is missing":   {remove("all@1500"), []string{"all version 2 due at 1500 (01.500) is in the streams 0 times"}},
		"a fire comes twice":    {add(makeTrigger("all", 2, 1500)), []string{"all version 2 due at 1500 (01.500) is in the streams 2 times"}},
		"a fire comes after later": {func(o []output) []output { return append(remove("all@1400")(o), makeTrigger("all", 2, 1400)) }, []string{
			"all version 2 fired out of order",
		}},
		"beyond the end": {add(makeTrigger("all", 2, 1600)), []string{
			"outside its time, 1300 to 1500", "4 due times were decided, 3 of them",
		}},
		"between due times": {func(o []output) []output {
			return slices.Insert(o, indexOf(o, "all@1400"), makeTrigger("all", 2, 1399))
		}, []string{
			"all version 2: 4 due times were decided, 3 of them",
		}},
		"the older version goes on": {change("all@1300", func(o *output) { *o = makeTrigger("all", 1, 1300) }), []string{
			"outside its time, 1000 to 1200", "all version 2 due at 1300 (01.300) is in the streams 0",
		}},
		"the newer version begins early": {change("all@1200", func(o *output) { *o = makeTrigger("all", 2, 1200) }), []string{
			"outside its time, 1300 to", "all version 1 due at 1200 (01.200) is in the streams 0", "4 due times were decided, 3 of them",
		}},
		"a version nobody made": {add(makeTrigger("all", 3, 1500)), []string{"version 3 fired, which the client never made"}},
		"a deleted job": {add(makeTrigger("taken", 1, 1200)), []string{
			"outside its time, 1000 to 0", "1 due times were decided, 0 of them",
		}},
		"another version's payload": {change("all@1400", func(o *output) { o.trigger.Payload = []byte("all1") }), []string{
			`carries "all1", expected "all2"`,
		}},
	})
}

func TestOracleOfMissedFires(t *testing.T) {
	testOracle(t, map[string]defect{
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
	})
}

func TestOracleOfSkips(t *testing.T) {
	testOracle(t, map[string]defect{
		"skipped and fired": {add(makeTrigger("skip", 1, 1000)), []string{"skip version 1 due at 1000 (01.000) is in the streams 2"}},
		"skipped twice": {add(makeSkipped("skip", carillon.ReasonMisfire, 1, 1000, 1000)), []string{
			"skip version 1 due at 1000 (01.000) is in the streams 2",
		}},
		"a skip is missing": {remove("skip skipped"), []string{"skip version 1 due at 1000 (01.000) is in the streams 0"}},
		"a skip of a wrong count": {change("paused skipped", func(o *output) { o.event.Count = 1 }), []string{
			"the schedule has 2 due times there",
		}},
		"a skip that begins too soon": {change("paused skipped", func(o *output) { o.event.First = time.UnixMilli(1199) }), []string{
			"the schedule has 2 due times there",
		}},
		"a skip that ends too late": {change("paused skipped", func(o *output) { o.event.Last = time.UnixMilli(1301) }), []string{
			"the schedule has 2 due times there",
		}},
		"a skip beyond the end": {add(makeSkipped("skip", carillon.ReasonMisfire, 1, 2000, 2000)), []string{
			"lies outside of the version's time, 1000 to 1500", "2 due times were decided, 1 of them",
		}},
		"a skip before the beginning": {add(makeSkipped("skip", carillon.ReasonMisfire, 1, 0, 0)), []string{
			"lies outside of the version's time, 1000 to 1500", "2 due times were decided, 1 of them",
		}},
		"a skip of nothing": {add(makeSkipped("skip", carillon.ReasonMisfire, 0, 1001, 1001)), []string{
			"the schedule has 0 due times there",
		}},
		"a skip of what nobody made": {add(makeSkipped("no", carillon.ReasonMisfire, 1, 2000, 2000)), []string{
			"no version 1 was skipped, which the client never made",
		}},
		"skipped under another policy": {change("once@1100", func(o *output) { *o = makeSkipped("once", carillon.ReasonMisfire, 1, 1100, 1100) }), []string{
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
		"paused before the pause": {change("paused@1000", func(o *output) { *o = makeSkipped("paused", carillon.ReasonPaused, 1, 1000, 1000) }), []string{
			"has no such reason",
		}},
		"paused after the pause": {change("paused@1500", func(o *output) { *o = makeSkipped("paused", carillon.ReasonPaused, 1, 1500, 1500) }), []string{
			"has no such reason",
		}},
	})
}

func TestOracleOfForcedFires(t *testing.T) {
	testOracle(t, map[string]defect{
		"a fire by command is missing":      {remove("once!7"), []string{"forced once!7 is in the streams 0 times"}},
		"a fire by command comes twice":     {add(makeForced("once", 7)), []string{"forced once!7 is in the streams 2 times"}},
		"one that may be there comes twice": {add(makeForced("once", 8)), []string{"forced once!8 is in the streams 2 times, and nobody"}},
		"one more than may be there":        {add(makeForced("once", 9)), []string{"is in the streams 1 times, and nobody asked for it"}},
		"of a job that nobody fired":        {add(makeForced("all", 9)), []string{"forced all!9 is in the streams 1 times, and nobody"}},
		"of a version nobody made": {change("once!7", func(o *output) { o.trigger.Version = 2 }), []string{
			"once!7 is of version 2, which the client never made",
		}},
		"with another payload": {change("once!7", func(o *output) { o.trigger.Payload = nil }), []string{
			`once!7 of version 1 carries "", expected "once1"`,
		}},
	})
}

func TestOracleOfCompletions(t *testing.T) {
	testOracle(t, map[string]defect{
		"a completion is missing":  {remove("few completed"), []string{"few version 1 completed 0 times, expected 1"}},
		"a completion comes twice": {add(makeCompleted("few", 1, 1200)), []string{"few version 1 completed 2 times, expected 1"}},
		"it names another fire":    {change("few completed", func(o *output) { o.event.Last = time.UnixMilli(1100) }), []string{"comes after the fires [1000 1200], of 2"}},
		"it comes before the last": {func(o []output) []output {
			last := o[indexOf(o, "few@1200")]
			return append(remove("few@1200")(o), last)
		}, []string{"comes after the fires [1000], of 2"}},
		"of another job":          {add(makeCompleted("all", 2, 1500)), []string{"all version 2 completed 1 times, expected 0"}},
		"of what nobody made":     {add(makeCompleted("few", 2, 1500)), []string{"few version 2 completed, which the client never made"}},
		"it fires once more":      {add(makeTrigger("few", 1, 1300)), []string{"few version 1: 4 due times were decided, 3 of them"}},
		"none, and it fires once": {func(o []output) []output { return remove("few completed")(remove("few@1200")(o)) }, []string{"few version 1 completed 0 times, expected 1"}},
	})
}

func TestOracleOfRefusals(t *testing.T) {
	testOracle(t, map[string]defect{
		"once more, as may be":       {add(makeRejected("none", "put", carillon.CodeInvalidSchedule, 1)), nil},
		"a refusal is missing":       {remove("pause none rejected"), []string{"pause of none was rejected as not_found 0 times, expected 1 to 1"}},
		"a refusal comes twice":      {add(makeRejected("none", "pause", carillon.CodeNotFound, 1)), []string{"pause of none was rejected as not_found 2 times, expected 1 to 1"}},
		"it counts too few":          {change("put none rejected", func(o *output) { o.event.Count = 1 }), []string{"put of none was rejected as invalid_schedule 1 times, expected 2 to 3"}},
		"it counts too many":         {change("put none rejected", func(o *output) { o.event.Count = 4 }), []string{"put of none was rejected as invalid_schedule 4 times, expected 2 to 3"}},
		"refusals that may be there": {add(makeRejected("taken", "delete", carillon.CodeNotFound, 9)), nil},
		"a refusal nobody knows of":  {add(makeRejected("taken", "put", carillon.CodeNotFound, 1)), []string{"put of taken was rejected as not_found 1 times, which"}},
		"refusals that name nobody":  {add(makeRejected("", "", carillon.CodeNotFound, 1)), []string{" was rejected as not_found 1 times, which"}},
		"a refusal for another cause": {change("pause none rejected", func(o *output) { o.event.Error.Code = carillon.CodeInternal }), []string{
			"pause of none was rejected as not_found 0 times", "pause of none was rejected as internal 1 times, which",
		}},
		"a refusal without a cause": {change("pause none rejected", func(o *output) { o.event.Error = nil }), []string{
			"no event of the protocol", "pause of none was rejected as not_found 0 times",
		}},
		"an event of no kind": {add(output{event: &carillon.Event{Kind: "rung", Job: "all"}}), []string{"no event of the protocol"}},
	})
}

// A history without anything of some kind shows nothing.
func TestOracleOfNothing(t *testing.T) {
	check := func(name string, h *history, outputs []output) {
		t.Helper()
		said := &errorRecorder{TB: t}
		h.verify(said, outputs, 1500)
		said.expect(t, name, "nothing to check")
	}
	check("nothing at all", &history{}, nil)
	h := knownHistory()
	h.forced, h.maybeFired = nil, map[string]int{"once": 2}
	check("no fire by command", h, rightOutputs())
	h = knownHistory()
	h.refused = map[refusal]times{{"none", "pause", carillon.CodeNotFound}: {0, 1}, {"none", "put", carillon.CodeInvalidSchedule}: {0, 3}}
	check("no refusal that must be there", h, rightOutputs())
}

// checkStream complains about output numbers that do not ascend one by one, and about triggers that were stored early.
func TestCheckStream(t *testing.T) {
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
			o := makeTrigger("all", 1, 900)
			if o.number, o.stored = n, time.UnixMilli(900).UTC(); n == 1 {
				o = makeTrigger("all", 1, 1000)
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
