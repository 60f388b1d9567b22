package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/embedded"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/internal/faultfs"
	"github.com/carillon-scheduler/carillon/wal"
)

// SetFreeBytes replaces the function that returns how much room a disk has, for this process.
func SetFreeBytes(ask func(dir string) (uint64, error)) { freeBytes = ask }

// A store that fails when nobody waits for it ends the run. Here the note of a commit (SYNCED) fails, when the commit itself is on disk.
func TestStoresAreWatched(t *testing.T) {
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
		n := &Node{logStore: stores[0], jobStore: stores[1], fail: func(err error) { cancel(err) }}
		n.work.Go(func() { n.watchStores(ctx) })
		full.Store(true)
		if err := stores[i].Update(func(b *pebble.Batch) error { return b.Set([]byte("t"), nil, nil) }); err != nil {
			t.Errorf("%s: the commit itself: %v", name, err)
		}
		<-ctx.Done()
		if err := context.Cause(ctx); !errors.Is(err, errDisk) || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: the run ends with %v", name, err)
		}
		n.work.Wait()
	}
}

// A run that ends because of damage, even if a store found it in the background, is not started again as for a full or failing disk.
func TestDamageIsNoFullDisk(t *testing.T) {
	for err, restart := range map[error]bool{
		fmt.Errorf("%w: %w", wal.ErrFailed, syscall.ENOSPC): true,
		fmt.Errorf("%w: %w", wal.ErrFailed, syscall.EIO):    true,
		fmt.Errorf("%w: %w", wal.ErrFailed, wal.ErrCorrupt): false,
		fmt.Errorf("node: job table: %w", wal.ErrCorrupt):   false,
	} {
		if got := errors.Is(markTransient(err), errDisk); got != restart {
			t.Errorf("%v: started again: %v", err, got)
		}
		if once, twice := markTransient(err), markTransient(markTransient(err)); twice.Error() != once.Error() {
			t.Errorf("%v is told as %v", once, twice)
		}
	}
}

// What the log is told to be durable was synced after it was written: a stream that acknowledges before it writes may write
// an output after the first sync that follows its ack.
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
	wake := newAlarm(t)
	p := &partition{chain: engine.NewChain()}
	n := &Node{meters: newMeters(nil), alarm: wake}
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

	// What a lost chain took for stored may not be.
	next := engine.Acked{Output: 8, Seq: 11}
	p.chain.Resume(next.Seq, next.Output, nil)
	write("and output 8")
	sync(stored, 3)
	p.chain.Resume(next.Seq+1, next.Output+1, nil)
	p.chain.Lose()
	write("and perhaps output 9")
	sync(next, 4)
	sync(next, 4)

	// A sync that fails ends the run, as a failed sync of the local stores does: the node starts again in place.
	if err := os.Symlink("2.blk", filepath.Join(filepath.Dir(block), "2.blk")); err != nil { // a link to itself
		t.Fatal(err)
	}
	p.durable = engine.Acked{}
	if _, err := n.syncOutputs(p, outputs); !errors.Is(err, errDisk) || !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a sync that fails: %v", err)
	}
}

// Partitions that publish all the time are synced one after the other, evenly spread, and each again a whole pause after its
// last sync. An engine at rest is woken up once for all of them.
func TestSyncsAreSpread(t *testing.T) {
	const partitions = 8
	wake := newAlarm(t)
	dir := t.TempDir()
	n := &Node{meters: newMeters(nil), alarm: wake, server: &embedded.Server{}}
	n.fail = func(err error) { t.Error(err) }
	for i := range partitions {
		name := "CARILLON_OUT_" + strconv.Itoa(i)
		if err := os.MkdirAll(filepath.Join(dir, "A", "streams", name, "msgs"), 0o700); err != nil {
			t.Fatal(err)
		}
		stream, err := streams.NewFileSync(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		n.outputs = append(n.outputs, stream)
		n.partitions = append(n.partitions, &partition{number: i, chain: engine.NewChain()})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			n.syncing(ctx)
		}()
		defer func() {
			cancel()
			<-done
		}()
		var last time.Time // of all
		synced, count := make([]time.Time, partitions), 0
		for ms := range 3000 {
			synctest.Wait()
			for i, p := range n.partitions {
				p.out.Lock()
				stored := p.chain.Stored()
				if now := time.Now(); p.settling == stored && ms > 0 {
					count++
					if since := now.Sub(synced[i]); !synced[i].IsZero() && (since < syncPause || since > 2*syncPause) {
						t.Errorf("partition %d was synced %s after its last sync", i, since)
					}
					if since := now.Sub(last); !last.IsZero() && since < syncPause/partitions/2 {
						t.Errorf("partition %d was synced %s after another", i, since)
					}
					synced[i], last = now, now
				}
				if p.settling == stored { // there is always more
					p.chain.Resume(stored.Seq+1, stored.Output+1, nil)
				}
				p.out.Unlock()
			}
			time.Sleep(time.Millisecond)
		}
		if count < partitions*6 {
			t.Errorf("%d syncs in three seconds", count)
		}
	})
	began := time.Now()
	for _, c := range []struct {
		after  time.Duration
		synced bool
		next   time.Duration
	}{
		{0, false, syncPause},
		{syncPause - 1, false, syncPause},
		{syncPause, false, 2 * syncPause},
		{7*syncPause + 5, false, 8 * syncPause},
		{0, true, syncPause},
		{7*syncPause + 5, true, 8*syncPause + 5},
	} {
		if next := nextSync(began, began.Add(c.after), c.synced).Sub(began); next != c.next {
			t.Errorf("after %s, synced %v, it is looked at again after %s, not %s", c.after, c.synced, next, c.next)
		}
	}
}

// A loss that this node has yet to mark is no reason to be unready once another node has taken the partition over.
func TestLossOfOthers(t *testing.T) {
	p := &partition{number: 3, chain: engine.NewChain(), marker: 8, serving: true, run: 1}
	p.chain.Resume(9, 7, nil)
	n := &Node{o: Options{AcceptLoss: map[int]bool{3: true}}}
	if problem := n.problem(p); !strings.Contains(problem, "partition 3 has yet to mark the loss") {
		t.Errorf("it says %q", problem)
	}
	p.serving = false
	if problem := n.problem(p); problem != "" {
		t.Errorf("somebody else serves it, and it says %q", problem)
	}
}
