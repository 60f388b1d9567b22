package node

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

// A node transfers a partition to another node, which is to follow it or saves a snapshot of all partitions. To do so, the node saves the
// partition, as a part, into a bucket of the same NATS. The node that took a part removes it.

// stateTTL is how long a part that nobody took stays in the bucket. So saving and reading a part must not take longer.
const stateTTL = 6 * time.Hour

// dropWithin bounds the time to remove parts that were taken.
const dropWithin = 10 * time.Second

// collectTimeout bounds the wait for a node that is busy: a node saves only one partition at a time.
const collectTimeout = 5 * time.Minute

// stateBucket is where nodes save partitions for each other.
func (n *Node) stateBucket(ctx context.Context) (*archive.Bucket, func(), error) {
	return n.bucket(ctx, jetstream.ObjectStoreConfig{Bucket: n.o.Stream + "_STATE", TTL: stateTTL})
}

// part is a partition that was saved for another node. It has a folder of its own: a node that is killed while it holds the lock of a
// folder then holds up nobody else.
type part struct {
	Folder   string `json:"folder"`
	ID       string `json:"id"`
	Position uint64 `json:"position"`
}

// askPart asks a node to save a partition, and waits until it has.
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
	one, ctx, err := n.partSaves.begin("")
	if err != nil {
		return err
	}
	defer n.partSaves.end(one)
	got, err := n.savePart(ctx, p)
	if err != nil {
		return saveRefusal(err)
	}
	body, err := json.Marshal(got)
	if err != nil {
		return err
	}
	return c.answer(body)
}

// savePart saves a partition, at a position that is not before the log's end at the time of the call.
func (n *Node) savePart(ctx context.Context, p *partition) (part, error) {
	n.saveLock.RLock()
	defer n.saveLock.RUnlock()
	if err := n.readBarrier(p); err != nil {
		return part{}, err
	}
	bucket, release, err := n.stateBucket(ctx)
	if err != nil {
		return part{}, err
	}
	defer release()
	if err := n.checkpointOrStop(ctx, p, runtime.Gosched); err != nil {
		n.fail(markTransient(err))
		return part{}, err
	}
	if err := errors.Join(p.whyStopped(), p.readable()); err != nil {
		return part{}, err
	}
	o := saveOptions(len(n.partitions), n.o.Prefix)
	o.Share, o.Only = saveShare, []uint16{uint16(p.number)}
	got := part{Folder: rand.Text()}
	saved, err := archive.Save(ctx, n.jobTable, bucket.In(got.Folder), o)
	if err != nil {
		n.dropParts(ctx, bucket, got)
		return part{}, err
	}
	got.ID, got.Position = saved.Manifest.ID, saved.Manifest.Partitions[0].Position
	return got, nil
}

// partCollector has other nodes save the partitions that this node does not follow, for a snapshot of all partitions.
type partCollector struct {
	n       *Node
	here    []*partition // those that this node follows; it took a checkpoint of each for the snapshot
	bucket  *archive.Bucket
	release func()
	taken   []part
}

// find has a partition saved by another node, unless it is here. It is used as archive.SaveOptions.FindPart.
func (g *partCollector) find(ctx context.Context, number uint16) (_ archive.Target, id string, err error) {
	p := g.n.partitions[number]
	if slices.Contains(g.here, p) {
		return nil, "", nil
	}
	if g.bucket == nil {
		g.bucket, g.release, err = g.n.stateBucket(ctx)
		if err != nil {
			return nil, "", err
		}
	}
	got, err := g.ask(ctx, p)
	if err != nil {
		return nil, "", err
	}
	g.taken = append(g.taken, got)
	return g.bucket.In(got.Folder), got.ID, nil
}

// ask has a node that follows a partition save it. If that node is busy with another one, ask tries again until it is not.
func (g *partCollector) ask(ctx context.Context, p *partition) (part, error) {
	for began := time.Now(); ; {
		if p.follows.Load() { // this node began to follow it meanwhile
			return g.n.savePart(ctx, p)
		}
		from := g.n.view().Follower(p.number)
		if from == "" {
			return part{}, unfollowed(p.number)
		}
		got, err := g.n.askPart(ctx, from, p.number)
		if !isBusy(err) || time.Since(began) > collectTimeout || !sleep(ctx, followPoll) {
			return got, err
		}
	}
}

// end removes what was gathered.
func (g *partCollector) end(ctx context.Context) {
	if g.bucket == nil {
		return
	}
	g.n.dropParts(ctx, g.bucket, g.taken...)
	g.release()
}

// dropParts removes parts that were taken, even if ctx has ended, as it has when a snapshot was given up. What cannot be removed is deleted
// after stateTTL.
func (n *Node) dropParts(ctx context.Context, bucket *archive.Bucket, parts ...part) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropWithin)
	defer cancel()
	for _, p := range parts {
		if err := bucket.In(p.Folder).Empty(ctx); err != nil {
			n.log.Warn("a partition that was taken stays in its bucket for a while", "bucket", bucket, "error", err)
		}
	}
}
