package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
)

// The worker is a process of its own, as workers are. It gets two orders as lines of JSON on standard input, and
// answers each with a line on standard output:
//
//	workerStart  →  workerReady    it listens
//	plan         →  workerReport   everything planned has arrived, or the patience is over
//
// A worker whose input ends stops without a report.
type workerStart struct {
	Name        string `json:"name"`   // of its durable consumers
	Prefix      string `json:"prefix"` // of the plan's jobs
	Topic       string `json:"topic"`  // default the topic of every load; with another topic no gaps are counted
	Partitions  int    `json:"partitions"`
	Concurrency int    `json:"concurrency"`
	Raw         string `json:"raw,omitempty"`    // file for every trigger as CSV
	Soak        bool   `json:"soak,omitempty"`   // plan after plan, see soakWork
	Pauses      bool   `json:"pauses,omitempty"` // no triggers at all, see pauseWork
	Bare        string `json:"bare,omitempty"`   // no triggers either: the directory of bareWork
}

type workerReady struct {
	Ready bool   `json:"ready"`
	URL   string `json:"url,omitempty"` // of a bare service
}

type workerReport struct {
	Checks   Checks `json:"checks"`
	Received string `json:"received"` // due to received, an encoded histogram
	Stored   string `json:"stored"`   // due to the stream's own timestamp
	Error    string `json:"error,omitempty"`
	// Missing names the first few missing triggers, as <job>@<due unix ms>.
	Missing []string `json:"missing,omitempty"`
}

// failure is the error that the worker met, if any: then the figures are incomplete.
func (r *workerReport) failure() error {
	if r.Error == "" {
		return nil
	}
	return fmt.Errorf("bench: the worker met an error on its way: %s", r.Error)
}

// mostHandlers is how many handlers the worker of package carillon may have (carillon.WorkerOptions).
const mostHandlers = 100_000

// missingNamed is how many missing triggers a report names.
const missingNamed = 5

// patience is how long a worker waits for missing triggers after the window has ended.
const patience = 10 * time.Second

// Work runs the worker's process: it takes the load's triggers with the Go worker of package carillon, with explicit
// acks, over the connection nc.
func Work(ctx context.Context, nc *nats.Conn, names carillon.Names, in io.Reader, out io.Writer) error {
	input, output := json.NewDecoder(in), json.NewEncoder(out)
	var start workerStart
	if err := input.Decode(&start); err != nil {
		return fmt.Errorf("bench: worker: %w", err)
	}
	switch {
	case start.Pauses:
		return pauseWork(input, output)
	case start.Bare != "":
		return bareWork(input, output, start.Bare)
	}
	if start.Soak {
		return soakWork(ctx, nc, names, start, input, output)
	}
	w := &worker{prefix: start.Prefix}
	working, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- carillon.Connect(nc, carillon.WithNames(names)).Work(working, carillon.WorkerOptions{
			Topic: cmp.Or(start.Topic, topic), Name: start.Name, Concurrency: start.Concurrency, StartNew: true,
			OnError: func(_ *carillon.Trigger, err error) { w.fail(err) },
		}, w.handle)
	}()
	if err := awaitConsumers(ctx, nc, names, start, ended); err != nil {
		return fmt.Errorf("bench: worker: %w", err)
	}
	if err := output.Encode(workerReady{Ready: true}); err != nil {
		return fmt.Errorf("bench: worker: %w", err)
	}

	var p plan
	if err := input.Decode(&p); errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		return fmt.Errorf("bench: worker: %w", err)
	}
	ctx, gone := context.WithCancelCause(ctx)
	defer gone(nil)
	go func() { gone(input.Decode(&plan{})) }() // there is no other plan: Decode returns when the input ends
	var stored func() (inStream, error)
	if start.Topic == "" {
		stored = func() (inStream, error) {
			since := p.From * 1e6
			arrivals, _ := w.arrived()
			for _, a := range arrivals { // some are before the window, if the jobs were put again for a later one
				since = min(since, a.stored)
			}
			return readOutputs(ctx, nc, names, start.Partitions, time.Unix(0, since))
		}
	}
	report, err := w.await(ctx, &p, stored)
	switch {
	case context.Cause(ctx) == io.EOF:
		return nil
	case err != nil:
		return err
	}
	stop()
	if err := <-ended; err != nil {
		return fmt.Errorf("bench: worker: %w", err)
	}
	if start.Raw != "" {
		if err := w.writeRaw(start.Raw, &p); err != nil {
			return fmt.Errorf("bench: worker: %w", err)
		}
	}
	return output.Encode(report)
}

// awaitConsumers waits until the worker's consumers exist and each has a pull waiting. A request about a consumer whose
// leader has yet to be elected gets no answer.
func awaitConsumers(ctx context.Context, nc *nats.Conn, names carillon.Names, start workerStart, ended <-chan error) error {
	js, err := nc.JetStream()
	if err != nil {
		return err
	}
	began := time.Now()
	for p := 0; p < start.Partitions; {
		asking, cancel := context.WithTimeout(ctx, time.Second)
		info, err := js.ConsumerInfo(names.OutStream(p), start.Name, nats.Context(asking))
		cancel()
		switch {
		case err == nil && info.NumWaiting > 0:
			p++
			began = time.Now()
			continue
		case err != nil && !errors.Is(err, nats.ErrConsumerNotFound) && !errors.Is(err, context.DeadlineExceeded),
			time.Since(began) > streamTimeout:
			return fmt.Errorf("consumer %s on %s has no pull waiting: %w", start.Name, names.OutStream(p), cmp.Or(err, errors.New("the worker does not ask")))
		}
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// arrival is one delivery of a trigger. It has no pointers, and arrivals are kept in chunks: so the worker's garbage
// collector has nothing to scan, and no growing slice is copied while triggers wait.
type arrival struct {
	scheduled int64 // unix ms
	received  int64 // unix ns
	stored    int64 // unix ns
	output    uint64
	job       int32 // the job's number in the plan; -1 for a job that is not in the plan
	partition int32
	again     bool // not the first delivery
}

// storedOutput is the message in which a fire came: its output, and when the stream stored it.
type storedOutput struct {
	outputID
	stored int64 // unix ns
}

const chunkSize = 1 << 14

type worker struct {
	prefix string // of the plan's jobs

	mu     sync.Mutex
	chunks [][]arrival // all but the last are full
	err    error
}

// outputID is an output by its number.
type outputID struct {
	partition int32
	output    uint64
}

func (w *worker) handle(_ context.Context, t *carillon.Trigger) error {
	a := arrival{
		scheduled: t.Scheduled.UnixMilli(), received: t.Received.UnixNano(), stored: t.Stored.UnixNano(),
		output: t.Output, job: -1, partition: int32(t.Partition), again: t.Attempt > 1,
	}
	if rest, ok := strings.CutPrefix(t.Job, w.prefix); ok {
		if i, err := strconv.ParseInt(rest, 10, 32); err == nil && i >= 0 {
			a.job = int32(i)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	last := len(w.chunks) - 1
	if last < 0 || len(w.chunks[last]) == chunkSize {
		w.chunks = append(w.chunks, make([]arrival, 0, chunkSize))
		last++
	}
	w.chunks[last] = append(w.chunks[last], a)
	return nil
}

// arrived returns every arrival so far.
func (w *worker) arrived() (arrivals []arrival, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, chunk := range w.chunks {
		arrivals = append(arrivals, chunk...)
	}
	return arrivals, w.err
}

func (w *worker) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
}

// await reports when all planned triggers have arrived, or the patience is over. If output numbers are missing
// between those that arrived, stored is called for what the streams hold there: events, or triggers of other
// jobs. If stored is nil, no gaps are counted.
func (w *worker) await(ctx context.Context, p *plan, stored func() (inStream, error)) (workerReport, error) {
	select { // looking earlier would only hold up what arrives
	case <-ctx.Done():
		return workerReport{}, ctx.Err()
	case <-time.After(time.Until(time.UnixMilli(p.To))):
	}
	until := time.Now().Add(patience)
	for {
		over := time.Now().After(until)
		arrivals, failed := w.arrived()
		report, err := judge(p, arrivals, nil)
		if stored == nil {
			report.Checks.Gaps = 0
		}
		if err == nil && report.Checks.Gaps > 0 && (report.Checks.Missing == 0 || over) {
			var others inStream
			if others, err = stored(); err == nil {
				report, err = judge(p, arrivals, others.outputs)
			}
			if err == nil && report.Checks.Gaps > 0 && others.dropped != "" {
				report.Checks.Gaps = 0
				report.Error = fmt.Sprintf("%s dropped outputs of the run's time before they were read, so nobody knows whether numbers were left out: "+
					"shorten the run or lengthen the stream's retention", others.dropped)
			}
		}
		if err != nil {
			return report, err
		}
		if failed != nil {
			report.Error = failed.Error()
		}
		if report.Checks.Missing == 0 || over {
			return report, nil
		}
		select {
		case <-ctx.Done():
			return report, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// inStream is what the output streams have stored since a time, as far as they still have it.
type inStream struct {
	outputs map[storedOutput]struct{}
	dropped string // a stream that has dropped some of it; "" for none
}

// readOutputs reads the outputs that the streams have stored since a time.
func readOutputs(ctx context.Context, nc *nats.Conn, names carillon.Names, partitions int, since time.Time) (found inStream, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return found, fmt.Errorf("bench: %w", err)
	}
	found.outputs = make(map[storedOutput]struct{})
	for p := range partitions {
		name := names.OutStream(p)
		err := readStream(ctx, js, name, from{time: since}, func(m jetstream.Msg) {
			output, err := strconv.ParseUint(m.Headers().Get(carillon.HeaderOutput), 10, 64)
			meta, err2 := m.Metadata()
			if err == nil && err2 == nil {
				found.outputs[storedOutput{outputID{int32(p), output}, meta.Timestamp.UnixNano()}] = struct{}{}
			}
		})
		if err != nil {
			return found, fmt.Errorf("bench: read %s: %w", name, err)
		}
		s, err := js.Stream(ctx, name) // only now: it may have dropped some while it was read
		if err != nil {
			return found, fmt.Errorf("bench: read %s: %w", name, err)
		}
		if state := s.CachedInfo().State; state.FirstSeq > 1 && (state.Msgs == 0 || state.FirstTime.After(since)) {
			found.dropped = name
		}
	}
	return found, nil
}

// from is where to begin reading a stream: at a time, or at a sequence.
type from struct {
	time time.Time
	seq  uint64
}

// readStream reads the headers of what a stream holds, up to its present end.
func readStream(ctx context.Context, js jetstream.JetStream, name string, at from, each func(jetstream.Msg)) (err error) {
	s, err := js.Stream(ctx, name)
	if err != nil {
		return err
	}
	config := jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: at.seq, HeadersOnly: true}
	if at.seq == 0 {
		config.DeliverPolicy, config.OptStartTime = jetstream.DeliverByStartTimePolicy, &at.time
	}
	consumer, err := js.OrderedConsumer(ctx, name, config)
	if err != nil {
		return err
	}
	// Else the consumer would stay for five minutes, and cost the server work for each message that is stored meanwhile.
	defer func() {
		gone := js.DeleteConsumer(context.WithoutCancel(ctx), name, consumer.CachedInfo().Name)
		if !errors.Is(gone, jetstream.ErrConsumerNotFound) {
			err = errors.Join(err, gone)
		}
	}()
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	if consumer.CachedInfo().NumPending == 0 {
		return nil
	}
	for last := s.CachedInfo().State.LastSeq; ; {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		each(m)
		if meta, err := m.Metadata(); err != nil || meta.Sequence.Stream >= last {
			return err
		}
	}
}

// message is a message in a stream: an output, with the time when it was stored and, as far as known, the fire in it.
type message struct {
	output    uint64
	stored    int64 // unix ns
	scheduled int64 // unix ms
	job       int32
	twice     bool // its fire is known to be in another message, too
}

// countDuplicates counts the messages up to number last that have the number of another one, except those that already count as duplicates.
// The messages must be in order of their numbers, and each must be there once.
func countDuplicates(messages []message, last uint64) (n int) {
	for at := 0; at < len(messages) && messages[at].output <= last; {
		end, counted := at, 0
		for ; end < len(messages) && messages[end].output == messages[at].output; end++ {
			counted += bit(messages[end].twice)
		}
		n += max(0, end-at-1-counted)
		at = end
	}
	return n
}

// distinct sorts messages by their numbers and keeps each of them once, however often it was delivered.
func distinct(messages []message) []message {
	slices.SortFunc(messages, func(a, b message) int {
		return cmp.Or(cmp.Compare(a.output, b.output), cmp.Compare(a.stored, b.stored), cmp.Compare(a.scheduled, b.scheduled),
			cmp.Compare(a.job, b.job), bit(b.twice)-bit(a.twice))
	})
	return slices.CompactFunc(messages, func(a, b message) bool {
		a.twice, b.twice = false, false
		return a == b
	})
}

// judge compares what arrived with the plan. others are messages that are known to be stored, whether they have arrived or not.
func judge(p *plan, arrivals []arrival, others map[storedOutput]struct{}) (r workerReport, err error) {
	base := make([]int, len(p.First)+1)
	var c Checks
	for i := range p.First {
		base[i+1] = base[i] + p.slots(i)
		c.Expected += p.fires(i)
	}
	seen := make([]storedOutput, base[len(p.First)]) // by fire: the message in which it came; its output is 0 if it has not come
	outputs := make(map[int32][]message)             // by partition
	arrived := make(map[storedOutput]struct{}, min(len(arrivals), len(others)))
	received, stored := newHistogram(), newHistogram()
	last := make(map[int32]uint64) // the window's greatest output by partition
	for _, a := range arrivals {
		if a.again {
			c.Redelivered++
		}
		s := storedOutput{outputID{a.partition, a.output}, a.stored}
		if len(others) > 0 {
			arrived[s] = struct{}{}
		}
		outputs[a.partition] = append(outputs[a.partition], message{output: a.output, stored: a.stored, scheduled: a.scheduled, job: a.job})
		i := int(a.job)
		if i < 0 || i >= len(p.First) || a.scheduled < p.From || a.scheduled >= p.To {
			continue
		}
		last[a.partition] = max(last[a.partition], a.output)
		k, planned := p.fireIndex(i, a.scheduled)
		if !planned {
			c.Stray++
			continue
		}
		at := &seen[base[i]+k]
		switch {
		case at.output == 0:
			*at = s
		case *at == s && (a.again || p.Kills):
			c.Redelivered += bit(!a.again) // the same message once more
			continue
		default:
			c.Duplicate++ // another message, with the same number or another one
			outputs[a.partition][len(outputs[a.partition])-1].twice = true
			continue
		}
		due := a.scheduled * 1e6
		if a.received < due || a.stored < due {
			c.Early++
		}
		record(received, a.received-due)
		record(stored, a.stored-due)
	}
	for i := range p.First {
		for k, s := range seen[base[i] : base[i]+p.fires(i)] {
			if s.output > 0 {
				continue
			}
			if c.Missing++; c.Missing <= missingNamed {
				r.Missing = append(r.Missing, carillon.FormatTriggerID(p.Prefix+strconv.Itoa(i), p.due(i, k)))
			}
		}
	}
	for s := range others {
		if _, known := arrived[s]; !known {
			outputs[s.partition] = append(outputs[s.partition], message{output: s.output, stored: s.stored, job: -1})
		}
	}
	for partition, messages := range outputs {
		messages = distinct(messages)
		c.Duplicate += countDuplicates(messages, last[partition])
		for i := 1; i < len(messages) && messages[i].output <= last[partition]; i++ {
			c.Gaps += int(messages[i].output - min(messages[i].output, messages[i-1].output+1))
		}
	}
	r.Checks = c
	if r.Received, err = encode(received); err != nil {
		return r, err
	}
	r.Stored, err = encode(stored)
	return r, err
}

// writeRaw writes the window's triggers in the order of their arrival: due (unix ms), then µs from there
// to stored and received, partition, output number, job.
func (w *worker) writeRaw(path string, p *plan) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	b := []byte("due_ms,stored_us,received_us,partition,output,job\n")
	arrivals, _ := w.arrived()
	for _, a := range arrivals {
		if a.job >= 0 && a.scheduled >= p.From && a.scheduled < p.To {
			due := a.scheduled * 1e6
			b = fmt.Appendf(b, "%d,%d,%d,%d,%d,%d\n", a.scheduled, (a.stored-due)/1000, (a.received-due)/1000, a.partition, a.output, a.job)
		}
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

func decode(s string) (*hdrhistogram.Histogram, error) { return hdrhistogram.Decode([]byte(s)) }
