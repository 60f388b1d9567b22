package wal

import (
	"fmt"
	"hash/crc32"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// fence stands between Pebble and the disk. At the first write or sync that fails it closes for good: from
// then on nothing changes on disk, and Pebble is told that everything it writes went well.
//
// Why this lie. Pebble 2.1.7 treats a failed write as the end of the process:
//
//   - A synced commit that fails calls Logger.Fatalf and, if that returns, reports success.
//   - A later commit panics inside the commit pipeline while holding its mutex, as does a log rotation that
//     cannot make its file; Close would then wait for ever.
//   - A failed manifest write calls Fatalf on a background goroutine under the database's mutex.
//   - A failed flush is tried again at once, in a loop.
//
// Fatalf must not exit, because the node goes on when there is room again. Nor may it panic or call Goexit: it may
// run on Pebble's goroutine, with locks taken. But if Pebble never sees an error, it never calls Fatalf: its
// goroutines finish, and Close returns.
//
// Why it is safe. The disk stays as it was at the first error, which is what a crash at that moment would
// have left, and Pebble is built to open after a crash. Nothing is reported as done because of the lie: the
// Store asks the fence after each wait for a sync and before it hands out anything it has read. Once the fence is
// closed, all operations return ErrFailed with the first error. The cost is memory: what Pebble writes
// before Close (at most the flushes and compactions under way) is kept in memory so that it can be read
// back.
//
// Tried and rejected: a Fatalf that parks its goroutine, and leaving the database behind (each full disk would leak
// the memtables and some goroutines); passing errors on (the panics above; and Pebble removes the tables of a
// flush whose manifest write failed, though the manifest may list them: the next start found one missing).
type fence struct {
	vfs.FS
	once   sync.Once
	cause  error         // set before failed is closed; read only after that
	failed chan struct{} // closed at the first failure
	sink   *vfs.MemFS    // files made after the failure, by their base names

	pace pace // of the tables that are written

	synced     atomic.Pointer[manifest] // what is on disk of the manifest in use
	onManifest atomic.Pointer[func()]   // called after each change of synced
}

// manifest describes the synced beginning of one of Pebble's manifests, which only grow; see mark.
type manifest struct {
	name string
	size uint64
	sum  uint32 // crc32c of these bytes
}

const manifestPrefix = "MANIFEST-"

func newFence(inner vfs.FS) *fence {
	return &fence{FS: inner, failed: make(chan struct{}), sink: vfs.NewMem(), pace: pace{began: time.Now()}}
}

// trip closes the fence. Only the first cause counts.
func (f *fence) trip(err error) {
	f.once.Do(func() {
		f.cause = fmt.Errorf("%w: %w", ErrFailed, err)
		close(f.failed)
	})
}

// err is nil, or ErrFailed wrapping the cause.
func (f *fence) err() error {
	select {
	case <-f.failed:
		return f.cause
	default:
		return nil
	}
}

// do runs a write unless the fence is closed, and closes it if the write fails.
func (f *fence) do(op, name string, write func() error) {
	if f.err() != nil {
		return
	}
	if err := write(); err != nil {
		f.trip(fmt.Errorf("%s %s: %w", op, name, err))
	}
}

// open makes a writable file: on disk, or in memory if the fence is closed.
func (f *fence) open(op, name string, open func() (vfs.File, error)) (vfs.File, error) {
	var file vfs.File
	f.do(op, name, func() (err error) {
		file, err = open()
		return err
	})
	if f.err() == nil {
		fenced := &fencedFile{File: file, fence: f, name: name}
		if base := f.PathBase(name); strings.HasPrefix(base, manifestPrefix) {
			fenced.manifest = &manifest{name: base}
		}
		return fenced, nil
	}
	if file != nil {
		_ = file.Close() // it will not be used
	}
	return f.sink.Create(f.sinkName(name), vfs.WriteCategoryUnspecified)
}

func (f *fence) sinkName(name string) string { return "/" + f.PathBase(name) }

func (f *fence) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.open("create", name, func() (vfs.File, error) { return f.FS.Create(name, c) })
	if fenced, ok := file.(*fencedFile); ok {
		fenced.step = f.pace.of(c)
	}
	return file, err
}

func (f *fence) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.open("open", name, func() (vfs.File, error) { return f.FS.OpenReadWrite(name, c, opts...) })
}

func (f *fence) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open("reuse", newname, func() (vfs.File, error) { return f.FS.ReuseForWrite(oldname, newname, c) })
}

func (f *fence) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if f.err() != nil {
		if file, err := f.sink.Open(f.sinkName(name)); err == nil {
			return file, nil
		}
	}
	return f.FS.Open(name, opts...)
}

func (f *fence) Stat(name string) (vfs.FileInfo, error) {
	if f.err() != nil {
		if info, err := f.sink.Stat(f.sinkName(name)); err == nil {
			return info, nil
		}
	}
	return f.FS.Stat(name)
}

func (f *fence) OpenDir(name string) (vfs.File, error) {
	dir, err := f.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &fencedFile{File: dir, fence: f, name: name}, nil
}

// Link's errors are passed on: if the file system cannot link, Pebble copies instead, and if that fails, too, it does no harm.
func (f *fence) Link(oldname, newname string) error {
	if f.err() != nil {
		return nil
	}
	return f.FS.Link(oldname, newname)
}

func (f *fence) Rename(oldname, newname string) error {
	f.do("rename", oldname, func() error { return f.FS.Rename(oldname, newname) })
	return nil
}

// MkdirAll makes directories that only the user and its group may enter, whatever Pebble asks for: its files in them may be read by all.
func (f *fence) MkdirAll(dir string, perm fs.FileMode) error {
	f.do("mkdir", dir, func() error { return f.FS.MkdirAll(dir, perm&^0o027) })
	return nil
}

// Remove's errors are passed on: a file that stays is no damage.
func (f *fence) Remove(name string) error {
	if f.err() != nil {
		return nil
	}
	return f.FS.Remove(name)
}

func (f *fence) RemoveAll(name string) error {
	if f.err() != nil {
		return nil
	}
	return f.FS.RemoveAll(name)
}

func (f *fence) Unwrap() vfs.FS { return f.FS }

// fencedFile is a file or directory opened for writing or syncing.
type fencedFile struct {
	vfs.File
	fence    *fence
	name     string
	manifest *manifest // what was written so far, if the file is a manifest
	begun    bool      // the manifest was synced once
	step     func()    // called after each write, if not nil
}

func (f *fencedFile) Write(p []byte) (int, error) {
	if f.manifest != nil {
		f.manifest.size += uint64(len(p))
		f.manifest.sum = crc32.Update(f.manifest.sum, castagnoli, p)
	}
	f.fence.do("write", f.name, func() error { _, err := f.File.Write(p); return err })
	if f.step != nil {
		f.step()
	}
	return len(p), nil
}

func (f *fencedFile) WriteAt(p []byte, off int64) (int, error) {
	f.fence.do("write", f.name, func() error { _, err := f.File.WriteAt(p, off); return err })
	return len(p), nil
}

func (f *fencedFile) Sync() error {
	f.sync(f.File.Sync)
	return nil
}

func (f *fencedFile) SyncData() error {
	f.sync(f.File.SyncData)
	return nil
}

func (f *fencedFile) sync(sync func() error) {
	f.fence.do("sync", f.name, sync)
	if f.manifest == nil || f.fence.err() != nil {
		return
	}
	changed, first := f.fence.onManifest.Load(), !f.begun
	f.begun = true
	if first && changed != nil {
		return // it is not in use yet: Pebble names it as the one in use only now, before it writes more to it
	}
	synced := *f.manifest
	f.fence.synced.Store(&synced)
	if changed != nil {
		(*changed)()
	}
}

func (f *fencedFile) SyncTo(length int64) (full bool, _ error) {
	f.fence.do("sync", f.name, func() (err error) { full, err = f.File.SyncTo(length); return err })
	return full, nil
}

// Preallocate is a hint whose failure Pebble ignores.
func (f *fencedFile) Preallocate(off, length int64) error {
	if f.fence.err() != nil {
		return nil
	}
	return f.File.Preallocate(off, length)
}

// Close releases the handle in any case. A file system may keep a write's error until then.
func (f *fencedFile) Close() error {
	if err := f.File.Close(); err != nil {
		f.fence.trip(fmt.Errorf("close %s: %w", f.name, err))
	}
	return nil
}
