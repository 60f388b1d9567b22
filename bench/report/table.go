package report

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/carillon-scheduler/carillon/bench"
)

// newGoal is a row of the table of targets.
func newGoal(section, run string, r *Run, t bench.Target) goal {
	label, unit := named(t.Figure)
	than := "≤ "
	if t.AtLeast {
		than = "≥ "
	}
	g := goal{
		Section: section, Run: run, Name: t.Figure, Label: label, Met: t.Met,
		Value: "–", Limit: than + quantity(t.Limit, unit),
	}
	for _, f := range r.Figures {
		if f.Name == t.Figure {
			g.Value = quantity(f.Value, unit)
		}
	}
	if t.Floor > t.Limit {
		g.Floor = "or " + than + quantity(t.Floor, unit) + ", three times the bare sleep"
	}
	return g
}

// quantity is a number with its unit.
func quantity(v float64, unit string) string {
	if unit == "" || unit == "%" || strings.HasPrefix(unit, "/") {
		return number(v) + unit
	}
	return number(v) + " " + unit
}

// counts returns the counts of checks; for a run without checks they are dashes.
func counts(c *bench.Checks) (all []count) {
	if c == nil {
		for _, v := range counts(&bench.Checks{}) {
			all = append(all, count{v.Name, "–", false})
		}
		return all
	}
	bad := func(name string, n int) count { return count{name, number(float64(n)), n > 0} }
	return []count{
		{"expected", number(float64(c.Expected)), false},
		bad("early", c.Early), bad("missing", c.Missing), bad("duplicate", c.Duplicate), bad("gaps", c.Gaps), bad("stray", c.Stray),
		{"redelivered", number(float64(c.Redelivered)), false}, // which at-least-once allows
	}
}

// Wide tells whether a table needs more than half of the page.
func (t table) Wide() bool { return len(t.Columns) > 2 }

// figures makes a table with a column for each run, and a row for each figure of any run.
func figures(runs []Run, labels []string) table {
	t := newTable("figures", labels)
	t.add("Figures", runs, func(r *Run) (all []value) {
		for _, f := range r.Figures {
			v := value{name: f.Name, text: number(f.Value)}
			for _, goal := range r.Targets {
				if goal.Figure == f.Name {
					v.verdict = verdict(goal.Met)
				}
			}
			all = append(all, v)
		}
		return all
	})
	return t
}

// conditions makes a table of how and where the runs were made.
func conditions(runs []Run, labels []string) table {
	t := newTable("conditions", labels)
	plain := func(fields []field) (all []value) {
		for _, f := range fields {
			all = append(all, value{name: f.name, text: text(f.value)})
		}
		return all
	}
	t.add("Result", runs, func(r *Run) []value {
		return []value{{name: "file", text: fmt.Sprintf("%s:%d", filepath.Base(r.File), r.Line)}}
	})
	t.add("Parameters", runs, func(r *Run) []value { return plain(r.params) })
	t.add("Machine", runs, func(r *Run) []value { return plain(r.machine) })
	t.merge()
	return t
}

func newTable(class string, labels []string) table {
	if len(labels) == 1 {
		labels = nil
	}
	return table{Class: class, Columns: labels}
}

type value struct{ name, text, verdict string }

func verdict(met bool) string {
	if met {
		return "met"
	}
	return "missed"
}

// add adds a group of rows, in the order in which the runs have them.
func (t *table) add(name string, runs []Run, of func(*Run) []value) {
	g := tableGroup{Name: name}
	at := make(map[string]int)
	for i := range runs {
		for _, v := range of(&runs[i]) {
			n, known := at[v.name]
			if !known {
				n = len(g.Rows)
				at[v.name] = n
				label, unit := named(v.name)
				g.Rows = append(g.Rows, row{Name: label, Unit: unit, Title: v.name, Cells: make([]cell, len(runs))})
			}
			g.Rows[n].Cells[i] = cell{v.text, v.verdict}
		}
	}
	t.Span = len(runs)
	if len(g.Rows) > 0 {
		t.Groups = append(t.Groups, g)
	}
}

// merge merges the cells of each row that is the same for all runs.
func (t *table) merge() {
	for _, g := range t.Groups {
		for i, r := range g.Rows {
			if !slices.ContainsFunc(r.Cells, func(c cell) bool { return c != r.Cells[0] }) {
				g.Rows[i].Cells, g.Rows[i].Merged = r.Cells[:1], true
			}
		}
	}
}
