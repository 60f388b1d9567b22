package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"

	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
	"github.com/carillon-scheduler/carillon/wal"
)

// Saves of snapshots, of a data directory on which no node runs.

// SaveOptions are the options of SaveStopped.
type SaveOptions struct {
	Recheck  bool                   // see archive.SaveOptions
	Progress func(archive.Progress) // may be nil
}

// SaveStopped saves a snapshot of a data directory that no process runs on. First it applies what the local log has beyond the
// checkpoints, as a start would, and takes checkpoints. If the service was killed, raw commands that only the log stream had are
// not in the snapshot. o needs only Data and Logger. Errors: ErrDataInUse, fs.ErrNotExist, those of archive.Save.
func SaveStopped(ctx context.Context, o Options, t archive.Target, so SaveOptions) (_ *archive.Saved, err error) {
	if err := wantStores(o.Data); err != nil {
		return nil, err
	}
	if dir, ok := t.(*archive.Dir); ok {
		inside, err := liesIn(dir.String(), o.Data)
		if err != nil {
			return nil, err
		}
		if inside {
			return nil, fmt.Errorf("node: %s lies in the data directory", dir)
		}
	}
	o = o.withDefaults()
	o.Follow = FollowPlaced // the data directory's node may have followed only what was placed on it
	lock, err := lockData(o.Data)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	n, err := openStopped(o, o.Data)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := n.recover(ctx); err != nil {
		return nil, err
	}
	if has := len(n.followed()); has < len(n.partitions) {
		return nil, fmt.Errorf("node: %s has %d of %d partitions, those that were placed on its engine: save a snapshot of the running service", o.Data, has, len(n.partitions))
	}
	for _, p := range n.partitions {
		if p.checkpoint.Load() == n.applied.Load() {
			continue
		}
		if err := n.takeCheckpoint(ctx, p); err != nil {
			return nil, err
		}
	}
	save := saveOptions(n.layout.Partitions, n.layout.Prefix)
	save.Recheck, save.Progress = so.Recheck, so.Progress
	return archive.Save(ctx, n.jobTable, t, save)
}

// openStopped opens the stores of a node that does not run: the job table in o.Data, and the local log in the data directory log. The
// caller must close the node.
func openStopped(o Options, log string) (*Node, error) {
	n := &Node{o: o, log: o.Logger, meters: newWeb().meters}
	err := n.openJobs(nil)
	if err == nil {
		n.logStore, err = openLogIn(log, n.log)
	}
	if err == nil {
		n.local = n.logStore.Log()
		n.layout, err = layoutOf(n.jobTable, o.Data)
	}
	if err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

// openLogIn opens the local log of a data directory.
func openLogIn(data string, logger *slog.Logger) (*wal.Store, error) {
	return wal.OpenStore(wal.Options{Dir: filepath.Join(data, "log"), Logger: logger})
}

// OpenLog opens the local log in the data directory of an engine that is stopped. Errors: fs.ErrNotExist, those of wal.OpenStore.
func OpenLog(data string) (*wal.Store, error) {
	if err := wantStore(data, "log"); err != nil {
		return nil, err // opening the store would make it
	}
	return openLogIn(data, nil)
}

// SavedPartitions is how many partitions the service has, as the checkpoints in the data directory of an engine that is stopped say.
// Errors: fs.ErrNotExist, those of wal.OpenStore; that there is no checkpoint.
func SavedPartitions(data string) (_ int, err error) {
	if err := wantStore(data, "jobs"); err != nil {
		return 0, err
	}
	store, err := wal.OpenStore(wal.Options{Dir: filepath.Join(data, "jobs"), Profile: wal.ProfileTable})
	if err != nil {
		return 0, err
	}
	l, err := layoutOf(snapshot.OpenTable(store), data)
	return l.Partitions, errors.Join(err, store.Close())
}

// wantStores returns an error if a data directory lacks one of its stores, because opening it would make it. With a new log, what the
// lost one had beyond the checkpoints would be missing unnoticed. Only a directory that was restored has no log before its first start.
func wantStores(data string) error {
	if err := wantStore(data, "jobs"); err != nil {
		return err
	}
	err := wantStore(data, "log")
	if errors.Is(err, fs.ErrNotExist) {
		if r, rerr := readRestored(data); rerr != nil || r != nil {
			return rerr
		}
	}
	return err
}
