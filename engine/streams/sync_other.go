//go:build !linux

package streams

import "os"

// syncData brings a file's data to disk.
func syncData(f *os.File) error { return f.Sync() }
