package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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
