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
	// midnightLead is the time for checkpoints, which begin a minute after the last put at the latest and rest between their parts,
	// and for a restart. The last part of it is what the engine has to bring the jobs into memory. Hot ones have as long, and stay
	// there meanwhile: all that is due within half an hour does.
	midnightLead = 4 * time.Minute
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
	// loaded are jobs that came from disk for the cold ones, late those of them that a tick had to wait for; hotLoaded came from
	// there for the hot ones, and none should.
	loaded, late, hotLoaded float64
	// held are the pauses of all engines that had a midnight, and those of the floor meanwhile.
	held map[string]pauses
}

func (c *ScaleConfig) midnights(ctx context.Context, e *engine, nc *nats.Conn, r *Result) (m midnights, err error) {
	m.held = make(map[string]pauses)
	if c.Midnight == 0 {
		return m, nil
	}
	floor, err := e.startWorker(workerStart{Pauses: true})
	if err != nil {
		return m, err
	}
	defer floor.stop()
	client := carillon.Connect(nc, carillon.WithNames(e.Names))
	if _, err := client.DeleteWhere(ctx, carillon.Selection{Prefix: scaleRecurringPrefix}); err != nil {
		return m, fmt.Errorf("bench: %w", err)
	}
	kill := func(ctx context.Context) error {
		if err := e.held(ctx, m.held); err != nil {
			return err
		}
		listen := strings.TrimPrefix(e.url, "nats://")
		if err := e.kill(); err != nil {
			return err
		}
		return e.start(ctx, listen, nil)
	}
	for range c.midnightPairs {
		hot, loaded, _, err := c.runMidnight(ctx, e, nil, r)
		if err != nil {
			return m, err
		}
		m.hot, m.hotLoaded = append(m.hot, hot), m.hotLoaded+loaded
		cold, loaded, late, err := c.runMidnight(ctx, e, kill, r)
		if err != nil {
			return m, err
		}
		m.cold, m.loaded, m.late = append(m.cold, cold), m.loaded+loaded, m.late+late
	}
	if err := e.held(ctx, m.held); err != nil {
		return m, err
	}
	m.held[floorPause], err = floor.pauses()
	return m, err
}

// The pauses of an engine, as its metrics and the figures have them. Its own are those without what the machine gave to others
// meanwhile.
const (
	checkpointPause    = "checkpoint_pause"
	checkpointPauseOwn = "checkpoint_pause_own"
	loadPause          = "load_pause"
	loadPauseOwn       = "load_pause_own"
	floorPause         = "floor_pause" // of a process that only spins
)

// held adds the pauses of an engine's process.
func (e *engine) held(ctx context.Context, to map[string]pauses) error {
	for _, what := range []string{checkpointPause, checkpointPauseOwn, loadPause, loadPauseOwn} {
		p, err := e.pauses(ctx, "carillon_"+what+"_seconds")
		if err != nil {
			return err
		}
		p.merge(to[what])
		to[what] = p
	}
	return nil
}

// runMidnight waits until checkpoints have the jobs. Before a cold one it then has the engine killed, so that the next one finds
// them on disk. loaded is how many jobs came from there between the last put and the last trigger, late those of them that a tick
// had to wait for.
func (c *ScaleConfig) runMidnight(ctx context.Context, e *engine, kill func(context.Context) error, r *Result) (night Result, loaded, late float64, err error) {
	count := func(ctx context.Context) (loaded, late float64, err error) {
		if loaded, err = e.metric(ctx, "carillon_jobs_loaded_total"); err != nil {
			return 0, 0, err
		}
		late, err = e.metric(ctx, "carillon_jobs_loaded_late_total")
		return loaded, late, err
	}
	var loadedBefore, lateBefore float64 // of what the puts had to read, too
	l := c.midnight(e)
	l.lead = c.midnightLead
	l.before = func(ctx context.Context) (err error) {
		if loadedBefore, lateBefore, err = count(ctx); err != nil {
			return err
		}
		if _, err := c.written(ctx, e, 0); err != nil { // beside very many jobs compactions take longer than there is
			return err
		}
		if kill == nil {
			return nil
		}
		loadedBefore, lateBefore = 0, 0 // the next one counts from its start
		return kill(ctx)
	}
	l.after = func(ctx context.Context) (err error) { // deleting the jobs reads them again
		loaded, late, err = count(ctx)
		return err
	}
	night, err = runPart(ctx, l, r)
	return night, loaded - loadedBefore, late - lateBefore, err
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
	to.add("midnight_hot_loaded_jobs", m.hotLoaded)
}
