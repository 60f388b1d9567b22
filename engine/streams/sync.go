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

// FileSync makes durable what the server inside our process wrote to a stream: it syncs the message
// blocks that changed since the last call. A syncfs would do the same, but would also wait for whatever
// else was written to the file system: for seconds, on a busy machine.
type FileSync struct {
	dirs   []string // of message blocks
	synced map[string]stamp
}

type stamp struct {
	size     int64
	modified time.Time
}

// NewFileSync is for the stream of a name under a server's JetStream directory, in whatever account
// (server/filestore.go: <directory>/<account>/streams/<stream>/msgs/<n>.blk). It fails if the stream is not there:
// a server that keeps it elsewhere must not pass for one that has nothing to sync.
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

// Sync returns when everything that was written before the call is on disk, and how many blocks it had to sync
// for that. It is for one goroutine. Error: ErrNotSynced.
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
		return 0, nil // the stream was deleted, which the next publish will show
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
			continue // removed by retention
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
		// The stamp is from before the sync, so that what was written since counts as a change the next time.
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
