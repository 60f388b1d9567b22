package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

// savePairs is how often lateness is measured without a save and during one, in turns: the tail of lateness is a few single
// moments, most of which are caused by the disk or by other work.
const savePairs = 3

// saving is what was measured of snapshots that are saved while jobs fire.
type saving struct {
	archive string // the last one's directory
	without []Result
	with    []Result
	saves   int           // how many were saved to their end, one after the other until lateness was measured
	took    time.Duration // how long the first one took
	verify  time.Duration // how long it took to verify the last one
	restore time.Duration // how long it took to restore the last one into a new data directory
}

// save measures lateness in pairs: without a save, and while a snapshot of all jobs is saved. without is the first result without.
func (c *ScaleConfig) save(ctx context.Context, e *engine, nc *nats.Conn, without Result, r *Result) (s saving, err error) {
	s.without = []Result{without}
	for pair := range savePairs {
		if pair > 0 {
			if without, err = c.runLateness(ctx, e, r); err != nil {
				return s, err
			}
			s.without = append(s.without, without)
		}
		if err := c.measureWhileSaving(ctx, e, nc, &s, r); err != nil {
			return s, err
		}
	}
	return s, nil
}

// measureWhileSaving measures lateness while a snapshot is saved, and waits for the end of the save. If the save ends first, another one
// follows, into an archive of its own, so that it is as large and nothing is removed meanwhile.
func (c *ScaleConfig) measureWhileSaving(ctx context.Context, e *engine, nc *nats.Conn, s *saving, r *Result) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	measured, done := make(chan struct{}), make(chan error, 1)
	l := c.lateness(e)
	l.before = func(context.Context) error {
		client := carillon.Connect(nc, carillon.WithNames(e.Names))
		go func() { done <- s.saveRepeatedly(ctx, client, e.dir, measured) }()
		return nil
	}
	part, err := runPart(ctx, l, r)
	if err != nil {
		return err
	}
	s.with = append(s.with, part)
	close(measured)
	c.Progress("waiting for the snapshot", 0, 1)
	if err := <-done; err != nil {
		return fmt.Errorf("bench: save: %w", err)
	}
	return nil
}

// saveRepeatedly saves one snapshot after the other until lateness has been measured.
func (s *saving) saveRepeatedly(ctx context.Context, client *carillon.Client, dir string, measured <-chan struct{}) error {
	for {
		s.archive = filepath.Join(dir, "archives", strconv.Itoa(s.saves))
		began := time.Now()
		reply, err := client.SaveSnapshot(ctx, carillon.SnapshotRequest{Dir: s.archive}, nil)
		if err != nil {
			return err
		}
		if reply.Rows == 0 {
			return errors.New("the snapshot is empty")
		}
		if s.saves++; s.saves == 1 {
			s.took = time.Since(began)
		}
		select {
		case <-measured:
			return nil
		default:
		}
	}
}

// restore verifies the snapshot, restores it into a data directory as 'carillon snapshot restore' does, and starts an
// engine there to check that it has the jobs. The engine that was saved keeps running.
func (c *ScaleConfig) restore(ctx context.Context, e *engine, s *saving, r *Result) (err error) {
	target := archive.OpenDir(nil, s.archive)
	step := func(name string) func(archive.Progress) {
		return func(p archive.Progress) { c.Progress(name, int(p.Done>>20), int(p.Total>>20)) }
	}
	began := time.Now()
	found, err := archive.Verify(ctx, target, nil, step("verifying the snapshot"))
	if err != nil {
		return fmt.Errorf("bench: verify: %w", err)
	}
	if len(found.Problems) > 0 {
		return fmt.Errorf("bench: verify: %w", found.Problems[0].Err)
	}
	s.verify = time.Since(began)

	again := &engine{Service: e.Service, dir: filepath.Join(e.dir, "restored")}
	// Its files are removed with the rest at the end: what comes next must not wait for a disk that frees gigabytes.
	defer func() { err = errors.Join(err, again.close()) }()
	if err := os.Mkdir(again.dir, 0o755); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	began = time.Now()
	restored, err := node.Restore(ctx, target, "", filepath.Join(again.dir, "data"), node.RestoreOptions{Progress: step("restoring it")})
	if err != nil {
		return fmt.Errorf("bench: restore: %w", err)
	}
	s.restore = time.Since(began)
	if err := again.start(ctx, "127.0.0.1:0", nil); err != nil {
		return err
	}
	nc, err := again.Connect(again.url)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer nc.Close()
	// It also has the jobs by which lateness was measured during the save.
	has, err := countJobs(ctx, again, nc)
	if err != nil {
		return err
	}
	r.Checks.Expected += restored.Jobs
	r.Checks.Missing += max(0, restored.Jobs-has.all, c.Jobs-has.pending)
	return nil
}

// jobCounts counts the jobs of all partitions.
type jobCounts struct{ all, pending int }

func countJobs(ctx context.Context, e *engine, nc *nats.Conn) (n jobCounts, err error) {
	status, err := carillon.Connect(nc, carillon.WithNames(e.Names)).Status(ctx)
	if err != nil {
		return n, fmt.Errorf("bench: %w", err)
	}
	for _, p := range status.Partitions {
		n.pending += int(p.Jobs[carillon.StatusScheduled])
		for _, jobs := range p.Jobs {
			n.all += int(jobs)
		}
	}
	return n, nil
}

// countPending checks that all jobs are pending, besides so many others, and adds that to the result's checks.
func (c *ScaleConfig) countPending(ctx context.Context, e *engine, nc *nats.Conn, others int, r *Result) error {
	has, err := countJobs(ctx, e, nc)
	if err != nil {
		return err
	}
	r.Checks.Expected += c.Jobs
	r.Checks.Missing += max(0, c.Jobs+others-has.pending)
	return nil
}

// figures adds what was measured; for lateness, the medians of the pairs.
func (s *saving) figures(to *Figures, jobs int) error {
	rate := func(d time.Duration) float64 { return float64(jobs) / d.Seconds() }
	to.add("saves", float64(s.saves))
	to.add("save_s", s.took.Seconds())
	to.add("save_jobs_per_s", rate(s.took))
	to.add("verify_jobs_per_s", rate(s.verify))
	to.add("restore_s", s.restore.Seconds())
	to.add("restore_jobs_per_s", rate(s.restore))
	for _, q := range []string{"p50", "p99", "p999"} {
		to.add("lateness_"+q+"_without_ms", medianOf(s.without, "received_"+q+"_ms"))
		to.add("lateness_"+q+"_save_ms", medianOf(s.with, "received_"+q+"_ms"))
	}
	var tail, later []float64
	for i := range s.with {
		with, err := decode(s.with[i].Histograms["received_us"])
		if err != nil {
			return err
		}
		without, err := decode(s.without[i].Histograms["received_us"])
		if err != nil {
			return err
		}
		tail = append(tail, s.with[i].Figures.Get("received_p999_ms")-s.without[i].Figures.Get("received_p999_ms"))
		later = append(later, float64(laterByRank(with, without))/1000)
		pair := fmt.Sprintf("save_%d", i+1)
		to.add("lateness_p999_for_"+pair+"_ms", tail[i])
		to.add("lateness_any_for_"+pair+"_ms", later[i])
		// The maxima, and what the disk and the transport did in the same seconds.
		for _, of := range []string{"received", "fsync", "round_trip"} {
			to.add(of+"_max_without_"+pair+"_ms", s.without[i].Figures.Get(of+"_max_ms"))
			to.add(of+"_max_"+pair+"_ms", s.with[i].Figures.Get(of+"_max_ms"))
		}
	}
	to.add("lateness_p999_for_save_ms", median(tail))
	to.add("lateness_any_for_save_ms", median(later))
	return nil
}

// laterByRank says how much later triggers were in the run with a save than in the one without, in µs. It compares the latest
// trigger with the latest, the second latest with the second latest, and so on, and returns the greatest difference. So the
// triggers of both runs can be paired such that none is later by more than this, and not such that all are later by less.
func laterByRank(with, without *hdrhistogram.Histogram) (most int64) {
	a, b := with.Distribution(), without.Distribution()
	most = math.MinInt64
	for len(a) > 0 && len(b) > 0 {
		x, y := &a[len(a)-1], &b[len(b)-1]
		n := min(x.Count, y.Count)
		if n > 0 {
			most = max(most, x.To-y.To)
		}
		if x.Count -= n; x.Count == 0 {
			a = a[:len(a)-1]
		}
		if y.Count -= n; y.Count == 0 {
			b = b[:len(b)-1]
		}
	}
	return most
}

// medianOf is the median of one figure over some runs.
func medianOf(runs []Result, name string) float64 { return median(all(runs, name)) }

// all returns one figure of each of some runs.
func all(runs []Result, name string) (values []float64) {
	for i := range runs {
		values = append(values, runs[i].Figures.Get(name))
	}
	return values
}
