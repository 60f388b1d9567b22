package node_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Power loss, for the whole node: Pebble on its crashable file system in memory, which keeps of what was
// not synced some and drops some; the JetStream directory as it happens to be just then, and cut. Clients
// stand behind a wire that is cut first, so that they know of nothing that came after.
func TestPowerLoss(t *testing.T) {
	s := settings{Data: t.TempDir(), Partitions: 4, CheckpointEvery: time.Second}
	disk := vfs.NewCrashableMem()
	o := s.options()
	o.Store.FS = disk
	syncedDir(t, disk, filepath.Join(o.Data, "log"))
	r := run(t, o)
	w := startWire(t, r.NATS[len("nats://"):])
	l := startLoad(t, "nats://"+w.listener.Addr().String(), "p", false)
	var downs []span
	for range kills(t, 4) {
		time.Sleep(300*time.Millisecond + rand.N(1200*time.Millisecond)) // a random moment
		down := span{from: now()}
		w.cut()
		// The streams first: in them is nothing that was not durable in the store by then.
		left := t.TempDir()
		copyTree(t, filepath.Join(o.Data, "nats"), left)
		crashed := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rand.IntN(101), RNG: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))})
		r.cancel() // what it does from here on is on another disk
		<-r.done

		replace(t, filepath.Join(o.Data, "nats"), left)
		disk = crashed
		o.Store.FS = disk
		r = run(t, o)
		w.to(r.NATS[len("nats://"):])
		down.to = now()
		downs = append(downs, down)
	}
	h, end := l.finish()
	h.downs = downs
	h.verify(t, allOutputs(t, l.nc, s.Partitions), end)
}

// syncedDir makes a directory that is on disk with all above it.
func syncedDir(t testing.TB, disk vfs.FS, dir string) {
	t.Helper()
	if err := disk.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		d, err := disk.OpenDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			t.Fatal(err)
		}
		if dir == filepath.Dir(dir) {
			return
		}
	}
}

// wire forwards connections until it is cut, and then to another address.
type wire struct {
	t        testing.TB
	listener net.Listener
	mu       sync.Mutex
	address  string // "" while it is cut
	open     map[net.Conn]bool
}

func startWire(t testing.TB, address string) *wire {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{t: t, listener: l, address: address, open: make(map[net.Conn]bool)}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			w.connect(c)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		w.cut()
	})
	return w
}

func (w *wire) connect(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.address == "" {
		c.Close()
		return
	}
	d, err := net.Dial("tcp", w.address)
	if err != nil {
		c.Close()
		return
	}
	w.open[c], w.open[d] = true, true
	forward := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // ends when either is closed
		to.Close()
		from.Close()
	}
	go forward(c, d)
	go forward(d, c)
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.address = ""
	for c := range w.open {
		c.Close()
	}
	clear(w.open)
}

func (w *wire) to(address string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.address = address
}
