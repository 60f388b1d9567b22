package bench

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/carillon-scheduler/carillon/internal/filelock"
)

const (
	scratchPattern = "carillon-bench-*"
	scratchLock    = "bench.lock"
)

// scratch is a directory of a run's own.
type scratch struct {
	dir  string
	lock *os.File // taken for as long as the run lasts
}

// makeScratch makes one in another directory, where it first removes those of runs that were killed: they may be as large
// as the disk.
func makeScratch(in string) (*scratch, error) {
	left, err := filepath.Glob(filepath.Join(in, scratchPattern, scratchLock))
	if err != nil {
		return nil, err
	}
	for _, name := range left {
		if err := removeLeft(name); err != nil {
			return nil, err
		}
	}
	s := &scratch{}
	if s.dir, err = os.MkdirTemp(in, scratchPattern); err != nil {
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

// removeLeft removes the directory of a lock that nobody has.
func removeLeft(name string) error {
	lock, err := filelock.Take(name)
	if errors.Is(err, filelock.ErrTaken) || errors.Is(err, os.ErrPermission) {
		return nil // of a run that goes on, or of another user
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil // another run removed it just now
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	return os.RemoveAll(filepath.Dir(name))
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
