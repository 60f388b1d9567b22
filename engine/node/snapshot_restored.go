package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

// The restore of a snapshot, and the first start after it.

// restoredFile is a file in a data directory that was restored, until its first start. It says how the streams must be made.
const restoredFile = "restored.json"

// restored is the content of restoredFile.
type restored struct {
	Snapshot   string `json:"snapshot"`
	Prefix     string `json:"prefix"`
	Partitions int    `json:"partitions"`
	Position   uint64 `json:"position"` // the log stream goes on above it
}

// MaxPartitions is how many partitions a service may have.
const MaxPartitions = streams.MaxPartitions

// RestoreOptions say what Restore makes of a snapshot. The zero value restores it as it is.
type RestoreOptions struct {
	Partitions int                // 0: as many as the snapshot has
	Only       carillon.Selection // the jobs to restore; its zero value selects all
	Missed     *carillon.Misfire  // the policy for fires due between the snapshot and the first start; nil: as each job says

	Logger   *slog.Logger
	Progress func(archive.Progress) // called by one goroutine at a time; may be nil
	// RestoreToTime calls Replayed with how much of the log it has applied, and how much there is, in sequences. It may be nil.
	Replayed func(done, total uint64)
}

// Restored says what was restored.
type Restored struct {
	Manifest   *archive.Manifest
	Partitions int
	Jobs       int // an upper bound: completed jobs whose retention is over may be counted
}

// Restore makes dir a data directory with the jobs of a snapshot; id "" is the newest. A node that is started on it
// goes on with them on new streams: the log begins above the greatest position of the snapshot, and output numbers go on,
// first with the outputs that were not known to be stored. If the number of partitions changes, or only some of the jobs are
// restored, outputs are numbered from 1. If anything of the jobs changes, RestoreToTime does not take the snapshot for one of the new
// service. Errors: those of archive.Restore; engine.ErrRules for a snapshot of a newer
// version, engine.ErrCheckpoint.
func Restore(ctx context.Context, t archive.Target, id, dir string, o RestoreOptions) (*Restored, error) {
	if o.Partitions < 0 || o.Partitions > MaxPartitions {
		return nil, fmt.Errorf("node: RestoreOptions.Partitions is %d, must be 1 to %d", o.Partitions, MaxPartitions)
	}
	m, err := archive.Get(ctx, t, id)
	if err != nil {
		return nil, err
	}
	r, states, err := newRestored(m)
	if err != nil {
		return nil, err
	}
	if claimedByNewer(states) {
		return nil, newerSnapshot(m)
	}
	repartitioned := o.Partitions != 0 && o.Partitions != r.Partitions || o.Only != (carillon.Selection{})
	if repartitioned || o.Missed != nil {
		r.Position = apartFrom(r.Position)
	}
	if o.Missed != nil {
		for _, s := range states {
			s.OverrideMisfire(*o.Missed)
		}
	}
	into := archive.RestoreOptions{Logger: o.Logger, Progress: o.Progress, Finish: r.write}
	if dir, err = restoreInto(dir, t); err != nil {
		return nil, err
	}
	done := &Restored{Manifest: m}
	if repartitioned {
		r.Partitions = cmp.Or(o.Partitions, r.Partitions)
		repartition, err := engine.NewRepartition(states, r.Partitions, r.Position, o.Only)
		if err != nil {
			return nil, err
		}
		r.repartition(ctx, t, m, repartition, &into)
		into.States = func() ([]archive.State, error) {
			states, jobs := repartition.States()
			done.Jobs = jobs
			return r.states(states), nil
		}
	} else {
		of := make([][]byte, len(states))
		for i, s := range states {
			of[i] = s.OnNewStreams(0)
			done.Jobs += s.Jobs
		}
		into.States = func() ([]archive.State, error) { return r.states(of), nil }
	}
	done.Partitions = r.Partitions
	if _, err := archive.Restore(ctx, t, m.ID, dir, into); err != nil {
		return nil, err
	}
	return done, nil
}

// restoreInto is the absolute path of dir without symbolic links. A restore builds the directory beside it, under its name with a suffix,
// and renames it. With "new/" or "." that would be a place inside dir, and with a link it might be another file system. A link to
// nothing is refused, because it would be replaced; so is a place in the archive, because nobody could save into the archive then.
func restoreInto(dir string, t archive.Target) (string, error) {
	if from, ok := t.(*archive.Dir); ok {
		if inside, err := liesIn(dir, from.String()); err != nil || inside {
			return "", cmp.Or(err, fmt.Errorf("node: %s lies in the archive %s", dir, from))
		}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if there, err := filepath.EvalSymlinks(dir); err == nil {
		return there, nil
	}
	if _, err := os.Readlink(dir); err == nil {
		return "", fmt.Errorf("node: %s is a link to nothing; make the directory that it leads to", dir)
	}
	return dir, nil // it does not exist yet
}

// newRestored makes the content of restoredFile for a snapshot, and reads the partitions' states. All partitions get the same
// position, above which the new log stream begins.
func newRestored(m *archive.Manifest) (*restored, []*engine.SavedState, error) {
	if m.Versions.Logic > engine.Logic {
		return nil, nil, newerSnapshot(m)
	}
	r := &restored{Snapshot: m.ID, Prefix: m.Prefix, Partitions: len(m.Partitions)}
	states := make([]*engine.SavedState, len(m.Partitions))
	for i := range m.Partitions {
		p := &m.Partitions[i]
		s, err := engine.ReadState(p.State)
		if err == nil && (s.Prefix != m.Prefix || s.Partitions != r.Partitions || s.Partition != i) {
			err = fmt.Errorf("%w: it is that of partition %d of %d under the prefix %q", engine.ErrCheckpoint, s.Partition, s.Partitions, s.Prefix)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("node: snapshot %s, partition %d: %w", m.ID, i, err)
		}
		states[i] = s
		r.Position = max(r.Position, p.Position, s.Position) // a partition may have been ahead of its checkpoint's position
	}
	return r, states, nil
}

// apartFrom is the position of what was made of a snapshot at a position, if it has other jobs than that, or will decide otherwise about
// their fires. Its log begins behind a gap, so that nobody takes it for the log that follows the snapshot (checkReach). The gap has no
// fixed size: otherwise the snapshot's own service could have been saved right at its end, or another that was made of the same
// snapshot.
func apartFrom(position uint64) uint64 { return position + 1 + rand.Uint64N(maxApart) }

const maxApart = 1 << 20

// claimedByNewer tells whether a partition was claimed under newer rules than this binary's, so that no start could claim it. It may be
// only the tzdata that is newer, so newRestored does not refuse the snapshot.
func claimedByNewer(states []*engine.SavedState) bool {
	return slices.ContainsFunc(states, func(s *engine.SavedState) bool { return !s.Accepts(engine.Rules()) })
}

func newerSnapshot(m *archive.Manifest) error {
	rules := engine.Rules()
	return fmt.Errorf("%w: snapshot %s was saved under logic %d and tzdata %s, this binary has logic %d and tzdata %s; use that version",
		engine.ErrRules, m.ID, m.Versions.Logic, m.Versions.TZData, rules.Logic, rules.TZData)
}

// states are the states with which the partitions go on, all at one position.
func (r *restored) states(of [][]byte) []archive.State {
	states := make([]archive.State, len(of))
	for i := range of {
		states[i] = archive.State{Position: r.Position, State: of[i]}
	}
	return states
}

// repartition makes the restore route pairs to other partitions, or leave them out. Some rooms of the snapshot are read twice for that.
func (r *restored) repartition(ctx context.Context, t archive.Target, m *archive.Manifest, repartition *engine.Repartition, into *archive.RestoreOptions) {
	read := archive.Progress{Total: m.Totals().Raw}
	for _, room := range repartition.Rooms() {
		read.Total += m.RawBytes(room)
	}
	progress := into.Progress
	if progress == nil {
		progress = func(archive.Progress) {}
	}
	into.Partitions = r.Partitions
	into.Prepare = func() error {
		return inspect(ctx, t, m, repartition, func(b *archive.Block) {
			read.Blocks, read.Pairs, read.Done = read.Blocks+1, read.Pairs+b.Pairs, read.Done+b.Raw
			progress(read)
		})
	}
	into.Progress = func(p archive.Progress) {
		p.Blocks, p.Pairs, p.Done, p.Total = read.Blocks+p.Blocks, read.Pairs+p.Pairs, read.Done+p.Done, read.Total
		progress(p)
	}
	into.Route = func(from uint16, room byte, key, value []byte) (archive.Routed, bool, error) {
		to, keep, err := repartition.Route(int(from), room, key, value)
		return archive.Routed{Partition: uint16(to.Partition), Key: to.Key, Value: to.Value}, keep, err
	}
}

// inspect reads what must be known before the first pair can be routed, with a goroutine for each core.
func inspect(ctx context.Context, t archive.Target, m *archive.Manifest, r *engine.Repartition, read func(*archive.Block)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	tell := func(b *archive.Block) {
		mu.Lock()
		defer mu.Unlock()
		read(b)
	}
	next := make(chan int)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for p := range next {
				for _, room := range r.Rooms() {
					look := func(key, value []byte) error { return r.Inspect(p, room, key, value) }
					if err := archive.ReadRoom(ctx, t, m, p, room, tell, look); err != nil {
						cancel(err)
						break
					}
				}
			}
		})
	}
	for p := range m.Partitions {
		select {
		case next <- p:
		case <-ctx.Done():
		}
	}
	close(next)
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	r.Prepare()
	return nil
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

// readRestored reads restoredFile. It returns nil if the data directory was not restored, or has been started since.
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

// expect refuses options that do not fit the snapshot, and sets the number of partitions.
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

// beginRestored makes the log stream go on above the snapshot, at the first start. A log stream that holds records is
// refused: it is another service's, or that of the service that was saved, whose output streams already have outputs.
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
	return syncDir(n.o.Data) // if the file came back after a power failure, the log would be taken for another service's
}
