// Package faultfs gives tests a file system in which they can make operations fail or wait.
package faultfs

import (
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// Wrap calls inject before each operation on the inner file system and its files. If inject returns an error, the operation
// fails with that error and is not done; nil lets it pass.
func Wrap(inner vfs.FS, inject func(errorfs.Op) error) vfs.FS {
	in := errorfs.InjectorFunc(inject)
	return &faulty{errorfs.Wrap(inner, in), in}
}

// faulty is Pebble's errorfs, except that the latter, in 2.1.7, does not call inject for the files that ReuseForWrite returns.
// Pebble's log is such a file once there is an old one to overwrite.
type faulty struct {
	*errorfs.FS
	inject errorfs.Injector
}

func (f *faulty) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(oldname, newname, c)
	if err != nil {
		return nil, err
	}
	return errorfs.WrapFile(file, f.inject), nil
}
