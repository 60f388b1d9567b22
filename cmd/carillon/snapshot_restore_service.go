package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

// What to do about jobs that the service has already.
const (
	existingSkip    = "skip"
	existingReplace = "replace"
	existingFail    = "fail"
)

// putBack is a restore into a running service, and its outcome as JSON.
type putBack struct {
	ID        string  `json:"id"`
	Archive   string  `json:"archive"`
	Restored  uint64  `json:"restored"`
	WereThere uint64  `json:"were_there"`
	Failed    int     `json:"failed"`
	Elapsed   float64 `json:"elapsed_s"`

	jobs    *node.SnapshotJobs
	first   error // the first error of a job
	offline bool  // the service does not answer any more
}

// intoService restores the jobs into the service to which the command is connected.
func (r *restorer) intoService(ctx context.Context, t archive.Target) error {
	nc, client, err := r.app.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	p := &putBack{Archive: t.String()}
	if p.jobs, err = node.OpenJobs(ctx, t, r.id); err != nil {
		return err
	}
	p.ID = p.jobs.Manifest.ID
	if err := r.verify(ctx, t, p.ID); err != nil {
		return err
	}
	if r.existing == existingFail {
		if err := r.refuseExisting(ctx, client, p.jobs, existingBatch); err != nil {
			return err
		}
	}
	if err := r.putBack(ctx, client, p); err != nil {
		return err
	}
	if r.app.json {
		err = r.app.marshal(p)
	} else {
		err = r.app.line("restored %s: %s in %.1f s (%s), %d there already, %d failed", p.ID, count(p.Restored, "job"), p.Elapsed,
			rate(p.Restored, "jobs", p.Elapsed), p.WereThere, p.Failed)
	}
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted; %s goes on", r.again(p.ID))
	case p.first != nil:
		return fmt.Errorf("%s failed, first %w; %s goes on", count(p.Failed, "job"), p.first, r.again(p.ID))
	}
	return nil
}

// again says how to continue a restore that did not come to its end. It names the snapshot, because the newest one may be another by
// then, of a service with only some of the jobs; and it must allow for the jobs that were put already.
func (r *restorer) again(id string) string {
	with := ""
	if r.id == "" {
		with += " --id " + id
	}
	if r.existing == existingFail {
		with += " --existing " + existingSkip
	}
	if with == "" {
		return "the same command again"
	}
	return "the same command with" + with
}

// verify reads all of a snapshot before its first job is put, because the puts cannot be undone.
func (r *restorer) verify(ctx context.Context, t archive.Target, id string) error {
	bar := r.app.newBlocksProgress("verify")
	v, err := archive.Verify(ctx, t, []string{id}, bar.show)
	bar.end()
	if err == nil && len(v.Problems) > 0 {
		err = fmt.Errorf("nothing was restored: %w", v.Problems[0].Err)
	}
	return err
}

// putBack sends all jobs, until the service does not answer.
func (r *restorer) putBack(ctx context.Context, client *carillon.Client, p *putBack) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	total := int64(p.jobs.Jobs)
	if r.options.Only != (carillon.Selection{}) {
		total = -1
	}
	bar := r.app.newProgress("restore", total, false)
	var readErr error
	jobs := func(yield func(carillon.ImportJob) bool) {
		readErr = p.jobs.All(ctx, r.options.Only, func(j carillon.ImportJob) error {
			j.State.Missed, j.IfAbsent = r.options.Missed, r.existing != existingReplace
			if !yield(j) {
				return context.Canceled
			}
			return nil
		})
	}
	err := client.Restore(ctx, jobs, func(done carillon.Restored) {
		p.take(done)
		if p.offline {
			cancel()
		}
		bar.advance(done.Jobs, done.Jobs)
	})
	p.Elapsed = bar.end().Seconds()
	if ctx.Err() != nil { // the service is gone, or the command was interrupted: both are reported with the counts
		return nil
	}
	return errors.Join(err, readErr)
}

// take counts the outcomes of some jobs.
func (p *putBack) take(done carillon.Restored) {
	p.Restored += done.Imported
	p.WereThere += done.Unchanged
	for _, f := range done.Failed {
		if errors.Is(f.Err, context.Canceled) {
			continue // it was not sent, or its outcome is unknown: the next restore will show
		}
		p.Failed++
		p.offline = p.offline || errors.Is(f.Err, &carillon.Error{Code: carillon.CodeUnavailable})
		if p.first == nil {
			p.first = fmt.Errorf("%s: %w", f.ID, f.Err)
		}
	}
}

// existingBatch is how many ids are looked for in one walk through the service's jobs. They take about 100 MB of memory.
const existingBatch = 1 << 20

// refuseExisting refuses the restore, before anything is put, if the service has any of the jobs. Only a batch of the ids that would
// be restored is in memory at a time, however many jobs the service has.
func (r *restorer) refuseExisting(ctx context.Context, client *carillon.Client, jobs *node.SnapshotJobs, batch int) error {
	wanted := make(map[string]bool)
	found, example := 0, ""
	look := func() error {
		list := carillon.ListRequest{Selection: carillon.Selection{Prefix: r.options.Only.Prefix}, Limit: carillon.MaxListLimit}
		for j, err := range client.List(ctx, list) {
			if err != nil {
				return err
			}
			if wanted[j.ID] {
				found++
				example = cmp.Or(example, j.ID)
			}
		}
		clear(wanted)
		return nil
	}
	err := jobs.All(ctx, r.options.Only, func(j carillon.ImportJob) error {
		wanted[j.Job.ID] = true
		if len(wanted) < batch {
			return nil
		}
		return look()
	})
	if err == nil && len(wanted) > 0 {
		err = look()
	}
	if err == nil && found > 0 {
		err = fmt.Errorf("the service has %d of the jobs already, such as %s; nothing was restored", found, example)
	}
	return err
}
