//go:build linux || darwin

package embedded

import "golang.org/x/sys/unix"

// diskBytes is the size of dir's file system; 0 if it is not known.
func diskBytes(dir string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0
	}
	return int64(st.Blocks) * int64(st.Bsize)
}

// openFiles is how many files and connections this process may have open; 0 if that is not known.
func openFiles() uint64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return limit.Cur // the Go runtime has raised it to the hard limit
}
