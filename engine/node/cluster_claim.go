package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// Claims, by which a node becomes the owner of a partition.

// claimPause is the time between two attempts to claim in a log stream that is full. Meanwhile the stream is read, and trimmed.
const claimPause = 250 * time.Millisecond

// Least time between two claims of which the first was not answered in time. A claim that is stored although its answer is late makes void
// the ticks that follow under the one before it, so if claims came faster than answers none would ever count.
const (
	claimLate    = 250 * time.Millisecond // the first one may be lost
	claimLateAll = 500 * time.Millisecond // that many are lost is less likely than that answers take long
)

// claimBody is the body of this node's claims.
func (n *Node) claimBody() []byte {
	claim := engine.Rules()
	claim.Node, claim.RetentionMS, claim.CompletedMax = n.o.Name, n.o.Retention.Milliseconds(), n.o.CompletedMax
	return claim.Encode()
}

// claimAll claims every partition, for a node with an embedded server, and waits until the claims come back: then all that was in the log
// before them has been applied. Before it claims, it applies what only the log stream has. If there are ticks of an older version among
// that, it returns an error and does not claim, because behind claims of this version the older one could not go on either.
func (n *Node) claimAll(ctx context.Context) error {
	if err := n.awaitLogEnd(ctx); err != nil {
		return err
	}
	if err := n.otherRules(); err != nil {
		return err
	}
	body := n.claimBody()
	var last uint64
	for _, p := range n.partitions {
		seq, err := n.streams.Log.Publish(ctx, n.layout.LogSubject(p.number, "claim"), nil, body)
		for errors.Is(err, streams.ErrNoSpace) && sleep(ctx, claimPause) {
			n.limitedLogs.claimsLost.warn(n.log, "claim not stored", "partition", p.number, "error", err)
			seq, err = n.streams.Log.Publish(ctx, n.layout.LogSubject(p.number, "claim"), nil, body)
		}
		if err != nil {
			return fmt.Errorf("node: claim partition %d: %w", p.number, err)
		}
		n.claimStored(p, seq)
		last = seq
	}
	if err := n.awaitApplied(ctx, last); err != nil {
		return err
	}
	return n.otherRules()
}

// otherRules returns an error if a partition stopped because its log goes on under other rules than this node's.
func (n *Node) otherRules() error {
	for _, p := range n.partitions {
		if stopped := p.whyStopped(); errors.Is(stopped, engine.ErrRules) {
			return fmt.Errorf("node: %w", stopped)
		}
	}
	return nil
}

// newerRules is the error of a partition in which a claim of this node had no effect, because a newer version has claimed it.
func newerRules(p *partition, st engine.Stats) error {
	rules := engine.Rules()
	return fmt.Errorf("%w: partition %d was claimed by node %q under a newer version than this one (which has logic %d and tzdata %s); start that version",
		engine.ErrRules, p.number, st.Owner, rules.Logic, rules.TZData)
}

// claim appends a claim of one partition, unless one is on its way or the partition was just given up. The node owns the partition when the
// claim comes back in the log (claimApplied). If the answer to the claim is late, the node claims again: the first claim may be lost.
func (n *Node) claim(p *partition) {
	p.mu.Lock()
	if p.claiming || !p.follows.Load() {
		p.mu.Unlock()
		return
	}
	p.claiming, p.sentClaim, p.claimed = true, true, time.Now()
	p.claimable = p.claimed.Add(claimAgain)
	p.claims++
	number := p.claims
	p.mu.Unlock()
	done := func(seq uint64, err error) {
		if err == nil {
			n.claimStored(p, seq)
		} else if !errors.Is(err, streams.ErrClosed) {
			n.limitedLogs.claimsLost.warn(n.log, "claim not stored", "partition", p.number, "error", err) // if it was, two do no harm
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.claims != number {
			return // done is called twice if the answer is late; by the second time another claim may be on its way
		}
		p.claiming = false
		notify(n.membership.changed) // a hand-over may wait for the outcome
		switch {
		case errors.Is(err, streams.ErrLate):
			p.claimable = p.claimed.Add(claimLate)
			if p.late {
				p.claimable = p.claimed.Add(claimLateAll)
			}
			p.late = true
		case err != nil:
			p.claimable = time.Time{} // at once: the log may have a leader again at any moment
		}
	}
	if err := n.streams.Log.PublishReportLate(n.layout.LogSubject(p.number, "claim"), n.claimBody(), done); err != nil {
		done(0, err)
	}
}

// claimStored notes that this node's claim of a partition is stored, at the sequence epoch. The node begins to serve the partition once the
// machine has applied the claim, too.
func (n *Node) claimStored(p *partition, epoch uint64) {
	p.mu.Lock()
	if p.follows.Load() && p.stopped == nil && epoch >= p.machine.Epoch() { // else it was given up, stopped, or claimed again since
		p.owner.Epoch = epoch
		n.claimApplied(p) // the claim may have been applied before this answer came
	}
	p.mu.Unlock()
	n.alarm.Wake()
}

// claimApplied begins to serve a partition if the machine has applied this node's claim. If it has applied another node's claim since, this
// node stops ticking the partition and publishing its outputs, at once. The caller holds mu.
//
// Once this node has sent a claim, every claim in its name counts as its own, even one that was not answered, or that is stored behind a
// later one: no other node has its name.
func (n *Node) claimApplied(p *partition) {
	st := p.machine.Stats()
	if p.sentClaim && st.Owner == n.o.Name {
		p.owner.Epoch = max(p.owner.Epoch, st.Epoch)
	}
	mine := p.owner.Epoch
	if mine == 0 {
		return
	}
	p.out.Lock()
	defer p.out.Unlock()
	switch {
	case st.Epoch == mine:
		p.late, p.claimable = false, p.claimed.Add(claimAgain)
		if !p.serving {
			p.pause = 0 // what earlier chains were lost to says nothing about this one
			notify(p.begun)
		}
		p.serving = true
		n.alarm.Wake() // there may be ticks to make
		return
	case st.Epoch > mine:
		p.takenAt, p.takenBy, p.takenBack = time.Now(), st.Owner, time.Since(p.claimed) < 2*claimAgain // the other one may have had to wait for claimAgain
		n.log.Info("partition taken over by another node", "partition", p.number, "node", st.Owner, "epoch", st.Epoch)
	case st.Position >= mine:
		p.halt(newerRules(p, st))
		n.logStopped(p, p.stopped)
	default: // the claim has not been applied yet
		return
	}
	p.owner.Epoch = 0
	p.serving = false
	p.lostSince, p.lostBy = time.Time{}, nil
	p.run++ // answers to what was sent before no longer count
	p.chain.Lose()
	notify(n.membership.changed)
}
