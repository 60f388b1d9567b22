package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
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
	// What was left when giving up a state was interrupted.
	if err := os.RemoveAll(filepath.Join(o.Data, setAside)); err != nil {
		return fmt.Errorf("node: data directory: %w", err)
	}
	web := newWeb()
	httpURL, closeHTTP, err := web.listen(&o)
	if err != nil {
		return err
	}
	defer closeHTTP()
	var away, short trouble
	ran := false
	running := func(r Ready) { ran = true; ready(r) }
	for anew := false; ; {
		n := &Node{
			o: o, place: place, log: o.Logger, web: web, meters: web.meters, session: rand.Text()[:10], anew: anew,
			delivered: make(chan struct{}, 1), requests: requests{lists: make(chan struct{}, maxLists), statuses: make(chan struct{}, maxStatuses)},
		}
		err := n.run(ctx, httpURL, running)
		web.serve(nil)
		if err == nil || ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
			return nil
		}
		var behind *leftBehindError
		if errors.As(err, &behind) {
			o.Logger.Warn("giving up what this node has, to take it from others", "reason", err)
			web.problem("this node was left behind by the log, and takes what it missed from others")
			if err = passing(beginAnew(ctx, o, behind)); err == nil {
				anew = true
				continue
			}
			if ctx.Err() != nil {
				return nil
			}
		}
		anew = false
		switch {
		case errors.Is(err, errDisk):
			// Once nats-server or Pebble met a full disk they stay as they are until they are started again.
			short.tellFirst(1, o.Logger.Error, time.Now(), "stopped firing, waiting for the disk", "error", err)
		case errors.Is(err, errNoFiles):
			short.tellFirst(1, o.Logger.Error, time.Now(), "stopped firing, waiting for fewer open files", "error", err)
		case errors.Is(err, errUnreachable), ran && errors.Is(err, errSmall):
			away.tell(o.Logger, time.Now(), "waiting for NATS", "error", err)
		default:
			return err
		}
		web.problem(err.Error())
		if waitForRoom(ctx, o) != nil {
			return nil
		}
		if err := inPlace(place); err != nil {
			return err
		}
		// A restart uses the same address: if the port was 0, the system has chosen one.
		if o.NATS == "" && n.server != nil && o.NATSConfig == "" {
			o.Listen = hostOf(n.url, o.Listen)
		}
	}
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
