package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

// restoredFile is in a data directory that was restored, until its first start. It says what the streams are to be.
const restoredFile = "restored.json"

// restored is what it holds.
type restored struct {
	Snapshot   string `json:"snapshot"`
	Prefix     string `json:"prefix"`
	Partitions int    `json:"partitions"`
	Position   uint64 `json:"position"` // the log goes on above it
}

// RestoreOptions say how Restore runs.
type RestoreOptions struct {
	Logger   *slog.Logger
	Progress func(archive.Progress) // called by one goroutine at a time; nil: not
	// Replayed is told by RestoreToTime how much of the log it has applied, of how much there is; nil: not.
	Replayed func(done, total uint64)
}

// Restore makes dir a data directory with the jobs of a snapshot; id "" is the newest. A node that is started on it
// goes on with them on new streams: the log above the greatest position of the snapshot, output numbers where they
// were, first the outputs that were not known to be stored. Errors: those of archive.Restore; engine.ErrRules for a
// snapshot of a newer version, engine.ErrCheckpoint.
func Restore(ctx context.Context, t archive.Target, id, dir string, o RestoreOptions) (*archive.Manifest, error) {
	m, err := archive.Get(ctx, t, id)
	if err != nil {
		return nil, err
	}
	if err := checkLogic(m); err != nil {
		return nil, err
	}
	r, states, err := newRestored(m)
	if err != nil {
		return nil, err
	}
	return archive.Restore(ctx, t, m.ID, dir, archive.RestoreOptions{
		Logger: o.Logger, Progress: o.Progress,
		States: func(*archive.Manifest) ([]archive.State, error) { return states, nil },
		Finish: r.write,
	})
}

func checkLogic(m *archive.Manifest) error {
	if m.Versions.Logic > engine.Logic {
		return fmt.Errorf("%w: snapshot %s was saved under logic %d, this binary has %d; use that version", engine.ErrRules, m.ID, m.Versions.Logic, engine.Logic)
	}
	return nil
}

// newRestored is the file and the states of the partitions, all at one position: above it the log begins anew.
func newRestored(m *archive.Manifest) (*restored, []archive.State, error) {
	r := &restored{Snapshot: m.ID, Prefix: m.Prefix, Partitions: len(m.Partitions)}
	states := make([]archive.State, len(m.Partitions))
	for i := range m.Partitions {
		p := &m.Partitions[i]
		s, err := engine.ReadState(p.State)
		if err == nil && (s.Prefix != m.Prefix || s.Partitions != r.Partitions || s.Partition != i) {
			err = fmt.Errorf("%w: it is that of partition %d of %d under the prefix %q", engine.ErrCheckpoint, s.Partition, s.Partitions, s.Prefix)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("node: snapshot %s, partition %d: %w", m.ID, i, err)
		}
		states[i].State = s.OnNewStreams(0)
		r.Position = max(r.Position, p.Position, s.Position) // a partition may have been ahead of its checkpoint's position
	}
	for i := range states {
		states[i].Position = r.Position
	}
	return r, states, nil
}

func (r *restored) write(dir string) (err error) {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, restoredFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(append(b, '\n')); err != nil {
		return err
	}
	return f.Sync()
}

// readRestored gives nil where the data directory was not restored, or has been started since.
func readRestored(dir string) (*restored, error) {
	file := filepath.Join(dir, restoredFile)
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := new(restored)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("node: %s: %w", file, err)
	}
	return r, nil
}

// expect has the streams made as the snapshot needs them.
func (r *restored) expect(o *Options) error {
	switch {
	case r.Prefix != o.Prefix:
		return fmt.Errorf("node: the data directory was restored from a service with the prefix %q, not %q", r.Prefix, o.Prefix)
	case o.Partitions != 0 && o.Partitions != r.Partitions:
		return fmt.Errorf("node: the data directory was restored with %d partitions, %d were asked for", r.Partitions, o.Partitions)
	}
	o.Partitions = r.Partitions
	return nil
}

// beginRestored has the log stream go on above the snapshot, at the first start. A log stream that has anything is
// another service's, or that of the one that was saved, which would go on beside its own outputs.
func (n *Node) beginRestored(ctx context.Context, r *restored, info streams.Info) error {
	if info.Last != 0 && (info.Last != r.Position || info.First <= info.Last) {
		return fmt.Errorf("node: the data directory was restored from a snapshot and needs streams of its own, but the log stream holds %d to %d; see docs/operations.md", info.First, info.Last)
	}
	if info.Last < r.Position {
		if err := n.streams.Log.Bump(ctx, r.Position); err != nil {
			return err
		}
	}
	if n.server != nil {
		if err := streams.Syncfs(n.server.JetStreamDir()); err != nil {
			return err
		}
	}
	n.log.Info("going on from a snapshot", "snapshot", r.Snapshot, "position", r.Position)
	if err := os.Remove(filepath.Join(n.o.Data, restoredFile)); err != nil {
		return err
	}
	dir, err := vfs.Default.OpenDir(n.o.Data) // were it there again after a loss of power, the log would be another service's
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
