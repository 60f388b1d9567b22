// Package filelock locks files, and by them the directories that they are in, for one process.
package filelock

import (
	"errors"
	"os"
)

// ErrLocked says that another process has locked the file, or this process already has.
var ErrLocked = errors.New("in use by another process")

// File is a locked file.
type File struct{ *os.File }

// Close ends the lock and closes the file. Closing alone would not end it while another process, just forked, has the file open, too.
func (f *File) Close() error { return errors.Join(unlock(f.File), f.File.Close()) }
