package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/carillon-scheduler/carillon/bench"
)

// The worker is this binary in a process of its own. It reads two lines of JSON and answers each of them:
//
//	workerStart  →  workerReady   the library's worker runs and has handled the probe
//	plan         →  report        all planned jobs were handled, or no more came for a while
type workerStart struct {
	System  string `json:"system"` // its key
	Address string `json:"address"`
	Jobs    int    `json:"jobs"`
}

type workerReady struct {
	Ready bool `json:"ready"`
}

// plan says when jobs are due: job i is due at From + i × Span ÷ Jobs.
type plan struct {
	Jobs int   `json:"jobs"`
	From int64 `json:"from"` // unix ms
	Span int64 `json:"span"` // ms
}

func (p plan) due(i int) time.Time { return time.UnixMilli(p.From + int64(i)*p.Span/int64(p.Jobs)) }

type report struct {
	Checks   bench.Checks `json:"checks"`
	Received string       `json:"received"` // from due to handled, an encoded histogram; early jobs count as 0
	Off      string       `json:"off"`      // the distance from the due time, early or late
	EarlyMax int64        `json:"early_max_ns"`
	First    int64        `json:"first_ns"`  // from the first due time until the first job was handled
	Last     int64        `json:"last_ns"`   // … until the last job was handled
	Stored   int64        `json:"stored_ns"` // … until the last job was stored; 0 if the service does not tell
	Error    string       `json:"error,omitempty"`
}

const (
	probe = -1 // the number of the job that shows that the worker is ready
	// patience is how long a worker waits for the next job before it counts the rest as missing.
	patience = 20 * time.Second
	// linger is how long a worker waits for duplicates after the last job has come.
	linger = time.Second
)

// sink notes the jobs that the worker handles.
type sink struct {
	at       []atomic.Int64 // unix ns at which each job was first handled; 0: not yet
	count    atomic.Int64   // jobs that were handled
	latest   atomic.Int64   // when a job was last handled for the first time, unix ns
	stored   atomic.Int64   // when the last of them was stored, unix ns; 0: not known
	repeated atomic.Int64   // handled again, marked as another delivery
	doubled  atomic.Int64   // handled again without that mark: a duplicate
	stray    atomic.Int64   // not of the plan
	probed   chan struct{}
	wasProbe atomic.Bool
}

func newSink(jobs int) *sink {
	return &sink{at: make([]atomic.Int64, jobs), probed: make(chan struct{})}
}

func (s *sink) handle(payload []byte, again bool, stored time.Time) {
	now := time.Now().UnixNano()
	i, err := numberOf(payload)
	switch {
	case err == nil && i == probe:
		if s.wasProbe.CompareAndSwap(false, true) {
			close(s.probed)
		}
	case err != nil || i < 0 || i >= len(s.at):
		s.stray.Add(1)
	case s.at[i].CompareAndSwap(0, now):
		s.latest.Store(now)
		s.count.Add(1)
		if !stored.IsZero() {
			for at := stored.UnixNano(); ; {
				if was := s.stored.Load(); was >= at || s.stored.CompareAndSwap(was, at) {
					break
				}
			}
		}
	case again:
		s.repeated.Add(1)
	default:
		s.doubled.Add(1)
	}
}

// await waits until all jobs were handled, or until none was handled for as long as patience, counted from the last due time on.
func (s *sink) await(ctx context.Context, p plan, failed <-chan error) error {
	until := p.due(p.Jobs - 1).Add(patience)
	for s.count.Load() < int64(len(s.at)) && time.Now().Before(until) {
		if last := time.Unix(0, s.latest.Load()).Add(patience); last.After(until) {
			until = last
		}
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(linger):
		return nil
	}
}

func (s *sink) judge(p plan) (r report, err error) {
	r.Checks = bench.Checks{
		Expected: p.Jobs, Stray: int(s.stray.Load()), Duplicate: int(s.doubled.Load()), Redelivered: int(s.repeated.Load()),
	}
	received, off := bench.NewHistogram(), bench.NewHistogram()
	first, last := int64(math.MaxInt64), int64(math.MinInt64)
	for i := range s.at {
		at := s.at[i].Load()
		if at == 0 {
			r.Checks.Missing++
			continue
		}
		late := at - p.due(i).UnixNano()
		if late < 0 {
			r.Checks.Early++
			r.EarlyMax = max(r.EarlyMax, -late)
		}
		bench.Record(received, late)
		bench.Record(off, max(late, -late))
		first, last = min(first, at), max(last, at)
	}
	if r.Checks.Missing < p.Jobs {
		r.First, r.Last = first-p.From*1e6, last-p.From*1e6
		if at := s.stored.Load(); at > 0 {
			r.Stored = at - p.From*1e6
		}
	}
	if r.Received, err = bench.EncodeHistogram(received); err != nil {
		return r, err
	}
	r.Off, err = bench.EncodeHistogram(off)
	return r, err
}

// work runs the worker's process.
func work(ctx context.Context, in io.Reader, out io.Writer) error {
	input, output := json.NewDecoder(in), json.NewEncoder(out)
	var start workerStart
	if err := input.Decode(&start); err != nil {
		return err
	}
	sys, err := find(start.System)
	if err != nil {
		return err
	}
	s := newSink(start.Jobs)
	working, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		err := sys.work(working, start.Address, s.handle)
		if err == nil && working.Err() == nil {
			err = errors.New("it ended by itself")
		}
		ended <- err
	}()
	select {
	case <-s.probed:
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := output.Encode(workerReady{true}); err != nil {
		return err
	}
	var p plan
	if err := input.Decode(&p); err != nil {
		return err
	}
	failed := s.await(ctx, p, ended)
	r, err := s.judge(p)
	if err != nil {
		return err
	}
	if failed != nil {
		r.Error = failed.Error()
	} else {
		stop()
		if err := <-ended; err != nil {
			r.Error = err.Error()
		}
	}
	return output.Encode(r)
}

// workerProcess is the process of work, seen from the run.
type workerProcess struct {
	in     io.WriteCloser
	out    io.Closer
	answer *json.Decoder
}

// startWorker starts the worker, which sends workerReady when it is ready. The workspace ends the process.
func (s *workspace) startWorker(start workerStart) (*workerProcess, error) {
	cmd := exec.Command(s.self, "worker")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// Not StdoutPipe: Wait would close that before everything is read.
	out, child, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = child
	_, err = s.launch("worker", cmd, syscall.SIGTERM)
	child.Close()
	if err != nil {
		out.Close()
		return nil, err
	}
	w := &workerProcess{in, out, json.NewDecoder(out)}
	return w, w.send(start)
}

func (w *workerProcess) close() {
	w.in.Close()
	w.out.Close()
}

func (w *workerProcess) send(v any) error {
	if err := json.NewEncoder(w.in).Encode(v); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	return nil
}

// receive reads an answer. It fails if the worker ends, or the context.
func (w *workerProcess) receive(ctx context.Context, v any) error {
	done := make(chan error, 1)
	go func() { done <- w.answer.Decode(v) }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("the worker ended without an answer: %w", err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("worker: %w", ctx.Err())
	}
}
