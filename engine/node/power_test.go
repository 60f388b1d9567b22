package node_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/node"
)

// Power failures of the whole node. Pebble is on its crashable file system in memory, which keeps some of what was
// not synced and drops the rest. Each file of the JetStream directory is cut at a point of its own. Or only one of the
// two is replaced by an older copy. Clients connect by way of a proxy that is cut first, so that they learn of nothing
// that came after. CARILLON_POWER is how many seeds are played, each with another order of disasters.
func TestPowerLoss(t *testing.T) {
	first := rand.Uint64N(1 << 32)
	for i := range envInt(t, "CARILLON_POWER", 2) {
		t.Run(fmt.Sprintf("seed=%d", first+uint64(i)), func(t *testing.T) {
			d := &disasters{rng: rand.New(rand.NewPCG(first+uint64(i), 0))}
			kinds := []disaster{cutBoth, olderStreams, olderStore}
			d.rng.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
			d.play(t, kinds, false)
		})
	}
}

// What the embedded server has stored is synced soon after. Otherwise it would count as stored for good, and be gone after
// a power failure.
func TestOutputsAreSynced(t *testing.T) {
	r := run(t, base(t))
	const synced = "carillon_output_blocks_synced_total"
	if n := metric(t, r.HTTP, synced); n != 0 {
		t.Fatalf("%.0f blocks were synced before there was an output", n)
	}
	c := carillon.Connect(dial(t, r.NATS))
	for i := range 20 { // of several partitions
		job := carillon.Job{ID: fmt.Sprintf("synced-%d", i), Schedule: "@at 2020-01-01T00:00:00Z"}
		if _, err := c.Put(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the output of "+job.ID+" is synced", func() bool { return metric(t, r.HTTP, synced) >= float64(i+1) })
	}
}

// If a copy is older than the older checkpoint, nothing is guessed: that is a loud stop. With the newer copy in
// its place again nothing is missing.
func TestPowerLossOutOfReach(t *testing.T) {
	d := &disasters{rng: rand.New(rand.NewPCG(rand.Uint64(), 0))}
	d.play(t, []disaster{olderStreams, olderStore}, true)
}

type disaster string

const (
	cutBoth      disaster = "both cut"
	olderStreams disaster = "the streams put back"
	olderStore   disaster = "the store put back"
)

// disasters happen to one data directory, whose local log and job table are in memory.
type disasters struct {
	rng   *rand.Rand
	o     node.Options
	disk  *vfs.MemFS // of the local log and the job table
	proxy *proxy

	linking sync.Mutex
	r       *running
}

// state is a data directory at a moment.
type state struct {
	from, at time.Time // when the copy was begun, and when it was complete
	streams  string    // a copy of the JetStream directory
	disk     *vfs.MemFS
}

// slowRounds is how many rounds of one play are tried again because they were too slow.
const slowRounds = 10

func (d *disasters) play(t *testing.T, kinds []disaster, outOfReach bool) {
	s := settings{Data: t.TempDir(), Partitions: 4, CheckpointEvery: 2 * time.Second}
	if outOfReach {
		s.CheckpointEvery = 100 * time.Millisecond
	}
	d.o, d.disk = s.options(), vfs.NewCrashableMem()
	d.mount()
	syncedDir(t, d.disk, filepath.Join(d.o.Data, "log"))
	syncedDir(t, d.disk, filepath.Join(d.o.Data, "jobs"))
	d.r = run(t, d.o)
	d.proxy = startProxy(t, d.r.NATS[len("nats://"):])
	l := startLoad(t, d.proxy.url(), "p", false)
	var downs []span
	quick, slowly := 0, 0
	for len(kinds) > 0 {
		kind := kinds[0]
		time.Sleep(300*time.Millisecond + d.upTo(700*time.Millisecond)) // a random moment
		before := d.copy(t)
		if outOfReach {
			d.leaveBehind(t)
		} else {
			time.Sleep(d.upTo(700 * time.Millisecond)) // and another
		}
		down := span{from: now()}
		d.proxy.cut()
		after := d.copy(t)
		d.r.cancel() // what it does from here on goes to a disk that is not used again
		<-d.r.done
		if kind == olderStore { // the streams lose nothing then, not even what came while they were copied
			after.at = time.Now()
			after.streams = t.TempDir()
			copyTree(t, filepath.Join(d.o.Data, "nats"), after.streams)
		}
		// There is a checkpoint every two seconds, so the older of two is older than the copy that is put back, unless
		// this machine was slow: then the round is tried again.
		slow := !outOfReach && after.at.Sub(before.from) > s.CheckpointEvery
		switch {
		case outOfReach:
			d.stopsLoudly(t, kind, before, after)
			d.restore(t, after.streams, after.disk)
		case slow:
			d.restore(t, after.streams, after.disk)
		case kind == cutBoth:
			cut(t, after.streams, before.streams, d.rng)
			d.restore(t, after.streams, after.disk)
		case kind == olderStreams:
			d.restore(t, before.streams, after.disk)
		case kind == olderStore:
			d.restore(t, after.streams, before.disk)
		}
		d.r = run(t, d.o)
		d.proxy.to(d.r.NATS[len("nats://"):])
		down.to = now()
		downs = append(downs, down)
		t.Logf("%s, %s back, too slow: %t", kind, after.at.Sub(before.from).Round(time.Millisecond), slow)
		if slow && slowly < slowRounds {
			slowly++
			continue
		}
		if !slow {
			quick++
		}
		kinds = kinds[1:]
	}
	if quick == 0 {
		t.Error("no round was quick enough for anything to be put back")
	}
	l.verify(s.Partitions, downs...)
}

func (d *disasters) upTo(most time.Duration) time.Duration {
	return time.Duration(d.rng.Int64N(int64(most)))
}

// copy takes what a power failure would leave now. The streams are copied first: so they hold nothing that
// is not durable in the stores when these are copied.
func (d *disasters) copy(t testing.TB) state {
	s := state{from: time.Now(), streams: t.TempDir()}
	copyTree(t, filepath.Join(d.o.Data, "nats"), s.streams)
	d.linking.Lock()
	defer d.linking.Unlock()
	s.disk = d.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: d.rng.IntN(101), RNG: rand.New(rand.NewPCG(d.rng.Uint64(), 0))})
	s.at = time.Now()
	return s
}

// restore makes a stopped node's directory of copies, which stay as they are.
func (d *disasters) restore(t testing.TB, streams string, disk *vfs.MemFS) {
	replace(t, filepath.Join(d.o.Data, "nats"), streams)
	d.disk = disk.CrashClone(vfs.CrashCloneCfg{}) // all of it is synced
	d.mount()
}

// mount puts both stores on the disk.
func (d *disasters) mount() {
	fs := linkFS{d.disk, &d.linking}
	d.o.LogStore.FS, d.o.JobStore.FS = fs, fs
}

// linkFS keeps Link and CrashClone from running at the same time, which would be a deadlock: MemFS.Link takes the lock that
// CrashClone waits for, twice.
type linkFS struct {
	vfs.FS
	mu *sync.Mutex
}

func (f linkFS) Link(oldname, newname string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.FS.Link(oldname, newname)
}

// leaveBehind waits until all partitions have both checkpoints, and the log begins, beyond what is stored
// now. A checkpoint holds the outputs that are not known to be stored for good, so it waits for these first.
func (d *disasters) leaveBehind(t testing.TB) {
	t.Helper()
	c := client(t, d.r.NATS)
	then := status(t, c).Partitions
	var head uint64
	eventually(t, "outputs are stored for good", func() bool {
		good := true
		for i, p := range status(t, c).Partitions {
			head = max(head, p.Position)
			good = good && p.Outputs-p.Outbox > then[i].Outputs
		}
		return good
	})
	js, err := jetstream.New(dial(t, d.r.NATS))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the log is cut", func() bool {
		log, err := js.Stream(t.Context(), c.Names().LogStream())
		if err != nil {
			t.Fatal(err)
		}
		return log.CachedInfo().State.FirstSeq > head+1
	})
}

func (d *disasters) stopsLoudly(t testing.TB, kind disaster, before, after state) {
	t.Helper()
	if kind == olderStore {
		d.restore(t, after.streams, before.disk)
		words(t, refused(t, d.o), "the log begins at", "but it was read only to")
		return
	}
	d.restore(t, before.streams, after.disk)
	r := run(t, d.o)
	c := client(t, r.NATS)
	for p := range d.o.Partitions {
		stopped(t, r, c, p, "the output stream lost outputs", "no checkpoint reaches back to output")
	}
	r.stop(t)
}

// cut makes of a directory what a power failure may leave. synced is a copy of how it was when it was last synced.
func cut(t testing.TB, dir, synced string, rng *rand.Rand) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rest, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		was, err := os.ReadFile(filepath.Join(synced, rest))
		if os.IsNotExist(err) {
			// Made since: streams make new blocks, whose names may not have reached the disk either.
			info, err := d.Info()
			if err != nil {
				return err
			}
			if filepath.Ext(path) == ".blk" && rng.IntN(3) == 0 {
				return os.Remove(path)
			}
			return os.Truncate(path, rng.Int64N(info.Size()+1))
		}
		if err != nil {
			return err
		}
		is, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if len(is) > len(was) && string(is[:len(was)]) == string(was) {
			return os.Truncate(path, int64(len(was))+rng.Int64N(int64(len(is)-len(was))+1))
		}
		if rng.IntN(2) == 0 {
			return os.WriteFile(path, was, 0o600)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// syncedDir makes a directory, and syncs it and all directories above it.
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

// proxy forwards connections to an address until it is cut, and later to another address.
type proxy struct {
	t        testing.TB
	listener net.Listener
	mu       sync.Mutex
	address  string        // "" while it is cut
	deaf     bool          // what is sent is lost
	late     time.Duration // what is sent takes so long
	astray   []string      // what is sent to these subjects goes nowhere
	alias    alias
	open     map[net.Conn]bool
}

func startProxy(t testing.TB, address string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &proxy{t: t, listener: l, address: address, open: make(map[net.Conn]bool)}
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

// url is where clients find the server by way of the proxy.
func (w *proxy) url() string { return "nats://" + w.listener.Addr().String() }

// connected tells whether any connection goes by way of the proxy.
func (w *proxy) connected() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.open) > 0
}

func (w *proxy) connect(c net.Conn) {
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
		var renamed renamed
		way, arrived := make(chan parcel, 4096), make(chan struct{})
		go func() {
			defer close(arrived)
			for p := range way {
				time.Sleep(time.Until(p.due)) // the way takes so long
				if _, err := to.Write(p.b); err != nil {
					from.Close()
				}
			}
		}()
		_, _ = io.Copy(writerFunc(func(b []byte) (int, error) { // ends when either is closed
			w.mu.Lock()
			deaf, late, astray, alias := w.deaf, w.late, w.astray, w.alias
			w.mu.Unlock()
			if to == c {
				alias.here, alias.there = alias.there, alias.here
			}
			n := len(b)
			b = renamed.pass(b, alias)
			if to == d { // what comes from the server stays as it is
				for _, subject := range astray {
					b = bytes.ReplaceAll(b, []byte(subject), []byte(nowhere(subject)))
				}
			}
			if deaf {
				return n, nil
			}
			way <- parcel{time.Now().Add(late), slices.Clone(b)}
			return n, nil
		}), from)
		close(way)
		<-arrived
		to.Close()
		from.Close()
	}
	go forward(c, d)
	go forward(d, c)
}

// parcel is what is on its way through a proxy.
type parcel struct {
	due time.Time
	b   []byte
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// alias is a word that is replaced by another one of the same length beyond a proxy.
type alias struct{ here, there string }

// renamed holds the beginning of such a word, which was at the end of what has come so far, until the rest comes.
type renamed struct{ held []byte }

func (r *renamed) pass(b []byte, a alias) []byte {
	b = append(r.held, b...)
	r.held = nil
	if a.here == "" {
		return b
	}
	b = bytes.ReplaceAll(b, []byte(a.here), []byte(a.there))
	for n := min(len(a.here)-1, len(b)); n > 0; n-- {
		if strings.HasPrefix(a.here, string(b[len(b)-n:])) {
			r.held = slices.Clone(b[len(b)-n:])
			return b[:len(b)-n]
		}
	}
	return b
}

// rename replaces one word by another on the way to the server, and that one by the first on the way back; "" ends it.
func (w *proxy) rename(here, there string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alias = alias{here, there}
}

// swallow loses what either side sends from now on, until the proxy is cut.
func (w *proxy) swallow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deaf = true
}

// delay has what either side sends from now on arrive later.
func (w *proxy) delay(late time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.late = late
}

// divert sends requests to these subjects nowhere, until it is called with others or none.
func (w *proxy) divert(subjects ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.astray = subjects
}

// nowhere returns the subject to which diverted requests go.
func nowhere(subject string) string { return strings.Repeat("x", len(subject)) }

func (w *proxy) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.address, w.deaf = "", false
	for c := range w.open {
		c.Close()
	}
	clear(w.open)
}

func (w *proxy) to(address string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.address = address
}
