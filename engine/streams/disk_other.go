//go:build !linux && !darwin

package streams

import (
	"errors"
	"os"
)

// Syncfs is not known on this system.
func Syncfs(string) error { return errors.ErrUnsupported }

// FreeBytes is not known on this system.
func FreeBytes(string) (uint64, error) { return 0, errors.ErrUnsupported }

// syncData brings a file's data to disk.
func syncData(f *os.File) error { return f.Sync() }
