//go:build !unix

package filelock

import "os"

// Take only opens a file, or makes it: this system has no advisory locks we know of.
func Take(name string) (*os.File, error) { return os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600) }
