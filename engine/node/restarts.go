package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/engine/servers"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/wal"
)

// What ends a run of a node and passes: Run starts it again in place.
var (
	errDisk    = errors.New("node: the disk cannot be written")              // it is full, or fails
	errNoFiles = errors.New("node: too many files and connections are open") // the start closes what clients of the embedded server hold

	// errUnreachable is of an external NATS at the start. Later on the connection comes back by itself.
	errUnreachable = errors.New("node: NATS cannot be reached")
	// errSmall passes once the process has run over that NATS: then somebody lowered the limit, and may raise it again.
	errSmall = errors.New("node: a trigger may be larger than what NATS takes")
)

// unreachable marks err if it says so of an external NATS.
func (n *Node) unreachable(err error) error {
	if n.o.NATS == "" {
		return err
	}
	return unreachable(err)
}

// unreachable marks err if it says that NATS cannot be reached, or JetStream has no leader just now.
func unreachable(err error) error {
	var network *net.OpError // not net.Error, which any error of a file is: syscall.Errno has its methods
	var refused *jetstream.APIError
	if errors.As(err, &network) && network.Op == "remote error" {
		return err // TLS: the server refuses this node, and will go on doing so
	}
	for _, e := range []error{
		nats.ErrNoServers, nats.ErrTimeout, nats.ErrNoResponders, jetstream.ErrNoStreamResponse,
		streams.ErrDisconnected, streams.ErrTimeout, context.DeadlineExceeded, servers.ErrTurnedAway,
	} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", errUnreachable, err)
		}
	}
	if errors.As(err, &network) || errors.As(err, &refused) && refused.Code == http.StatusServiceUnavailable {
		return fmt.Errorf("%w: %w", errUnreachable, err)
	}
	return err
}

// startFiles is how many more files a start is to be able to open: with eight partitions it takes some thirty, and one more for the
// output stream of each further one that the embedded server has.
func (n *Node) startFiles() int {
	partitions := 8
	if n.o.NATS == "" {
		// What cannot be listed has as many as usual: then hardly a file can be opened.
		made, _ := fs.Glob(os.DirFS(filepath.Join(n.o.Data, "nats", "jetstream")), "*/streams/"+n.o.Stream+"_OUT_*")
		partitions = max(partitions, n.o.Partitions, len(made))
	}
	return 40 + partitions
}

// wantFiles looks whether so many can be opened, dir over and over: of those that open them later nats-server does not say that it was
// this which failed, and Pebble (2.1.7) can panic.
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

// passing marks err if it says of this machine what passes: a disk that cannot be written, or too many open files.
func passing(err error) error {
	switch {
	case errors.Is(err, errDisk), errors.Is(err, errNoFiles): // marked where it was met
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return fmt.Errorf("%w: %w", errNoFiles, err)
	// A store also fails when Pebble meets damage in the background, which a restart does not heal.
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, streams.ErrNotSynced), errors.Is(err, wal.ErrFailed) && !errors.Is(err, wal.ErrCorrupt):
		return fmt.Errorf("%w: %w", errDisk, err)
	}
	return err
}
