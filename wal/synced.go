package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// syncedFile is the name of the store's own note of how much it has synced; see mark.
const syncedFile = "SYNCED"

// mark remembers, outside of Pebble, how many batches were synced, so that a lost tail is noticed.
//
// Pebble cannot tell a damaged end of its log from one that a crash tore, and cuts the log there in
// silence. Its chunks carry the offset that was synced before them, so that damage further in should be an
// error; but in 2.1.7 that offset counts only what was flushed out of a partly filled 32 KiB block
// (record.LogWriter.flushLoop), so after large batches it lags far behind, and megabytes of synced records
// may vanish without one. The same holds for the end of the manifest. So every synced batch carries a
// count, and the count of the newest one is written here after its sync. A store that opens with a smaller
// count has lost synced batches.
//
// The mark itself is not synced: it is one small write to the page cache a commit. A killed process loses
// nothing of it; after power loss it may be old, which can only hide a loss, not invent one.
type mark struct {
	mu    sync.Mutex
	file  vfs.File
	count uint64
}

// The mark's bytes: version, count, last sequence of the log, crc32c of these; integers big-endian.
const (
	markVersion = 1
	markSize    = 1 + 8 + 8 + 4
)

func encodeMark(count, last uint64) []byte {
	b := make([]byte, 0, markSize)
	b = append(b, markVersion)
	b = binary.BigEndian.AppendUint64(b, count)
	b = binary.BigEndian.AppendUint64(b, last)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeMark(b []byte) (count, last uint64, err error) {
	if len(b) > 0 && b[0] > markVersion {
		return 0, 0, fmt.Errorf("%w: mark version %d, this binary reads %d", ErrVersion, b[0], markVersion)
	}
	if len(b) != markSize || b[0] != markVersion {
		return 0, 0, fmt.Errorf("%w: mark of %d bytes", ErrCorrupt, len(b))
	}
	if binary.BigEndian.Uint32(b[17:]) != crc32.Checksum(b[:17], castagnoli) {
		return 0, 0, fmt.Errorf("%w: mark's checksum does not match", ErrCorrupt)
	}
	return binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint64(b[9:]), nil
}

// readMark returns zeros when there is no mark yet: no file, or one whose first write a power loss undid.
func readMark(fsys vfs.FS, path string) (count, last uint64, err error) {
	f, err := fsys.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	b, err := io.ReadAll(io.LimitReader(f, markSize+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, 0, err
	}
	if len(b) == 0 {
		return 0, 0, nil
	}
	if count, last, err = decodeMark(b); err != nil {
		return 0, 0, fmt.Errorf("%w, in %s: removing the file gives up the check for lost batches once", err, path)
	}
	return count, last, nil
}

// openMark starts a mark at count and makes it durable.
func openMark(fsys vfs.FS, dir string, count, last uint64) (*mark, error) {
	f, err := fsys.OpenReadWrite(fsys.PathJoin(dir, syncedFile), vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	m := &mark{file: f}
	err = m.write(count, last)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = syncDir(fsys, dir)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return m, nil
}

func syncDir(fsys vfs.FS, dir string) error {
	d, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (m *mark) write(count, last uint64) error {
	m.count = count
	_, err := m.file.WriteAt(encodeMark(count, last), 0)
	return err
}

// advance notes that the batch with this count is on disk. A smaller count than noted is no news.
func (m *mark) advance(count, last uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if count <= m.count {
		return nil
	}
	return m.write(count, last)
}
