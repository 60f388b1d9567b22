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

// The oracle says what must have fired. It knows what the client was told and steps through schedules by
// brute force; it shares nothing with the engine. All times are unix ms.

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

// cron steps second by second; only the fields for seconds and minutes may say something.
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

	mayFrom, mustFrom int64 // due times from here on may fire, must be accounted for
	mustTo            int64 // up to here they must
	fireTo, skipTo    int64 // up to here they may fire, may be skipped
	pauses            []span
}

type span struct{ from, to int64 }

const forever = int64(1) << 60

// history is everything the client was told.
type history struct {
	eras       []*era
	forced     map[string]bool // ids of forced triggers that must be there
	maybeFired map[string]int  // fire commands of a job whose outcome is unknown
	downs      []span          // from a kill until the node was ready again
}

// account is what the streams say about one version.
type account struct {
	covered map[int64]int // due time → how often it fired, was skipped or counted as missed
	fired   []int64
}

// verify holds all outputs against the history.
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
	forced := make(map[string]int)
	var triggers, missed, skipped, stalls int
	for _, o := range all {
		switch {
		case o.trigger != nil && o.trigger.Forced():
			forced[o.trigger.ID]++
		case o.trigger != nil:
			triggers++
			tr := o.trigger
			e, a := of(tr.Job, tr.Version)
			if e == nil {
				fail("%s of version %d fired, which the client never made", tr.ID, tr.Version)
				continue
			}
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
		}
	}
	checked := 0
	for _, e := range h.eras {
		_, a := of(e.job, e.version)
		to := min(max(e.mustTo, e.fireTo, e.skipTo), end)
		n := 0
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
	for id, must := range h.forced {
		if must && forced[id] != 1 {
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
	if failures > 20 {
		t.Errorf("… and %d more", failures-20)
	}
	t.Logf("%d triggers, %d forced, %d missed, %d skipped; %d due times of %d versions checked; %d misfires without a kill",
		triggers, len(forced), missed, skipped, checked, len(h.eras), stalls)
	if checked == 0 || len(h.forced) == 0 {
		t.Error("the oracle had nothing to check")
	}
}

// down tells whether the engine was down near a time.
func (h *history) down(from, to int64) bool {
	return slices.ContainsFunc(h.downs, func(d span) bool { return from <= d.to+1000 && d.from-1000 <= to })
}

func (e *era) String() string { return fmt.Sprintf("%s version %d", e.job, e.version) }
