package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// A node that is killed while it gives up its state leaves stores that are complete or not there at all: at no moment does
// one lack some of its files.
func TestRemoveLeavesWholeStores(t *testing.T) {
	o := Options{Data: t.TempDir()}
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
	emptied := make(chan error, 1)
	go func() { emptied <- removeStores(o) }()
	for done := false; !done; {
		select {
		case err := <-emptied:
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
			// The store may have been put aside while it was listed.
			if _, err := os.Stat(jobs); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("%d of %d files are left", n, files)
			}
		}
	}
	left, err := os.ReadDir(o.Data)
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A node that is silent at the moment may still say that it follows what a new node needs: on a busy host its beats are late.
func TestOthersWait(t *testing.T) {
	self, other := cluster.Beat{Node: cluster.Node{Name: "a"}}, cluster.Beat{Node: cluster.Node{Name: "b"}}
	for _, c := range []struct {
		v    cluster.View
		want time.Duration
	}{
		{cluster.View{Members: []cluster.Beat{self}}, aloneTimeout},
		{cluster.View{Members: []cluster.Beat{self, other}}, othersTimeout},
		{cluster.View{Members: []cluster.Beat{self}, Silent: []cluster.Beat{other}}, othersTimeout},
	} {
		if got := othersWait(c.v); got != c.want {
			t.Errorf("%d live and %d silent: waits %s", len(c.v.Members), len(c.v.Silent), got)
		}
	}
}

// A node that was left behind waits for NATS if that cannot be reached. If NATS is there but no other node is, it ends, and keeps
// what it has.
func TestResetWaitsForNATS(t *testing.T) {
	behind := &leftBehindError{at: 1, first: 9, partitions: 1, followed: []int{0}}
	o := Options{Data: t.TempDir(), Name: "late", NATS: "nats://" + natstest.FreeAddress(t)}.withDefaults()
	jobs := filepath.Join(o.Data, "jobs")
	if err := os.Mkdir(jobs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := resetData(t.Context(), o, behind); !errors.Is(err, errUnreachable) {
		t.Errorf("NATS is away from the start: %v", err)
	}
	ns := natstest.Start(t, &server.Options{JetStream: true})
	o.NATS = ns.ClientURL()
	if err := resetData(t.Context(), o, behind); !errors.As(err, &behind) || errors.Is(err, errUnreachable) || !strings.Contains(err.Error(), "no other node follows partition 0") {
		t.Errorf("nobody is there: %v", err)
	}
	if _, err := os.Stat(jobs); err != nil {
		t.Errorf("it has given up what nobody else has: %v", err)
	}
	replicated, fresh := *behind, o
	replicated.replicas, fresh.Stream = 3, "FRESH" // the nodes' bucket is made with as many replicas as the log stream has
	if err := resetData(t.Context(), fresh, &replicated); !strings.Contains(err.Error(), "replicas > 1 not supported") {
		t.Errorf("the bucket is made with fewer replicas than the log has: %v", err)
	}
	// With another node, which does not follow the partition either, it waits for longer than NATS takes to shut down.
	nc, err := nats.Connect(ns.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	other, err := cluster.Join(t.Context(), js, cluster.Options{
		Bucket: nodesBucket(o.Stream), Name: "other", Partitions: 1, Report: func() cluster.Report { return cluster.Report{Draining: true} },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ended := make(chan error, 1)
	go func() { ended <- resetData(t.Context(), o, behind) }()
	for v := range other.Views() {
		if len(v.Members) == 2 {
			break // it has joined
		}
	}
	ns.Shutdown()
	if err := <-ended; !errors.Is(err, errUnreachable) {
		t.Errorf("NATS went while others were waited for: %v", err)
	}
}
