package sim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/internal/memtable"
)

// message is an output as it is published.
func message(l engine.Layout, p int, o *engine.Output) Message {
	m := Message{Subject: o.Subject(l, p), Data: []byte(o.Payload())}
	for line := range strings.SplitSeq(string(o.AppendHeader(nil)), "\r\n") {
		if name, value, ok := strings.Cut(line, ": "); ok {
			m.Header = append(m.Header, engine.Field{Name: name, Value: value})
		}
	}
	return m
}

// outputOf returns what the headers of an output say; number is 0 for a foreign message.
func outputOf(m Message) (number uint64, trigger string) {
	r := engine.Record{Header: m.Header}
	number, _ = strconv.ParseUint(r.Get(carillon.HeaderOutput), 10, 64)
	return number, r.Get(carillon.HeaderTrigger)
}

// identityOf is outputOf for Survey.Add: an event's identity is its body.
func identityOf(m Message) (number uint64, identity string) {
	if number, identity = outputOf(m); identity == "" {
		identity = string(m.Data)
	}
	return number, identity
}

func outputName(m Message) string {
	number, trigger := outputOf(m)
	return fmt.Sprintf("output %d %s%s", number, trigger, m.Data)
}

// judge compares what the streams have seen with the promises.
func (w *world) judge() {
	for seq := range w.promised {
		if _, ok := w.records[seq]; !ok {
			w.fail("record %d was answered and is gone", seq)
			return
		}
	}
	for p := range w.out {
		r := w.expect(p)
		if w.err == nil {
			w.judgeContent(p, r)
		}
		if at := w.nodes[p%len(w.nodes)].parts[p]; w.err == nil && at != nil && at.stopped == nil {
			w.judgeStream(p, r)
			w.judgeVersions(r)
		}
		if w.err == nil {
			w.judgeReplicas(p)
		}
		if w.err == nil {
			w.judgeReplay(p)
		}
		if w.err == nil {
			w.judgeAnswers(p, r)
		}
	}
}

// expect runs the reference over the log.
func (w *world) expect(p int) *reference {
	r := &reference{layout: w.layout, partition: p, bounds: w.bounds}
	for _, seq := range slices.Sorted(maps.Keys(w.records)) {
		rec := w.records[seq]
		r.apply(&rec)
	}
	return r
}

// judgeContent compares the outputs that the nodes made with those that the reference makes.
func (w *world) judgeContent(p int, r *reference) {
	for i, want := range r.outputs {
		got, ok := w.made[p][uint64(i)+1]
		if !ok && w.loud[p] && w.runningNode(p) == nil {
			return
		}
		if !ok {
			w.fail("output %d of partition %d was never made: %+v", i+1, p, want)
			return
		}
		head, body, _ := strings.Cut(got, "\r\n\n")
		fields := make(map[string]string)
		subject, lines, _ := strings.Cut(head, "\n")
		for line := range strings.SplitSeq(lines, "\r\n") {
			name, value, _ := strings.Cut(line, ": ")
			fields[name] = value
		}
		var diff string
		if want.id == "" {
			e, err := carillon.ParseEvent([]byte(body))
			if err != nil {
				diff = err.Error()
			} else if e.Error != nil {
				e.Error = &carillon.Error{Code: e.Error.Code}
			}
			if a, b := eventText(e), eventText(want.event); a != b {
				diff = a + " is not " + b
			}
		} else {
			expect := fmt.Sprintf("carillon.trigger.%d.%s %s %s %d %d %s %s %s", p, cmp.Or(want.topic, carillon.DefaultTopic), want.job, want.id, want.version,
				want.missed, millis(want.due).Format(carillon.TimeFormat), want.of, want.payload)
			missed := fields[carillon.HeaderMissed]
			if missed == "" {
				missed = "0"
			}
			got := strings.Join([]string{
				subject, fields[carillon.HeaderJob], fields[carillon.HeaderTrigger], fields[carillon.HeaderVersion], missed,
				fields[carillon.HeaderScheduled], fields[headerOf], body,
			}, " ")
			if got != expect {
				diff = got + " is not " + expect
			}
		}
		if diff != "" {
			w.fail("output %d of partition %d (%s): %s", i+1, p, subject, diff)
			return
		}
	}
	if len(w.made[p]) > len(r.outputs) {
		w.fail("partition %d made %d outputs, expected are %d: %q …", p, len(w.made[p]), len(r.outputs), w.made[p][uint64(len(r.outputs))+1])
	}
}

func eventText(e carillon.Event) string { return string(e.AppendJSON(nil)) }

// judgeStream checks an output stream: each output is there once, in order unless it was displaced, and none is missing,
// except those at the beginning that were removed for their age.
func (w *world) judgeStream(p int, r *reference) {
	last, first := w.aged[p], true
	triggers := make(map[string]bool)
	messages := slices.Clone(w.out[p].messages)
	if w.replaced[p] {
		slices.SortStableFunc(messages, func(a, b Message) int {
			x, _ := outputOf(a)
			y, _ := outputOf(b)
			return cmp.Compare(x, y)
		})
	}
	for _, m := range messages {
		if string(m.Data) == "foreign" {
			continue
		}
		number, trigger := outputOf(m)
		if number == 0 || number > last+1 || number <= last && !first {
			w.fail("out %d: output %d at %d comes after %d", p, number, m.Seq, last)
			return
		}
		if before := w.made[p][number]; !strings.HasPrefix(before, m.Subject+"\n") || !strings.HasSuffix(before, "\n"+string(m.Data)) {
			w.fail("out %d: output %d at %d is not what was made", p, number, m.Seq)
			return
		}
		if trigger != "" && triggers[trigger] && !w.recreated(r, trigger) {
			w.fail("out %d: trigger %s comes twice", p, trigger)
			return
		}
		triggers[trigger] = true
		last, first = number, false
	}
	if last != uint64(len(r.outputs)) {
		w.fail("out %d ends with output %d, expected are %d", p, last, len(r.outputs))
	}
}

// recreated tells whether a trigger's job was deleted and made again: then its times may be fired again.
func (w *world) recreated(r *reference, trigger string) bool {
	job, _, _, _ := carillon.SplitTriggerID(trigger)
	incarnations := make(map[uint64]bool)
	for _, l := range r.versions {
		if l.job == job {
			incarnations[l.incarnation] = true
		}
	}
	return len(incarnations) > 1
}

// judgeVersions counts, for each version of a job that still exists, the times at which it was due: each must have been
// fired, been counted as missed by a later fire, or been skipped.
func (w *world) judgeVersions(r *reference) {
	for _, l := range r.versions {
		if l.times.kind == 0 {
			continue
		}
		n, _ := l.times.count(l.from, l.decided)
		if got := l.fires + l.missed + l.skipped; got != n {
			w.fail("version %d of %s was due %d times until %d: %d fired, %d missed, %d skipped", l.version, l.job, n, l.decided, l.fires, l.missed, l.skipped)
		}
	}
	for _, j := range r.jobs {
		if !j.completed && !j.paused && j.next <= r.to {
			w.fail("%s was due at %d, time is %d", j.id, j.next, r.to)
		}
	}
}

// judgeReplicas compares the states of all nodes.
func (w *world) judgeReplicas(p int) {
	var before string
	for i, n := range w.nodes {
		if n.parts[p] == nil || n.parts[p].stopped != nil {
			continue
		}
		state := stateOf(n.parts[p].machine)
		if before != "" && state != before {
			w.fail("%s has another state of partition %d than %s: %s", n.name(), p, w.nodes[i-1].name(), difference(before, state))
		}
		before = state
	}
}

// judgeAnswers compares the outcome of each command with the reference's.
func (w *world) judgeAnswers(p int, r *reference) {
	for _, seq := range slices.Sorted(maps.Keys(r.answers)) {
		if got, want := w.answers[p][seq], r.answers[seq]; got != want {
			w.fail("record %d of partition %d was answered with %q, not %q", seq, p, got, want)
			return
		}
	}
}

// judgeReplay applies the log once more, with checkpoints and restores at other places: the outputs and the state
// must be the same.
func (w *world) judgeReplay(p int) {
	m := w.bound(engine.New(w.layout, p))
	var made uint64
	for _, seq := range slices.Sorted(maps.Keys(w.records)) {
		rec := w.records[seq]
		e := w.layout.Decode(&rec)
		if !concerns(&e, p) {
			continue
		}
		if w.o.Sabotage.Epoch {
			for i := range e.Ticks {
				e.Ticks[i].Epoch = m.Stats().Epoch
			}
		}
		if w.chance(2) {
			var table memtable.Table
			b := table.Begin()
			err := m.Export(b, seq)
			if err == nil {
				err = b.Commit()
			}
			if err == nil {
				m, err = w.open(p, table.View())
			}
			if err != nil {
				w.fail("replay: %v", err)
				return
			}
			w.bound(m)
		}
		result, err := m.Apply(&e)
		if err != nil {
			w.fail("replay: %v", err)
			return
		}
		w.nodes[0].answer(p, &e, result)
		w.nodes[0].compare(p, m.Mark())
		outputs, _ := m.Outbox(made)
		for i := range outputs {
			w.nodes[0].check(p, &outputs[i])
		}
		made = m.Made()
	}
	if at := w.nodes[p%len(w.nodes)].parts[p]; at != nil && at.stopped == nil && stateOf(m) != stateOf(at.machine) {
		w.fail("replay of partition %d ends in another state: %s", p, difference(stateOf(at.machine), stateOf(m)))
	}
}

// stateOf is a machine's state as its checkpoint has it, whatever slots the jobs are in, and as the machine reports it.
func stateOf(m *engine.Machine) string {
	var told []byte
	for after, more := "", true; more; {
		var page []carillon.JobReply
		page, after, more = m.Page(&carillon.ListRequest{}, after, 3, 7, nil)
		for i := range page {
			one, _ := m.Job(page[i].ID, nil)
			told = append(append(page[i].AppendJSON(told), one.AppendJSON(nil)...), '\n')
		}
	}
	var table memtable.Table
	b := table.Begin()
	if err := errors.Join(m.Export(b, 0), b.Commit()); err != nil {
		return err.Error()
	}
	return table.View().Dump() + string(told)
}

// difference is the first line in which two states differ.
func difference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("%q, then %q", x[i], y[i])
		}
	}
	return "one has more lines"
}
