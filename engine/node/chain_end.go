package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// What an output stream holds at its end: how the last output there is found, past foreign messages and what was lost.

// judge finds the number of the last output in a stream. info and last are the stream's answers about its end. Errors: errNotOwner if
// the partition is no longer this node's by its claim at epoch; engine.ErrAhead and engine.ErrBehind, with what was found; the stream's.
func (n *Node) judge(ctx context.Context, p *partition, epoch uint64, info streams.Info, last *streams.Message, acked engine.Acked) (f finding, number uint64, err error) {
	if f, err = n.findEnd(ctx, p, info, last, acked); err != nil {
		return f, 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ownedEpoch() != epoch {
		return f, 0, errNotOwner
	}
	f.made = p.machine.Made()
	number, err = p.machine.LastStored(f.end)
	return f, number, err
}

// finding is what an output stream holds at its end.
type finding struct {
	end     engine.StreamEnd
	foreign uint64   // how many foreign messages, without those that were counted before
	missing []uint64 // outputs that a foreign message displaced
	made    uint64   // the machine's newest output at that moment
	stored  uint64   // by a survey: the last output of the machine's that was stored, should the end be accepted as foreign
}

// findEnd finds the last output in a stream. last is the stream's last message; nil: it has none.
func (n *Node) findEnd(ctx context.Context, p *partition, info streams.Info, last *streams.Message, acked engine.Acked) (f finding, err error) {
	p.out.Lock()
	counted, links := p.counted, n.server == nil && !p.chain.Confirms()
	p.out.Unlock()
	if !links && info.Last >= acked.Seq {
		f, err = n.survey(ctx, p, info, acked, counted)
	} else {
		f, err = n.scanBack(ctx, p, info, last, acked, counted)
	}
	if err != nil || f.end.Number > 0 {
		return f, err
	}
	// No output is left above what the log knows to be stored. If age can have removed the messages there, they were outputs. Otherwise
	// they were lost in a power failure, after which the stream may still know its last sequence.
	age := leastAge(&info, n.streams.Out[p.number].Former(acked.Seq))
	aged := age > 0 && time.UnixMilli(n.clock.ms()).Sub(info.LastTime) >= age
	gone := acked.Seq > 0 && acked.Seq <= info.Last && info.First > info.Last && !aged
	if acked.Seq > 0 && info.First <= acked.Seq && acked.Seq <= info.Last {
		_, err := n.streams.Out[p.number].Get(ctx, acked.Seq)
		if gone = errors.Is(err, streams.ErrNotFound); err != nil && !gone {
			return f, err
		}
	}
	if gone { // by damage, or somebody purged a subject or the stream
		n.log.Warn("the end of the output stream is gone: purged, or lost by damage", "partition", p.number, "up_to_sequence", acked.Seq)
	}
	if aged && info.First > acked.Seq+1 {
		f.end.LastSeq = info.First - 1
	} else {
		f.end.LastSeq = min(info.Last, acked.Seq)
	}
	return f, nil
}

// scanBack goes back from the stream's end to the last message that is an output of this partition. It goes no
// further back than to what the log knows to be stored, unless the stream ends before that.
func (n *Node) scanBack(ctx context.Context, p *partition, info streams.Info, last *streams.Message, acked engine.Acked, counted uint64) (f finding, err error) {
	f.end.LastSeq = info.Last
	floor := acked.Seq
	if info.Last < floor {
		floor = 0
	}
	for seq := info.Last; seq > floor && seq >= info.First; seq-- {
		m := last
		if m == nil || m.Seq != seq {
			one, err := n.streams.Out[p.number].Get(ctx, seq)
			if errors.Is(err, streams.ErrNotFound) {
				continue
			}
			if err != nil {
				return f, err
			}
			m = &one
		}
		number, identity := n.outputOf(m)
		p.mu.Lock()
		foreign := p.machine.Foreign(number, seq, identity)
		p.mu.Unlock()
		if !foreign {
			f.end.Number, f.end.Identity, f.end.Seq = number, identity, seq
			return f, nil
		}
		if seq > counted {
			f.foreign++
		}
	}
	return f, nil
}

// survey reads all that the stream holds above what the log knows to be stored. It is for the embedded server's streams and for
// replicated ones, because chains do not link the messages there (engine/chain.go).
func (n *Node) survey(ctx context.Context, p *partition, info streams.Info, acked engine.Acked, counted uint64) (f finding, err error) {
	p.mu.Lock()
	out := n.streams.Out[p.number]
	s := p.machine.Survey(info.First, info.Last, n.keptSince(&info, out.Former(acked.Seq)))
	p.mu.Unlock()
	from, found := max(acked.Seq+1, info.First), uint64(0)
	err = out.Scan(ctx, acked.Seq, info.Last, func(batch []streams.Message) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		found += uint64(len(batch))
		for i := range batch {
			number, identity := n.outputOf(&batch[i])
			s.Add(number, batch[i].Seq, identity)
		}
		return nil
	})
	if err != nil {
		return f, err
	}
	if from+found <= info.Last { // what the survey takes for missing may have been removed by age
		now, err := out.Info(ctx)
		if err == nil && now.First > from {
			err = fmt.Errorf("node: the output stream began at %d, and begins at %d", info.First, now.First)
		}
		if err != nil {
			return f, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	f.end, f.missing, f.stored = s.End(), s.Missing(), s.Stored()
	if len(s.Foreign) > 0 {
		// Outputs in flight from before the loss may still arrive, behind a foreign message and so at other sequences. An output that
		// such a message displaced and that was taken for stored must not count as durable (heardForeign may come too late).
		p.out.Lock()
		p.chain.Watch(false)
		p.settling = p.durable
		p.out.Unlock()
	}
	for _, seq := range s.Foreign {
		if seq > counted {
			f.foreign++
		}
	}
	return f, nil
}

// keptSince is the time, unix ms, since when no message can have been removed from a stream because of its bounds. It may have wider ones
// since this start than those by which it removed messages before.
func (n *Node) keptSince(info *streams.Info, former streams.Bounds) int64 {
	full := func(most int64) bool { return most > 0 && info.Bytes > uint64(most)/4 } // or was a moment ago: messages may take a half of it
	age := leastAge(info, former)
	switch {
	case full(info.MaxBytes) || full(former.Bytes):
		return math.MaxInt64
	case info.MaxMessages > 0 && info.Messages >= uint64(info.MaxMessages)/4: // the same; only operators bound messages
		return math.MaxInt64
	case age == 0:
		return math.MinInt64
	}
	return n.clock.ms() - age.Milliseconds()
}

// leastAge is the least age at which a stream drops, or has dropped, its messages; 0: it drops none for their age.
func leastAge(info *streams.Info, former streams.Bounds) time.Duration {
	if former.Age > 0 && (info.MaxAge == 0 || former.Age < info.MaxAge) {
		return former.Age
	}
	return info.MaxAge
}

// outputOf tells which output a message claims to be, with the trigger's id or the event's body; number 0 if it is not well-formed.
func (n *Node) outputOf(m *streams.Message) (number uint64, identity string) {
	number, err := strconv.ParseUint(m.Header.Get(carillon.HeaderOutput), 10, 64)
	if err != nil {
		return 0, ""
	}
	names := carillon.Names{Prefix: n.o.Prefix, Stream: n.o.Stream}
	if _, err := names.ParseTrigger(m.Subject, m.Header, m.Data); err == nil {
		return number, m.Header.Get(carillon.HeaderTrigger)
	}
	if _, err := carillon.ParseEvent(m.Data); err == nil {
		return number, string(m.Data)
	}
	return 0, ""
}
