package node

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/carillon-scheduler/carillon/internal/smalldisk"
)

// A store that has a disk of its own, by a mount or a link, is emptied where it is. If that is interrupted, the next start goes on.
func TestRemoveStoresFromDisksOfTheirOwn(t *testing.T) {
	disk, ok := smalldisk.Mount(t, 1)
	if !ok {
		return
	}
	o := Options{Data: t.TempDir()}
	log, jobs, linked := filepath.Join(o.Data, "log"), filepath.Join(o.Data, "jobs"), t.TempDir()
	if err := os.Mkdir(log, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(disk, log, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(log, 0); err != nil {
			t.Error(err)
		}
	})
	if err := os.Symlink(linked, jobs); err != nil {
		t.Fatal(err)
	}
	fill := func() {
		t.Helper()
		for _, dir := range []string{log, jobs} {
			if err := os.WriteFile(filepath.Join(dir, "000001.sst"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(dir, "lost+found"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	holds := func(dir string, want ...string) {
		t.Helper()
		entries, err := os.ReadDir(dir)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if err != nil || !slices.Equal(names, want) {
			t.Errorf("%s holds %q, want %q, %v", dir, names, want, err)
		}
	}
	fill()
	if err := removeStores(o); err != nil {
		t.Fatal(err)
	}
	holds(o.Data, "jobs", "log")
	holds(disk, "lost+found")
	holds(linked, "lost+found")

	fill()
	if err := os.Mkdir(filepath.Join(o.Data, asideDir), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := putAside(o.Data, "jobs"); err != nil {
		t.Fatal(err)
	}
	if err := finishRemoval(o.Data); err != nil {
		t.Fatal(err)
	}
	holds(o.Data, "jobs", "log")
	holds(disk, "000001.sst", "lost+found")
	holds(linked, "lost+found")
}
