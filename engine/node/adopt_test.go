package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
	"github.com/carillon-scheduler/carillon/wal"
)

// emptyState saves the state of a service of one partition that has no jobs.
func emptyState(t *testing.T) (target archive.Target, id string) {
	t.Helper()
	store, err := wal.OpenStore(wal.Options{Dir: t.TempDir(), Profile: wal.ProfileTable})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	table := snapshot.OpenTable(store)
	build, err := table.Begin(0)
	if err != nil {
		t.Fatal(err)
	}
	build.State(1, []byte("state"))
	if _, err := build.Commit(); err != nil {
		t.Fatal(err)
	}
	target = archive.OpenDir(nil, filepath.Join(t.TempDir(), "archive"))
	saved, err := archive.Save(t.Context(), table, target, archive.SaveOptions{Partitions: 1, Prefix: "carillon"})
	if err != nil {
		t.Fatal(err)
	}
	return target, saved.Manifest.ID
}

// A node that is killed while it takes another's state leaves stores that are whole or not there: at no moment does one
// lack some of its files.
func TestTakeStateLeavesWholeStores(t *testing.T) {
	target, id := emptyState(t)
	o := Options{Data: t.TempDir(), Prefix: "carillon"}.withDefaults()
	const files = 10_000 // so that their removal takes a while
	jobs := filepath.Join(o.Data, "jobs")
	if err := os.MkdirAll(jobs, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range files {
		if err := os.WriteFile(filepath.Join(jobs, "old-"+strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	taken := make(chan error, 1)
	go func() { taken <- takeState(t.Context(), target, id, o) }()
	for done := false; !done; {
		select {
		case err := <-taken:
			if err != nil {
				t.Fatal(err)
			}
			done = true
		default:
		}
		old, err := filepath.Glob(filepath.Join(jobs, "old-*"))
		if err != nil {
			t.Fatal(err)
		}
		if n := len(old); n > 0 && n < files {
			t.Fatalf("%d of %d files are left", n, files)
		}
	}
	if _, err := os.Stat(filepath.Join(o.Data, adopted)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", adopted, err)
	}
}
