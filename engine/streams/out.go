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

// Last returns the stream's last sequence and the message there, nil when age, bytes or a purge took
// it, or when there never was one (last 0). Errors: ErrNoStream, ErrDisconnected, the context's.
func (o *OutStream) Last(ctx context.Context) (last uint64, m *Message, err error) {
	info, err := o.Info(ctx)
	if err != nil {
		return 0, nil, err
	}
	if info.Messages == 0 {
		return info.Last, nil, nil
	}
	got, err := o.Get(ctx, info.Last)
	if errors.Is(err, ErrNotFound) {
		return info.Last, nil, nil
	}
	if err != nil {
		return 0, nil, err
	}
	return info.Last, &got, nil
}

// Chained is one message of a chain. None of it is kept.
type Chained struct {
	Subject []byte
	Header  []byte // lines, each ending in CR LF
	Data    string
	Expect  uint64 // the sequence behind which it belongs
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
func (o *OutStream) PublishChained(m *Chained, onAck func(seq uint64, err error)) error {
	return o.press.publish(m, onAck)
}
