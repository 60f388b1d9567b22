//go:build unix

package filelock

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Lock opens a file, which it makes if necessary, and locks it until it is closed or the process ends. Errors: ErrLocked;
// those of the file system.
func Lock(name string) (*File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", name, ErrLocked)
		}
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	locked := &File{f}
	opened, err := f.Stat()
	if there, serr := os.Stat(name); err == nil && (serr != nil || !os.SameFile(opened, there)) {
		err = fmt.Errorf("%s: %w", name, ErrLocked) // its former holder has removed it, and another process may have made a new one
	}
	if err != nil {
		return nil, errors.Join(err, locked.Close())
	}
	return locked, nil
}

func unlock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_UN) }
