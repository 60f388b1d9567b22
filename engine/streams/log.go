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

// Log is the stream of commands and engine's records.
type Log struct {
	stream
	acks  *acks
	cfg   Config
	known atomic.Uint64 // the newest sequence that an answer told of
}

// learn has the log know of what answers tell.
func (l *Log) learn(onAck func(uint64, error)) func(uint64, error) {
	if onAck == nil {
		return nil
	}
	return func(seq uint64, err error) {
		for known := l.known.Load(); err == nil && seq > known && !l.known.CompareAndSwap(known, seq); known = l.known.Load() {
			continue
		}
		onAck(seq, err)
	}
}

// Partitions is the number the log was made with.
func (l *Log) Partitions() int { return l.cfg.Partitions }

// Replicas is how many the log has.
func (l *Log) Replicas() int { return l.cfg.Replicas }

// here tells whether the log is served by a server in this process that is part of no cluster: that one keeps nothing back, and
// does not go without the process.
func (l *Log) here() bool {
	return l.cfg.Wire != nil && l.nc.ConnectedClusterName() == "" && l.Replicas() <= 1
}

// Await waits until somebody leads the log, for as long as an election may take. Errors: Info's.
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
	return l.acks.publish(&nats.Msg{Subject: subject, Header: header, Data: data}, once, l.learn(onAck))
}

// PublishNow is PublishAsync of a record that is sent at once where there is a wire: the quicker way for one, and more work
// for many.
func (l *Log) PublishNow(subject string, header nats.Header, data []byte, onAck func(seq uint64, err error)) error {
	return l.acks.publishBy(l.cfg.Wire, &nats.Msg{Subject: subject, Header: header, Data: data}, once, l.learn(onAck))
}

// PublishPatient is PublishAsync of a record that its sender may append again where the answer is late, as it does no harm when
// it is there twice: onAck gets ErrLate first then, and what comes later as well.
func (l *Log) PublishPatient(subject string, data []byte, onAck func(seq uint64, err error)) error {
	return l.acks.publish(&nats.Msg{Subject: subject, Data: data}, patient, l.learn(onAck))
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

// Trim removes every record below seq, which must not be beyond the last sequence + 1: at that the log
// is empty and goes on with the next number.
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

// Bump raises the last sequence to last, so that the next record is last + 1. The log loses every
// record it holds: put back what is needed afterwards. Errors: last is below the stream's.
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
