// Package smalldisk gives tests a real file system that they can fill.
package smalldisk

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/carillon-scheduler/carillon/internal/userns"
)

// Mount mounts a file system of so many MiB until the test ends. If that is not allowed, it runs the test again as root of a
// user namespace, in another process. Then ok is false, and the caller has nothing left to do.
func Mount(t *testing.T, mib int) (dir string, ok bool) {
	t.Helper()
	dir = t.TempDir()
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib))
	if userns.Rerun(t, err) {
		return "", false
	}
	if err != nil {
		t.Skipf("NOT TESTED: a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir, true
}

// Fill fills a disk until only free bytes are free. drop removes what it wrote.
func Fill(t testing.TB, dir string, free uint64) (drop func()) {
	t.Helper()
	f, err := os.CreateTemp(dir, "ballast")
	if err != nil {
		t.Fatal(err)
	}
	for block := make([]byte, 1<<20); ; {
		var st syscall.Statfs_t
		if err := syscall.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		left := st.Bavail * uint64(st.Bsize)
		if left <= free {
			break
		}
		if _, err := f.Write(block[:min(uint64(len(block)), left-free)]); errors.Is(err, syscall.ENOSPC) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(f.Name()); err != nil {
			t.Error(err)
		}
	}
}
