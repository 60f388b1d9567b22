package streams

import (
	"context"
	"errors"
)

// ExpectedLastSequence is the header of a chained publish that has the sequence which the stream must have before it. The server
// reserves its name.
const ExpectedLastSequence = "Nats-Expected-Last-Sequence"

// OutStream is the stream of one partition's triggers and events.
type OutStream struct {
	stream
	sender *sender
	former former
}

// Last returns what the stream holds, and its last message, which is nil if age, bytes or a purge removed it, or if
// there never was one. It asks for both at the same time, so that it takes no longer than one question. Errors: ErrNoStream,
// ErrDisconnected, the context's.
func (o *OutStream) Last(ctx context.Context) (info Info, m *Message, err error) {
	type answer struct {
		m   Message
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	asked := make(chan answer, 1)
	go func() {
		// To nats-server this is the message at the last sequence, if that is there (server/filestore.go, LoadLastMsg).
		m, err := o.get(ctx, messageRequest{LastFor: ">"})
		asked <- answer{m, err}
	}()
	if info, err = o.Info(ctx); err != nil {
		return Info{}, nil, err
	}
	a := <-asked
	switch {
	case a.err == nil && a.m.Seq > info.Last: // it was added between the two answers
		info.Last, info.LastTime = a.m.Seq, a.m.Time
	case a.err != nil || a.m.Seq < info.Last:
		a.m, a.err = o.Get(ctx, info.Last)
	}
	switch {
	case errors.Is(a.err, ErrNotFound):
		return info, nil, nil
	case a.err != nil:
		return Info{}, nil, a.err
	}
	return info, &a.m, nil
}

// Holes are the sequences of a stream whose messages are gone although there are messages before them.
type Holes struct {
	First, Last uint64 // of the stream
	Middle      []Hole // between two messages, ascending
	AtEnd       uint64 // how many are gone behind the last message
}

// Hole is a run of sequences without messages.
type Hole struct{ First, Last uint64 }

// Messages is how many messages the stream has.
func (h *Holes) Messages() uint64 {
	n := h.Last + 1 - h.First - h.AtEnd
	for _, m := range h.Middle {
		n -= m.Size()
	}
	return n
}

// Size is how many sequences these are.
func (h Hole) Size() uint64 { return h.Last + 1 - h.First }

// Holes asks for the stream's holes. Errors: Info's.
func (o *OutStream) Holes(ctx context.Context) (h Holes, err error) {
	g, err := o.gaps(ctx)
	if err != nil {
		return Holes{}, err
	}
	h.First, h.Last = g.first, g.last
	for _, seq := range g.deleted {
		if k := len(h.Middle) - 1; k >= 0 && h.Middle[k].Last+1 == seq {
			h.Middle[k].Last = seq
		} else {
			h.Middle = append(h.Middle, Hole{seq, seq})
		}
	}
	if k := len(h.Middle) - 1; k >= 0 && h.Middle[k].Last == h.Last {
		h.Middle, h.AtEnd = h.Middle[:k], h.Middle[k].Size()
	}
	return h, nil
}

// Chained is one message of a chain. PublishChained keeps none of its bytes.
type Chained struct {
	Subject    []byte
	Header     []byte // lines, each ending in CR LF
	Data       string
	Expect     uint64 // the sequence that the stream must have before it
	ReportLate bool   // if the answer is late, onAck first gets ErrLate
}

// kind is the kind of the message's publish.
func (m *Chained) kind() int {
	if m.ReportLate {
		return awaitReportLate
	}
	return awaitPlain
}

// PublishChained sends a message that the stream takes only right behind sequence Expect, and then as
// Expect + 1. It does not wait: the caller sends the next message with Expect + 1 at once, and calls Flush after
// the last one. If one is refused, so is every later one of the chain; so the answer to the last message of a
// window counts for all of it (but see engine/chain.go on foreign messages). Without onAck no answer is asked for.
//
// onAck is called once, on a goroutine that serves all streams and must not be held up, with the
// message's sequence or ErrWrongSequence, ErrNoSpace, ErrTimeout, ErrDisconnected, ErrNoStream,
// ErrClosed or an *APIError. It is not called if PublishChained returns an error (ErrDisconnected,
// ErrClosed, a subject or header that cannot be sent).
//
// For a message with ReportLate there may be one more call before, with ErrLate, after a quarter of a second. The answer is still awaited
// then, up to Config.AckTimeout.
func (o *OutStream) PublishChained(m *Chained, onAck func(seq uint64, err error)) error {
	return o.sender.publish(m, onAck)
}
