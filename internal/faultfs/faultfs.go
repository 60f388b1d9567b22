// Package faultfs gives tests a file system in which operations fail, or wait, as they say.
package faultfs

import (
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// Wrap has inject asked before each operation on the inner file system and its files. Its error is the operation's, which
// is then not done; nil lets it pass.
func Wrap(inner vfs.FS, inject func(errorfs.Op) error) vfs.FS {
	in := errorfs.InjectorFunc(inject)
	return &faulty{errorfs.Wrap(inner, in), in}
}

// faulty is Pebble's errorfs, which in 2.1.7 asks nothing about the files that ReuseForWrite returns: Pebble's log, once
// there is an old one to write over.
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
