package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Dir is a directory as a Target.
type Dir struct {
	fs   vfs.FS
	root string
}

// Names in the directory beside the objects.
const (
	lockFile = "LOCK"
	partsDir = "tmp" // objects being written
	dirPerm  = 0o750 // as a data directory: an archive has all jobs in it
)

// OpenDir returns a directory as a Target; a nil fsys is the disk. Put and Lock make the directory if it is absent.
func OpenDir(fsys vfs.FS, root string) *Dir {
	if fsys == nil {
		fsys = vfs.Default
	}
	return &Dir{fs: fsys, root: root}
}

func (d *Dir) String() string { return d.root }

// Path is the path of an object's file.
func (d *Dir) Path(name string) string { return d.fs.PathJoin(d.root, name) }

// Put writes a temporary file, syncs it, and renames it. So a file of that name is whole at any moment, even after a
// loss of power, and a later save may trust that a block with its name is whole.
func (d *Dir) Put(_ context.Context, name string, data []byte) (err error) {
	parts, to := d.Path(partsDir), d.Path(name)
	if err := errors.Join(d.fs.MkdirAll(parts, dirPerm), d.fs.MkdirAll(d.fs.PathDir(to), dirPerm)); err != nil {
		return err
	}
	part := d.fs.PathJoin(parts, path.Base(name))
	f, err := d.fs.Create(part, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = d.fs.Rename(part, to)
	}
	if err != nil {
		_ = d.fs.Remove(part) // else Clean will
		return fmt.Errorf("write %s: %w", to, err)
	}
	return nil
}

// Sync syncs all directories, even those that only an earlier save changed: that save may have ended before it synced them.
func (d *Dir) Sync(context.Context) error {
	dirs := []string{blocksFolder}
	names, err := d.list(blocksFolder)
	if err != nil {
		return err
	}
	for _, name := range names {
		dirs = append(dirs, path.Join(blocksFolder, name))
	}
	for _, dir := range append(dirs, snapshotsFolder, "") {
		if err := syncDir(d.fs, d.Path(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return syncParent(d.fs, d.root)
}

// syncParent syncs the directory that an entry is in, and those above: they may have been made together with the entry, and if one of
// them is lost, so is the entry. It stops at a directory that this user may not open, or that cannot be synced: that one and those
// above it were there before.
func syncParent(fsys vfs.FS, entry string) error {
	for first := true; ; first = false {
		above := fsys.PathDir(entry)
		if above == entry || entry == "" {
			return nil
		}
		err := syncDir(fsys, above)
		if !first && (errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported)) {
			return nil
		}
		if err != nil {
			return err
		}
		entry = above
	}
}

func syncDir(fsys vfs.FS, dir string) error {
	if dir == "" {
		dir = "."
	}
	f, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Get reads a file. If the disk cannot read all of it, that is a *Damage, so that callers can go on with other files. So is what has the
// name and is no file: a pipe would be read for ever.
func (d *Dir) Get(_ context.Context, name string, most int64) ([]byte, error) {
	file := d.Path(name)
	switch info, err := d.fs.Stat(file); {
	case err != nil: // opening it says why
	case !info.Mode().IsRegular():
		return nil, damaged(file, 0, "it is no file, but %v", info.Mode().Type())
	case info.Size() > most:
		return nil, tooLarge(file, info.Size(), most)
	}
	data, err := readFile(d.fs, file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %s", ErrNotFound, file)
	case errors.Is(err, syscall.EIO), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, damaged(file, len(data), "%v", err)
	}
	return data, err
}

// readFile reads a file. With an error, too, it returns what it has read.
func readFile(fsys vfs.FS, file string) ([]byte, error) {
	f, err := fsys.Open(file)
	if err != nil {
		return nil, err
	}
	data, err := readAll(f)
	return data, errors.Join(err, f.Close())
}

func readAll(f vfs.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	data := make([]byte, info.Size())
	n, err := io.ReadFull(f, data)
	if err == io.EOF { // ReadFull's word for no bytes at all, although some were expected
		err = io.ErrUnexpectedEOF
	}
	return data[:n], err
}

// list returns the names in a directory, ascending; none if the directory is absent.
func (d *Dir) list(dir string) ([]string, error) {
	names, err := d.fs.List(d.Path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	slices.Sort(names)
	return names, err
}

// List walks two levels down, which is how deep an archive is.
func (d *Dir) List(ctx context.Context, folder string) ([]Object, error) {
	names, err := d.list(folder)
	if err != nil {
		return nil, err
	}
	var objects []Object
	for _, name := range names {
		name = path.Join(folder, name)
		info, err := d.fs.Stat(d.Path(name))
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
		case err != nil:
			return nil, err
		case !info.IsDir():
			objects = append(objects, Object{Name: name, Bytes: info.Size(), Time: info.ModTime()})
		case strings.Count(name, "/") < 2:
			below, err := d.List(ctx, name)
			if err != nil {
				return nil, err
			}
			objects = append(objects, below...)
		}
	}
	return objects, ctx.Err()
}

// Delete removes a file.
func (d *Dir) Delete(_ context.Context, name string) error {
	if err := d.fs.Remove(d.Path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Clean removes files whose writing was interrupted, but only those with names that an archive writes.
func (d *Dir) Clean(context.Context) error {
	names, err := d.list(partsDir)
	for _, name := range names {
		if isManifest(name) || isSum(name) {
			err = errors.Join(err, d.fs.Remove(d.fs.PathJoin(d.Path(partsDir), name)))
		}
	}
	return err
}

// Check refuses a directory that has anything in it beside an archive: it is probably used for something else, or has archives
// in directories of its own. A directory that is absent or empty may become an archive, except within another: nobody could save into
// that one then. Error: ErrNotArchive.
func (d *Dir) Check() error {
	names, err := d.list("")
	if err != nil {
		return err
	}
	for _, name := range names {
		switch name {
		case blocksFolder, snapshotsFolder, partsDir, lockFile:
		default:
			return fmt.Errorf("%s %w: it holds %q", d.root, ErrNotArchive, name)
		}
	}
	if len(names) > 0 {
		return nil
	}
	if other := d.within(); other != "" {
		return fmt.Errorf("%s %w: it lies in one, %s", d.root, ErrNotArchive, other)
	}
	return nil
}

// within returns the archive that the directory lies in; "" if there is none, or none that this user may see.
func (d *Dir) within() string {
	for dir, above := d.root, d.fs.PathDir(d.root); above != dir; dir, above = above, d.fs.PathDir(above) {
		names, _ := d.fs.List(above) // none on an error
		if slices.Contains(names, lockFile) && slices.Contains(names, snapshotsFolder) {
			return above
		}
	}
	return ""
}

// Lock takes a lock of the operating system on a file, which ends with the process at the latest.
func (d *Dir) Lock(context.Context) (Lock, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	if err := d.fs.MkdirAll(d.root, dirPerm); err != nil {
		return nil, err
	}
	c, err := lockPath(d.fs, d.Path(lockFile))
	if err != nil {
		return nil, err
	}
	return dirLock{c, d}, nil
}

type dirLock struct {
	io.Closer
	dir *Dir
}

// Check returns ErrLocked if the lock's file is gone: somebody has moved, emptied or unmounted the directory, and the blocks with it.
func (l dirLock) Check(context.Context) error {
	file := l.dir.Path(lockFile)
	_, err := l.dir.fs.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: lost the lock, %s is gone", ErrLocked, file)
	}
	return err
}

func (l dirLock) Release(context.Context) error { return l.Close() }

// lockPath's errors: ErrLocked.
func lockPath(fsys vfs.FS, file string) (io.Closer, error) {
	c, err := fsys.Lock(file)
	// There is no error value for a lock that this process holds itself.
	if err != nil && (errors.Is(err, syscall.EAGAIN) || strings.Contains(err.Error(), "lock held by current process")) {
		return nil, fmt.Errorf("%w: %s", ErrLocked, file)
	}
	return c, err
}
