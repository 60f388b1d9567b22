package archive

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"

	"github.com/carillon-scheduler/carillon/internal/faultfs"
	"github.com/carillon-scheduler/carillon/internal/smalldisk"
	"github.com/carillon-scheduler/carillon/wal"
)

// A process that saves, prunes or restores is killed at random moments. Each time the archive is whole, and what was
// restored is all there or not at all. CARILLON_KILLS says how often, by default 15 times for each.
func TestKill(t *testing.T) {
	kills := 15
	if s := os.Getenv("CARILLON_KILLS"); s != "" {
		var err error
		kills, err = strconv.Atoi(s)
		must(t, err)
	}
	for _, what := range []string{"save", "prune", "restore"} {
		t.Run(what, func(t *testing.T) {
			ctx, dir := t.Context(), t.TempDir()
			target := OpenDir(nil, dir+"/archive")
			store, table, err := openTable(nil, dir+"/db")
			must(t, err)
			rng := rand.New(rand.NewPCG(1, 9))
			var all []content
			for p := range uint16(2) {
				c, err := content{Pairs: map[string]string{}}.mutate(table, p, rng, 1000)
				must(t, err)
				all = append(all, c)
			}
			_, err = Save(ctx, table, target, SaveOptions{Partitions: 2, sizes: smallSizes})
			must(t, err)
			must(t, store.Close())
			whole, absent, unused := 0, 0, 0
			for range kills {
				kill(t, what, dir, time.Duration(rng.IntN(200))*time.Millisecond)
				v, err := clean(target)
				must(t, err)
				if v.Snapshots == 0 {
					t.Fatal("no snapshot is left")
				}
				if v.Unused > 0 {
					unused++
				}
				if what != "restore" {
					continue
				}
				if _, err := os.Stat(dir + "/new"); err != nil {
					absent++
					continue
				}
				whole++
				got, err := restored(vfs.Default, dir+"/new", 2)
				must(t, err)
				if d := cmp.Diff(all, got); d != "" {
					t.Fatal(d)
				}
			}
			t.Logf("%d kills: %d restored, %d not, blocks were unused after %d", kills, whole, absent, unused)

			// And all goes on.
			must(t, os.RemoveAll(dir+"/new"))
			_, err = Prune(ctx, target, PruneOptions{Keep: 1, Now: time.Now().Add(time.Hour)})
			must(t, err)
			_, err = Restore(ctx, target, "", dir+"/new", RestoreOptions{})
			must(t, err)
			got, err := restored(vfs.Default, dir+"/new", 2)
			must(t, err)
			if d := cmp.Diff(all, got); d != "" {
				t.Fatal(d)
			}
			left, err := filepath.Glob(dir + "/*.tmp")
			must(t, err)
			if len(left) > 0 {
				t.Errorf("%q are left", left)
			}
		})
	}
}

// kill runs a child and kills it some time after it has done its work once.
func kill(t *testing.T, what, dir string, after time.Duration) {
	t.Helper()
	c := exec.Command(os.Args[0], dir)
	c.Env = append(os.Environ(), "CARILLON_ARCHIVE_CHILD="+what)
	var stderr strings.Builder
	c.Stderr = &stderr
	in, err := c.StdinPipe()
	must(t, err)
	defer in.Close()
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, c.Start())
	defer func() { must(t, os.RemoveAll(dir+"/old")) }()
	line, _ := bufio.NewReader(out).ReadString('\n')
	timer := time.NewTimer(after)
	<-timer.C // a random moment
	must(t, c.Process.Kill())
	_ = c.Wait()
	if line != "begun\n" || stderr.Len() > 0 {
		t.Fatalf("child: %q %s", line, stderr.String())
	}
}

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

// crashing runs something, and returns the disk as a loss of power at its n-th write leaves it. done says that it had fewer writes.
func crashing(mem *vfs.MemFS, n int64, percent int, run func(fsys vfs.FS) error) (clone *vfs.MemFS, done bool, err error) {
	var left atomic.Int64
	left.Store(n)
	var once sync.Once
	var linking sync.Mutex
	crash := func() {
		once.Do(func() {
			linking.Lock()
			defer linking.Unlock()
			clone = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(uint64(n), 2))})
		})
	}
	err = run(faultfs.Wrap(linkFS{mem, &linking}, func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && left.Add(-1) == 0 {
			crash()
		}
		return nil
	}))
	done = left.Load() > 0
	crash()
	return clone, done, err
}

// scene is a disk with a table and an archive of an earlier state of it.
func scene(t *testing.T) (mem *vfs.MemFS, before, after []content) {
	t.Helper()
	mem = vfs.NewCrashableMem()
	before = fixture(t, mem, OpenDir(mem, "archive"), 40)
	store, table, err := openTable(mem, "db")
	must(t, err)
	rng := rand.New(rand.NewPCG(4, 4))
	for p, c := range before {
		c, err := c.mutate(table, uint16(p), rng, 40)
		must(t, err)
		after = append(after, c)
	}
	must(t, store.Close())
	return mem, before, after
}

// act is an operation on a file system that is interrupted.
type act struct {
	run   func(fsys vfs.FS) error
	check func(t *testing.T, disk vfs.FS, done bool)
}

func acts(t *testing.T, before, after []content) map[string]act {
	ctx := t.Context()
	whole := func(t *testing.T, disk vfs.FS) *Manifest {
		t.Helper()
		target := OpenDir(disk, "archive")
		_, err := clean(target)
		must(t, err)
		m, err := Get(ctx, target, "")
		must(t, err)
		return m
	}
	same := func(t *testing.T, disk vfs.FS, want []content) {
		t.Helper()
		got, err := restored(disk, "new", 2)
		must(t, err)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatal(d)
		}
	}
	save := func(fsys vfs.FS) error {
		store, table, err := openTable(fsys, "db")
		if err != nil {
			return err
		}
		_, err = Save(ctx, table, OpenDir(fsys, "archive"), SaveOptions{
			Partitions: 2, Prefix: "acme", sizes: smallSizes, Now: time.UnixMilli(1_900_000_000_000),
		})
		return errors.Join(err, store.Close())
	}
	restoreAnew := func(t *testing.T, disk vfs.FS, want []content) {
		t.Helper()
		_, err := Restore(ctx, OpenDir(disk, "archive"), "", "new", RestoreOptions{FS: disk})
		must(t, err)
		same(t, disk, want)
	}
	return map[string]act{
		"save": {
			run: func(fsys vfs.FS) error { return save(fsys) },
			check: func(t *testing.T, disk vfs.FS, done bool) {
				m, want := whole(t, disk), before
				if m.Partitions[0].Position == after[0].Position {
					want = after
				} else if done {
					t.Fatal("a save that returned is gone")
				}
				restoreAnew(t, disk, want)
				must(t, save(disk))
				whole(t, disk)
			},
		},
		"restore": {
			run: func(fsys vfs.FS) error {
				_, err := Restore(ctx, OpenDir(fsys, "archive"), "", "new", RestoreOptions{FS: fsys})
				return err
			},
			check: func(t *testing.T, disk vfs.FS, done bool) {
				whole(t, disk)
				if _, err := disk.Stat("new"); err == nil {
					same(t, disk, before)
				} else if done {
					t.Fatal("a restore that returned is gone")
				} else {
					restoreAnew(t, disk, before)
				}
			},
		},
		"prune": {
			run: func(fsys vfs.FS) error {
				if err := save(fsys); err != nil {
					return err
				}
				_, err := Prune(ctx, OpenDir(fsys, "archive"), PruneOptions{Keep: 1, Now: time.UnixMilli(2_800_000_000_000)})
				return err
			},
			check: func(t *testing.T, disk vfs.FS, _ bool) {
				whole(t, disk)
				target := OpenDir(disk, "archive")
				_, err := Prune(ctx, target, PruneOptions{Keep: 1, Now: time.UnixMilli(2_800_000_000_000)})
				must(t, err)
				v, err := clean(target)
				must(t, err)
				if v.Unused > 0 || v.Snapshots != 1 {
					t.Fatalf("after a second prune: %+v", v)
				}
			},
		},
	}
}

// The power goes at each write of a save, restore and prune in turn.
func TestPowerLoss(t *testing.T) {
	mem, before, after := scene(t)
	for name, a := range acts(t, before, after) {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(8, 8))
			n, crashes := int64(1), 0
			for done := false; !done; n += 1 + rng.Int64N(3) {
				disk := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
				clone, last, err := crashing(disk, n, []int{0, 50, 100}[rng.IntN(3)], a.run)
				must(t, err)
				a.check(t, clone, last)
				done = last
				crashes++
			}
			t.Logf("%d crashes among %d writes", crashes, n)
		})
	}
}

// What a save or a restore has made is there after a loss of power once they have returned, even if they made the directories above.
func TestPowerLossBelowNewDirectories(t *testing.T) {
	ctx := t.Context()
	mem := vfs.NewCrashableMem()
	store, table, err := openTable(mem, "db")
	must(t, err)
	want, err := content{Pairs: map[string]string{}}.mutate(table, 0, rand.New(rand.NewPCG(5, 5)), 40)
	must(t, err)
	_, err = Save(ctx, table, OpenDir(mem, "a/b/archive"), SaveOptions{Partitions: 1, sizes: smallSizes})
	must(t, errors.Join(err, store.Close()))
	disk := mem.CrashClone(vfs.CrashCloneCfg{})
	_, err = Restore(ctx, OpenDir(disk, "a/b/archive"), "", "c/d/new", RestoreOptions{FS: disk})
	must(t, err)
	got, err := restored(disk.CrashClone(vfs.CrashCloneCfg{}), "c/d/new", 1)
	must(t, err)
	if d := cmp.Diff([]content{want}, got); d != "" {
		t.Fatal(d)
	}
}

// The disk is full from the n-th write on, and then has room again.
func TestDiskFull(t *testing.T) {
	mem, before, after := scene(t)
	for name, a := range acts(t, before, after) {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(8, 9))
			n, full := int64(0), 0
			for done := false; !done; n += 1 + rng.Int64N(3) {
				disk := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
				var left atomic.Int64
				left.Store(n)
				err := a.run(faultfs.Wrap(disk, func(op errorfs.Op) error {
					switch op.Kind {
					case errorfs.OpFileWrite, errorfs.OpFileWriteAt, errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpCreate, errorfs.OpReuseForWrite, errorfs.OpMkdirAll:
						if left.Add(-1) < 0 {
							return syscall.ENOSPC
						}
					}
					return nil
				}))
				done = left.Load() >= 0
				if done {
					must(t, err)
				} else {
					full++
				}
				if err != nil {
					wantErr(t, err, syscall.ENOSPC)
					if _, serr := disk.Stat("new.tmp"); serr == nil {
						t.Fatal("new.tmp is left")
					}
				}
				a.check(t, disk, err == nil)
			}
			t.Logf("full %d times among %d writes", full, n)
		})
	}
}

// A directory that cannot be synced is an error. It ends a save before its snapshot is there, and a prune before it removes a block,
// because what these rely on may be lost with the power.
func TestDirectoryNotSynced(t *testing.T) {
	ctx := t.Context()
	for _, c := range []struct {
		what, dir string
		nth       int // which of the directory's syncs fails
		snapshots int // that are there afterwards
	}{
		{"save", "above/archive/blocks", 1, 1},
		{"save", "above/archive/blocks", 2, 2},
		{"save", "above", 1, 1},
		{"prune", "above/archive/blocks", 1, 0},
	} {
		disk := vfs.NewMem()
		archive := OpenDir(disk, "above/archive")
		fixture(t, disk, archive, 60)
		list, err := List(ctx, archive)
		must(t, err)
		before, err := blocksIn(ctx, archive)
		must(t, err)
		syncs := 0
		target := OpenDir(faultfs.Wrap(disk, func(op errorfs.Op) error {
			if op.Kind == errorfs.OpFileSync && op.Path == c.dir {
				if syncs++; syncs == c.nth {
					return syscall.EIO
				}
			}
			return nil
		}), "above/archive")
		if c.what == "save" {
			store, table, serr := openTable(disk, "db")
			must(t, serr)
			_, err = Save(ctx, table, target, SaveOptions{Partitions: 2, sizes: smallSizes})
			must(t, store.Close())
		} else {
			_, err = Prune(ctx, target, PruneOptions{Drop: []string{list[0].ID}})
		}
		wantErr(t, err, syscall.EIO)
		after, err := blocksIn(ctx, archive)
		must(t, err)
		list, err = List(ctx, archive)
		must(t, err)
		if len(after) != len(before) || len(list) != c.snapshots {
			t.Errorf("%+v: %d of %d blocks, and the snapshots %v", c, len(after), len(before), list)
		}
	}
}

// The directories above are synced as far as they can be, the first of them in any case.
func TestSyncAbove(t *testing.T) {
	mem := vfs.NewMem()
	must(t, mem.MkdirAll("a/b/c", dirPerm))
	for _, err := range []error{syscall.EACCES, syscall.EINVAL, errors.ErrUnsupported, syscall.EIO} {
		for dir, fails := range map[string]bool{"a/b": true, "a": err == syscall.EIO} {
			disk := faultfs.Wrap(mem, func(op errorfs.Op) error {
				if op.Kind == errorfs.OpOpenDir && op.Path == dir {
					return err
				}
				return nil
			})
			if got := syncParent(disk, "a/b/c"); errors.Is(got, err) != fails || !fails && got != nil {
				t.Errorf("%s, %v: %v", dir, err, got)
			}
		}
	}
}

// A file that the disk cannot read is damage like any other: a verification and a list go on after it, a prune can
// drop the snapshot, and a save repairs a block.
func TestUnreadable(t *testing.T) {
	ctx := t.Context()
	for _, of := range []func(*Manifest) string{
		func(m *Manifest) string { return manifestName(m.ID) },
		func(m *Manifest) string { return m.Partitions[1].Rooms[0].Blocks[0].Name() },
	} {
		disk := vfs.NewMem()
		fixture(t, disk, OpenDir(disk, "archive"), 60)
		m, err := Get(ctx, OpenDir(disk, "archive"), "")
		must(t, err)
		name := of(m)
		bad := true
		target := OpenDir(faultfs.Wrap(disk, func(op errorfs.Op) error {
			switch {
			case !bad || path.Base(op.Path) != path.Base(name):
			case op.Kind == errorfs.OpFileRead:
				return syscall.EIO
			case op.Kind == errorfs.OpCreate:
				bad = false // a file that is written anew is elsewhere on the disk
			}
			return nil
		}), "archive")
		v, err := Verify(ctx, target, nil, nil)
		must(t, err)
		if len(v.Problems) != 1 || !strings.Contains(v.Problems[0].Err.Error(), name) {
			t.Errorf("%s: problems %v", name, v.Problems)
		}
		if list, err := List(ctx, target); err != nil || len(list) != 1 {
			t.Errorf("%s: listed %v, %v", name, list, err)
		}
		store, table, err := openTable(disk, "db")
		must(t, err)
		_, err = Save(ctx, table, target, SaveOptions{Partitions: 2, Recheck: true, sizes: smallSizes})
		must(t, err)
		must(t, store.Close())
		_, err = Prune(ctx, target, PruneOptions{Drop: []string{m.ID}})
		must(t, err)
		_, err = clean(target)
		must(t, err)
	}
}

// A file that is larger than any block or manifest of its name can be is damage, and is not read into memory.
func TestLargeFile(t *testing.T) {
	ctx, mem := t.Context(), vfs.NewMem()
	dir := t.TempDir()
	target := OpenDir(nil, dir)
	fixture(t, mem, target, 60)
	m, err := Get(ctx, target, "")
	must(t, err)
	block := m.Partitions[1].Rooms[0].Blocks[0]
	for name, most := range map[string]int64{block.Name(): block.Bytes, manifestName(m.ID): maxManifest} {
		file := filepath.Join(dir, name)
		whole, err := os.ReadFile(file)
		must(t, err)
		must(t, os.Truncate(file, 1<<43)) // it takes no room
		v, err := Verify(ctx, target, []string{m.ID}, nil)
		must(t, err)
		says := fmt.Sprintf("%s: offset %d: it has 8796093022208 bytes, must have no more than %d", name, most, most)
		if len(v.Problems) != 1 || !strings.Contains(v.Problems[0].Err.Error(), says) {
			t.Errorf("problems %v, want %s", v.Problems, says)
		}
		must(t, os.WriteFile(file, whole, 0o600))
	}
}

// What has the name of a block or of a manifest and is no file is damage, too. A pipe, which nobody writes to, is not waited for.
func TestNoFile(t *testing.T) {
	ctx, mem := t.Context(), vfs.NewMem()
	dir := t.TempDir()
	target := OpenDir(nil, dir)
	fixture(t, mem, target, 60)
	m, err := Get(ctx, target, "")
	must(t, err)
	for _, name := range []string{m.Partitions[1].Rooms[0].Blocks[0].Name(), manifestName(m.ID)} {
		file := filepath.Join(dir, name)
		for _, other := range []func() error{
			func() error { return os.Mkdir(file, 0o755) },
			func() error { return syscall.Mkfifo(file, 0o644) },
		} {
			must(t, os.Rename(file, file+".whole"))
			must(t, other())
			_, err := target.Get(ctx, name, maxManifest)
			wantErr(t, err, wal.ErrCorrupt)
			v, err := Verify(ctx, target, []string{m.ID}, nil)
			must(t, err)
			if len(v.Problems) != 1 || !strings.Contains(v.Problems[0].Err.Error(), name+": offset 0: it is no file") {
				t.Errorf("%s: problems %v", name, v.Problems)
			}
			must(t, errors.Join(os.Remove(file), os.Rename(file+".whole", file)))
		}
	}
	_, err = clean(target)
	must(t, err)
}

// The disk fails once a restored directory is in its place. Then the error says that the directory is whole: otherwise the user would
// only hear of a failed restore, and then of a directory that is in the way of the next one.
func TestRestoreInPlace(t *testing.T) {
	mem, before, _ := scene(t)
	for _, c := range []struct {
		dir  string
		kind errorfs.OpKind
		path string
		want string // of the error; "": none
	}{
		{"a/new", errorfs.OpOpenDir, "a", "a/new is whole, but may be gone again after a loss of power: "},
		{"b/new", errorfs.OpRemove, "b/new/" + restoring, ""},
	} {
		disk := faultfs.Wrap(mem, func(op errorfs.Op) error {
			if op.Kind == c.kind && op.Path == c.path {
				return syscall.EIO
			}
			return nil
		})
		_, err := Restore(t.Context(), OpenDir(mem, "archive"), "", c.dir, RestoreOptions{FS: disk})
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || !errors.Is(err, syscall.EIO)) {
			t.Errorf("%s: %v, want %q", c.dir, err, c.want)
		}
		got, err := restored(mem, c.dir, 2)
		must(t, err)
		if d := cmp.Diff(before, got); d != "" {
			t.Errorf("%s: %s", c.dir, d)
		}
	}
}

// On a real full disk: a save and a restore fail, and work once there is room.
func TestSmallDisk(t *testing.T) {
	disk, ok := smalldisk.Mount(t, 8)
	if !ok {
		return
	}
	ctx, dir := t.Context(), t.TempDir()
	tableStore, table, err := openTable(nil, dir+"/db")
	must(t, err)
	c, err := content{Pairs: map[string]string{}}.mutate(table, 0, rand.New(rand.NewPCG(3, 3)), 5000)
	must(t, err)
	target := OpenDir(nil, disk+"/archive")
	drop := smalldisk.Fill(t, disk, 100<<10)
	_, err = Save(ctx, table, target, SaveOptions{Partitions: 1, sizes: smallSizes})
	wantErr(t, err, syscall.ENOSPC)
	v, err := clean(target)
	must(t, err)
	if v.Snapshots != 0 {
		t.Fatal("there is a snapshot")
	}
	drop()
	_, err = Save(ctx, table, target, SaveOptions{Partitions: 1})
	must(t, err)
	must(t, tableStore.Close())

	_, err = Prune(ctx, target, PruneOptions{})
	must(t, err)
	drop = smalldisk.Fill(t, disk, 64<<10)
	_, err = Restore(ctx, target, "", disk+"/new", RestoreOptions{})
	wantErr(t, err, syscall.ENOSPC)
	for _, name := range []string{"/new", "/new.tmp"} {
		if _, err := os.Stat(disk + name); err == nil {
			t.Fatalf("%s is left", name)
		}
	}
	drop()
	_, err = Restore(ctx, target, "", disk+"/new", RestoreOptions{})
	must(t, err)
	got, err := restored(vfs.Default, disk+"/new", 1)
	must(t, err)
	if d := cmp.Diff([]content{c}, got); d != "" {
		t.Fatal(d)
	}
	if _, err := clean(target); err != nil {
		t.Fatal(fmt.Errorf("the archive beside it: %w", err))
	}
}
