//go:build unix

package filelock

import (
	"errors"
	"os"
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
