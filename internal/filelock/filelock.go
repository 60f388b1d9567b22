// Package filelock locks files, and by them the directories that they are in, for one process.
package filelock

import "errors"

// ErrLocked says that another process has locked the file, or this process already has.
var ErrLocked = errors.New("in use by another process")
