package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/engine/embedded"
	"github.com/carillon-scheduler/carillon/engine/servers"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// A start that finds no leader, or no NATS, begins anew. One that is refused for good does not.
func TestUnreachable(t *testing.T) {
	_, unknown := servers.Config{URL: "a..b:4222"}.Connect("") // not a valid name, so that no name server is asked
	for _, err := range []error{
		unknown,
		servers.ErrNotAccepting,
		nats.ErrNoServers, jetstream.ErrNoStreamResponse, &jetstream.APIError{Code: 503, ErrorCode: 10008}, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED},
		&jetstream.APIError{Code: 400, ErrorCode: noPeers, Description: "no suitable peers for placement, peer offline"},
	} {
		if !errors.Is(unreachable(fmt.Errorf("cluster: join: %w", err)), errUnreachable) {
			t.Errorf("%v is for good", err)
		}
	}
	for _, err := range []error{
		jetstream.ErrStreamNotFound, &jetstream.APIError{Code: 400, ErrorCode: 10052},
		&jetstream.APIError{Code: 400, ErrorCode: noPeers, Description: "no suitable peers for placement, insufficient storage"}, syscall.ENOSPC,
		&net.OpError{Op: "remote error", Err: tls.AlertError(116)}, // a certificate is required
	} {
		if errors.Is(unreachable(err), errUnreachable) {
			t.Errorf("%v is not for good", err)
		}
	}
}

// A start needs a file for the output stream of each partition, whether the stream is made now or is there already.
func TestStartFiles(t *testing.T) {
	n := &Node{o: Options{Data: filepath.Join(t.TempDir(), "data[1]"), Stream: "CARILLON"}}
	wants := func(want int) {
		t.Helper()
		if got := n.startFiles(); got != want {
			t.Errorf("%d files, want %d", got, want)
		}
	}
	wants(48)
	for p := range 20 {
		if err := os.MkdirAll(filepath.Join(n.o.Data, "nats", "jetstream", "$G", "streams", fmt.Sprintf("CARILLON_OUT_%d", p)), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	wants(60)
	n.o.Partitions = 30
	wants(70)
	n.o.NATS = "nats://127.0.0.1:1" // then the files are another process's
	wants(48)
}

// The embedded server that does not answer could not write, or waits for the disk: a start begins anew, as for any full disk.
func TestUnanswered(t *testing.T) {
	server, err := embedded.Start(embedded.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	nc, err := server.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	s := streamsOn(t, nc)
	open := &Node{server: server, streams: s}
	opening, external := &Node{server: server}, &Node{o: Options{NATS: "nats://127.0.0.1:1"}, streams: s}
	full := fmt.Errorf("%w: no room", errDisk)
	for _, c := range []struct {
		n    *Node
		err  error
		is   error  // what it is marked as
		text string // after the mark; "": it is as before
	}{
		{open, streams.ErrTimeout, errDisk, "nats-server does not answer"},
		{open, context.DeadlineExceeded, errDisk, "nats-server does not answer"},
		{open, fmt.Errorf("%w: %w", full, streams.ErrTimeout), errDisk, ""},
		{open, streams.ErrNoSpace, nil, ""},
		{open, &streams.DiffersError{}, nil, ""},
		{opening, context.DeadlineExceeded, nil, ""}, // it may be a right that is missing
		{external, streams.ErrTimeout, errUnreachable, streams.ErrTimeout.Error()},
	} {
		err := fmt.Errorf("node: claim partition 0: %w", c.err)
		got := c.n.unreachable(err)
		if c.text == "" && got != err || !errors.Is(got, c.err) || c.is != nil && (!errors.Is(got, c.is) || !strings.Contains(got.Error(), c.text)) {
			t.Errorf("%v is told as %v", err, got)
		}
	}
}
