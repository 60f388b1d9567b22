package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/wal"
)

// heal compares the end of the local log with the log stream, and puts back what an embedded server's stream lost, before clients can
// reach the server. The lost records get their old sequences. They are wrapped in heal records, which keep their timestamps: a
// publish cannot. If the stream has lost even records from before the local log begins, its last sequence is raised first. Nobody needs
// those records, because the checkpoints are beyond them.
func (n *Node) heal(ctx context.Context) error {
	info, err := n.streams.Log.Info(ctx)
	if err != nil {
		return err
	}
	if n.restored != nil {
		if err := n.beginRestored(ctx, n.restored, info); err != nil {
			return err
		}
		if info, err = n.streams.Log.Info(ctx); err != nil {
			return err
		}
	}
	n.head.Store(info.Last)
	if missing := info.Gone(); missing > 0 {
		n.log.Warn("records are missing from the middle of the log stream", "missing", missing, "first", info.First, "last", info.Last)
	}
	if n.server == nil && info.First > n.applied.Load()+1 && !n.acceptsAll(len(n.partitions)) {
		if !n.startsEmpty {
			return n.leftBehind(n.applied.Load(), info.First, nil)
		}
		n.startEmpty(info.Last)
	}
	last := n.local.Last()
	for _, p := range n.partitions {
		if position := p.checkpoint.Load(); position > max(last, info.Last) {
			return fmt.Errorf("node: partition %d has a checkpoint at %d, but the local log ends at %d and the log stream at %d: both lost their end; see docs/operations.md", p.number, position, last, info.Last)
		}
	}
	if last == 0 {
		if n.neverWritten(info) {
			return n.writePlaceholders(info)
		}
		if info.First > n.applied.Load()+1 && !n.acceptsAll(len(n.partitions)) {
			return fmt.Errorf("node: the local log is empty and the log stream begins at %d: what came before is in the checkpoints that were lost with the local log; see docs/operations.md", info.First)
		}
		return nil
	}
	if at := min(last, info.Last); at > 0 {
		if err := n.expectSameLog(ctx, at, last, info); err != nil {
			return err
		}
	}
	if info.Last >= last {
		return nil
	}
	return n.restoreEnd(ctx, info.Last, last)
}

// expectSameLog refuses a log stream that is not the one that was read before, unless losses of all partitions are accepted.
func (n *Node) expectSameLog(ctx context.Context, at, last uint64, info streams.Info) error {
	err := n.compare(ctx, at, last, info)
	var differs *streams.DiffersError
	if !errors.As(err, &differs) {
		return err
	}
	if !n.acceptsAll(len(n.partitions)) {
		return fmt.Errorf("node: the log stream is not the one that was read before: %w; see docs/operations.md", err)
	}
	n.log.Error("accepting that the log stream is another", "error", err)
	n.disregard(info.Last)
	return nil
}

// restoreEnd puts back what the embedded server's log stream lost and the local log has. An external server must not have lost anything;
// if such losses are accepted, only the last sequence of its stream is raised.
func (n *Node) restoreEnd(ctx context.Context, end, last uint64) error {
	if n.server == nil {
		if !n.acceptsAll(len(n.partitions)) {
			return fmt.Errorf("node: the log stream ends at %d, but %d was read from it: the NATS server lost acknowledged records; see docs/operations.md", end, last)
		}
		n.log.Error("accepting that the NATS server lost records; those that were read count", "stream", end, "local", last)
		return n.streams.Log.Bump(ctx, last)
	}
	n.log.Warn("the log stream lost its end; healing", "stream", end, "local", last)
	if err := n.putBack(ctx, end, last); err != nil {
		return fmt.Errorf("node: heal the log stream: %w", err)
	}
	return nil
}

// neverWritten tells whether a log stream never held a job, although its first sequences are gone: a write that fails uses one up. The
// first records are the claims of all partitions. So if no more sequences are gone than there are partitions, no job was among them.
func (n *Node) neverWritten(info streams.Info) bool {
	return n.server != nil && n.applied.Load() == 0 && info.Messages == 0 && info.Last > 0 && info.Last <= uint64(len(n.partitions))
}

// writePlaceholders has the local log begin at 1 all the same, with a hole for each sequence that is gone.
func (n *Node) writePlaceholders(info streams.Info) error {
	n.log.Warn("the first writes to the log stream failed; going on behind them", "stream", info.Last)
	var holes []wal.Record
	for seq := uint64(1); seq <= info.Last; seq++ {
		r := engine.Record{Seq: seq, Time: info.LastTime.UnixNano(), Subject: n.layout.LogSubject(engine.AllPartitions, "heal")}
		holes = append(holes, wal.Record{Seq: seq, Data: engine.AppendRecord(nil, &r)})
	}
	n.applied.Store(info.Last)
	return n.local.Append(holes)
}

// putBack appends the records of the local log up to last to a log stream that ends at end.
func (n *Node) putBack(ctx context.Context, end, last uint64) error {
	first := n.local.First()
	if first == 0 {
		first = last + 1
	}
	needed, err := n.needed() // below that, the local log has only what is kept as history (KeepLog)
	if err != nil {
		return err
	}
	first = max(first, needed)
	next := end + 1
	if next < first {
		if err := n.streams.Log.Bump(ctx, first-1); err != nil {
			return err
		}
		next = first
	}
	h := &healer{log: n.streams.Log, next: next}
	err = n.local.Read(next, func(stored wal.Record) error {
		r, err := decodeRecord(stored)
		if err != nil {
			return err
		}
		for h.next < r.Seq && h.failed() == nil {
			h.append(n.layout.LogSubject(engine.AllPartitions, "heal"), nil) // keeps the place of a record that the local log does not have
		}
		h.append(n.layout.LogSubject(engine.AllPartitions, "heal"), n.wrapped(&r))
		return h.failed()
	})
	h.acks.Wait()
	if err := cmp.Or(err, h.failed()); err != nil {
		return err
	}
	n.head.Store(last)
	if first > last { // no record was put back, only the last sequence was raised
		return nil
	}
	healed, err := n.streams.Log.Get(ctx, last)
	if err != nil {
		return fmt.Errorf("read back %d: %w", last, err)
	}
	n.appliedAt = healed.Time
	return nil
}

// wrapped is the body of the heal record for r. If r is nearly as large as messages may be, there is no room for the wrapping. Then the
// body is nil, which only keeps r's place: r has been applied here already.
func (n *Node) wrapped(r *engine.Record) []byte {
	const subject = 1 << 10 // for the subject and the rest of the protocol line
	if _, ok := n.layout.Healed(r); ok {
		return r.Data // r is a heal record itself: wrapped twice it would be garbage
	}
	body := engine.EncodeHeal(r)
	if int64(len(body)+subject) > n.nc.MaxPayload() {
		n.log.Warn("a record is too large to be put back", "sequence", r.Seq, "bytes", len(body))
		return nil
	}
	return body
}

// healer appends records that must get the sequences from next on.
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
		if h.failed() != nil {
			return // there would be no answer to this one, too, after as long again
		}
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

// compare compares the record at a sequence in the local log with that in the stream. at is the last sequence of the shorter log, which
// both should have; last is the last one of the local log. Error: a streams.DiffersError if the records differ.
func (n *Node) compare(ctx context.Context, at, last uint64, info streams.Info) error {
	local, err := n.localRecord(at)
	if errors.Is(err, wal.ErrNotFound) { // truncated behind a checkpoint
		return n.expectOlder(ctx, at)
	}
	if err != nil {
		return err
	}
	m, err := n.streams.Log.Get(ctx, at)
	switch {
	case errors.Is(err, streams.ErrNotFound) && n.server != nil && at == last && info.First <= at:
		n.log.Warn("the log stream has a hole below its end; healing", "sequence", at)
		return n.healHoles(ctx, info)
	case errors.Is(err, streams.ErrNotFound):
		return nil // trimmed, or lost with the end
	case err != nil:
		return err
	}
	stored := record(&m)
	if !n.isPlaceholder(&stored) && n.firstStored(&stored) != n.firstStored(&local) {
		return &streams.DiffersError{At: streams.Position{Seq: at, Time: time.Unix(0, local.Time)}, Found: m.Time}
	}
	if at == last {
		n.appliedAt = m.Time
	}
	return nil
}

// steppedBack is how much the clock may have been set back between two records without harm, as by time synchronization.
const steppedBack = time.Minute

// expectOlder compares a log stream that ends at a sequence with a local log that begins behind that. The stream may be an older copy. But
// its last record must not be younger than the first of the local log by more than steppedBack: then it was written to since, or is another
// service's, and to heal it would remove commands that were accepted. Error: a streams.DiffersError in that case.
func (n *Node) expectOlder(ctx context.Context, at uint64) error {
	first := n.local.First()
	if first <= at {
		return nil
	}
	local, err := n.localRecord(first)
	if err != nil {
		return err
	}
	m, err := n.streams.Log.Get(ctx, at)
	if errors.Is(err, streams.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	stored := record(&m)
	if !n.isPlaceholder(&stored) && n.firstStored(&stored) > n.firstStored(&local)+steppedBack.Nanoseconds() {
		return &streams.DiffersError{At: streams.Position{Seq: at}, Found: m.Time}
	}
	return nil
}

// localRecord is the local log's record at a sequence. Error: wal.ErrNotFound if there is none.
func (n *Node) localRecord(seq uint64) (engine.Record, error) {
	data, err := n.local.Get(seq)
	if err != nil {
		return engine.Record{}, err
	}
	return decodeRecord(wal.Record{Seq: seq, Data: data})
}

// firstStored is when a stream first stored a record at its sequence, ns. A record that was put back has a later time itself.
func (n *Node) firstStored(r *engine.Record) int64 {
	if healed, ok := n.layout.Healed(r); ok && healed.Seq == r.Seq {
		return healed.Time
	}
	return r.Time
}

// isPlaceholder tells whether a record only keeps the place of one that could not be put back.
func (n *Node) isPlaceholder(r *engine.Record) bool {
	return r.Subject == n.layout.LogSubject(engine.AllPartitions, "heal") && len(r.Data) == 0
}

// healHoles appends the records that the stream lost although it still has their sequences. They cannot get these back, so they are
// wrapped, with their old sequences, and appended at the end. Readers that have applied them ignore them, and others apply them as they
// were.
func (n *Node) healHoles(ctx context.Context, info streams.Info) error {
	return n.local.Read(info.First, func(stored wal.Record) error {
		if _, err := n.streams.Log.Get(ctx, stored.Seq); !errors.Is(err, streams.ErrNotFound) {
			return err
		}
		r, err := decodeRecord(stored)
		if err != nil {
			return err
		}
		if body := n.wrapped(&r); body != nil {
			_, err = n.streams.Log.Publish(ctx, n.layout.LogSubject(engine.AllPartitions, "heal"), nil, body)
		}
		return err
	})
}

// disregard has the machines ignore the marks (engine.Mark) in ticks up to the log's end. An operator has accepted that the machines' state
// does not come from this log, so they would differ from the marks.
func (n *Node) disregard(end uint64) {
	for _, p := range n.partitions {
		p.mu.Lock()
		p.machine.IgnoreMarks(end)
		p.mu.Unlock()
	}
}
