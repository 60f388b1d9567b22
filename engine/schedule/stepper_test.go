package schedule

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	carillon "github.com/carillon-scheduler/carillon"
)

// The stepper is a second, slow reading of docs/time.md. It shares no code with the package: it reads the
// text of an expression by itself, takes local times from time.Time, and looks at one second after
// another.

// naive is an expression as the stepper reads it.
type naive struct {
	text                 string
	second, minute, hour [60]bool
	month                [13]bool
	dom, dow             string
	mode                 string // "every hour", "every n hours" or "by the clock"
	gap                  carillon.Gap
	fold                 carillon.Fold
}

func readNaive(text string, gap carillon.Gap, fold carillon.Fold) *naive {
	w := strings.Fields(text)
	if len(w) == 5 {
		w = append([]string{"0"}, w...)
	}
	n := &naive{text: text, dom: strings.ToUpper(w[3]), dow: strings.ToUpper(w[5]), gap: gap, fold: fold}
	for v := range 60 {
		n.second[v] = naiveIn(w[0], v, 0, 59, "")
		n.minute[v] = naiveIn(w[1], v, 0, 59, "")
		n.hour[v] = v < 24 && naiveIn(w[2], v, 0, 23, "")
	}
	for v := 1; v <= 12; v++ {
		n.month[v] = naiveIn(strings.ToUpper(w[4]), v, 1, 12, "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC")
	}
	switch {
	case w[2] == "*" || w[2] == "*/1" || w[2] == "?" || w[2] == "?/1":
		n.mode = "every hour"
	case (strings.HasPrefix(w[2], "*/") || strings.HasPrefix(w[2], "?/")) && !strings.Contains(w[2], ","):
		n.mode = "every n hours"
	default:
		n.mode = "by the clock"
	}
	return n
}

// naiveIn tells whether v is in a list of items *, a, a-b and /step, by walking from the first value of
// each and over the field's end.
func naiveIn(list string, v, lowest, highest int, names string) bool {
	number := func(s string) int {
		for i, name := range strings.Fields(names) {
			if name == s {
				return lowest + i
			}
		}
		n, err := strconv.Atoi(s)
		if err != nil {
			panic(fmt.Sprintf("stepper cannot read %q of %q", s, list))
		}
		return n
	}
	for _, item := range strings.Split(list, ",") {
		base, step := item, 1
		if i := strings.IndexByte(item, '/'); i >= 0 {
			base, step = item[:i], number(item[i+1:])
		}
		from, to := lowest, highest
		if base != "*" && base != "?" {
			ends := strings.Split(base, "-")
			from = number(ends[0])
			switch {
			case len(ends) == 2:
				to = number(ends[1])
			case base == item:
				to = from
			}
		}
		for at, steps := from, 0; ; at, steps = at+1, steps+1 {
			if at > highest {
				at = lowest
			}
			if at == v && steps%step == 0 {
				return true
			}
			if at == to {
				break
			}
		}
	}
	return false
}

// day tells whether the expression matches a date, of which t is any time.
func (n *naive) day(t time.Time) bool {
	if !n.month[t.Month()] {
		return false
	}
	dom, dow := false, false
	for _, item := range strings.Split(n.dom, ",") {
		dom = dom || naiveDayOfMonth(item, t)
	}
	for _, item := range strings.Split(n.dow, ",") {
		dow = dow || naiveDayOfWeek(item, t)
	}
	if strings.ContainsRune("*?", rune(n.dom[0])) || strings.ContainsRune("*?", rune(n.dow[0])) {
		return dom && dow
	}
	return dom || dow
}

func lastOf(t time.Time) int { return time.Date(t.Year(), t.Month()+1, 0, 0, 0, 0, 0, time.UTC).Day() }

func naiveDayOfMonth(item string, t time.Time) bool {
	last := lastOf(t)
	switch {
	case item == "L":
		return t.Day() == last
	case strings.HasPrefix(item, "L-"):
		n, _ := strconv.Atoi(item[2:])
		return t.Day()+n == last
	case strings.HasSuffix(item, "W"):
		// The weekday of this month with the smallest distance; LW is nearest to the last from below.
		target := last
		if item != "LW" {
			if target, _ = strconv.Atoi(item[:len(item)-1]); target > last {
				return false
			}
		}
		best := 0
		for d := 1; d <= last; d++ {
			switch time.Date(t.Year(), t.Month(), d, 0, 0, 0, 0, time.UTC).Weekday() {
			case time.Saturday, time.Sunday:
				continue
			}
			if best == 0 || max(d-target, target-d) < max(best-target, target-best) {
				best = d
			}
		}
		return t.Day() == best
	}
	return naiveIn(item, t.Day(), 1, 31, "")
}

func naiveDayOfWeek(item string, t time.Time) bool {
	const names = "SUN MON TUE WED THU FRI SAT"
	today := int(t.Weekday())
	if i := strings.IndexByte(item, '#'); i >= 0 {
		nth, _ := strconv.Atoi(item[i+1:])
		return naiveDayOfWeek(item[:i], t) && (t.Day()+6)/7 == nth
	}
	if strings.HasSuffix(item, "L") {
		return naiveDayOfWeek(item[:len(item)-1], t) && t.Day()+7 > lastOf(t)
	}
	// 7 is one more name of Sunday: ranges that use it run over 0 to 7, and 7 as a start is 0.
	if strings.HasPrefix(item, "7") {
		item = "0" + item[1:]
		if item == "0-7" {
			item = "0"
		}
	}
	if base, step, _ := strings.Cut(item, "/"); strings.HasSuffix(base, "-7") {
		if step == "" {
			step = "1"
		}
		item = base + "/" + step
		return naiveIn(item, today, 0, 7, names) || today == 0 && naiveIn(item, 7, 0, 7, names)
	}
	return naiveIn(item, today, 0, 6, names)
}

// second is one instant of a window.
type second struct {
	hour, minute, second uint8
	date                 uint8 // index in window.dates
	before, again        bool  // the same local time came before, or comes again
	skipped              []int // in the first second after a gap: where in window.lost its local times lie
}

// window is a stretch of time in one zone, each second with its local time.
type window struct {
	name    string
	begin   int64 // Unix seconds
	seconds []second
	dates   []time.Time
	lost    []second // local times that were skipped
}

func makeWindow(loc *time.Location, middle, half int64) *window {
	w := &window{name: loc.String(), begin: max(middle-half, 0)}
	dates := map[int]uint8{}
	fields := func(t time.Time) second {
		key := t.Year()*1000 + t.YearDay()
		d, ok := dates[key]
		if !ok {
			d = uint8(len(w.dates))
			dates[key] = d
			w.dates = append(w.dates, t)
		}
		h, m, s := t.Clock()
		return second{hour: uint8(h), minute: uint8(m), second: uint8(s), date: d}
	}
	type local struct{ date, hour, minute, second uint8 }
	seen := map[local]int{}
	var previous time.Time // the last local time, as if it were UTC
	for at := w.begin; at < middle+half; at++ {
		t := time.Unix(at, 0).In(loc)
		s := fields(t)
		y, mo, d := t.Date()
		now := time.Date(y, mo, d, int(s.hour), int(s.minute), int(s.second), 0, time.UTC)
		if at > w.begin {
			for u := previous.Add(time.Second); u.Before(now); u = u.Add(time.Second) {
				s.skipped = append(s.skipped, len(w.lost))
				w.lost = append(w.lost, fields(u))
			}
		}
		previous = now
		key := local{s.date, s.hour, s.minute, s.second}
		if earlier, ok := seen[key]; ok {
			w.seconds[earlier].again = true
			s.before = true
		}
		seen[key] = len(w.seconds)
		w.seconds = append(w.seconds, s)
	}
	return w
}

// step returns the first fire after the given Unix millisecond that lies in the window.
func (w *window) step(n *naive, days []bool, after int64) (int64, bool) {
	matches := func(s *second) bool {
		return n.second[s.second] && n.minute[s.minute] && n.hour[s.hour] && days[s.date]
	}
	gap, fold := n.gap, n.fold
	if n.mode == "every n hours" {
		gap, fold = carillon.GapShift, carillon.FoldFirst
	}
	for i := max((after-w.begin*1000)/1000, 0); i < int64(len(w.seconds)); i++ {
		at, s := (w.begin+i)*1000, &w.seconds[i]
		if at <= after {
			continue
		}
		if matches(s) {
			switch {
			case n.mode == "every hour", fold == carillon.FoldBoth:
				return at, true
			case fold == carillon.FoldFirst && !s.before:
				return at, true
			case fold == carillon.FoldLast && !s.again:
				return at, true
			}
		}
		if s.skipped != nil && n.mode != "every hour" && gap == carillon.GapShift {
			for _, l := range s.skipped {
				if matches(&w.lost[l]) {
					return at, true
				}
			}
		}
	}
	return 0, false
}
