package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/wal"
)

// Where a chain goes on: how the last output in its stream is found.

// Pauses between two attempts to resume a chain.
const (
	resumePauseMin = 5 * time.Millisecond
	resumePauseMax = time.Second            // if the chain is lost again and again
	answerPauseMax = 100 * time.Millisecond // if the stream does not say how far it is
	ownerPause     = 10 * time.Millisecond  // until the claim has come back
)

// resync asks the output stream how far it is, and resumes the chain from there. It tries until it
// succeeds, the partition stops or is no longer this node's, or the node stops. If the chain is lost again right after it
// was resumed, the pause before the next attempt is longer each time, until this node begins to serve the partition anew.
func (n *Node) resync(ctx context.Context, p *partition) {
	select {
	case <-p.begun: // when there was no pause
	default:
	}
	p.out.Lock()
	if time.Since(p.resumed) > resumePauseMax {
		p.pause = 0
	}
	before := p.pause
	p.pause = min(max(2*p.pause, resumePauseMin), resumePauseMax)
	replicated := p.chain.Confirms()
	p.out.Unlock()
	var contradicted time.Time // since when the stream has contradicted the log
	for {
		if before > 0 && !sleepUnless(ctx, before, p.begun) {
			return
		}
		err := n.resume(ctx, p)
		switch {
		case err == nil || ctx.Err() != nil:
			n.alarm.Wake()
			return
		case errors.Is(err, engine.ErrAhead), errors.Is(err, engine.ErrBehind):
			if contradicted.IsZero() {
				contradicted = time.Now()
			}
			if !replicated || time.Since(contradicted) > streams.ConfirmTime {
				n.stop(p, err)
				return
			}
			n.log.Warn("output stream contradicts the log", "partition", p.number, "error", err) // for seconds at most
		case errors.Is(err, engine.ErrRules), errors.Is(err, engine.ErrDiverged), errors.Is(err, engine.ErrVersion), errors.Is(err, wal.ErrCorrupt):
			n.stop(p, err)
			return
		case errors.Is(err, errStopped):
			return
		case errors.Is(err, errNotOwner):
			if !p.endUnlessServing() {
				return
			}
			before = ownerPause
			continue
		default:
			contradicted = time.Time{}
			n.limitedLogs.endUnknown.warn(n.log, "output stream does not say how far it is", "partition", p.number, "error", err)
		}
		p.out.Lock()
		p.lostBy = err
		p.out.Unlock()
		before = min(max(2*before, resumePauseMin), answerPauseMax)
	}
}

var (
	errStopped  = errors.New("node: the partition stopped")
	errNotOwner = errors.New("node: the partition is not this node's")
)

// endUnlessServing tells whether this node still serves the partition. If not, resyncing ends, and begins again after the next claim.
func (p *partition) endUnlessServing() bool {
	p.out.Lock()
	defer p.out.Unlock()
	p.resyncing = p.serving
	return p.serving
}

// ownedEpoch is the epoch under which this node owns the partition; 0 if it does not own it, or its claim has not been applied yet. The
// caller holds mu.
func (p *partition) ownedEpoch() uint64 {
	if p.owner.Epoch != p.machine.Epoch() {
		return 0
	}
	return p.owner.Epoch
}

// resume makes a chain go on after the stream's end. Earlier owners published outputs of records below this node's claim, which has
// been applied. So the machine knows every output that there can be, unless another node has claimed since. That node publishes an
// output only after its record is in the log. So if the stream has an output that the machine does not know, resume waits until
// everything that the log has by then is applied, and judges the stream again. Meanwhile another node may have owned the partition, and
// this one may own it again: then what was found says nothing about the outputs that are held now. The epoch shows that.
func (n *Node) resume(ctx context.Context, p *partition) error {
	p.mu.Lock()
	epoch, acked, stopped := p.ownedEpoch(), p.machine.Acked(), p.stopped
	p.mu.Unlock()
	if stopped != nil {
		return errStopped
	}
	if epoch == 0 {
		return errNotOwner
	}
	out := n.streams.Out[p.number]
	info, last, err := out.Last(ctx)
	if err != nil {
		return err
	}
	p.out.Lock()
	p.leader = info.Leader
	p.out.Unlock()
	found, number, err := n.judge(ctx, p, epoch, info, last, acked)
	if errors.Is(err, engine.ErrAhead) {
		if err := n.awaitLogged(ctx); err != nil {
			return err
		}
		found, number, err = n.judge(ctx, p, epoch, info, last, acked)
	}
	switch {
	case errors.Is(err, engine.ErrBehind):
		return n.republish(ctx, p, epoch, info.Last, found.end, err)
	case errors.Is(err, engine.ErrAhead) && n.o.AcceptLoss[p.number]:
		n.log.Error("accepting as foreign what the output stream has beyond the log", "partition", p.number, "error", err)
		number, err = n.acceptAhead(ctx, p, info, acked, found.made)
	}
	if err != nil {
		return err
	}
	end, err := n.replaceDisplaced(ctx, p, epoch, info.Last, found.missing)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ownedEpoch() != epoch {
		return errNotOwner
	}
	outputs, ok := p.machine.Outbox(number)
	if !ok {
		return fmt.Errorf("%w: partition %d", engine.ErrBehind, p.number)
	}
	n.resumeChain(p, end, number, outputs, found.foreign)
	return nil
}

// awaitLogged waits until the machines have applied what the log has now. With the embedded server that is the local log, because
// republish may have published outputs of records that are stored there and not applied yet.
func (n *Node) awaitLogged(ctx context.Context) error {
	if n.server != nil {
		return n.awaitApplied(ctx, n.local.Last())
	}
	return n.awaitLogEnd(ctx)
}

// resumeChain resumes the chain after an output, number, at the stream's last sequence. The caller holds mu.
func (n *Node) resumeChain(p *partition, lastSeq, number uint64, outputs []engine.Output, foreign uint64) {
	p.out.Lock()
	defer p.out.Unlock()
	p.chain.Resume(lastSeq, number, outputs)
	p.offered = number + uint64(len(outputs)) // republish's replay may be ahead of the machine: by records that are stored but not applied
	p.overdue = overdue{}
	if len(outputs) == 0 { // otherwise the first ack shows that publishing works again
		p.lostSince = time.Time{}
	}
	p.run++
	p.foreign += foreign
	p.counted = lastSeq
	p.resyncing = false
	p.resumed = time.Now()
	n.limitedLogs.resumes.logAtMost(n.chainLines(), n.log.Info, "publishing", "partition", p.number,
		"after_output", number, "after_sequence", lastSeq, "waiting", len(outputs), "foreign", foreign)
}

// replaceDisplaced publishes, one by one, the outputs that foreign messages displaced. last is the stream's last sequence; the new one is
// returned. Error: errNotOwner if the partition is no longer this node's by its claim at epoch, and so may have been given up.
func (n *Node) replaceDisplaced(ctx context.Context, p *partition, epoch, last uint64, missing []uint64) (uint64, error) {
	for _, number := range missing {
		var c streams.Chained
		p.mu.Lock()
		if p.ownedEpoch() != epoch {
			p.mu.Unlock()
			return 0, errNotOwner
		}
		held, ok := p.machine.Outbox(number - 1)
		if ok {
			n.render(&c, p, engine.Publish{Output: &held[0], Expect: last, Named: true})
		}
		p.mu.Unlock()
		if !ok {
			return 0, fmt.Errorf("%w: partition %d: output %d is missing and no longer held", engine.ErrBehind, p.number, number)
		}
		n.log.Warn("an output was displaced by a foreign message; publishing it again", "partition", p.number, "output", number)
		stored := make(chan error, 1)
		if err := n.streams.Out[p.number].PublishChained(&c, func(_ uint64, err error) { stored <- err }); err != nil {
			return 0, err
		}
		n.streams.Flush()
		select {
		case err := <-stored:
			if err != nil {
				return 0, err
			}
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		last++
	}
	return last, nil
}

// republish publishes again what the stream lost and the machine no longer holds: replay from a checkpoint
// makes the same outputs with the same numbers. If not even the older checkpoint reaches back far enough, the partition stops,
// unless the loss is accepted.
func (n *Node) republish(ctx context.Context, p *partition, epoch, lastSeq uint64, end engine.StreamEnd, behind error) error {
	number := end.Number
	if number == 0 {
		p.mu.Lock()
		acked := p.machine.Acked()
		p.mu.Unlock()
		// No output is left that could tell the number. So each missing sequence counts as an output: no foreign message is known there.
		number = acked.Output - min(acked.Output, acked.Seq-min(acked.Seq, end.LastSeq))
	}
	n.log.Warn("the output stream lost outputs; making them again", "partition", p.number, "stream", number, "reason", behind)
	again, err := n.rebuildOutputs(ctx, p.number, number)
	if errors.Is(err, errOutOfReach) {
		if !n.o.AcceptLoss[p.number] {
			return fmt.Errorf("%w; no checkpoint reaches back to output %d", behind, number)
		}
		return n.resumeWithLoss(ctx, p, epoch, lastSeq, number)
	}
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ownedEpoch() != epoch {
		return errNotOwner
	}
	// The machine may have made more since the replay.
	made := number + uint64(len(again))
	more, ok := p.machine.Outbox(made)
	if !ok {
		return fmt.Errorf("node: replay made output %d, the machine no longer holds the next", made)
	}
	n.resumeChain(p, lastSeq, number, append(again, more...), 0)
	return nil
}

// resumeWithLoss resumes a chain with the outputs that the machine still holds. number is the last output that the stream has. The
// outputs in between are lost, which was accepted.
func (n *Node) resumeWithLoss(ctx context.Context, p *partition, epoch, lastSeq, number uint64) error {
	n.log.Error("accepting that outputs are lost", "partition", p.number, "after_output", number)
	if err := n.markLoss(ctx, p); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ownedEpoch() != epoch {
		return errNotOwner
	}
	acked := p.machine.Acked()
	if counted := max(number, p.lostUpTo); acked.Output > counted { // once, although the chain may be lost again before anything is stored
		n.meters.lostOutputs.Add(int(acked.Output - counted))
		p.lostUpTo = acked.Output
	}
	outputs, _ := p.machine.Outbox(acked.Output)
	n.resumeChain(p, lastSeq, acked.Output, outputs, 0)
	return nil
}

// acceptAhead marks a loss, and returns the output behind which the chain goes on in a stream that has outputs which the machine, at its
// newest output made, does not know. Those that it has made since such a loss was first accepted may not be stored yet.
func (n *Node) acceptAhead(ctx context.Context, p *partition, info streams.Info, acked engine.Acked, made uint64) (number uint64, err error) {
	number = made
	if info.Last >= acked.Seq {
		f, err := n.survey(ctx, p, info, acked, info.Last)
		if err != nil {
			return 0, err
		}
		number = f.stored
	}
	return number, n.markLoss(ctx, p)
}

// markLoss makes the partition publish an event: the rejection of a command whose verb does not exist. The event shows readers of the
// stream that something was lost or repeated here. It also shows the next start where the stream goes on: without it that start would
// stop again. Until the event is stored, the node is not ready.
func (n *Node) markLoss(ctx context.Context, p *partition) error {
	p.mu.Lock()
	made := p.machine.Made()
	p.mu.Unlock()
	p.out.Lock()
	p.marker = made + 1
	p.out.Unlock()
	_, err := n.streams.Log.Publish(ctx, n.layout.LogSubject(p.number, "accept-loss")+"._", nil, nil)
	return err
}
