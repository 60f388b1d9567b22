package streams

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// FileSync makes what the server inside our process wrote to streams durable: it syncs the message
// blocks that changed since the last call. A syncfs would do the same, and would also wait for whatever
// else anybody has written to the file system, seconds' worth on a busy machine.
type FileSync struct {
	dir, prefix string
	synced      map[string]stamp
}

type stamp struct {
	size     int64
	modified time.Time
}

// NewFileSync watches the streams whose names begin with prefix under a server's JetStream directory
// (server/filestore.go: <directory>/<account>/streams/<stream>/msgs/<n>.blk). Error: there are fewer than there should
// be, since a server that keeps them elsewhere must not pass for one that has nothing to sync.
func NewFileSync(dir, prefix string, many int) (*FileSync, error) {
	s := &FileSync{dir: dir, prefix: prefix}
	found, err := s.streams()
	if err == nil && len(found) < many {
		err = fmt.Errorf("%d streams %s* under %s, which should be %d", len(found), prefix, s.dir, many)
	}
	if err != nil {
		return nil, fmt.Errorf("streams: sync: %w", err)
	}
	return s, nil
}

// streams lists the directories of message blocks.
func (s *FileSync) streams() (dirs []string, err error) {
	accounts, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	for _, account := range accounts {
		under := filepath.Join(s.dir, account.Name(), "streams")
		entries, err := os.ReadDir(under)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), s.prefix) {
				dirs = append(dirs, filepath.Join(under, e.Name(), "msgs"))
			}
		}
	}
	return dirs, nil
}

// Sync returns when everything that was written before the call is on disk, and tells how many blocks had to be brought
// there. It is for one goroutine.
func (s *FileSync) Sync() (blocks int, err error) {
	dirs, err := s.streams()
	if err != nil {
		return 0, fmt.Errorf("streams: sync: %w", err)
	}
	present := make(map[string]stamp, len(s.synced))
	for _, dir := range dirs {
		n, err := s.syncStream(dir, present)
		if err != nil {
			return blocks, fmt.Errorf("streams: sync: %w", err)
		}
		blocks += n
	}
	s.synced = present
	return blocks, nil
}

func (s *FileSync) syncStream(dir string, present map[string]stamp) (blocks int, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // the stream was deleted; what is published to it says so
	}
	if err != nil {
		return 0, err
	}
	created := false
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".blk") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // retention took it
		}
		if err != nil {
			return blocks, err
		}
		now := stamp{info.Size(), info.ModTime()}
		before, known := s.synced[path]
		if known && before == now {
			present[path] = now
			continue
		}
		if err := syncPath(path, syncData); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return blocks, err
		}
		// Stamped from before the fsync: what was written since is seen as a change the next time.
		present[path] = now
		blocks++
		created = created || !known
	}
	if created {
		return blocks, syncPath(dir, (*os.File).Sync)
	}
	return blocks, nil
}

func syncPath(path string, sync func(*os.File) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return sync(f)
}
