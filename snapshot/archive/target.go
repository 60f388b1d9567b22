package archive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carillon-scheduler/carillon/wal"
)

// The classes of errors, for errors.Is, beside wal.ErrCorrupt (every *Damage is one) and wal.ErrVersion.
var (
	ErrNotFound   = errors.New("snapshot archive: not found")
	ErrLocked     = errors.New("snapshot archive: in use by another save, prune or restore")
	ErrNotEmpty   = errors.New("snapshot archive: the directory to restore into is not empty")
	ErrAmbiguous  = errors.New("snapshot archive: name one of the snapshots by its id: they are of several services")
	ErrPart       = errors.New("snapshot archive: not a whole snapshot, but what one node gave to another")
	ErrNotArchive = errors.New("is no archive of snapshots")
)

// Target is a place that keeps whole objects by name. Names are paths with slashes. It is safe for concurrent use.
type Target interface {
	// String says where the target is, and Path where an object is: both are for people.
	String() string
	Path(name string) string

	// Put stores an object, whole or not at all, and replaces one of the same name. After Sync has returned, it
	// survives a loss of power.
	Put(ctx context.Context, name string, data []byte) error
	Sync(ctx context.Context) error

	// Get returns an object. Errors: ErrNotFound, *Damage, also for an object of more than most bytes: it is not read, as it could take
	// all memory.
	Get(ctx context.Context, name string, most int64) ([]byte, error)

	// List returns the objects whose names begin with a folder's name and a slash, ordered by name.
	List(ctx context.Context, folder string) ([]Object, error)

	// Delete removes an object; it need not be there.
	Delete(ctx context.Context, name string) error

	// Clean removes what interrupted writes left. The caller holds the lock.
	Clean(ctx context.Context) error

	// Lock keeps others from changing the archive. Errors: ErrLocked, ErrNotArchive.
	Lock(ctx context.Context) (Lock, error)
}

// Object is an object as List returns it.
type Object struct {
	Name  string
	Bytes int64     // 0 also if they are not all there
	Time  time.Time // of its last change, by the target's clock
}

// Lock is held until Release. Check returns ErrLocked if it was lost.
type Lock interface {
	Check(ctx context.Context) error
	Release(ctx context.Context) error // works even if ctx has ended, which only bounds how long it takes
}

// Damage says that bytes in an archive are missing, or are not those that were written. It is a wal.ErrCorrupt.
type Damage struct {
	File   string // as Target.Path gives it
	Offset int64  // in bytes: the damage is there, or in the piece that begins there
	What   string
}

func (d *Damage) Error() string { return fmt.Sprintf("%s: offset %d: %s", d.File, d.Offset, d.What) }

// Is makes a Damage a wal.ErrCorrupt.
func (d *Damage) Is(target error) bool { return target == wal.ErrCorrupt }

func tooLarge(file string, size, most int64) error {
	return damaged(file, int(most), "it has %d bytes, must have no more than %d", size, most)
}

func damaged(file string, offset int, format string, args ...any) error {
	return &Damage{File: file, Offset: int64(offset), What: fmt.Sprintf(format, args...)}
}
