package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
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

// Run runs a node until ctx ends, then stops it cleanly: what it serves is handed over, where there is somebody to take
// it, and a checkpoint stands at the head of the log. ready is called each time it begins to take jobs. A node whose disk
// was full, or a store of which failed, is started again in place once there is room; so is one that could open no more files,
// one that an external NATS keeps waiting, and one that the log left behind, with nothing. Any other error ends Run.
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
	// What was left when giving up a state was interrupted.
	if err := os.RemoveAll(filepath.Join(o.Data, setAside)); err != nil {
		return fmt.Errorf("node: data directory: %w", err)
	}
	web := newWeb()
	var httpURL string
	if o.HTTP != "off" {
		listener, err := net.Listen("tcp", o.HTTP)
		if err != nil {
			return fmt.Errorf("node: cannot serve health and metrics on %s (is another engine running there?): %w", o.HTTP, err)
		}
		httpURL = "http://" + listener.Addr().String()
		server := &http.Server{Handler: web.handler(o.Profiles), ReadHeaderTimeout: 10 * time.Second}
		go server.Serve(listener)
		defer server.Close()
	}
	var away, short trouble
	for anew := false; ; {
		n := &Node{
			o: o, log: o.Logger, web: web, meters: web.meters, session: rand.Text()[:10], anew: anew,
			delivered: make(chan struct{}, 1), requests: requests{lists: make(chan struct{}, maxLists), statuses: make(chan struct{}, maxStatuses)},
		}
		err := n.run(ctx, httpURL, ready)
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
		case errors.Is(err, errUnreachable):
			away.tell(o.Logger, time.Now(), "waiting for NATS", "error", err)
		default:
			return err
		}
		web.problem(err.Error())
		if waitForRoom(ctx, o) != nil {
			return nil
		}
		// A restart on the same addresses: port 0 was chosen once.
		if o.NATS == "" && n.server != nil && o.NATSConfig == "" {
			o.Listen = hostOf(n.url, o.Listen)
		}
	}
}

// ErrDataInUse is returned by Run when another process runs on the same data directory.
var ErrDataInUse = errors.New("node: the data directory is in use by another process")

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
