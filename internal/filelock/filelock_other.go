//go:build !unix

package filelock

import "os"

// Lock opens a file, which it makes if necessary, but does not lock it: we know of no advisory locks on this system.
func Lock(name string) (*File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return &File{f}, nil
}

func unlock(*os.File) error { return nil }
