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

// firing is what a worker sees of a trigger, and the number of its output.
type firing struct {
	seen   string
	due    int64
	number uint64
}

// firingsIn returns all triggers of a service by their ids. None may be there twice.
func firingsIn(t testing.TB, nc *nats.Conn, partitions int) map[string]firing {
	t.Helper()
	all := make(map[string]firing)
	for _, o := range allOutputs(t, nc, partitions) {
		if o.trigger == nil {
			continue
		}
		if _, twice := all[o.trigger.ID]; twice {
			t.Errorf("%s was put out twice", o.trigger.ID)
		}
		all[o.trigger.ID] = firing{
			seen: fmt.Sprintf("v%d %s %s", o.trigger.Version, o.trigger.Topic, o.trigger.Payload), due: o.trigger.Scheduled.UnixMilli(), number: o.number,
		}
	}
	return all
}

// original is a service of which a snapshot was saved, and which has fired on since.
type original struct {
	target archive.Target
	made   []uint64          // outputs that the snapshot knows of, by partition
	end    time.Time         // all that was due up to here has fired
	fired  map[string]firing // in all of its time, by trigger id
	jobs   map[string]string // at the end
}

// saveAndFire saves a snapshot of a service, and lets it fire for a while.
func saveAndFire(t testing.TB, nc *nats.Conn, c *carillon.Client, partitions int) *original {
	t.Helper()
	o := &original{target: archive.OpenDir(nil, filepath.Join(t.TempDir(), "archive"))}
	save(t, c, o.target.String())
	m, err := archive.Get(t.Context(), o.target, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range m.Partitions {
		s, err := engine.ReadState(p.State)
		if err != nil {
			t.Fatal(err)
		}
		o.made = append(o.made, s.Made)
	}
	o.end = time.Now().Add(1500 * time.Millisecond) // enough rounds
	caughtUp(t, c, o.end)
	o.fired, o.jobs = firingsIn(t, nc, partitions), listJobs(t, c)
	return o
}

// comparison are the triggers of an original and of what was restored, up to the original's end.
type comparison struct {
	equal  int      // that fired after the snapshot in both
	lost   []string // only in the original
	other  []string // different in the two
	before []string // in both, but the original's had fired before the snapshot
	extra  []string // only in what was restored
}

func (o *original) compare(restored map[string]firing) (c comparison) {
	end := o.end.UnixMilli()
	for id, w := range o.fired {
		job, _, _ := strings.Cut(id, "@")
		g, there := restored[id]
		switch {
		case w.due > end:
		case w.number <= o.made[engine.PartitionOf(job, len(o.made))]:
			if there {
				c.before = append(c.before, id)
			}
		case !there:
			c.lost = append(c.lost, id)
		case g.seen != w.seen || g.due != w.due:
			c.other = append(c.other, fmt.Sprintf("%s: %s, due at %d; restored %s, due at %d", id, w.seen, w.due, g.seen, g.due))
		default:
			c.equal++
		}
	}
	for id, g := range restored {
		if _, there := o.fired[id]; !there && g.due <= end {
			c.extra = append(c.extra, id)
		}
	}
	for _, ids := range [][]string{c.lost, c.other, c.before, c.extra} {
		slices.Sort(ids)
	}
	return c
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
	was := saveAndFire(t, nc, c, 4)
	still := func(jobs map[string]string) map[string]string { // the jobs that do not fire by themselves
		maps.DeleteFunc(jobs, func(id, _ string) bool { return strings.HasPrefix(id, "every-") || strings.HasPrefix(id, "once-") })
		return withoutPartitions(jobs)
	}
	wantStill := still(was.jobs)
	r.stop(t)
	for _, partitions := range []int{2, 8} {
		dir := filepath.Join(t.TempDir(), "new")
		done, err := node.Restore(t.Context(), was.target, "", dir, node.RestoreOptions{Partitions: partitions})
		if err != nil || done.Partitions != partitions || done.Jobs < recurring {
			t.Fatalf("%+v, %v", done, err)
		}
		o := settings{Data: dir, HotJobs: 1}.options()
		again := run(t, o)
		c := client(t, again.NATS)
		if d := cmp.Diff(wantStill, still(listJobs(t, c))); d != "" {
			t.Errorf("into %d partitions (-original +restored):\n%s", partitions, d)
		}
		caughtUp(t, c, was.end)
		// What had fired before the snapshot may be published once more, if the snapshot does not know that it was stored.
		got := was.compare(firingsIn(t, dial(t, again.NATS), partitions))
		if len(got.lost) > 0 || len(got.other) > 0 || len(got.extra) > 0 || got.equal < recurring {
			t.Errorf("into %d partitions: %d fires are equal, lost %q, other %q, only restored %q", partitions, got.equal, got.lost, got.other, got.extra)
		}
		for p := range partitions {
			fires(t, c, idIn(p, partitions, "new"))
		}
		again.stop(t)
	}
	// Only some of the jobs.
	dir := filepath.Join(t.TempDir(), "some")
	if _, err := node.Restore(t.Context(), was.target, "", dir, node.RestoreOptions{Only: carillon.Selection{Prefix: "every-", Label: "odd=1"}}); err != nil {
		t.Fatal(err)
	}
	some := run(t, settings{Data: dir}.options())
	if jobs := listJobs(t, client(t, some.NATS)); len(jobs) != recurring/2 || jobs["every-1"] == "" {
		t.Errorf("%d jobs of %d are selected", len(jobs), recurring/2)
	}
	if _, err := node.Restore(t.Context(), was.target, "", dir, node.RestoreOptions{Partitions: 3}); !errors.Is(err, archive.ErrNotEmpty) {
		t.Errorf("onto data: %v", err)
	}
	if _, err := node.Restore(t.Context(), was.target, "", dir+"2", node.RestoreOptions{Partitions: node.MaxPartitions + 1}); err == nil {
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
