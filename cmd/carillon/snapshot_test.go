package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/internal/natstest"
	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
	"github.com/carillon-scheduler/carillon/wal"
)

// archiveCommand is "archive DIR N" or "archive bucket:NAME N": it saves N snapshots of a table of two partitions, a
// day apart from 2027-01-15 on. Each has one more row a partition than the one before. It creates the bucket.
// "archive flip FILE OFFSET" flips a bit of the first file that the pattern FILE matches.
func archiveCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: archive dir n | bucket:name n | flip file offset")
	}
	if args[0] == "flip" {
		files, err := filepath.Glob(ts.MkAbs(args[1]))
		ts.Check(err)
		offset, err := strconv.Atoi(args[2])
		ts.Check(err)
		ts.Check(flip(files[0], offset))
		return
	}
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	if name, ok := strings.CutPrefix(args[0], "bucket:"); ok {
		nc := connect(ts)
		defer nc.Close()
		js, err := jetstream.New(nc)
		ts.Check(err)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		store, err := js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: name})
		ts.Check(err)
		ts.Check(fillArchive(archive.NewBucket(name, js, store), n))
		return
	}
	ts.Check(fillArchive(archive.OpenDir(nil, ts.MkAbs(args[0])), n))
}

func flip(file string, offset int) error {
	f, err := vfs.Default.OpenReadWrite(file, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	b := make([]byte, 1)
	_, err = f.ReadAt(b, int64(offset))
	b[0] ^= 1
	if err == nil {
		_, err = f.WriteAt(b, int64(offset))
	}
	return errors.Join(err, f.Close())
}

func fillArchive(target archive.Target, n int) error {
	store, err := wal.OpenStore(wal.Options{Dir: "db", FS: vfs.NewMem(), Profile: wal.ProfileTable})
	if err != nil {
		return err
	}
	table := snapshot.OpenTable(store)
	for i := range n {
		for p := range uint16(2) {
			b, err := table.Begin(p)
			if err != nil {
				return err
			}
			b.State(uint64(100+i), []byte("state"))
			b.Change('w', fmt.Append(nil, i), nil, []byte("a row"))
			if _, err := b.Commit(); err != nil {
				return err
			}
		}
		if _, err := archive.Save(context.Background(), table, target, archive.SaveOptions{
			Partitions: 2, Prefix: "carillon", Now: time.UnixMilli(1_800_000_000_123).AddDate(0, 0, i),
			Versions: archive.Versions{Carillon: "1.0.0", Logic: 2, TZData: "2026a"},
		}); err != nil {
			return err
		}
	}
	return store.Close()
}

// The jobs of a snapshot that a service has already are found in batches of ids, even if their labels have changed.
func TestRefuseExistingInBatches(t *testing.T) {
	url, dir := startEngine(t), t.TempDir()
	must := func(args ...string) {
		t.Helper()
		if code, _, errOut := run(t, append([]string{"-s", url}, args...)...); code != exitOK {
			t.Fatalf("%v: %s", args, errOut)
		}
	}
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		must("job", "put", id, "--label", "team=billing")
	}
	must("job", "put", "f")
	must("snapshot", "save", dir)
	must("job", "delete", "b")
	must("job", "put", "d")
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	jobs, err := node.OpenJobs(t.Context(), archive.OpenDir(nil, dir), "")
	if err != nil {
		t.Fatal(err)
	}
	r := restorer{options: node.RestoreOptions{Only: carillon.Selection{Label: "team=billing"}}}
	for batch := 1; batch < 7; batch++ {
		err := r.refuseExisting(t.Context(), carillon.Connect(nc), jobs, batch)
		if err == nil || !strings.HasPrefix(err.Error(), "the service has 4 of the jobs already, such as ") {
			t.Errorf("in batches of %d: %v", batch, err)
		}
	}
	r.options.Only = carillon.Selection{Prefix: "b"}
	if err := r.refuseExisting(t.Context(), carillon.Connect(nc), jobs, 1); err != nil {
		t.Errorf("it has none of these: %v", err)
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 5 << 20: "5.0 MiB", 3 << 50: "3072.0 TiB"} {
		if got := size(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestBlocksProgressIsSilentOffTerminals(t *testing.T) {
	var errOut bytes.Buffer
	p := (&app{stderr: &errOut}).newBlocksProgress("verify")
	p.show(archive.Progress{Done: 10, Total: 20, Blocks: 1})
	p.show(archive.Progress{Done: 20, Total: 20, Blocks: 2})
	p.end()
	if p.bar.jobs != 2 || errOut.Len() > 0 {
		t.Errorf("%d blocks, %q", p.bar.jobs, errOut.String())
	}
}

// Failures are counted, and the first one is kept. A service that does not answer gets no more jobs. Jobs that were not sent have not
// failed.
func TestPutBackCounts(t *testing.T) {
	var p putBack
	unsent := carillon.RestoreFailure{ID: "a", Err: context.Canceled}
	p.take(carillon.Restored{Jobs: 5, Imported: 3, Unchanged: 1, Failed: []carillon.RestoreFailure{unsent}})
	if p.Restored != 3 || p.WereThere != 1 || p.Failed != 0 || p.first != nil || p.offline {
		t.Errorf("%+v", p)
	}
	p.take(carillon.Restored{Imported: 1, Failed: []carillon.RestoreFailure{unsent, {ID: "b", Err: errors.New("no room")}}})
	if p.offline {
		t.Error("a service that refuses a job is taken for one that is gone")
	}
	p.take(carillon.Restored{Unchanged: 1, Failed: []carillon.RestoreFailure{
		{ID: "c", Err: &carillon.Error{Code: carillon.CodeUnavailable}}, {ID: "d", Err: errors.New("late")},
	}})
	if p.Restored != 4 || p.WereThere != 2 || p.Failed != 3 || p.first == nil || p.first.Error() != "b: no room" || !p.offline {
		t.Errorf("%+v", p)
	}
}

// A restore into a service that is interrupted says which command continues it, and that command does. It does not take a newer snapshot,
// which was saved meanwhile while the service had only some of the jobs, and the jobs that were put already do not make it refuse.
func TestRestoreGoesOn(t *testing.T) {
	for _, existing := range []string{existingSkip, existingFail} {
		url, dir := startEngine(t), t.TempDir()
		must := func(args ...string) string {
			t.Helper()
			code, out, errOut := run(t, append([]string{"-s", url}, args...)...)
			if code != exitOK {
				t.Fatalf("%v: %s", args, errOut)
			}
			return out
		}
		const jobs = 20_000
		var lines bytes.Buffer
		for i := range jobs {
			fmt.Fprintf(&lines, `{"id":"j-%05d","schedule":"@yearly"}`+"\n", i)
		}
		file := filepath.Join(t.TempDir(), "jobs")
		if err := os.WriteFile(file, lines.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		must("job", "import", file)
		must("snapshot", "save", dir)
		nc, err := nats.Connect(url)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		there := func() (count uint64) {
			s, err := carillon.Connect(nc).Status(t.Context())
			if err != nil {
				t.Error(err)
			}
			for _, p := range s.Partitions {
				count += p.Jobs[carillon.StatusScheduled]
			}
			return count
		}
		restore := []string{"-s", url, "snapshot", "restore", dir, "--existing", existing}
		var out, errOut bytes.Buffer
		var code int
		for interrupted := false; !interrupted; interrupted = code != exitOK { // it may have ended before it could be interrupted
			must("job", "delete", "--prefix", "j-", "--yes")
			out.Reset()
			errOut.Reset()
			ctx, cancel := context.WithCancel(t.Context())
			begun, err := nc.Subscribe("carillon.log.*.import", func(*nats.Msg) { cancel() })
			if err == nil {
				err = nc.Flush()
			}
			if err != nil {
				t.Fatal(err)
			}
			code = Run(ctx, restore, strings.NewReader(""), &out, &errOut)
			if err := begun.Unsubscribe(); err != nil {
				t.Error(err)
			}
		}
		_, with, ok := strings.Cut(errOut.String(), "interrupted; the same command with ")
		with, _, goes := strings.Cut(with, " goes on")
		if !ok || !goes {
			t.Fatalf("interrupted with code %d: %s%s", code, out.String(), errOut.String())
		}
		natstest.Eventually(t, "what was sent when it was interrupted is there", func() bool { return there() > 0 })
		if count := there(); count == jobs {
			t.Fatalf("interrupted with all %d jobs there, code %d: %s%s", count, code, out.String(), errOut.String())
		}
		must("snapshot", "save", dir)
		t.Log(must(append(restore[2:], strings.Fields(with)...)...))
		if count := there(); count != jobs {
			t.Errorf("%s: there are %d of %d jobs", existing, count, jobs)
		}
	}
}
