package node

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

// A node gives a partition to another by saving it, as a part, into a bucket of the same NATS: to one that is to follow it, and
// to one that saves a snapshot of all partitions. Who has taken a part removes it.

// stateBucket is where nodes save partitions for each other.
func stateBucket(stream string) string { return stream + "_STATE" }

// stateLife is how long a partition stays there that nobody came for, and bounds how long it may take to read it.
const stateLife = time.Hour

// gatherPatience bounds the wait for nodes that give partitions to others, one after the other. The bucket's lock of one that
// was killed is void after a minute.
const gatherPatience = 5 * time.Minute

// part is a partition that was saved for another node.
type part struct {
	ID       string `json:"id"`
	Position uint64 `json:"position"`
}

// askPart has a node save a partition.
func (n *Node) askPart(ctx context.Context, from string, partition int) (got part, err error) {
	answer, err := n.askNode(ctx, from, "give."+strconv.Itoa(partition), nil, nil)
	if err == nil {
		err = json.Unmarshal(answer.Data, &got)
	}
	return got, err
}

// apiGive saves a partition for another node.
func (n *Node) apiGive(c *call) error {
	p, err := n.followedHere(c.job)
	if err != nil {
		return err
	}
	one, ctx, err := n.gives.begin("")
	if err != nil {
		return err
	}
	defer n.gives.end(one)
	got, err := n.give(ctx, p)
	if err != nil {
		return saveRefusal(err)
	}
	body, err := json.Marshal(got)
	if err != nil {
		return err
	}
	return c.answer(body)
}

// give saves a partition as of a position that is not before the log's end when it was asked for.
func (n *Node) give(ctx context.Context, p *partition) (part, error) {
	n.given.RLock()
	defer n.given.RUnlock()
	if err := n.current(p); err != nil {
		return part{}, err
	}
	bucket, release, err := n.archive(ctx, &carillon.SnapshotRequest{Bucket: stateBucket(n.o.Stream)})
	if err != nil {
		return part{}, err
	}
	defer release()
	if err := n.checkpointOrStop(ctx, p, runtime.Gosched); err != nil {
		n.fail(noRoom(err))
		return part{}, err
	}
	if err := errors.Join(p.whyStopped(), p.readable()); err != nil {
		return part{}, err
	}
	o := saveOptions(len(n.partitions), n.o.Prefix)
	o.Share, o.Only = saveShare, []uint16{uint16(p.number)}
	saved, err := archive.Save(ctx, n.saved, bucket, o)
	if err != nil {
		return part{}, err
	}
	return part{saved.Manifest.ID, saved.Manifest.Partitions[0].Position}, nil
}

// gathering finds the partitions that this node does not follow, for a snapshot of all of them.
type gathering struct {
	n       *Node
	here    []*partition // those that it follows, as of a checkpoint that was taken for the snapshot
	bucket  archive.Target
	release func()
	taken   []string // parts in the bucket
}

// find is archive.SaveOptions.Elsewhere.
func (g *gathering) find(ctx context.Context, number uint16) (_ archive.Target, id string, err error) {
	p := g.n.partitions[number]
	if slices.Contains(g.here, p) {
		return nil, "", nil
	}
	if g.bucket == nil {
		g.bucket, g.release, err = g.n.archive(ctx, &carillon.SnapshotRequest{Bucket: stateBucket(g.n.o.Stream)})
		if err != nil {
			return nil, "", err
		}
	}
	got, err := g.ask(ctx, p)
	if err != nil {
		return nil, "", err
	}
	g.taken = append(g.taken, got.ID)
	return g.bucket, got.ID, nil
}

// ask has a node that follows a partition save it, once it is not busy with another one.
func (g *gathering) ask(ctx context.Context, p *partition) (part, error) {
	for began := time.Now(); ; {
		if p.follows.Load() { // by now
			return g.n.give(ctx, p)
		}
		from := g.n.view().Follower(p.number)
		if from == "" {
			return part{}, unfollowed(p.number)
		}
		got, err := g.n.askPart(ctx, from, p.number)
		busy := errors.Is(err, &carillon.Error{Code: carillon.CodeLimitExceeded}) || errors.Is(err, archive.ErrLocked)
		if !busy || time.Since(began) > gatherPatience || !pause(ctx, followLook) {
			return got, err
		}
	}
}

// end removes what was gathered.
func (g *gathering) end(ctx context.Context) {
	if g.bucket == nil {
		return
	}
	if len(g.taken) > 0 {
		g.n.dropParts(ctx, g.bucket, g.taken...)
	}
	g.release()
}

// dropParts removes what has been taken. What stays, since somebody else has the bucket, goes with a later one.
func (n *Node) dropParts(ctx context.Context, bucket archive.Target, ids ...string) {
	o := archive.PruneOptions{Drop: ids, OlderThan: stateLife}
	if _, err := archive.Prune(ctx, bucket, o); err != nil && !errors.Is(err, archive.ErrLocked) && ctx.Err() == nil {
		n.log.Warn("the bucket keeps what is not needed", "bucket", stateBucket(n.o.Stream), "error", err)
	}
}
