package archive

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/carillon-scheduler/carillon/internal/leaktest"
	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/wal"
)

func TestMain(m *testing.M) {
	if what := os.Getenv("CARILLON_ARCHIVE_CHILD"); what != "" {
		child(what, os.Args[1:])
		return
	}
	// A goroutine of nats.go: if an object's Put ends before the goroutine that it made has begun, that one waits on a nil channel for
	// ever.
	leaktest.Main(m,
		goleak.IgnoreTopFunction("github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"))
}

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

// smallSizes make many blocks and frames of little data.
var smallSizes = sizes{frame: 200, least: 400, mean: 600, most: 4000}

// content is what a partition holds: pairs by room and key.
type content struct {
	Position uint64
	State    string
	Pairs    map[string]string // room and key in one
}

func (c content) clone() content {
	c.Pairs = maps.Clone(c.Pairs)
	return c
}

// mutate changes some pairs of the rooms w and i at random, adds some to s, and returns what the table has to change for that.
func (c content) mutate(t *snapshot.Table, p uint16, rng *rand.Rand, n int) (content, error) {
	c = c.clone()
	c.Position += 1 + rng.Uint64N(5)
	c.State = fmt.Sprint("state at ", c.Position)
	b, err := t.Begin(p)
	if err != nil {
		return c, err
	}
	b.State(c.Position, []byte(c.State))
	changed := map[string]bool{}
	for range n {
		room := "wi"[rng.IntN(2)]
		full := string(room) + fmt.Sprintf("%04d", rng.IntN(2*n))
		if changed[full] {
			continue
		}
		changed[full] = true
		var old, value []byte
		if was, ok := c.Pairs[full]; ok {
			old = []byte(was)
		}
		if rng.IntN(3) > 0 {
			value = fmt.Appendf(nil, "%d %x", c.Position, make([]byte, rng.IntN(60)))
		}
		b.Change(room, []byte(full[1:]), old, value)
		if value == nil {
			delete(c.Pairs, full)
		} else {
			c.Pairs[full] = string(value)
		}
	}
	for i := range n / 2 {
		key := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, c.Position), uint32(i))
		value := make([]byte, rng.IntN(80))
		for j := range value {
			value[j] = byte(rng.Uint32())
		}
		b.Append('s', key, value)
		c.Pairs["s"+string(key)] = string(value)
	}
	_, err = b.Commit()
	return c, err
}

func openTable(fsys vfs.FS, dir string) (*wal.Store, *snapshot.Table, error) {
	store, err := wal.OpenStore(wal.Options{Dir: dir, FS: fsys, Profile: wal.ProfileTable, MemTableBytes: 64 << 10})
	if err != nil {
		return nil, nil, err
	}
	return store, snapshot.OpenTable(store), nil
}

// readTable reads partitions as a test knows them.
func readTable(table *snapshot.Table, partitions int) ([]content, error) {
	var all []content
	for p := range partitions {
		c := content{Pairs: map[string]string{}}
		err := table.View(uint16(p), func(v *snapshot.View) error {
			state, err := v.State()
			if err != nil {
				return err
			}
			c.Position, c.State = v.Position, string(state)
			rooms, err := v.Rooms()
			for _, room := range rooms {
				if err == nil {
					err = v.Live(room, func(key, value []byte) error {
						c.Pairs[string(room)+string(key)] = string(value)
						return nil
					})
				}
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// restored reads the table in a data directory.
func restored(fsys vfs.FS, dir string, partitions int) ([]content, error) {
	store, table, err := openTable(fsys, fsys.PathJoin(dir, TableDir))
	if err != nil {
		return nil, err
	}
	all, err := readTable(table, partitions)
	return all, errors.Join(err, store.Close())
}

// clean verifies an archive, and fails if anything is wrong.
func clean(t Target) (*Verified, error) {
	v, err := Verify(context.Background(), t, nil, nil)
	if err == nil && len(v.Problems) > 0 {
		err = fmt.Errorf("problems: %v", v.Problems)
	}
	return v, err
}

// Saves, restores and prunes of a changing table in turn, compared with maps.
func TestModel(t *testing.T) {
	ctx := t.Context()
	rapid.Check(t, func(t *rapid.T) {
		check := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		const partitions = 2
		mem := vfs.NewMem()
		store, table, err := openTable(mem, "db")
		check(err)
		defer func() { check(store.Close()) }()
		target := OpenDir(mem, "archive")
		now := time.Unix(1_800_000_000, 0)
		live := []content{{}, {}}
		change := func(t *rapid.T, p int, n int) {
			if live[p].Pairs == nil {
				live[p].Pairs = map[string]string{}
			}
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 3))
			live[p], err = live[p].mutate(table, uint16(p), rng, n)
			check(err)
		}
		for p := range partitions {
			change(t, p, 50)
		}
		saved := map[string][]content{}
		var order []string // oldest first
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				change(t, rapid.IntRange(0, partitions-1).Draw(t, "partition"), rapid.IntRange(0, 100).Draw(t, "pairs"))
			},
			"save": func(t *rapid.T) {
				now = now.Add(rapid.SampledFrom([]time.Duration{time.Minute, -90 * time.Second}).Draw(t, "clock"))
				s, err := Save(ctx, table, target, SaveOptions{Partitions: partitions, Now: now, sizes: smallSizes})
				check(err)
				saved[s.Manifest.ID] = []content{live[0].clone(), live[1].clone()}
				order = append(order, s.Manifest.ID)
				again, err := Save(ctx, table, target, SaveOptions{Partitions: partitions, Now: s.Manifest.Time, sizes: smallSizes, Recheck: true})
				check(err)
				if again.Written != 0 || again.Manifest.ID != s.Manifest.ID {
					t.Fatalf("the same saved again: %+v", again)
				}
			},
			"restore": func(t *rapid.T) {
				if len(order) == 0 {
					t.Skip("nothing saved")
				}
				id := rapid.SampledFrom(order).Draw(t, "snapshot")
				name := id
				if id == order[len(order)-1] {
					name = ""
				}
				m, err := Restore(ctx, target, name, "new", RestoreOptions{FS: mem})
				check(err)
				got, err := restored(mem, "new", partitions)
				check(err)
				if d := cmp.Diff(saved[id], got); d != "" || m.ID != id {
					t.Fatalf("snapshot %s, got %s: %s", id, m.ID, d)
				}
				check(mem.RemoveAll("new"))
			},
			"prune": func(t *rapid.T) {
				keep := rapid.IntRange(1, 3).Draw(t, "keep")
				pruned, err := Prune(ctx, target, PruneOptions{Keep: keep, Now: now.Add(time.Second)})
				check(err)
				gone := max(0, len(order)-keep)
				for _, id := range order[:gone] {
					delete(saved, id)
				}
				dropped := slices.Clone(order[:gone])
				slices.Reverse(dropped)
				if !slices.Equal(pruned.Dropped, dropped) {
					t.Fatalf("dropped %q, want %q", pruned.Dropped, dropped)
				}
				order = order[gone:]
				v, err := clean(target)
				check(err)
				if v.Unused > 0 {
					t.Fatalf("%d blocks are unused after a prune", v.Unused)
				}
			},
			"": func(t *rapid.T) {
				v, err := clean(target)
				check(err)
				list, err := List(ctx, target)
				check(err)
				if v.Snapshots != len(order) || len(list) != len(order) {
					t.Fatalf("%d snapshots verified, %d listed, want %d", v.Snapshots, len(list), len(order))
				}
			},
		})
	})
}

// fixture makes an archive of one snapshot in memory, and returns its content.
func fixture(t testing.TB, mem vfs.FS, target Target, pairs int) []content {
	t.Helper()
	const partitions = 2
	store, table, err := openTable(mem, "db")
	must(t, err)
	rng := rand.New(rand.NewPCG(1, 2))
	var all []content
	for p := range partitions {
		c, err := content{Pairs: map[string]string{}}.mutate(table, uint16(p), rng, pairs)
		must(t, err)
		all = append(all, c)
	}
	_, err = Save(t.Context(), table, target, SaveOptions{
		Partitions: partitions, Prefix: "acme", Versions: Versions{"1.0", 2, "2026a"}, sizes: smallSizes,
		Now:  time.UnixMilli(1_800_000_000_123),
		Time: func(p uint16, state []byte) (time.Time, error) { return time.Unix(1_700_000_000+int64(p), 0), nil },
	})
	must(t, err)
	must(t, store.Close())
	return all
}

func TestManifestSays(t *testing.T) {
	mem := vfs.NewMem()
	target := OpenDir(mem, "archive")
	all := fixture(t, mem, target, 300)
	m, err := Get(t.Context(), target, "")
	must(t, err)
	if m.Prefix != "acme" || m.Versions != (Versions{"1.0", 2, "2026a"}) || m.Time.UnixMilli() != 1_800_000_000_123 || m.Format != 1 {
		t.Errorf("%+v", m)
	}
	pairs := uint64(0)
	for i, p := range m.Partitions {
		if p.Position != all[i].Position || string(p.State) != all[i].State || p.Time.Unix() != 1_700_000_000+int64(i) {
			t.Errorf("partition %d: %+v", i, p)
		}
		pairs += uint64(len(all[i].Pairs))
	}
	if got := m.Totals(); got.Pairs != pairs || got.Blocks < 20 {
		t.Errorf("totals %+v, want %d pairs", got, pairs)
	}
	if v, err := clean(target); err != nil || v.Pairs != pairs {
		t.Errorf("verified are %+v, %v, want %d pairs", v, err, pairs)
	}
	if _, err := Get(t.Context(), target, "20200101T000000.000Z-0011223344556677"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a snapshot that is not there: %v", err)
	}
}

// An intact block is compared with its manifest, and with the block before.
func TestBlocksOfRoom(t *testing.T) {
	for want, spoil := range map[string]func(*roomCheck, *Block){
		"":                            func(*roomCheck, *Block) {},
		"holds room 's'":              func(c *roomCheck, _ *Block) { c.room++ },
		"begins with key 02, not 01":  func(_ *roomCheck, b *Block) { b.First = []byte{1} },
		"not 3 of 20":                 func(_ *roomCheck, b *Block) { b.Pairs++ },
		"not 2 of 21":                 func(_ *roomCheck, b *Block) { b.Raw++ },
		"begins with key 02 after 02": func(c *roomCheck, _ *Block) { c.last = []byte{2} },
	} {
		c, b := roomCheck{room: 's', last: []byte{1}}, Block{First: []byte{2}, Pairs: 2, Raw: 20}
		spoil(&c, &b)
		err := c.take(&b, blockInfo{room: 's', first: []byte{2}, last: []byte{3}, pairs: 2, raw: 20})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A manifest that is intact, but out of order or wrong about its blocks, counts as damage in a verification and in a restore.
func TestManifestDiffers(t *testing.T) {
	ctx, mem := t.Context(), vfs.NewMem()
	target := OpenDir(mem, "archive")
	fixture(t, mem, target, 300)
	list, err := List(ctx, target)
	must(t, err)
	for what, spoil := range map[string]func(m *Manifest, r []Room){
		"a version below the first":  func(m *Manifest, _ []Room) { m.Format = 0 },
		"no partitions":              func(m *Manifest, _ []Room) { m.Partitions = nil },
		"a partition at another's":   func(m *Manifest, _ []Room) { m.Partitions[0].Partition = 1 },
		"one partition twice":        func(m *Manifest, _ []Room) { m.Format, m.Part, m.Partitions[1].Partition = FormatVersion, true, 0 },
		"a room of two characters":   func(_ *Manifest, r []Room) { r[len(r)-1].Room += "x" },
		"rooms in no order":          func(_ *Manifest, r []Room) { r[0], r[1] = r[1], r[0] },
		"a room without blocks":      func(_ *Manifest, r []Room) { r[0].Blocks, r[0].Pairs, r[0].Raw = nil, 0, 0 },
		"more pairs than the blocks": func(_ *Manifest, r []Room) { r[0].Pairs++ },
		"more pairs than a block":    func(_ *Manifest, r []Room) { r[0].Blocks[0].Pairs, r[0].Pairs = r[0].Blocks[0].Pairs+1, r[0].Pairs+1 },
		"blocks in no order":         func(_ *Manifest, r []Room) { r[0].Blocks[0], r[0].Blocks[1] = r[0].Blocks[1], r[0].Blocks[0] },
	} {
		m, err := get(ctx, target, list[0].ID)
		must(t, err)
		spoil(m, m.Partitions[0].Rooms)
		file, err := m.encode()
		must(t, err)
		must(t, target.Put(ctx, manifestName(m.ID), file))
		v, err := Verify(ctx, target, []string{m.ID}, nil)
		must(t, err)
		if len(v.Problems) == 0 || !errors.Is(v.Problems[0].Err, wal.ErrCorrupt) {
			t.Errorf("%s: a verification finds %v", what, v.Problems)
		}
		if _, err := Restore(ctx, target, m.ID, "new", RestoreOptions{FS: mem}); !errors.Is(err, wal.ErrCorrupt) {
			t.Errorf("%s: a restore says %v", what, err)
		}
	}
}

// Pairs are whole, and their keys ascend.
func TestPairsOfFrame(t *testing.T) {
	pairs := func(keys ...string) (raw []byte) {
		for _, key := range keys {
			raw = appendBytes(appendBytes(raw, []byte(key)), []byte("value"))
		}
		return raw
	}
	whole := pairs("a", "b")
	for want, raw := range map[string][]byte{
		"":                       whole,
		"without pairs":          nil,
		"key 61 comes after 62":  pairs("b", "a"),
		"key 61 comes after 61":  pairs("a", "a"),
		"pair 1 of the frame":    whole[:len(whole)-1],
		"pair 0 of the frame do": {200, 'a'},
	} {
		var i blockInfo
		_, err := i.take(raw)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// damage is a way to spoil a file.
type damage struct {
	name string
	file string
	at   int
	data []byte // after
}

// spoilt returns n ways to damage an archive, spread over all of its objects.
func spoilt(t *testing.T, target Target, n int, spoil func(rng *rand.Rand, data []byte) (at int, after []byte)) []damage {
	t.Helper()
	var objects []Object
	for _, folder := range []string{snapshotsFolder, blocksFolder} {
		list, err := target.List(t.Context(), folder)
		must(t, err)
		objects = append(objects, list...)
	}
	rng := rand.New(rand.NewPCG(5, 6))
	var all []damage
	for i := range n {
		o := objects[rng.IntN(len(objects))]
		if i < len(objects) {
			o = objects[i]
		}
		data, err := target.Get(t.Context(), o.Name, math.MaxInt64)
		must(t, err)
		at, after := spoil(rng, bytes.Clone(data))
		all = append(all, damage{fmt.Sprintf("%s at %d", o.Name, at), o.Name, at, after})
	}
	return all
}

func testDamage(t *testing.T, spoil func(rng *rand.Rand, data []byte) (at int, after []byte)) {
	ctx := t.Context()
	mem := vfs.NewMem()
	target := OpenDir(mem, "archive")
	fixture(t, mem, target, 60)
	found := 0
	for i, d := range spoilt(t, target, 1000, spoil) {
		whole, err := target.Get(ctx, d.file, math.MaxInt64)
		must(t, err)
		must(t, target.Put(ctx, d.file, d.data))
		v, err := Verify(ctx, target, nil, nil)
		must(t, err)
		if len(v.Problems) != 1 {
			t.Fatalf("%s: %d problems: %v", d.name, len(v.Problems), v.Problems)
		}
		where, ok := errors.AsType[*Damage](v.Problems[0].Err)
		if !ok || where.File != target.Path(d.file) || where.Offset > int64(d.at) || !errors.Is(where, wal.ErrCorrupt) || len(v.Problems[0].Snapshots) != 1 {
			t.Fatalf("%s: %v", d.name, v.Problems[0])
		}
		// The damage is in the frame that the error names.
		if int64(d.at)-where.Offset > int64(smallSizes.most) {
			t.Fatalf("%s: error is at %d", d.name, where.Offset)
		}
		found++
		if i%4 == 0 {
			_, err = Restore(ctx, target, "", "new", RestoreOptions{FS: mem})
			wantErr(t, err, wal.ErrCorrupt)
			for _, dir := range []string{"new", "new.tmp"} {
				if _, err := mem.Stat(dir); err == nil {
					t.Fatalf("%s: %s is left", d.name, dir)
				}
			}
		}
		must(t, target.Put(ctx, d.file, whole))
	}
	_, err := clean(target)
	must(t, err)
	t.Logf("%d of 1000 found", found)
}

func TestFlippedBits(t *testing.T) {
	testDamage(t, func(rng *rand.Rand, data []byte) (int, []byte) {
		at := rng.IntN(len(data))
		data[at] ^= 1 << rng.IntN(8)
		return at, data
	})
}

func TestTruncations(t *testing.T) {
	testDamage(t, func(rng *rand.Rand, data []byte) (int, []byte) {
		at := rng.IntN(len(data))
		return at, data[:at]
	})
}

// Blocks that are gone, swapped, or of another length, and manifests under another name.
func TestMissingAndSwapped(t *testing.T) {
	ctx := t.Context()
	mem := vfs.NewMem()
	target := OpenDir(mem, "archive")
	fixture(t, mem, target, 60)
	blocks, err := target.List(ctx, blocksFolder)
	must(t, err)
	one, err := target.Get(ctx, blocks[0].Name, math.MaxInt64)
	must(t, err)
	two, err := target.Get(ctx, blocks[1].Name, math.MaxInt64)
	must(t, err)
	problems := func(want ...string) {
		t.Helper()
		v, err := Verify(ctx, target, nil, nil)
		must(t, err)
		var files []string
		for _, p := range v.Problems {
			where, ok := errors.AsType[*Damage](p.Err)
			if !ok {
				t.Fatal(p.Err)
			}
			files = append(files, where.File)
		}
		slices.Sort(files)
		if !slices.Equal(files, want) {
			t.Fatalf("problems in %q, want %q", files, want)
		}
	}
	must(t, target.Delete(ctx, blocks[0].Name))
	problems(target.Path(blocks[0].Name))
	must(t, target.Put(ctx, blocks[0].Name, two))
	problems(target.Path(blocks[0].Name))
	must(t, target.Put(ctx, blocks[0].Name, append(bytes.Clone(one), 0)))
	problems(target.Path(blocks[0].Name))
	must(t, target.Put(ctx, blocks[0].Name, one))
	problems()

	m, err := Get(ctx, target, "")
	must(t, err)
	file, err := target.Get(ctx, manifestName(m.ID), math.MaxInt64)
	must(t, err)
	other := manifestName("20301010T000000.000Z" + m.ID[len(idTime):])
	must(t, target.Put(ctx, other, file))
	problems(target.Path(other))
}

// The clock may be set back between two saves. The newest snapshot is the last one all the same, and is the one that a prune keeps.
func TestSaveAfterClockSetBack(t *testing.T) {
	ctx := t.Context()
	mem := vfs.NewMem()
	target := OpenDir(mem, "archive")
	fixture(t, mem, target, 60)
	first, err := Get(ctx, target, "")
	must(t, err)
	store, table, err := openTable(mem, "db")
	must(t, err)
	var last string
	for range 2 {
		s, err := Save(ctx, table, target, SaveOptions{Partitions: 2, Prefix: "acme", sizes: smallSizes, Now: first.Time.Add(-time.Hour)})
		must(t, err)
		last = s.Manifest.ID
	}
	other, err := Save(ctx, table, target, SaveOptions{Partitions: 2, Prefix: "other", sizes: smallSizes, Now: first.Time.Add(-time.Hour)})
	must(t, err)
	if want := first.Time.Add(-time.Hour); !other.Manifest.Time.Equal(want) {
		t.Errorf("another service's is of %v, want %v", other.Manifest.Time, want)
	}
	must(t, store.Close())
	_, err = Prune(ctx, target, PruneOptions{Drop: []string{other.Manifest.ID}})
	must(t, err)
	newest, err := Get(ctx, target, "")
	must(t, err)
	pruned, err := Prune(ctx, target, PruneOptions{Keep: 1})
	must(t, err)
	if newest.ID != last || !slices.Equal(pruned.Kept, []string{last}) {
		t.Errorf("the newest is %s, and a prune kept %q, want %s", newest.ID, pruned.Kept, last)
	}
}

// A save with Recheck mends an archive.
func TestRecheckMends(t *testing.T) {
	ctx := t.Context()
	mem := vfs.NewMem()
	target := OpenDir(mem, "archive")
	all := fixture(t, mem, target, 60)
	blocks, err := target.List(ctx, blocksFolder)
	must(t, err)
	file, err := target.Get(ctx, blocks[3].Name, math.MaxInt64)
	must(t, err)
	file[20] ^= 1
	must(t, target.Put(ctx, blocks[3].Name, file))
	must(t, target.Put(ctx, blocks[4].Name, file[:10])) // another size is noticed even without Recheck
	store, table, err := openTable(mem, "db")
	must(t, err)
	save := func(recheck bool, want int) {
		t.Helper()
		s, err := Save(ctx, table, target, SaveOptions{Partitions: 2, Prefix: "acme", sizes: smallSizes, Recheck: recheck})
		must(t, err)
		if s.Rewritten != want || s.Written != want {
			t.Fatalf("%d rewritten, %d written, want %d", s.Rewritten, s.Written, want)
		}
	}
	save(false, 1)
	save(true, 1)
	must(t, store.Close())
	_, err = clean(target)
	must(t, err)
	_, err = Restore(ctx, target, "", "new", RestoreOptions{FS: mem})
	must(t, err)
	got, err := restored(mem, "new", 2)
	must(t, err)
	if d := cmp.Diff(all, got); d != "" {
		t.Fatal(d)
	}
}

// bigTable has n jobs: rows by due time, ids in random order, specs appended.
func bigTable(t testing.TB, fsys vfs.FS, dir string, n, partitions int) (*wal.Store, *snapshot.Table, *bigJobs) {
	t.Helper()
	store, err := wal.OpenStore(wal.Options{Dir: dir, FS: fsys, Profile: wal.ProfileTable})
	must(t, err)
	table := snapshot.OpenTable(store)
	j := &bigJobs{rng: rand.New(rand.NewPCG(9, 9)), noise: rand.NewChaCha8([32]byte{3}), n: n}
	for p := range partitions {
		j.create(t, table, uint16(p))
	}
	return store, table, j
}

type bigJobs struct {
	rng   *rand.Rand
	noise *rand.ChaCha8
	n     int
}

func (j *bigJobs) row(i int) []byte {
	return binary.BigEndian.AppendUint64([]byte{1, 0}, uint64(i)*1000)
}

func (j *bigJobs) value(n int) []byte {
	b := make([]byte, n)
	_, _ = j.noise.Read(b[:n/2]) // half of it compresses
	return b
}

func (j *bigJobs) create(t testing.TB, table *snapshot.Table, p uint16) {
	t.Helper()
	fill, err := table.BulkLoad(p)
	must(t, err)
	defer fill.Abort()
	ids := make([][]byte, j.n)
	for i := range ids {
		ids[i] = fmt.Appendf(nil, "job-%016x", uint64(i)*0x9e3779b97f4a7c15+uint64(p))
	}
	slices.SortFunc(ids, bytes.Compare)
	for _, id := range ids {
		must(t, fill.Set(snapshot.RoomIDs, id, j.value(20)))
	}
	for i := range j.n {
		must(t, fill.Set('s', binary.BigEndian.AppendUint64(nil, uint64(i)), j.value(230)))
	}
	for i := range j.n {
		must(t, fill.Set('w', j.row(i), j.value(70)))
	}
	_, err = fill.Commit(1, []byte("state"))
	must(t, err)
}

// change gives rows new values.
func (j *bigJobs) change(t testing.TB, table *snapshot.Table, p uint16, position uint64, which func(k int) int) {
	t.Helper()
	b, err := table.Begin(p)
	must(t, err)
	defer b.Abort()
	b.State(position, []byte("state"))
	for k := range j.n / 100 {
		b.Change('w', j.row(which(k)), []byte("old"), j.value(70))
	}
	_, err = b.Commit()
	must(t, err)
}

// One row in a hundred changes. If these are neighbours, nearly all blocks stay as they are; if they are scattered, all blocks of that
// room change, and none of the other rooms.
func TestReuse(t *testing.T) {
	ctx := t.Context()
	mem := vfs.NewMem()
	store, table, j := bigTable(t, mem, "big", 60_000, 1)
	defer func() { must(t, store.Close()) }()
	target := OpenDir(mem, "archive")
	o := SaveOptions{Partitions: 1, sizes: sizes{frame: 8 << 10, least: 16 << 10, mean: 32 << 10, most: 128 << 10}}
	first, err := Save(ctx, table, target, o)
	must(t, err)
	if first.Reused != 0 {
		t.Fatalf("%d blocks reused of none", first.Reused)
	}
	save := func() float64 {
		t.Helper()
		s, err := Save(ctx, table, target, o)
		must(t, err)
		share := float64(s.Reused) / float64(s.Reused+s.Written)
		t.Logf("%d blocks reused, %d written: %.1f %%", s.Reused, s.Written, 100*share)
		return share
	}
	j.change(t, table, 0, 2, func(k int) int { return j.n/3 + k })
	if share := save(); share < 0.95 {
		t.Errorf("clustered: %.3f reused", share)
	}
	stride := j.n / (j.n / 100)
	j.change(t, table, 0, 3, func(k int) int { return k * stride })
	if share := save(); share < 0.5 || share > 0.95 {
		t.Errorf("scattered: %.3f reused; only the room of rows has changed, and all of it", share)
	}
	// An insertion moves no ends beyond the next one.
	b, err := table.Begin(0)
	must(t, err)
	b.State(4, nil)
	b.Change('w', append(j.row(j.n/2), 1), nil, j.value(70))
	_, err = b.Commit()
	must(t, err)
	s, err := Save(ctx, table, target, o)
	must(t, err)
	if s.Written > 3 {
		t.Errorf("an insertion wrote %d blocks", s.Written)
	}
}

// A directory that is not an archive's own is not written to, and nothing in it is removed. In an archive's own folders, files with other
// names than an archive writes are not removed either.
func TestForeignDirectory(t *testing.T) {
	ctx, mem := t.Context(), vfs.NewMem()
	write := func(name string) {
		t.Helper()
		must(t, mem.MkdirAll(mem.PathDir(name), 0o755))
		f, err := mem.Create(name, vfs.WriteCategoryUnspecified)
		must(t, errors.Join(err, f.Close()))
	}
	foreign := []string{
		"home/tmp/thesis.txt", "home/tmp/old/thesis.txt", "home/blocks/lego.txt", "home/blocks/ab/abcd", "home/tmp/notes.json",
		"home/tmp/20270115T080000.123Z-cafe.json", "home/tmp/20270115T080000.123Z-somebody's-notes.json",
		"home/blocks/ab/" + strings.Repeat("0", sumDigits), // not in its place
		"home/blocks/AB/" + strings.Repeat("AB", sumDigits/2), "home/blocks/xy/" + strings.Repeat("xy", sumDigits/2),
	}
	check := func() {
		t.Helper()
		for _, name := range foreign {
			if _, err := mem.Stat(name); err != nil {
				t.Error(err)
			}
		}
	}
	for _, name := range append(foreign, "home/letter.txt") {
		write(name)
	}
	target := OpenDir(mem, "home")
	store, table, err := openTable(mem, "table")
	must(t, err)
	defer func() { must(t, store.Close()) }()
	for range 2 {
		if _, err := Prune(ctx, target, PruneOptions{Keep: 7}); !errors.Is(err, ErrNotArchive) || !strings.Contains(err.Error(), `home is no archive of snapshots: it holds "letter.txt"`) {
			t.Errorf("a prune says %v", err)
		}
		if _, err := Save(ctx, table, target, SaveOptions{Partitions: 1}); !errors.Is(err, ErrNotArchive) {
			t.Errorf("a save says %v", err)
		}
		check()
		if names, err := mem.List("home"); err != nil || len(names) != 3 {
			t.Errorf("there is %v now, %v", names, err)
		}
	}
	// All that is left is in folders that an archive has, too.
	must(t, mem.Remove("home/letter.txt"))
	fixture(t, mem, target, 60)
	foreign = append(foreign, "home/snapshots/thesis.txt")
	write("home/snapshots/thesis.txt")
	list, err := List(ctx, target)
	must(t, err)
	must(t, mem.MkdirAll("home/tmp", 0o755))
	sum := strings.Repeat("0", sumDigits)
	for _, part := range []string{"home/tmp/" + sum, "home/tmp/" + list[0].ID + ".json", "home/blocks/00/" + sum} {
		write(part)
	}
	pruned, err := Prune(ctx, target, PruneOptions{})
	if err != nil || pruned.Blocks != 1 {
		t.Errorf("%+v, %v", pruned, err)
	}
	check()
	for _, dir := range []string{"home/tmp", "home/blocks/00"} {
		names, err := mem.List(dir)
		if err != nil || slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, sum) || strings.Contains(name, list[0].ID) }) {
			t.Errorf("in %s there is %v, %v", dir, names, err)
		}
	}
	if v, err := clean(target); err != nil || v.Unused != 0 {
		t.Errorf("%+v, %v", v, err)
	}
}

// pruning is a target on which a prune runs as soon as the first block is read.
type pruning struct {
	Target
	once func()
}

func (p pruning) Get(ctx context.Context, name string, most int64) ([]byte, error) {
	if strings.HasPrefix(name, blocksFolder) {
		p.once()
	}
	return p.Target.Get(ctx, name, most)
}

// Snapshots that a prune drops while they are verified or restored are not damaged: they are gone.
func TestReadWhilePruned(t *testing.T) {
	ctx, mem := t.Context(), vfs.NewMem()
	target := OpenDir(mem, "archive")
	fixture(t, mem, target, 60)
	store, table, err := openTable(mem, "later")
	must(t, err)
	b, err := table.Begin(0)
	must(t, err)
	b.State(1000, []byte("later"))
	for i := range byte(60) {
		b.Append('s', []byte{0xff, i}, []byte("another value, of another snapshot"))
	}
	_, err = b.Commit()
	must(t, err)
	_, err = Save(ctx, table, target, SaveOptions{Partitions: 1, Prefix: "acme", sizes: smallSizes, Now: time.UnixMilli(1_900_000_000_000)})
	must(t, err)
	while := pruning{target, sync.OnceFunc(func() {
		_, err := Prune(ctx, target, PruneOptions{Keep: 1})
		must(t, err)
	})}
	if v, err := Verify(ctx, while, nil, nil); err != nil || len(v.Problems) > 0 || v.Snapshots != 1 {
		t.Errorf("%+v, %v", v, err)
	}
	other := OpenDir(mem, "other")
	fixture(t, vfs.NewMem(), other, 60)
	m, err := Get(ctx, other, "")
	must(t, err)
	while = pruning{other, sync.OnceFunc(func() {
		_, err := Prune(ctx, other, PruneOptions{Drop: []string{m.ID}})
		must(t, err)
	})}
	if _, err := Verify(ctx, while, []string{m.ID}, nil); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "pruned meanwhile") {
		t.Errorf("of one that was asked for: %v", err)
	}
	// So it is for a restore.
	again := OpenDir(mem, "again")
	fixture(t, vfs.NewMem(), again, 60)
	while = pruning{again, sync.OnceFunc(func() {
		_, err := Prune(ctx, again, PruneOptions{Drop: []string{m.ID}})
		must(t, err)
	})}
	if _, err := Restore(ctx, while, m.ID, "new", RestoreOptions{FS: mem}); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "pruned meanwhile") {
		t.Errorf("of one that is restored: %v", err)
	}
	must(t, store.Close())
}
