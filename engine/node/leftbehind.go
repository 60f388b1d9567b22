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
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/engine/cluster"
)

// A node that is new, or was away for long, may find that the log no longer reaches back to where it is. Others have what it
// has missed. So it gives up what it has, all of which came from the log, begins with nothing at the log's end, and follows one
// partition after the other (follow.go). Where nobody has what it would give up it stops instead, loudly.

// leftBehindError says that the log stream no longer has the records that come next here.
type leftBehindError struct {
	at, first  uint64 // the last record here; the first one there
	partitions int
	followed   []int // partitions of which there is something here
	cause      error // what found it, in whose words it is told; nil: nothing else
}

// leftBehind is the error of this node, whose last record is at, while the log stream begins at first.
func (n *Node) leftBehind(at, first uint64, cause error) error {
	e := &leftBehindError{at: at, first: first, partitions: n.layout.Partitions, cause: cause}
	for _, p := range n.followed() {
		if at > 0 {
			e.followed = append(e.followed, p.number)
		}
	}
	return e
}

func (e *leftBehindError) Error() string {
	if e.cause != nil {
		return e.cause.Error()
	}
	return fmt.Sprintf("node: the log stream begins at %d, and this node is at %d; see docs/operations.md", e.first, e.at)
}

func (e *leftBehindError) Unwrap() error { return e.cause }

const (
	othersPatience = 30 * time.Second // bounds the wait for nodes that follow what this one did
	alonePatience  = 2 * time.Second  // the same where there is no other node, nor was one lately
)

// setAside is where what is given up goes before it is removed, in the data directory.
const setAside = "aside"

// beginAnew empties a data directory that no run uses, once others follow what it has. Its error is behind, with a reason,
// where nobody does; errUnreachable where NATS is away.
func beginAnew(ctx context.Context, o Options, behind *leftBehindError) (err error) {
	nc, err := o.servers().Connect(" state")
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
		Partitions: behind.partitions, Standbys: o.Standbys, Report: func() cluster.Report { return cluster.Report{Draining: true, Needs: behind.at} },
	})
	if err != nil {
		return unreachable(fmt.Errorf("node: %w", err))
	}
	defer func() {
		leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
		defer cancel()
		if lerr := m.Leave(leave); err == nil && lerr != nil {
			o.Logger.Warn("the other nodes were not told that this one begins anew; they will notice", "error", lerr)
		}
	}()
	for began := time.Now(); ; {
		v := m.View()
		lacks, waited := behind.lacks(v), time.Since(began)
		switch {
		case lacks == "":
			return empty(o)
		case !nc.IsConnected(): // NATS is away, which says nothing of the other nodes
			return fmt.Errorf("%w: %w", errUnreachable, behind)
		case waited > patience(v):
			return fmt.Errorf("%w; no other node follows %s", behind, lacks)
		case !pause(ctx, followLook):
			return ctx.Err()
		}
	}
}

// patience is for how long to wait for others. One that is silent just now may be late, as on a host that is busy.
func patience(v cluster.View) time.Duration {
	if len(v.Members)+len(v.Silent) < 2 {
		return alonePatience
	}
	return othersPatience
}

// lacks names what somebody else would have to follow, and nobody does: each partition of which there is something here, or
// where there is nothing here any one.
func (e *leftBehindError) lacks(v cluster.View) string {
	for _, p := range e.followed {
		if v.Follower(p) == "" {
			return fmt.Sprintf("partition %d", p)
		}
	}
	if len(e.followed) > 0 {
		return ""
	}
	for p := range e.partitions {
		if v.Follower(p) != "" {
			return ""
		}
	}
	return "any partition"
}

// empty removes the stores from a data directory. Interrupted at any moment it leaves what was there, or so little that the
// next start is left behind again.
func empty(o Options) error {
	dir := filepath.Join(o.Data, setAside)
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o750)); err != nil {
		return err
	}
	// A store goes aside in one step, because a store that is removed in part cannot be opened.
	for _, store := range []string{"log", "jobs"} {
		err := os.Rename(filepath.Join(o.Data, store), filepath.Join(dir, store))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := syncDir(o.Data); err != nil { // the log first: without it the jobs are no harm
			return err
		}
	}
	return errors.Join(os.RemoveAll(dir), syncDir(o.Data))
}

// beginEmpty makes a node that has nothing go on from the log's end: it takes what it is to follow from others.
func (n *Node) beginEmpty(end uint64) {
	for _, p := range n.partitions {
		p.follows.Store(false)
	}
	n.from = end
	n.applied.Store(end)
}

func syncDir(name string) error {
	dir, err := vfs.Default.OpenDir(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
