package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/carillon-scheduler/carillon/bench"
)

// outcome has all results of one run.
type outcome struct {
	results []bench.Result
}

// get returns a system's result of a workload at a rate (0 for workloads without one); nil if there is none.
func (o *outcome) get(key, workload string, rate int) *bench.Result {
	for i := range o.results {
		r := &o.results[i]
		p := r.Params.(params)
		if keyOf(p.System, p.Tuned) == key && r.Workload == workload && p.Rate == rate {
			return r
		}
	}
	return nil
}

// table writes one line of figures for each system, and below them one line each with its versions, durability and settings.
func (o *outcome) table(w io.Writer, c config) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, rate := range c.rates {
		fmt.Fprintf(t, "\t%d/s:\tms off\t\t\tearly\tby ms\tmissing,", rate)
	}
	fmt.Fprintf(t, "\t%d at once:\t\tmissing,\t%d callers:\tms\t\tone:\tall at once:\t\n", c.jobs, c.callers)
	for range c.rates {
		fmt.Fprint(t, "\tp50\tp99\tp99.9\tmax\t\t\ttwice")
	}
	fmt.Fprintln(t, "\tdrained/s\tstored/s\ttwice\tcreates/s\tp50\tp99\tp50\tcreates/s\t")
	for _, key := range c.systems {
		fmt.Fprint(t, key)
		for _, rate := range c.rates {
			r := o.get(key, "lateness", rate)
			cells(t, r, "off_p50_ms", "off_p99_ms", "off_p999_ms", "off_max_ms")
			fmt.Fprintf(t, "\t%s", count(r, func(c *bench.Checks) int { return c.Early }))
			cells(t, r, "early_max_ms")
			fmt.Fprintf(t, "\t%s", flaws(r))
		}
		r := o.get(key, "burst", 0)
		cells(t, r, "drained_per_s", "stored_per_s")
		fmt.Fprintf(t, "\t%s", flaws(r))
		cells(t, o.get(key, "commands", 0), "creates_per_s", "latency_p50_ms", "latency_p99_ms", "single_latency_p50_ms")
		cells(t, r, "puts_per_s")
		fmt.Fprintln(t, "\t")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, key := range c.systems {
		s, err := find(key)
		if err != nil {
			return err
		}
		versions := ""
		for i := range o.results {
			if p := o.results[i].Params.(params); keyOf(p.System, p.Tuned) == key {
				versions = p.Versions
			}
		}
		fmt.Fprintf(w, "%s: %s; %s", key, versions, s.durability)
		for _, setting := range s.settings {
			fmt.Fprintf(w, "; %s", setting)
		}
		fmt.Fprintln(w)
	}
	return nil
}

// cells writes figures, with a dash for each that the result does not have.
func cells(w io.Writer, r *bench.Result, names ...string) {
	for _, name := range names {
		v, ok := figure(r, name)
		if !ok {
			fmt.Fprint(w, "\t–")
			continue
		}
		decimals := 2
		switch {
		case v >= 1000:
			decimals = 0
		case v >= 100:
			decimals = 1
		}
		fmt.Fprint(w, "\t"+strconv.FormatFloat(v, 'f', decimals, 64))
	}
}

func count(r *bench.Result, of func(*bench.Checks) int) string {
	if r == nil || r.Checks == nil {
		return "–"
	}
	return strconv.Itoa(of(r.Checks))
}

func flaws(r *bench.Result) string {
	return count(r, func(c *bench.Checks) int { return c.Missing }) + ", " + count(r, func(c *bench.Checks) int { return c.Duplicate + c.Redelivered })
}

// verdict compares Carillon (tuned, if that was measured) with every tuned peer of the run, and writes a line for each comparison.
// Carillon must be nearer to the due time at p50 and p99 of each rate, drain a burst faster, and have nothing early, missing or doubled.
// It returns whether all of that holds. It does not hold if a figure is missing that should be compared. A run without anything to compare
// passes, and says so.
func (o *outcome) verdict(w io.Writer, c config) (held bool) {
	held = true
	us := "carillon"
	if slices.Contains(c.systems, "carillon-tuned") {
		us = "carillon-tuned"
	}
	say := func(ok bool, format string, args ...any) {
		word := "yes"
		if !ok {
			word, held = "NO", false
		}
		fmt.Fprintf(w, "%-4s%s\n", word, fmt.Sprintf(format, args...))
	}
	compared := 0
	compare := func(workload string, rate int, name string, better func(ours, theirs float64) bool) {
		if !slices.Contains(c.systems, us) || !slices.Contains(c.workloads, workload) {
			return
		}
		what := measured(workload, rate)
		for _, key := range c.systems {
			if s, err := find(key); err != nil || !s.tuned || key == us {
				continue
			}
			compared++
			a, ours := figure(o.get(us, workload, rate), name)
			b, theirs := figure(o.get(key, workload, rate), name)
			switch {
			case !ours:
				say(false, "%s, %s: %s has no figure to compare with %s", what, name, us, key)
			case !theirs:
				say(false, "%s, %s: %s has no figure to compare with %s", what, name, key, us)
			default:
				say(better(a, b), "%s, %s: %s %.4g, %s %.4g", what, name, us, a, key, b)
			}
		}
	}
	less := func(a, b float64) bool { return a < b }
	for _, rate := range c.rates {
		compare("lateness", rate, "off_p50_ms", less)
		compare("lateness", rate, "off_p99_ms", less)
	}
	compare("burst", 0, "drained_per_s", func(a, b float64) bool { return a > b })
	if compared == 0 {
		fmt.Fprintln(w, "nothing to compare: that takes lateness or burst of carillon and of a tuned peer")
	}
	for i := range o.results {
		r := &o.results[i]
		if p := r.Params.(params); p.System == "carillon" && r.Checks != nil {
			say(r.Passed() && r.Checks.Redelivered == 0, "%s: %s has nothing early, missing or doubled", measured(r.Workload, p.Rate), keyOf(p.System, p.Tuned))
		}
	}
	return held
}

// measured is the name of a workload, with its rate if it has one.
func measured(workload string, rate int) string {
	if rate == 0 {
		return workload
	}
	return fmt.Sprintf("%s at %d/s", workload, rate)
}

// figure is one of a result; ok is false if there is no result, or if it has no such figure.
func figure(r *bench.Result, name string) (value float64, ok bool) {
	if r == nil {
		return 0, false
	}
	i := slices.IndexFunc(r.Figures, func(f bench.Figure) bool { return f.Name == name })
	if i < 0 {
		return 0, false
	}
	return r.Figures[i].Value, true
}
