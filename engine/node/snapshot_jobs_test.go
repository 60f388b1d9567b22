package node_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

// putBack restores a snapshot's jobs into a running service, and counts what became of them.
func putBack(t testing.TB, c *carillon.Client, target archive.Target, only carillon.Selection, change func(*carillon.ImportJob)) (restored, there int) {
	t.Helper()
	s, err := node.OpenJobs(t.Context(), target, "")
	if err != nil {
		t.Fatal(err)
	}
	var readErr error
	jobs := func(yield func(carillon.ImportJob) bool) {
		readErr = s.All(t.Context(), only, func(j carillon.ImportJob) error {
			change(&j)
			if !yield(j) {
				return context.Canceled
			}
			return nil
		})
	}
	err = c.Restore(t.Context(), jobs, func(r carillon.Restored) {
		restored, there = restored+int(r.Imported), there+int(r.Unchanged)
		for _, f := range r.Failed {
			t.Errorf("%s: %v", f.ID, f.Err)
		}
	})
	if err = errors.Join(err, readErr); err != nil {
		t.Fatal(err)
	}
	return restored, there
}

func ifAbsent(j *carillon.ImportJob) { j.IfAbsent = true }

// A snapshot is restored into a service with another number of partitions while it fires. Each later fire of a restored job
// is the same as the original service's, and what was there goes on as if nothing had happened.
func TestRestoreIntoService(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	nc := dial(t, r.NATS)
	c := client(t, r.NATS)
	const recurring = 60
	for i := range recurring {
		put(t, c, carillon.Job{
			ID: fmt.Sprintf("every-%d", i), Schedule: fmt.Sprintf("@every %dms", 90+i), Misfire: carillon.FireAll, MaxFires: uint64(10 + i),
			Payload: []byte(`"p"`), Form: carillon.PayloadJSON, Labels: map[string]string{"odd": fmt.Sprint(i % 2)},
		})
		put(t, c, carillon.Job{ID: fmt.Sprintf("once-%d", i), Schedule: "@in " + fmt.Sprint(40*i+1) + "ms"})
	}
	still(t, c)
	// The service that they are restored into has a job with the id of one of them, and jobs of its own that fire.
	o := base(t)
	o.Partitions = 3
	busy := run(t, o)
	bc := client(t, busy.NATS)
	put(t, bc, carillon.Job{ID: "every-0", Schedule: "@yearly"})
	for i := range 50 {
		put(t, bc, carillon.Job{ID: fmt.Sprintf("own-%d", i), Schedule: "@every 20ms", Misfire: carillon.FireAll})
	}
	eventually(t, "it has lived", func() bool {
		j, err := c.Get(t.Context(), "every-1")
		return err == nil && j.Fires >= 3
	})
	was := saveAndFire(t, nc, c, partitions)
	maps.DeleteFunc(was.fired, func(id string, _ firing) bool { return strings.HasPrefix(id, "every-0@") }) // it is not restored
	r.stop(t)

	restored, there := putBack(t, bc, was.target, carillon.Selection{}, ifAbsent)
	if restored != len(was.jobs)-1 || there != 1 {
		t.Errorf("%d jobs were put back and %d were there, of %d", restored, there, len(was.jobs))
	}
	if restored, there := putBack(t, bc, was.target, carillon.Selection{}, ifAbsent); restored != 0 || there != len(was.jobs) {
		t.Errorf("once more: %d jobs were put back and %d were there", restored, there)
	}
	caughtUp(t, bc, time.Now())
	got := was.compare(firingsIn(t, dial(t, busy.NATS), 3))
	if len(got.lost) > 0 || len(got.other) > 0 || len(got.before) > 0 || got.equal < recurring {
		t.Errorf("%d fires are equal, lost %q, other %q, and %q had fired before the snapshot", got.equal, got.lost, got.other, got.before)
	}
	if !slices.ContainsFunc(got.extra, func(id string) bool { return strings.HasPrefix(id, "own-") }) {
		t.Error("the service's own jobs did not fire")
	}
	gotJobs := listJobs(t, bc)
	for id, w := range was.jobs {
		if strings.HasPrefix(id, "every-") || strings.HasPrefix(id, "once-") {
			continue // they have fired since
		}
		if strings.HasPrefix(id, "done") {
			continue // it is compared by its trigger
		}
		if g := withoutPartition(gotJobs[id]); g != withoutPartition(w) {
			t.Errorf("%s\n was %s\n is  %s", id, w, g)
		}
	}
	if j, err := bc.Get(t.Context(), "every-0"); err != nil || j.Spec.Schedule != "@yearly" {
		t.Errorf("what was there: %+v, %v", j, err)
	}

	// Only some of them, in place of what is there, and without what was missed.
	skip := carillon.Skip
	only := carillon.Selection{Prefix: "every-", Label: "odd=0"}
	restored, there = putBack(t, bc, was.target, only, func(j *carillon.ImportJob) { j.State.Missed = &skip })
	if restored+there != recurring/2 || restored == 0 {
		t.Errorf("%d jobs were put back and %d were there, of %d selected", restored, there, recurring/2)
	}
	if j, err := bc.Get(t.Context(), "every-0"); err != nil || j.Spec.Schedule == "@yearly" {
		t.Errorf("what was replaced: %+v, %v", j, err)
	}
	caughtUp(t, bc, time.Now())
	firingsIn(t, dial(t, busy.NATS), 3) // nothing twice
}

func withoutPartition(job string) string {
	if job == "" {
		return ""
	}
	return job[:strings.LastIndex(job, `,"partition":`)] + job[strings.LastIndex(job, `,"spec":`):]
}

func withoutPartitions(jobs map[string]string) map[string]string {
	for id, j := range jobs {
		jobs[id] = withoutPartition(j)
	}
	return jobs
}

// A service is killed with -9 in the middle of a restore into it, and the restore is run again: all jobs are there once.
func TestKillWhilePuttingBack(t *testing.T) {
	t.Parallel()
	target, want := saved(t, 6000)
	s := settings{Data: t.TempDir(), Partitions: partitions}
	for range 2 {
		p := mustSpawn(t, s)
		jobs, err := node.OpenJobs(t.Context(), target, "")
		if err != nil {
			t.Fatal(err)
		}
		killed := false
		c := client(t, p.NATS)
		ctx, cancel := context.WithCancel(t.Context())
		_ = c.Restore(ctx, func(yield func(carillon.ImportJob) bool) { // the outcome is checked below
			_ = jobs.All(ctx, carillon.Selection{}, func(j carillon.ImportJob) error {
				if j.IfAbsent = true; !yield(j) {
					return context.Canceled
				}
				return nil
			})
		}, func(r carillon.Restored) {
			if r.Imported+r.Unchanged > 0 && !killed {
				killed = true
				p.kill()
				cancel()
			}
		})
		cancel()
		p.kill()
		if !killed {
			t.Error("nothing was put back")
		}
	}
	p := mustSpawn(t, s)
	again := client(t, p.NATS)
	restored, there := putBack(t, again, target, carillon.Selection{}, ifAbsent)
	t.Logf("after two kills %d jobs of %d were there", there, restored+there)
	if d := cmp.Diff(want, listJobs(t, again)); d != "" || there == 0 {
		t.Errorf("%d jobs were there; (-original +restored):\n%s", there, d)
	}
}
