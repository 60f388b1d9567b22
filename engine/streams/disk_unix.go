//go:build linux || darwin

package streams

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// FreeBytes is how much an ordinary user may still write to the file system of dir.
func FreeBytes(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("streams: free space of %s: %w", dir, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// SameDisk tells whether two directories are on one file system.
func SameDisk(a, b string) (bool, error) {
	var at, bt unix.Stat_t
	if err := unix.Stat(a, &at); err != nil {
		return false, fmt.Errorf("streams: file system of %s: %w", a, err)
	}
	if err := unix.Stat(b, &bt); err != nil {
		return false, fmt.Errorf("streams: file system of %s: %w", b, err)
	}
	return at.Dev == bt.Dev, nil
}
