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
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/internal/filelock"
)

// The runs of a node in one process: which errors end it, and after which it starts again.

// Ready says where a node that takes jobs can be reached.
type Ready struct {
	NATS       string // URL for clients
	HTTP       string // URL, "" when off
	Partitions int
}

// Run runs a node until ctx ends, then stops it cleanly: its partitions are handed over to other nodes that can take
// them, and a checkpoint is taken at the head of the log. ready is called each time the node begins to take jobs.
//
// Run starts the node again in place after errors that may pass: a disk that is full or very slow, a store that failed, too many open
// files, an external NATS that cannot be reached or takes smaller messages than before. It waits until the disk has room for firing. When
// the log has left the node behind, it starts the node with nothing. Any other error ends Run. Errors: those of Options.Validate,
// ErrDataInUse, ErrDataMoved, and the loud stops of docs/operations.md.
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
	dataDir, err := os.Open(o.Data) // open, so that no other directory gets its inode
	if err != nil {
		return fmt.Errorf("node: data directory: %w", err)
	}
	defer dataDir.Close()
	if err := finishRemoval(o.Data); err != nil { // of an interrupted resetData
		return fmt.Errorf("node: data directory: %w", err)
	}
	web := newWeb()
	httpURL, closeHTTP, err := web.listen(&o)
	if err != nil {
		return err
	}
	defer closeHTTP()
	r := runs{o: o, dataDir: dataDir, web: web}
	return r.run(ctx, httpURL, ready)
}

// runs are the runs of a node on one data directory, one after the other.
type runs struct {
	o       Options
	dataDir *os.File // the data directory
	web     *web
	ran     bool // one of them has taken jobs

	away, short limitedLog // NATS is away; the disk is full, or too many files are open
}

// run runs the node again and again, until ctx ends or an error does not pass.
func (r *runs) run(ctx context.Context, httpURL string, ready func(Ready)) error {
	for empty := false; ; {
		n := newNode(r.o, r.dataDir, r.web, empty)
		err := n.run(ctx, httpURL, func(at Ready) { r.ran = true; ready(at) })
		r.web.serve(nil)
		if err == nil || ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
			return nil
		}
		empty = false
		r.noteServer(err, n.endedAt)
		var behind *leftBehindError
		if errors.As(err, &behind) {
			r.o.Logger.Warn("giving up what this node has, to take it from others", "reason", err)
			r.web.problem("this node was left behind by the log, and takes what it missed from others")
			if err = markTransient(resetData(ctx, r.o, behind)); err == nil {
				empty = true
				continue
			}
			if ctx.Err() != nil {
				return nil
			}
		}
		if !r.transient(err) {
			return err
		}
		r.web.problem(err.Error())
		if !n.waitForRoom(ctx) {
			return nil
		}
		if err := checkDataDir(r.dataDir); err != nil {
			return err
		}
		// The next run uses the same address: if the port was 0, the system has chosen one.
		if n.server != nil && r.o.NATSConfig == "" {
			r.o.Listen = hostOf(n.url, r.o.Listen)
		}
	}
}

// noteServer notes where a run ended, and why. A server that takes connections while it is cut off from the others would be tried first in
// each run, and no run would get as far as to leave it (switchIfCutOff). So one at which a run could not reach NATS is tried last, until a
// run ends for another reason. One that was left behind does not count: resetData, too, is to try such a server last.
func (r *runs) noteServer(err error, endedAt string) {
	var behind *leftBehindError
	switch {
	case errors.Is(err, errUnreachable):
		if endedAt != "" {
			r.o.tryLast = append(slices.DeleteFunc(slices.Clone(r.o.tryLast), func(one string) bool { return one == endedAt }), endedAt)
		}
	case !errors.As(err, &behind):
		r.o.tryLast = nil
	}
}

// transient tells whether the error that ended a run may pass, and logs it if so.
func (r *runs) transient(err error) bool {
	switch {
	case errors.Is(err, errDisk):
		// After a full disk, nats-server and Pebble do not work again until they are restarted.
		r.short.logAtMost(1, r.o.Logger.Error, "stopped firing, waiting for the disk", "error", err)
	case errors.Is(err, errNoFiles):
		r.short.logAtMost(1, r.o.Logger.Error, "stopped firing, waiting for fewer open files", "error", err)
	case errors.Is(err, errUnreachable), r.ran && errors.Is(err, errSmall):
		r.away.warn(r.o.Logger, "waiting for NATS", "error", err)
	default:
		return false
	}
	return true
}

// waitForRoom waits, after a run and before another, for a second and then until each disk has room for firing, or it cannot be told
// whether it has: the next run says why. It returns false when ctx ends first. The first run does not wait: if it gets by with the room
// that there is, jobs can be read and changed, and only firing waits (watchDisk).
func (n *Node) waitForRoom(ctx context.Context) bool {
	for sleep(ctx, time.Second) {
		if free, err := n.room(); err != nil || free >= n.o.FreeForTicks {
			return true
		}
	}
	return false
}

// hostOf is the address to listen on again: that of otherwise, with the port of clientURL if it has one.
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
