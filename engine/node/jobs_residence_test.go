package node_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

// cold makes a node keep hardly any job in memory.
func cold(o node.Options) node.Options {
	o.HotJobs, o.LoadAhead, o.CheckpointEvery = 1, time.Second, 200*time.Millisecond
	return o
}

// A process that is killed at any moment while jobs come into memory and leave it, checkpoints are taken, the log is cut
// and snapshots are saved loses nothing, repeats nothing, and publishes nothing early. The archive stays undamaged.
func TestKillCold(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "archive")
	save := func(l *load) {
		body, err := json.Marshal(carillon.SnapshotRequest{Dir: dir})
		if err != nil {
			t.Error(err)
		}
		// No answer is waited for: mostly a snapshot is being saved already, and any save may meet a kill.
		for l.ctx.Err() == nil {
			_ = l.nc.PublishRequest(carillon.DefaultNames().API(carillon.VerbSnapshot, ""), l.nc.NewRespInbox(), body)
			l.wait(50 * time.Millisecond)
		}
	}
	// Every save may have met a kill, so one gets the time that it takes, after the last kill.
	one := func() {
		eventually(t, "a snapshot is saved", func() bool {
			list, err := archive.List(t.Context(), archive.OpenDir(nil, dir))
			return err == nil && len(list) > 0
		})
	}
	killed(t, settings{
		Data: t.TempDir(), Partitions: 4, CheckpointEvery: 200 * time.Millisecond, HotJobs: 1, LoadAhead: time.Second,
	}, kills(t, 4), 5000, save, one)
	v, err := archive.Verify(t.Context(), archive.OpenDir(nil, dir), nil, nil)
	if err != nil || len(v.Problems) > 0 || v.Snapshots == 0 {
		t.Fatalf("the archive of the kills: %+v, %v", v, err)
	}
	t.Logf("%d snapshots were saved beside, of %d blocks; %d more blocks are left of saves that were killed", v.Snapshots, v.Blocks, v.Unused)
}

// Jobs on disk behave like any others: they are found, listed, changed, deleted, fired when they are due, and there after a restart.
func TestCold(t *testing.T) {
	t.Parallel()
	const n = 3000
	o := cold(base(t))
	o.Partitions = 2
	r := run(t, o)
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc)
	ctx := t.Context()
	for from := 0; from < n; from += 500 {
		var lines []string
		for i := from; i < from+500; i++ {
			lines = append(lines, fmt.Sprintf(`{"id":"far-%04d","schedule":"@every %dh","labels":{"third":"%d"}}`, i, 1+i%100, i%3))
		}
		if got := importLines(t, nc, "", lines...); got.Imported != 500 {
			t.Fatalf("%+v", got)
		}
	}
	hot := func(url string) float64 { return metric(t, url, "carillon_jobs_hot") }
	eventually(t, "most jobs are on disk", func() bool { return hot(r.HTTP) < 100 })
	if all := metric(t, r.HTTP, "carillon_jobs"); all != n {
		t.Fatalf("%v jobs are known, not %d", all, n)
	}

	// Queries find them, and leave them where they are.
	if j, err := c.Get(ctx, "far-1234"); err != nil || j.Version != 1 || j.Spec.Schedule != "@every 35h" || j.Next.IsZero() {
		t.Fatalf("%+v, %v", j, err)
	}
	list := func(f carillon.ListRequest) (ids []string) {
		for j, err := range c.List(ctx, f) {
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, j.ID)
		}
		return ids
	}
	if ids := list(carillon.ListRequest{}); len(ids) != n || !slices.IsSorted(ids) {
		t.Fatalf("%d jobs are listed", len(ids))
	}
	third := carillon.ListRequest{Selection: carillon.Selection{Prefix: "far-2", Label: "third=1"}}
	if ids := list(third); len(ids) != 333 {
		t.Fatalf("%d jobs are a third of a thousand", len(ids))
	}
	if left := hot(r.HTTP); left > 100 {
		t.Fatalf("listing left %v jobs in memory", left)
	}

	// Commands change them.
	if _, err := c.Delete(ctx, "far-0000"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Pause(ctx, "far-0001"); err != nil {
		t.Fatal(err)
	}
	one := uint64(1)
	moved := carillon.Job{ID: "far-0002", Schedule: "@in 3s", Topic: "moved"}
	if j, err := c.Put(ctx, moved, carillon.IfVersion(one)); err != nil || j.Version != 2 {
		t.Fatalf("%+v, %v", j, err)
	}
	if _, err := c.Fire(ctx, "far-0003"); err != nil {
		t.Fatal(err)
	}
	if counts, err := c.PauseWhere(ctx, third.Selection); err != nil || counts.Changed != 333 {
		t.Fatalf("%+v, %v", counts, err)
	}
	eventually(t, "they are on disk again", func() bool { return hot(r.HTTP) < 100 })
	check := func() {
		t.Helper()
		if ids := list(carillon.ListRequest{}); len(ids) != n-1 || ids[0] != "far-0001" {
			t.Fatalf("%d jobs are listed from %s on", len(ids), ids[0])
		}
		if ids := list(carillon.ListRequest{Status: carillon.StatusPaused}); len(ids) != 334 {
			t.Fatalf("%d jobs are paused", len(ids))
		}
		if _, err := c.Get(ctx, "far-0000"); err == nil {
			t.Fatal("a deleted job is there")
		}
	}
	check()
	eventually(t, "the job that was moved has fired", func() bool {
		j, err := c.Get(ctx, "far-0002")
		return err == nil && j.Fires == 1 && j.Status == carillon.StatusCompleted
	})
	eventually(t, "it came into memory before it was due", func() bool { return metric(t, r.HTTP, "carillon_jobs_loaded_total") > 0 })

	r.stop(t)
	r = run(t, o)
	c = carillon.Connect(dial(t, r.NATS))
	if left := hot(r.HTTP); left > 100 {
		t.Fatalf("%v jobs came into memory at the start", left)
	}
	check()
}

// Most jobs have nothing due, and there is not enough memory for all: they leave it as jobs do that are due late.
func TestMemoryBudgetOfJobsAtRest(t *testing.T) {
	t.Parallel()
	o := base(t)
	o.Partitions, o.HotJobs, o.MemoryForJobs, o.CheckpointEvery = 1, 1000, 1<<20, 200*time.Millisecond
	r := run(t, o)
	nc := dial(t, r.NATS)
	payload := strings.Repeat("x", 1000)
	put := func(from, to int) {
		t.Helper()
		for ; from < to; from += 100 {
			var lines []string
			for i := from; i < from+100; i++ {
				lines = append(lines, fmt.Sprintf(`{"id":"job-%05d","payload":"%s"}`, i, payload))
			}
			if got := importLines(t, nc, "", lines...); got.Imported != 100 {
				t.Fatalf("%+v", got)
			}
		}
	}
	put(0, 900) // more than there is memory for, but too few to leave it (HotJobs)
	eventually(t, "there is more than memory is for", func() bool { return metric(t, r.HTTP, "carillon_jobs_memory_bytes") > 1<<20 })
	put(900, 4000)
	eventually(t, "they have left memory", func() bool { return metric(t, r.HTTP, "carillon_jobs_hot") <= 1000 })
	if all := metric(t, r.HTTP, "carillon_jobs"); all != 4000 {
		t.Errorf("%v jobs are known", all)
	}
}

// More jobs are due within the time for which jobs are loaded than there is memory for. Those due last leave it and come back
// as others fire, and every one fires once.
func TestMemoryBudget(t *testing.T) {
	t.Parallel()
	const n, budget = 6000, 2 << 20
	o := base(t)
	o.Partitions, o.HotJobs, o.MemoryForJobs, o.CheckpointEvery = 2, 1, budget, 200*time.Millisecond
	began := time.Now()
	r := run(t, o)
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc)
	payload := strings.Repeat("x", 1000) // so that the jobs are three times the budget
	expected := 0
	for lead := 10 * time.Second; ; lead *= 2 { // on a slow machine they are due before they have left memory
		first, set := time.Now().Add(lead), fmt.Sprintf("within-%s-", lead)
		for from := 0; from < n; from += 250 {
			var lines []string
			for i := from; i < from+250; i++ {
				due := first.Add(time.Duration(i) * time.Millisecond).UTC().Format(carillon.TimeFormat)
				lines = append(lines, fmt.Sprintf(`{"id":"%s%04d","schedule":"@at %s","payload":"%s"}`, set, i, due, payload))
			}
			if got := importLines(t, nc, "", lines...); got.Imported != 250 {
				t.Fatalf("%+v", got)
			}
		}
		expected += n
		eventually(t, "those due last have left memory", func() bool {
			used := metric(t, r.HTTP, "carillon_jobs_memory_bytes")
			return used > 0 && used <= budget && metric(t, r.HTTP, "carillon_jobs_hot") < n/2
		})
		if time.Now().Before(first) {
			break
		}
	}
	if all := metric(t, r.HTTP, "carillon_jobs"); all != float64(expected) {
		t.Errorf("%v jobs are known, not %d", all, expected)
	}
	// All are due within half a minute or so. With enough memory, jobs would be loaded half an hour ahead.
	if ahead := metric(t, r.HTTP, "carillon_loaded_ahead_seconds"); ahead > time.Minute.Seconds() {
		t.Errorf("jobs are said to be loaded for %v s", ahead)
	}
	if age := metric(t, r.HTTP, "carillon_checkpoint_age_seconds"); age > time.Since(began).Seconds() {
		t.Errorf("the oldest checkpoint is %v s old", age)
	}
	if checkpoints := metric(t, r.HTTP, "carillon_checkpoint_seconds_count"); checkpoints < 1 {
		t.Errorf("%v checkpoints were timed", checkpoints)
	}
	eventually(t, "all have fired", func() bool {
		done, err := c.Status(t.Context())
		if err != nil {
			return false
		}
		fired, waiting := 0, uint64(0)
		for _, p := range done.Partitions {
			fired += int(p.Jobs[carillon.StatusCompleted])
			waiting += p.Outputs - p.Published // a job is completed some milliseconds before it is due
		}
		return fired == expected && waiting == 0
	})
	if loaded := metric(t, r.HTTP, "carillon_jobs_loaded_total"); loaded < n/2 {
		t.Errorf("%v jobs came back into memory", loaded)
	}
	fired := make(map[string]int)
	for _, output := range allOutputs(t, nc, o.Partitions) {
		if output.trigger != nil {
			fired[output.trigger.Job]++
		}
	}
	for id, times := range fired {
		if times != 1 {
			t.Errorf("%s fired %d times", id, times)
		}
	}
	if len(fired) != expected {
		t.Errorf("%d of %d jobs fired", len(fired), expected)
	}
}
