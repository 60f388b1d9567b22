package node

import (
	"context"
	"errors"
	"time"

	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/servers"
)

// Several nodes over one NATS
//
// Every node reads the whole log, stores it, and applies the records of the partitions that it follows (cluster_follow.go); by default these
// are all partitions. So it has their state, and could serve each of them. The latest claim in the log says which node serves a
// partition: every node's machine ignores ticks of any epoch but that claim's, and an output stream takes output n once, whoever
// publishes it. So triggers are right even if something of what follows goes wrong: that only has to make takeovers quick.
//
//   - A node that View.Claimant names for a partition, and that does not serve it, appends a claim (claimLoop). It ticks
//     from the moment when the claim comes back in the log, and not before: by then all that the former owner did under its epoch
//     has been applied here. Then the node asks the output stream how far it is, and goes on from there (resume).
//   - A node that reads another's claim in the log stops ticking and publishing at once (claimApplied). It is not told in any
//     other way, and nobody waits for it.
//   - A node that hangs or is cut off goes on believing that it serves. Its ticks carry an old epoch. Its outputs are the
//     same as those of the new owner, and the output stream refuses the second copy. When the node wakes up, it reads the claim.
//
// In a planned hand-over the next owner catches up before it claims, so that the claim comes back at once. What is
// lost is the time of one record and one question to the output stream. If nobody serves the partition, there is nothing to wait
// for: the node claims first, and then catches up.
//
// While the views of two nodes differ, they could claim a partition from each other in turn. claimAgain bounds how often, and yieldFor
// where one of them only finds the other one's server slow. This only makes triggers late.
const (
	// claimPoll is how often a node looks whether it should claim a partition. That can change without a new view, because the
	// positions in the beats count, and these come five times a second.
	claimPoll = 50 * time.Millisecond
	// caughtUp is how many records of the log a member may be behind the one that is furthest, and still count as caught
	// up. It is what a busy log takes in during one interval between beats, because the positions are as of each member's last beat.
	caughtUp = 20_000
	// handOverLag is how many records the next owner may be behind the log's end in a hand-over. Before it claims, it waits
	// until they are applied, which takes a millisecond or two.
	handOverLag = 200
	// handOverAsk bounds how long that takes, with the question for the log's end. If it takes longer, the node does not claim now.
	handOverAsk = time.Second
	// stalledFor is for how long something may have been due before a node concludes that nobody serves the partition. It is
	// longer than an election, and what follows it, takes.
	stalledFor = 3 * time.Second
	// claimAgain is the least time between two claims of a partition by one node, unless the first one was not stored, and between the
	// claim of a node that it takes for dead and its own.
	claimAgain = time.Second
	// yieldFor is how long a node leaves a partition to one whose server is slow only to it, once that one has taken the partition back.
	yieldFor = 5 * time.Second
)

// claimLoop claims the partitions that this node should serve, until ctx ends.
func (n *Node) claimLoop(ctx context.Context) {
	t := time.NewTicker(claimPoll)
	defer t.Stop()
	views := n.membership.member.Views()
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-views:
			if !ok {
				if ctx.Err() != nil {
					return
				}
				n.fail(errors.Join(errors.New("node: no longer among the nodes of this service"), n.membership.member.Err()))
				return
			}
			notify(n.membership.changed)
		case <-t.C:
		}
		n.membership.noteUnserved(n.membership.member.View(), len(n.partitions))
		n.claimDue(ctx)
	}
}

// claimDue claims the partitions that this node should claim (dueClaims), some at once, others once all of the log is applied. It waits for
// the latter in a goroutine, so that it can claim those of a node that dies meanwhile, and then asks again which ones they are.
func (n *Node) claimDue(ctx context.Context) {
	atOnce, upToDate := n.dueClaims(n.membership.member.View(), n.servers.Slow())
	for _, p := range atOnce {
		n.claim(p)
	}
	if len(upToDate) == 0 || !n.membership.catchingUp.CompareAndSwap(false, true) {
		return
	}
	n.work.Go(func() {
		defer n.membership.catchingUp.Store(false)
		if !n.nearLogEnd(ctx) {
			return
		}
		_, upToDate := n.dueClaims(n.membership.member.View(), n.servers.Slow())
		for _, p := range upToDate {
			n.claim(p)
		}
	})
}

// dueClaims are the partitions that this node should claim: atOnce those that nobody serves, and upToDate, once all of the log is applied,
// those that another node serves now. Nodes whose nats-server is slow do not count, except where one of them has just taken a partition
// back, and so reaches the log: then only the link between the two is slow.
//
// For a while after this node's network was slow, it claims only partitions that nobody serves, and none that it has just learned to have
// lost: the beat by which the other one says that it serves the partition may have yet to come. While it is slow, nodes that seem dead may
// be alive. Then the node claims only partitions in which, by all that the log has, something has waited for so long that nobody can be
// serving them.
//
// A node that seems dead, and has just taken a partition, lives. It is left time to serve it, however long a claim takes until both have
// applied it: otherwise each would claim again just as it learns that it has lost the partition.
func (n *Node) dueClaims(all cluster.View, slow servers.Slowness) (atOnce, upToDate []*partition) {
	v := withoutSlow(all, slow, n.o.Name)
	lives := func(node string) bool { _, found := all.Member(node); return found }
	for _, p := range n.partitions {
		if v.Claimant(p.number, caughtUp) != n.o.Name || !p.mayClaim() {
			continue
		}
		taker, lost := p.lostJustNow()
		switch serving := v.Serving(p.number); {
		case all.Claimant(p.number, caughtUp) != n.o.Name && p.yields():
		case slow.Now:
			if serving == "" && n.stalled(p) {
				upToDate = append(upToDate, p)
			}
		case slow.Self && serving != "":
		case lost && (slow.Self || !lives(taker)):
		case serving != "" && serving != n.o.Name:
			upToDate = append(upToDate, p)
		default:
			atOnce = append(atOnce, p)
		}
	}
	return atOnce, upToDate
}

// stalled tells whether, by what this node has of the log, something in a partition has been due for so long that nobody can be
// serving it.
func (n *Node) stalled(p *partition) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.machine.DueSince()
	return ok && n.clock.ms()-at > stalledFor.Milliseconds()
}

// lostJustNow tells whether this node learned less than claimAgain ago that another one has taken a partition from it, and which.
func (p *partition) lostJustNow() (taker string, lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.takenBy, time.Since(p.takenAt) < claimAgain
}

// yields tells whether another node took a partition back, soon after this one had claimed it, less than yieldFor ago.
func (p *partition) yields() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.takenBack && time.Since(p.takenAt) < yieldFor
}

// mayClaim tells whether this node may claim a partition: it follows it, does not own it, and has not claimed it within claimAgain.
func (p *partition) mayClaim() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.follows.Load() && p.owner.Epoch == 0 && p.stopped == nil && !p.claiming && !time.Now().Before(p.claimable)
}
