package bench

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/carillon-scheduler/carillon/internal/filelock"
)

const (
	scratchPrefix = "carillon-bench-"
	scratchLock   = "bench.lock"
)

// scratch is a directory of a run's own.
type scratch struct {
	dir  string
	lock *os.File // taken for as long as the run lasts
}

// makeScratch makes one in another directory, where it first removes those of runs that were killed: they may be as large
// as the disk.
func makeScratch(in string) (*scratch, error) {
	there, err := os.ReadDir(in)
	if err != nil {
		return nil, err
	}
	for _, e := range there {
		if strings.HasPrefix(e.Name(), scratchPrefix) {
			removeLeft(filepath.Join(in, e.Name()))
		}
	}
	s := &scratch{}
	if s.dir, err = os.MkdirTemp(in, scratchPrefix); err != nil {
		return nil, err
	}
	// Nobody is to find a lock that is not taken yet.
	early := filepath.Join(s.dir, scratchLock+".early")
	if s.lock, err = filelock.Take(early); err == nil {
		err = os.Rename(early, filepath.Join(s.dir, scratchLock))
	}
	if err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

// removeLeft removes a directory with a lock that nobody has, which comes last: without it nobody would know the rest again. What
// cannot be removed, as its engine is ending just now or it is another user's, is left to the next run.
func removeLeft(dir string) {
	name := filepath.Join(dir, scratchLock)
	if _, err := os.Lstat(name); err != nil {
		return // not a run's, or not locked yet
	}
	lock, err := filelock.Take(name)
	if err != nil {
		return
	}
	defer lock.Close()
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if err == nil && e.Name() != scratchLock {
			err = os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
	if err == nil {
		_ = os.RemoveAll(dir) // it holds the lock alone: where that stays, the next run finds it
	}
}

// remove ends it, and all that is in it. Calling it again does nothing.
func (s *scratch) remove() error {
	err := os.RemoveAll(s.dir)
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
		s.lock = nil
	}
	return err
}
