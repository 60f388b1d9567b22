package schedule

import (
	"fmt"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	carillon "github.com/carillon-scheduler/carillon"
)

func TestPlanIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(Plan{}); size > 32 {
		t.Errorf("a plan has %d bytes", size)
	}
	e := mustParse(t, "@every 1s", "", carillon.GapShift, carillon.FoldFirst)
	a, b, other := e.Bind(1, 0, 0, 2), e.Bind(1, 0, 0, 2), e.Bind(1, 0, 0, 3)
	if a != b || a == other {
		t.Error("plans do not compare")
	}
	if at, ok := (Plan{}).Next(0); ok {
		t.Errorf("the zero plan fires at %d", at)
	}
	if n, last, done := (Plan{}).Count(7, 1000, 1); n != 0 || last != 7 || !done {
		t.Error(n, last, done)
	}
}

func drawExpr(t *rapid.T) *Expr {
	texts := []string{ // the first are drawn more often
		"* * * * * *", "@every 7ms", "*/7 * * * * *", "@every 1s", "5,6 * * * * *", "@every 1ms", "@in 3s",
		"@at 1970-01-01T00:00:05.500Z", "30 2 * * *", "0 0 * * * *", "@in 1ms", "@at 1970-01-01T00:00:00Z", "",
	}
	zones := []string{"UTC", "Europe/Paris", "Africa/Monrovia"}
	text := rapid.SampledFrom(texts).Draw(t, "text")
	zone := "UTC"
	if text != "" && text[0] != '@' {
		zone = rapid.SampledFrom(zones).Draw(t, "zone")
	}
	e, err := Parse(text, zone, carillon.GapShift, carillon.FoldFirst)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestPlan compares a bound plan with its definition: its fires are those of the unbounded expression in
// [start, end), each moved by the offset. And it compares Count with Next.
func TestPlan(t *testing.T) {
	plans, firing := 0, 0
	check := func(t *rapid.T) {
		// rapid prefers small numbers, with which few plans fire: the product spreads them evenly.
		ms := func(name string) int64 {
			return int64(rapid.Uint64().Draw(t, name) * 0x9e3779b97f4a7c15 >> 33 % 20_000)
		}
		orNone := func(name string) int64 {
			return rapid.SampledFrom([]int64{0, 0, ms(name), ms(name) / 1000 * 1000, 5_500, 1}).Draw(t, name)
		}
		e := drawExpr(t)
		accepted, start, end, offset := ms("accepted"), orNone("start"), orNone("end"), orNone("offset")
		plan := e.Bind(accepted, start, end, offset)
		after := ms("after")
		until := after + ms("span")

		// What must fire, millisecond by millisecond.
		var want []int64
		for at := max(after-offset+1, 0); at <= until-offset; at++ {
			if at < start || end != 0 && at >= end {
				continue
			}
			var fires bool
			switch e.kind {
			case At:
				fires = at == e.ms
			case In:
				fires = at == accepted+e.ms
			case Every:
				if start != 0 {
					fires = (at-start)%e.ms == 0
				} else {
					fires = at > accepted && (at-accepted)%e.ms == 0
				}
			case Cron:
				next, ok := e.Bind(0, 0, 0, 0).Next(at - 1)
				fires = ok && next == at
			}
			if fires {
				want = append(want, at+offset)
			}
		}

		var got []int64
		for at := after; ; {
			next, ok := plan.Next(at)
			if !ok || next > until {
				break
			}
			if next <= at {
				t.Fatalf("Next(%d) = %d", at, next)
			}
			got, at = append(got, next), next
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("fires %d, want %d", got, want)
		}

		budget := rapid.IntRange(0, 30).Draw(t, "budget")
		total, last := int64(0), after
		for calls := 0; ; calls++ {
			n, l, done := plan.Count(last, until, budget)
			if n == 0 && l != last {
				t.Fatalf("nothing counted, but last went from %d to %d", last, l)
			}
			if e.kind == Cron && n > int64(budget) {
				t.Fatalf("counted %d with a budget of %d", n, budget)
			}
			total, last = total+n, l
			if done {
				break
			}
			if e.kind != Cron {
				t.Fatal("a constant-time count was not done")
			}
			budget = max(budget, 1)
		}
		if total != int64(len(want)) || len(want) > 0 && last != want[len(want)-1] || len(want) == 0 && last != after {
			t.Fatalf("counted %d up to %d, want %d", total, last, want)
		}
		if plans++; len(want) > 0 {
			firing++
		}
	}
	for range 10 {
		rapid.Check(t, check)
	}
	if firing < plans/5 {
		t.Errorf("only %d of %d plans fired at all", firing, plans)
	}
}

// Counting takes constant time: ten years of milliseconds at once. And no time is too far ahead.
func TestCountFar(t *testing.T) {
	p := mustParse(t, "@every 1ms", "", carillon.GapShift, carillon.FoldFirst).Bind(1000, 0, 0, 5)
	if n, last, done := p.Count(1005, 315_360_000_000, 0); n != 315_360_000_000-1005 || last != 315_360_000_000 || !done {
		t.Error(n, last, done)
	}
	if n, last, done := p.Count(-1<<63, 1<<63-1, 0); n != Horizon-1001 || last != Horizon-1+5 || !done {
		t.Error(n, last, done)
	}
	if _, ok := p.Next(1<<63 - 1); ok {
		t.Error("a fire after the end of time")
	}
	if _, ok := mustParse(t, "@in 1s", "", carillon.GapShift, carillon.FoldFirst).Bind(1<<63-1, 0, 0, 0).Next(0); ok {
		t.Error("a fire after the end of time")
	}
}

// A fire at until is counted, the one at after is not.
func TestCountBounds(t *testing.T) {
	for _, text := range []string{"* * * * * *", "@every 1s"} {
		p := mustParse(t, text, "", carillon.GapShift, carillon.FoldFirst).Bind(0, 0, 0, 5)
		for _, c := range []struct{ after, until, n, last int64 }{{1005, 3005, 2, 3005}, {1004, 3004, 2, 2005}, {1005, 2004, 0, 1005}} {
			if n, last, done := p.Count(c.after, c.until, 9); n != c.n || last != c.last || !done {
				t.Errorf("%s in (%d, %d]: %d up to %d, %t, want %d up to %d", text, c.after, c.until, n, last, done, c.n, c.last)
			}
		}
	}
}

// In a zone that repeats half an hour, a fire as that begins is counted once.
func TestCountInFold(t *testing.T) {
	// Lord Howe's 2026-04-05 has 01:30 to 02:00 twice, the second time from 15:00 UTC of the day before.
	const begins = 1_775_314_800_000
	e := mustParse(t, "* 0-23 * * *", "Australia/Lord_Howe", carillon.GapShift, carillon.FoldLast)
	if n, last, done := e.Bind(0, 0, 0, 0).Count(begins-3_600_000, begins, 99); n != 30 || last != begins || !done {
		t.Errorf("%d fires up to %d, %t; want 30 up to %d", n, last, done, begins)
	}
}

// Counting takes no search for each fire: it goes through what is left of an hour at once.
func TestCountsByTheHour(t *testing.T) {
	e := mustParse(t, "*/10 * * * *", "", carillon.GapShift, carillon.FoldFirst)
	if n, last := e.cron.hour(7200+600, Horizon, 99); n != 4 || last != 7200+3000 {
		t.Errorf("after the second of six fires come %d more, up to %d", n, last)
	}
}

func TestOffset(t *testing.T) {
	for _, c := range []struct {
		id     string
		spread int64
		want   int64
	}{
		{"a", 0, 0},
		{"a", -1, 0},
		{"a", 1, 0},
		// Fixed for ever: the fire times of jobs depend on them.
		{"", 30_000, 14_342},
		{"a", 30_000, 8_315},
		{"b", 30_000, 26_704},
		{"invoice-7", 30_000, 27_171},
		{"invoice-8", 30_000, 351},
	} {
		if got := Offset(c.id, c.spread); got != c.want {
			t.Errorf("Offset(%q, %d) = %d, want %d", c.id, c.spread, got, c.want)
		}
	}
	// Neighbouring ids spread evenly: each of 30 seconds gets its share of 30,000 jobs within a fifth.
	var seconds [30]int
	for i := range 30_000 {
		seconds[Offset(fmt.Sprintf("job-%d", i), 30_000)/1000]++
	}
	for s, n := range seconds {
		if n < 800 || n > 1200 {
			t.Errorf("second %d has %d jobs", s, n)
		}
	}
}

// A memo that plans of one expression share changes no answer, whatever was asked before; and what it has is not searched for again.
func TestMemo(t *testing.T) {
	minutely := mustParse(t, "* * * * *", "", carillon.GapShift, carillon.FoldFirst).Bind(0, 0, 0, 0)
	known := Memo{from: 10, next: 59} // no search would find that
	if at, _ := minutely.NextWith(&known, 30_000); at != 59_000 {
		t.Fatalf("it was searched again, and found %d", at)
	}
	rapid.Check(t, func(t *rapid.T) {
		e := drawExpr(t)
		var memo Memo
		for range 20 {
			p := e.Bind(0, rapid.Int64Range(0, 10_000).Draw(t, "start"), 0, rapid.Int64Range(0, 3000).Draw(t, "offset"))
			after := rapid.Int64Range(0, 200_000).Draw(t, "after")
			at, ok := p.NextWith(&memo, after)
			if want, there := p.Next(after); at != want || ok != there {
				t.Fatalf("after %d: %d, %t with the memo, want %d, %t", after, at, ok, want, there)
			}
		}
	})
}
