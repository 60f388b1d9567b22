package streams

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Syncfs returns when everything written so far to the file system of dir is on disk.
func Syncfs(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("streams: syncfs: %w", err)
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("streams: syncfs %s: %w", dir, err)
	}
	return nil
}
