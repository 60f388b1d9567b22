package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// begin opens the service of a run and a connection to it, and describes them in the result. end closes both.
func (s Service) begin(ctx context.Context, r *Result) (e *engine, nc *nats.Conn, end func() error, err error) {
	if e, err = s.open(ctx); err != nil {
		return nil, nil, nil, err
	}
	r.Machine = thisMachine(e.dir, e.sync())
	if nc, err = e.Connect(e.url); err != nil {
		return nil, nil, nil, errors.Join(fmt.Errorf("bench: connect to %s: %w", e.url, err), e.close())
	}
	r.Machine.NATS = nc.ConnectedServerVersion()
	return e, nc, func() error { nc.Close(); return e.close() }, nil
}

// runName makes a name by which a run's jobs and consumers in a service are told from those of others.
func runName() string { return "bench-" + strconv.FormatInt(time.Now().UnixMilli(), 36) }

type progress = func(step string, done, total int)

func defaultProgress(given progress) progress {
	if given == nil {
		return func(string, int, int) {}
	}
	return given
}

// watchFloor measures the floor during a run until ctx ends; dir is on the engine's disk. wait returns what was measured.
func watchFloor(ctx context.Context, nc *nats.Conn, dir, run string, payload []byte) (wait func() (floor, error)) {
	type outcome struct {
		floor
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		f, err := measureFloor(ctx, nc, "BENCH_"+run, dir, payload)
		done <- outcome{f, err}
	}()
	return func() (floor, error) {
		f := <-done
		return f.floor, f.err
	}
}

// window is what was seen of the machine and of the engine's process while the triggers of a load were due.
type window struct {
	floor
	took        time.Duration
	known       bool          // what the engine's process uses
	cpu         time.Duration // of that process
	residentMiB float64       // of that process, at the end
}

func (w *window) cpuPercent() float64 { return 100 * w.cpu.Seconds() / w.took.Seconds() }

// measureWindow waits for the first trigger of a load, calls during, which must last until the last one is due, and measures
// the machine and the engine's process meanwhile. dir is on the engine's disk; if it is empty, no disk is measured.
func (e *engine) measureWindow(ctx context.Context, nc *nats.Conn, l *load, dir string, report progress, during func() error) (w window, err error) {
	if err := waitUntil(ctx, report, "waiting for the first", time.UnixMilli(l.plan.From)); err != nil {
		return w, err
	}
	before, began := e.usage(), time.Now()
	measuring, stop := context.WithDeadline(ctx, time.UnixMilli(l.plan.To))
	defer stop()
	floors := watchFloor(measuring, nc, dir, strings.TrimSuffix(l.plan.Prefix, "-"), l.payload)
	err = during()
	after := e.usage()
	w = window{took: time.Since(began), known: after.known, cpu: after.cpu - before.cpu, residentMiB: after.residentMiB}
	var floorErr error
	w.floor, floorErr = floors()
	return w, errors.Join(err, floorErr)
}
