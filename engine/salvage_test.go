package engine

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/carillon-scheduler/carillon"
)

// salvaged are the jobs of all partitions.
func (w *town) salvaged(only carillon.Selection) (jobs []carillon.ImportJob) {
	w.t.Helper()
	for _, m := range w.ms {
		v := wholeOf(w.t, m)
		state, _ := v.State() // it is in memory
		s, err := ReadState(state)
		if err != nil {
			w.t.Fatal(err)
		}
		salvage := NewSalvage(s, only)
		for _, room := range salvage.Rooms() {
			if _, err := v.Scan(room, nil, nil, 0, func(key, value []byte) error {
				return salvage.Take(room, key, value, func(j carillon.ImportJob) error {
					jobs = append(jobs, j)
					return nil
				})
			}); err != nil {
				w.t.Fatal(err)
			}
		}
		if err := salvage.End(); err != nil {
			w.t.Fatal(err)
		}
	}
	return jobs
}

// putBack puts jobs into a town that lives.
func (w *town) putBack(jobs []carillon.ImportJob) {
	w.t.Helper()
	for i := range jobs {
		j := &jobs[i]
		p := Pack(&j.Job, nil, "")
		p.Paused, p.IfAbsent, p.State = j.Paused, j.IfAbsent, StateOf(j.State)
		w.seq++
		r, err := w.ms[PartitionOf(j.Job.ID, len(w.ms))].Apply(&Entry{Seq: w.seq, Time: w.now, Kind: KindImport, Pack: []PackedJob{p}})
		if err != nil || r.Jobs[0].Err != nil || !r.Jobs[0].Changed {
			w.t.Fatalf("%s: %+v, %v", j.Job.ID, r.Jobs, err)
		}
	}
}

// TestSalvageMonth puts all jobs of a service into another and lets both go on for a month: every later output is the
// same.
func TestSalvageMonth(t *testing.T) {
	w := month(t)
	w.tick(5000, false) // nothing waits
	jobs := w.salvaged(carillon.Selection{})
	other := &town{t: t, seq: w.seq, now: w.now}
	for p := range 3 {
		other.ms = append(other.ms, New(Layout{"carillon", 3}, p))
	}
	w.tick(0, false)
	w.from = nil
	w.begin()
	other.begin()
	other.tick(0, false)
	other.putBack(jobs)
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

func TestSalvageRefuses(t *testing.T) {
	f := newFeed(t)
	f.put("a", `{"schedule":"@every 1s"}`)
	v := wholeOf(t, f.m)
	state, _ := v.State()
	s, err := ReadState(state)
	if err != nil {
		t.Fatal(err)
	}
	salvage := NewSalvage(s, carillon.Selection{})
	none := func(carillon.ImportJob) error { return nil }
	for _, room := range []byte("wzcs") {
		if err := salvage.Take(room, []byte("k"), []byte("v"), none); !errors.Is(err, ErrCheckpoint) {
			t.Errorf("room %q: %v", room, err)
		}
	}
	salvage = NewSalvage(s, carillon.Selection{})
	for _, room := range salvage.Rooms() {
		if room == roomSpecs {
			break
		}
		if _, err := v.Scan(room, nil, nil, 0, func(key, value []byte) error { return salvage.Take(room, key, value, none) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := salvage.End(); !errors.Is(err, ErrCheckpoint) {
		t.Errorf("a job without its spec: %v", err)
	}
}
