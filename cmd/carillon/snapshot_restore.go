package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

func newSnapshotRestoreCommand(a *app) *cobra.Command {
	r := restorer{app: a}
	c := &cobra.Command{
		Use:   "restore [DIR]",
		Short: "Make a data directory from a snapshot, or put its jobs into a running service",
		Long: `Make a new data directory with all jobs of a snapshot, the newest unless --id names one. 'carillon serve' on it goes on
with them: what fired since the snapshot is due again, with the same trigger ids, and falls under each job's misfire
policy, or under --missed up to the first start. The original must not fire any more.

With --to-time the jobs are as they were then: the newest snapshot from before, and what the log in the service's data
directory (--log) says since, as far as 'carillon serve --keep-log' kept it. The service must be stopped; its directory stays
as it is. What had fired by then does not fire again.

With --partitions the new service has another number of partitions. With --prefix, --label and --owner only the jobs
are restored that all of these apply to.

Every byte is checked before it counts. The directory must be empty or absent; a restore that is interrupted leaves it so.

Without --data the jobs are put into the service that --server names, while it fires: with their versions, counts and
anchors, so that later fires are those they would have had. Jobs that it has already stay as they are; with --existing
replace they go back, but no fire is repeated and one that is paused by now stays paused, and with fail nothing is
restored if there are any. It may be repeated as a whole, and so goes on where it was interrupted.

Here --prefix is the beginning of an id. The service's own goes before the command, or into
$CARILLON_PREFIX: carillon --prefix acme snapshot restore …`,
		Example: `  carillon snapshot restore /backup/carillon --data /var/lib/carillon
  carillon snapshot restore /backup/carillon --data /var/lib/carillon --partitions 32
  carillon snapshot restore /backup/carillon --id 20270115T080000.123Z-2f8a61c09d3b4e57 --data ./yesterday
  carillon snapshot restore /backup/carillon --data /var/lib/carillon --missed skip
  carillon snapshot restore /backup/carillon --data ./billing --label team=billing
  carillon snapshot restore --bucket carillon-snapshots --data /var/lib/carillon
  carillon -s nats://acme:4222 snapshot restore /backup/carillon --prefix invoice- --missed fire_once
  carillon snapshot restore /backup/carillon --to-time 2027-01-15T08:59:00Z --log /var/lib/carillon --data ./before`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := r.check(c); err != nil {
				return err
			}
			return r.archive.use(c.Context(), a, args, func(t archive.Target) error {
				if r.data == "" {
					return r.intoService(c.Context(), t)
				}
				return r.toData(c.Context(), t)
			})
		},
	}
	r.archive.flags(c)
	f := c.Flags()
	f.Var((*nonEmpty)(&r.id), "id", "the `snapshot` (default the newest, or the newest before --to-time)")
	f.Var((*nonEmpty)(&r.data), "data", "the new data `directory`, empty or absent")
	f.IntVar(&r.options.Partitions, "partitions", 0, "the `number` of partitions (default as many as the snapshot has)")
	f.Var((*nonEmpty)(&r.toTime), "to-time", "have all as it was at this `time`, RFC 3339, with --log")
	f.Var((*nonEmpty)(&r.log), "log", "data `directory` of the stopped service, for the log since the snapshot")
	f.Var((*nonEmpty)(&r.missed), "missed", "`policy` for fires due since the snapshot, whatever the jobs say: fire_once, fire_all or skip")
	f.StringVar(&r.existing, "existing", existingSkip, "`policy` for jobs that the service has already: skip, replace or fail")
	selectionFlags(c, &r.options.Only)
	return c
}

// restorer is one 'snapshot restore'.
type restorer struct {
	app      *app
	archive  archiveFlags
	id, data string
	missed   string
	existing string
	options  node.RestoreOptions

	toTime, log string
	at          time.Time // toTime, parsed
}

func (r *restorer) check(c *cobra.Command) (err error) {
	if r.at, err = timeFlag(r.toTime, r.log); err != nil {
		return err
	}
	if err := within(c, "partitions", 1, node.MaxPartitions, ""); err != nil {
		return err
	}
	if r.data != "" && r.archive.bucket == "" {
		if err := noConnection(c); err != nil {
			return err
		}
	}
	switch n := r.options.Partitions; {
	case r.data == "" && !c.Flags().Changed("server"):
		return usagef("give --data, a new data directory, or --server, a running service")
	case r.data != "" && c.Flags().Changed("existing"):
		return usagef("--existing goes with --server")
	case r.data == "" && (n != 0 || r.toTime != ""):
		return usagef("--partitions and --to-time go with --data")
	case r.existing != existingSkip && r.existing != existingReplace && r.existing != existingFail:
		return usagef("--existing is %q, must be skip, replace or fail", r.existing)
	case r.toTime != "" && (n != 0 || r.options.Only != (carillon.Selection{})):
		return usagef("--to-time restores all jobs into as many partitions as there were")
	case r.missed != "":
		policy, ok := carillon.ParseMisfire(r.missed)
		if !ok {
			return usagef("--missed is %q, must be fire_once, fire_all or skip", r.missed)
		}
		r.options.Missed = &policy
	}
	return checkSelection(r.options.Only)
}

// timeFlag reads --to-time; it returns the zero time if that is not given.
func timeFlag(toTime, log string) (at time.Time, err error) {
	switch {
	case toTime == "" && log == "":
		return at, nil
	case toTime == "" || log == "":
		return at, usagef("--to-time and --log go together")
	}
	if at, err = time.Parse(time.RFC3339, toTime); err != nil {
		return at, usagef("--to-time is %q, expected a time such as 2027-01-15T08:59:00Z", toTime)
	}
	return at, nil
}

// restoredReport is a restore as JSON.
type restoredReport struct {
	ID         string  `json:"id"`
	Archive    string  `json:"archive"`
	Data       string  `json:"data"`
	Partitions int     `json:"partitions"`
	Jobs       int     `json:"jobs"`
	Elapsed    float64 `json:"elapsed_s"`
}

// toData restores into a data directory, which it makes.
func (r *restorer) toData(ctx context.Context, t archive.Target) error {
	began := time.Now()
	bar := r.app.newBlocksProgress("restore")
	r.options.Progress = bar.show
	var done *node.Restored
	var err error
	if r.toTime == "" {
		done, err = node.Restore(ctx, t, r.id, r.data, r.options)
	} else {
		r.options.Replayed = bar.replayed
		done, err = node.RestoreToTime(ctx, t, r.id, r.data, r.at, r.log, r.options)
	}
	bar.end()
	if err != nil {
		return err
	}
	report := restoredReport{done.Manifest.ID, t.String(), r.data, done.Partitions, done.Jobs, time.Since(began).Seconds()}
	if r.app.json {
		return r.app.marshal(report)
	}
	serve := "carillon serve --data " + r.data
	if prefix := done.Manifest.Prefix; prefix != carillon.DefaultNames().Prefix {
		serve += " --prefix " + prefix
	}
	return r.app.line("restored %s: %s in %s in %.1f s (%s); go on with: %s", report.ID, count(report.Jobs, "job"),
		count(report.Partitions, "partition"), report.Elapsed, rate(uint64(report.Jobs), "jobs", report.Elapsed), serve)
}
