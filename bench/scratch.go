package bench

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/carillon-scheduler/carillon/internal/filelock"
)

const (
	scratchPrefix = "carillon-bench-"
	scratchLock   = "bench.lock"
)

// scratch is a temporary directory of one run.
type scratch struct {
	dir  string
	lock *filelock.File // held for as long as the run lasts
	made []string       // directories above it that were not there, the deepest first
}

// makeScratch makes a scratch in another directory, which need not exist. First it removes there the scratches of runs that were
// killed: they may be as large as the disk. What cannot be removed is left to the next run; if there is no room for this run, the error
// names it.
func makeScratch(in string) (*scratch, error) {
	in, err := filepath.Abs(in) // an engine saves snapshots only into a directory that is named so
	if err != nil {
		return nil, err
	}
	s := &scratch{made: missing(in)}
	if err := os.MkdirAll(in, 0o755); err != nil {
		return nil, errors.Join(err, s.remove())
	}
	there, err := os.ReadDir(in)
	if err != nil {
		return nil, errors.Join(err, s.remove())
	}
	var left error
	for _, e := range there {
		if strings.HasPrefix(e.Name(), scratchPrefix) {
			left = errors.Join(left, removeLeft(filepath.Join(in, e.Name())))
		}
	}
	if s.dir, err = os.MkdirTemp(in, scratchPrefix); err != nil {
		return nil, errors.Join(err, left, s.remove())
	}
	// Nobody must find the lock before it is taken.
	early := filepath.Join(s.dir, scratchLock+".early")
	if s.lock, err = filelock.Lock(early); err == nil {
		err = os.Rename(early, filepath.Join(s.dir, scratchLock))
	}
	if err != nil {
		return nil, errors.Join(err, left, s.remove())
	}
	return s, nil
}

// missing lists which of a directory and those above it do not exist, the deepest first.
func missing(dir string) (list []string) {
	for {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return list
		}
		list = append(list, dir)
		dir = filepath.Dir(dir)
	}
}

// removeLeft removes a directory with a lock that nobody holds, and leaves other directories alone. The lock is removed last: without
// it nobody would recognize the rest.
func removeLeft(dir string) error {
	name := filepath.Join(dir, scratchLock)
	if _, err := os.Lstat(name); err != nil {
		return nil // not a run's, or not locked yet
	}
	lock, err := filelock.Lock(name)
	if err != nil {
		return nil // of a run that goes on, or of another user
	}
	defer lock.Close()
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if err == nil && e.Name() != scratchLock {
			err = os.RemoveAll(filepath.Join(dir, e.Name())) // again: the run's engine may be ending just now
		}
	}
	if err == nil {
		err = os.RemoveAll(dir)
	}
	return err
}

// remove removes the directory with all that is in it. Calling it again does nothing.
func (s *scratch) remove() error {
	err := os.RemoveAll(s.dir)
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
		s.lock = nil
	}
	for _, dir := range s.made {
		if os.Remove(dir) != nil { // somebody else has put something there
			break
		}
	}
	s.made = nil
	return err
}
