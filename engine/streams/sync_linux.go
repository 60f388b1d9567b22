package streams

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncData syncs a file's data, and only the metadata needed to find it: not the time of its last write, which
// alone would cost a write of the inode, or a commit of the file system's journal.
func syncData(f *os.File) error {
	for {
		switch err := unix.Fdatasync(int(f.Fd())); err {
		case nil:
			return nil
		case unix.EINTR:
		default:
			return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
	}
}
