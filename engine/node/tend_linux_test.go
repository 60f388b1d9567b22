package node

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/internal/smalldisk"
)

// If a store has a disk of its own that is full, the node does not fire, and is not started again, until there is room on that, too.
func TestRoomOfStores(t *testing.T) {
	small, ok := smalldisk.Mount(t, 1)
	if !ok {
		return
	}
	for _, store := range []string{"log", "jobs", "nats"} {
		n := &Node{o: Options{Data: t.TempDir(), FreeForJobs: 3 << 20, FreeForTicks: 2 << 20}, log: slog.New(slog.DiscardHandler)}
		var err error
		if n.dataDir, err = os.Open(n.o.Data); err != nil {
			t.Fatal(err)
		}
		defer n.dataDir.Close()
		again := func() (is bool) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				is = n.waitForRoom(ctx)
			})
			return is
		}
		looks := func(full bool) {
			t.Helper()
			if err := n.watchDisk(t.Context()); err != nil || n.holdTicks.Load() != full || n.refuseJobs.Load() != full || again() == full {
				t.Errorf("%s full: %t; firing waits: %t, new jobs are refused: %t, %v", store, full, n.holdTicks.Load(), n.refuseJobs.Load(), err)
			}
		}
		looks(false)
		if err := os.Symlink(small, filepath.Join(n.o.Data, store)); err != nil {
			t.Fatal(err)
		}
		looks(true)
	}
}
