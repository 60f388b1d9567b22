package wal

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// syncedFile is the name of the file with the mark.
const syncedFile = "SYNCED"

// mark remembers, outside of Pebble, what was synced, so that a loss is noticed.
//
// Pebble cannot tell a damaged end of its log from one that a crash tore, and silently cuts the log there.
// Its chunks carry the offset that was synced before them, so damage before that offset should be an
// error. But in 2.1.7 that offset counts only what was flushed out of a partly filled 32 KiB block
// (record.LogWriter.flushLoop): after large batches it lags far behind, and megabytes of synced records
// may vanish without an error. So every synced batch carries a count, and the count of the newest one is written
// here after its sync. A store that opens with a smaller count has lost synced batches.
//
// Pebble cuts a damaged manifest, which lists the tables, in the same way. Then whole tables of records are gone
// from the middle, which the count does not show. A manifest only grows, and rarely. So the mark also has the size and
// the checksum of its synced part.
//
// The mark itself is not synced: it is one small write to the page cache for each commit. A killed process loses
// nothing of it. After a power loss it may be old, which can hide a loss, but never report one that did not happen.
type mark struct {
	mu    sync.Mutex
	fence *fence
	file  vfs.File
	state markState
}

type markState struct {
	count    uint64 // of the newest synced batch
	last     uint64 // the log's last sequence then
	manifest manifest
}

// The mark's bytes: version, count, last, the manifest's number, size and crc32c, and a crc32c of all these;
// integers are big-endian.
const (
	markVersion = 1
	markSize    = 1 + 8 + 8 + 8 + 8 + 4 + 4
)

func encodeMark(s markState) []byte {
	b := make([]byte, 0, markSize)
	b = append(b, markVersion)
	b = binary.BigEndian.AppendUint64(b, s.count)
	b = binary.BigEndian.AppendUint64(b, s.last)
	b = binary.BigEndian.AppendUint64(b, manifestNumber(s.manifest.name))
	b = binary.BigEndian.AppendUint64(b, s.manifest.size)
	b = binary.BigEndian.AppendUint32(b, s.manifest.sum)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// manifestNumber is the number in a manifest's name; 0, which none of Pebble's has, if there is no manifest.
func manifestNumber(name string) uint64 {
	number, err := strconv.ParseUint(strings.TrimPrefix(name, manifestPrefix), 10, 64)
	if err != nil {
		return 0
	}
	return number
}

func decodeMark(b []byte) (s markState, err error) {
	if len(b) > 0 && b[0] > markVersion {
		return s, fmt.Errorf("%w: mark version %d, this binary reads %d", ErrVersion, b[0], markVersion)
	}
	if len(b) != markSize || b[0] != markVersion {
		return s, fmt.Errorf("%w: mark of %d bytes", ErrCorrupt, len(b))
	}
	body := b[:markSize-4]
	if binary.BigEndian.Uint32(b[markSize-4:]) != crc32.Checksum(body, castagnoli) {
		return s, fmt.Errorf("%w: mark's checksum does not match", ErrCorrupt)
	}
	s.count = binary.BigEndian.Uint64(b[1:])
	s.last = binary.BigEndian.Uint64(b[9:])
	s.manifest.name = fmt.Sprintf("%s%06d", manifestPrefix, binary.BigEndian.Uint64(b[17:]))
	s.manifest.size = binary.BigEndian.Uint64(b[25:])
	s.manifest.sum = binary.BigEndian.Uint32(b[33:])
	return s, nil
}

// readMark returns the zero state when there is no mark yet: no file, or an empty one, whose first write was lost with power.
func readMark(fsys vfs.FS, dir string) (s markState, err error) {
	path := fsys.PathJoin(dir, syncedFile)
	b, err := readFile(fsys, path, markSize+1)
	if err != nil || len(b) == 0 {
		return s, err
	}
	if s, err = decodeMark(b); err != nil {
		return s, fmt.Errorf("%w, in %s: removing the file gives up the check for lost batches once", err, path)
	}
	return s, nil
}

// checkManifest verifies the synced part of the manifest m, which was in use. If that manifest is gone, a later one has replaced it. An
// empty file names the manifest in use. If that file were lost, Pebble would make a new database and delete the tables of the old one; if
// it named an earlier manifest, Pebble would delete the tables that only later ones list.
func checkManifest(fsys vfs.FS, dir string, m manifest) error {
	found, err := pebble.Peek(dir, fsys)
	if err != nil {
		return openError(dir, err)
	}
	if !found.Exists {
		return checkNew(fsys, dir, m)
	}
	if named := fsys.PathBase(found.ManifestFilename); manifestNumber(named) < manifestNumber(m.name) {
		return fmt.Errorf("%w: %s has a file marker.manifest.* that names %s, and the manifest in use was %s", ErrCorrupt, dir, named, m.name)
	}
	path := fsys.PathJoin(dir, m.name)
	b, err := readFile(fsys, path, m.size)
	if err != nil || b == nil {
		return err
	}
	if uint64(len(b)) < m.size {
		return fmt.Errorf("%w: %s has %d bytes and was synced to %d", ErrCorrupt, path, len(b), m.size)
	}
	if got := crc32.Checksum(b, castagnoli); got != m.sum {
		return fmt.Errorf("%w: %s, offset 0 to %d: checksum %08x, was %08x", ErrCorrupt, path, m.size, got, m.sum)
	}
	return nil
}

// checkNew checks a directory without the file that names the manifest in use. Pebble makes that file before its first log.
func checkNew(fsys vfs.FS, dir string, m manifest) error {
	files, err := fsys.List(dir)
	if err != nil {
		return err
	}
	used := slices.ContainsFunc(files, func(name string) bool { return strings.HasSuffix(name, ".log") || strings.HasSuffix(name, ".sst") })
	if m.size == 0 && !used {
		return nil
	}
	return fmt.Errorf("%w: %s has no file marker.manifest.*, which names the manifest in use, last %s", ErrCorrupt, dir, cmp.Or(m.name, "unknown"))
}

// readFile reads a file, at most its first bytes; nil if there is no file.
func readFile(fsys vfs.FS, path string, most uint64) ([]byte, error) {
	f, err := fsys.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(min(most, math.MaxInt64))))
	return b, errors.Join(err, f.Close())
}

// openMark begins a new mark, syncs it, and follows the manifest from then on.
func openMark(f *fence, dir string, count, last uint64) (*mark, error) {
	file, err := f.OpenReadWrite(f.PathJoin(dir, syncedFile), vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	m := &mark{fence: f, file: file, state: markState{count: count, last: last}}
	changed := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.write()
	}
	f.onManifest.Store(&changed)
	changed()
	return m, errors.Join(file.Sync(), syncDir(f, dir))
}

func syncDir(fsys vfs.FS, dir string) error {
	d, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// write writes the state. An error closes the fence.
func (m *mark) write() {
	if synced := m.fence.synced.Load(); synced != nil {
		m.state.manifest = *synced
	}
	_, _ = m.file.WriteAt(encodeMark(m.state), 0)
}

// advance notes that the batch with this count is on disk. A smaller count than before is ignored.
func (m *mark) advance(count, last uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if count > m.state.count {
		m.state.count, m.state.last = count, last
		m.write()
	}
}

// close ends the mark, after Pebble's last write.
func (m *mark) close() error {
	m.fence.onManifest.Store(nil)
	return m.file.Close()
}
