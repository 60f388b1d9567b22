package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/servers"
)

// Several nodes over one NATS
//
// Every node reads the whole log, stores it, and applies what is of the partitions that it follows: all, if nothing else was
// said (follow.go). It has their state and could serve them. Which one does is said by the latest claim in the log: the
// machine ignores ticks of any epoch but that claim's, on every node alike, and an output stream takes output n once, whoever
// publishes it. So none of what follows has to be right for the triggers to be; it has to be quick.
//
//   - A node that is named by View.Claimant and does not serve appends a claim (takeSeats). It ticks from the moment
//     when that comes back in the log, and not before: then all that the former owner did under its epoch has been
//     applied here. Its chain asks the output stream how far it is (resume).
//   - A node that reads another's claim in the log stops ticking and publishing there and then (claimApplied). Nobody
//     tells it otherwise, and nobody waits for it.
//   - A node that hangs or is cut off goes on believing that it serves. Its ticks carry an epoch that is over; its
//     outputs are the very ones that the new owner publishes, and the chain refuses the second copy. When it wakes up
//     it reads the claim.
//
// A planned hand-over is the same with the order turned round: the owner-to-be is caught up before it claims, so that
// the claim comes back at once; what is lost is the time of one record and one look at the output stream. Where nobody
// serves there is nothing to wait for, and the claim goes out first.
//
// Two nodes whose views differ could claim from each other for as long as they do. claimAgain bounds how often. What
// that costs is lateness alone.
const (
	// seatLook is how often a node looks whether it should serve something else. Positions in beats change without
	// a word, five times a second.
	seatLook = 50 * time.Millisecond
	// caughtUp is how many records of the log a member may be behind the one that is furthest, and count as caught
	// up. Positions are as of each one's last beat, so it is what a busy log takes up in one interval.
	caughtUp = 20_000
	// handOverLag is how many records an owner-to-be may be behind the log's end and wait for them to claim from one that
	// serves: they are applied in a millisecond or two.
	handOverLag = 200
	// handOverAsk bounds the question for the log's end. A slow answer is a reason to leave things as they are.
	handOverAsk = time.Second
	// neglectedFor is how long something may wait to be fired before nobody can be serving it: an election, and what follows.
	neglectedFor = 3 * time.Second
	// claimAgain is the least time between two claims of a partition by one node, unless the first was not stored.
	claimAgain = time.Second
)

// joined is this node among those over the same NATS.
type joined struct {
	tried     chan struct{} // closed when joining has ended, well or not; nil: the node does not join
	member    *cluster.Member
	err       error // why it could not join
	leaving   sync.Once
	takesPart atomic.Bool   // it claims partitions, and answers other nodes
	since     time.Duration // when it began to, since the clock began; set before takesPart
	draining  atomic.Bool
	tells     atomic.Bool   // its beats tell of its partitions
	nearing   atomic.Bool   // a goroutine waits until nearly all of the log is applied (takeDue)
	changed   chan struct{} // rung when who serves may have changed, or who could

	mu    sync.Mutex
	alone []time.Time // by partition: since when nobody says that it serves it; zero: somebody does
}

// noteUnserved notes which partitions nobody serves.
func (j *joined) noteUnserved(v cluster.View, partitions int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.alone == nil {
		j.alone = make([]time.Time, partitions)
	}
	for p, since := range j.alone {
		switch served := v.Serving(p) != ""; {
		case served:
			j.alone[p] = time.Time{}
		case since.IsZero():
			j.alone[p] = time.Now()
		}
	}
}

// servedElsewhere tells whether some node says that it serves a partition.
func (j *joined) servedElsewhere(partition int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.alone != nil && j.alone[partition].IsZero()
}

// unserved says which partitions nobody has served for a while.
func (j *joined) unserved() (problems []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for p, since := range j.alone {
		if !since.IsZero() && time.Since(since) > lostTooLong {
			problems = append(problems, fmt.Sprintf("no node has served partition %d for %s", p, time.Since(since).Round(time.Second)))
		}
	}
	return problems
}

// takeSeats claims what this node is to serve, until ctx ends.
func (n *Node) takeSeats(ctx context.Context) {
	t := time.NewTicker(seatLook)
	defer t.Stop()
	views := n.joined.member.Views()
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-views:
			if !ok {
				if ctx.Err() != nil {
					return
				}
				n.fail(errors.Join(errors.New("node: no longer among the nodes of this service"), n.joined.member.Err()))
				return
			}
			ring(n.joined.changed)
		case <-t.C:
		}
		n.joined.noteUnserved(n.joined.member.View(), len(n.partitions))
		n.takeDue(ctx)
	}
}

// takeDue claims what is due to this node: at once, or once all of the log is applied. The log's end is asked for in a goroutine,
// because a node may die meanwhile, and what is due is worked out anew after that.
func (n *Node) takeDue(ctx context.Context) {
	atOnce, upToDate := n.due(n.seats())
	for _, p := range atOnce {
		n.claim(p)
	}
	if len(upToDate) == 0 || !n.joined.nearing.CompareAndSwap(false, true) {
		return
	}
	n.work.Go(func() {
		defer n.joined.nearing.Store(false)
		if !n.reachEnd(ctx) {
			return
		}
		_, upToDate := n.due(n.seats())
		for _, p := range upToDate {
			n.claim(p)
		}
	})
}

// seats is the view that claims go by: without those whose network is slow.
func (n *Node) seats() (cluster.View, servers.Slowness) {
	slow := n.servers.Slow()
	return withoutSlow(n.joined.member.View(), slow, n.o.Name), slow
}

// due are the partitions that this node is to claim: at once those that nobody serves, and once it has caught up those that
// somebody hands over. For a while after its own network was slow it claims only the former. While its network is slow, nodes that
// seem dead may not be: then it claims only partitions that nobody can be serving, by all that the log has.
func (n *Node) due(v cluster.View, slow servers.Slowness) (atOnce, upToDate []*partition) {
	for _, p := range n.partitions {
		if v.Claimant(p.number, caughtUp) != n.o.Name || !n.mayClaim(p) {
			continue
		}
		switch serving := v.Serving(p.number); {
		case slow.Now:
			if serving == "" && n.neglected(p) {
				upToDate = append(upToDate, p)
			}
		case serving != "" && slow.Self:
		case serving != "" && serving != n.o.Name:
			upToDate = append(upToDate, p)
		default:
			atOnce = append(atOnce, p)
		}
	}
	return atOnce, upToDate
}

// neglected tells whether something has been due in a partition for so long that nobody can be serving it, by what this node has
// of the log.
func (n *Node) neglected(p *partition) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.machine.NextDeadline()
	return ok && n.clock.ms()-at > neglectedFor.Milliseconds()
}

// mayClaim tells whether this node follows a partition, does not own it, and has not claimed it just now.
func (n *Node) mayClaim(p *partition) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.follows.Load() && p.owner.Epoch == 0 && p.stopped == nil && !p.claiming && time.Since(p.claimed) >= claimAgain
}

// reachEnd tells whether all is applied that the log has, or nearly so, in a moment.
func (n *Node) reachEnd(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, handOverAsk)
	defer cancel()
	end, err := n.logEnd.ask(ctx, n.askLogEnd)
	return err == nil && end-min(end, n.applied.Load()) <= handOverLag && n.reach(ctx, end) == nil
}
