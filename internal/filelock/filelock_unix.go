//go:build unix

package filelock

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Take opens a file, or makes it, and has it for this process until it is closed or the process ends. Errors: ErrTaken, else
// what the file system said.
func Take(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", name, ErrTaken)
		}
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	opened, err := f.Stat()
	if there, serr := os.Stat(name); err == nil && (serr != nil || !os.SameFile(opened, there)) {
		err = fmt.Errorf("%s: %w", name, ErrTaken) // who had it has removed it since, and another may have made one
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
