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
	// midnightPairs is how often the two are compared: the tail of a single midnight depends on when a checkpoint comes.
	midnightPairs = 3
	midnightTime  = time.Minute
	// midnightLead is the time between the last put and the first due job. It must be enough for checkpoints, which begin at the latest
	// a minute after the last put and rest between their parts, for a restart, and at last for the engine to bring the jobs into memory.
	// Hot midnights have the same time; their jobs stay in memory meanwhile, as all that are due within half an hour do.
	midnightLead = 4 * time.Minute
)

// midnight returns the config of a run of lateness with one-shots that are due within a minute.
func (c *ScaleConfig) midnight(e *engine) LatenessConfig {
	l := c.lateness(e)
	l.Rate, l.Duration, l.Mix = c.midnightJobs()/int(c.midnightTime/time.Second), c.midnightTime, Mix{OneShots: 1}
	return l
}

// midnightJobs is how many jobs a midnight has: Midnight, but as many in each second, and one at least.
func (c *ScaleConfig) midnightJobs() int {
	seconds := int(c.midnightTime / time.Second)
	return max(1, c.Midnight/seconds) * seconds
}

// midnights are the results of pairs of midnights, in turns: with jobs that were in memory all the time, and with jobs on disk.
type midnights struct {
	hot, cold []Result
	// loaded is how many jobs were brought into memory from disk for the cold midnights, late how many of them a tick had to wait for.
	// hotLoaded is how many were brought into memory for the hot midnights; it should be 0.
	loaded, late, hotLoaded float64
	// pauses has the pauses of all engines that had a midnight, and those of the floor meanwhile.
	pauses map[string]pauses
}

func (c *ScaleConfig) midnights(ctx context.Context, e *engine, nc *nats.Conn, r *Result) (m midnights, err error) {
	m.pauses = make(map[string]pauses)
	if c.Midnight == 0 {
		return m, nil
	}
	floor, err := e.startWorker(ctx, workerStart{Pauses: true})
	if err != nil {
		return m, err
	}
	defer floor.stop()
	client := carillon.Connect(nc, carillon.WithNames(e.Names))
	if _, err := client.DeleteWhere(ctx, carillon.Selection{Prefix: scaleRecurringPrefix}); err != nil {
		return m, fmt.Errorf("bench: %w", err)
	}
	kill := func(ctx context.Context) error {
		if err := e.addPauses(ctx, m.pauses); err != nil {
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
	if err := e.addPauses(ctx, m.pauses); err != nil {
		return m, err
	}
	m.pauses[floorPause], err = floor.pauses()
	return m, err
}

// The names of an engine's pauses, in its metrics and in the figures. Its own pauses are those without the time that the machine gave
// to others meanwhile.
const (
	checkpointPause    = "checkpoint_pause"
	checkpointPauseOwn = "checkpoint_pause_own"
	loadPause          = "load_pause"
	loadPauseOwn       = "load_pause_own"
	floorPause         = "floor_pause" // of a process that only spins
)

// addPauses adds the pauses of an engine's process.
func (e *engine) addPauses(ctx context.Context, to map[string]pauses) error {
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

// runMidnight runs one midnight: it waits until checkpoints have the jobs. For a cold midnight it then calls kill, so that the next
// engine finds the jobs on disk. loaded is how many jobs were brought into memory from disk between the last put and the last trigger,
// late how many of them a tick had to wait for.
func (c *ScaleConfig) runMidnight(ctx context.Context, e *engine, kill func(context.Context) error, r *Result) (night Result, loaded, late float64, err error) {
	count := func(ctx context.Context) (loaded, late float64, err error) {
		if loaded, err = e.metric(ctx, "carillon_jobs_loaded_total"); err != nil {
			return 0, 0, err
		}
		late, err = e.metric(ctx, "carillon_jobs_loaded_late_total")
		return loaded, late, err
	}
	var loadedBefore, lateBefore float64 // the counts before: the puts had to read jobs, too
	l := c.midnight(e)
	l.lead = c.midnightLead
	l.before = func(ctx context.Context) (err error) {
		if loadedBefore, lateBefore, err = count(ctx); err != nil {
			return err
		}
		if _, err := c.written(ctx, e, 0); err != nil { // without settling: with very many jobs compactions take longer than there is time
			return err
		}
		if kill == nil {
			return nil
		}
		loadedBefore, lateBefore = 0, 0 // the next engine counts from its start
		return kill(ctx)
	}
	l.after = func(ctx context.Context) (err error) { // not later: deleting the jobs reads them again
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
