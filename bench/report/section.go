package report

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/carillon-scheduler/carillon/bench"
)

// newSection makes the section for the results of one group.
func newSection(runs []Run) section {
	s := section{Title: capital(runs[0].Workload), runs: runs, labels: labelled(runs)}
	for _, w := range workloads {
		if w.name == runs[0].Workload {
			s.Title, s.About, s.compares = w.title, w.about, w.rates
		}
	}
	rates, distributions := s.rates(), append(s.lateness(), s.latencies()...)
	if s.peers() {
		s.Title = strings.TrimSpace("Peers: " + runs[0].Workload + " " + runs[0].amount())
		s.About = "The same work on other systems, with their defaults and tuned. What each of them syncs, and when, is said below."
		rates, distributions = s.peerRates(), s.comparisons()
	}
	times, courses := s.times(), s.courses()
	shareBars(rates)
	shareBars(times)
	share(distributions)
	for _, p := range courses { // no shared axes: each run has its own size and length
		share([]*lines{p})
	}
	for _, p := range slices.Concat(rates, times) {
		s.Plots = append(s.Plots, p)
	}
	for _, p := range slices.Concat(courses, distributions) {
		s.Plots = append(s.Plots, p)
	}
	s.Tables = []table{conditions(runs, s.labels), figures(runs, s.labels)}
	return s
}

// peers tells whether the section compares systems.
func (s *section) peers() bool { return s.runs[0].param("system") != "" }

// titled is a plot's title, with the run's label if there are several runs.
func (s *section) titled(title string, run int) string {
	if len(s.runs) == 1 {
		return title
	}
	return title + ", " + s.labels[run]
}

// class is the colour of a run in its section. A system has one colour; if it was measured tuned, too, its defaults have a
// paler one.
func (s *section) class(run int) string {
	if !s.peers() {
		return colour(run)
	}
	own := s.runs[run].peer()
	systems, tuned := []string{""}, false // Carillon has the accent
	for _, r := range s.runs {
		name := r.peer()
		if !slices.Contains(systems, name) {
			systems = append(systems, name)
		}
		tuned = tuned || name == own && r.param("tuned") == "yes"
	}
	class := colour(slices.Index(systems, own))
	if tuned && s.runs[run].param("tuned") != "yes" {
		class += " pale"
	}
	return class
}

// The histograms of a run with a worker: triggers received and stored, the distance from the due time in either direction,
// and the bare sleep.
const (
	received = "received_us"
	stored   = "stored_us"
	off      = "off_us"
	sleep    = "sleep_us"

	sleepNote = "Dashed: how late a bare sleep woke in the same run."
	goalNote  = "Short strokes: targets."
)

// lateness plots the lateness of every run in one plot, with the bare sleep of the same run beside it.
func (s *section) lateness() []*lines {
	d := distribution("Lateness")
	alone := len(s.runs) == 1
	for i, r := range s.runs {
		h := r.histograms[received]
		if h == nil {
			continue
		}
		if alone {
			d.add("stored", colour(1), r.histograms[stored], true)
			d.add("received", colour(0), h, true)
			d.add("sleep", quiet+" dashed", r.histograms[sleep], true)
		} else {
			d.add(s.labels[i], s.class(i), h, true)
			d.add(s.labels[i]+", sleep", s.class(i)+" dashed", r.histograms[sleep], false)
		}
		if r.histograms[sleep] != nil {
			d.remark(sleepNote)
		}
		d.mark(&r)
	}
	if len(d.lines) == 0 {
		return nil
	}
	return []*lines{d}
}

// mark marks the targets of percentiles of what was received.
func (l *lines) mark(r *Run) {
	for _, t := range r.Targets {
		digits, ok := strings.CutPrefix(t.Figure, "received_p")
		digits, ms := strings.CutSuffix(digits, "_ms")
		share, err := strconv.ParseFloat("0."+digits, 64)
		if !ok || !ms || err != nil || t.Limit <= 0 {
			continue
		}
		if p := (bench.Point{ninesOf(share), math.Log10(t.Limit)}); !slices.Contains(l.goals, p) {
			l.goals = append(l.goals, p)
			l.remark(goalNote)
		}
	}
}

// latencies plots the other histograms, in up to three plots for each run: those of received triggers, those of stored
// triggers, and the rest.
func (s *section) latencies() (plots []*lines) {
	for i, r := range s.runs {
		by := make(map[string]*lines)
		for _, name := range slices.Sorted(maps.Keys(r.histograms)) {
			if name == received || name == stored || name == sleep {
				continue
			}
			label, _ := named(name)
			what := "latencies"
			for _, kind := range []string{"received", "stored"} {
				if rest, ok := strings.CutSuffix(label, " "+kind); ok {
					label, what = rest, kind
				}
				if rest, ok := strings.CutPrefix(label, kind+" "); ok { // a part of them, as "received after kill"
					label, what = rest, kind
				}
			}
			d := by[what]
			if d == nil {
				d = distribution(s.titled(capital(what), i))
				by[what] = d
			}
			d.add(label, colour(len(d.lines)), r.histograms[name], true)
		}
		for _, what := range slices.Sorted(maps.Keys(by)) {
			d := by[what]
			if h := r.histograms[sleep]; h != nil {
				d.add("sleep", quiet+" dashed", h, true)
				d.remark(sleepNote)
			}
			if len(d.lines) > 0 {
				plots = append(plots, d)
			}
		}
	}
	return plots
}

// comparisons has a plot for each histogram, with that histogram of all systems.
func (s *section) comparisons() (plots []*lines) {
	early := slices.ContainsFunc(s.runs, func(r Run) bool { return r.Checks != nil && r.Checks.Early > 0 })
	by := make(map[string]*lines)
	for i, r := range s.runs {
		for name, h := range r.histograms {
			d := by[name]
			switch label, _ := named(name); {
			case d != nil:
			case name == received && early:
				d = distribution("Lateness, early ones as 0")
			case name == received:
				d = distribution("Lateness")
			case name == off && !early: // then it equals the histogram of received triggers
				continue
			case name == off:
				d = distribution("Off the due time, early or late")
			default:
				d = distribution(capital(label))
			}
			by[name] = d
			d.add(s.labels[i], s.class(i), h, true)
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(by), func(a, b string) int { return cmp.Compare(b, a) }) { // received before off
		if len(by[name].lines) > 0 {
			plots = append(plots, by[name])
		}
	}
	return plots
}

// courses plots the series: one plot for each run and unit.
func (s *section) courses() (plots []*lines) {
	for i, r := range s.runs {
		by := make(map[string][]line)
		for _, name := range slices.Sorted(maps.Keys(r.Series)) {
			if len(r.Series[name]) == 0 {
				continue
			}
			label, unit := named(name)
			unit, factor := perSecond(unit)
			points := slices.SortedStableFunc(slices.Values(r.Series[name]), func(a, b bench.Point) int { return cmp.Compare(a[0], b[0]) })
			for j := range points {
				points[j][1] *= factor
			}
			by[unit] = append(by[unit], line{label: label, class: colour(len(by[unit])), points: points, named: true})
		}
		for _, unit := range slices.Sorted(maps.Keys(by)) {
			title := strings.TrimSuffix("Over time, "+unit, ", ")
			if len(by[unit]) == 1 {
				title = capital(by[unit][0].label) + " over time"
			}
			p := course(s.titled(title, i), unit, by[unit])
			if v := r.Figures.Get("ceiling_chained_per_s"); v > 0 && unit == "/s" {
				p.limits = append(p.limits, v)
				p.remark("Dotted: the ceiling of the same run, chained publishes of bare messages.")
			}
			plots = append(plots, p)
		}
	}
	return plots
}

// perSecond converts a count per 100ms to one per second.
func perSecond(unit string) (_ string, factor float64) {
	if d, err := time.ParseDuration(strings.TrimPrefix(unit, "/")); err == nil && strings.HasPrefix(unit, "/") && d > 0 {
		return "/s", 1 / d.Seconds()
	}
	return unit, 1
}

// rates plots the figures per second, for a workload that is about them; ceilings come last.
func (s *section) rates() (plots []*bars) {
	for i, r := range s.runs {
		if !s.compares {
			continue
		}
		p := &bars{title: s.titled("Rates", i), unit: "/s"}
		var ceilings []bar
		for _, f := range r.Figures {
			label, unit := named(f.Name)
			if unit != "/s" {
				continue
			}
			b := bar{label: label, class: colour(0), value: f.Value, goal: r.goal(f.Name)}
			if b.goal > 0 {
				p.note = goalNote
			}
			if strings.HasPrefix(f.Name, "ceiling_") {
				b.class = quiet
				ceilings = append(ceilings, b)
			} else {
				p.bars = append(p.bars, b)
			}
		}
		if len(ceilings) > 0 {
			p.title = s.titled("Rate against ceiling", i)
			p.bars = append(p.bars, ceilings...)
		}
		if len(p.bars) > 0 {
			plots = append(plots, p)
		}
	}
	return plots
}

// goal is the value that a rate has to reach, given as such or as a share of a ceiling of the same run; 0 for none.
func (r *Run) goal(rate string) (most float64) {
	for _, t := range r.Targets {
		if !t.AtLeast {
			continue
		}
		if t.Figure == rate {
			most = max(most, t.Limit)
		}
		// For example, cron_ratio_chained is the ratio of cron_triggers_per_s to ceiling_chained_per_s.
		prefix, ceiling, ok := strings.Cut(t.Figure, "ratio_")
		if ok && (rate == prefix+"triggers_per_s" || rate == prefix+"drained_per_s") {
			most = max(most, t.Limit*r.Figures.Get("ceiling_"+ceiling+"_per_s"))
		}
	}
	return most
}

// peerRates has a plot for each figure per second, with that figure of all systems.
func (s *section) peerRates() (plots []*bars) {
	if !s.compares {
		return nil
	}
	var names []string
	for _, r := range s.runs {
		for _, f := range r.Figures {
			if strings.HasSuffix(f.Name, "_per_s") && !slices.Contains(names, f.Name) {
				names = append(names, f.Name)
			}
		}
	}
	for _, name := range names {
		label, _ := named(name)
		p := &bars{title: capital(label) + " per second", unit: "/s"}
		for i, r := range s.runs {
			if slices.ContainsFunc(r.Figures, func(f bench.Figure) bool { return f.Name == name }) {
				p.bars = append(p.bars, bar{label: s.labels[i], class: s.class(i), value: r.Figures.Get(name)})
			}
		}
		if len(p.bars) > 1 {
			plots = append(plots, p)
		}
	}
	return plots
}

// times plots the medians in seconds that have a worst value beside them.
func (s *section) times() (plots []*bars) {
	for i, r := range s.runs {
		p := &bars{title: s.titled("Times", i), note: "Thin line: up to the worst.", unit: "s"}
		for _, f := range r.Figures {
			base, ok := strings.CutSuffix(f.Name, "_s")
			if worst := r.Figures.Get(base + "_max_s"); ok && worst > 0 {
				label, _ := named(f.Name)
				p.bars = append(p.bars, bar{label: label, class: colour(0), value: f.Value, worst: worst})
			}
		}
		if len(p.bars) > 0 {
			plots = append(plots, p)
		}
	}
	return plots
}

// capital makes the first letter a capital.
func capital(s string) string {
	r, size := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(r)) + s[size:]
}
