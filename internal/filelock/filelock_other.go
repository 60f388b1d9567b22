//go:build !unix

package filelock

import "os"

// Lock opens a file, which it makes if necessary, but does not lock it: we know of no advisory locks on this system.
func Lock(name string) (*os.File, error) { return os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600) }
