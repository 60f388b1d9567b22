package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
)

// soakWorker is the worker's process of RunSoak. It gets one plan after the other, answers each with a report,
// and then forgets the plan's arrivals, so that it needs memory only for one round, however long the run is.
// Triggers that arrive after that count as redelivered: RunSoak itself reads the streams, and checks that nothing
// is stored twice and no output number is left out.
type soakWorker struct {
	mu     sync.Mutex
	groups map[string]*soakGroup // by the prefix of the ids
	again  int                   // triggers that came after their plan had been judged
}

// soakGroup is the jobs of one prefix.
type soakGroup struct {
	arrivals []arrival
	done     int64 // plans have been judged up to this time, unix ms
}

// soakWork is Work for RunSoak; start has been read.
func soakWork(ctx context.Context, nc *nats.Conn, names carillon.Names, start workerStart, input *json.Decoder, output *json.Encoder) error {
	w := &soakWorker{groups: make(map[string]*soakGroup)}
	nc.SetErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}) // kills are expected
	working, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- carillon.Connect(nc, carillon.WithNames(names)).Work(working, carillon.WorkerOptions{
			Topic: topic, Name: start.Name, Concurrency: start.Concurrency, StartNew: true,
			// No OnError: an error here is a connection lost to a kill, and the worker goes on by itself.
		}, w.handle)
	}()
	if err := awaitConsumers(ctx, nc, names, start, ended); err != nil {
		return fmt.Errorf("bench: worker: %w", err)
	}
	if err := output.Encode(workerReady{Ready: true}); err != nil {
		return fmt.Errorf("bench: worker: %w", err)
	}
	for {
		var p plan
		switch err := input.Decode(&p); {
		case errors.Is(err, io.EOF):
			stop()
			return <-ended
		case err != nil:
			return fmt.Errorf("bench: worker: %w", err)
		}
		report, err := w.await(ctx, &p)
		if err != nil {
			return err
		}
		if err := output.Encode(report); err != nil {
			return fmt.Errorf("bench: worker: %w", err)
		}
	}
}

func (w *soakWorker) handle(_ context.Context, t *carillon.Trigger) error {
	at := strings.LastIndexByte(t.Job, '-') + 1
	job, err := strconv.ParseInt(t.Job[at:], 10, 32)
	if err != nil || job < 0 {
		return nil // it is not of this run
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.group(t.Job[:at])
	a := arrival{
		scheduled: t.Scheduled.UnixMilli(), received: t.Received.UnixNano(), stored: t.Stored.UnixNano(),
		output: t.Output, job: int32(job), partition: int32(t.Partition), again: t.Attempt > 1,
	}
	if a.scheduled < g.done {
		w.again++
		return nil
	}
	g.arrivals = append(g.arrivals, a)
	return nil
}

// group finds or makes a group. Its caller holds mu.
func (w *soakWorker) group(prefix string) *soakGroup {
	g := w.groups[prefix]
	if g == nil {
		g = new(soakGroup)
		w.groups[prefix] = g
	}
	return g
}

// soakPatience is how long a worker waits for missing triggers: an engine that was killed has to come back, and the
// server has to deliver triggers again whose acks it lost.
const soakPatience = time.Minute

// await reports as soon as all planned triggers have arrived, or the patience is over.
func (w *soakWorker) await(ctx context.Context, p *plan) (workerReport, error) {
	until := time.Now().Add(soakPatience)
	for {
		over := time.Now().After(until)
		w.mu.Lock()
		g := w.group(p.Prefix)
		arrivals := g.arrivals[:len(g.arrivals):len(g.arrivals)]
		w.mu.Unlock()
		report, err := judge(p, arrivals, nil)
		if err != nil {
			return report, err
		}
		if report.Checks.Missing == 0 || over {
			w.forget(p, len(arrivals), &report.Checks)
			return report, nil
		}
		select {
		case <-ctx.Done():
			return report, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// forget drops the arrivals that have been reported.
func (w *soakWorker) forget(p *plan, judged int, checks *Checks) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.groups[p.Prefix]
	var rest []arrival
	for i, a := range g.arrivals {
		if a.scheduled >= p.To {
			rest = append(rest, a)
		} else if i >= judged {
			w.again++
		}
	}
	g.arrivals, g.done = rest, p.To
	checks.Gaps = 0
	checks.Redelivered += w.again
	w.again = 0
}
