package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/wal"
)

// heal compares the end of the local log with the stream and puts back what the stream lost, before
// clients can reach it. The lost records go to their old sequences, wrapped: no publish can keep a
// timestamp, and the wrapping keeps it. When the stream lost even what is below the local log, its last
// sequence is raised first; nobody needs those records, the checkpoints are beyond them.
func (n *Node) heal(ctx context.Context) error {
	last := n.local.Last()
	if last == 0 {
		return nil
	}
	info, err := n.streams.Log.Info(ctx)
	if err != nil {
		return err
	}
	n.head.Store(info.Last)
	if info.Last >= last {
		return n.compare(ctx, last, info)
	}
	if n.server == nil {
		return fmt.Errorf("node: the log stream ends at %d, but %d was read from it: the NATS server lost acknowledged records; see docs/operations.md", info.Last, last)
	}
	first := n.local.First()
	if first == 0 {
		first = last + 1
	}
	n.log.Warn("the log stream lost its end; healing", "stream", info.Last, "local", last)
	next := info.Last + 1
	if next < first {
		if err := n.streams.Log.Bump(ctx, first-1); err != nil {
			return err
		}
		next = first
	}
	p := &healer{log: n.streams.Log, next: next}
	err = n.local.Read(next, func(stored wal.Record) error {
		r, err := engine.DecodeRecord(stored.Seq, stored.Data)
		if err != nil {
			return err
		}
		for p.next < r.Seq && p.failed() == nil {
			p.append(n.layout.LogSubject(engine.Everyone, "heal"), nil) // a hole keeps its place
		}
		p.append(n.layout.LogSubject(engine.Everyone, "heal"), engine.EncodeHeal(&r))
		return p.failed()
	})
	p.acks.Wait()
	if err := errors.Join(err, p.failed()); err != nil {
		return fmt.Errorf("node: heal the log stream: %w", err)
	}
	healed, err := n.streams.Log.Get(ctx, last)
	if err != nil {
		return fmt.Errorf("node: heal the log stream: read back %d: %w", last, err)
	}
	n.appliedAt = healed.Time
	n.head.Store(last)
	return nil
}

// healer appends records that must come to stand at sequences known beforehand.
type healer struct {
	log  *streams.Log
	next uint64
	acks sync.WaitGroup
	mu   sync.Mutex
	err  error
}

func (h *healer) failed() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

func (h *healer) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.err = err
	}
}

func (h *healer) append(subject string, body []byte) {
	if h.next%1024 == 0 {
		h.acks.Wait()
	}
	want := h.next
	h.next++
	h.acks.Add(1)
	err := h.log.PublishAsync(subject, nil, body, func(seq uint64, err error) {
		defer h.acks.Done()
		if err == nil && seq != want {
			err = fmt.Errorf("a record came to stand at %d instead of %d", seq, want)
		}
		if err != nil {
			h.fail(err)
		}
	})
	if err != nil {
		h.acks.Done()
		h.fail(err)
	}
}

// compare holds the last local record against the stream's at its sequence.
func (n *Node) compare(ctx context.Context, last uint64, info streams.Info) error {
	data, err := n.local.Get(last)
	if errors.Is(err, wal.ErrNotFound) {
		return nil // truncated behind a checkpoint: nothing to compare with
	}
	if err != nil {
		return err
	}
	local, err := engine.DecodeRecord(last, data)
	if err != nil {
		return err
	}
	m, err := n.streams.Log.Get(ctx, last)
	switch {
	case errors.Is(err, streams.ErrNotFound) && n.server != nil && info.First <= last:
		n.log.Warn("the log stream has a hole below its end; healing", "sequence", last)
		return n.healHoles(ctx, info)
	case errors.Is(err, streams.ErrNotFound):
		return nil // trimmed
	case err != nil:
		return err
	}
	stored := record(&m)
	e := engine.Entry{Time: stored.Time}
	if healed, err := engine.DecodeHeal(stored.Data); err == nil && healed.Seq == last {
		e.Time = healed.Time
	}
	if e.Time != local.Time {
		return &streams.DiffersError{At: streams.Position{Seq: last, Time: time.Unix(0, local.Time)}, Found: m.Time}
	}
	n.appliedAt = m.Time
	return nil
}

// healHoles appends the records that the stream lost but kept the sequences of. They cannot go to their
// old places; readers that have them ignore them, and others take them as they were.
func (n *Node) healHoles(ctx context.Context, info streams.Info) error {
	return n.local.Read(info.First, func(stored wal.Record) error {
		if _, err := n.streams.Log.Get(ctx, stored.Seq); !errors.Is(err, streams.ErrNotFound) {
			return err
		}
		r, err := engine.DecodeRecord(stored.Seq, stored.Data)
		if err != nil {
			return err
		}
		_, err = n.streams.Log.Publish(ctx, n.layout.LogSubject(engine.Everyone, "heal"), nil, engine.EncodeHeal(&r))
		return err
	})
}
