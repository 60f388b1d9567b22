package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/wal"
)

// Replay: the local log is applied again, on several goroutines.

// replay calls apply with each record of the local log above a position, and with its size there in bytes.
func (n *Node) replay(ctx context.Context, after uint64, apply func(e *engine.Entry, size int) error) (records int, err error) {
	err = n.local.Read(after+1, func(stored wal.Record) error {
		if records++; records%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		r, err := decodeRecord(stored)
		if err != nil {
			return err
		}
		r.Data = append([]byte(nil), r.Data...)
		e := n.layout.Decode(&r)
		return apply(&e, len(stored.Data))
	})
	return records, err
}

// decodeRecord decodes a record of the local log. Errors: wal.ErrCorrupt, engine.ErrVersion.
func decodeRecord(stored wal.Record) (engine.Record, error) {
	r, err := engine.DecodeRecord(stored.Seq, stored.Data)
	switch {
	case errors.Is(err, engine.ErrVersion):
		err = fmt.Errorf("node: local log: %w", err)
	case err != nil:
		err = fmt.Errorf("node: local log: %w: %w", wal.ErrCorrupt, err)
	}
	return r, err
}

// replayInto applies the local log above a position to a machine that no other goroutine uses yet, as partition p. last is the sequence
// of the log's last record, or after if there is none.
func (n *Node) replayInto(ctx context.Context, m *engine.Machine, p *partition, after uint64) (last uint64, records int, err error) {
	last = after
	records, err = n.replay(ctx, after, func(e *engine.Entry, _ int) error {
		last = e.Seq
		for _, of := range n.affected(e) {
			if of != p {
				continue
			}
			if _, err := m.Apply(e); err != nil {
				return fmt.Errorf("node: partition %d: %w", p.number, err)
			}
		}
		return nil
	})
	return last, records, err
}

// replayRecord applies a record of the local log to the partitions that it concerns.
func (n *Node) replayRecord(e *engine.Entry) error {
	for _, p := range n.affected(e) {
		if err := p.replayRecord(e); err != nil {
			return err
		}
	}
	return nil
}

func (p *partition) replayRecord(e *engine.Entry) error {
	if !p.follows.Load() {
		return nil
	}
	if _, err := p.machine.Apply(e); err != nil {
		return fmt.Errorf("node: partition %d: %w", p.number, err)
	}
	return nil
}

// replayAll applies the local log above a position to all partitions, on several goroutines: partitions share nothing but the
// log, and each gets its records in their order.
func (n *Node) replayAll(ctx context.Context, after uint64) (records int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	workers := make([]replayWorker, min(runtime.GOMAXPROCS(0), len(n.partitions)))
	var work sync.WaitGroup
	for i := range workers {
		workers[i].queue = make(chan []replayStep, replayQueue)
		work.Go(func() {
			if err := workers[i].run(ctx); err != nil {
				cancel(err)
			}
		})
	}
	records, err = n.replay(ctx, after, func(e *engine.Entry, _ int) error {
		for _, p := range n.affected(e) {
			if !workers[p.number%len(workers)].enqueue(ctx, replayStep{p, *e}) {
				return ctx.Err()
			}
		}
		return nil
	})
	for i := range workers {
		workers[i].end(ctx)
	}
	work.Wait()
	return records, cmp.Or(context.Cause(ctx), err)
}

// replayWorker applies the records of some of the partitions, on one goroutine.
type replayWorker struct {
	queue chan []replayStep
	batch []replayStep // fills up before it goes into the queue
}

// replayStep is a record for one partition.
type replayStep struct {
	p *partition
	e engine.Entry
}

// Bounds of what is read ahead. A step of an import has up to 128 KiB, so a worker holds 32 MiB at most.
const (
	replayBatch = 64 // steps handed over at once
	replayQueue = 2  // batches in a queue, beside the one that fills and the one that is applied
)

// enqueue adds a step, and tells whether the replay goes on.
func (l *replayWorker) enqueue(ctx context.Context, s replayStep) bool {
	if l.batch = append(l.batch, s); len(l.batch) < replayBatch {
		return true
	}
	return l.flush(ctx)
}

func (l *replayWorker) flush(ctx context.Context) bool {
	select {
	case l.queue <- l.batch:
		l.batch = make([]replayStep, 0, replayBatch)
		return true
	case <-ctx.Done():
		return false
	}
}

// end hands over the rest, after which the worker ends.
func (l *replayWorker) end(ctx context.Context) {
	l.flush(ctx)
	close(l.queue)
}

func (l *replayWorker) run(ctx context.Context) error {
	for batch := range l.queue {
		for i := range batch {
			if err := batch[i].p.replayRecord(&batch[i].e); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	return nil
}
