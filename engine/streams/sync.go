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

// FileSync makes what the server inside our process wrote to a stream durable: it syncs the message
// blocks that changed since the last call. A syncfs would do the same, and would also wait for whatever
// else anybody has written to the file system, seconds' worth on a busy machine.
type FileSync struct {
	dirs   []string // of message blocks
	synced map[string]stamp
}

type stamp struct {
	size     int64
	modified time.Time
}

// NewFileSync watches the stream of a name under a server's JetStream directory, in whichever account
// (server/filestore.go: <directory>/<account>/streams/<stream>/msgs/<n>.blk). Error: it is not there,
// since a server that keeps it elsewhere must not pass for one that has nothing to sync.
func NewFileSync(dir, stream string) (*FileSync, error) {
	accounts, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("streams: sync: %w", err)
	}
	s := &FileSync{}
	for _, account := range accounts {
		blocks := filepath.Join(dir, account.Name(), "streams", stream, "msgs")
		if _, err := os.Stat(blocks); err == nil {
			s.dirs = append(s.dirs, blocks)
		}
	}
	if len(s.dirs) == 0 {
		return nil, fmt.Errorf("streams: sync: no stream %s under %s", stream, dir)
	}
	return s, nil
}

// Sync returns when everything that was written before the call is on disk, and tells how many blocks had to be brought
// there. It is for one goroutine. Error: ErrNotSynced.
func (s *FileSync) Sync() (blocks int, err error) {
	present := make(map[string]stamp, len(s.synced))
	for _, dir := range s.dirs {
		n, err := s.syncDir(dir, present)
		if err != nil {
			return blocks, fmt.Errorf("%w: %w", ErrNotSynced, err)
		}
		blocks += n
	}
	s.synced = present
	return blocks, nil
}

func (s *FileSync) syncDir(dir string, present map[string]stamp) (blocks int, err error) {
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
