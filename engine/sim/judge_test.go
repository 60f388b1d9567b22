package sim

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
)

// TestJudge spoils the outcome of a world in which all went well, one thing at a time: the judge tells of each.
func TestJudge(t *testing.T) {
	const p = 0
	var w *world
	var r *reference
	var stored []Message
	var triggers []int // where they are in the stream
	plain := func() bool {
		foreign := slices.ContainsFunc(stored, func(m Message) bool { return string(m.Data) == "foreign" })
		if foreign || w.aged[p] > 0 || len(w.followers(p)) < 2 || len(triggers) < 2 || triggers[0] == 0 {
			return false
		}
		_, first := outputOf(stored[triggers[0]])
		return !w.recreated(r, first)
	}
	for seed := uint64(1); w == nil || !plain(); seed++ {
		if w = newWorld(seed, Options{Events: 300}); w.run() != nil {
			t.Fatal(w.err)
		}
		r, stored, triggers = w.expect(p), w.out[p].messages, nil
		for i, m := range stored {
			if _, trigger := outputOf(m); trigger != "" {
				triggers = append(triggers, i)
			}
		}
	}
	at, last := triggers[1], len(stored)-1
	told := func(what, want string, judge func()) {
		t.Helper()
		judge()
		if want == "" && w.err != nil || want != "" && (w.err == nil || !strings.Contains(w.err.Error(), want)) {
			t.Errorf("%s: the judge says %v, expected %q", what, w.err, want)
		}
		w.err = nil
	}

	for what, c := range map[string]struct {
		want  string
		spoil func(s []Message) []Message
	}{
		"as it was":        {"", func(s []Message) []Message { return s }},
		"no first":         {"comes after 0", func(s []Message) []Message { return s[1:] }},
		"one missing":      {"comes after", func(s []Message) []Message { return slices.Delete(s, at, at+1) }},
		"no last":          {"ends with output", func(s []Message) []Message { return s[:last] }},
		"none":             {"ends with output 0", func([]Message) []Message { return nil }},
		"one twice":        {"comes after", func(s []Message) []Message { return slices.Insert(s, at, s[at]) }},
		"the first twice":  {"comes after", func(s []Message) []Message { return slices.Insert(s, 0, s[0]) }},
		"two in turn":      {"comes after", func(s []Message) []Message { s[at], s[at-1] = s[at-1], s[at]; return s }},
		"another's text":   {"is not what was made", func(s []Message) []Message { s[at].Data = []byte("other"); return s }},
		"another's topic":  {"is not what was made", func(s []Message) []Message { s[at].Subject = "other"; return s }},
		"without a number": {"comes after", func(s []Message) []Message { s[at].Header = nil; return s }},
		"a fire twice": {"comes twice", func(s []Message) []Message {
			h := slices.Clone(s[at].Header)
			_, first := outputOf(s[triggers[0]])
			h[slices.IndexFunc(h, func(f engine.Field) bool { return f.Name == carillon.HeaderTrigger })].Value = first
			s[at].Header = h
			return s
		}},
	} {
		w.out[p].messages = c.spoil(slices.Clone(stored))
		told(what, c.want, w.judge)
	}
	w.out[p].messages = stored[1:]
	w.aged[p] = 1
	told("age took the first", "", w.judge)
	w.out[p].messages = stored[2:]
	told("and one more is missing", "comes after 1", w.judge)
	w.out[p].messages, w.aged[p] = stored, 0

	number, _ := outputOf(stored[at])
	all := w.made[p]
	header := func(name, value string) func(made map[uint64]string) {
		return func(made map[uint64]string) {
			before, line, _ := strings.Cut(made[number], name+": ")
			_, after, _ := strings.Cut(line, "\r\n")
			made[number] = before + name + ": " + value + "\r\n" + after
		}
	}
	for what, c := range map[string]struct {
		want  string
		spoil func(made map[uint64]string)
	}{
		"as it was":       {"", func(map[uint64]string) {}},
		"never made":      {"was never made", func(made map[uint64]string) { delete(made, number) }},
		"one more":        {"outputs, expected are", func(made map[uint64]string) { made[uint64(len(made))+1] = made[number] }},
		"another's fire":  {" of partition 0 (", header(carillon.HeaderTrigger, "other@1")},
		"another job":     {" of partition 0 (", header(carillon.HeaderJob, "other")},
		"another version": {" of partition 0 (", header(carillon.HeaderVersion, "77")},
		"another time":    {" of partition 0 (", header(carillon.HeaderScheduled, "2026-01-01T00:00:00.001Z")},
		"another's topic": {" of partition 0 (", func(made map[uint64]string) { made[number] = "carillon.trigger.0.other" + made[number] }},
		"another's header": {" of partition 0 (", func(made map[uint64]string) {
			made[number] = strings.Replace(made[number], "\r\n", "\r\n"+headerOf+": z\r\n", 1)
		}},
		"another's text":   {" of partition 0 (", func(made map[uint64]string) { made[number] += "other" }},
		"an event instead": {" of partition 0 (", func(made map[uint64]string) { made[number] = made[1] }},
		"another's event":  {" of partition 0 (", func(made map[uint64]string) { made[1] = made[number] }},
		"stands for others": {" of partition 0 (", func(made map[uint64]string) {
			made[number] = strings.Replace(made[number], "\r\n", "\r\n"+carillon.HeaderMissed+": 3\r\n", 1)
		}},
	} {
		w.made[p] = maps.Clone(all)
		c.spoil(w.made[p])
		told(what, c.want, w.judge)
	}
	w.made[p] = maps.Clone(all)
	w.made[p][number] += "other"
	told("made otherwise", "makes output", func() { w.judgeReplay(p) })
	w.made[p] = all

	position := slices.Max(slices.Collect(maps.Keys(w.marks[p])))
	marks := maps.Clone(w.marks[p])
	w.marks[p][position]++
	told("another digest", "has digest", w.judge)
	w.marks[p] = marks

	seq := slices.Min(slices.Collect(maps.Keys(r.answers)))
	answers := maps.Clone(w.answers[p])
	w.answers[p][seq] += "other"
	told("another answer", "answers record", w.judge)
	w.answers[p] = answers

	told("lives as they were", "", func() { w.judgeVersions(r) })
	for what, spoil := range map[string]func(*jobVersion){
		"a fire too many":   func(l *jobVersion) { l.fires++ },
		"a missed too many": func(l *jobVersion) { l.missed++ },
		"a skip too many":   func(l *jobVersion) { l.skipped++ },
	} {
		r := w.expect(p)
		spoil(r.versions[slices.IndexFunc(r.versions, func(l *jobVersion) bool { return l.times.kind != 0 })])
		told(what, "was due", func() { w.judgeVersions(r) })
	}
	late := w.expect(p)
	late.jobs[0].completed, late.jobs[0].paused, late.jobs[0].next = false, false, late.to
	told("one was forgotten", "was due at", func() { w.judgeVersions(late) })

	w.promised[w.log.Last()+1] = true
	told("a record is gone", "was answered and is gone", w.judge)
	delete(w.promised, w.log.Last()+1)

	// One more record, first at one of the nodes, then at all: nobody has it in the log.
	id := "more"
	for engine.PartitionOf(id, w.layout.Partitions) != p {
		id += "-"
	}
	e := w.layout.Decode(&engine.Record{
		Seq: w.log.Last() + 1, Time: w.stamp(), Subject: w.layout.LogSubject(p, "put") + "." + id, Data: []byte(`{"schedule":"@yearly"}`),
	})
	for i, n := range w.followers(p) {
		if _, err := n.parts[p].machine.Apply(&e); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			told("two states", "has another state", w.judge)
		}
	}
	told("another state than the log's", "ends in another state", w.judge)
}

// followers are the nodes that follow a partition.
func (w *world) followers(p int) (of []*node) {
	for _, n := range w.nodes {
		if n.parts[p] != nil && n.parts[p].stopped == nil {
			of = append(of, n)
		}
	}
	return of
}
