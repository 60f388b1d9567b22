package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
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
