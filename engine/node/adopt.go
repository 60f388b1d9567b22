package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

// A node that is new, or was away for long, may find that the log no longer reaches back to where it is. It takes the
// state of another one: a snapshot, which that saves into a bucket of the same NATS. All partitions in it stand where
// the log reaches them, since the node is a member meanwhile that says it needs all of the log (neededElsewhere). What
// it had itself is thrown away: all of it came from the log, through which the others have it, too.
//
// A log that reached its bound meanwhile is cut all the same; then the next start finds itself left behind again.

// leftBehindError says that the log stream no longer has the records that come next here.
type leftBehindError struct {
	at, first  uint64 // the last record here; the first one there
	partitions int
	cause      error // in the words of who found it; nil: in these
}

func (e *leftBehindError) Error() string {
	if e.cause != nil {
		return e.cause.Error()
	}
	return fmt.Sprintf("node: the log stream begins at %d, and this node is at %d; see docs/operations.md", e.first, e.at)
}

func (e *leftBehindError) Unwrap() error { return e.cause }

const (
	adoptPatience = 30 * time.Second // bounds the wait for a node that answers
	adoptPause    = time.Second      // between two questions
	adoptSay      = 10 * time.Second // between two lines of the log about it
	stateLife     = time.Hour        // of a state that is not the newest: another node may be taking it
)

// adopted is where the state is put together, in the data directory.
const adopted = "adopted"

// stateBucket is where nodes save their state for others.
func stateBucket(stream string) string { return stream + "_STATE" }

// adopt replaces what is in a data directory that no run uses by the state of another node. Its error is behind, with a
// reason, where there is none; errUnreachable where NATS is away.
func adopt(ctx context.Context, o Options, behind *leftBehindError) (err error) {
	began := time.Now()
	nc, err := o.connect(" state")
	if err != nil {
		return unreachable(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	m, err := cluster.Join(ctx, js, cluster.Options{
		Bucket: nodesBucket(o.Stream), Replicas: o.Replicas, Name: o.Name, Zone: o.Zone, Version: Version(),
		Partitions: behind.partitions, Standbys: o.Standbys, Report: func() cluster.Report { return cluster.Report{Draining: true} },
	})
	if err != nil {
		return unreachable(fmt.Errorf("node: %w", err))
	}
	defer func() {
		if err == nil {
			m.Close() // without a word: the log is kept for it until it is back
			return
		}
		leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
		defer cancel()
		err = errors.Join(err, m.Leave(leave))
	}()
	id, err := requestState(ctx, nc, o, func() bool { return len(m.View().Members) == 1 })
	if errors.Is(err, errNobody) {
		return fmt.Errorf("%w; no other node gives its state: %w", behind, err)
	}
	if err != nil {
		return err
	}
	store, err := js.ObjectStore(ctx, stateBucket(o.Stream))
	if err != nil {
		return unreachable(fmt.Errorf("node: bucket %s: %w", stateBucket(o.Stream), err))
	}
	bucket := archive.NewBucket(stateBucket(o.Stream), js, store)
	if err := takeState(ctx, bucket, id, o); err != nil {
		return unreachable(fmt.Errorf("node: the state of another node: %w", err))
	}
	if _, err := archive.Prune(ctx, bucket, archive.PruneOptions{Keep: 1, OlderThan: stateLife}); err != nil {
		o.Logger.Warn("the bucket keeps what is not needed", "bucket", stateBucket(o.Stream), "error", err)
	}
	o.Logger.Info("took the state of another node", "snapshot", id, "took", time.Since(began))
	return nil
}

var errNobody = errors.New("nobody answers")

// requestState has another node save its state. The others may be starting, too; when this one is alone it does not
// wait for them.
func requestState(ctx context.Context, nc *nats.Conn, o Options, alone func() bool) (id string, err error) {
	client := carillon.Connect(nc, carillon.WithNames(carillon.Names{Prefix: o.Prefix, Stream: o.Stream}))
	said := time.Now()
	say := func(r carillon.SnapshotReply) {
		if time.Since(said) > adoptSay {
			said = time.Now()
			o.Logger.Info("another node saves its state", "phase", r.Phase, "bytes", r.Done, "of", r.Total)
		}
	}
	for began := time.Now(); ; {
		r, err := client.SaveSnapshot(ctx, carillon.SnapshotRequest{Bucket: stateBucket(o.Stream)}, say)
		switch {
		case err == nil:
			return r.ID, nil
		case errors.Is(err, &carillon.Error{Code: carillon.CodeLimitExceeded}): // one is being saved
			began = time.Now()
		case !nc.IsConnected(): // not for want of others
			return "", fmt.Errorf("%w: %w", errUnreachable, err)
		case alone(), time.Since(began) > adoptPatience:
			return "", fmt.Errorf("%w: %w", errNobody, err)
		}
		if !pause(ctx, adoptPause) {
			return "", ctx.Err()
		}
	}
}

// takeState puts a snapshot in the place of what is in the data directory. Interrupted at any moment it leaves what was
// there, or so little that the next start is left behind again.
func takeState(ctx context.Context, t archive.Target, id string, o Options) error {
	dir := filepath.Join(o.Data, adopted)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	m, err := archive.Restore(ctx, t, id, dir, archive.RestoreOptions{Logger: o.Logger})
	if err != nil {
		return err
	}
	if m.Prefix != o.Prefix {
		return fmt.Errorf("it is of a service with the prefix %q, not %q", m.Prefix, o.Prefix)
	}
	// What was there goes aside in one step each, as a store that is removed in part cannot be opened.
	for _, old := range []string{"log", "jobs"} {
		err := os.Rename(filepath.Join(o.Data, old), filepath.Join(dir, old+".old"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := syncDir(o.Data); err != nil { // the log first: without it the jobs are no harm
			return err
		}
	}
	if err := os.Rename(filepath.Join(dir, archive.TableDir), filepath.Join(o.Data, "jobs")); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(dir), syncDir(o.Data))
}

func syncDir(name string) error {
	dir, err := vfs.Default.OpenDir(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
