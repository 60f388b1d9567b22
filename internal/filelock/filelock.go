// Package filelock takes files, and with them the directories that they are in, for one process.
package filelock

import "errors"

// ErrTaken says that another process has the file, or that this one has it already.
var ErrTaken = errors.New("in use by another process")
