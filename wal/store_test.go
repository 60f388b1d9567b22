package wal

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

func open(t testing.TB, opts Options) *Store {
	t.Helper()
	s, err := OpenStore(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
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

// contents reads the whole log.
func contents(t testing.TB, s *Store) map[uint64]string {
	t.Helper()
	got, err := readAll(s)
	must(t, err)
	return got
}

func readAll(s *Store) (map[uint64]string, error) {
	got := map[uint64]string{}
	last := uint64(0)
	err := s.Log().Read(0, func(r Record) error {
		if r.Seq <= last {
			return fmt.Errorf("read %d after %d", r.Seq, last)
		}
		last = r.Seq
		got[r.Seq] = string(r.Data)
		return nil
	})
	return got, err
}

func TestClosed(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	wait := submit(s.Log(), []Record{{1, []byte("x")}})
	must(t, s.Close())
	must(t, s.Close())
	must(t, wait()) // Close ends the syncs under way
	wantErr(t, s.Update(func(*pebble.Batch) error { return nil }), ErrClosed)
	wantErr(t, s.Log().Append([]Record{{2, nil}}), ErrClosed)
	wantErr(t, s.Log().Read(0, func(Record) error { return nil }), ErrClosed)
	_, err := s.Log().Get(1)
	wantErr(t, err, ErrClosed)
	wantErr(t, s.Log().Truncate(2), ErrClosed)
	_, err = s.NewSSTable()
	wantErr(t, err, ErrClosed)
	wantErr(t, s.Ingest(nil), ErrClosed)
	_, err = s.Snapshot()
	wantErr(t, err, ErrClosed)
	if s.Metrics() != nil {
		t.Error("a closed store has metrics")
	}
}

// A reader in the middle of the log does not hold up Close.
func TestCloseEndsRead(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	must(t, s.Log().Append([]Record{{1, nil}, {2, nil}, {3, nil}}))
	closed := make(chan error)
	err := s.Log().Read(0, func(r Record) error {
		if r.Seq > 1 {
			t.Errorf("record %d was read after Close had begun", r.Seq)
		}
		go func() { closed <- s.Close() }()
		for !s.ending.Load() {
		}
		return nil
	})
	wantErr(t, err, ErrClosed)
	must(t, <-closed)
}

// Close waits for a snapshot, which learns of it, and leaves no file open.
func TestCloseWaitsForSnapshot(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, Options{Dir: "db", FS: fs})
	v, err := s.Snapshot()
	must(t, err)
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	for s.Metrics() != nil {
		runtime.Gosched()
	}
	for range 10_000 {
		runtime.Gosched()
	}
	wantErr(t, v.Next(), ErrClosed)
	if len(closed) > 0 {
		t.Error("the store closed beside a snapshot")
	}
	must(t, v.Close())
	must(t, <-closed)

	fs.UseWindowsSemantics(true) // a file that is open cannot be removed
	files, err := fs.List("db")
	must(t, err)
	for _, name := range files {
		if info, err := fs.Stat("db/" + name); err != nil || !info.IsDir() {
			must(t, errors.Join(err, fs.Remove("db/"+name)))
		}
	}
}

// Directories of a store on disk are closed to others than its user and group.
func TestOthersCannotEnter(t *testing.T) {
	dir := t.TempDir() + "/made/store"
	open(t, Options{Dir: dir})
	for _, d := range []string{dir, path.Dir(dir), path.Join(dir, tableDir)} {
		info, err := os.Stat(d)
		must(t, err)
		if info.Mode()&0o027 != 0 {
			t.Errorf("%s has mode %s", d, info.Mode())
		}
	}
}

func TestLockedInProcess(t *testing.T) {
	dir := t.TempDir()
	open(t, Options{Dir: dir})
	_, err := OpenStore(Options{Dir: dir})
	wantErr(t, err, ErrLocked)
	if !strings.Contains(err.Error(), dir) {
		t.Errorf("%q does not name %s", err, dir)
	}
}

// hold opens the store and keeps it until standard input ends.
func hold(dir string) {
	s, err := OpenStore(Options{Dir: dir})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held")
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = s.Close()
}

func TestLockedByProcess(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CARILLON_TEST_HOLD="+dir)
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	must(t, err)
	if line != "held\n" {
		t.Fatalf("the other process says %q", line)
	}
	_, err = OpenStore(Options{Dir: dir})
	wantErr(t, err, ErrLocked)
	must(t, stdin.Close())
	must(t, cmd.Wait())
	open(t, Options{Dir: dir})
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{
		{},
		{Dir: "x", CacheBytes: -1},
		{Dir: "x", MemTableBytes: 1},
		{Dir: "x", MemTableBytes: 2 << 30},
		{Dir: "x", Profile: ProfileTable + 1},
	} {
		if _, err := OpenStore(o); err == nil {
			t.Errorf("OpenStore(%+v) succeeded", o)
		}
	}
	file := t.TempDir() + "/file"
	must(t, os.WriteFile(file, nil, 0o644))
	if _, err := OpenStore(Options{Dir: file + "/below"}); err == nil {
		t.Error("a store below a file")
	}
}

func TestOtherFormat(t *testing.T) {
	s := open(t, Options{Dir: "new", FS: vfs.NewMem()})
	if format, err := s.get(formatKey); err != nil || !bytes.Equal(format, []byte{storeFormat}) {
		t.Errorf("the format of a new store is % x, %v", format, err)
	}
	must(t, s.Close())
	for _, format := range []byte{storeFormat - 1, storeFormat + 1} {
		opts := Options{Dir: "db", FS: vfs.NewMem()}
		s := open(t, opts)
		must(t, s.Update(func(b *pebble.Batch) error { return b.Set(formatKey, []byte{format}, nil) }))
		must(t, s.Close())
		_, err := OpenStore(opts)
		wantErr(t, err, ErrVersion)
	}

	opts := Options{Dir: "db", FS: vfs.NewMem()} // of a later Pebble
	marker := storeFile(t, opts, "marker.format-version.*")
	must(t, opts.FS.Rename(marker, strings.TrimSuffix(marker, path.Ext(marker))+".999"))
	_, err := OpenStore(opts)
	wantErr(t, err, ErrVersion)

	_, err = decodeRecord(1, []byte{recordVersion + 1, 0, 0, 0, 0})
	wantErr(t, err, ErrVersion)
	_, err = decodeMark([]byte{markVersion + 1})
	wantErr(t, err, ErrVersion)
}

// storeFile makes a store whose only record is in a table, and returns the path of the file of it that has a name of this form.
func storeFile(t *testing.T, opts Options, pattern string) string {
	t.Helper()
	s := open(t, opts)
	must(t, s.Log().Append([]Record{{1, []byte("kept")}}))
	must(t, s.Close())
	must(t, open(t, opts).Close()) // which moves the content of Pebble's log into a table
	files, err := opts.FS.List(opts.Dir)
	must(t, err)
	for _, name := range files {
		if ok, _ := path.Match(pattern, name); ok {
			return opts.FS.PathJoin(opts.Dir, name)
		}
	}
	t.Fatalf("no %s in %q", pattern, files)
	return ""
}

// A mark that names an older manifest, which is gone, is no loss: Pebble had just replaced that manifest when the process was killed.
func TestMarkOfOlderManifest(t *testing.T) {
	opts := Options{Dir: "db", FS: vfs.NewMem()}
	path := storeFile(t, opts, syncedFile)
	old, err := readFile(opts.FS, path, markSize)
	must(t, err)
	mark, err := decodeMark(old)
	must(t, err)
	for range 2 { // Pebble keeps one manifest that it has replaced
		must(t, open(t, opts).Close())
	}
	if _, err := opts.FS.Stat(opts.FS.PathJoin(opts.Dir, mark.manifest.name)); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("%s is there: %v", mark.manifest.name, err)
	}
	f, err := opts.FS.Create(path, vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = f.Write(old)
	must(t, errors.Join(err, f.Close()))
	s := open(t, opts)
	if got := contents(t, s); got[1] != "kept" {
		t.Errorf("it has %v", got)
	}
	must(t, s.Close())
}

// Without the file that names the manifest in use, Pebble would begin anew and delete what was there. OpenStore refuses before that.
func TestLostMarker(t *testing.T) {
	opts := Options{Dir: "db", FS: vfs.NewMem()}
	marker := storeFile(t, opts, "marker.manifest.*")
	must(t, opts.FS.Remove(marker))
	_, err := OpenStore(opts)
	wantErr(t, err, ErrCorrupt)
	if !strings.Contains(err.Error(), "marker.manifest") {
		t.Error(err)
	}

	f, err := opts.FS.Create(marker, vfs.WriteCategoryUnspecified)
	must(t, err)
	must(t, f.Close())
	s := open(t, opts)
	if got := contents(t, s); got[1] != "kept" {
		t.Errorf("it has %v", got)
	}
	must(t, s.Close())
}

// The same if SYNCED is gone, too, and the file that tells Pebble's format: what is left shows that this was a store. Only a directory
// in which a store was begun is taken for a new one.
func TestLostMarkers(t *testing.T) {
	removed := func(opts Options, pattern string) {
		files, err := opts.FS.List(opts.Dir)
		must(t, err)
		for _, name := range files {
			if ok, _ := path.Match(pattern, name); ok {
				must(t, opts.FS.Remove(opts.FS.PathJoin(opts.Dir, name)))
			}
		}
	}
	var opts Options
	for _, pattern := range []string{"", "*.sst", "*.log"} {
		opts = Options{Dir: "db", FS: vfs.NewMem()}
		storeFile(t, opts, "*.sst")
		removed(opts, "marker.*")
		removed(opts, syncedFile)
		removed(opts, pattern)
		_, err := OpenStore(opts)
		wantErr(t, err, ErrCorrupt)
		if err == nil || !strings.Contains(err.Error(), "marker.manifest") {
			t.Error(err)
		}
	}
	removed(opts, "*.sst")
	s := open(t, opts)
	if got := contents(t, s); len(got) > 0 {
		t.Errorf("it has %v", got)
	}
	must(t, s.Close())
}

// A copy of a directory may have an older file that names the manifest in use, for example one that was made while the store was open.
// Pebble would go on from the older manifest, delete the tables that it does not list, and miss records in the middle of the log.
func TestOlderMarker(t *testing.T) {
	for _, kept := range []bool{true, false} { // the newer manifest
		opts := Options{Dir: "db", FS: vfs.NewMem()}
		marker := storeFile(t, opts, "marker.manifest.*")
		s := open(t, opts)
		must(t, s.Log().Append([]Record{{2, []byte("later")}}))
		must(t, s.Close())
		files, err := opts.FS.List(opts.Dir)
		must(t, err)
		var manifests []string
		for _, name := range files {
			if strings.HasPrefix(name, "marker.manifest.") {
				marker = opts.FS.PathJoin(opts.Dir, name)
			} else if strings.HasPrefix(name, manifestPrefix) {
				manifests = append(manifests, name)
			}
		}
		slices.Sort(manifests)
		if len(manifests) != 2 {
			t.Fatalf("the manifests are %q", manifests)
		}
		older := strings.Replace(marker, manifests[1], manifests[0], 1)
		must(t, opts.FS.Rename(marker, older))
		newer := opts.FS.PathJoin(opts.Dir, manifests[1])
		if !kept {
			must(t, opts.FS.Rename(newer, "aside"))
		}
		_, err = OpenStore(opts)
		wantErr(t, err, ErrCorrupt)
		if err == nil || !strings.Contains(err.Error(), "the manifest in use was "+manifests[1]) {
			t.Error(err)
		}

		must(t, opts.FS.Rename(older, marker))
		if !kept {
			must(t, opts.FS.Rename("aside", newer))
		}
		s = open(t, opts)
		if got := contents(t, s); got[1] != "kept" || got[2] != "later" {
			t.Errorf("it has %v", got)
		}
		must(t, s.Close())
	}
}

// A manifest that Pebble begins while the store is open is in use from its second sync on: a crash before that may leave the file that
// names the one before.
func TestBegunManifest(t *testing.T) {
	f := newFence(vfs.NewMem())
	named := ""
	changed := func() { named = f.synced.Load().name }
	sync := func(file vfs.File, want string) {
		t.Helper()
		_, err := file.Write([]byte("edit"))
		must(t, errors.Join(err, file.Sync()))
		if named != want {
			t.Errorf("%q is in use, want %q", named, want)
		}
	}
	create := func(name string) vfs.File {
		file, err := f.Create(name, vfs.WriteCategoryUnspecified)
		must(t, err)
		return file
	}
	first := create("MANIFEST-000001")
	sync(first, "") // the store is not open yet
	f.onManifest.Store(&changed)
	sync(first, "MANIFEST-000001")
	second := create("MANIFEST-000002")
	sync(second, "MANIFEST-000001")
	sync(second, "MANIFEST-000002")
}

// Files that are missing or of another size are damage, too.
func TestLostFiles(t *testing.T) {
	for pattern, word := range map[string]string{"*.sst": "sstable", "marker.format-version.*": "marker.format-version"} {
		opts := Options{Dir: "db", FS: vfs.NewMem()}
		must(t, opts.FS.Remove(storeFile(t, opts, pattern)))
		_, err := OpenStore(opts)
		wantErr(t, err, ErrCorrupt)
		if !strings.Contains(err.Error(), word) {
			t.Error(err)
		}
	}

	opts := Options{Dir: "db", FS: vfs.NewMem()}
	f, err := opts.FS.OpenReadWrite(storeFile(t, opts, "*.sst"), vfs.WriteCategoryUnspecified)
	must(t, err)
	info, err := f.Stat()
	must(t, err)
	_, err = f.WriteAt([]byte{0}, info.Size())
	must(t, errors.Join(err, f.Close()))
	_, err = OpenStore(opts)
	wantErr(t, err, ErrCorrupt)
}

// A mark that cannot be read is refused, because without it nothing shows a loss. One that is gone, or was never written, is not.
func TestBadMark(t *testing.T) {
	opts := Options{Dir: "db", FS: vfs.NewMem()}
	good := encodeMark(markState{count: 1})
	flipped := bytes.Clone(good)
	flipped[20] ^= 1
	for _, c := range []struct {
		mark []byte
		want error
	}{
		{flipped, ErrCorrupt},
		{good[:markSize-1], ErrCorrupt},
		{append(bytes.Clone(good), 0), ErrCorrupt},
		{append([]byte{markVersion + 1}, good[1:]...), ErrVersion},
		{nil, nil},
	} {
		path := storeFile(t, opts, syncedFile)
		f, err := opts.FS.Create(path, vfs.WriteCategoryUnspecified)
		must(t, err)
		_, err = f.Write(c.mark)
		must(t, errors.Join(err, f.Close()))
		s, err := OpenStore(opts)
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("with the mark % x: %v, want %v", c.mark, err, c.want)
		}
		if err == nil {
			must(t, s.Close())
		}
		must(t, opts.FS.Remove(path))
	}
}

// tableKeys are the keys of the room that is used for tables here.
func tableKeys(t *testing.T, s *Store) (keys []string) {
	t.Helper()
	v, err := s.Snapshot()
	must(t, err)
	it, err := v.NewIter(&pebble.IterOptions{LowerBound: []byte{TableRoom}, UpperBound: []byte{TableRoom + 1}})
	must(t, err)
	for ok := it.First(); ok; ok = it.Next() {
		must(t, v.Next())
		keys = append(keys, string(it.Key()))
	}
	must(t, it.Close())
	must(t, v.Close())
	return keys
}

// Tables delete what is in the store, one by one and by ranges, but not what they bring themselves.
func TestTablesDelete(t *testing.T) {
	s := open(t, Options{Dir: "db", FS: vfs.NewMem(), Profile: ProfileTable})
	ingest := func(fill func(*SSTable)) {
		tb, err := s.NewSSTable()
		must(t, err)
		fill(tb)
		must(t, tb.Close())
		must(t, s.Ingest([]*SSTable{tb}))
	}
	ingest(func(tb *SSTable) {
		for _, k := range []string{"ta", "tb", "tc", "td", "te"} {
			must(t, tb.Set([]byte(k), nil))
		}
	})
	ingest(func(tb *SSTable) {
		must(t, tb.Delete([]byte("ta")))
		must(t, tb.DeleteRange([]byte("tc"), []byte("te")))
		must(t, tb.Set([]byte("tcc"), nil))
	})
	if got := tableKeys(t, s); fmt.Sprint(got) != "[tb tcc te]" {
		t.Errorf("keys %q, want tb, tcc, te", got)
	}
	ingest(func(tb *SSTable) { must(t, tb.DeleteRange([]byte("t"), []byte("u"))) })
	if got := tableKeys(t, s); got != nil {
		t.Errorf("keys %q are left", got)
	}
	// One that lies over what is in the memtable does not wait in Pebble's log for its flush: a loss there would go unnoticed.
	must(t, s.Update(func(b *pebble.Batch) error { return b.Set([]byte("tf"), nil, nil) }))
	ingest(func(tb *SSTable) { must(t, tb.Delete([]byte("tf"))) })
	must(t, s.db.Flush())
	if late := s.Metrics().Flush.AsIngestCount; late > 0 {
		t.Errorf("%d tables were in the log only", late)
	}
}

// A store of tables answers from filters, in the bottom level, too, and is otherwise a store like that of a log.
func TestTableProfile(t *testing.T) {
	opts := Options{Dir: "db", FS: vfs.NewMem(), Profile: ProfileTable}
	s := open(t, opts)
	if s.opts.CacheBytes != 64<<20 || s.opts.MemTableBytes != 2<<20 {
		t.Errorf("defaults are %d and %d bytes", s.opts.CacheBytes, s.opts.MemTableBytes)
	}
	must(t, s.Log().Append([]Record{{1, []byte("x")}}))
	tb, err := s.NewSSTable()
	must(t, err)
	for i := range 1000 {
		must(t, tb.Set(fmt.Appendf(nil, "c%04d", 2*i), nil))
	}
	must(t, tb.Close())
	must(t, s.Ingest([]*SSTable{tb}))
	if bottom := s.Metrics().Levels[6]; bottom.TablesCount != 1 {
		t.Fatalf("the bottom level has %d tables", bottom.TablesCount)
	}
	v, err := s.Snapshot()
	must(t, err)
	it, err := v.NewIter(&pebble.IterOptions{UseL6Filters: true})
	must(t, err)
	for i := range 1000 {
		if it.SeekPrefixGE(fmt.Appendf(nil, "c%04d", 2*i+1)) {
			t.Errorf("%d is there", 2*i+1)
		}
	}
	must(t, it.Close())
	must(t, v.Close())
	if hits := s.Metrics().Filter.Hits; hits < 900 {
		t.Errorf("filters knew %d of 1000 absent keys", hits)
	}
	must(t, s.Close())
	s = open(t, opts)
	if d := contents(t, s); d[1] != "x" {
		t.Errorf("log holds %v", d)
	}
}

// Nothing of an update is written if what fills it fails.
func TestUpdateGivenUp(t *testing.T) {
	s := open(t, Options{Dir: "db", FS: vfs.NewMem()})
	given := errors.New("given up")
	wantErr(t, s.Update(func(b *pebble.Batch) error { return errors.Join(b.Set([]byte("ta"), nil, nil), given) }), given)
	must(t, s.Update(func(b *pebble.Batch) error { return b.Set([]byte("tb"), nil, nil) }))
	if got := tableKeys(t, s); fmt.Sprint(got) != "[tb]" {
		t.Errorf("keys %q, want tb", got)
	}
}

// A table takes keys and ranges only in their order.
func TestTableOrder(t *testing.T) {
	s := open(t, Options{Dir: "db", FS: vfs.NewMem()})
	for what, write := range map[string]func(*SSTable) error{
		"a pair":     func(tb *SSTable) error { return tb.Set([]byte("ta"), nil) },
		"a deletion": func(tb *SSTable) error { return tb.Delete([]byte("ta")) },
		"a range":    func(tb *SSTable) error { return tb.DeleteRange([]byte("ta"), []byte("tb")) },
	} {
		tb, err := s.NewSSTable()
		must(t, err)
		must(t, errors.Join(tb.Set([]byte("tb"), nil), tb.DeleteRange([]byte("tb"), []byte("tc"))))
		if write(tb) == nil {
			t.Errorf("%s is taken out of order", what)
		}
		_ = tb.Close() // it has failed
	}
}

// A table is ingested whole; one that is removed, or that a crash left, leaves nothing.
func TestTables(t *testing.T) {
	opts := Options{Dir: "db", FS: vfs.NewMem()}
	s := open(t, opts)
	table := func(keys ...string) *SSTable {
		tb, err := s.NewSSTable()
		must(t, err)
		for _, k := range keys {
			must(t, tb.Set([]byte(k), []byte("v")))
		}
		must(t, tb.Close())
		return tb
	}
	in, out := table("ta", "tb"), table("tc")
	table("td") // left behind
	must(t, s.Ingest([]*SSTable{in}))
	must(t, out.Remove())
	must(t, s.Close())
	s = open(t, opts)
	if got := tableKeys(t, s); fmt.Sprint(got) != "[ta tb]" {
		t.Errorf("keys %q, want ta, tb", got)
	}
	left, err := opts.FS.List("db/" + tableDir)
	must(t, err)
	if len(left) != 0 {
		t.Errorf("%q are left", left)
	}
}

// The bytes of docs/formats/wal.md.
func TestGolden(t *testing.T) {
	value := make([]byte, recordHeader+5)
	putRecord(value, Record{Seq: 258, Data: []byte("hello")})
	mark := markState{count: 3, last: 258, manifest: manifest{name: "MANIFEST-000001", size: 162, sum: 0x01020304}}
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"log key", logKey(258), "6c 00 00 00 00 00 00 01 02"},
		{"record", value, goldenRecord},
		{"format key", formatKey, "6d 00 66 6f 72 6d 61 74"},
		{"last key", lastKey, "6d 00 6c 61 73 74"},
		{"count key", countKey, "6d 00 73 79 6e 63 65 64"},
		{"mark", encodeMark(mark), goldenMark},
	} {
		if got := fmt.Sprintf("% x", c.got); got != c.want {
			t.Errorf("%s is\n%s, want\n%s", c.name, got, c.want)
		}
		doc, err := os.ReadFile("../docs/formats/wal.md")
		must(t, err)
		if !bytes.Contains(doc, []byte(c.want)) {
			t.Errorf("docs/formats/wal.md does not show the %s: %s", c.name, c.want)
		}
	}
	data, err := decodeRecord(258, value)
	must(t, err)
	if string(data) != "hello" {
		t.Errorf("decoded %q", data)
	}
	_, err = decodeRecord(259, value)
	wantErr(t, err, ErrCorrupt)
	if got, err := decodeMark(encodeMark(mark)); got != mark || err != nil {
		t.Errorf("decoded mark %+v, %v", got, err)
	}
}

const (
	goldenRecord = "01 d0 d7 e4 96 68 65 6c 6c 6f"
	goldenMark   = "01 00 00 00 00 00 00 00 03 00 00 00 00 00 00 01 02 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 a2 01 02 03 04 90 26 eb 7c"
)

func FuzzDecodeRecord(f *testing.F) {
	for _, data := range []string{"", "x", strings.Repeat("long", 100)} {
		value := make([]byte, recordHeader+len(data))
		putRecord(value, Record{Seq: 7, Data: []byte(data)})
		f.Add(uint64(7), value)
		f.Add(uint64(8), value)
		f.Add(uint64(7), value[:len(value)-1])
	}
	f.Add(uint64(0), []byte{})
	f.Add(uint64(7), []byte{recordVersion + 1})
	f.Fuzz(func(t *testing.T, seq uint64, value []byte) {
		data, err := decodeRecord(seq, value)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
				t.Fatalf("error without class: %v", err)
			}
			return
		}
		again := make([]byte, recordHeader+len(data))
		putRecord(again, Record{Seq: seq, Data: data})
		if !bytes.Equal(again, value) {
			t.Fatalf("% x decodes to what encodes as % x", value, again)
		}
	})
}
