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
	// midnightPairs is how often the two are compared: where a checkpoint falls decides the tail of one.
	midnightPairs = 3
	midnightTime  = time.Minute
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

// midnights are pairs of them, in turns: with jobs that were in memory all the time, and with jobs that were on disk.
type midnights struct {
	hot, cold []Result
	// loaded are jobs that came from disk for the cold ones, late those of them that a tick had to wait for.
	loaded, late float64
}

func (c *ScaleConfig) midnights(ctx context.Context, e *engine, nc *nats.Conn, r *Result) (m midnights, err error) {
	if c.Midnight == 0 {
		return m, nil
	}
	client := carillon.Connect(nc, carillon.WithNames(e.Names))
	if _, err := client.DeleteWhere(ctx, carillon.Selection{Prefix: scaleRecurringPrefix}); err != nil {
		return m, fmt.Errorf("bench: %w", err)
	}
	for range c.midnightPairs {
		hot, err := runPart(ctx, c.midnight(e), r)
		if err != nil {
			return m, err
		}
		cold, err := c.coldMidnight(ctx, e, r)
		if err != nil {
			return m, err
		}
		loaded, err := e.metric(ctx, "carillon_jobs_loaded_total") // since it was started for them
		if err != nil {
			return m, err
		}
		late, err := e.metric(ctx, "carillon_jobs_loaded_late_total")
		if err != nil {
			return m, err
		}
		m.loaded, m.late = m.loaded+loaded, m.late+late
		m.hot, m.cold = append(m.hot, hot), append(m.cold, cold)
	}
	return m, nil
}

// coldMidnight kills the engine once checkpoints have the jobs, so that the next one finds them on disk.
func (c *ScaleConfig) coldMidnight(ctx context.Context, e *engine, r *Result) (Result, error) {
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
	return runPart(ctx, l, r)
}

// figures adds the medians of the pairs, and the p99 of each.
func (m *midnights) figures(to *Figures) {
	for _, q := range []string{"p50", "p99", "p999"} {
		to.add("midnight_"+q+"_ms", medianOf(m.cold, "received_"+q+"_ms"))
		to.add("midnight_"+q+"_hot_ms", medianOf(m.hot, "received_"+q+"_ms"))
	}
	var ratios []float64
	for i := range m.cold {
		cold, hot := m.cold[i].Figures.Get("received_p99_ms"), m.hot[i].Figures.Get("received_p99_ms")
		to.add(fmt.Sprintf("midnight_p99_%d_ms", i+1), cold)
		to.add(fmt.Sprintf("midnight_p99_hot_%d_ms", i+1), hot)
		ratios = append(ratios, cold/hot)
	}
	to.add("midnight_p99_ratio", median(ratios))
	to.add("midnight_loaded_jobs", m.loaded)
	to.add("midnight_loaded_late_jobs", m.late)
}
