package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
)

// ScaleConfig says how RunScale runs. The zero value of a field is its default.
type ScaleConfig struct {
	Service Service `json:"-"` // one that is started for the run

	Jobs         int           `json:"jobs"`           // pending one-shots, due over a year; default 1,000,000
	Rate         int           `json:"triggers_per_s"` // of other jobs, while lateness is measured; default 5,000
	Duration     time.Duration `json:"-"`              // of each measurement; whole seconds; default 30 s
	Seconds      int           `json:"duration_s"`     // Duration, as it stands in the result
	PayloadBytes int           `json:"payload_bytes"`  // default 200
	Save         bool          `json:"save"`           // measure lateness while a snapshot is saved, and restore that
	// Midnight is how many jobs of each midnight are due within a minute (see RunScale); default Jobs, at most 1,000,000; -1: none.
	Midnight int `json:"midnight_jobs"`

	Progress func(step string, done, total int) `json:"-"`

	settle, midnightTime, midnightLead time.Duration // defaults are the constants
	midnightPairs                      int           // the same
}

func (c ScaleConfig) withDefaults() (ScaleConfig, error) {
	var err error
	if c.Service, err = c.Service.withDefaults(); err != nil {
		return c, err
	}
	c.Jobs = cmp.Or(c.Jobs, 1_000_000)
	c.Rate = cmp.Or(c.Rate, 5000)
	c.Duration = cmp.Or(c.Duration, 30*time.Second)
	c.Seconds = int(c.Duration / time.Second)
	c.PayloadBytes = cmp.Or(c.PayloadBytes, 200)
	c.Midnight = max(0, cmp.Or(c.Midnight, min(c.Jobs, 1_000_000)))
	c.Progress = defaultProgress(c.Progress)
	c.settle = cmp.Or(c.settle, scaleSettle)
	c.midnightPairs = cmp.Or(c.midnightPairs, midnightPairs)
	c.midnightTime, c.midnightLead = cmp.Or(c.midnightTime, midnightTime), cmp.Or(c.midnightLead, midnightLead)
	return c, nil
}

// lateness returns the config of a run of RunLateness on the engine.
func (c *ScaleConfig) lateness(e *engine) LatenessConfig {
	s := e.Service
	s.Server, s.NATS = e.url, ""
	return LatenessConfig{
		Service: s, Rate: c.Rate, Duration: c.Duration, PayloadBytes: c.PayloadBytes, Progress: c.Progress,
		disk: e.dir,
	}
}

// Validate names the first field that cannot be used.
func (c ScaleConfig) Validate() error {
	c, err := c.withDefaults()
	switch {
	case err != nil:
		return err
	case c.Service.Server != "" || c.Service.NATS != "":
		return errors.New("bench: scale looks at the engine's process and kills it, so it must be one of its own")
	case c.Jobs < 1 || c.Jobs > 1_000_000_000:
		return fmt.Errorf("bench: Jobs is %d, must be 1 to 1,000,000,000", c.Jobs)
	}
	e := engine{Service: c.Service, url: "none"}
	if c.Midnight > 0 {
		if err := c.midnight(&e).Validate(); err != nil {
			return err
		}
	}
	return c.lateness(&e).Validate()
}

// Limits of scale.
const (
	limitScaleResident   = 2 << 30 // bytes, up to limitScaleJobs jobs, and twice as many beyond
	limitScaleJobs       = 20_000_000
	limitScaleRestart    = 5      // s
	limitScaleLateness   = 2      // times that of the same engine without jobs
	limitScaleImports    = 60_000 // a second
	scaleBytesPerJob     = 700    // of disk; at most so many are needed while jobs are imported
	scaleRecurring       = 1000   // jobs that fire each second, for the restart
	scaleRecurringPrefix = "bench-recurring-"
	scaleSettle          = 75 * time.Second // an engine gives back its memory after 70 s
	scaleSettleMiB       = 1                // the most that a settled engine writes in that time
	scaleSettleDirty     = 1000             // so many jobs that no checkpoint has yet count as none, if they are at most a hundredth
	scaleSettlePatience  = 10 * time.Minute
	limitScalePause      = 10      // ms
	limitScaleSave       = 20      // ms: how much later a save makes any trigger
	limitScaleRestore    = 300_000 // jobs a second
	leastScaleLoaded     = 0.9     // of the jobs of cold midnights come from disk; those that came after the last checkpoint do not
	limitScaleMidnight   = 1.5     // times the p99 of hot jobs: two equal runs differ by as much
)

// scaleRun is what a run of scale has found.
type scaleRun struct {
	before, after     seen          // the engine without the jobs, and with them
	empty, full       Result        // of lateness, without the jobs and with them
	imported, settled time.Duration // how long the import took, and then how long the engine took to settle
	idleCPU           float64       // percent of a core, with the jobs and nothing due
	saved             saving
	held              map[string]pauses // by the name of the metric
	restart           recovered
	midnights         midnights
}

// RunScale measures what very many pending jobs do to an engine:
//
//   - It runs lateness on the engine without jobs, and waits until the engine has settled.
//   - It imports the jobs, waits until checkpoints have them all and the engine has settled again, and measures memory, disk and the
//     CPU of the idle engine. It runs lateness again.
//   - With Save it runs lateness more times, in turns while a snapshot is saved and without, and restores a snapshot.
//   - It kills the engine with kill -9, and measures the time from just before exec until a client has received the first trigger that
//     was stored after the kill.
//   - At last come midnights, beside the jobs and in pairs. A midnight is many one-shots due within a minute. In one of a pair (hot)
//     they have been in memory since they were put; in the other (cold) the engine finds them on disk, because it was killed once
//     checkpoints had them. Both wait for those checkpoints, and for the same time.
func RunScale(ctx context.Context, c ScaleConfig) (r Result, err error) {
	if err := c.Validate(); err != nil {
		return r, err
	}
	if c, err = c.withDefaults(); err != nil {
		return r, err
	}
	r = Result{Workload: "scale", Params: c, Checks: &Checks{}}
	e, nc, end, err := c.Service.begin(ctx, &r)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, end()) }()
	if err := c.hasRoom(e); err != nil {
		return r, err
	}
	floor, err := e.startWorker(ctx, workerStart{Pauses: true})
	if err != nil {
		return r, err
	}
	defer floor.stop()
	var run scaleRun
	if run.empty, err = c.runLateness(ctx, e, &r); err != nil {
		return r, err
	}
	// The engine must be as settled as later with the jobs: right after thousands of triggers a second it still holds their memory.
	if _, err := c.written(ctx, e, c.settle); err != nil {
		return r, err
	}
	if run.before, err = look(ctx, e); err != nil {
		return r, err
	}
	if run.imported, err = c.importAll(ctx, e, nc); err != nil {
		return r, err
	}
	if run.settled, err = c.written(ctx, e, c.settle); err != nil {
		return r, err
	}
	if run.idleCPU, run.after, err = c.idle(ctx, e); err != nil {
		return r, err
	}
	if run.full, err = c.runLateness(ctx, e, &r); err != nil {
		return r, err
	}
	if c.Save {
		if run.saved, err = c.save(ctx, e, nc, run.full, &r); err != nil {
			return r, err
		}
	}
	run.held = make(map[string]pauses)
	if err := e.addPauses(ctx, run.held); err != nil {
		return r, err
	}
	if run.held[floorPause], err = floor.pauses(); err != nil {
		return r, err
	}
	if c.Save {
		if err := c.restore(ctx, e, &run.saved, &r); err != nil {
			return r, err
		}
	}
	if run.restart, err = c.restart(ctx, e, nc, &r); err != nil {
		return r, err
	}
	if run.midnights, err = c.midnights(ctx, e, nc, &r); err != nil {
		return r, err
	}
	r.Machine.Load[1] = load1()
	if err := c.figures(&run, &r.Figures); err != nil {
		return r, err
	}
	r.Targets = c.targets(r.Figures)
	return r, nil
}

// figures adds what a run has found.
func (c *ScaleConfig) figures(run *scaleRun, f *Figures) error {
	f.add("imports_per_s", float64(c.Jobs)/run.imported.Seconds())
	f.add("import_s", run.imported.Seconds())
	f.add("settle_s", run.settled.Seconds())
	f.add("resident_bytes", run.after.residentMiB*(1<<20))
	f.add("resident_empty_bytes", run.before.residentMiB*(1<<20))
	f.add("resident_peak_bytes", run.after.peakMiB*(1<<20))
	f.add("disk_bytes_per_job", (run.after.diskMiB-run.before.diskMiB)*(1<<20)/float64(c.Jobs))
	written := (run.after.wroteMiB - run.before.wroteMiB) * (1 << 20) / float64(c.Jobs)
	f.add("disk_written_bytes_per_job", written)
	f.add("write_amplification_ratio", written/f.Get("disk_bytes_per_job"))
	f.add("idle_cpu_percent", run.idleCPU)
	full, empty := run.full.Figures, run.empty.Figures
	for _, q := range []string{"p50", "p99", "p999"} {
		f.add("lateness_"+q+"_ms", full.Get("received_"+q+"_ms"))
		f.add("lateness_"+q+"_empty_ms", empty.Get("received_"+q+"_ms"))
	}
	f.add("lateness_p99_ratio", full.Get("received_p99_ms")/empty.Get("received_p99_ms"))
	for _, what := range []string{checkpointPause, checkpointPauseOwn, loadPause, loadPauseOwn, floorPause} {
		p := run.held[what]
		p.merge(run.midnights.pauses[what])
		if p.Count == 0 {
			continue // none came, which does not make them short
		}
		many := strings.Replace(what, "pause", "pauses", 1)
		f.add(what+"_max_ms", p.Max.Seconds()*1000)
		f.add(many+"_over_1_ms_per_million", p.perMillion(p.Over1))
		f.add(many+"_over_10_ms_per_million", p.perMillion(p.Over10))
	}
	f.add("restart_to_ready_s", run.restart.ready.Seconds())
	f.add("restart_to_first_trigger_s", run.restart.received.Seconds())
	if c.Save {
		if err := run.saved.figures(f, c.Jobs); err != nil {
			return err
		}
	}
	if c.Midnight > 0 {
		run.midnights.figures(f)
	}
	return nil
}

// targets compares the figures with the limits.
func (c *ScaleConfig) targets(f Figures) []Target {
	resident := float64(limitScaleResident)
	if c.Jobs > limitScaleJobs {
		resident *= 2
	}
	targets := []Target{
		newTarget(f, "resident_bytes", resident, 0),
		newTarget(f, "restart_to_first_trigger_s", limitScaleRestart, 0),
		newTarget(f, "lateness_p99_ratio", limitScaleLateness, 0),
		newTarget(f, "idle_cpu_percent", limitIdleCPU, 0),
		newTarget(f, "checkpoint_pause_max_ms", limitScalePause, 0),
		newMinTarget(f, "imports_per_s", limitScaleImports),
	}
	if c.Save {
		targets = append(targets,
			newTarget(f, "lateness_p999_for_save_ms", limitScaleSave, 0),
			newTarget(f, "lateness_any_for_save_ms", limitScaleSave, 0),
			newMinTarget(f, "restore_jobs_per_s", limitScaleRestore))
	}
	if c.Midnight > 0 { // else no job was brought into memory
		targets = append(targets,
			newTarget(f, "load_pause_max_ms", limitScalePause, 0),
			newTarget(f, "midnight_p99_ratio", limitScaleMidnight, 0),
			newMinTarget(f, "midnight_loaded_jobs", leastScaleLoaded*float64(c.midnightPairs*c.midnightJobs())), // else the cold jobs were in memory
			newTarget(f, "midnight_loaded_late_jobs", 0, 0),
			newTarget(f, "midnight_hot_loaded_jobs", 0, 0)) // else the hot jobs were not in memory
	}
	return targets
}

// hasRoom checks that the disk has the room that the run needs: else the run would find out only after an hour.
func (c *ScaleConfig) hasRoom(e *engine) error {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(e.dir, &fs); err != nil {
		return fmt.Errorf("bench: %s: %w", e.dir, err)
	}
	each := uint64(scaleBytesPerJob)
	if c.Save {
		each += (savePairs + 1) * scaleBytesPerJob / 2 // for the snapshots, and for the directory that is restored from one
	}
	free, need := uint64(fs.Bsize)*fs.Bavail, uint64(c.Jobs)*each+4<<30
	if free < need {
		return fmt.Errorf("bench: %s has %d MiB free, and %d jobs take up to %d MiB; see --data", e.dir, free>>20, c.Jobs, need>>20)
	}
	return nil
}

func (c *ScaleConfig) runLateness(ctx context.Context, e *engine, r *Result) (Result, error) {
	return runPart(ctx, c.lateness(e), r)
}

// runPart runs lateness as a part of a larger run, and adds its checks to those of the whole.
func runPart(ctx context.Context, c LatenessConfig, r *Result) (Result, error) {
	part, err := RunLateness(ctx, c)
	if err != nil {
		return part, err
	}
	r.Checks.add(*part.Checks)
	return part, nil
}

// scaleFirst is how long after the beginning of the import the first of the jobs is due: not during the run.
const scaleFirst = 6 * time.Hour

func (c *ScaleConfig) importAll(ctx context.Context, e *engine, nc *nats.Conn) (took time.Duration, err error) {
	began, payload := time.Now(), randomPayloads(c.PayloadBytes)
	year := 365 * 24 * time.Hour
	jobs := func(yield func(carillon.ImportJob) bool) {
		for i := range c.Jobs {
			// A large stride, so that jobs that are imported together are due far apart.
			k := int64(i) * 2_654_435_761 % int64(c.Jobs)
			due := began.Add(scaleFirst + time.Duration(float64(year)*float64(k)/float64(c.Jobs)))
			job := carillon.Job{
				ID: "bench-scale-" + strconv.Itoa(i), Topic: topic, Payload: payload(),
				Schedule: "@at " + due.UTC().Format(carillon.TimeFormat),
			}
			if !yield(carillon.ImportJob{Job: job}) {
				return
			}
		}
	}
	progress := func(done int) { c.Progress("importing jobs", done, c.Jobs) }
	progress(0)
	if err := importJobs(ctx, carillon.Connect(nc, carillon.WithNames(e.Names)), jobs, progress); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}

// randomPayloads makes payloads of so many bytes that do not compress, so that the figures for the disk are not too good.
func randomPayloads(bytes int) (next func() []byte) {
	rng := rand.New(rand.NewPCG(1, 2))
	pool := make([]byte, 8<<20)
	for i := range pool {
		pool[i] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[rng.IntN(64)]
	}
	return func() []byte {
		b := make([]byte, bytes)
		copy(b, pool[rng.IntN(len(pool)-bytes):])
		b[0], b[bytes-1] = '"', '"'
		return b
	}
}

// written waits until checkpoints have nearly all jobs. If settle is not 0, it also waits until what that leaves behind is compacted:
// until the engine has written nearly nothing for so long.
func (c *ScaleConfig) written(ctx context.Context, e *engine, settle time.Duration) (took time.Duration, err error) {
	began := time.Now()
	most, at, since := 0.0, e.usage().wroteMiB, began
	few := float64(min(scaleSettleDirty, c.Jobs/100, cmp.Or(c.Midnight, c.Jobs)/100))
	for time.Since(began) < scaleSettlePatience {
		dirty, err := e.metric(ctx, "carillon_jobs_dirty")
		if err != nil {
			return 0, err
		}
		most = max(most, dirty)
		c.Progress("waiting for checkpoints", int(most-dirty), int(most))
		if now := e.usage().wroteMiB; dirty > few || settle > 0 && now > at+scaleSettleMiB {
			at, since = now, time.Now()
		} else if time.Since(since) >= settle {
			return since.Sub(began), nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
	return 0, fmt.Errorf("bench: jobs were still written %s on", scaleSettlePatience)
}

// idle measures CPU, in percent of a core, while nothing is due.
func (c *ScaleConfig) idle(ctx context.Context, e *engine) (percent float64, last seen, err error) {
	began, first := time.Now(), e.usage()
	if err := waitUntil(ctx, c.Progress, "doing nothing", began.Add(c.Duration)); err != nil {
		return 0, last, err
	}
	if last, err = look(ctx, e); err != nil {
		return 0, last, err
	}
	return 100 * (last.cpu - first.cpu).Seconds() / time.Since(began).Seconds(), last, nil
}

// restart kills the engine and starts it again.
func (c *ScaleConfig) restart(ctx context.Context, e *engine, nc *nats.Conn, r *Result) (recovered, error) {
	jobs := func(yield func(carillon.Job) bool) {
		for i := range scaleRecurring {
			job := carillon.Job{
				ID: scaleRecurringPrefix + strconv.Itoa(i), Topic: topic, Payload: payloadOf(c.PayloadBytes),
				Schedule: "@every 1s", Spread: time.Second,
			}
			if !yield(job) {
				return
			}
		}
	}
	if err := putJobs(ctx, carillon.Connect(nc, carillon.WithNames(e.Names)), jobs, nil); err != nil {
		return recovered{}, err
	}
	if err := waitUntil(ctx, c.Progress, "firing before the kill", time.Now().Add(3*time.Second)); err != nil {
		return recovered{}, err
	}
	recovery := RecoveryConfig{Progress: c.Progress}
	run, err := recovery.killAndStart(ctx, e)
	r.Checks.add(run.checks)
	if err != nil {
		return run, err
	}
	return run, c.countPending(ctx, e, nc, scaleRecurring, r)
}
