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

// syncData brings a file's data to disk, and of what the file system knows of it what the data is found by: not the time
// of its last write, which alone would cost a write of its inode, or a commit of the file system's journal.
func syncData(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
