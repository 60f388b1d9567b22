package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/carillon-scheduler/carillon/internal/filelock"
)

// The data directory: who holds it, and how stores are removed from it.

// ErrDataInUse is returned by Run, SaveStopped and RestoreToTime when another process uses the data directory.
var ErrDataInUse = errors.New("node: the data directory is in use by another process")

// ErrDataMoved is returned by Run when the data directory's path no longer leads to it, as after it was renamed or unmounted: the files
// that the engine has open are in one directory, and those that it opens next would be in another.
var ErrDataMoved = errors.New("node: the data directory is no longer where it was at the start")

// checkDataDir returns ErrDataMoved if an open directory is no longer at its path.
func checkDataDir(dir *os.File) error {
	opened, err := dir.Stat()
	if err != nil {
		return fmt.Errorf("node: data directory: %w", err)
	}
	there, err := os.Stat(dir.Name())
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(opened, there) {
		return fmt.Errorf("%w: %s", ErrDataMoved, dir.Name())
	}
	if err != nil {
		return fmt.Errorf("node: data directory: %w", err)
	}
	return nil
}

// lockData locks the data directory for this process until the returned file is closed or the process ends. Run holds the
// lock over all its runs.
func lockData(dir string) (*filelock.File, error) {
	f, err := filelock.Lock(filepath.Join(dir, "carillon.lock"))
	if errors.Is(err, filelock.ErrLocked) {
		return nil, fmt.Errorf("%w: %s", ErrDataInUse, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("node: data directory: %w", err)
	}
	return f, nil
}

// asideDir is the folder of the data directory to which the stores are moved before they are removed.
const asideDir = "aside"

// stores are the folders of the data directory that removeStores removes, in this order: without the log, the jobs do no harm.
var stores = [...]string{"log", "jobs"}

// removeStores removes the stores from a data directory. If it is interrupted, the stores are still there, or so little of them that the
// next start is left behind again.
func removeStores(o Options) error {
	dir := filepath.Join(o.Data, asideDir)
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o750)); err != nil {
		return err
	}
	for _, store := range stores {
		err := putAside(o.Data, store)
		if err == nil {
			err = syncDir(o.Data) // before the next store
		}
		if err != nil {
			return err
		}
	}
	return finishRemoval(o.Data)
}

// putAside renames a store, which is one step: a store of which only a part was removed could not be opened. A store that is a mount of its
// own, or a link to another disk, stays where it is. It gets a mark, by which finishRemoval removes its files, at the next start if need be.
func putAside(data, store string) error {
	from, to := filepath.Join(data, store), filepath.Join(data, asideDir, store)
	info, err := os.Lstat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		if err = os.Rename(from, to); !errors.Is(err, syscall.EBUSY) && !errors.Is(err, syscall.EXDEV) {
			return err
		}
	}
	return errors.Join(os.WriteFile(to+toEmpty, nil, 0o600), syncDir(filepath.Dir(to)))
}

// toEmpty ends the name of the mark of a store whose files are to be removed where they are.
const toEmpty = ".empty"

// finishRemoval removes what removeStores has put aside. It also does so at each start, after an interruption.
func finishRemoval(data string) error {
	dir := filepath.Join(data, asideDir)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, store := range stores {
		_, err := os.Lstat(filepath.Join(dir, store+toEmpty))
		if err == nil {
			err = emptyDir(filepath.Join(data, store))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return errors.Join(os.RemoveAll(dir), syncDir(data))
}

// emptyDir removes everything in a directory, except what belongs to the file system if it is the root of one.
func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != "lost+found" {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, syncDir(dir))
}

func syncDir(name string) error {
	dir, err := vfs.Default.OpenDir(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// wantStore returns an error if a data directory lacks a store. It wraps fs.ErrNotExist, unless data is a file.
func wantStore(data, store string) error {
	_, err := os.Stat(filepath.Join(data, store))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("node: %s is not a Carillon data directory, or not a whole one: %w", data, err)
	}
	return err
}

// liesIn tells whether path is dir or lies in it, symbolic links resolved.
func liesIn(path, dir string) (bool, error) {
	path, err := resolveLinks(path)
	if err != nil {
		return false, err
	}
	if dir, err = resolveLinks(dir); err != nil {
		return false, err
	}
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator)), nil
}

// resolveLinks resolves a path to an absolute one without symbolic links. Its last elements need not exist yet.
func resolveLinks(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if parent := filepath.Dir(path); errors.Is(err, fs.ErrNotExist) && parent != path {
		real, err = resolveLinks(parent)
		return filepath.Join(real, filepath.Base(path)), err
	}
	return real, err
}
