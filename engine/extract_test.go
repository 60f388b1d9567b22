package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/internal/memtable"
)

// extracted are the jobs of all partitions.
func (w *service) extracted(only carillon.Selection) (jobs []carillon.ImportJob) {
	w.t.Helper()
	for _, m := range w.ms {
		jobs = append(jobs, w.extractedFrom(wholeOf(w.t, m), only)...)
	}
	return jobs
}

// extractedFrom are the jobs of one checkpoint.
func (w *service) extractedFrom(v memtable.View, only carillon.Selection) (jobs []carillon.ImportJob) {
	w.t.Helper()
	state, _ := v.State() // it is in memory
	s, err := ReadState(state)
	if err != nil {
		w.t.Fatal(err)
	}
	e := NewExtractor(s, only)
	for _, room := range e.Rooms() {
		if _, err := v.Scan(room, nil, nil, 0, func(key, value []byte) error {
			return e.Take(room, key, value, func(j carillon.ImportJob) error {
				jobs = append(jobs, j)
				return nil
			})
		}); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := e.End(); err != nil {
		w.t.Fatal(err)
	}
	return jobs
}

// importJobs puts jobs into a running service.
func (w *service) importJobs(jobs []carillon.ImportJob) {
	w.t.Helper()
	for i := range jobs {
		j := &jobs[i]
		p := Pack(&j.Job, nil, "")
		p.Paused, p.IfAbsent, p.State = j.Paused, j.IfAbsent, StateOf(j.State)
		pack, err := DecodePack(EncodePack([]PackedJob{p}))
		if err != nil {
			w.t.Fatalf("%s: %v", j.Job.ID, err)
		}
		w.seq++
		r, err := w.ms[PartitionOf(j.Job.ID, len(w.ms))].Apply(&Entry{Seq: w.seq, Time: w.now, Kind: KindImport, Pack: pack})
		if err != nil || r.Jobs[0].Err != nil || !r.Jobs[0].Changed {
			w.t.Fatalf("%s: %+v, %v", j.Job.ID, r.Jobs, err)
		}
	}
}

// TestExtractMonth puts all jobs of a service into another and lets both go on for a month: every later output is the
// same.
func TestExtractMonth(t *testing.T) {
	w := month(t)
	w.tick(5000, false) // nothing waits
	jobs := w.extracted(carillon.Selection{})
	for _, only := range []carillon.Selection{{Prefix: "cron-1"}, {Owner: "o1"}, {Label: "team=t2"}, {Prefix: "cron-1", Label: "team=t2"}} {
		want := 0
		for i := range jobs {
			if only.Matches(&jobs[i].Job) {
				want++
			}
		}
		got := w.extracted(only)
		if len(got) != want || want == 0 || slices.ContainsFunc(got, func(j carillon.ImportJob) bool { return !only.Matches(&j.Job) }) {
			t.Errorf("%+v: %d of %d jobs, want %d", only, len(got), len(jobs), want)
		}
	}
	other := &service{t: t, seq: w.seq, now: w.now}
	for p := range 3 {
		other.ms = append(other.ms, New(Layout{"carillon", 3}, p))
	}
	w.tick(0, false)
	w.from = nil
	w.begin()
	other.begin()
	other.tick(0, false)
	other.importJobs(jobs)
	completed, paused := 0, 0
	for i := range jobs {
		id := jobs[i].Job.ID
		a, ok := w.ms[PartitionOf(id, len(w.ms))].Job(id, nil)
		b, there := other.ms[PartitionOf(id, len(other.ms))].Job(id, nil)
		a.Partition, b.Partition = 0, 0
		if d := cmp.Diff(a, b); d != "" || !ok || !there {
			t.Fatalf("%s (-original +put back):\n%s", id, d)
		}
		switch a.Status {
		case carillon.StatusCompleted:
			completed++
			if s := jobs[i].State; !s.From.After(s.Last) {
				t.Errorf("%s is completed, and goes on from %v after %v", id, s.From, s.Last)
			}
		case carillon.StatusPaused:
			paused++
		}
	}
	if completed == 0 || paused == 0 {
		t.Fatalf("%d of %d jobs are completed, %d paused", completed, len(jobs), paused)
	}
	w.later()
	other.later()
	sameFires(t, w, other)
	if len(w.fired) < 5000 {
		t.Fatalf("only %d outputs", len(w.fired))
	}
}

// Jobs whose missed fires are still being counted, over several turns, are put back: fires missed while paused are decided,
// and all others are counted again from the first.
func TestExtractWhileCounting(t *testing.T) {
	w := newService(t, 1)
	w.put("counted", `{"schedule":"* * * * * *"}`)
	w.put("resumed", `{"schedule":"* * * * * *"}`)
	w.put("resumed-soon", `{"schedule":"* * * * * *"}`)
	w.tick(10, false)
	for _, id := range []string{"resumed", "resumed-soon"} {
		w.do(KindPause, "pause", id, "")
	}
	w.now += 2*countTurns*countSteps*1000 - 1
	w.tick(1, false) // counts some
	w.do(KindResume, "resume", "resumed", "")
	w.tick(1, false) // some more of these, and some of the other
	w.now++          // one was resumed just before a fire, the other just at it
	w.do(KindResume, "resume", "resumed-soon", "")
	m := w.ms[0]
	for _, id := range []string{"counted", "resumed", "resumed-soon"} {
		_, j := m.jobs.find(id)
		if r := m.jobs.extra(j); (r.counted > 0) != (id != "resumed-soon") || (r.skipTo > 0) != (id != "counted") {
			t.Fatalf("of %s %d fires are counted, those up to %d are to be skipped", id, r.counted, r.skipTo)
		}
	}
	other := newService(t, 1)
	other.now = w.now
	other.tick(0, false)
	other.importJobs(w.extracted(carillon.Selection{}))
	for _, svc := range []*service{w, other} {
		svc.listen()
		for range 3 {
			svc.now += 1000
			svc.tick(1000, false)
		}
		svc.fired = slices.DeleteFunc(svc.fired, func(o string) bool { return !strings.Contains(o, "@") }) // without the events of skips
	}
	sameFires(t, w, other)
	if len(w.fired) != 1+2+1+3*3 { // what was missed, what is late by a second at most, also of the first that was resumed, and what is due
		t.Errorf("%d fires: %q", len(w.fired), w.fired)
	}
}

func TestExtractRefuses(t *testing.T) {
	f := newFeed(t)
	f.put("a", `{"schedule":"@every 1s"}`)
	v := wholeOf(t, f.m)
	state, _ := v.State()
	s, err := ReadState(state)
	if err != nil {
		t.Fatal(err)
	}
	e := NewExtractor(s, carillon.Selection{})
	none := func(carillon.ImportJob) error { return nil }
	for _, room := range []byte("wzcs") {
		if err := e.Take(room, []byte("k"), []byte("v"), none); !errors.Is(err, ErrCheckpoint) {
			t.Errorf("room %q: %v", room, err)
		}
	}
	e = NewExtractor(s, carillon.Selection{})
	for _, room := range e.Rooms() {
		if room == roomSpecs {
			break
		}
		if _, err := v.Scan(room, nil, nil, 0, func(key, value []byte) error { return e.Take(room, key, value, none) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.End(); !errors.Is(err, ErrCheckpoint) {
		t.Errorf("a job without its spec: %v", err)
	}
	if err := e.Take(roomSpecs, e.found[0].spec.append(nil), []byte("v"), none); !errors.Is(err, ErrCheckpoint) {
		t.Errorf("a job whose spec cannot be read: %v", err)
	}
}
