package wal

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/carillon-scheduler/carillon/internal/faultfs"
	"github.com/carillon-scheduler/carillon/internal/smalldisk"
)

// closeSoon fails the test when Close hangs.
func closeSoon(t testing.TB, s *Store) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.Close() }()
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(time.Minute):
		t.Fatal("Close hangs")
	}
}

// wantFailed checks that a failed store refuses everything with its first cause, and closes.
func wantFailed(t testing.TB, s *Store, cause error) {
	t.Helper()
	select {
	case <-s.Failed():
	default:
		t.Fatal("Failed is not closed")
	}
	first := s.Err()
	wantErr(t, first, ErrFailed)
	wantErr(t, first, cause)
	for range 200 { // enough to fill Pebble's log buffers, where a second write used to panic
		wantErr(t, s.Log().Append([]Record{{1 << 60, make([]byte, 1000)}}), first)
	}
	wantErr(t, s.Update(func(*pebble.Batch) error { return nil }), ErrFailed)
	_, err := readAll(s)
	wantErr(t, err, ErrFailed)
	_, err = s.Log().Get(1)
	wantErr(t, err, ErrFailed)
	wantErr(t, s.Log().Truncate(1<<61), ErrFailed)
	closeSoon(t, s)
}

// A store that is opened on a full disk fails with "no space", and does not report what it could not write as damage.
func TestFullDiskIsNoDamage(t *testing.T) {
	disk := vfs.NewMem()
	var full atomic.Bool
	injected := faultfs.Wrap(disk, func(op errorfs.Op) error {
		if full.Load() && op.Kind == errorfs.OpFileWrite && strings.HasSuffix(op.Path, ".sst") {
			return syscall.ENOSPC
		}
		return nil
	})
	var said bytes.Buffer
	opts := Options{Dir: "db", FS: injected, Logger: slog.New(slog.NewTextHandler(&said, nil))}
	s := open(t, opts)
	_, _, err := fill(s, 1, 100)
	must(t, err)
	must(t, s.Close())
	full.Store(true)
	_, err = OpenStore(opts) // Pebble writes the content of its log into a table
	wantErr(t, err, syscall.ENOSPC)
	if strings.Contains(said.String(), "corrupt") {
		t.Errorf("on a full disk it says: %s", said.String())
	}
}

// fill appends until something fails and says which records were reported as appended, and which were tried.
func fill(s *Store, from uint64, max int) (acked, tried map[uint64]string, err error) {
	rng := rand.New(rand.NewPCG(from, 2))
	noise := rand.NewChaCha8([32]byte{byte(from)})
	acked, tried = map[uint64]string{}, map[uint64]string{}
	for i := range max {
		var recs []Record
		for range 1 + rng.IntN(10) {
			data := make([]byte, 200+rng.IntN(1000))
			_, _ = noise.Read(data)
			recs = append(recs, Record{from, data})
			tried[from] = string(data)
			from++
		}
		if err := s.Log().Append(recs); err != nil {
			return acked, tried, err
		}
		for _, r := range recs {
			acked[r.Seq] = string(r.Data)
		}
		if i%20 == 19 {
			if err := s.Update(func(b *pebble.Batch) error { return b.Set([]byte("t"), fmt.Append(nil, i), nil) }); err != nil {
				return acked, tried, err
			}
		}
	}
	return acked, tried, nil
}

// checkFilled checks that all that was reported is there, and nothing that was never tried.
func checkFilled(t testing.TB, s *Store, acked, tried map[uint64]string) {
	t.Helper()
	got := contents(t, s)
	for seq, data := range acked {
		if got[seq] != data {
			t.Fatalf("record %d was appended and is gone or different", seq)
		}
	}
	for seq, data := range got {
		if tried[seq] != data {
			t.Fatalf("record %d is none that was appended", seq)
		}
	}
	if s.Log().Last() != uint64(len(got)) {
		t.Fatalf("the log ends at %d with %d records from 1", s.Log().Last(), len(got))
	}
}

// The disk is full from the n-th write operation on, of whatever kind and file: the store fails, closes, and
// opens again in the same process when there is room.
func TestDiskFull(t *testing.T) {
	reached := 0
	for n := int64(0); n < 3000; n += 1 + n/8 {
		var left atomic.Int64
		left.Store(n)
		injected := faultfs.Wrap(vfs.NewMem(), func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpRemove &&
				op.Kind != errorfs.OpRemoveAll && op.Kind != errorfs.OpFileClose && left.Add(-1) < 0 {
				return syscall.ENOSPC
			}
			return nil
		})
		opts := Options{Dir: "db", FS: injected, MemTableBytes: minMemTableBytes}
		s, err := OpenStore(opts)
		if err != nil {
			wantErr(t, err, syscall.ENOSPC)
			left.Store(1 << 40)
			open(t, opts)
			continue
		}
		acked, tried, err := fill(s, 1, 400)
		if err == nil {
			must(t, s.Close())
			continue
		}
		reached++
		wantErr(t, err, syscall.ENOSPC)
		wantFailed(t, s, syscall.ENOSPC)
		left.Store(1 << 40)
		s = open(t, opts)
		checkFilled(t, s, acked, tried)
		must(t, s.Log().Append([]Record{{s.Log().Last() + 1, []byte("room again")}}))
		must(t, s.Close())
	}
	if reached < 10 {
		t.Errorf("only %d failures came after the opening", reached)
	}
}

// The disk is full from the n-th write operation of a truncation on, until the store is closed: opened again, the log has
// all that was to stay, and it can be truncated when there is room.
func TestDiskFullAtTruncate(t *testing.T) {
	failed := 0
	for n, done := int64(0), false; !done; n++ {
		var left atomic.Int64
		left.Store(1 << 40)
		injected := faultfs.Wrap(vfs.NewMem(), func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && left.Add(-1) < 0 {
				return syscall.ENOSPC
			}
			return nil
		})
		opts := Options{Dir: "db", FS: injected, MemTableBytes: minMemTableBytes}
		s := open(t, opts)
		acked, _, err := fill(s, 1, 100)
		must(t, err)
		last := s.Log().Last()
		before := last / 2
		left.Store(n)
		truncated := s.Log().Truncate(before)
		must(t, s.Close())
		done = left.Load() >= 0
		left.Store(1 << 40)
		if truncated != nil {
			failed++
			wantErr(t, truncated, syscall.ENOSPC)
		}
		s = open(t, opts)
		for again := range 2 {
			if first := s.Log().First(); first > before || (truncated == nil || again > 0) && first != before {
				t.Fatalf("after %d writes the log begins at %d, to be truncated before %d", n, first, before)
			}
			got := contents(t, s)
			for seq := before; seq <= last; seq++ {
				if got[seq] != acked[seq] {
					t.Fatalf("after %d writes record %d is gone or different", n, seq)
				}
			}
			must(t, s.Log().Truncate(before))
		}
		must(t, s.Log().Append([]Record{{last + 1, []byte("room again")}}))
		must(t, s.Close())
	}
	if failed == 0 {
		t.Error("no truncation failed")
	}
	t.Logf("%d truncations failed", failed)
}

// Once a write has failed nothing changes on disk any more, and Pebble, which is told nothing of it, finds what it wrote.
func TestFenceIsClosed(t *testing.T) {
	disk := vfs.NewMem()
	var done []errorfs.Op
	f := newFence(faultfs.Wrap(disk, func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			done = append(done, op)
		}
		return nil
	}))
	create := func(name string) vfs.File {
		file, err := f.Create(name, vfs.WriteCategoryUnspecified)
		must(t, err)
		return file
	}
	size := func(name string) int64 {
		info, err := f.Stat(name)
		must(t, err)
		return info.Size()
	}
	before := create("before")
	_, err := before.Write([]byte("old"))
	must(t, err)
	f.trip(syscall.ENOSPC)
	done = nil

	_, err = before.Write([]byte("more"))
	_, err2 := before.WriteAt([]byte("other"), 0)
	_, err3 := before.SyncTo(3)
	must(t, errors.Join(err, err2, err3, before.Preallocate(0, 100), before.Sync(), before.SyncData(), before.Close(),
		f.Rename("before", "elsewhere"), f.Link("before", "link"), f.Remove("before"), f.RemoveAll("before"), f.MkdirAll("dir", 0o755)))
	after := create("after")
	_, err = after.Write([]byte("in memory"))
	must(t, errors.Join(err, after.Close()))

	if len(done) > 0 {
		t.Errorf("the disk was asked for %+v", done)
	}
	read, err := f.Open("after")
	must(t, err)
	data := make([]byte, 20)
	if n, _ := read.Read(data); string(data[:n]) != "in memory" || size("after") != int64(n) || size("before") != 3 {
		t.Errorf("it finds %q, and files of %d and %d bytes", data[:n], size("after"), size("before"))
	}
	must(t, read.Close())
}

// unclosable is a file on a file system that tells of a failed write when the file is closed.
type unclosable struct{ vfs.File }

func (f unclosable) Close() error { return errors.Join(syscall.EIO, f.File.Close()) }

// A failure that only closing a file tells fails the store, too; Pebble is told nothing of it.
func TestFailureOfClose(t *testing.T) {
	f := newFence(vfs.NewMem())
	inner, err := f.FS.Create("file", vfs.WriteCategoryUnspecified)
	must(t, err)
	file := &fencedFile{File: unclosable{inner}, fence: f, name: "file"}
	must(t, file.Close())
	wantErr(t, f.err(), ErrFailed)
	wantErr(t, f.err(), syscall.EIO)
}

// Whoever gets the error of a failure finds Failed closed, whichever call met the failure.
func TestFailedAtOnce(t *testing.T) {
	for range 20_000 {
		f := newFence(vfs.NewMem())
		go f.trip(syscall.ENOSPC)
		for f.err() == nil {
			runtime.Gosched()
		}
		select {
		case <-f.failed:
		default:
			t.Fatalf("failed (%v), and Failed is not closed", f.err())
		}
	}
}

// One kind of operation fails once, as on a flaky disk: the store fails all the same, and for good.
func TestOneFailure(t *testing.T) {
	for _, kind := range []errorfs.OpKind{
		errorfs.OpFileWrite, errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpCreate, errorfs.OpReuseForWrite,
		errorfs.OpFileWriteAt,
	} {
		for _, ext := range []string{".log", ".sst", "MANIFEST", "SYNCED"} {
			var armed, hit atomic.Bool
			mem := faultfs.Wrap(vfs.NewMem(), func(op errorfs.Op) error {
				if op.Kind == kind && strings.Contains(op.Path, ext) && armed.CompareAndSwap(true, false) {
					hit.Store(true)
					return syscall.EIO
				}
				return nil
			})
			opts := Options{Dir: "db", FS: mem, MemTableBytes: minMemTableBytes}
			s := open(t, opts)
			before, triedBefore, err := fill(s, 1, 5)
			must(t, err)
			armed.Store(true)
			acked, tried, err := fill(s, s.Log().Last()+1, 300)
			for seq, data := range before {
				acked[seq], tried[seq] = data, triedBefore[seq]
			}
			if !hit.Load() { // there is no operation of this kind on this file
				must(t, err)
				continue
			}
			t.Logf("op %v on %q", kind, ext)
			wantErr(t, err, syscall.EIO)
			wantFailed(t, s, syscall.EIO)
			s = open(t, opts)
			checkFilled(t, s, acked, tried)
			must(t, s.Close())
		}
	}
}

// A real full disk.
func TestRealDiskFull(t *testing.T) {
	dir, ok := smalldisk.Mount(t, 12)
	if !ok {
		return
	}
	drop := smalldisk.Fill(t, dir, 3<<20) // to be dropped later, to make room again: for a compaction of all that is there, too
	opts := Options{Dir: filepath.Join(dir, "db"), MemTableBytes: 512 << 10}
	s := open(t, opts)
	acked, tried, err := fill(s, 1, 100_000)
	wantErr(t, err, syscall.ENOSPC)
	t.Logf("full after %d records: %v", len(acked), err)
	wantFailed(t, s, syscall.ENOSPC)

	// Still full: opening either works or says why, and leaves the directory free.
	if s, err := OpenStore(opts); err != nil {
		wantErr(t, err, syscall.ENOSPC)
	} else {
		must(t, s.Close())
	}

	drop()
	s = open(t, opts)
	checkFilled(t, s, acked, tried)
	next := s.Log().Last() + 1
	must(t, s.Log().Append([]Record{{next, []byte("room again")}}))
	must(t, s.Log().Truncate(next))
	must(t, s.Close())
	s = open(t, opts)
	if d := contents(t, s); len(d) != 1 || d[next] != "room again" {
		t.Fatalf("log holds %d records", len(d))
	}
}

// A real disk that is full, and a log that is truncated step by step until that needs room: what was reported truncated is,
// the rest is there, and it goes on when there is room again.
func TestRealDiskFullAtTruncate(t *testing.T) {
	dir, ok := smalldisk.Mount(t, 6)
	if !ok {
		return
	}
	opts := Options{Dir: filepath.Join(dir, "db"), MemTableBytes: 512 << 10}
	s := open(t, opts)
	want, _, err := fill(s, 1, 500)
	must(t, err)
	last := s.Log().Last()
	var drops []func()
	var truncated error
	before := uint64(1)
	for ; truncated == nil && before < last; before++ {
		if before%100 == 1 { // a compaction may have made room
			drops = append(drops, smalldisk.Fill(t, dir, 0))
		}
		truncated = s.Log().Truncate(before + 1)
	}
	wantErr(t, truncated, syscall.ENOSPC)
	t.Logf("full at the truncation before %d of %d: %v", before, last, truncated)
	wantFailed(t, s, syscall.ENOSPC)

	for _, drop := range drops {
		drop()
	}
	s = open(t, opts)
	if first := s.Log().First(); first != before-1 && first != before { // the last truncation, which failed, may be on disk
		t.Fatalf("the log begins at %d, truncated before %d and tried before %d", first, before-1, before)
	}
	for seq := s.Log().First(); seq <= last; seq++ {
		if data, err := s.Log().Get(seq); err != nil || string(data) != want[seq] {
			t.Fatalf("record %d is gone or different: %v", seq, err)
		}
	}
	must(t, s.Log().Truncate(last))
	if d := contents(t, s); len(d) != 1 || d[last] != want[last] {
		t.Fatalf("the log holds %d records", len(d))
	}
}

// Flipped bits on a real disk: an error, or exactly what was written; never anything else.
func TestBitFlips(t *testing.T) {
	opts := Options{Dir: t.TempDir(), MemTableBytes: 1 << 20}
	want := writeAll(t, opts)
	files := readFiles(t, opts.Dir)
	var live string // the file of Pebble's log in use; the others were flushed and wait to be used again
	for path := range files {
		if filepath.Ext(path) == ".log" {
			live = max(live, path)
		}
	}
	rng := rand.New(rand.NewPCG(3, 3))
	for _, path := range slices.Sorted(maps.Keys(files)) {
		data := files[path]
		if len(data) == 0 {
			continue
		}
		found, unclassed := 0, 0
		const flips = 8
		for range flips {
			files.restore(t, opts.Dir)
			damaged := bytes.Clone(data)
			at := rng.IntN(len(data))
			damaged[at] ^= 1 << rng.IntN(8)
			must(t, os.WriteFile(path, damaged, 0o644))
			if err := openAndRead(t, opts, want); err != nil {
				found++
				if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
					unclassed++
					t.Logf("%s at %d: no class: %v", filepath.Base(path), at, err)
				}
			}
			if t.Failed() {
				t.Fatalf("with a bit flipped at %d of %d in %s", at, len(data), path)
			}
		}
		t.Logf("%s, %d bytes: %d of %d flips found, the others harmless", filepath.Base(path), len(data), found, flips)
		if path != live && filepath.Ext(path) != ".sst" {
			continue
		}
		if found < flips/2 { // not all: a log file that is used again ends in old records
			t.Errorf("%s: only %d of %d flips found", path, found, flips)
		}
		if unclassed > 0 {
			t.Errorf("%s: %d errors are not ErrCorrupt", path, unclassed)
		}
	}
}

// writeAll leaves a store with records in tables, in log files that were flushed, and in the one in use.
func writeAll(t *testing.T, opts Options) (want map[uint64]string) {
	t.Helper()
	s := open(t, opts)
	want = map[uint64]string{}
	put := func(batches int) {
		acked, _, err := fill(s, s.Log().Last()+1, batches)
		must(t, err)
		maps.Copy(want, acked)
	}
	put(100)
	must(t, s.db.Flush())
	put(80)
	// A large batch: after it, Pebble's own sync offsets lag behind.
	var recs []Record
	for i := range 200 {
		seq := s.Log().Last() + 1 + uint64(i)
		recs = append(recs, Record{seq, []byte(strings.Repeat(fmt.Sprint(seq), 200))})
		want[seq] = string(recs[i].Data)
	}
	must(t, s.Log().Append(recs))
	put(3)
	must(t, s.Close())
	return want
}

// openAndRead opens a store and reads all of it. Either there is an error, or it has just the records that are wanted.
func openAndRead(t *testing.T, opts Options, want map[uint64]string) error {
	t.Helper()
	s, err := OpenStore(opts)
	if err != nil {
		return err
	}
	defer closeSoon(t, s)
	got, err := readAll(s)
	if err != nil {
		return err
	}
	if last := slices.Max(slices.Collect(maps.Keys(want))); s.Log().Last() != last || len(got) != len(want) {
		t.Errorf("%d records to %d, want %d to %d", len(got), s.Log().Last(), len(want), last)
	}
	for seq, data := range got {
		if want[seq] != data {
			t.Errorf("record %d is wrong", seq)
		}
	}
	return nil
}

// files are the regular files of a directory and their contents, by path.
type files map[string][]byte

func readFiles(t *testing.T, dir string) files {
	t.Helper()
	all := files{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		all[path], err = os.ReadFile(path)
		return err
	}))
	return all
}

// restore makes the directory what it was.
func (f files) restore(t *testing.T, dir string) {
	t.Helper()
	must(t, os.RemoveAll(dir))
	must(t, os.MkdirAll(dir, 0o755))
	for path, data := range f {
		must(t, os.WriteFile(path, data, 0o644))
	}
}

// A damaged end of Pebble's log looks like one that a crash tore; the mark tells them apart.
func TestLostTail(t *testing.T) {
	opts := Options{Dir: t.TempDir()}
	s := open(t, opts)
	must(t, s.Log().Append([]Record{{1, []byte("one")}}))
	must(t, s.Log().Append([]Record{{2, []byte("two, the one that is damaged")}}))
	must(t, s.Log().Append([]Record{{3, []byte("three")}}))
	must(t, s.Close())
	logs, err := filepath.Glob(opts.Dir + "/*.log")
	must(t, err)
	hit := false
	for _, path := range logs {
		data, err := os.ReadFile(path)
		must(t, err)
		if at := strings.Index(string(data), "three"); at >= 0 {
			hit = true
			data[at] ^= 1
			must(t, os.WriteFile(path, data, 0o644))
		}
	}
	if !hit {
		t.Fatal("the record is in no log file")
	}
	_, err = OpenStore(opts)
	wantErr(t, err, ErrCorrupt)
	var loss *LossError
	if !errors.As(err, &loss) || loss.Last != 2 || loss.SyncedLast != 3 || loss.Lost != 1 || loss.Dir != opts.Dir {
		t.Fatalf("got %+v (%v)", loss, err)
	}
	// The way out: open it with the loss, which is logged; then all is well again.
	var said bytes.Buffer
	allow := opts
	allow.AllowLoss, allow.Logger = true, slog.New(slog.NewTextHandler(&said, nil))
	s = open(t, allow)
	if !strings.Contains(said.String(), "lost 1 synced batches") {
		t.Errorf("it says: %s", said.String())
	}
	if s.Log().Last() != 2 {
		t.Fatalf("the log ends at %d", s.Log().Last())
	}
	must(t, s.Close()) // nothing was written, but opening with the loss has settled it
	if mark, err := readMark(vfs.Default, opts.Dir); err != nil || mark.count != s.count || mark.last != 2 {
		t.Errorf("the mark is %+v, %v; want count %d, and last 2", mark, err, s.count)
	}
	s = open(t, opts)
	must(t, s.Log().Append([]Record{{3, []byte("three, from elsewhere")}}))
	must(t, s.Close())
	s = open(t, opts)
	if got := contents(t, s); got[3] != "three, from elsewhere" {
		t.Fatalf("log is %v", got)
	}
}

// What the store keeps beside the records is checked when it opens.
func TestBadFields(t *testing.T) {
	for _, field := range [][2]string{
		{string(lastKey), "short"},
		{string(countKey), "short"},
		{string(formatKey), ""},
		{string(formatKey), "\x00"},
		{string(formatKey), "\x02\x02"},
		{string(logStart) + "\x00", "before the first"},
		{string(logStart) + "short", "behind the last"},
	} {
		opts := Options{Dir: "db", FS: vfs.NewMem()}
		s := open(t, opts)
		must(t, s.Log().Append([]Record{{1, nil}}))
		must(t, s.db.Set([]byte(field[0]), []byte(field[1]), pebble.Sync))
		must(t, s.Close())
		s, err := OpenStore(opts)
		if err == nil {
			_ = s.Close() // the test has failed
		}
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("with %q under %q: %v", field[1], field[0], err)
		}
	}
}

// A record under another's key, or changed before Pebble saw it, is caught by its own checksum.
func TestRecordChecksum(t *testing.T) {
	s := open(t, Options{Dir: "db", FS: vfs.NewMem()})
	must(t, s.Log().Append([]Record{{1, []byte("one")}, {2, []byte("two")}}))
	value, err := s.get(logKey(1))
	must(t, err)
	must(t, s.Update(func(b *pebble.Batch) error { return b.Set(logKey(2), value, nil) }))
	_, err = s.Log().Get(2)
	wantErr(t, err, ErrCorrupt)
	if !strings.Contains(err.Error(), "record 2") {
		t.Errorf("%q does not name the record", err)
	}
	seen := 0
	wantErr(t, s.Log().Read(0, func(Record) error { seen++; return nil }), ErrCorrupt)
	if seen != 1 {
		t.Errorf("read %d records before the corrupt one, want 1", seen)
	}
	wantErr(t, s.Log().Append([]Record{{2, []byte("two")}}), ErrCorrupt) // which is no conflict
}
