package streams

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Syncfs asks the system to write out everything written so far, on every file system: this system has no
// call for a single one, and this call does not wait for the disk.
func Syncfs(dir string) error {
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("streams: syncfs: %w", err)
	}
	if err := unix.Sync(); err != nil {
		return fmt.Errorf("streams: syncfs %s: %w", dir, err)
	}
	return nil
}
