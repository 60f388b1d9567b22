package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/internal/natstest"
	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
	"github.com/carillon-scheduler/carillon/wal"
)

// emptyState saves the state of a service of one partition that has no jobs.
func emptyState(t *testing.T) (target archive.Target, id string) {
	t.Helper()
	store, err := wal.OpenStore(wal.Options{Dir: t.TempDir(), Profile: wal.ProfileTable})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	table := snapshot.OpenTable(store)
	build, err := table.Begin(0)
	if err != nil {
		t.Fatal(err)
	}
	build.State(1, []byte("state"))
	if _, err := build.Commit(); err != nil {
		t.Fatal(err)
	}
	target = archive.OpenDir(nil, filepath.Join(t.TempDir(), "archive"))
	saved, err := archive.Save(t.Context(), table, target, archive.SaveOptions{Partitions: 1, Prefix: "carillon"})
	if err != nil {
		t.Fatal(err)
	}
	return target, saved.Manifest.ID
}

// A node that is killed while it takes another's state leaves stores that are whole or not there: at no moment does one
// lack some of its files.
func TestTakeStateLeavesWholeStores(t *testing.T) {
	target, id := emptyState(t)
	o := Options{Data: t.TempDir(), Prefix: "carillon"}.withDefaults()
	const files = 10_000 // so that their removal takes a while
	jobs := filepath.Join(o.Data, "jobs")
	if err := os.MkdirAll(jobs, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range files {
		if err := os.WriteFile(filepath.Join(jobs, "old-"+strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	taken := make(chan error, 1)
	go func() { taken <- takeState(t.Context(), target, id, o) }()
	for done := false; !done; {
		select {
		case err := <-taken:
			if err != nil {
				t.Fatal(err)
			}
			done = true
		default:
		}
		old, err := filepath.Glob(filepath.Join(jobs, "old-*"))
		if err != nil {
			t.Fatal(err)
		}
		if n := len(old); n > 0 && n < files {
			t.Fatalf("%d of %d files are left", n, files)
		}
	}
	if _, err := os.Stat(filepath.Join(o.Data, adopted)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", adopted, err)
	}
}

// A node that is to take another's state waits for a NATS that is away, whenever that goes; where NATS is there and no
// other node is, it ends.
func TestAdoptWaitsForNATS(t *testing.T) {
	behind := &leftBehindError{at: 1, first: 9, partitions: 1}
	o := Options{Data: t.TempDir(), Name: "late", NATS: "nats://" + natstest.FreeAddress(t)}.withDefaults()
	if err := adopt(t.Context(), o, behind); !errors.Is(err, errUnreachable) {
		t.Errorf("NATS is away from the start: %v", err)
	}
	ns := natstest.Start(t, &server.Options{JetStream: true})
	o.NATS = ns.ClientURL()
	if err := adopt(t.Context(), o, behind); !errors.Is(err, errNobody) || !errors.As(err, &behind) || errors.Is(err, errUnreachable) {
		t.Errorf("nobody is there: %v", err)
	}
	closed := make(chan struct{})
	nc, err := o.connect("", nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	ns.Shutdown()
	<-closed
	if id, err := requestState(t.Context(), nc, o, func() bool { return true }); !errors.Is(err, errUnreachable) {
		t.Errorf("NATS went while a state was asked for: %q, %v", id, err)
	}
}
