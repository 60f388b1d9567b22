package node_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
	"github.com/carillon-scheduler/carillon/wal"
)

// apart returns a time, after everything so far and before everything that comes.
func apart(t testing.TB) time.Time {
	t.Helper()
	next := func(after int64) int64 {
		eventually(t, "the clock goes on", func() bool { return now() > after })
		return now()
	}
	at := next(next(now()))
	next(at)
	return time.UnixMilli(at)
}

// A service can be restored as of any time since a snapshot, with all that had fired by then, if its log was kept.
func TestRestoreToTime(t *testing.T) {
	t.Parallel()
	o := base(t)
	o.CheckpointEvery, o.KeepLog = 50*time.Millisecond, time.Hour
	r := run(t, o)
	c := client(t, r.NATS)
	still(t, c)
	tooEarly := apart(t)
	put(t, c, carillon.Job{ID: "late", Schedule: "@yearly"})
	dir := filepath.Join(t.TempDir(), "archive")
	first := save(t, c, dir)

	put(t, c, carillon.Job{ID: "far", Schedule: "@daily", Topic: "changed"})
	runs := func(id string, fires uint64) {
		t.Helper()
		put(t, c, carillon.Job{ID: id, Schedule: "@every 10ms", MaxFires: fires})
		eventually(t, "a job has run its course", func() bool {
			j, err := c.Get(t.Context(), id)
			return err == nil && j.Status == carillon.StatusCompleted
		})
	}
	runs("beat", 50)
	twoCheckpoints(t, c, "between") // the records that follow the snapshot are below both
	want, at := listJobs(t, c), apart(t)
	if _, err := c.DeleteWhere(t.Context(), carillon.Selection{Prefix: "f"}); err != nil {
		t.Fatal(err)
	}
	save(t, c, dir) // newer than the time that is restored to
	for p := range partitions {
		runs(in(p, "later"), 100) // which means that all before it was stored
	}
	twoCheckpoints(t, c, "after")
	target := archive.OpenDir(nil, dir)
	if _, err := node.RestoreToTime(t.Context(), target, "", filepath.Join(t.TempDir(), "new"), at, r.data, node.RestoreOptions{}); !errors.Is(err, node.ErrDataInUse) {
		t.Errorf("from the log of a running service: %v", err)
	}
	r.stop(t)

	for _, id := range []string{"", first.ID} {
		data := filepath.Join(t.TempDir(), "new")
		m, err := node.RestoreToTime(t.Context(), target, id, data, at, r.data, node.RestoreOptions{})
		if err != nil || m.Manifest.ID != first.ID {
			t.Fatalf("%+v, %v", m, err)
		}
		again := run(t, settings{Data: data}.options())
		if d := cmp.Diff(want, listJobs(t, client(t, again.NATS))); d != "" {
			t.Fatal(d)
		}
		nc := dial(t, again.NATS)
		fires(t, carillon.Connect(nc), "new")
		for p := range partitions {
			for _, o := range outputs(t, nc, p) {
				if o.trigger != nil && o.trigger.Job == "beat" {
					t.Fatalf("%s fired once more", o.trigger.ID)
				}
			}
		}
		again.stop(t)
	}

	refused := func(name, id string, at time.Time, log, want string) {
		t.Helper()
		data := filepath.Join(t.TempDir(), "new")
		_, err := node.RestoreToTime(t.Context(), target, id, data, at, log, node.RestoreOptions{})
		if !errors.Is(err, node.ErrOutOfLog) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(data); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	refused("before the first snapshot", "", tooEarly, r.data, "has no snapshot from before")
	refused("before the one that is named", first.ID, tooEarly, r.data, "has what happened up to")
	refused("the future", "", time.Now().Add(time.Hour), r.data, "ends at 20")

	// Without KeepLog, a service keeps no more of its log than it needs.
	o = settings{Data: r.data, CheckpointEvery: 50 * time.Millisecond}.options()
	r = run(t, o)
	twoCheckpoints(t, client(t, r.NATS), "trimmed")
	twoCheckpoints(t, client(t, r.NATS), "once-more")
	r.stop(t)
	refused("the log is gone", first.ID, at, r.data, "see carillon serve --keep-log")
	log := openStore(t, r.data, "log")
	if err := errors.Join(log.Log().Truncate(log.Log().Last()+1), log.Close()); err != nil {
		t.Fatal(err)
	}
	refused("the log was emptied at rest", first.ID, at, r.data, "is empty")
}

// If several services save to an archive, a restore takes no other service's snapshot for the newest. A restore to a time takes one of
// the log's service; other restores must name a snapshot.
func TestRestoreSharedArchive(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "archive")
	begin := func(prefix, stream string) (*running, *carillon.Client) {
		o := base(t)
		o.Prefix, o.Stream, o.KeepLog = prefix, stream, time.Hour
		r := run(t, o)
		c := carillon.Connect(dial(t, r.NATS), carillon.WithNames(carillon.Names{Prefix: prefix, Stream: stream}))
		put(t, c, carillon.Job{ID: "keeper", Schedule: "@yearly"})
		return r, c
	}
	r, c := begin("carillon", "CARILLON")
	ours := save(t, c, dir).ID
	other, otherClient := begin("other", "OTHER")
	newer := save(t, otherClient, dir).ID
	at := apart(t)
	put(t, c, carillon.Job{ID: "later", Schedule: "@yearly"})
	r.stop(t)
	other.stop(t)

	target := archive.OpenDir(nil, dir)
	into := func() string { return filepath.Join(t.TempDir(), "new") }
	_, err := node.Restore(t.Context(), target, "", into(), node.RestoreOptions{})
	words(t, err, archive.ErrAmbiguous.Error(), `["carillon" "other"]`, dir)
	_, err = node.OpenJobs(t.Context(), target, "")
	words(t, err, archive.ErrAmbiguous.Error())
	if m, err := node.Restore(t.Context(), target, ours, into(), node.RestoreOptions{}); err != nil || m.Manifest.ID != ours {
		t.Errorf("the one that is named: %+v, %v", m, err)
	}
	if m, err := node.RestoreToTime(t.Context(), target, "", into(), at, r.data, node.RestoreOptions{}); err != nil || m.Manifest.ID != ours || m.Jobs != 1 {
		t.Errorf("to a time: %+v, %v", m, err)
	}
	_, err = node.RestoreToTime(t.Context(), target, newer, into(), at, r.data, node.RestoreOptions{})
	words(t, err, `is of a service with the prefix "other", and the log of one with "carillon"`)
}

// A restored service does not have the history that followed the snapshot. Snapshots that were saved in that history are not part of its
// own, although they have the same prefix and are older.
func TestRestoreOtherHistory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "archive")
	target := archive.OpenDir(nil, dir)
	o := base(t)
	o.KeepLog = time.Hour
	r := run(t, o)
	c := client(t, r.NATS)
	names := 0
	grow := func(c *carillon.Client, beyond uint64) (head uint64) {
		t.Helper()
		for head <= beyond {
			names++
			put(t, c, carillon.Job{ID: fmt.Sprintf("job-%d", names), Schedule: "@yearly"})
			for _, p := range status(t, c).Partitions {
				head = max(head, p.Position)
			}
		}
		return head
	}
	kept := save(t, c, dir).ID
	head := grow(c, grow(c, 0)+20)
	left := save(t, c, dir).ID
	grow(c, head+200)
	far := save(t, c, dir).ID
	r.stop(t)

	into := func() string { return filepath.Join(t.TempDir(), "new") }
	data := into()
	if _, err := node.Restore(t.Context(), target, kept, data, node.RestoreOptions{}); err != nil {
		t.Fatal(err)
	}
	o = settings{Data: data}.options()
	o.KeepLog = time.Hour
	r = run(t, o)
	c = client(t, r.NATS)
	grow(c, head+20)
	own := save(t, c, dir).ID
	put(t, c, carillon.Job{ID: "ours", Schedule: "@yearly"})
	want, at := listJobs(t, c), apart(t)
	put(t, c, carillon.Job{ID: "later", Schedule: "@yearly"})
	r.stop(t)

	for id, says := range map[string]string{left: "is of another history", far: "ends at sequence"} {
		_, err := node.RestoreToTime(t.Context(), target, id, into(), at, data, node.RestoreOptions{})
		if !errors.Is(err, node.ErrOutOfLog) {
			t.Errorf("%s: %v", id, err)
		} else {
			words(t, err, "snapshot "+id, says)
		}
	}
	for _, id := range []string{"", own} {
		restored := into()
		m, err := node.RestoreToTime(t.Context(), target, id, restored, at, data, node.RestoreOptions{})
		if err != nil || m.Manifest.ID != own {
			t.Fatalf("%+v, %v", m, err)
		}
		again := run(t, settings{Data: restored}.options())
		if d := cmp.Diff(want, listJobs(t, client(t, again.NATS))); d != "" {
			t.Error(d)
		}
		again.stop(t)
	}
	manifests, err := filepath.Glob(filepath.Join(dir, "snapshots", own+"*"))
	if err != nil || len(manifests) != 1 {
		t.Fatal(manifests, err)
	}
	if err := os.Remove(manifests[0]); err != nil {
		t.Fatal(err)
	}
	if m, err := node.RestoreToTime(t.Context(), target, "", into(), at, data, node.RestoreOptions{}); err == nil && m.Manifest.ID != kept {
		t.Errorf("without its own it took %s", m.Manifest.ID)
	}
}

// The log of a service that was restored with a change does not follow the snapshot that it was made of: what the restore changed would be
// missing. Times since then are in reach from the service's own first snapshot on. Without a change, they are in reach at once. And
// wherever the log begins, the service starts again on it, also over an external NATS and if an embedded server's stream is lost.
func TestToTimeAfterChange(t *testing.T) {
	t.Parallel()
	o := base(t)
	o.KeepLog = time.Hour
	r := run(t, o)
	c := client(t, r.NATS)
	for i := range 20 {
		put(t, c, carillon.Job{ID: fmt.Sprintf("old-%d", i), Schedule: "@yearly"})
		put(t, c, carillon.Job{ID: fmt.Sprintf("drop-%d", i), Schedule: "@yearly"})
	}
	r.stop(t)
	dir := filepath.Join(t.TempDir(), "archive")
	if _, err := node.SaveStopped(t.Context(), node.Options{Data: o.Data}, archive.OpenDir(nil, dir), node.SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	saved := apart(t)
	r = run(t, o)
	put(t, client(t, r.NATS), carillon.Job{ID: "after", Schedule: "@yearly"})
	r.stop(t)
	original := o.Data

	skip := carillon.Skip
	for name, change := range map[string]struct {
		node.RestoreOptions
		toTime   bool
		external bool
		refused  string
	}{
		"as it was":          {},
		"as it was, to time": {toTime: true},
		"more partitions":    {RestoreOptions: node.RestoreOptions{Partitions: 2 * partitions}, refused: "begins at sequence"},
		"one partition":      {RestoreOptions: node.RestoreOptions{Partitions: 1}, external: true, refused: "begins at sequence"},
		"some of the jobs":   {RestoreOptions: node.RestoreOptions{Only: carillon.Selection{Prefix: "old-"}}, refused: "begins at sequence"},
		"some, externally":   {RestoreOptions: node.RestoreOptions{Only: carillon.Selection{Prefix: "old-"}}, external: true, refused: "begins at sequence"},
		"missed":             {RestoreOptions: node.RestoreOptions{Missed: &skip}, refused: "begins at sequence"},
		"missed, externally": {RestoreOptions: node.RestoreOptions{Missed: &skip}, external: true, refused: "begins at sequence"},
		"missed, to time":    {RestoreOptions: node.RestoreOptions{Missed: &skip}, toTime: true, refused: "begins at sequence"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := filepath.Join(t.TempDir(), "archive") // for the snapshots of the one that is restored, beside the first
			copyTree(t, dir, own)
			target := archive.OpenDir(nil, own)
			into := func() string { return filepath.Join(t.TempDir(), "new") }
			data := into()
			var err error
			if change.toTime {
				_, err = node.RestoreToTime(t.Context(), target, "", data, saved, original, change.RestoreOptions)
			} else {
				_, err = node.Restore(t.Context(), target, "", data, change.RestoreOptions)
			}
			if err != nil {
				t.Fatal(err)
			}
			o := settings{Data: data}.options()
			if change.external {
				o.NATS = startExternal(t).url
			}
			o.KeepLog = time.Hour
			r := run(t, o)
			c := client(t, r.NATS)
			for i := range 20 {
				put(t, c, carillon.Job{ID: fmt.Sprintf("new-%d", i), Schedule: "@yearly"})
			}
			want, at := listJobs(t, c), apart(t)
			put(t, c, carillon.Job{ID: "later", Schedule: "@yearly"})
			all := listJobs(t, c)
			r.stop(t)

			reach := func(want map[string]string, at time.Time) {
				t.Helper()
				back := into()
				if _, err := node.RestoreToTime(t.Context(), target, "", back, at, data, node.RestoreOptions{}); err != nil {
					t.Error(err)
					return
				}
				again := run(t, settings{Data: back}.options())
				if d := cmp.Diff(want, listJobs(t, client(t, again.NATS))); d != "" {
					t.Error(d)
				}
				again.stop(t)
			}
			outOfReach := func(log, says string) {
				t.Helper()
				_, err := node.RestoreToTime(t.Context(), target, "", into(), at, log, node.RestoreOptions{})
				if !errors.Is(err, node.ErrOutOfLog) {
					t.Errorf("it was restored: %v", err)
					return
				}
				words(t, err, says)
			}
			switch {
			case change.refused == "":
				reach(want, at)
			case change.Partitions > 0:
				outOfReach(data, fmt.Sprintf("of another history, with %d partitions (here %d)", partitions, change.Partitions))
				log := into() // whose number of partitions is not known
				copyTree(t, filepath.Join(data, "log"), filepath.Join(log, "log"))
				outOfReach(log, change.refused)
			default:
				outOfReach(data, change.refused)
			}

			if !change.external {
				if err := os.RemoveAll(filepath.Join(data, "nats")); err != nil {
					t.Fatal(err)
				}
			}
			r = run(t, o)
			c = client(t, r.NATS)
			if d := cmp.Diff(all, listJobs(t, c)); d != "" {
				t.Error(d)
			}
			save(t, c, own)
			put(t, c, carillon.Job{ID: "last", Schedule: "@yearly"})
			want, at = listJobs(t, c), apart(t)
			put(t, c, carillon.Job{ID: "too-late", Schedule: "@yearly"})
			r.stop(t)
			reach(want, at)
		})
	}
}

// Records that the log stream lost from its middle are put back at its end, a claim that is over among them. All times stay in reach, and
// the snapshots before and after that are of the same history.
func TestToTimeOverHealedHole(t *testing.T) {
	t.Parallel()
	target := archive.OpenDir(nil, filepath.Join(t.TempDir(), "archive"))
	o := base(t)
	o.KeepLog = time.Hour
	r := run(t, o)
	c := client(t, r.NATS)
	put(t, c, carillon.Job{ID: "first", Schedule: "@yearly"})
	before := save(t, c, target.String()).ID
	put(t, c, carillon.Job{ID: "second", Schedule: "@yearly"})
	second := time.Now()
	eventually(t, "more time has passed than a clock goes back between leaders", func() bool { return time.Since(second) > 1200*time.Millisecond })
	put(t, c, carillon.Job{ID: "third", Schedule: "@yearly"})
	early, earlyJobs := apart(t), listJobs(t, c)
	r.stop(t)
	r = run(t, o) // claims all partitions once more
	put(t, client(t, r.NATS), carillon.Job{ID: "fourth", Schedule: "@yearly"})
	r.stop(t)

	store := openStore(t, o.Data, "log")
	log := store.Log()
	var lost []engine.Record
	err := log.Read(log.First(), func(w wal.Record) error {
		r, err := engine.DecodeRecord(w.Seq, append([]byte(nil), w.Data...))
		if claim := strings.HasSuffix(r.Subject, ".0.claim"); claim && len(lost) == 0 || strings.HasSuffix(r.Subject, ".second") {
			lost = append(lost, r)
		}
		return err
	})
	if err != nil || len(lost) != 2 {
		t.Fatal(lost, err)
	}
	for _, l := range lost {
		healed := engine.Record{Seq: log.Last() + 1, Time: time.Now().UnixNano(), Subject: "carillon.log._.heal", Data: engine.EncodeHeal(&l)}
		if err := log.Append([]wal.Record{{Seq: healed.Seq, Data: engine.AppendRecord(nil, &healed)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	after, err := node.SaveStopped(t.Context(), node.Options{Data: o.Data}, target, node.SaveOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r = run(t, o)
	c = client(t, r.NATS)
	put(t, c, carillon.Job{ID: "fifth", Schedule: "@yearly"})
	late, lateJobs := apart(t), listJobs(t, c)
	put(t, c, carillon.Job{ID: "sixth", Schedule: "@yearly"})
	r.stop(t)

	for _, at := range []struct {
		time time.Time
		jobs map[string]string
		from string
	}{{early, earlyJobs, before}, {late, lateJobs, after.Manifest.ID}} {
		data := filepath.Join(t.TempDir(), "new")
		m, err := node.RestoreToTime(t.Context(), target, "", data, at.time, o.Data, node.RestoreOptions{})
		if err != nil || m.Manifest.ID != at.from {
			t.Errorf("%+v, %v; want it from %s", m, err, at.from)
			continue
		}
		again := run(t, settings{Data: data}.options())
		if d := cmp.Diff(at.jobs, listJobs(t, client(t, again.NATS))); d != "" {
			t.Error(d)
		}
		again.stop(t)
	}
}
