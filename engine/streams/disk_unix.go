//go:build linux || darwin

package streams

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// FreeBytes is what an ordinary user may still write to the file system of dir.
func FreeBytes(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("streams: free space of %s: %w", dir, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}
