//go:build unix

package filelock

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// A file that is removed by who has it is nobody's: who opened it before takes no other than the one of that name.
func TestTakeRemoved(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	var has atomic.Int32
	var takers sync.WaitGroup
	for range 4 {
		takers.Go(func() {
			for range 200 {
				f, err := Lock(name)
				if errors.Is(err, ErrLocked) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if has.Add(1) > 1 {
					t.Error("two have it")
				}
				has.Add(-1)
				if err := errors.Join(os.Remove(name), f.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	takers.Wait()
}

// A lock that is given up is free, even while a process that was forked meanwhile still has the file open.
func TestCloseBesideFork(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	f, err := Lock(name)
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("cat")
	child.ExtraFiles = []*os.File{f.File}
	end, err := child.StdinPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(end.Close(), child.Wait()); err != nil {
			t.Error(err)
		}
	}()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f, err = Lock(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}
