package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
)

// saving is a snapshot that is saved while others fire.
type saving struct {
	lateness Result
	took     time.Duration
	reply    carillon.SnapshotReply
}

// save measures lateness once more while a snapshot of all jobs is saved, which may go on afterwards.
func (c *ScaleConfig) save(ctx context.Context, e *engine, nc *nats.Conn, r *Result) (s saving, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	l := c.lateness(e)
	l.before = func(context.Context) error {
		began := time.Now()
		go func() {
			client := carillon.Connect(nc, carillon.WithNames(e.Names))
			var err error
			s.reply, err = client.SaveSnapshot(ctx, carillon.SnapshotRequest{Dir: filepath.Join(e.dir, "archive")}, nil)
			s.took = time.Since(began)
			done <- err
		}()
		return nil
	}
	part, err := runPart(ctx, l, r)
	if err != nil {
		return s, err
	}
	c.Progress("waiting for the snapshot", 0, 1)
	if err := <-done; err != nil {
		return s, fmt.Errorf("bench: save: %w", err)
	}
	if s.reply.Rows == 0 {
		return s, errors.New("bench: the snapshot is empty")
	}
	s.lateness = part
	return s, nil
}
