package schedule

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	carillon "github.com/carillon-scheduler/carillon"
)

// zonesOfNote have changes that differ from the usual hour at two or three at night.
var zonesOfNote = []string{
	"Europe/Paris", "America/New_York", "Europe/London", "Europe/Dublin", "Australia/Sydney",
	"Australia/Lord_Howe",                                               // half an hour
	"America/Sao_Paulo", "Asia/Beirut", "America/Havana", "Asia/Tehran", // midnight
	"Pacific/Apia", "Pacific/Kwajalein", "Pacific/Fakaofo", "Pacific/Kiritimati", // a day that never was
	"Africa/Monrovia", "America/Guyana", "Asia/Kathmandu", // offsets that are odd, or not even minutes
	"Antarctica/Troll", "Africa/Casablanca", "Asia/Pyongyang", "America/Caracas", "Antarctica/Casey",
	"America/St_Johns", "America/Nuuk", "Asia/Gaza", "Africa/Cairo", "Pacific/Chatham", "UTC",
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// randomField makes the text of a field; usual is a value that it often contains.
func randomField(r *rand.Rand, lowest, highest, usual int, names []string) string {
	value := func() string {
		v := lowest + r.IntN(highest-lowest+1)
		if r.IntN(2) == 0 {
			v = usual
		}
		if names != nil && r.IntN(2) == 0 {
			name := names[(v-lowest)%len(names)]
			return pick(r, name, strings.ToLower(name))
		}
		return fmt.Sprintf(pick(r, "%d", "%02d"), v)
	}
	step := func() string {
		return fmt.Sprint(pick(r, 1, 1, 1, 1+r.IntN(100)) * (1 + r.IntN(min(highest, 59)-lowest)))
	}
	item := func() string {
		switch r.IntN(8) {
		case 0:
			return pick(r, "*/", "*/", "?/") + step()
		case 1:
			return value() + "-" + value() // may wrap around the field's end
		case 2:
			return value() + "-" + value() + "/" + step()
		case 3:
			return value() + "/" + step()
		}
		return value()
	}
	items := []string{item()}
	for r.IntN(3) == 0 {
		items = append(items, item())
	}
	return strings.Join(items, ",")
}

func randomDays(r *rand.Rand, usual time.Time) (dom, dow string) {
	dom, dow = pick(r, "*", "?"), pick(r, "*", "?")
	if r.IntN(3) == 0 {
		dom = randomField(r, 1, 31, usual.Day(), nil)
	}
	if r.IntN(6) == 0 {
		dom = pick(r, "L", "LW", "l", fmt.Sprintf("L-%d", 1+r.IntN(30)), fmt.Sprintf("%dW", 1+r.IntN(31)),
			fmt.Sprintf("%dW,L", usual.Day()), fmt.Sprintf("%d,LW", usual.Day()), "*,13", "*/2,L")
	}
	names := []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}
	if r.IntN(4) == 0 {
		dow = randomField(r, 0, 6, int(usual.Weekday()), names)
	}
	if r.IntN(8) == 0 {
		day := pick(r, names...)
		dow = pick(r, fmt.Sprintf("%s#%d", day, 1+r.IntN(5)), fmt.Sprintf("%d#%d", r.IntN(8), 1+r.IntN(5)), day+"L", "5l",
			day+"#1,"+day+"#3", "MON-FRI,7L", "7", "5-7", "0-7", "7-2", "1-7/2", "7/3", "7-7", "FRI-MON", "sat-sun")
	}
	return dom, dow
}

// randomCron makes an expression that often matches about the local time near.
func randomCron(r *rand.Rand, near time.Time) string {
	var w [6]string
	w[0], w[1], w[2] = "0", "*", "*"
	if r.IntN(2) == 0 {
		w[0] = randomField(r, 0, 59, 0, nil)
	}
	if r.IntN(8) == 0 {
		w[0] = pick(r, "*", "?")
	}
	if r.IntN(4) != 0 {
		w[1] = randomField(r, 0, 59, 30, nil)
	}
	switch r.IntN(8) {
	case 0:
	case 1, 2:
		w[2] = fmt.Sprintf("%s/%d", pick(r, "*", "?"), 1+r.IntN(30))
	default:
		w[2] = randomField(r, 0, 23, (near.Hour()+22+r.IntN(4))%24, nil)
	}
	w[3], w[5] = randomDays(r, near)
	w[4] = "*"
	if r.IntN(4) == 0 {
		w[4] = randomField(r, 1, 12, int(near.Month()), []string{"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"})
	}
	words := w[:]
	if w[0] == "0" {
		words = words[r.IntN(2):]
	}
	return strings.Join(words, " ")
}

func zoneByName(t testing.TB, name string) *time.Location {
	t.Helper()
	f, ok := zoneFiles()[name]
	if !ok {
		t.Fatalf("no zone %s", name)
	}
	return location(f)
}

// changes lists the instants, in seconds up to 2100, at which a zone's offset changes. It asks time.Time
// for each hour and not for the zone's own table.
func changes(loc *time.Location) []int64 {
	offset := func(at int64) int {
		_, off := time.Unix(at, 0).In(loc).Zone()
		return off
	}
	var found []int64
	for at := int64(3600 * 24); at < 4102444800; at += 3600 * 24 {
		if offset(at) == offset(at-3600*24) {
			continue
		}
		lo, hi := at-3600*24, at
		for hi-lo > 1 {
			if mid := (lo + hi) / 2; offset(mid) == offset(lo) {
				lo = mid
			} else {
				hi = mid
			}
		}
		found = append(found, hi)
	}
	return found
}

// TestNextEqualsStepping is the proof of the package: for random expressions, zones and starts, Next is
// what stepping second by second through a window holding a change of the clock finds.
func TestNextEqualsStepping(t *testing.T) {
	const half = 30 * 3600
	windows, expressions := 80, 10_000
	if raceEnabled || testing.Short() {
		windows, expressions = 20, 1_000
	}
	names := make([]string, 0, len(zoneFiles()))
	for name := range zoneFiles() {
		names = append(names, name)
	}
	slices.Sort(names)
	var compared, fires, shifted, folded atomic.Int64
	t.Run("windows", func(t *testing.T) {
		for i := range windows {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				r := rand.New(rand.NewPCG(1, uint64(i)))
				name := pick(r, names...)
				if i < 2*len(zonesOfNote) {
					name = zonesOfNote[i%len(zonesOfNote)]
				}
				loc := zoneByName(t, name)
				middle := r.Int64N(4_000_000_000)
				if c := changes(loc); len(c) > 0 {
					middle = pick(r, c...)
				}
				if i == slices.Index(zonesOfNote, "Pacific/Apia") {
					middle = time.Date(2011, 12, 30, 10, 0, 0, 0, time.UTC).Unix()
				}
				w := makeWindow(loc, middle, half)
				end := (w.begin + int64(len(w.seconds))) * 1000
				for range expressions / windows {
					near := time.Unix(middle+pick[int64](r, -1, 1), 0).In(loc)
					text := randomCron(r, near)
					gap := pick(r, carillon.GapShift, carillon.GapSkip)
					fold := pick(r, carillon.FoldFirst, carillon.FoldLast, carillon.FoldBoth)
					e, err := Parse(text, name, gap, fold)
					if err != nil {
						if !strings.Contains(err.Error(), "never match") {
							t.Fatalf("%q: %v", text, err)
						}
						e = nil
					}
					n := readNaive(text, gap, fold)
					days := make([]bool, len(w.dates))
					for d, date := range w.dates {
						days[d] = n.day(date)
					}
					after := w.begin*1000 + r.Int64N(2*half*1000)
					if r.IntN(2) == 0 {
						after = middle*1000 + r.Int64N(8*3600*1000) - 4*3600*1000
					}
					for range 12 {
						after = max(after, w.begin*1000)
						want, inside := w.step(n, days, after)
						var got int64
						ok := false
						if e != nil {
							got, ok = e.Bind(0, 0, 0, 0).Next(after)
						}
						compared.Add(1)
						if inside != (ok && got < end) || inside && got != want {
							t.Fatalf("%q in %s, gap %d, fold %d, after %s:\n Next     %s %t\n stepping %s %t", text, name, gap, fold,
								show(after, loc), show(got, loc), ok, show(want, loc), inside)
						}
						if !inside {
							break
						}
						fires.Add(1)
						s := w.seconds[want/1000-w.begin]
						if s.skipped != nil {
							shifted.Add(1)
						}
						if s.before || s.again {
							folded.Add(1)
						}
						after = want
					}
				}
			})
		}
	})
	t.Logf("%d comparisons, %d fires, %d at the end of a gap, %d in a fold", compared.Load(), fires.Load(), shifted.Load(), folded.Load())
	if shifted.Load() < int64(expressions/50) || folded.Load() < int64(expressions/20) {
		t.Errorf("the windows hold too few fires in gaps (%d) and folds (%d) to prove anything", shifted.Load(), folded.Load())
	}
}

// TestCountEqualsNext compares a count over a change of the clock with the fires that Next finds one by one.
func TestCountEqualsNext(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	counted, cut := 0, 0
	for range 300 {
		name := pick(r, pick(r, zonesOfNote...), "Australia/Lord_Howe", "Asia/Pyongyang", "Asia/Kathmandu") // which change within an hour
		loc := zoneByName(t, name)
		z, _ := findZone(name)
		middle := pick(r, z.at[:len(z.at)-1]...)
		text := pick(r, randomCron(r, time.Unix(middle, 0).In(loc)), "*/9 1-59/2 0-23 * * *")
		e, err := Parse(text, name, pick(r, carillon.GapShift, carillon.GapSkip), pick(r, carillon.FoldFirst, carillon.FoldLast, carillon.FoldBoth))
		if err != nil {
			continue
		}
		near := func() int64 { return middle*1000 + r.Int64N(6*3600*1000) - 3*3600*1000 }
		plan := e.Bind(0, 0, pick(r, 0, near()), pick(r, 0, r.Int64N(4*3600*1000)))
		after := near()
		until := after + r.Int64N(4*3600*1000)
		var want []int64
		for at, ok := plan.Next(after); ok && at <= until; at, ok = plan.Next(at) {
			want = append(want, at)
		}
		got, last := 0, after
		for done := false; !done; {
			budget := 1 + r.IntN(1000)
			var n int64
			n, last, done = plan.Count(last, until, budget)
			got += int(n)
			if got > len(want) || n > int64(budget) || got > 0 && last != want[got-1] {
				t.Fatalf("%q in %s: counted %d with a budget of %d, %d in all, up to %s", text, name, n, budget, got, show(last, loc))
			}
			if !done {
				cut++
			}
		}
		if got != len(want) {
			t.Fatalf("%q in %s, %+v, from %s to %s: counted %d, Next finds %d", text, name, plan, show(after, loc), show(until, loc), got, len(want))
		}
		counted += got
	}
	t.Logf("counted %d, with %d pauses", counted, cut)
}

func show(ms int64, loc *time.Location) string {
	return time.UnixMilli(ms).In(loc).Format("2006-01-02T15:04:05.000Z07:00:00")
}

// TestDaysEqualStepping steps through days instead of seconds, as far as necessary: if an expression can never match, over the
// 400 years after which the calendar repeats.
func TestDaysEqualStepping(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	expressions := 2_000
	if raceEnabled || testing.Short() {
		expressions = 400
	}
	never := 0
	for range expressions {
		dom, dow := randomDays(r, time.Date(2026, 1, 1+r.IntN(365), 0, 0, 0, 0, time.UTC))
		month := pick(r, "*", "FEB", fmt.Sprint(1+r.IntN(12)), "4,6,9,11", "nov-feb", "*/5")
		if r.IntN(4) == 0 {
			dom, dow = pick(r, "*/29", "*/30", "29", "30", "31", "L-29", "L-30", "30W", "31W"), pick(r, "*", "*/6", "*/3", "FRI#5", "0", "MONL")
			month = pick(r, month, "2", "2", "2,4")
		}
		text := strings.Join([]string{"0 0", dom, month, dow}, " ")
		start := time.Date(1970+r.IntN(60), 1, 1+r.IntN(365), 0, 0, 0, 0, time.UTC)
		n := readNaive(text, carillon.GapShift, carillon.FoldFirst)
		e, err := Parse(text, "", carillon.GapShift, carillon.FoldFirst)
		day := start
		for range 4 {
			limit := day.AddDate(400, 0, 1)
			day = day.AddDate(0, 0, 1)
			for day.Before(limit) && !n.day(day) {
				day = day.AddDate(0, 0, 1)
			}
			if !day.Before(limit) {
				if !errors.Is(err, &carillon.Error{Code: carillon.CodeInvalidSchedule}) || !strings.Contains(err.Error(), "never match") {
					t.Fatalf("%q never matches, but Parse says %v", text, err)
				}
				never++
				break
			}
			if err != nil {
				t.Fatalf("%q matches %s, but Parse says %v", text, day, err)
			}
			got, ok := e.Bind(0, 0, 0, 0).Next(start.UnixMilli())
			if !ok || got != day.UnixMilli() {
				t.Fatalf("%q after %s: Next %s %t, stepping %s", text, start, show(got, time.UTC), ok, day)
			}
			start = day
		}
	}
	if never < expressions/100 {
		t.Errorf("only %d expressions could never match", never)
	}
}
