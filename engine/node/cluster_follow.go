package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

// What a node follows
//
// A node that follows a partition has its jobs: it applies the partition's records, takes its checkpoints, and could
// serve it at once. With FollowAll a node follows every partition. With FollowPlaced it follows those that the placement gives
// it, as owner or standby. So jobs, memory and work are divided among the nodes. The log is not: each node reads and stores all of
// it. So a node has the log of every partition that it begins to follow:
//
//   - A node that does not follow a partition which is placed on it takes that from a node that does (follow). The other node saves it
//     into a bucket (cluster_transfer.go); the node puts what was saved into its job table, and applies its local log from there on. If that
//     fails, it tries another follower next, if there is one.
//   - A node gives up a partition that is no longer placed on it once all nodes on which it is placed follow it closely (unfollow).
//   - A request about a partition is forwarded to a node that follows it (api_forward.go).
//
// However far behind other nodes are, the log is kept as far back as one follower of each partition needs it (neededToFollow).
const (
	followPoll = 250 * time.Millisecond
	// followAfter is how long a partition must have been placed here before it is taken from another node. If its former node was only
	// restarted, that gets its partitions back within this time, and nothing need be moved.
	followAfter = 2 * time.Second
	// followPause is the longest pause between two attempts that have other nodes save the partition in vain, as one of other rules may do.
	followPause = time.Minute
	// placedWithin is how long a node that follows nothing waits for partitions to be placed on it, before it is ready without any.
	placedWithin = 3 * time.Second
	// followNear is how many records a partition may still lack when it applies the last ones while the node's reader waits.
	followNear = 64
)

// Follow says which partitions a node follows.
type Follow string

// What a node may follow.
const (
	FollowAll    Follow = "all"    // every partition: any one node could serve the whole service
	FollowPlaced Follow = "placed" // those that it owns, or is a standby of
)

// followLoop keeps what the node follows in step with the placement, until ctx ends.
func (n *Node) followLoop(ctx context.Context) error {
	since := make([]time.Time, len(n.partitions)) // since when a partition is followed and should not be, or is not and should be
	for sleep(ctx, followPoll) {
		v := n.view()
		if len(v.Placement) != len(n.partitions) {
			continue
		}
		for i, p := range n.partitions {
			wanted := n.shouldFollow(v, p)
			switch {
			case wanted == p.follows.Load():
				since[i] = time.Time{}
				p.followError.Store(nil)
				p.wastedParts = 0
				continue
			case since[i].IsZero():
				since[i] = time.Now()
			}
			switch err := markTransient(n.followOrGiveUp(ctx, p, v, wanted, time.Since(since[i]))); {
			case err == nil, ctx.Err() != nil, isBusy(err):
			case errors.Is(err, errDisk):
				return err
			default:
				since[i] = time.Now()
				p.followError.Store(&err)
				n.limitedLogs.unfollowed.warn(n.log, "a partition that is placed here is not followed yet", "partition", p.number, "error", err)
			}
		}
	}
	return nil
}

// followOrGiveUp begins to follow a partition, or stops following it, once that has been wanted for long enough.
func (n *Node) followOrGiveUp(ctx context.Context, p *partition, v cluster.View, wanted bool, since time.Duration) error {
	switch {
	case wanted && since >= p.untilFollowed():
		return n.follow(ctx, p, v)
	case !wanted && since >= n.o.Linger && n.followedAsPlaced(v, p.number):
		return n.unfollow(ctx, p)
	}
	return nil
}

// untilFollowed is how long to wait before an attempt to follow the partition, since it was placed here or the last attempt failed. It is
// longer after each part that was saved in vain, except the first.
func (p *partition) untilFollowed() time.Duration {
	return min(followAfter<<min(max(0, p.wastedParts-1), 10), followPause)
}

// shouldFollow tells whether this node should follow a partition, by a view. It goes on following a partition that it serves, and one that
// stopped, so that people can look at that.
func (n *Node) shouldFollow(v cluster.View, p *partition) bool {
	if n.o.Follow == FollowAll {
		return true
	}
	p.mu.Lock()
	busy := p.owner.Epoch != 0 || p.claiming || p.stopped != nil
	p.mu.Unlock()
	assigned := v.Placement[p.number]
	return busy || assigned.Owner == n.o.Name || slices.Contains(assigned.Standbys, n.o.Name)
}

// followProblems reports the partitions that this node should follow and does not follow yet.
func (n *Node) followProblems(v cluster.View) (problems []string) {
	// A node that has just joined is in no placement yet. Without this it would be ready at once, too early for those who wait
	// until it has taken its share.
	if n.o.Follow == FollowPlaced && n.membership.participating.Load() && n.clock.running()-n.membership.since < placedWithin && len(n.followed()) == 0 {
		return []string{"what is placed here is not known yet"}
	}
	if len(v.Placement) != len(n.partitions) {
		return nil
	}
	for _, p := range n.partitions {
		if !p.follows.Load() && n.shouldFollow(v, p) {
			problem := fmt.Sprintf("partition %d is placed here and not followed yet", p.number)
			if why := p.followError.Load(); why != nil {
				problem += fmt.Sprintf(": %v", *why)
			}
			problems = append(problems, problem)
		}
	}
	return problems
}

// followedAsPlaced tells whether all nodes on which a partition is placed follow it closely, and one of them serves it. A node whose
// position is below what this node needs does not count: because this node follows the partition, the log may have been cut beyond that
// position (neededToFollow). Nor does one that the log has left behind: it may have been cut for a follower that is gone by now.
func (n *Node) followedAsPlaced(v cluster.View, partition int) bool {
	if len(v.Placement) != len(n.partitions) {
		return false
	}
	assigned := v.Placement[partition]
	applied, needs := n.applied.Load(), n.needs()
	for _, name := range append([]string{assigned.Owner}, assigned.Standbys...) {
		b, _ := v.Member(name)
		p, ok := b.Progress(partition)
		if !ok || applied > p.Position+caughtUp || p.Position < needs || !n.logUsage.holds(p.Position+1) {
			return false
		}
	}
	serving := v.Serving(partition)
	return serving == assigned.Owner || slices.Contains(assigned.Standbys, serving)
}

// giver names the node from which to take the partition; "" if none follows it. Where taking it from one has just failed, it is another one:
// what ails the one may not pass, such as damage in its jobs.
func (p *partition) giver(v cluster.View) string {
	from := v.Follower(p.number)
	if from != p.failedFrom {
		return from
	}
	others := v
	others.Members = slices.DeleteFunc(slices.Clone(v.Members), func(b cluster.Beat) bool { return b.Name == from })
	return cmp.Or(others.Follower(p.number), from)
}

// follow takes a partition from a node that follows it, and begins to follow it.
func (n *Node) follow(ctx context.Context, p *partition, v cluster.View) error {
	from := p.giver(v)
	if from == "" {
		return errors.New("no live node follows it")
	}
	err := n.followFrom(ctx, p, from)
	switch {
	case err == nil:
		p.failedFrom = ""
	case !isBusy(err):
		p.failedFrom = from
	}
	return err
}

// isBusy tells whether a node refused to give a partition only because it is giving another one just now.
func isBusy(err error) bool { return errors.Is(err, &carillon.Error{Code: carillon.CodeLimitExceeded}) }

// followFrom is follow from a node.
func (n *Node) followFrom(ctx context.Context, p *partition, from string) error {
	began := time.Now()
	p.needs.Store(max(1, n.applied.Load())) // the part will be of this position or a later one (savePart)
	defer p.needs.Store(0)
	part, err := n.askPart(ctx, from, p.number)
	if err != nil {
		return fmt.Errorf("node %s: %w", from, err)
	}
	p.wastedParts++ // unless it comes to be followed
	bucket, release, err := n.stateBucket(ctx)
	if err != nil {
		return err
	}
	defer release()
	defer n.dropParts(ctx, bucket, part)
	if !n.reachesBack(part.Position) {
		return fmt.Errorf("node %s has it as of %d, and the local log begins at %d", from, part.Position, n.local.First())
	}
	if err := n.jobTable.Clear(uint16(p.number)); err != nil {
		return err
	}
	if _, err := archive.RestorePart(ctx, bucket.In(part.Folder), part.ID, n.o.Prefix, n.jobTable, uint16(p.number), saveShare); err != nil {
		return err
	}
	records, err := n.catchUp(ctx, p)
	if err != nil {
		return errors.Join(err, n.jobTable.Clear(uint16(p.number))) // so that the next start does not find it without the log that it needs
	}
	n.log.Info("follows a partition", "partition", p.number, "from", from, "position", part.Position, "records", records, "took", time.Since(began))
	notify(n.membership.changed)
	return nil
}

// catchUp replays the local log for a partition whose checkpoint was just put into the job table, until the reader can go on with it.
func (n *Node) catchUp(ctx context.Context, p *partition) (records int, err error) {
	defer func() {
		if err != nil { // what is open would keep its files until the next try
			p.mu.Lock()
			open := p.table.renew()
			p.mu.Unlock()
			err = errors.Join(err, open.Close())
		}
	}()
	m, position, err := n.readNewest(p.number)
	if err != nil {
		return 0, err
	}
	m.Attach(&p.table)
	at := position
	again := func() error {
		last, read, err := n.replayInto(ctx, m, p, at)
		at, records = last, records+read
		return err
	}
	for ctx.Err() == nil && n.local.Last() > at+followNear {
		if err := again(); err != nil {
			return records, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// Records that the reader has passed are in the local log. With other records of this partition the reader waits for mu, and then it
	// skips those that were applied here (upTo).
	if err := again(); err != nil {
		return records, err
	}
	if !n.reachesBack(position) {
		return records, fmt.Errorf("the local log was cut to %d meanwhile, and the partition is as of %d", n.local.First(), position)
	}
	if ctx.Err() != nil {
		return records, ctx.Err()
	}
	p.out.Lock()
	p.offered, p.durable, p.settling = m.Made(), engine.Acked{}, engine.Acked{}
	p.out.Unlock()
	n.listen(p, m)
	p.machine, p.owner, p.upTo = m, engine.Owner{}, at
	p.checkpoint.Store(position)
	p.older.Store(0)
	p.checkpointAt.Store(int64(n.clock.running()))
	p.bytesAt.Store(n.logUsage.bytesRead())
	p.follows.Store(true)
	return records, nil
}

// unfollow stops following a partition and removes its jobs, unless the partition is needed after all, or this node is saving partitions
// now. It first waits for the commands in progress, because afterwards this node would not learn their outcomes.
func (n *Node) unfollow(ctx context.Context, p *partition) error {
	p.unfollowing.Store(true)
	defer p.unfollowing.Store(false)
	answered, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	for p.unanswered.Load() > 0 && sleep(answered, time.Millisecond) {
		continue
	}
	if !n.saveLock.TryLock() {
		return nil // it is tried again at the next look
	}
	defer n.saveLock.Unlock()
	p.checkpointWaiters.Add(1)
	p.checkpointing.Lock()
	defer p.checkpointing.Unlock()
	p.checkpointWaiters.Add(-1)
	if !n.followedAsPlaced(n.view(), p.number) { // checked again, after waiting for commands and perhaps a checkpoint
		return nil
	}
	p.mu.Lock()
	if p.owner.Epoch != 0 || p.claiming || p.stopped != nil {
		p.mu.Unlock()
		return nil
	}
	p.needs.Store(1) // a start before the table is cleared would go on with the partition, and need the log
	p.follows.Store(false)
	p.sentClaim = false // when the partition is followed again, older claims of this node may be read again
	p.earlier = p.loaded()
	p.machine = engine.New(n.layout, p.number)
	p.checkpoint.Store(0)
	p.older.Store(0)
	p.checkpointAt.Store(0)
	before := p.table.renew()
	p.mu.Unlock()
	if err := errors.Join(before.Close(), n.jobTable.Clear(uint16(p.number))); err != nil {
		return err
	}
	p.needs.Store(0)
	n.log.Info("follows a partition no more", "partition", p.number)
	return nil
}

// neededToFollow is the position above which the log must be kept so that each partition that this node does not follow keeps at least one
// follower. It is 0 if a partition has no live follower: when a former one comes back, it goes on from where it was.
func (n *Node) neededToFollow(v cluster.View) uint64 {
	needed := uint64(math.MaxUint64 - 1)
	for _, p := range n.partitions {
		if p.follows.Load() {
			continue
		}
		var most uint64
		for i := range v.Members {
			if _, follows := v.Members[i].Progress(p.number); follows {
				most = max(most, v.Members[i].Needs)
			}
		}
		needed = min(needed, most)
	}
	return needed
}
