package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/engine/embedded"
	"github.com/carillon-scheduler/carillon/engine/servers"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/wal"
)

// Errors that end a run and may pass: Run starts the node again in place.
var (
	errDisk    = errors.New("node: the disk cannot be written")              // it is full, or fails
	errNoFiles = errors.New("node: too many files and connections are open") // a start closes those of the embedded server's clients

	// errUnreachable is for an external NATS at the start. Later the connection comes back by itself.
	errUnreachable = errors.New("node: NATS cannot be reached")
	// errSmall may pass if this process has taken jobs before: then somebody lowered the limit, and may raise it again.
	errSmall = errors.New("node: a trigger or an answer may be larger than what NATS takes")
)

// unreachable marks err as errUnreachable if NATS is external and err says that it cannot be reached. It marks err as errDisk if the
// embedded server has opened the streams and then does not answer: it could not write the log stream, or it waits for the disk.
func (n *Node) unreachable(err error) error {
	switch {
	case n.o.NATS != "":
		return unreachable(err)
	case n.streams == nil, errors.Is(err, errDisk), !errors.Is(err, streams.ErrTimeout) && !errors.Is(err, context.DeadlineExceeded):
		return err
	}
	if why, is := n.server.StreamErrors()[n.streams.Log.Name()]; is {
		return fmt.Errorf("%w: nats-server: %s: %w", errDisk, why, err)
	}
	return fmt.Errorf("%w: nats-server does not answer: %w", errDisk, err)
}

// unreachable marks err as errUnreachable if it says that NATS cannot be reached, or that JetStream has no leader just now, or too few
// servers for a stream's replicas while one is away.
func unreachable(err error) error {
	var network *net.OpError // not net.Error: file errors would match that too, because syscall.Errno has its methods
	var refused *jetstream.APIError
	if errors.As(err, &network) && network.Op == "remote error" {
		return err // a TLS alert: the server refuses this node, and will go on doing so
	}
	for _, e := range []error{
		nats.ErrNoServers, nats.ErrTimeout, nats.ErrNoResponders, jetstream.ErrNoStreamResponse,
		streams.ErrDisconnected, streams.ErrTimeout, context.DeadlineExceeded, servers.ErrNotAccepting,
	} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", errUnreachable, err)
		}
	}
	if errors.As(err, &network) || errors.As(err, &refused) &&
		(refused.Code == http.StatusServiceUnavailable || refused.ErrorCode == noPeers && strings.Contains(refused.Description, "peer offline")) {
		return fmt.Errorf("%w: %w", errUnreachable, err)
	}
	return err
}

// startFiles is how many files a start must be able to open. With eight partitions it opens some thirty; the embedded server opens one
// more for the output stream of each further partition.
func (n *Node) startFiles() int {
	partitions := 8
	if n.o.NATS == "" {
		// If the streams cannot be listed, 8 is enough: then hardly a file can be opened, and the start fails as it should.
		made, _ := embedded.StoredPartitions(n.o.natsDir(), n.o.Stream)
		partitions = max(partitions, n.o.Partitions, made)
	}
	return 40 + partitions
}

// wantFiles checks whether so many files can be opened, by opening dir that often. If it fails later, nats-server does not say that this
// was the reason, and Pebble (2.1.7) can panic.
func wantFiles(dir string, most int) error {
	opened := make([]*os.File, 0, most)
	defer func() {
		for _, f := range opened {
			f.Close()
		}
	}()
	for range most {
		f, err := os.Open(dir)
		if err != nil {
			return fmt.Errorf("node: a start opens up to %d files: %w", most, err)
		}
		opened = append(opened, f)
	}
	return nil
}

// markTransient marks err as errDisk or errNoFiles if it says that the disk cannot be written, or that too many files are open.
func markTransient(err error) error {
	switch {
	case errors.Is(err, errDisk), errors.Is(err, errNoFiles): // marked already
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return fmt.Errorf("%w: %w", errNoFiles, err)
	// A store also fails when Pebble finds damage in the background, which a restart does not repair.
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, streams.ErrNotSynced), errors.Is(err, wal.ErrFailed) && !errors.Is(err, wal.ErrCorrupt):
		return fmt.Errorf("%w: %w", errDisk, err)
	}
	return err
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
