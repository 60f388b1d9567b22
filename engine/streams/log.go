package streams

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	awaitMost = 15 * time.Second // an election takes nats-server four to nine
	awaitLook = 100 * time.Millisecond
)

// Log is the stream of the commands and of the engines' records.
type Log struct {
	stream
	acks  *acks
	cfg   Config
	known atomic.Uint64 // the newest sequence in an answer to a publish or to Info
}

// noteAcked wraps onAck so that known keeps up with the answers.
func (l *Log) noteAcked(onAck func(uint64, error)) func(uint64, error) {
	if onAck == nil {
		return nil
	}
	return func(seq uint64, err error) {
		if err == nil {
			l.noteKnown(seq)
		}
		onAck(seq, err)
	}
}

// noteKnown notes that the log has reached a sequence.
func (l *Log) noteKnown(seq uint64) {
	for known := l.known.Load(); seq > known && !l.known.CompareAndSwap(known, seq); known = l.known.Load() {
		continue
	}
}

// Info asks what the log holds. A reader whose consumer does not deliver all of it soon asks the stream itself: whoever does not append
// must call Info now and then, or the reader cannot tell a consumer that is behind from a log that is idle.
func (l *Log) Info(ctx context.Context) (Info, error) {
	info, err := l.stream.Info(ctx)
	if err == nil {
		l.noteKnown(info.Last)
	}
	return info, err
}

// Partitions is the number of partitions that the log was made with.
func (l *Log) Partitions() int { return l.cfg.Partitions }

// Replicas is how many replicas the log has.
func (l *Log) Replicas() int { return l.cfg.Replicas }

// isLocal tells whether the log is on a server in this process that is part of no cluster: that one delivers everything that it
// acknowledged, and does not go away without the process.
func (l *Log) isLocal() bool {
	return l.cfg.Wire != nil && l.nc.ConnectedClusterName() == "" && l.Replicas() <= 1
}

// Await waits until the log has a leader, for as long as an election may take. Errors: Info's.
func (l *Log) Await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, awaitMost)
	defer cancel()
	for {
		_, err := l.Info(ctx)
		if !errors.Is(err, ErrDisconnected) && !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(awaitLook):
		case <-ctx.Done():
			return err
		}
	}
}

// PublishAsync appends a record and returns; onAck gets its sequence or an error as in
// OutStream.PublishChained, and may be nil.
func (l *Log) PublishAsync(subject string, header nats.Header, data []byte, onAck func(seq uint64, err error)) error {
	return l.acks.publish(&nats.Msg{Subject: subject, Header: header, Data: data}, awaitPlain, l.noteAcked(onAck))
}

// PublishNow is PublishAsync on the wire, if there is one, which sends the record at once: quicker for a single record, but more
// work for many.
func (l *Log) PublishNow(subject string, header nats.Header, data []byte, onAck func(seq uint64, err error)) error {
	return l.acks.publishBy(l.cfg.Wire, &nats.Msg{Subject: subject, Header: header, Data: data}, awaitPlain, l.noteAcked(onAck))
}

// PublishReportLate is PublishAsync for a record that does no harm if it is in the log twice: if the answer is late, onAck first gets
// ErrLate, so that the sender may append the record again, and later the answer as well.
func (l *Log) PublishReportLate(subject string, data []byte, onAck func(seq uint64, err error)) error {
	return l.acks.publish(&nats.Msg{Subject: subject, Data: data}, awaitReportLate, l.noteAcked(onAck))
}

// Publish appends a record and waits for its sequence. After ErrTimeout, ErrDisconnected or the
// context's error it may be in the log or not.
func (l *Log) Publish(ctx context.Context, subject string, header nats.Header, data []byte) (uint64, error) {
	type answer struct {
		seq uint64
		err error
	}
	ch := make(chan answer, 1)
	if err := l.PublishAsync(subject, header, data, func(seq uint64, err error) { ch <- answer{seq, err} }); err != nil {
		return 0, err
	}
	select {
	case a := <-ch:
		return a.seq, a.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// Trim removes all records below seq, which must not be greater than the last sequence + 1. With that the log
// is empty, and goes on with the next number.
func (l *Log) Trim(ctx context.Context, seq uint64) error {
	if seq <= 1 { // 0 would purge everything
		return nil
	}
	info, err := l.Info(ctx)
	if err != nil {
		return err
	}
	if seq > info.Last+1 {
		return fmt.Errorf("streams: trim below %d: the log ends at %d", seq, info.Last)
	}
	return l.purge(ctx, seq)
}

// Bump raises the last sequence to last, so that the next record is last + 1. It removes all records from the log:
// put back afterwards what is needed. Errors: last is below the stream's.
func (l *Log) Bump(ctx context.Context, last uint64) error {
	info, err := l.Info(ctx)
	if err != nil {
		return err
	}
	if last < info.Last {
		return fmt.Errorf("streams: bump to %d: the log is at %d already", last, info.Last)
	}
	return l.purge(ctx, last+1)
}
