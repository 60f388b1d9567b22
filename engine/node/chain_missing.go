package node

import (
	"context"
	"errors"

	"github.com/carillon-scheduler/carillon/engine/streams"
)

// Outputs that are missing from the middle of an output stream. nats-server drops the rest of a damaged block when it builds a stream's
// index anew, and its log does not tell. But not each hole in a stream is such a loss: a write that fails uses up a sequence, a foreign
// message may have been purged, and an output from a hole may have been published again behind it. The numbers of the outputs tell.

// missingOutputs is what is known of the holes in one output stream.
type missingOutputs struct {
	gone    uint64 // messages that were gone when the holes were looked at
	outputs uint64 // how many of these were outputs then, at the least; not more than gone
}

// holesMost bounds the holes that are looked at. Damage makes one for each block, but a purge of a subject may make very many.
const holesMost = 16

// checkHoles looks for outputs that are missing from the middle of the output stream of a partition that this node serves. info is what
// the stream says of itself; the holes are asked for only when other messages are gone than before.
func (n *Node) checkHoles(ctx context.Context, p *partition, info streams.Info) {
	gone := info.Gone()
	p.out.Lock()
	if gone < p.missing.gone { // the stream has dropped what was before a hole
		p.missing = missingOutputs{gone, min(p.missing.outputs, gone)}
	}
	known, serving := p.missing, p.serving
	p.out.Unlock()
	if !serving || gone == known.gone {
		return
	}
	m, err := n.findMissing(ctx, p)
	if err != nil {
		return // the next look asks again
	}
	found := missingOutputs{gone: known.gone, outputs: m.outputs}
	if m.final {
		found.gone = gone
	}
	p.out.Lock()
	p.missing = found
	p.out.Unlock()
	if m.outputs > known.outputs {
		n.log.Warn("outputs are missing from the middle of the output stream: purged, or lost by damage", "partition", p.number,
			"missing", m.outputs, "first_output", m.first, "last_output", m.last)
	}
}

// missing are the outputs that are missing from a stream.
type missing struct {
	outputs     uint64 // how many, at the least
	first, last uint64 // the numbers between which they are
	final       bool   // a later look would not find more, unless more messages go
}

// findMissing looks at the holes in a partition's output stream. Two counts must agree that outputs are missing. One is by the numbers
// before and behind each hole: it counts too many where some of these outputs were published again behind the hole. The other is by
// the oldest and the newest number in the stream: it counts too few where there are foreign messages, and too many behind an accepted loss.
func (n *Node) findMissing(ctx context.Context, p *partition) (m missing, err error) {
	holes, err := n.streams.Out[p.number].Holes(ctx)
	if err != nil {
		return m, err
	}
	p.out.Lock()
	stored, lost := p.chain.Stored(), p.chain.Lost()
	p.out.Unlock()
	newest := stored.Output
	if stored.Seq != holes.Last {
		if newest, err = n.outputAt(ctx, p, holes.Last); err != nil {
			return m, err
		}
	}
	oldest, err := n.outputAt(ctx, p, holes.First)
	if lost || err != nil || oldest == 0 || newest == 0 {
		return m, err
	}
	for _, h := range holes.Middle[:min(len(holes.Middle), holesMost)] {
		before, err := n.outputAt(ctx, p, h.First-1)
		if err != nil {
			return m, err
		}
		behind, err := n.outputAt(ctx, p, h.Last+1)
		if err != nil {
			return m, err
		}
		if before == 0 || behind <= before+1 {
			continue
		}
		if m.outputs == 0 {
			m.first = before + 1
		}
		m.last = behind - 1
		m.outputs += min(behind-before-1, h.Size())
	}
	numbers := newest + 1 - min(newest+1, oldest)
	m.outputs = min(m.outputs, numbers-min(numbers, holes.Messages()))
	m.final = holes.AtEnd == 0 // what is gone from the end will be in the middle
	return m, nil
}

// outputAt is the number of the output at a sequence of a partition's stream; 0: there is none.
func (n *Node) outputAt(ctx context.Context, p *partition, seq uint64) (uint64, error) {
	m, err := n.streams.Out[p.number].Get(ctx, seq)
	if errors.Is(err, streams.ErrNotFound) { // it was dropped for its age just now
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	number, _ := n.outputOf(&m)
	return number, nil
}
