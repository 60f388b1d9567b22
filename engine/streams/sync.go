package streams

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// FileSync makes what the server inside our process wrote to streams durable: it fsyncs the message
// blocks that changed since the last call. A syncfs would do the same, and would also wait for whatever
// else anybody has written to the file system, seconds' worth on a busy machine.
type FileSync struct {
	pattern string
	synced  map[string]stamp
}

type stamp struct {
	size     int64
	modified time.Time
}

// NewFileSync watches the streams whose names begin with prefix under the store directory of a server
// (server/filestore.go: <store>/jetstream/<account>/streams/<stream>/msgs/<n>.blk).
func NewFileSync(store, prefix string) *FileSync {
	return &FileSync{
		pattern: filepath.Join(store, "jetstream", "*", "streams", prefix+"*", "msgs"),
		synced:  make(map[string]stamp),
	}
}

// Sync returns when everything that was written before the call is on disk. It is for one goroutine.
func (s *FileSync) Sync() error {
	dirs, err := filepath.Glob(s.pattern)
	if err != nil {
		return fmt.Errorf("streams: sync: %w", err)
	}
	present := make(map[string]stamp, len(s.synced))
	for _, dir := range dirs {
		if err := s.syncStream(dir, present); err != nil {
			return fmt.Errorf("streams: sync: %w", err)
		}
	}
	s.synced = present
	return nil
}

func (s *FileSync) syncStream(dir string, present map[string]stamp) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
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
			return err
		}
		now := stamp{info.Size(), info.ModTime()}
		before, known := s.synced[path]
		if known && before == now {
			present[path] = now
			continue
		}
		if err := syncPath(path); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return err
		}
		// Stamped from before the fsync: what was written since is seen as a change the next time.
		present[path] = now
		created = created || !known
	}
	if created {
		return syncPath(dir)
	}
	return nil
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
