package node

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/wal"
)

// The way of a record: from the log stream into the local log, to the machines, and its outcome to the replies.

// read reads the log and carries out its records, until the node stops.
func (n *Node) read(ctx context.Context) {
	defer n.waiters.close()
	var b batch
	at := streams.Position{Seq: n.applied.Load(), Time: n.appliedAt}
	deliver := func(messages []streams.Message) error { return n.deliver(&b, messages) }
	err := n.streams.Log.Read(ctx, at, deliver)
	var cut *streams.CutError
	if errors.As(err, &cut) && n.acceptsAll(len(n.partitions)) {
		n.log.Error("accepting that records are lost", "error", err)
		n.disregard(n.head.Load())
		at = streams.Position{Seq: cut.First - 1}
		n.applied.Store(at.Seq) // if no more records come, nothing else would wake those that wait for the log's end
		n.waiters.advance(at.Seq)
		err = n.streams.Log.Read(ctx, at, deliver)
	}
	if n.server == nil && errors.As(err, &cut) {
		err = n.leftBehind(cut.At.Seq, cut.First, err)
	}
	if ctx.Err() == nil {
		n.fail(fmt.Errorf("node: reading the log: %w", n.unreachable(markTransient(err))))
	}
}

// batch has the slices that the reader uses again for each delivery.
type batch struct {
	records []engine.Record
	stored  []wal.Record
	bytes   []byte
}

// batchKept is the size, in bytes, up to which a batch keeps its buffer in any case.
const batchKept = 256 << 10

// release frees what is no longer needed once a batch is carried out: the messages behind its records, and the memory that a burst took.
func (b *batch) release() {
	clear(b.records)
	clear(b.stored)
	if cap(b.bytes) > batchKept && len(b.bytes) < batchKept/8 {
		b.bytes = nil
	}
}

// deliver stores all that has arrived, with one fsync for all of it, and then carries out one record after the other.
func (n *Node) deliver(b *batch, messages []streams.Message) error {
	b.records, b.stored, b.bytes = b.records[:0], b.stored[:0], b.bytes[:0]
	for i := range messages {
		b.records = append(b.records, record(&messages[i]))
		from := len(b.bytes)
		b.bytes = engine.AppendRecord(b.bytes, &b.records[i])
		b.stored = append(b.stored, wal.Record{Seq: messages[i].Seq, Data: b.bytes[from:len(b.bytes):len(b.bytes)]})
	}
	n.appending.Store(int64(max(n.clock.running(), 1)))
	err := n.local.Append(b.stored)
	n.appending.Store(0)
	if err != nil {
		return err
	}
	n.logUsage.count(b.stored)
	for i := range b.records {
		n.carryOut(&b.records[i])
	}
	last := messages[len(messages)-1].Seq
	n.applied.Store(last)
	n.readAt.Store(int64(n.clock.running()))
	if n.head.Load() < last {
		n.head.Store(last)
	}
	n.waiters.advance(last)
	n.alarm.Wake()
	notify(n.delivered)
	b.release()
	return nil
}

// carryOut applies a record to the partitions that it concerns. If it is a tick of this node, it also measures how long ticks take to come
// back.
func (n *Node) carryOut(r *engine.Record) {
	e := n.layout.Decode(r)
	sent, ours := n.ticking.ours(&e)
	var now time.Time
	if ours {
		now = time.Now()
		// This must come before the tick is applied, because it adjusts the clock by which the outputs of the tick are held.
		n.clock.measured(sent, now, time.Unix(0, r.Time))
	}
	affected := n.affected(&e)
	for _, p := range affected {
		n.apply(p, &e)
	}
	if len(affected) == 0 {
		n.noteMisrouted(r)
	}
	if e.Kind == engine.KindImport {
		runtime.Gosched() // a record of many jobs takes long: let others run
	}
	if ours {
		n.ticking.returned(sent, now)
		n.meters.tickRound.Update(now.Sub(sent).Seconds())
	}
}

// noteMisrouted notes a record that concerns no partition. It may be a command that was accepted, if somebody has edited the stream's
// subject transform since the stream was made.
func (n *Node) noteMisrouted(r *engine.Record) {
	if r.Subject == n.layout.LogSubject(engine.AllPartitions, "heal") {
		return // it keeps the place of a record that was lost
	}
	n.meters.ignored("malformed").Inc()
	n.limitedLogs.misrouted.warn(n.log, "a record of the log concerns no partition", "sequence", r.Seq, "subject", r.Subject)
}

// record makes a record for the machine from a message of the stream.
func record(m *streams.Message) engine.Record {
	r := engine.Record{Seq: m.Seq, Time: m.Time.UnixNano(), Subject: m.Subject, Data: m.Data}
	for name, values := range m.Header {
		for _, v := range values {
			r.Header = append(r.Header, engine.Field{Name: name, Value: v})
		}
	}
	slices.SortStableFunc(r.Header, func(a, b engine.Field) int { return strings.Compare(a.Name, b.Name) })
	return r
}

// apply gives a record to a partition's machine, the outputs that this makes to the chain, and the outcome to the request that waits for
// it, if there is one.
func (n *Node) apply(p *partition, e *engine.Entry) {
	awaited := hasOutcome(e) && n.replies.inProgress() // a command of this node counts there before it can be in the log
	p.mu.Lock()
	if !p.follows.Load() || e.Seq <= p.upTo {
		p.mu.Unlock()
		if awaited {
			told := unknown(fmt.Sprintf("partition %d was given up, or taken, by this node just now", p.number))
			n.replies.applied(e.Seq, &told)
		}
		return
	}
	if err := p.stopped; err != nil {
		p.mu.Unlock()
		if awaited {
			n.replies.applied(e.Seq, &reply{err: &carillon.Error{
				Code: carillon.CodeUnavailable, Message: fmt.Sprintf("partition %d stopped, so the outcome is unknown: %v", p.number, err),
			}})
		}
		return
	}
	room := awaited && n.replies.hasRoom()
	var before carillon.JobReply
	if e.Kind == engine.KindDelete && room {
		before, _ = p.machine.Job(e.Job, nil)
	}
	result, err := p.machine.Apply(e)
	if err != nil {
		err = markTransient(err)
		store := errors.Is(err, wal.ErrFailed) || errors.Is(err, wal.ErrClosed) || errors.Is(err, errNoFiles)
		if damaged(err) && !store {
			err = unreadable(p.number, err)
		}
		first := p.halt(err) // while mu is held: a machine that could not read its table stopped in the middle of the record
		p.mu.Unlock()
		switch {
		case store:
			n.fail(err)
		case first:
			n.logStopped(p, err)
		}
		return
	}
	if e.Kind == engine.KindClaim {
		n.claimApplied(p)
	}
	p.out.Lock()
	if made := p.machine.Made(); made > p.offered {
		if outputs, ok := p.machine.Outbox(p.offered); ok {
			p.chain.Offer(outputs)
		}
		p.offered = made
	}
	p.out.Unlock()
	if awaited {
		n.replies.applied(e.Seq, p.answer(e, result, before, room))
	}
	p.mu.Unlock()
}

// hasOutcome tells whether a record has an outcome for which somebody may wait.
func hasOutcome(e *engine.Entry) bool { return e.Verb != "" || e.Kind == engine.KindImport }

// answer makes the reply to a command from its result, without the job if there is no room for that. before is the job that a delete
// removed. The caller holds mu.
func (p *partition) answer(e *engine.Entry, result engine.Result, before carillon.JobReply, room bool) *reply {
	if e.Kind == engine.KindImport {
		return &reply{jobs: slices.Clone(result.Jobs)}
	}
	if result.Err != nil {
		return &reply{err: result.Err}
	}
	if !room {
		return &reply{changed: result.Changed, noRoom: true}
	}
	job, ok := p.machine.Job(e.Job, nil)
	if !ok {
		job = before
		job.Status, job.Next = carillon.StatusDeleted, time.Time{}
	}
	if e.Kind == engine.KindFire && result.Changed { // if nothing changed, it repeats another fire, whose trigger has another id
		job.Trigger = carillon.FormatForcedID(e.Job, e.Seq)
	}
	return &reply{job: job, changed: result.Changed}
}
