package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// claimPause is between two tries to claim in a log stream that is full and being read and trimmed.
const claimPause = 250 * time.Millisecond

// claimBody is what this node claims with.
func (n *Node) claimBody() []byte {
	claim := engine.Rules()
	claim.Node, claim.RetentionMS, claim.CompletedMax = n.o.Name, n.o.Retention.Milliseconds(), n.o.CompletedMax
	return claim.Encode()
}

// claimAll claims every partition, for a node that is alone with its server, and waits until the claims come back:
// then all that was in the log before has been applied. Ticks of an older version that only the log stream has come first:
// behind claims of this one that version could not go on with them.
func (n *Node) claimAll(ctx context.Context) error {
	if err := n.catchUp(ctx); err != nil {
		return err
	}
	if err := n.otherRules(); err != nil {
		return err
	}
	body := n.claimBody()
	var last uint64
	for _, p := range n.partitions {
		seq, err := n.streams.Log.Publish(ctx, n.layout.LogSubject(p.number, "claim"), nil, body)
		for errors.Is(err, streams.ErrNoSpace) && pause(ctx, claimPause) {
			n.troubles.claimsLost.tell(n.log, "claim not stored", "partition", p.number, "error", err)
			seq, err = n.streams.Log.Publish(ctx, n.layout.LogSubject(p.number, "claim"), nil, body)
		}
		if err != nil {
			return fmt.Errorf("node: claim partition %d: %w", p.number, err)
		}
		n.own(p, seq)
		last = seq
	}
	if err := n.reach(ctx, last); err != nil {
		return err
	}
	return n.otherRules()
}

// otherRules is why a partition stopped that goes on under other rules than this node's, if one does.
func (n *Node) otherRules() error {
	for _, p := range n.partitions {
		if stopped := p.whyStopped(); errors.Is(stopped, engine.ErrRules) {
			return fmt.Errorf("node: %w", stopped)
		}
	}
	return nil
}

// newerRules is why a partition stops in which a claim of this node has come to nothing.
func newerRules(p *partition, st engine.Stats) error {
	rules := engine.Rules()
	return fmt.Errorf("%w: partition %d was claimed by node %q under a newer version than this one (which has logic %d and tzdata %s); start that version",
		engine.ErrRules, p.number, st.Owner, rules.Logic, rules.TZData)
}

// claim appends a claim of one partition, unless one is on its way. The log tells its outcome: one whose answer is late is made
// again, as it may be lost, and does no harm when it is not.
func (n *Node) claim(p *partition) {
	p.mu.Lock()
	if p.claiming {
		p.mu.Unlock()
		return
	}
	p.claiming, p.sentClaim, p.claimed = true, true, time.Now()
	p.claims++
	number := p.claims
	p.mu.Unlock()
	done := func(seq uint64, err error) {
		if err == nil {
			n.own(p, seq)
		} else if !errors.Is(err, streams.ErrClosed) {
			n.troubles.claimsLost.tell(n.log, "claim not stored", "partition", p.number, "error", err) // if it was, it is made again
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.claims != number {
			return // one that is late is told of twice, and another is on its way by then
		}
		p.claiming = false
		if err != nil {
			p.claimed = time.Time{} // the log may have a leader again any moment
		}
	}
	if err := n.streams.Log.PublishPatient(n.layout.LogSubject(p.number, "claim"), n.claimBody(), done); err != nil {
		done(0, err)
	}
}

// own makes a partition this node's by its claim at epoch. It counts once the machine has it, too.
func (n *Node) own(p *partition, epoch uint64) {
	p.mu.Lock()
	if p.stopped == nil && epoch >= p.machine.Epoch() { // else it is over already
		p.owner.Epoch = epoch
		n.claimApplied(p) // its record may have come before the word about it
	}
	p.mu.Unlock()
	n.bell.Ring()
}

// claimApplied begins to serve a partition that this node's claim has made its own, and gives up one that somebody else
// has claimed since: ticks and outputs end here, at once. Its caller holds mu.
//
// A claim in this node's name is its own once it has sent one, also one that was not answered, or that comes behind a later one:
// no other node has the name.
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
		p.serving = true
		n.bell.Ring() // there may be ticks to make
		return
	case st.Epoch > mine:
		n.log.Info("partition taken over by another node", "partition", p.number, "node", st.Owner, "epoch", st.Epoch)
	case st.Position >= mine:
		p.halt(newerRules(p, st))
		n.tellStopped(p, p.stopped)
	default: // it has yet to come
		return
	}
	p.owner.Epoch = 0
	p.serving = false
	p.lostSince, p.lostBy = time.Time{}, nil
	p.run++ // answers to what was sent no longer count
	p.chain.Lose()
	ring(n.joined.changed)
}
