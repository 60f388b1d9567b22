package streams

import (
	"context"
	"errors"
)

// ExpectedLastSequence is the header a chained publish carries; the server reserves its name.
const ExpectedLastSequence = "Nats-Expected-Last-Sequence"

// OutStream is the stream of one partition's triggers and events.
type OutStream struct {
	stream
	press *press
}

// Last tells what the stream holds and gives its last message, nil when age, bytes or a purge took that, or when
// there never was one. The two are asked for at once, so that it takes as long as one question. Errors: ErrNoStream,
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

// Chained is one message of a chain. None of it is kept.
type Chained struct {
	Subject []byte
	Header  []byte // lines, each ending in CR LF
	Data    string
	Expect  uint64 // the sequence behind which it belongs
	Patient bool   // an answer that is late is ErrLate first
}

// kind is that of its publish.
func (m *Chained) kind() int {
	if m.Patient {
		return patient
	}
	return once
}

// PublishChained sends a message that the stream takes only right behind sequence Expect, and then as
// Expect + 1. It does not wait: the caller sends the next with Expect + 1 at once, and calls Flush after
// the last. When one is refused, so is every later one of the chain, hence the answer to the last of a
// window speaks for all of it; without onAck no answer is asked for.
//
// onAck is called once, on a goroutine that serves all streams and must not be held up, with the
// message's sequence or ErrWrongSequence, ErrNoSpace, ErrTimeout, ErrDisconnected, ErrNoStream,
// ErrClosed or an *APIError. It is not called when PublishChained returns an error (ErrDisconnected,
// ErrClosed, a subject or header that cannot be sent).
//
// For a Patient message ErrLate comes after a quarter of a second, one call more: the answer is still waited for, up to Config.AckTimeout,
// and may by then have come.
func (o *OutStream) PublishChained(m *Chained, onAck func(seq uint64, err error)) error {
	return o.press.publish(m, onAck)
}
