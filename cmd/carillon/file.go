package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/carillon-scheduler/carillon/internal/filelock"
)

// writeWhole writes a file such that the old one stays until the new one is complete. If name is not a regular file but, for
// example, a pipe, it is written directly.
func writeWhole(name string, write func(*bufio.Writer) error) error {
	var mode fs.FileMode
	switch there, err := filepath.EvalSymlinks(name); {
	case err == nil:
		name = there
		info, err := os.Stat(there)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			f, err := os.Create(there)
			if err != nil {
				return err
			}
			return cmp.Or(flushed(f, write), f.Close())
		}
		mode = info.Mode().Perm()
	case !errors.Is(err, fs.ErrNotExist):
		return err
	default:
		if name, err = linkTarget(name); err != nil {
			return err
		}
	}
	// Of two processes at once, the first to end would put in place what the second has written so far. On a file system without
	// locks nothing prevents that.
	switch lock, err := filelock.Lock(name + partSuffix + ".lock"); {
	case errors.Is(err, filelock.ErrLocked):
		return fmt.Errorf("write %s: %w", name, err)
	case err == nil:
		defer lock.Close()
		defer os.Remove(lock.Name()) // a lock file that stays does no harm: the next process takes it
	}
	return replace(vfs.Default, name, func(w *bufio.Writer) error {
		if mode != 0 { // users who may not read the old file may not read the new one either
			if err := os.Chmod(name+partSuffix, mode); err != nil {
				return err
			}
		}
		return write(w)
	})
}

// linkTarget follows links to the file that has yet to be made. EvalSymlinks has found that it does not exist, and that the links are no
// circle.
func linkTarget(name string) (string, error) {
	for {
		to, err := os.Readlink(name)
		if err != nil {
			return name, nil
		}
		if filepath.IsAbs(to) {
			name = to
			continue
		}
		dir, err := filepath.EvalSymlinks(filepath.Dir(name)) // .. in a link counts from the link's real directory
		if err != nil {
			return "", err
		}
		name = filepath.Join(dir, to)
	}
}

// partSuffix is the end of the name of a file that is not complete yet.
const partSuffix = ".part"

// replace writes a file beside the one called name, and puts it in that one's place once it is on disk: not even a power failure
// leaves an incomplete file there.
func replace(files vfs.FS, name string, write func(*bufio.Writer) error) error {
	f, err := files.Create(name+partSuffix, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if err = flushed(f, write); err == nil {
		err = f.Sync()
	}
	if err = cmp.Or(err, f.Close()); err == nil {
		err = files.Rename(name+partSuffix, name)
	}
	if err != nil {
		return errors.Join(err, files.Remove(name+partSuffix))
	}
	dir, err := files.OpenDir(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// flushed writes through a buffer, and flushes it.
func flushed(to io.Writer, write func(*bufio.Writer) error) error {
	w := bufio.NewWriter(to)
	if err := write(w); err != nil {
		return err
	}
	return w.Flush()
}
