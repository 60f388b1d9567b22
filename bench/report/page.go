package report

import (
	"bytes"
	"cmp"
	_ "embed" // the page's template and styles
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/carillon-scheduler/carillon/bench"
)

//go:embed page.tmpl
var pageText string

// style is the page's style sheet, with the colours of light and of dark mode first. plotStyle is the plots' style sheet; it comes before
// style in a page, so that on narrow screens and on paper the page's rules prevail.
var (
	//go:embed style.css
	style string
	//go:embed plot.css
	plotStyle string
)

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// Summary counts what is on a page.
type Summary struct {
	Results int `json:"results"`
	Plots   int `json:"plots"`
	Targets int `json:"targets"` // of all results
	Met     int `json:"targets_met"`
	Checked int `json:"checked"` // Carillon's results that have checks, or were ended early
	Clean   int `json:"clean"`   // the checked results whose checks all held
}

// Failed is how many checked results are not clean.
func (s Summary) Failed() int { return s.Checked - s.Clean }

// Write writes the page of some results. The same results give the same page.
func Write(w io.Writer, runs []Run) (Summary, error) {
	p := page{Style: template.CSS(plotStyle + style), Sections: sections(runs)}
	p.Results = len(runs)
	for _, s := range p.Sections {
		p.Plots += len(s.Plots)
		for j, run := range s.runs {
			name := s.Title
			if len(s.runs) > 1 {
				name += ": " + s.labels[j]
			}
			for _, t := range run.Targets {
				p.Targets++
				if t.Met {
					p.Met++
				}
				p.Goals = append(p.Goals, newGoal(s.ID, name, &run, t))
			}
			if c := run.Checks; c != nil || run.Error != "" { // a run that was ended early must not look complete
				v := checked{Section: s.ID, Run: name, Clean: (&bench.Result{Checks: c, Error: run.Error}).Passed(), Error: run.Error, Counts: counts(c)}
				p.Checks = append(p.Checks, v)
				if run.peer() == "" {
					p.Checked++
					if v.Clean {
						p.Clean++
					}
				}
			}
		}
	}
	var b bytes.Buffer // a page is written as a whole or not at all
	if err := pageTemplate.Execute(&b, p); err != nil {
		return p.Summary, fmt.Errorf("report: %w", err)
	}
	_, err := w.Write(legible(b.Bytes()))
	return p.Summary, err
}

// legible replaces the characters that a JSON string may hold and XML may not: programs refuse an SVG file that has one.
func legible(b []byte) []byte {
	return bytes.Map(func(r rune) rune {
		if r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == '\ufffe' || r == '\uffff' {
			return unicode.ReplacementChar
		}
		return r
	}, b)
}

// sections returns the parts of the page for some results, in the page's order.
func sections(runs []Run) (all []section) {
	parts := make(map[string]int)
	for i, group := range grouped(runs) {
		s := newSection(group)
		s.ID = "s" + strconv.Itoa(i+1)
		if parts[s.Title]++; parts[s.Title] > 1 {
			s.Title += fmt.Sprintf(" (%d)", parts[s.Title])
		}
		all = append(all, s)
	}
	return all
}

// What page.tmpl shows.
type (
	page struct {
		Summary
		Style    template.CSS
		Goals    []goal
		Checks   []checked
		Sections []section
	}
	goal struct {
		Section, Run, Name, Label, Value, Limit, Floor string
		Met                                            bool
	}
	checked struct {
		Section, Run, Error string
		Clean               bool
		Counts              []count
	}
	count struct {
		Name, Text string
		Bad        bool
	}
	section struct {
		ID, Title, About string
		Plots            []plot
		Tables           []table

		runs     []Run
		labels   []string
		compares bool // rates
	}
	table struct {
		Class   string
		Columns []string // the runs; none where there is one
		Span    int      // runs
		Groups  []tableGroup
	}
	tableGroup struct {
		Name string
		Rows []row
	}
	row struct {
		Name, Unit, Title string
		Cells             []cell
		Merged            bool // one cell for all columns
	}
	cell struct {
		Text    string
		Verdict string // "met", "missed" or none
	}
)

// The workloads in the order in which they are shown.
var workloads = []struct {
	name, title string
	rates       bool // its figures per second should be compared with each other
	about       string
}{
	{"lateness", "Lateness", false, "From the due millisecond to the worker's hands, in another process over TCP, at a fixed rate that waits for nothing."},
	{"dispatch", "Dispatch", true, "Triggers stored in the output streams, with more of them due than can be, beside bare messages of the same size over as many streams."},
	{"burst", "Burst", true, "All jobs due in one millisecond: how fast they drain, and how late others are that come due meanwhile."},
	{"commands", "Commands", true, "Commands whose reply has arrived: applied, and synced to disk."},
	{"churn", "Churn", false, "Jobs cancelled or moved just before they are due, while others fire."},
	{"recovery", "Recovery", false, "From before exec, after kill -9, to the first trigger stored after the kill, whenever it was due, in a client's hands."},
	{"idle", "Idle", false, "Jobs pending, and nothing due."},
	{"scale", "Scale", false, "A great many pending jobs, on disk: what they do to memory, lateness and restart."},
	{"soak", "Soak", false, "Mixed load for long, with every check on."},
	{"ceiling", "Ceiling", true, "What the transport, the disk and the timers of this machine allow, without an engine."},
}

// grouped groups the results that are shown together: those of one workload; in a comparison with other systems,
// those of one workload at one rate or size.
func grouped(runs []Run) (groups [][]Run) {
	type key struct {
		place            int
		workload, amount string
	}
	by := make(map[key][]Run)
	runs = slices.SortedStableFunc(slices.Values(runs), func(a, b Run) int { // Carillon first, a system's defaults before it was tuned
		return cmp.Or(cmp.Compare(a.peer(), b.peer()), cmp.Compare(a.param("tuned"), b.param("tuned")))
	})
	for _, run := range runs {
		k := key{place: len(workloads), workload: run.Workload}
		for i, w := range workloads {
			if w.name == run.Workload {
				k.place = i
			}
		}
		if run.param("system") != "" {
			k.place += len(workloads) + 1
			k.amount = run.amount()
		}
		by[k] = append(by[k], run)
	}
	keys := slices.SortedFunc(maps.Keys(by), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.workload, b.workload),
			cmp.Compare(len(a.amount), len(b.amount)), cmp.Compare(a.amount, b.amount))
	})
	const most = 8 // side by side
	for _, k := range keys {
		for part := range slices.Chunk(by[k], most) {
			groups = append(groups, part)
		}
	}
	return groups
}

// peer is the other system that was measured; "" for Carillon.
func (r *Run) peer() string {
	if system := r.param("system"); system != "carillon" {
		return system
	}
	return ""
}

// amount is the rate or size of a run's workload: the first parameter that says so.
func (r *Run) amount() string {
	for _, name := range []string{"triggers_per_s", "jobs", "callers"} {
		for _, f := range r.params {
			if f.name == name {
				return describe(f)
			}
		}
	}
	return ""
}

// param is a parameter as text, "" if there is none.
func (r *Run) param(name string) string {
	for _, f := range r.params {
		if f.name == name {
			return text(f.value)
		}
	}
	return ""
}

// text is a JSON value as text for people.
func text(raw json.RawMessage) string {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return string(raw)
	}
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case float64:
		return number(v)
	case bool:
		if v {
			return "yes"
		}
		return "no"
	case []any:
		var elements []json.RawMessage
		if json.Unmarshal(raw, &elements) != nil {
			return string(raw)
		}
		parts := make([]string, len(elements))
		for i, e := range elements {
			parts[i] = text(e)
		}
		return strings.Join(parts, ", ")
	default:
		all, err := fields(raw)
		if err != nil {
			return string(raw)
		}
		parts := make([]string, len(all))
		for i, f := range all {
			label, unit := named(f.name)
			parts[i] = strings.TrimSpace(label + " " + strings.TrimSpace(text(f.value)+" "+unit))
		}
		return strings.Join(parts, ", ")
	}
}

// describe is a parameter as a run's label shows it.
func describe(f field) string {
	label, unit := named(f.name)
	v := text(f.value)
	switch {
	case v == "yes":
		return label
	case v == "no":
		return "no " + label
	case strings.HasPrefix(unit, "/"):
		return v + unit
	case unit != "":
		return v + " " + unit
	case len(f.value) > 0 && f.value[0] != '"' && f.value[0] != '{':
		return v + " " + label
	}
	return v
}

// labelled labels the runs of one group by what distinguishes them: the system, else the parameters that are not the
// same in all, else the files, else numbers.
func labelled(runs []Run) []string {
	labels := make([]string, len(runs))
	differ := func(name string) bool {
		return slices.ContainsFunc(runs, func(r Run) bool { return r.param(name) != runs[0].param(name) })
	}
	for i, r := range runs {
		if system := r.param("system"); system != "" {
			labels[i] = system
			if r.param("tuned") == "yes" {
				labels[i] += " tuned"
			}
			continue
		}
		var parts []string
		for _, f := range r.params {
			if differ(f.name) {
				parts = append(parts, describe(f))
			}
		}
		labels[i] = strings.Join(parts, ", ")
	}
	for _, more := range []func(i int) string{
		func(i int) string { f := filepath.Base(runs[i].File); return strings.TrimSuffix(f, filepath.Ext(f)) },
		func(i int) string { return "#" + strconv.Itoa(i+1) },
	} {
		if distinct := slices.Compact(slices.Sorted(slices.Values(labels))); len(distinct) == len(labels) && distinct[0] != "" {
			break
		}
		for i := range labels {
			labels[i] = strings.TrimSpace(labels[i] + " " + more(i))
		}
	}
	return labels
}
