package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/internal/memtable"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

// For fires that came due between a snapshot and the start of the restored service, the policy given to the restore holds; for those
// missed after that, each job's own.
func TestRecovery(t *testing.T) {
	type outcome struct {
		Fired   []int64 // s
		Skipped uint64
	}
	every := func(from, to int64) (all []int64) {
		for at := from; at <= to; at += 4 {
			all = append(all, at)
		}
		return all
	}
	// Each job fires every 4 s, or once after 50 s. The snapshot is of 5 s, the start at 96 s, which is not before itself, and the first
	// tick at 100.
	missed, late, then := every(8, 92), int64(96), int64(100)
	for _, policy := range []carillon.Misfire{carillon.FireOnce, carillon.FireAll, carillon.Skip} {
		for _, straight := range []bool{false, true} {
			t.Run(fmt.Sprint(policy, straight), func(t *testing.T) {
				w := newService(t, 3)
				want := make(map[string]outcome)
				for _, own := range []carillon.Misfire{carillon.FireOnce, carillon.FireAll, carillon.Skip} {
					w.put("every-"+own.String(), fmt.Sprintf(`{"schedule":"@every 4s","misfire":%q}`, own))
					w.put("shot-"+own.String(), fmt.Sprintf(`{"schedule":"@in 50s","misfire":%q}`, own))
					e, s := outcome{Fired: []int64{4}}, outcome{} // outputs that were held are published as they were
					switch policy {
					case carillon.FireOnce:
						e.Fired, s.Fired = append(e.Fired, 92), append(s.Fired, 50)
					case carillon.FireAll:
						e.Fired, s.Fired = append(e.Fired, missed...), append(s.Fired, 50)
					case carillon.Skip:
						e.Skipped, s.Skipped = uint64(len(missed)), 1
					}
					if own == carillon.Skip {
						e.Skipped++
					} else {
						e.Fired = append(e.Fired, late)
					}
					e.Fired = append(e.Fired, then)
					switch own { // of the outage after that: 104 to 196, and the last second
					case carillon.FireOnce:
						e.Fired = append(e.Fired, 196, 200)
					case carillon.FireAll:
						e.Fired = append(e.Fired, every(104, 200)...)
					case carillon.Skip:
						e.Skipped, e.Fired = e.Skipped+24, append(e.Fired, 200)
					}
					want["every-"+own.String()], want["shot-"+own.String()] = e, s
				}
				second := time.Second.Milliseconds()
				at := func(w *service, s int64) { w.now = testEpoch + s*second }
				at(w, 5)
				w.tick(100, false)
				var other *service
				if straight {
					other = w.restored(policy)
				} else {
					other = w.repartitioned(2, carillon.Selection{}, true, policy)
				}
				at(other, 96)
				other.begin()
				at(other, 97)
				for i, m := range other.ms { // the policy stays, over a checkpoint and over another start
					other.ms[i] = open(t, m, wholeOf(t, m))
				}
				other.from = nil
				other.begin()
				at(other, 100)
				for range 3 {
					other.tick(100, false)
				}
				at(other, 200)
				for range 3 {
					other.tick(100, false)
				}
				got := make(map[string]outcome)
				for id := range want {
					m := other.ms[PartitionOf(id, len(other.ms))]
					j, ok := m.Job(id, nil)
					if !ok {
						t.Fatal("no job ", id)
					}
					got[id] = outcome{Fired: other.firedAt(id), Skipped: j.Skipped}
					if m.recovery != (recovery{}) {
						t.Errorf("partition of %s: %+v is left", id, m.recovery)
					}
				}
				if d := cmp.Diff(want, got); d != "" {
					t.Error(d)
				}
			})
		}
	}
}

// firedAt are the times at which a job fired, in s.
func (w *service) firedAt(id string) (all []int64) {
	for _, f := range w.fired {
		var at int64
		if n, _ := fmt.Sscanf(f, id+"@%d ", &at); n == 1 {
			all = append(all, (at-testEpoch)/1000)
		}
	}
	return all
}

// restored is the service restored from a snapshot, in as many partitions.
func (w *service) restored(missed carillon.Misfire) *service {
	w.t.Helper()
	other := &service{t: w.t, seq: w.seq, now: w.now}
	for _, m := range w.ms {
		var table memtable.Table
		b := recovering{table.Begin(), w.t, missed}
		if err := m.Export(b, w.seq); err != nil {
			w.t.Fatal(err)
		}
		if err := b.Commit(); err != nil {
			w.t.Fatal(err)
		}
		other.ms = append(other.ms, open(w.t, m, table.View()))
	}
	return other
}

// recovering writes a checkpoint with the state that a restore with a policy gives it.
type recovering struct {
	*memtable.Build
	t      testing.TB
	missed carillon.Misfire
}

func (b recovering) State(position uint64, state []byte) {
	s, err := ReadState(state)
	if err != nil {
		b.t.Fatal(err)
	}
	s.OverrideMisfire(b.missed)
	b.Build.State(position, s.OnNewStreams(0))
}

func TestReadRecoveryRefuses(t *testing.T) {
	f := newFeed(t)
	f.m.recovery = recovery{policy: policyOf(carillon.Skip), until: 1}
	state := f.m.appendState(nil)
	if s, err := ReadState(state); err != nil || s.machine.recovery != f.m.recovery {
		t.Fatalf("%+v, %v", s, err)
	}
	state[len(state)-2]++
	if _, err := ReadState(state); err == nil {
		t.Error("an unknown policy")
	}
}

// A fire that was armed under other rules of a zone, and missed, still counts as one fire, although by the present rules there is none
// at that time.
func TestArmedUnderOtherRules(t *testing.T) {
	for _, misfire := range []string{"fire_once", "skip"} {
		f := newFeed(t)
		at := time.Date(2026, 3, 3, 7, 0, 0, 0, time.UTC)
		f.now = at.Add(-time.Hour).UnixMilli()
		f.tick(100)
		f.put("a", `{"schedule":"0 9 * * *","zone":"Etc/GMT-2","misfire":"`+misfire+`"}`)
		f.now = at.Add(-time.Minute).UnixMilli()
		f.tick(100)
		later, err := schedule.Parse("0 9 * * *", "Etc/GMT-1", 0, 0) // the zone's rules from here on: an hour later
		if err != nil {
			t.Fatal(err)
		}
		_, j := f.m.jobs.find("a")
		f.m.jobs.exprs.all[j.expr].expr = later
		var out []Output
		f.m.Listen(Listener{Made: func(o *Output) { out = append(out, *o) }})
		for f.now = at.Add(time.Minute).UnixMilli(); f.now < at.Add(2*time.Hour).UnixMilli(); f.now += 500 {
			f.tick(100)
		}
		if len(out) != 2 || out[1].Kind != OutputTrigger || out[1].Scheduled != at.Add(time.Hour).UnixMilli() {
			t.Fatalf("%s: there came %+v", misfire, out)
		}
		old := at.Format("2006-01-02T15:04:05.000Z")
		switch first := &out[0]; {
		case misfire == "skip":
			if !strings.Contains(first.Body, `"count":1`) || !strings.Contains(first.Body, `"first":"`+old) || !strings.Contains(first.Body, `"last":"`+old) {
				t.Errorf("%s: %s", misfire, first.Body)
			}
		case first.Scheduled != at.UnixMilli() || first.Missed != 0:
			t.Errorf("%s: at %s, %d missed", misfire, time.UnixMilli(first.Scheduled).UTC(), first.Missed)
		}
	}
}
