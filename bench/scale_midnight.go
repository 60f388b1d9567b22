package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
)

const (
	midnightTime = time.Minute
	// midnightLead is the time for a checkpoint, at the latest a minute after the last put, and for a restart. The
	// last part of it is what the engine has to bring the jobs into memory.
	midnightLead = 2 * time.Minute
)

// midnight is lateness with one-shots that are due within a minute.
func (c *ScaleConfig) midnight(e *engine) LatenessConfig {
	l := c.lateness(e)
	l.Rate, l.Duration, l.Mix = max(1, c.Midnight/int(c.midnightTime/time.Second)), c.midnightTime, Mix{OneShots: 1}
	return l
}

// midnights runs two of them: with jobs that were in memory all the time, and with jobs that were on disk.
func (c *ScaleConfig) midnights(ctx context.Context, e *engine, nc *nats.Conn, r *Result) (hot, cold Result, err error) {
	if c.Midnight == 0 {
		return hot, cold, nil
	}
	client := carillon.Connect(nc, carillon.WithNames(e.Names))
	if _, err := client.DeleteWhere(ctx, carillon.Selection{Prefix: scaleRecurringPrefix}); err != nil {
		return hot, cold, fmt.Errorf("bench: %w", err)
	}
	if hot, err = runPart(ctx, c.midnight(e), r); err != nil {
		return hot, cold, err
	}
	l := c.midnight(e)
	l.lead = c.midnightLead
	l.before = func(ctx context.Context) error {
		if _, err := c.written(ctx, e, 0); err != nil { // beside very many jobs compactions take longer than there is
			return err
		}
		listen := strings.TrimPrefix(e.url, "nats://")
		if err := e.kill(); err != nil {
			return err
		}
		return e.start(ctx, listen, nil)
	}
	cold, err = runPart(ctx, l, r)
	return hot, cold, err
}
