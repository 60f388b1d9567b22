package engine

import (
	"cmp"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/carillon-scheduler/carillon"
)

// OutputKind tells triggers from events.
type OutputKind uint8

// The kinds of outputs.
const (
	OutputTrigger OutputKind = iota // of a scheduled fire
	OutputForced                    // of a fire that was asked for
	OutputEvent
)

// Output is one message of a partition's output stream. Output number n of a partition is always the
// same message, whoever publishes it.
type Output struct {
	Number    uint64 // 1, 2, 3 … without gaps
	Due       int64  // unix ms: not published before; of an event 0
	Kind      OutputKind
	Job       string // of an event: "" when the subject's last token is "_"
	Scheduled int64  // of a trigger, unix ms
	Version   uint64 // of the job that fired
	Missed    uint64 // how many other fires this trigger stands for
	ForcedSeq uint64 // of a forced fire: the log sequence that asked for it
	Event     string // kind of an event
	Body      string // an event's JSON; a forced fire's own payload
	OwnBody   bool   // Body replaces the job's payload
	spec      spec   // of the job that fired
}

// Subject is where the output is published.
func (o *Output) Subject(l Layout, partition int) string {
	return string(o.AppendSubject(nil, l, partition))
}

// AppendSubject appends where the output is published.
func (o *Output) AppendSubject(dst []byte, l Layout, partition int) []byte {
	dst = append(dst, l.Prefix...)
	if o.Kind == OutputEvent {
		dst = strconv.AppendInt(append(dst, ".event."...), int64(partition), 10)
		dst = append(append(dst, '.'), o.Event...)
		return append(append(dst, '.'), cmp.Or(o.Job, "_")...)
	}
	topic, _, _ := o.spec.delivery()
	dst = strconv.AppendInt(append(dst, ".trigger."...), int64(partition), 10)
	return append(append(dst, '.'), cmp.Or(topic, carillon.DefaultTopic)...)
}

// Payload is the message's body.
func (o *Output) Payload() string {
	if o.Kind == OutputEvent || o.OwnBody {
		return o.Body
	}
	_, _, payload := o.spec.delivery()
	return payload
}

// ID is the trigger's Carillon-Trigger header; an event has none.
func (o *Output) ID() string {
	switch o.Kind {
	case OutputTrigger:
		return carillon.FormatTriggerID(o.Job, o.Scheduled)
	case OutputForced:
		return carillon.FormatForcedID(o.Job, o.ForcedSeq)
	}
	return ""
}

// identity tells the output from others that have had its number, as behind a loss that was accepted.
func (o *Output) identity() string {
	if o.Kind == OutputEvent {
		return o.Body
	}
	return o.ID()
}

// AppendHeader appends the header lines of the output, each ending in CR LF: those of the protocol, then
// the job's own.
func (o *Output) AppendHeader(dst []byte) []byte {
	dst = append(dst, carillon.HeaderOutput+": "...)
	dst = strconv.AppendUint(dst, o.Number, 10)
	dst = append(dst, "\r\n"...)
	if o.Kind == OutputEvent {
		return dst
	}
	dst = append(dst, carillon.HeaderJob+": "...)
	dst = append(dst, o.Job...)
	dst = append(dst, "\r\n"+carillon.HeaderTrigger+": "...)
	if o.Kind == OutputForced {
		dst = append(dst, carillon.FormatForcedID(o.Job, o.ForcedSeq)...)
	} else {
		dst = carillon.AppendTriggerID(dst, o.Job, o.Scheduled)
	}
	dst = append(dst, "\r\n"+carillon.HeaderScheduled+": "...)
	dst = carillon.AppendTime(dst, time.UnixMilli(o.Scheduled))
	dst = append(dst, "\r\n"+carillon.HeaderVersion+": "...)
	dst = strconv.AppendUint(dst, o.Version, 10)
	dst = append(dst, "\r\n"...)
	if o.Missed > 0 {
		dst = append(dst, carillon.HeaderMissed+": "...)
		dst = strconv.AppendUint(dst, o.Missed, 10)
		dst = append(dst, "\r\n"...)
	}
	_, lines, _ := o.spec.delivery()
	return append(dst, lines...)
}

// notBefore is a time, unix ms, before which the output was not stored: when it was due, or, of an event, made.
func (o *Output) notBefore() int64 {
	if o.Kind != OutputEvent {
		return o.Due
	}
	e, err := carillon.ParseEvent([]byte(o.Body))
	if err != nil {
		panic(err) // the machine made it
	}
	return e.Time.UnixMilli()
}

// size is about how much memory the output takes, in bytes.
func (o *Output) size() int { return 160 + len(o.spec) + len(o.Body) }

// outbox holds the outputs that are not yet known to be stored for good, in order of their numbers.
type outbox struct {
	outputs []Output // outputs[head:] are held
	head    int
	bytes   int
	acked   Acked // the newest output known to be stored for good
	made    uint64

	// Outputs that are dropped are cleared, so that their texts are freed. But a checkpoint that is being taken reads the
	// outputs that were held when it began, without a copy. So until it ends only those behind them are cleared, and they
	// themselves bit by bit afterwards.
	pinned bool
	clean  int // outputs[:clean] are cleared
	beyond int // while pinned: outputs dropped behind those that the checkpoint reads are cleared up to here
}

// sweepSlack is how many outputs are cleared beyond those that a trim drops.
const sweepSlack = 1024

func (b *outbox) add(o Output) *Output {
	b.made++
	o.Number = b.made
	if len(b.outputs) == cap(b.outputs) { // append would grow it by a quarter, and copy each output four times
		held := b.outputs[b.head:]
		b.outputs = append(make([]Output, 0, max(2*len(held), 256)), held...)
		b.head, b.clean, b.beyond = 0, 0, 0
	}
	b.outputs = append(b.outputs, o)
	b.bytes += o.size()
	return &b.outputs[len(b.outputs)-1]
}

// trim drops what is stored for good. An ack of outputs never made is ignored.
func (b *outbox) trim(acked Acked) {
	if acked.Output <= b.acked.Output || acked.Output > b.made {
		return
	}
	n := int(acked.Output - b.acked.Output)
	for i := b.head; i < b.head+n; i++ {
		b.bytes -= b.outputs[i].size()
	}
	b.head += n
	b.acked = acked
	if b.pinned {
		if to := min(b.head, b.beyond+n+sweepSlack); to > b.beyond {
			clear(b.outputs[b.beyond:to])
			b.beyond = to
		}
		return
	}
	to := min(b.head, b.clean+n+sweepSlack)
	clear(b.outputs[b.clean:to])
	if b.clean = to; b.head == to && b.head > 1024 && b.head > len(b.outputs)/2 {
		b.outputs = append(b.outputs[:0], b.outputs[b.head:]...)
		b.head, b.clean = 0, 0
	}
	b.freeIfEmpty()
}

// pin keeps the outputs that are held now as they are, until unpin.
func (b *outbox) pin() { b.pinned, b.beyond = true, len(b.outputs) }

// unpin is called when no checkpoint reads the outputs any more.
func (b *outbox) unpin() {
	b.pinned = false
	b.freeIfEmpty()
}

// freeIfEmpty gives up the memory of an outbox that holds only dropped outputs that are not cleared yet: it may be long until the next
// trim, which would clear more.
func (b *outbox) freeIfEmpty() {
	if b.head == len(b.outputs) && b.clean < b.head {
		b.outputs, b.head, b.clean = nil, 0, 0
	}
}

// after returns the outputs with numbers above n. It fails when some of them are no longer held.
func (b *outbox) after(n uint64) ([]Output, bool) {
	if n < b.acked.Output {
		return nil, false
	}
	if n >= b.made {
		return nil, true
	}
	return b.outputs[b.head+int(n-b.acked.Output):], true
}

// Made is the number of the newest output; 0 before the first.
func (m *Machine) Made() uint64 { return m.outbox.made }

// Acked is the newest output that the log knows to be stored for good.
func (m *Machine) Acked() Acked { return m.outbox.acked }

// Outbox returns the outputs numbered above n. It fails when some of them are no longer held, because
// the log says that they are stored for good. The slice is valid until the next Apply.
func (m *Machine) Outbox(n uint64) (outputs []Output, ok bool) { return m.outbox.after(n) }

// OutboxBytes is about how much memory the outbox takes.
func (m *Machine) OutboxBytes() int { return m.outbox.bytes }

// LargestOutput is about how many bytes the largest output due by a time, unix ms, can take: by the jobs that have been in memory so far and
// the payloads of fires that were asked for, or, while jobs due by then are not in memory, by the bound of payloads.
func (m *Machine) LargestOutput(by int64) int {
	job := m.jobs.texts.largest
	for _, end := range m.residence.windows {
		if !end.covers(by) {
			job = max(job, carillon.MaxPayload)
		}
	}
	return (&Output{}).size() + job + m.largestBody
}

func (m *Machine) emit(o Output) {
	held := m.outbox.add(o)
	m.mix(held.Number, uint64(o.Scheduled), xxhash.Sum64String(o.Job))
	if o.Kind == OutputEvent {
		m.mix(xxhash.Sum64String(o.Body))
	}
	if m.listen.Made != nil {
		m.listen.Made(held)
	}
}

func (m *Machine) emitTrigger(j *job, missed uint64) {
	id, version, s := m.copied(j)
	m.emit(Output{
		Kind: OutputTrigger, Due: j.last, Job: id, Scheduled: j.last, Version: version, Missed: missed, spec: s,
	})
}

func (m *Machine) emitForced(j *job, f *forcedFire) {
	id, version, s := m.copied(j)
	m.emit(Output{
		Kind: OutputForced, Due: f.at, Job: id, Scheduled: f.at, Version: version, ForcedSeq: f.seq, Body: f.body, OwnBody: f.own, spec: s,
	})
}

// copied returns copies of what an output needs of its job, which may have changed by the time the output is published.
func (m *Machine) copied(j *job) (id string, version uint64, s spec) {
	from, f, rest := m.jobs.text(j)
	m.text = rest.append(append(m.text[:0], from...))
	both := string(m.text)
	return both[:len(from)], f.version, spec(both[len(from):])
}

func (m *Machine) emitEvent(e carillon.Event) {
	o := Output{Kind: OutputEvent, Event: e.Kind, Job: e.Job, Body: string(e.AppendJSON(nil))}
	if e.Error != nil && e.Error.Code == carillon.CodeInvalidJobID { // the id was cut, and may now be that of another job
		o.Job = ""
	}
	m.left--
	m.emit(o)
}

func (m *Machine) emitSkipped(j *job, reason string, n uint64, first, last int64) {
	m.emitEvent(carillon.Event{
		Kind: carillon.EventSkipped, Job: string(m.jobs.id(j)), Version: m.jobs.fixed(j).version, Reason: reason, Count: n,
		First: time.UnixMilli(first), Last: time.UnixMilli(last), Time: time.UnixMilli(m.to),
	})
}

func (m *Machine) emitCompleted(j *job) {
	m.emitEvent(carillon.Event{
		Kind: carillon.EventCompleted, Job: string(m.jobs.id(j)), Version: m.jobs.fixed(j).version, Last: fromMilli(j.last), Time: time.UnixMilli(m.to),
	})
}

func (m *Machine) emitRejected(r *rejection) {
	m.emitEvent(carillon.Event{
		Kind: carillon.EventRejected, Job: r.key.job, Verb: r.key.verb, Error: &r.err, Count: r.count, Time: time.UnixMilli(r.at),
	})
}
