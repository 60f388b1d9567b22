package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/carillon-scheduler/carillon/wal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, err, class error) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Fatalf("got error %v, want %v", err, class)
	}
}

func open(t testing.TB, opts wal.Options) *wal.Store {
	t.Helper()
	s, err := wal.OpenStore(opts)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// saved is a checkpoint as a test knows it.
type saved struct {
	Position uint64
	Chunks   []string
}

func random(rng *rand.Rand, position uint64, longest int) saved {
	s := saved{Position: position}
	noise := rand.NewChaCha8([32]byte{byte(rng.Uint32())})
	for range rng.IntN(6) {
		b := make([]byte, rng.IntN(longest))
		_, _ = noise.Read(b)
		s.Chunks = append(s.Chunks, string(b))
	}
	return s
}

func (s saved) begin(c *Checkpoints, partition uint32) (*Writer, error) {
	w, err := c.Create(partition, s.Position)
	if err != nil {
		return nil, err
	}
	for _, chunk := range s.Chunks {
		if err := w.Write([]byte(chunk)); err != nil {
			return w, err
		}
	}
	return w, nil
}

func (s saved) commit(c *Checkpoints, partition uint32) error {
	w, err := s.begin(c, partition)
	if err != nil {
		if w != nil {
			w.Abort()
		}
		return err
	}
	return w.Commit()
}

// load reads a partition's checkpoints, newest first.
func load(c *Checkpoints, partition uint32) ([]saved, error) {
	list, err := c.List(partition)
	if err != nil {
		return nil, err
	}
	var out []saved
	for _, info := range list {
		s := saved{Position: info.Position}
		size := 0
		if err := c.Read(info, func(chunk []byte) error {
			s.Chunks = append(s.Chunks, string(chunk))
			size += len(chunk)
			return nil
		}); err != nil {
			return nil, err
		}
		if info.Partition != partition || int(info.Chunks) != len(s.Chunks) || int(info.Bytes) != size {
			return nil, fmt.Errorf("%+v holds %d chunks of %d bytes", info, len(s.Chunks), size)
		}
		out = append(out, s)
	}
	return out, nil
}

func TestErrors(t *testing.T) {
	opts := wal.Options{Dir: t.TempDir()}
	store := open(t, opts)
	c := Open(store)
	list, err := c.List(1)
	must(t, err)
	if len(list) != 0 {
		t.Fatalf("a new store holds %v", list)
	}
	w, err := c.Create(1, 10)
	must(t, err)
	_, err = c.Create(1, 11)
	wantErr(t, err, ErrBusy)
	if err := w.Write(make([]byte, MaxChunk+1)); err == nil {
		t.Error("a chunk above MaxChunk was taken")
	}
	if err := w.Commit(); err == nil {
		t.Error("committed after a failed write")
	}
	if w, err = c.Create(1, 10); err != nil {
		t.Fatal(err)
	}
	must(t, w.Write(make([]byte, MaxChunk)))
	w.Abort()
	w.Abort()
	if w.Write(nil) == nil || w.Commit() == nil {
		t.Error("an aborted checkpoint goes on")
	}

	// An empty one is one.
	for position := range uint64(3) {
		must(t, saved{Position: position}.commit(c, 1))
	}
	list, err = c.List(1)
	must(t, err)
	if len(list) != 2 || list[0].Position != 2 || list[1].Position != 1 || list[0].ID != list[1].ID+1 {
		t.Fatalf("kept %+v", list)
	}
	wantErr(t, c.Read(Info{Partition: 1, ID: list[1].ID - 1}, nil), ErrGone)

	w, err = c.Create(7, 1)
	must(t, err)
	must(t, w.Write([]byte("x")))
	must(t, store.Close())
	wantErr(t, w.Commit(), wal.ErrClosed)
	_, err = c.List(1)
	wantErr(t, err, wal.ErrClosed)
	_, err = c.Create(1, 1)
	wantErr(t, err, wal.ErrClosed)
}

// Large enough for several tables.
func TestLarge(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 150 MB")
	}
	c := Open(open(t, wal.Options{Dir: t.TempDir()}))
	w, err := c.Create(0, 1)
	must(t, err)
	chunk := make([]byte, MaxChunk)
	rng := rand.NewChaCha8([32]byte{1})
	for range 150 {
		_, _ = rng.Read(chunk)
		must(t, w.Write(chunk))
	}
	must(t, w.Commit())
	if len(w.tables) < 3 {
		t.Fatalf("%d tables", len(w.tables))
	}
	list, err := c.List(0)
	must(t, err)
	rng = rand.NewChaCha8([32]byte{1})
	must(t, c.Read(list[0], func(got []byte) error {
		_, _ = rng.Read(chunk)
		if !bytes.Equal(got, chunk) {
			return errors.New("another chunk")
		}
		return nil
	}))
}

// Against a map of lists, with aborts and restarts.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		opts := wal.Options{Dir: "db", FS: vfs.NewMem(), MemTableBytes: 64 << 10}
		store, err := wal.OpenStore(opts)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = store.Close() }()
		c := Open(store)
		model := map[uint32][]saved{}
		position := uint64(0)
		draw := func(t *rapid.T) (uint32, saved) {
			position++
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
			p := rapid.SampledFrom([]uint32{0, 1, 2, 1<<32 - 1}).Draw(t, "partition")
			return p, random(rng, position, 3000)
		}
		t.Repeat(map[string]func(*rapid.T){
			"commit": func(t *rapid.T) {
				p, s := draw(t)
				if err := s.commit(c, p); err != nil {
					t.Fatal(err)
				}
				model[p] = append([]saved{s}, model[p][:min(1, len(model[p]))]...)
			},
			"abort": func(t *rapid.T) {
				p, s := draw(t)
				w, err := s.begin(c, p)
				if err != nil {
					t.Fatal(err)
				}
				w.Abort()
			},
			"reopen": func(t *rapid.T) {
				p, s := draw(t)
				w, err := s.begin(c, p)
				if err != nil {
					t.Fatal(err)
				}
				if err := store.Close(); err != nil {
					t.Fatal(err)
				}
				w.Abort() // too late to remove its files: the store does when it opens
				if store, err = wal.OpenStore(opts); err != nil {
					t.Fatal(err)
				}
				c = Open(store)
			},
			"": func(t *rapid.T) {
				for p, want := range model {
					got, err := load(c, p)
					if err != nil {
						t.Fatal(err)
					}
					if d := cmp.Diff(want, got); d != "" {
						t.Fatal(d)
					}
				}
			},
		})
	})
}

// Crashes at any moment of a checkpoint, with the log written beside it: what was committed is there, what
// was not is not, or whole.
func TestCrash(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 8
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 1))
		mem := vfs.NewCrashableMem()
		var committed []saved // newest first
		var doubtful *saved   // its Commit had not returned
		for life := range 5 {
			store, err := wal.OpenStore(wal.Options{Dir: "db", FS: mem, MemTableBytes: 64 << 10})
			if err != nil {
				t.Fatalf("seed %d, life %d: %v", seed, life, err)
			}
			c := Open(store)
			got, err := load(c, 5)
			if err != nil {
				t.Fatalf("seed %d, life %d: %v", seed, life, err)
			}
			if doubtful != nil && len(got) > 0 && got[0].Position == doubtful.Position {
				committed = append([]saved{*doubtful}, committed...)
			}
			if n := len(got); n > kept+1 || n < min(kept, len(committed)) {
				t.Fatalf("seed %d, life %d: %d checkpoints of %d", seed, life, n, len(committed))
			}
			for i := range got {
				if d := cmp.Diff(committed[i], got[i]); d != "" {
					t.Fatalf("seed %d, life %d: checkpoint %d: %s", seed, life, i, d)
				}
			}

			// The crash comes at some write of the file system, on whatever goroutine.
			left := atomic.Int64{}
			left.Store(1 << 40)
			var clone *vfs.MemFS
			var once sync.Once
			dice := rand.New(rand.NewPCG(seed, uint64(life)))
			crash := func() {
				once.Do(func() {
					clone = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 30, 100}[dice.IntN(3)], RNG: dice})
				})
			}
			must(t, store.Close())
			store, err = wal.OpenStore(wal.Options{
				Dir: "db", MemTableBytes: 64 << 10,
				FS: errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
					if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && left.Add(-1) == 0 {
						crash()
					}
					return nil
				})),
			})
			must(t, err)
			c = Open(store)
			crashed := func() bool { return left.Load() <= 0 }
			doubtful = nil
			left.Store(1 + rng.Int64N(150))
			for !crashed() {
				seq := store.Log().Last() + 1
				must(t, store.Log().Append([]wal.Record{{Seq: seq, Data: make([]byte, 500)}}))
				if crashed() {
					break
				}
				s := random(rng, seq, 20_000)
				must(t, s.commit(c, 5))
				if crashed() {
					doubtful = &s
					break
				}
				committed = append([]saved{s}, committed...)
				must(t, store.Log().Truncate(committed[min(1, len(committed)-1)].Position))
			}
			must(t, store.Close())
			crash() // has happened; waits for it
			mem = clone
			if clone == nil {
				t.Fatal("no crash")
			}
		}
	}
}

// A full disk in the middle of a checkpoint fails the store, and leaves the checkpoints before it.
func TestDiskFull(t *testing.T) {
	for n := int64(0); n < 60; n++ {
		var left atomic.Int64
		left.Store(1 << 40)
		opts := wal.Options{Dir: "db", FS: errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpCreate {
				if left.Add(-1) < 0 {
					return syscall.ENOSPC
				}
			}
			return nil
		}))}
		store := open(t, opts)
		first := saved{Position: 1, Chunks: []string{"one", "two"}}
		must(t, first.commit(Open(store), 0))
		left.Store(n)
		second := saved{Position: 2, Chunks: []string{"three", string(make([]byte, 100_000)), string(make([]byte, 100_000))}}
		err := second.commit(Open(store), 0)
		if err != nil {
			wantErr(t, err, wal.ErrFailed)
			wantErr(t, err, syscall.ENOSPC)
		}
		must(t, store.Close())
		left.Store(1 << 40)
		store = open(t, opts)
		got, lerr := load(Open(store), 0)
		must(t, lerr)
		want := []saved{first}
		if err == nil || len(got) == 2 {
			want = []saved{second, first}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("disk full after %d writes (%v): %s", n, err, d)
		}
		must(t, second.commit(Open(store), 0))
		must(t, store.Close())
	}
}

// Values damaged above Pebble's own checksums.
func TestCorruptValues(t *testing.T) {
	store := open(t, wal.Options{Dir: "db", FS: vfs.NewMem()})
	c := Open(store)
	s := saved{Position: 9, Chunks: []string{"zero", "one", "two"}}
	set := func(key, value []byte) {
		must(t, store.Update(func(b *pebble.Batch) error { return b.Set(key, value, nil) }))
	}
	for name, damage := range map[string]func(base []byte){
		"chunk 1": func(base []byte) {
			key := append(base, chunkKey, 0, 0, 0, 1)
			v := encodeChunk(key, []byte("one"))
			v[len(v)-1] ^= 1
			set(key, v)
		},
		"chunk 2 is missing": func(base []byte) { // 3 stands in its place
			must(t, store.Update(func(b *pebble.Batch) error {
				key := append(bytes.Clone(base), chunkKey, 0, 0, 0, 3)
				return errors.Join(b.Delete(append(bytes.Clone(base), chunkKey, 0, 0, 0, 2), nil),
					b.Set(key, encodeChunk(key, []byte("two")), nil))
			}))
		},
		"2 chunks of 7 bytes": func(base []byte) { // the last is gone
			must(t, store.Update(func(b *pebble.Batch) error {
				return b.Delete(append(bytes.Clone(base), chunkKey, 0, 0, 0, 2), nil)
			}))
		},
		"3 chunks of 10 bytes": func(base []byte) { // whole, but another
			key := append(base, chunkKey, 0, 0, 0, 1)
			set(key, encodeChunk(key, []byte("eno")))
		},
	} {
		must(t, s.commit(c, 1))
		list, err := c.List(1)
		must(t, err)
		damage(prefix(1, list[0].ID))
		err = c.Read(list[0], func([]byte) error { return nil })
		wantErr(t, err, wal.ErrCorrupt)
		if !bytes.Contains([]byte(err.Error()), []byte(name)) {
			t.Errorf("%q does not say %q", err, name)
		}
	}
	must(t, s.commit(c, 2))
	list, err := c.List(2)
	must(t, err)
	key := append(prefix(2, list[0].ID), summaryKey)
	v := encodeSummary(key, list[0])
	v[3] ^= 1
	set(key, v)
	_, err = c.List(2)
	wantErr(t, err, wal.ErrCorrupt)
	v[0] = summaryVersion + 1
	set(key, v)
	_, err = c.List(2)
	wantErr(t, err, wal.ErrVersion)
}

// Flipped bits in the tables of a real disk: an error, or exactly what was written.
func TestBitFlips(t *testing.T) {
	opts := wal.Options{Dir: t.TempDir()}
	store := open(t, opts)
	rng := rand.New(rand.NewPCG(1, 1))
	want := saved{Position: 3}
	for range 5 {
		want.Chunks = append(want.Chunks, fmt.Sprint(rng.Uint64(), string(make([]byte, 40_000))))
	}
	must(t, want.commit(Open(store), 0))
	must(t, store.Close())
	tables, err := fs.Glob(os.DirFS(opts.Dir), "*.sst")
	must(t, err)
	if len(tables) != 1 {
		t.Fatalf("tables %q", tables)
	}
	path := filepath.Join(opts.Dir, tables[0])
	data, err := os.ReadFile(path)
	must(t, err)
	found := 0
	for range 40 {
		damaged := bytes.Clone(data)
		damaged[rng.IntN(len(damaged))] ^= 1 << rng.IntN(8)
		must(t, os.WriteFile(path, damaged, 0o644))
		store, err := wal.OpenStore(opts)
		if err == nil {
			var got []saved
			if got, err = load(Open(store), 0); err == nil {
				if d := cmp.Diff([]saved{want}, got); d != "" {
					t.Fatal(d)
				}
			}
			must(t, store.Close())
		}
		if err != nil {
			found++
			wantErr(t, err, wal.ErrCorrupt)
		}
		must(t, os.WriteFile(path, data, 0o644))
	}
	if found < 30 {
		t.Errorf("only %d of 40 flips were found", found)
	}
}

// The bytes of docs/formats/checkpoint-store.md.
func TestGolden(t *testing.T) {
	chunk := append(prefix(3, 9), chunkKey, 0, 0, 0, 1)
	summary := append(prefix(3, 9), summaryKey)
	whole := newContent()
	whole.add(nil)
	whole.add([]byte("hello"))
	info := Info{Position: 258, Chunks: 2, Bytes: 5, content: whole.d.Sum64()}
	doc, err := os.ReadFile("../docs/formats/checkpoint-store.md")
	must(t, err)
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"chunk key", chunk, "63 00 00 00 03 00 00 00 00 00 00 00 09 00 00 00 00 01"},
		{"summary key", summary, "63 00 00 00 03 00 00 00 00 00 00 00 09 ff"},
		{"chunk", encodeChunk(chunk, []byte("hello")), "01 ac 55 66 fa 81 f4 4c e5 68 65 6c 6c 6f"},
		{"summary", encodeSummary(summary, info), "01 00 00 00 00 00 00 01 02 00 00 00 02 00 00 00 00 00 00 00 05 88 16 d3 1b 6c d2 38 f5 9f 50 7d 3e 3e 45 fc 5c"},
	} {
		if got := fmt.Sprintf("% x", c.got); got != c.want {
			t.Errorf("%s is\n%s, want\n%s", c.name, got, c.want)
		}
		if !bytes.Contains(doc, []byte(c.want)) {
			t.Errorf("the document does not show the %s: %s", c.name, c.want)
		}
	}
	if got, err := decodeSummary(summary, encodeSummary(summary, info)); got != info || err != nil {
		t.Errorf("decoded %+v, %v", got, err)
	}
	if got, err := decodeChunk(chunk, encodeChunk(chunk, []byte("hello"))); string(got) != "hello" || err != nil {
		t.Errorf("decoded %q, %v", got, err)
	}
	_, err = decodeChunk(chunk, []byte{chunkVersion + 1})
	wantErr(t, err, wal.ErrVersion)
}

func FuzzDecode(f *testing.F) {
	key := append(prefix(3, 9), chunkKey, 0, 0, 0, 1)
	f.Add(encodeChunk(key, []byte("hello")))
	f.Add(encodeChunk(nil, []byte("hello")))
	f.Add(encodeSummary(key, Info{Position: 1, Chunks: 2, Bytes: 3}))
	f.Add([]byte{})
	f.Add([]byte{chunkVersion + 1})
	f.Fuzz(func(t *testing.T, v []byte) {
		if data, err := decodeChunk(key, v); err == nil {
			if !bytes.Equal(encodeChunk(key, data), v) {
				t.Fatalf("% x is no chunk's encoding", v)
			}
		} else if !errors.Is(err, wal.ErrCorrupt) && !errors.Is(err, wal.ErrVersion) {
			t.Fatalf("error without class: %v", err)
		}
		if info, err := decodeSummary(key, v); err == nil {
			if !bytes.Equal(encodeSummary(key, info), v) {
				t.Fatalf("% x is no summary's encoding", v)
			}
		} else if !errors.Is(err, wal.ErrCorrupt) && !errors.Is(err, wal.ErrVersion) {
			t.Fatalf("error without class: %v", err)
		}
	})
}
