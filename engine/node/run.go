package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/carillon-scheduler/carillon/internal/filelock"
)

// Ready says where a node that takes jobs can be reached.
type Ready struct {
	NATS       string // URL for clients
	HTTP       string // URL, "" when off
	Partitions int
}

// Run runs a node until ctx ends, then stops it cleanly: what it serves is handed over to others that can take
// it, and a checkpoint is taken at the head of the log. ready is called each time the node begins to take jobs.
//
// Run starts the node again in place, once that makes sense, after a full disk or a store that failed, when it could open no more files,
// and when an external NATS cannot be reached, or takes smaller messages than it did; and with nothing, when the log has left it behind.
// Any other error ends Run. Errors: those of Options.Validate, ErrDataInUse, ErrDataMoved, and the loud stops of docs/operations.md.
func Run(ctx context.Context, o Options, ready func(Ready)) error {
	if err := o.Validate(); err != nil {
		return err
	}
	o = o.withDefaults()
	if err := os.MkdirAll(o.Data, 0o750); err != nil {
		return fmt.Errorf("node: data directory: %w", err)
	}
	lock, err := lockData(o.Data)
	if err != nil {
		return err
	}
	defer lock.Close()
	place, err := os.Open(o.Data) // open, so that no other directory gets its inode
	if err != nil {
		return fmt.Errorf("node: data directory: %w", err)
	}
	defer place.Close()
	// What is left where beginAnew was interrupted.
	if err := os.RemoveAll(filepath.Join(o.Data, setAside)); err != nil {
		return fmt.Errorf("node: data directory: %w", err)
	}
	web := newWeb()
	httpURL, closeHTTP, err := web.listen(&o)
	if err != nil {
		return err
	}
	defer closeHTTP()
	r := runs{o: o, place: place, web: web}
	return r.run(ctx, httpURL, ready)
}

// runs are those of a node on one data directory, one after the other.
type runs struct {
	o     Options
	place *os.File // the data directory
	web   *web
	ran   bool // one of them has taken jobs

	away, short trouble // while NATS is away; while the disk, or the files that may be open, are short
}

// run does for Run what comes again with each run.
func (r *runs) run(ctx context.Context, httpURL string, ready func(Ready)) error {
	for anew := false; ; {
		n := newNode(r.o, r.place, r.web, anew)
		err := n.run(ctx, httpURL, func(at Ready) { r.ran = true; ready(at) })
		r.web.serve(nil)
		if err == nil || ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
			return nil
		}
		anew = false
		var behind *leftBehindError
		if errors.As(err, &behind) {
			r.o.Logger.Warn("giving up what this node has, to take it from others", "reason", err)
			r.web.problem("this node was left behind by the log, and takes what it missed from others")
			if err = passing(beginAnew(ctx, r.o, behind)); err == nil {
				anew = true
				continue
			}
			if ctx.Err() != nil {
				return nil
			}
		}
		if !r.passes(err) {
			return err
		}
		r.web.problem(err.Error())
		if !waitForRoom(ctx, r.o) {
			return nil
		}
		if err := inPlace(r.place); err != nil {
			return err
		}
		// The next run uses the same address: if the port was 0, the system has chosen one.
		if n.server != nil && r.o.NATSConfig == "" {
			r.o.Listen = hostOf(n.url, r.o.Listen)
		}
	}
}

// passes tells whether what has ended a run passes, and logs it if so.
func (r *runs) passes(err error) bool {
	switch {
	case errors.Is(err, errDisk):
		// Once nats-server or Pebble met a full disk they stay as they are until they are started again.
		r.short.tellFirst(1, r.o.Logger.Error, "stopped firing, waiting for the disk", "error", err)
	case errors.Is(err, errNoFiles):
		r.short.tellFirst(1, r.o.Logger.Error, "stopped firing, waiting for fewer open files", "error", err)
	case errors.Is(err, errUnreachable), r.ran && errors.Is(err, errSmall):
		r.away.tell(r.o.Logger, "waiting for NATS", "error", err)
	default:
		return false
	}
	return true
}

// waitForRoom waits a second, and for the disk's room to fire, before another run. It tells whether ctx still goes on.
func waitForRoom(ctx context.Context, o Options) bool {
	for pause(ctx, time.Second) {
		if free, err := freeBytes(o.Data); err == nil && free >= o.FreeForTicks {
			return true
		}
	}
	return false
}

// hostOf is the address to listen on again: otherwise, with the port of the URL for clients, where there is one.
func hostOf(clientURL, otherwise string) string {
	u, err := url.Parse(clientURL)
	if err != nil || u.Port() == "" {
		return otherwise
	}
	host, _, err := net.SplitHostPort(otherwise)
	if err != nil {
		return otherwise
	}
	return net.JoinHostPort(host, u.Port())
}

// ErrDataInUse is returned by Run when another process runs on the same data directory.
var ErrDataInUse = errors.New("node: the data directory is in use by another process")

// ErrDataMoved is returned by Run when the data directory's path no longer leads to it, as after it was renamed or unmounted: what
// the engine has open is in the one directory, and what it opens next would be in another.
var ErrDataMoved = errors.New("node: the data directory is no longer where it was at the start")

// inPlace tells whether an open directory is where it was.
func inPlace(dir *os.File) error {
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

// lockData takes the data directory for this process, restarts within it included, until the file is
// closed or the process ends.
func lockData(dir string) (*os.File, error) {
	f, err := filelock.Take(filepath.Join(dir, "carillon.lock"))
	if errors.Is(err, filelock.ErrTaken) {
		return nil, fmt.Errorf("%w: %s", ErrDataInUse, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("node: data directory: %w", err)
	}
	return f, nil
}
