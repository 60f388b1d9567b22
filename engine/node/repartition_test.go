package node_test

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

// caughtUp waits until every partition has stored all outputs that are due by a time.
func caughtUp(t testing.TB, c *carillon.Client, end time.Time) {
	t.Helper()
	made := make(map[int]uint64)
	eventually(t, "all is fired up to the end", func() bool {
		all := true
		for _, p := range status(t, c).Partitions {
			if _, noted := made[p.Partition]; !noted && (p.Now.After(end) || p.Jobs[carillon.StatusScheduled] == 0) && p.Ready == 0 {
				made[p.Partition] = p.Outputs
			}
			outputs, noted := made[p.Partition]
			all = all && noted && p.Published >= outputs
		}
		return all
	})
}

// triggersIn returns the history of a service, by trigger id: all that a worker sees of each trigger, and its output
// number.
func triggersIn(t testing.TB, nc *nats.Conn, partitions int) (history map[string]string, numbers map[string]uint64) {
	t.Helper()
	history, numbers = make(map[string]string), make(map[string]uint64)
	for _, o := range allOutputs(t, nc, partitions) {
		if o.trigger == nil {
			continue
		}
		if history[o.trigger.ID] != "" {
			t.Errorf("%s was put out twice", o.trigger.ID)
		}
		history[o.trigger.ID] = fmt.Sprintf("v%d %s %s %d", o.trigger.Version, o.trigger.Topic, o.trigger.Payload, scheduled(&o))
		numbers[o.trigger.ID] = o.number
	}
	return history, numbers
}

// A snapshot is restored into other numbers of partitions: each later fire is the same as the original service's, and all jobs are there.
func TestRestoreOtherPartitions(t *testing.T) {
	t.Parallel()
	o := base(t)
	o.Partitions = 4
	r := run(t, o)
	nc := dial(t, r.NATS)
	c := client(t, r.NATS)
	const recurring = 100
	for i := range recurring {
		put(t, c, carillon.Job{
			ID: fmt.Sprintf("every-%d", i), Schedule: fmt.Sprintf("@every %dms", 90+i), Misfire: carillon.FireAll, Payload: []byte(`"p"`), Form: carillon.PayloadJSON,
			Labels: map[string]string{"odd": fmt.Sprint(i % 2)},
		})
		put(t, c, carillon.Job{ID: fmt.Sprintf("once-%d", i), Schedule: "@in " + fmt.Sprint(20*i+1) + "ms", Priority: carillon.High})
	}
	still(t, c)
	target := archive.OpenDir(nil, filepath.Join(t.TempDir(), "archive"))
	save(t, c, target.String())
	m, err := archive.Get(t.Context(), target, "")
	if err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(1500 * time.Millisecond) // enough rounds
	caughtUp(t, c, end)
	want, numbers := triggersIn(t, nc, 4)
	still := func(jobs map[string]string) map[string]string { // the jobs that do not fire by themselves
		maps.DeleteFunc(jobs, func(id, _ string) bool { return strings.HasPrefix(id, "every-") || strings.HasPrefix(id, "once-") })
		return withoutPartitions(jobs)
	}
	wantStill := still(listJobs(t, c))
	for id := range want {
		job, _, _ := strings.Cut(id, "@")
		s, err := engine.ReadState(m.Partitions[engine.PartitionOf(job, 4)].State)
		if err != nil {
			t.Fatal(err)
		}
		if numbers[id] <= s.Made {
			delete(want, id) // before the snapshot
		}
	}
	r.stop(t)
	for _, partitions := range []int{2, 8} {
		dir := filepath.Join(t.TempDir(), "new")
		done, err := node.Restore(t.Context(), target, "", dir, node.RestoreOptions{Partitions: partitions})
		if err != nil || done.Partitions != partitions || done.Jobs < recurring {
			t.Fatalf("%+v, %v", done, err)
		}
		o := settings{Data: dir, HotJobs: 1}.options()
		again := run(t, o)
		c := client(t, again.NATS)
		if d := cmp.Diff(wantStill, still(listJobs(t, c))); d != "" {
			t.Errorf("into %d partitions (-original +restored):\n%s", partitions, d)
		}
		caughtUp(t, c, end)
		got, _ := triggersIn(t, dial(t, again.NATS), partitions)
		var lost, other []string
		compared := 0
		for id, w := range want {
			g := got[id]
			switch at, _ := strings.CutPrefix(w[strings.LastIndexByte(w, ' '):], " "); {
			case at > fmt.Sprint(end.UnixMilli()):
			case g == "":
				lost = append(lost, id)
			case g != w:
				other = append(other, id+": "+w+", "+g)
			default:
				compared++
			}
		}
		for id, g := range got {
			if at := g[strings.LastIndexByte(g, ' ')+1:]; want[id] == "" && numbers[id] == 0 && at <= fmt.Sprint(end.UnixMilli()) {
				other = append(other, "only restored: "+id)
			}
		}
		slices.Sort(lost)
		if len(lost) > 0 || len(other) > 0 || compared < recurring {
			t.Errorf("into %d partitions: %d fires are equal, lost %q, other %q", partitions, compared, lost, other)
		}
		for p := range partitions {
			fires(t, c, idIn(p, partitions, "new"))
		}
		again.stop(t)
	}
	// Only some of the jobs.
	dir := filepath.Join(t.TempDir(), "some")
	if _, err := node.Restore(t.Context(), target, "", dir, node.RestoreOptions{Only: carillon.Selection{Prefix: "every-", Label: "odd=1"}}); err != nil {
		t.Fatal(err)
	}
	some := run(t, settings{Data: dir}.options())
	if jobs := listJobs(t, client(t, some.NATS)); len(jobs) != recurring/2 || jobs["every-1"] == "" {
		t.Errorf("%d jobs of %d are selected", len(jobs), recurring/2)
	}
	if _, err := node.Restore(t.Context(), target, "", dir, node.RestoreOptions{Partitions: 3}); !errors.Is(err, archive.ErrNotEmpty) {
		t.Errorf("onto data: %v", err)
	}
	if _, err := node.Restore(t.Context(), target, "", dir+"2", node.RestoreOptions{Partitions: node.MaxPartitions + 1}); err == nil {
		t.Error("into too many partitions")
	}
}

// savedUntil returns how far time had advanced in the newest snapshot of an archive.
func savedUntil(t testing.TB, target archive.Target) time.Time {
	t.Helper()
	m, err := archive.Get(t.Context(), target, "")
	if err != nil {
		t.Fatal(err)
	}
	latest := int64(0)
	for i := range m.Partitions {
		s, err := engine.ReadState(m.Partitions[i].State)
		if err != nil {
			t.Fatal(err)
		}
		latest = max(latest, s.To)
	}
	return time.UnixMilli(latest)
}

// What was due between a snapshot and the start on what was restored is treated by the restore's policy for missed fires.
func TestRestoreMissed(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	c := client(t, r.NATS)
	for p := range partitions {
		put(t, c, carillon.Job{ID: in(p, "often"), Schedule: "@every 100ms", Misfire: carillon.FireAll})
		put(t, c, carillon.Job{ID: in(p, "rarely"), Schedule: "@every 100ms", Misfire: carillon.Skip})
	}
	began := time.Now()
	target := archive.OpenDir(nil, filepath.Join(t.TempDir(), "archive"))
	var due, until time.Time
	for lead := 500 * time.Millisecond; ; lead *= 2 {
		due = time.Now().Add(lead)
		for p := range partitions {
			put(t, c, carillon.Job{ID: in(p, "shot"), Schedule: "@at " + due.UTC().Format(carillon.TimeFormat), Misfire: carillon.FireAll})
		}
		save(t, c, target.String())
		if until = savedUntil(t, target); until.Before(due.Truncate(time.Millisecond)) { // a busy machine takes longer
			break
		}
	}
	if until.Before(began) { // no tick was stored yet
		until = began
	}
	r.stop(t)
	eventually(t, "all was missed by more than a second, and more than ten rounds", func() bool {
		return time.Since(due) > 1500*time.Millisecond && time.Since(until) > 2200*time.Millisecond
	})
	for policy, partitions := range map[carillon.Misfire]int{carillon.Skip: partitions, carillon.FireOnce: 3, carillon.FireAll: partitions} {
		dir := filepath.Join(t.TempDir(), "new")
		if _, err := node.Restore(t.Context(), target, "", dir, node.RestoreOptions{Missed: &policy, Partitions: partitions}); err != nil {
			t.Fatal(err)
		}
		again := run(t, settings{Data: dir}.options())
		c := client(t, again.NATS)
		nc := dial(t, again.NATS)
		missed := func() (n uint64) {
			for _, o := range allOutputs(t, nc, partitions) {
				switch {
				case policy == carillon.FireAll: // even fires of a job that would have skipped them
					if o.trigger != nil && strings.HasPrefix(o.trigger.Job, "rarely") && o.stored.Sub(o.trigger.Scheduled) > time.Second {
						n++
					}
				case o.event != nil && o.event.Kind == carillon.EventSkipped && strings.HasPrefix(o.event.Job, "often"):
					if o.event.Reason != carillon.ReasonMisfire {
						t.Errorf("%+v", o.event)
					}
					n += o.event.Count
				case o.trigger != nil:
					n += o.trigger.Missed
				}
			}
			return n
		}
		eventually(t, "what was missed is decided, some forty fires of two jobs among it", func() bool {
			for id, j := range listJobs(t, c) {
				done := strings.Contains(j, `"status":"completed"`) && strings.Contains(j, `"skipped":1,`) == (policy == carillon.Skip)
				if strings.HasPrefix(id, "shot") && !done {
					return false
				}
			}
			return missed() >= 20
		})
		again.stop(t)
	}
}
