package snapshot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/carillon-scheduler/carillon/internal/faultfs"
	"github.com/carillon-scheduler/carillon/wal"
)

// The rooms of the tests: two that change, two that are appended to.
var tableRooms = []byte{'w', RoomIDs, 's', 'o'}

// content of a table as a test knows it.
type rows struct {
	Base  Checkpoint
	State string
	Pairs map[byte]map[string]string

	dead    map[byte][]string // pairs given up by this checkpoint
	deadCut map[byte]string
}

func noRows() rows {
	r := rows{Pairs: map[byte]map[string]string{}}
	for _, room := range tableRooms {
		r.Pairs[room] = map[string]string{}
	}
	return r
}

func (r rows) clone() rows {
	c := rows{Base: r.Base, State: r.State, Pairs: map[byte]map[string]string{}, dead: map[byte][]string{}, deadCut: map[byte]string{}}
	for room, pairs := range r.Pairs {
		c.Pairs[room] = maps.Clone(pairs)
	}
	return c
}

// settle removes what the checkpoint gave up, as the next one does.
func (r rows) settle() rows {
	c := r.clone()
	for room, keys := range r.dead {
		for _, key := range keys {
			delete(c.Pairs[room], key)
		}
	}
	for room, cut := range r.deadCut {
		maps.DeleteFunc(c.Pairs[room], func(key, _ string) bool { return key < cut })
	}
	return c
}

// history is a partition's two checkpoints; older has the zero Checkpoint when there is one.
type history struct{ newest, older rows }

func newHistory() history { return history{noRows(), noRows()} }

// step gathers a random checkpoint and returns the content that it leads to.
func (h history) step(table *Table, partition uint16, rng *rand.Rand, size int) (*Build, history, error) {
	position := h.newest.Base.Position + rng.Uint64N(3)
	b, err := table.Begin(partition)
	if err != nil {
		return nil, h, err
	}
	next := h.newest.settle()
	h.older = h.newest.settle()
	next.Base = Checkpoint{h.newest.Base.ID + 1, position}
	if next.State = ""; rng.IntN(4) > 0 {
		next.State = strings.Repeat("x", 1+rng.IntN(40))
	}
	b.State(position, []byte(next.State))
	value := func() string { return fmt.Sprint(next.Base.ID, strings.Repeat("v", rng.IntN(size))) }
	for _, room := range []byte{'w', RoomIDs} {
		pairs := next.Pairs[room]
		done := map[string]bool{}
		for range rng.IntN(20) {
			key := fmt.Sprintf("%02d", rng.IntN(40))
			if rng.IntN(8) == 0 {
				key += "\x00\xff"
			}
			if done[key] {
				continue
			}
			done[key] = true
			old, there := pairs[key]
			var was []byte
			if there {
				was = []byte(old)
			}
			switch rng.IntN(6) {
			case 0:
				b.Remove(room, []byte(key))
				delete(pairs, key)
			case 1, 2:
				b.Change(room, []byte(key), was, nil)
				delete(pairs, key)
			case 3:
				b.Change(room, []byte(key), was, was)
			case 4:
				b.Change(room, []byte(key), was, []byte{}) // empty is not absent
				pairs[key] = ""
			default:
				v := value()
				b.Change(room, []byte(key), was, []byte(v))
				pairs[key] = v
			}
		}
	}
	for _, room := range []byte{'s', 'o'} {
		pairs := next.Pairs[room]
		keys := slices.Sorted(maps.Keys(pairs))
		rng.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		for _, key := range keys {
			for range rng.IntN(5) - 2 { // maybe twice
				b.Drop(room, []byte(key))
				next.dead[room] = append(next.dead[room], key)
			}
		}
		if rng.IntN(3) == 0 {
			cut := fmt.Sprintf("%08d", next.Base.ID*100-rng.Uint64N(400)%(next.Base.ID*100))
			b.Cut(room, []byte(cut))
			next.deadCut[room] = cut
		}
		for i := range rng.IntN(10) {
			key, v := fmt.Sprintf("%08d", next.Base.ID*100+uint64(i)), value()
			b.Append(room, []byte(key), []byte(v))
			pairs[key] = v
		}
	}
	return b, history{newest: next, older: h.older}, nil
}

// read reads all of a view, and compares its other ways to read with that. Others are keys that may be there.
func read(v *View, others rows, rng *rand.Rand) (rows, error) {
	r := noRows()
	state, err := v.State()
	if err != nil {
		return r, err
	}
	r.Base, r.State = v.Checkpoint, string(state)
	for _, room := range tableRooms {
		pairs := r.Pairs[room]
		last := ""
		more, err := v.Scan(room, nil, nil, 0, func(key, value []byte) error {
			if string(key) <= last {
				return fmt.Errorf("%q comes after %q", key, last)
			}
			last, pairs[string(key)] = string(key), string(value)
			return nil
		})
		if more || err != nil {
			return r, errors.Join(err, fmt.Errorf("room %c: more: %v", room, more))
		}
		keys := slices.Sorted(maps.Keys(pairs))
		ask := slices.Concat(keys, slices.Sorted(maps.Keys(others.Pairs[room])), []string{"", "0", "99", "99999999", "\xff\xff"})
		for _, key := range ask {
			value, found, err := v.Get(room, []byte(key))
			if err != nil {
				return r, err
			}
			if want, there := pairs[key]; found != there || string(value) != want {
				return r, fmt.Errorf("room %c: Get(%q) is %q, %v; Scan says %q, %v", room, key, value, found, want, there)
			}
		}
		for range 4 {
			bound := func() []byte {
				if rng.IntN(4) == 0 {
					return nil
				}
				return []byte(ask[rng.IntN(len(ask))])
			}
			above, below, limit := bound(), bound(), rng.IntN(len(keys)+2)
			var want, got []string
			for _, key := range keys {
				if (above == nil || key > string(above)) && (below == nil || key < string(below)) {
					want = append(want, key)
				}
			}
			wantMore := limit > 0 && len(want) > limit
			if wantMore {
				want = want[:limit]
			}
			more, err := v.Scan(room, above, below, limit, func(key, _ []byte) error {
				got = append(got, string(key))
				return nil
			})
			if err != nil {
				return r, err
			}
			if more != wantMore || !slices.Equal(got, want) {
				return r, fmt.Errorf("room %c: Scan(%q, %q, %d) is %q, %v; want %q, %v", room, above, below, limit, got, more, want, wantMore)
			}
		}
	}
	return r, nil
}

// check compares a partition with what it must be.
func (h history) check(table *Table, partition uint16, rng *rand.Rand) error {
	views := []struct {
		open        func(uint16, func(*View) error) error
		want, other rows
	}{{table.View, h.newest, h.older}, {table.Older, h.older, h.newest}}
	var bases []Checkpoint
	for _, view := range views {
		if view.want.Base.ID != 0 {
			bases = append(bases, view.want.Base)
		}
		err := view.open(partition, func(v *View) error {
			got, err := read(v, view.other, rng)
			if err != nil {
				return err
			}
			if d := cmp.Diff(view.want, got, cmpopts.IgnoreUnexported(rows{})); d != "" {
				return fmt.Errorf("checkpoint %d: %s", view.want.Base.ID, d)
			}
			return nil
		})
		if errors.Is(err, ErrNoCheckpoint) && view.want.Base.ID == 0 {
			err = nil
		}
		if err != nil {
			return err
		}
	}
	// Only the newest checkpoint's undo and drops stay.
	if err := table.View(partition, func(v *View) error {
		for _, room := range []byte{roomUndo, roomDrop} {
			if _, err := v.Scan(room, nil, nil, 0, func(key, _ []byte) error {
				if id := binary.BigEndian.Uint64(key); id != v.ID {
					return fmt.Errorf("room %c holds what checkpoint %d left, at %d", room, id, v.ID)
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	list, err := table.List(partition)
	if err == nil && !slices.Equal(list, bases) {
		err = fmt.Errorf("List is %v, want %v", list, bases)
	}
	return err
}

// small has checkpoints of all sizes ingested as tables, which end in the middle of rooms.
func small(store *wal.Store) *Table {
	t := OpenTable(store)
	t.batchBytes, t.tableBytes = 0, 500
	return t
}

func tableOptions(fs vfs.FS) wal.Options {
	return wal.Options{Dir: "db", FS: fs, Profile: wal.ProfileTable, MemTableBytes: 64 << 10}
}

// The table is compared with maps: batches and ingestions in turn, several partitions, aborts, restarts.
func TestTableModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		opts := tableOptions(vfs.NewMem())
		store, err := wal.OpenStore(opts)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = store.Close() }()
		table := OpenTable(store)
		model := map[uint16]history{}
		draw := func(t *rapid.T) (uint16, history, *rand.Rand) {
			p := rapid.SampledFrom([]uint16{0, 1<<16 - 1}).Draw(t, "partition")
			if _, known := model[p]; !known {
				model[p] = newHistory()
			}
			return p, model[p], rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		}
		t.Repeat(map[string]func(*rapid.T){
			"commit": func(t *rapid.T) {
				p, h, rng := draw(t)
				table.batchBytes = rapid.SampledFrom([]int{0, 500, 1 << 20}).Draw(t, "batch")
				table.tableBytes = rapid.SampledFrom([]int{300, 1 << 20}).Draw(t, "table")
				b, next, err := h.step(table, p, rng, 100)
				if err != nil {
					t.Fatal(err)
				}
				if rapid.Bool().Draw(t, "prepared") {
					if err := errors.Join(b.Prepare(), h.check(table, p, rng)); err != nil { // Prepare changes nothing that can be seen
						t.Fatal(err)
					}
				}
				got, err := b.Commit()
				if err != nil || got != next.newest.Base || got.ID != b.to.ID {
					t.Fatal(got, err)
				}
				model[p] = next
			},
			"abort": func(t *rapid.T) {
				p, h, rng := draw(t)
				b, _, err := h.step(table, p, rng, 100)
				if err != nil {
					t.Fatal(err)
				}
				if rapid.Bool().Draw(t, "prepared") {
					if err := b.Prepare(); err != nil {
						t.Fatal(err)
					}
				}
				b.Abort()
				files, err := opts.FS.List(opts.FS.PathJoin(opts.Dir, "building"))
				if err != nil || len(files) > 0 {
					t.Fatal("tables of a checkpoint that was given up: ", files, err)
				}
			},
			"reopen": func(t *rapid.T) {
				if err := store.Close(); err != nil {
					t.Fatal(err)
				}
				if store, err = wal.OpenStore(opts); err != nil {
					t.Fatal(err)
				}
				table = OpenTable(store)
			},
			"": func(t *rapid.T) {
				for p, h := range model {
					if err := h.check(table, p, rand.New(rand.NewPCG(uint64(p), h.newest.Base.ID))); err != nil {
						t.Fatalf("partition %d: %v", p, err)
					}
				}
			},
		})
	})
}

// walk commits random checkpoints to partition 5.
func walk(t testing.TB, table *Table, h history, rng *rand.Rand, steps int) history {
	t.Helper()
	for range steps {
		b, next, err := h.step(table, 5, rng, 300)
		must(t, err)
		_, err = b.Commit()
		must(t, err)
		h = next
	}
	return h
}

func closeStore(t testing.TB, store *wal.Store) {
	t.Helper()
	must(t, store.Close())
}

// sinks are both ways in which a checkpoint gets in: as tables, here many, and as a batch.
var sinks = map[string]func(*wal.Store) *Table{"tables": small, "batch": OpenTable}

// linkFS makes links and crashes exclude each other: MemFS.Link takes a read lock twice, and would deadlock if CrashClone began to wait
// for the write lock in between.
type linkFS struct {
	vfs.FS
	mu *sync.Mutex
}

func (f linkFS) Link(oldname, newname string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.FS.Link(oldname, newname)
}

// A crash at every single write of a commit: the table is as it was before, or as it is after the commit.
func TestTableCrash(t *testing.T) {
	for name, open := range sinks {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 1))
			first := vfs.NewCrashableMem()
			store, err := wal.OpenStore(tableOptions(first))
			must(t, err)
			before := walk(t, open(store), newHistory(), rng, 6)
			closeStore(t, store)
			seen := map[bool]int{}
			stride := int64(1)
			if testing.Short() {
				stride = 3
			}
			for crashAt, done := int64(1), false; !done; crashAt += stride {
				percent := []int{0, 50, 100}[rng.IntN(3)]
				mem := first.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
				var clone *vfs.MemFS
				var left atomic.Int64
				left.Store(1 << 40)
				dice := rand.New(rand.NewPCG(uint64(crashAt), 2))
				var once sync.Once
				var linking sync.Mutex
				crash := func() {
					once.Do(func() {
						linking.Lock()
						defer linking.Unlock()
						clone = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: dice})
					})
				}
				store, err := wal.OpenStore(tableOptions(faultfs.Wrap(linkFS{mem, &linking}, func(op errorfs.Op) error {
					if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && left.Add(-1) == 0 {
						crash()
					}
					return nil
				})))
				must(t, err)
				table := open(store)
				b, after, err := before.step(table, 5, rand.New(rand.NewPCG(7, 7)), 300)
				must(t, err)
				left.Store(crashAt)
				_, err = b.Commit()
				must(t, err)
				done = left.Load() > 0 // the commit has fewer writes
				crash()                // has happened, or does now
				closeStore(t, store)

				store, err = wal.OpenStore(tableOptions(clone))
				if err != nil {
					t.Fatalf("crash at write %d: %v", crashAt, err)
				}
				table = open(store)
				list, err := table.List(5)
				must(t, err)
				in := list[0] == after.newest.Base
				if done && !in {
					t.Fatal("a checkpoint that was committed is gone")
				}
				seen[in]++
				h := before
				if in {
					h = after
				}
				if err := h.check(table, 5, rng); err != nil {
					t.Fatalf("crash at write %d: %v", crashAt, err)
				}
				unfinished, err := clone.List("db/building")
				must(t, err)
				if len(unfinished) > 0 {
					t.Fatalf("crash at write %d: %q are left", crashAt, unfinished)
				}
				h = walk(t, table, h, rng, 2)
				must(t, h.check(table, 5, rng))
				closeStore(t, store)
			}
			t.Logf("%d crashes left the checkpoint before, %d the new one", seen[false], seen[true])
			if seen[false] == 0 || seen[true] == 0 {
				t.Errorf("%v: the crashes came in one place", seen)
			}
		})
	}
}

// No space from the n-th write of a commit on: the store fails, and opens again with the old or the new checkpoint.
func TestTableDiskFull(t *testing.T) {
	for name, open := range sinks {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 3))
			first := vfs.NewCrashableMem()
			store, err := wal.OpenStore(tableOptions(first))
			must(t, err)
			before := walk(t, open(store), newHistory(), rng, 6)
			closeStore(t, store)
			failed := 0
			for n, done := int64(0), false; !done; n++ {
				var left atomic.Int64
				left.Store(1 << 40)
				mem := first.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
				opts := tableOptions(faultfs.Wrap(mem, func(op errorfs.Op) error {
					switch op.Kind {
					case errorfs.OpFileWrite, errorfs.OpFileWriteAt, errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpCreate, errorfs.OpLink, errorfs.OpReuseForWrite:
						if left.Add(-1) < 0 {
							return syscall.ENOSPC
						}
					}
					return nil
				}))
				store, err := wal.OpenStore(opts)
				must(t, err)
				b, after, err := before.step(open(store), 5, rand.New(rand.NewPCG(7, 7)), 300)
				must(t, err)
				left.Store(n)
				_, err = b.Commit()
				done = left.Load() >= 0
				if err != nil {
					failed++
					wantErr(t, err, syscall.ENOSPC)
					wantErr(t, err, wal.ErrFailed)
					_, err := open(store).Begin(5)
					wantErr(t, err, wal.ErrFailed)
				}
				committed := err == nil
				closeStore(t, store)
				left.Store(1 << 40)
				store, err = wal.OpenStore(opts)
				must(t, err)
				table := open(store)
				list, err := table.List(5)
				must(t, err)
				h := before
				if list[0] == after.newest.Base {
					h = after
				} else if committed {
					t.Fatalf("full after %d writes: a checkpoint that was committed is gone", n)
				}
				if err := h.check(table, 5, rng); err != nil {
					t.Fatalf("full after %d writes: %v", n, err)
				}
				h = walk(t, table, h, rng, 2)
				must(t, h.check(table, 5, rng))
				closeStore(t, store)
			}
			if failed < 2 {
				t.Errorf("only %d commits failed", failed)
			}
		})
	}
}

// Flipped bits in the tables: an error that names the file, or exactly what was written.
func TestTableBitFlips(t *testing.T) {
	disk := vfs.NewCrashableMem()
	store, err := wal.OpenStore(tableOptions(disk))
	must(t, err)
	rng := rand.New(rand.NewPCG(1, 4))
	table := OpenTable(store)
	table.batchBytes = 0
	h := walk(t, table, newHistory(), rng, 8)
	roomsOf := func(table *Table) (rooms []byte, err error) {
		err = table.View(5, func(v *View) (err error) { rooms, err = v.Rooms(); return err })
		return rooms, err
	}
	rooms, err := roomsOf(table)
	must(t, err)
	closeStore(t, store)
	files, err := disk.List("db")
	must(t, err)
	slices.Sort(files)
	flips, found := 0, 0
	for _, name := range files {
		if !strings.HasSuffix(name, ".sst") {
			continue
		}
		path := disk.PathJoin("db", name)
		info, err := disk.Stat(path)
		must(t, err)
		var bits []int64
		for range 6 {
			bits = append(bits, rng.Int64N(8*info.Size()))
		}
		const footer = 57
		for range 4 {
			bits = append(bits, 8*(info.Size()-footer)+rng.Int64N(8*footer))
		}
		for _, bit := range bits {
			damaged := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
			flip(t, damaged, path, bit)
			store, err := wal.OpenStore(tableOptions(damaged))
			if err == nil {
				table := OpenTable(store)
				got, unread := roomsOf(table)
				if unread == nil && !bytes.Equal(got, rooms) {
					t.Errorf("bit %d flipped at %d of %s: only the rooms %q hold anything", bit%8, bit/8, name, got)
				}
				err = h.check(table, 5, rng)
				closeStore(t, store)
			}
			flips++
			if err == nil {
				continue // a file that nobody reads
			}
			found++
			wantErr(t, err, wal.ErrCorrupt)
			// A compaction may have found it first, and gives only the file's number.
			if !strings.Contains(err.Error(), strings.TrimSuffix(name, ".sst")) {
				t.Errorf("bit %d flipped at %d of %s: %v", bit%8, bit/8, name, err)
			}
		}
	}
	t.Logf("%d of %d flips found, the others harmless", found, flips)
	if found < flips/4 {
		t.Error("too few")
	}
}

func flip(t *testing.T, fs vfs.FS, path string, bit int64) {
	t.Helper()
	f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	must(t, err)
	var b [1]byte
	_, err = f.ReadAt(b[:], bit/8)
	must(t, err)
	b[0] ^= 1 << (bit % 8)
	_, err = f.WriteAt(b[:], bit/8)
	must(t, errors.Join(err, f.Close()))
}

// A value under another key is caught above Pebble's own checksums.
func TestTableChecksum(t *testing.T) {
	store := open(t, tableOptions(vfs.NewMem()))
	table := OpenTable(store)
	b, err := table.Begin(3)
	must(t, err)
	b.State(1, nil)
	b.Change('w', []byte("a"), nil, []byte("one"))
	_, err = b.Commit()
	must(t, err)
	set := func(key, like []byte) {
		value := appendChecksum(append(bytes.Clone(like), "two"...))[len(like):]
		must(t, store.Update(func(b *pebble.Batch) error { return b.Set(key, value, nil) }))
	}
	key := appendTableKey(nil, 3, 'w', []byte("a"))
	set(key, appendTableKey(nil, 3, 'w', []byte("b")))
	err = table.View(3, func(v *View) error {
		_, _, err := v.Get('w', []byte("a"))
		return err
	})
	wantErr(t, err, wal.ErrCorrupt)
	if !strings.Contains(err.Error(), fmt.Sprintf("% x", key)) || !strings.Contains(err.Error(), "partition 3") {
		t.Errorf("%q does not name key and partition", err)
	}
	err = table.View(3, func(v *View) error {
		_, err := v.Scan('w', nil, nil, 0, func(_, _ []byte) error { return nil })
		return err
	})
	wantErr(t, err, wal.ErrCorrupt)

	// An undo that leads to another checkpoint than the one before is caught, too.
	undo := appendUndoKey(nil, 3, 1, roomBase, []byte{headerKey})
	must(t, store.Update(func(b *pebble.Batch) error {
		return b.Set(undo, appendChecksum(appendHeader(append(bytes.Clone(undo), undoValue), Checkpoint{ID: 2, Position: 1}))[len(undo):], nil)
	}))
	_, err = table.List(3)
	wantErr(t, err, wal.ErrCorrupt)
	for _, unknown := range []string{"", "\x07", "\x00more"} {
		must(t, store.Update(func(b *pebble.Batch) error {
			return b.Set(undo, appendChecksum(append(bytes.Clone(undo), unknown...))[len(undo):], nil)
		}))
		if _, err = table.List(3); !errors.Is(err, wal.ErrCorrupt) || !strings.Contains(err.Error(), "undo of checkpoint 1") {
			t.Errorf("an undo that holds %q: %v", unknown, err)
		}
	}

	header := appendTableKey(nil, 4, roomBase, []byte{headerKey})
	must(t, store.Update(func(b *pebble.Batch) error {
		return b.Set(header, appendChecksum(append(bytes.Clone(header), tableVersion+1))[len(header):], nil)
	}))
	_, err = table.List(4)
	wantErr(t, err, wal.ErrVersion)
	_, err = table.Begin(4)
	wantErr(t, err, wal.ErrVersion)
}

// Readers see whole checkpoints while others are committed.
func TestTableReadersBesideCommits(t *testing.T) {
	store := open(t, tableOptions(vfs.NewMem()))
	table := OpenTable(store)
	table.tableBytes = 200
	var stop atomic.Bool
	var readers sync.WaitGroup
	var views atomic.Int64
	for range 2 {
		readers.Go(func() {
			for !stop.Load() {
				for _, open := range []func(uint16, func(*View) error) error{table.View, table.Older} {
					err := open(1, func(v *View) error {
						want := fmt.Sprint(v.ID)
						views.Add(1)
						for _, room := range []byte{'v', 'w'} {
							n := 0
							if _, err := v.Scan(room, nil, nil, 0, func(key, value []byte) error {
								if n++; string(value) != want {
									return fmt.Errorf("room %c, key %q holds %q in checkpoint %s", room, key, value, want)
								}
								return nil
							}); err != nil {
								return err
							}
							if v.ID > 0 && n != 30 {
								return fmt.Errorf("%d pairs", n)
							}
						}
						return nil
					})
					if err != nil && !errors.Is(err, ErrNoCheckpoint) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for id := 1; id <= 60 || views.Load() < 100 && !t.Failed(); id++ {
		table.batchBytes = id % 2 << 20
		b, err := table.Begin(1)
		must(t, err)
		b.State(uint64(id), nil)
		for i := range 30 {
			var old []byte
			if id > 1 {
				old = fmt.Append(nil, id-1)
			}
			b.Change('v', fmt.Append(nil, i), old, fmt.Append(nil, id))
			// This room's keys are new each time.
			b.Change('w', fmt.Append(nil, id, i), nil, fmt.Append(nil, id))
			if old != nil {
				b.Change('w', fmt.Append(nil, id-1, i), old, nil)
			}
		}
		_, err = b.Commit()
		must(t, err)
	}
	stop.Store(true)
	readers.Wait()
}

// A checkpoint in no hurry can rest while it gathers, sorts and writes, and none of these goes on for long without a step.
func TestTableOnStep(t *testing.T) {
	store := open(t, tableOptions(vfs.NewMem()))
	defer closeStore(t, store)
	b, err := small(store).Begin(1)
	must(t, err)
	defer b.Abort()
	b.State(1, nil)
	steps := 0
	b.OnStep(func() { steps++ })
	const pairs, bytes = 20_000, 100
	value := make([]byte, bytes)
	for i := range uint32(pairs) {
		b.Change('w', binary.LittleEndian.AppendUint32(nil, i), nil, value)
	}
	least := pairs * bytes / stepBytes
	gathered := steps
	if gathered < least {
		t.Errorf("%d steps while %d bytes were gathered", gathered, pairs*bytes)
	}
	must(t, b.Prepare())
	compared := pairs * 8 * 4 / stepBytes // the least number of steps in a sort
	if prepared := steps - gathered; prepared < least+compared {
		t.Errorf("%d steps while they were sorted and written", prepared)
	}
	prepared := steps
	_, err = b.Commit()
	must(t, err)
	if steps != prepared {
		t.Error("rests while it is made the newest")
	}
}

func TestTableMisuse(t *testing.T) {
	store := open(t, tableOptions(vfs.NewMem()))
	table := OpenTable(store)
	begin := func(position uint64) *Build {
		b, err := table.Begin(1)
		must(t, err)
		b.State(position, nil)
		return b
	}
	b := begin(10)
	_, err := table.Begin(1)
	wantErr(t, err, ErrBusy)
	other, err := table.Begin(2)
	must(t, err)
	other.Abort()
	b.Append('s', []byte("b"), []byte("x"))
	base, err := b.Commit()
	must(t, err)
	if base != (Checkpoint{1, 10}) {
		t.Fatal(base)
	}
	if _, err := b.Commit(); err == nil {
		t.Error("committed twice")
	}
	b.Abort()
	wantErr(t, table.Older(1, func(*View) error { return nil }), ErrNoCheckpoint)
	wantErr(t, table.Older(9, func(*View) error { return nil }), ErrNoCheckpoint)
	must(t, table.View(9, func(v *View) error {
		if v.Checkpoint != (Checkpoint{}) {
			t.Error(v.Checkpoint)
		}
		return nil
	}))

	key := []byte("a")
	for name, wrong := range map[string]func(*Build){
		"the table's own":     func(b *Build) { b.Change(roomUndo, key, nil, key) },
		"comes twice":         func(b *Build) { b.Change('w', key, nil, key); b.Change('w', key, key, nil) },
		"61 is appended":      func(b *Build) { b.Append('s', key, key) },
		"62 is appended":      func(b *Build) { b.Append('s', []byte("b"), key) },
		"after one at 10":     func(b *Build) { b.State(9, nil) },
		"without state":       func(b *Build) { b.state = nil },
		"and appended to":     func(b *Build) { b.Change('s', key, nil, key); b.Drop('s', key) },
		"key 63 comes twice":  func(b *Build) { b.Append('s', []byte("c"), key); b.Append('s', []byte("c"), key) },
		"changed and appende": func(b *Build) { b.Remove('s', key); b.Cut('s', key) },
	} {
		b := begin(11)
		wrong(b)
		if _, err := b.Commit(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %q", err, name)
		}
	}
	list, err := table.List(1)
	must(t, err)
	if !slices.Equal(list, []Checkpoint{base}) {
		t.Error(list)
	}
	stopped := errors.New("enough")
	wantErr(t, table.View(1, func(v *View) error {
		_, err := v.Scan('s', nil, nil, 0, func(_, _ []byte) error { return stopped })
		return err
	}), stopped)
	wantErr(t, table.View(1, func(v *View) error {
		return v.Live('s', func(_, _ []byte) error { return stopped })
	}), stopped)

	b = begin(11)
	wantErr(t, table.Clear(1), ErrBusy)
	b.Abort()
	b, err = table.Begin(2)
	must(t, err)
	b.State(3, nil)
	_, err = b.Commit()
	must(t, err)
	must(t, table.Clear(1))
	list, err = table.List(1)
	must(t, err)
	others, err := table.List(2)
	must(t, err)
	if len(list) != 0 || len(others) != 1 {
		t.Errorf("after partition 1 was cleared: %v, %v", list, others)
	}

	b = begin(11)
	must(t, store.Close())
	_, err = b.Commit()
	wantErr(t, err, wal.ErrClosed)
	_, err = table.Begin(1)
	wantErr(t, err, wal.ErrClosed)
}

// A room is appended to also as long as it has something to delete that the checkpoint before gave up.
func TestTableRoomStaysAppending(t *testing.T) {
	table := OpenTable(open(t, tableOptions(vfs.NewMem())))
	for p, giveUp := range []func(*Build){
		func(b *Build) { b.Drop('s', []byte("a")) },
		func(b *Build) { b.Cut('s', []byte("b")) },
	} {
		commit := func(gather func(*Build)) error {
			b, err := table.Begin(uint16(p))
			must(t, err)
			b.State(1, nil)
			gather(b)
			_, err = b.Commit()
			return err
		}
		must(t, commit(func(b *Build) { b.Append('s', []byte("a"), nil) }))
		must(t, commit(giveUp))
		change := func(b *Build) { b.Change('s', []byte("c"), nil, []byte("x")) }
		if err := commit(change); err == nil || !strings.Contains(err.Error(), "changed and appended to") {
			t.Errorf("changed while it has something to delete: %v", err)
		}
	}
}

func TestTableFirst(t *testing.T) {
	table := OpenTable(open(t, tableOptions(vfs.NewMem())))
	want := func(partition uint16, found bool) {
		t.Helper()
		if p, ok, err := table.First(); p != partition || ok != found || err != nil {
			t.Errorf("%d, %t, %v; want %d, %t", p, ok, err, partition, found)
		}
	}
	want(0, false)
	for _, p := range []uint16{700, 3} {
		b, err := table.Begin(p)
		must(t, err)
		b.State(1, nil)
		_, err = b.Commit()
		must(t, err)
		want(p, true)
	}
	must(t, table.Clear(3))
	want(700, true)
}
