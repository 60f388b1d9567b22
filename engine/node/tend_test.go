package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/internal/faultfs"
	"github.com/carillon-scheduler/carillon/wal"
)

// A store that fails when nobody waits for it ends the run: here by the note of a commit that is on disk, and done.
func TestStoresHeeded(t *testing.T) {
	for i, name := range []string{"log", "jobs"} {
		var full atomic.Bool
		disk := faultfs.Wrap(vfs.NewMem(), func(op errorfs.Op) error {
			if full.Load() && filepath.Base(op.Path) == "SYNCED" {
				return syscall.ENOSPC
			}
			return nil
		})
		var stores [2]*wal.Store
		for j := range stores {
			o := wal.Options{Dir: "store"}
			if o.FS = vfs.NewMem(); i == j {
				o.FS = disk
			}
			s, err := wal.OpenStore(o)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			stores[j] = s
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		n := &Node{store: stores[0], jobs: stores[1], fail: func(err error) { cancel(err) }}
		n.work.Go(func() { n.heedStores(ctx) })
		full.Store(true)
		if err := stores[i].Update(func(b *pebble.Batch) error { return b.Set([]byte("t"), nil, nil) }); err != nil {
			t.Errorf("%s: the commit itself: %v", name, err)
		}
		<-ctx.Done()
		if err := context.Cause(ctx); !errors.Is(err, errNoRoom) || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: the run ends with %v", name, err)
		}
		n.work.Wait()
	}
}

// What the log is told to be durable was synced after it was written: a stream that acknowledges before it writes may have
// written it behind the sync that came with the ack.
func TestDurableIsSynced(t *testing.T) {
	dir := t.TempDir()
	block := filepath.Join(dir, "A", "streams", "CARILLON_OUT_0", "msgs", "1.blk")
	if err := os.MkdirAll(filepath.Dir(block), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(data string) {
		t.Helper()
		if err := os.WriteFile(block, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("before")
	outputs, err := streams.NewFileSync(dir, "CARILLON_OUT_0")
	if err != nil {
		t.Fatal(err)
	}
	bell, err := newAlarm()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(bell.close)
	p := &partition{chain: engine.NewChain()}
	n := &Node{meters: newMeters(nil), bell: bell}
	stored := engine.Acked{Output: 7, Seq: 9}
	p.chain.Resume(stored.Seq, stored.Output, nil)
	sync := func(durable engine.Acked, blocks uint64) {
		t.Helper()
		before := uint64(n.meters.blocksSynced.Get())
		if synced, err := n.syncOutputs(p, outputs); err != nil || synced != (blocks > before) {
			t.Fatal(synced, err)
		}
		if p.durable != durable || uint64(n.meters.blocksSynced.Get()) != blocks {
			t.Fatalf("%+v is durable, and %d blocks were synced; want %+v and %d", p.durable, n.meters.blocksSynced.Get(), durable, blocks)
		}
	}
	sync(engine.Acked{}, 1)
	write("and output 7")
	sync(stored, 2)
	write("something that nobody waits for")
	sync(stored, 2)
}
