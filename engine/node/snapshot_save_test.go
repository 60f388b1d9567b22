package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/internal/loglimit"
	"github.com/carillon-scheduler/carillon/internal/natstest"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
	"github.com/carillon-scheduler/carillon/wal"
)

// save saves a snapshot of a running service.
func save(t testing.TB, c *carillon.Client, dir string) carillon.SnapshotReply {
	t.Helper()
	r, err := c.SaveSnapshot(t.Context(), carillon.SnapshotRequest{Dir: dir}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// saved returns an archive with a snapshot of n jobs, and these jobs.
func saved(t testing.TB, n int) (target archive.Target, jobs map[string]string) {
	t.Helper()
	r := run(t, base(t))
	c := client(t, r.NATS)
	bulk(t, c, n)
	target = archive.OpenDir(nil, filepath.Join(t.TempDir(), "archive"))
	save(t, c, target.String())
	jobs = listJobs(t, c)
	r.stop(t)
	return target, jobs
}

// restore makes a new data directory of an archive's newest snapshot, and returns options to run on it.
func restore(t testing.TB, target archive.Target) (node.Options, *archive.Manifest) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "new")
	m, err := node.Restore(t.Context(), target, "", dir, node.RestoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return settings{Data: dir}.options(), m.Manifest
}

func listJobs(t testing.TB, c *carillon.Client) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for j, err := range c.List(t.Context(), carillon.ListRequest{}) {
		if err != nil {
			t.Fatal(err)
		}
		all[j.ID] = string(j.AppendJSON(nil))
	}
	return all
}

// still puts jobs that do nothing by themselves: of every status, with all that a job may have.
func still(t testing.TB, c *carillon.Client) {
	t.Helper()
	put(t, c, carillon.Job{
		ID: "far", Schedule: "0 0 1 1 *", Zone: "Europe/Paris", Topic: "a.b", Priority: carillon.High,
		Payload: []byte(`{"a": 1}`), Form: carillon.PayloadJSON, Labels: map[string]string{"team": "x"}, Headers: map[string]string{"Tenant": "y"},
	})
	for range 3 {
		put(t, c, carillon.Job{ID: "often", Schedule: "@yearly", Owner: "o"}, carillon.RequestID("again"))
		put(t, c, carillon.Job{ID: "often", Schedule: "@monthly"})
	}
	put(t, c, carillon.Job{ID: "none"})
	put(t, c, carillon.Job{ID: "paused", Schedule: "@every 1ms"})
	if _, err := c.Pause(t.Context(), "paused"); err != nil {
		t.Fatal(err)
	}
	put(t, c, carillon.Job{ID: "deleted", Schedule: "@daily"})
	if _, err := c.Delete(t.Context(), "deleted"); err != nil {
		t.Fatal(err)
	}
	for p := range partitions {
		fires(t, c, in(p, "done"))
	}
}

// A restored service lists the same jobs as the saved one, and it works.
func TestSnapshotKeepsJobs(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc)
	still(t, c)
	want := listJobs(t, c)
	dir := filepath.Join(t.TempDir(), "archive")
	first := save(t, c, dir)
	if first.ID == "" || first.Partitions != partitions || first.Rows == 0 || first.Written == 0 || first.Archive != dir {
		t.Fatalf("%+v", first)
	}
	made := make([]uint64, partitions)
	for _, p := range status(t, c).Partitions {
		made[p.Partition] = p.Outputs
	}
	r.stop(t)

	// The same once more from the directory of the stopped service, which has nothing new.
	target := archive.OpenDir(nil, dir)
	within := archive.OpenDir(nil, filepath.Join(r.data, "x"))
	if _, err := node.SaveStopped(t.Context(), node.Options{Data: r.data}, within, node.SaveOptions{}); err == nil || !strings.Contains(err.Error(), "data directory") {
		t.Errorf("a snapshot in the data directory: %v", err)
	}
	if _, err := node.SaveStopped(t.Context(), node.Options{Data: r.data}, target, node.SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := archive.List(t.Context(), target)
	if err != nil || len(list) != 2 {
		t.Fatalf("%v, %v", list, err)
	}
	for _, e := range list {
		data := filepath.Join(t.TempDir(), "new")
		if _, err := node.Restore(t.Context(), target, e.ID, data, node.RestoreOptions{}); err != nil {
			t.Fatal(err)
		}
		again := run(t, settings{Data: data}.options())
		c := client(t, again.NATS)
		if d := cmp.Diff(want, listJobs(t, c)); d != "" {
			t.Fatal(d)
		}
		for p := range partitions {
			fires(t, c, in(p, "new"))
		}
		for p := range partitions {
			for i, o := range outputs(t, dial(t, again.NATS), p) {
				if i == 0 && o.number > made[p]+1 {
					t.Errorf("partition %d goes on with output %d after %d", p, o.number, made[p])
				}
			}
		}
		// And once more, now that the log has begun.
		again.stop(t)
		if _, err := os.Stat(filepath.Join(data, "restored.json")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("restored.json: %v", err)
		}
		again = run(t, settings{Data: data}.options())
		for p := range partitions {
			fires(t, client(t, again.NATS), in(p, "newer"))
		}
	}
}

// A snapshot that was saved under load is restored and started: every later fire is the same as the original service's.
func TestSnapshotWhileFiring(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	nc := dial(t, r.NATS)
	c := client(t, r.NATS)
	const recurring, once = 200, 300
	for i := range recurring {
		put(t, c, carillon.Job{
			ID: fmt.Sprintf("every-%d", i), Schedule: fmt.Sprintf("@every %dms", 90+i), Misfire: carillon.FireAll, Payload: []byte(`"p"`), Form: carillon.PayloadJSON,
		})
	}
	stop := putAndDelete(t, c)
	target := archive.OpenDir(nil, filepath.Join(t.TempDir(), "archive"))
	save(t, c, target.String())
	now := time.Now()
	for i := range once {
		at := now.Add(time.Duration(i) * 10 * time.Millisecond).UTC().Format(carillon.TimeFormat)
		put(t, c, carillon.Job{ID: fmt.Sprintf("once-%d", i), Schedule: "@at " + at})
	}
	save(t, c, target.String())
	end := time.Now().Add(4 * time.Second) // enough rounds
	stop()

	o, m := restore(t, target)
	again := run(t, o)
	restored := dial(t, again.NATS)
	for _, c := range []*carillon.Client{c, client(t, again.NATS)} {
		caughtUp(t, c, end)
	}
	compared := 0
	for p := range partitions {
		state, err := engine.ReadState(m.Partitions[p].State)
		if err != nil {
			t.Fatal(err)
		}
		compared += sameFires(t, p, state.Made, end, outputs(t, nc, p), outputs(t, restored, p))
	}
	if compared < recurring {
		t.Errorf("only %d fires were compared", compared)
	}
}

// putAndDelete puts jobs named load-…, which fire soon, and deletes some of them, until stop is called.
func putAndDelete(t *testing.T, c *carillon.Client) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for w := range 4 {
		load.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				id := fmt.Sprintf("load-%d-%d", w, i%50)
				_, err := c.Put(ctx, carillon.Job{ID: id, Schedule: "@in 5ms"})
				if err == nil && i%3 == 0 {
					_, err = c.Delete(ctx, id)
				}
				if err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	return func() {
		cancel()
		load.Wait()
	}
}

// sameFires compares the outputs of a partition with those of the restored one, whose snapshot knows of made outputs. What the
// snapshot has to publish again is what the original published. Later fires of jobs that nobody changed, up to end, are the same, and are
// counted. Their numbers differ, because the load of putAndDelete went on.
func sameFires(t *testing.T, partition int, made uint64, end time.Time, original, restored []output) (later int) {
	t.Helper()
	isLater := func(o output) bool {
		return o.trigger != nil && !strings.HasPrefix(o.trigger.Job, "load-") && o.number > made && !o.trigger.Scheduled.After(end)
	}
	text := func(o output) string {
		return fmt.Sprintf("%s v%d %s", o.trigger.ID, o.trigger.Version, o.trigger.Payload)
	}
	var want, got []string
	byNumber := make(map[uint64]string)
	for _, o := range original {
		if o.trigger != nil {
			byNumber[o.number] = o.trigger.ID
		}
		if isLater(o) {
			want = append(want, text(o))
		}
	}
	for i, o := range restored {
		if o.number != restored[0].number+uint64(i) {
			t.Fatalf("partition %d: output %d follows %d", partition, o.number, restored[i-1].number)
		}
		if o.trigger != nil && o.number <= made && byNumber[o.number] != o.trigger.ID {
			t.Errorf("partition %d: output %d is %s, the original's %s", partition, o.number, o.trigger.ID, byNumber[o.number])
		}
		if isLater(o) {
			got = append(got, text(o))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("partition %d: later fires (-original +restored):\n%s", partition, d)
	}
	return len(got)
}

// bulk imports jobs with payloads: a save of them takes a while.
func bulk(t testing.TB, c *carillon.Client, n int) {
	t.Helper()
	payload := []byte(`"` + strings.Repeat("p", 1000) + `"`)
	err := c.Import(t.Context(), func(yield func(carillon.ImportJob) bool) {
		for i := range n {
			if !yield(carillon.ImportJob{Job: carillon.Job{ID: fmt.Sprintf("bulk-%d", i), Schedule: "@yearly", Payload: payload, Form: carillon.PayloadJSON}}) {
				return
			}
		}
	}, func(_ int, err error) {
		if err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

func code(err error) carillon.Code {
	if e, ok := errors.AsType[*carillon.Error](err); ok {
		return e.Code
	}
	return ""
}

func TestSnapshotOneAtATimeAndCancel(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	c := client(t, r.NATS)
	bulk(t, c, 20_000)
	dir := filepath.Join(t.TempDir(), "archive")

	ctx, cancel := context.WithCancel(t.Context())
	words := 0
	_, err := c.SaveSnapshot(ctx, carillon.SnapshotRequest{Dir: dir}, func(carillon.SnapshotReply) {
		if words++; words > 1 {
			return
		}
		_, err := c.SaveSnapshot(t.Context(), carillon.SnapshotRequest{Dir: dir}, nil)
		if code(err) != carillon.CodeLimitExceeded || !strings.Contains(err.Error(), "another snapshot") {
			t.Errorf("a second save beside the first: %v", err)
		}
		cancel()
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("a save that was cancelled: %v", err)
	}
	target := archive.OpenDir(nil, dir)
	if list, err := archive.List(t.Context(), target); err != nil || len(list) != 0 {
		t.Fatalf("after a cancelled save: %v, %v", list, err)
	}
	// The cancellation has waited for the save's end, so the next one begins at once.
	var phases []carillon.SnapshotPhase
	done, err := c.SaveSnapshot(t.Context(), carillon.SnapshotRequest{Dir: dir}, func(r carillon.SnapshotReply) { phases = append(phases, r.Phase) })
	if err != nil || done.Phase != carillon.SnapshotDone || len(phases) == 0 {
		t.Fatalf("%+v, %v, %v", done, phases, err)
	}
	if v, err := archive.Verify(t.Context(), target, nil, nil); err != nil || len(v.Problems) > 0 {
		t.Fatalf("%+v, %v", v, err)
	}

	// A node that stops gives a save up.
	stopped := make(chan error, 1)
	begun := make(chan struct{})
	var once sync.Once
	go func() {
		_, err := c.SaveSnapshot(context.Background(), carillon.SnapshotRequest{Dir: t.TempDir(), Recheck: true}, func(carillon.SnapshotReply) {
			once.Do(func() { close(begun) })
		})
		stopped <- err
	}()
	<-begun
	r.stop(t)
	if err := <-stopped; code(err) != carillon.CodeUnavailable {
		t.Fatalf("a save in a node that stops: %v", err)
	}
}

func TestSnapshotRefusals(t *testing.T) {
	t.Parallel()
	began := time.Now()
	r := run(t, base(t))
	nc := dial(t, r.NATS)
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "letter.txt"), []byte("dear"), 0o600); err != nil {
		t.Fatal(err)
	}
	locked := archive.OpenDir(nil, t.TempDir())
	lock, err := locked.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release(t.Context())
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(r.data, link); err != nil {
		t.Fatal(err)
	}
	for body, want := range map[string]string{
		``:                                     "invalid_json",
		`{}`:                                   "exactly one of",
		`{"dir":"/a","bucket":"b"}`:            "exactly one of",
		`{"dir":"relative"}`:                   "absolute path",
		`{"bucket":"a.b"}`:                     "bucket: is",
		`{"dir":"/a","recheck":1}`:             `recheck: is "1"`,
		`{"cancel":"nothing"}`:                 "not_found",
		`{"dir":"` + foreign + `"}`:            "no archive of snapshots",
		`{"dir":"` + r.data + `/x"}`:           "data directory",
		`{"dir":"` + link + `/x/y"}`:           "data directory",
		`{"dir":"` + locked.String() + `"}`:    "limit_exceeded",
		`{"dir":"` + foreign + `/letter.txt"}`: "dir: ",
	} {
		answers, err := nc.SubscribeSync(nc.NewRespInbox())
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.PublishRequest("carillon.api.snapshot", answers.Subject, []byte(body)); err != nil {
			t.Fatal(err)
		}
		for {
			m, err := answers.NextMsg(10 * time.Second)
			if err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			if m.Header.Get("Nats-Service-Error") == "" {
				continue // progress
			}
			if got := carillon.ParseError(m.Data).Error(); !strings.Contains(got, want) {
				t.Errorf("%s: %s, want %s", body, got, want)
			}
			break
		}
	}
	// Who asks again and again does not fill the log.
	for range 50 {
		if _, err := carillon.Connect(nc).SaveSnapshot(t.Context(), carillon.SnapshotRequest{Dir: foreign}, nil); code(err) != carillon.CodeInvalidField {
			t.Fatal(err)
		}
	}
	const most = 10
	if n, periods := len(lines(r.log, "no snapshot was saved")), 1+int(time.Since(began)/loglimit.Every); n == 0 || n > most*periods {
		t.Errorf("%d lines in %d periods", n, periods)
	}
	silent := carillon.Connect(nc, carillon.WithNames(carillon.NamesFor("nobody")))
	if _, err := silent.SaveSnapshot(t.Context(), carillon.SnapshotRequest{Dir: foreign}, nil); code(err) != carillon.CodeUnavailable || !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("without a service: %v", err)
	}
}

// A save into a bucket on the service's own server makes the bucket. The next one uses it, and a restore reads it.
func TestSnapshotBucket(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc)
	still(t, c)
	want := listJobs(t, c)
	for range 2 {
		done, err := c.SaveSnapshot(t.Context(), carillon.SnapshotRequest{Bucket: "saves"}, nil)
		if err != nil || done.Archive != "bucket saves" {
			t.Fatalf("%+v, %v", done, err)
		}
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	store, err := js.ObjectStore(t.Context(), "saves")
	if err != nil {
		t.Fatal(err)
	}
	o, _ := restore(t, archive.NewBucket("saves", js, store))
	again := run(t, o)
	if d := cmp.Diff(want, listJobs(t, client(t, again.NATS))); d != "" {
		t.Fatal(d)
	}
}

// A restore that is interrupted or finds damage leaves nothing. One into a directory with data is refused.
func TestRestoreAllOrNothing(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	c := client(t, r.NATS)
	bulk(t, c, 3000)
	dir := filepath.Join(t.TempDir(), "archive")
	save(t, c, dir)
	target := archive.OpenDir(nil, dir)
	if _, err := node.Restore(t.Context(), target, "", r.data, node.RestoreOptions{}); !errors.Is(err, archive.ErrNotEmpty) {
		t.Fatalf("onto data: %v", err)
	}
	if _, err := node.SaveStopped(t.Context(), node.Options{Data: r.data}, target, node.SaveOptions{}); !errors.Is(err, node.ErrDataInUse) {
		t.Fatalf("of a directory in use: %v", err)
	}
	data := filepath.Join(t.TempDir(), "new")
	absent := func() {
		t.Helper()
		for _, d := range []string{data, data + ".tmp"} {
			if _, err := os.Stat(d); !errors.Is(err, os.ErrNotExist) {
				t.Fatalf("%s: %v", d, err)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := node.Restore(ctx, target, "", data, node.RestoreOptions{Progress: func(archive.Progress) { cancel() }}); !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	absent()
	blocks, err := filepath.Glob(filepath.Join(dir, "blocks", "*", "*"))
	if err != nil || len(blocks) == 0 {
		t.Fatal(blocks, err)
	}
	for _, block := range blocks {
		whole, err := os.ReadFile(block)
		if err != nil {
			t.Fatal(err)
		}
		bad := slices.Clone(whole)
		bad[len(bad)/2] ^= 4
		if err := os.WriteFile(block, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err = node.Restore(t.Context(), target, "", data, node.RestoreOptions{})
		if d, ok := errors.AsType[*archive.Damage](err); !ok || d.File != block || !errors.Is(err, wal.ErrCorrupt) {
			t.Fatalf("%s is damaged: %v", block, err)
		}
		absent()
		if err := os.WriteFile(block, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// A save with a recheck repairs damage that a plain save does not notice.
	if err := os.WriteFile(blocks[0], make([]byte, len(mustRead(t, blocks[0]))), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.SaveSnapshot(t.Context(), carillon.SnapshotRequest{Dir: dir, Recheck: true}, nil); err != nil {
		t.Fatal(err)
	}
	o, m := restore(t, target)
	refusedBy := func(change func(*node.Options), want string) {
		t.Helper()
		o := o
		change(&o)
		if err := refused(t, o); !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	refusedBy(func(o *node.Options) { o.Partitions = partitions + 1 }, "were asked for")
	refusedBy(func(o *node.Options) { o.Prefix, o.Stream = "other", "OTHER" }, "with the prefix")
	again := run(t, o)
	if got := listJobs(t, client(t, again.NATS)); len(got) != 3000 {
		t.Fatalf("%d jobs of snapshot %s", len(got), m.ID)
	}
}

func mustRead(t testing.TB, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// On an external NATS a restored directory begins streams of its own, and does not use those of the service that was saved.
func TestRestoreExternal(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	r := run(t, e.options(t))
	c := client(t, r.NATS)
	still(t, c)
	want := listJobs(t, c)
	target := archive.OpenDir(nil, filepath.Join(t.TempDir(), "archive"))
	save(t, c, target.String())
	r.stop(t)
	o, _ := restore(t, target)
	o.NATS = e.url
	if err := refused(t, o); !strings.Contains(err.Error(), "needs streams of its own") {
		t.Fatal(err)
	}
	fresh := startExternal(t)
	o.NATS = fresh.url
	for range 2 {
		again := run(t, o)
		if d := cmp.Diff(want, listJobs(t, client(t, again.NATS))); d != "" {
			t.Fatal(d)
		}
		again.stop(t)
	}
}

// A kill -9 in the middle of a save leaves an archive that the next save goes on with, and does not harm the service.
func TestKillWhileSaving(t *testing.T) {
	t.Parallel()
	s := settings{Data: t.TempDir(), Partitions: partitions}
	p := mustSpawn(t, s)
	bulk(t, client(t, p.NATS), 5000)
	dir := filepath.Join(t.TempDir(), "archive")
	target := archive.OpenDir(nil, dir)
	whole := 0
	for i := range 4 {
		c := carillon.Connect(dial(t, p.NATS), carillon.WithTimeout(100*time.Millisecond)) // a dead process is not waited for
		blocks := func() int {
			found, _ := filepath.Glob(filepath.Join(dir, "blocks", "*", "*"))
			return len(found)
		}
		ended := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		before := blocks()
		go func() {
			defer close(ended)
			if _, err := c.SaveSnapshot(ctx, carillon.SnapshotRequest{Dir: dir}, nil); err == nil {
				whole++
			}
		}()
		eventually(t, "a block is written", func() bool {
			select {
			case <-ended:
				return true
			default:
				return blocks() > before+i
			}
		})
		p.kill()
		cancel()
		<-ended
		p = mustSpawn(t, s)
	}
	c := client(t, p.NATS)
	want := listJobs(t, c)
	save(t, c, dir)
	v, err := archive.Verify(t.Context(), target, nil, nil)
	if err != nil || len(v.Problems) > 0 || v.Snapshots < whole+1 {
		t.Fatalf("%+v of %d, %v", v, whole, err)
	}
	// A save of the directory of a killed process includes what its log has beyond the checkpoints.
	put(t, c, carillon.Job{ID: "last", Schedule: "@yearly"})
	want["last"] = listJobs(t, c)["last"]
	p.kill()
	if _, err := node.SaveStopped(t.Context(), node.Options{Data: s.Data}, target, node.SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	o, _ := restore(t, target)
	if d := cmp.Diff(want, listJobs(t, client(t, run(t, o).NATS))); d != "" {
		t.Fatal(d)
	}
}

// A directory whose local log is gone is not saved: what only the log had would be missing without an error. A directory
// that was restored has no log before its first start, and is saved.
func TestSaveStoppedWithoutLog(t *testing.T) {
	t.Parallel()
	target, _ := saved(t, 10)
	o, _ := restore(t, target)
	if _, err := node.SaveStopped(t.Context(), o, target, node.SaveOptions{}); err != nil {
		t.Errorf("a directory that was restored: %v", err)
	}
	run(t, o).stop(t)
	log := filepath.Join(o.Data, "log")
	if err := os.RemoveAll(log); err != nil {
		t.Fatal(err)
	}
	for range 2 { // nor is a log made
		_, err := node.SaveStopped(t.Context(), o, target, node.SaveOptions{})
		words(t, err, log, "no such file")
	}
	if list, err := archive.List(t.Context(), target); err != nil || len(list) != 2 {
		t.Errorf("%v, %v", list, err)
	}
}

// A bucket that drops old objects is refused: a snapshot's blocks may be as old as the oldest snapshot.
func TestSaveIntoForgetfulBucket(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	nc := dial(t, r.NATS)
	if _, err := jetStream(t, nc).CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "forgetful", TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	_, err := client(t, r.NATS).SaveSnapshot(t.Context(), carillon.SnapshotRequest{Bucket: "forgetful"}, func(carillon.SnapshotReply) {})
	words(t, err, "invalid_field: bucket", "forgets objects after 1h0m0s")
}

// If an account allows no streams without a bound of bytes, the bucket must be made by hand: the error says how.
func TestSaveWhereBoundsAreRequired(t *testing.T) {
	t.Parallel()
	ns := natstest.ParseOptions(t, `jetstream: {}, accounts { A: { jetstream: {max_bytes_required: true}, users: [{user: u, password: p}] } }, no_auth_user: u`)
	o := base(t)
	o.NATS = natstest.Start(t, ns).ClientURL()
	run(t, o)
	save := func() error {
		_, err := client(t, o.NATS).SaveSnapshot(t.Context(), carillon.SnapshotRequest{Bucket: "bounded"}, func(carillon.SnapshotReply) {})
		return err
	}
	words(t, save(), "max_bytes_required", "nats object add bounded --max-bucket-size SIZE --replicas 1")
	if _, err := jetStream(t, dial(t, o.NATS)).CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "bounded", MaxBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if err := save(); err != nil {
		t.Error(err)
	}
}
