package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

func newSnapshotRestoreCommand(a *app) *cobra.Command {
	var f archiveFlags
	var id, data, log, toTime string
	c := &cobra.Command{
		Use:   "restore [DIR]",
		Short: "Make a data directory of a snapshot",
		Long: `Make a new data directory with all jobs of a snapshot, the newest unless --id names one. 'carillon serve' on it goes on
with them: what was due since falls under each job's misfire policy, and what fired since the snapshot fires again, with
the same trigger ids. The original must not fire any more.

With --to-time they are as they were then: the newest snapshot from before, and what the log in the data directory of
the service says since, as far as 'carillon serve --keep-log' kept it. The service must be stopped; its directory stays
as it is. What had fired by then does not fire again.

Every byte is checked before it counts. The directory must be empty or absent; one that is interrupted leaves it so.`,
		Example: `  carillon snapshot restore /backup/carillon --data /var/lib/carillon
  carillon snapshot restore /backup/carillon --id 20270115T080000.123Z-2f8a61c09d3b4e57 --data ./yesterday
  carillon snapshot restore --bucket carillon-snapshots --data /var/lib/carillon
  carillon snapshot restore /backup/carillon --to-time 2027-01-15T08:59:00Z --log /var/lib/carillon --data ./before`,
		RunE: func(c *cobra.Command, args []string) error {
			if data == "" {
				return usagef("--data is required: the new data directory")
			}
			at, err := timeFlag(toTime, log)
			if err != nil {
				return err
			}
			return f.use(c.Context(), a, args, func(t archive.Target) error {
				began := time.Now()
				bar := a.newBlocksProgress("restore")
				o := node.RestoreOptions{Progress: bar.show}
				var m *archive.Manifest
				if at.IsZero() {
					m, err = node.Restore(c.Context(), t, id, data, o)
				} else {
					o.Replayed = bar.replayed
					m, err = node.RestoreToTime(c.Context(), t, id, data, at, log, o)
				}
				if endErr := bar.end(); err == nil {
					err = endErr
				}
				if err != nil {
					return err
				}
				return a.showRestored(t, m, data, time.Since(began))
			})
		},
	}
	f.flags(c)
	c.Flags().StringVar(&id, "id", "", "the `snapshot` (default the newest, or the newest before --to-time)")
	c.Flags().StringVar(&data, "data", "", "the new data `directory`, empty or absent")
	c.Flags().StringVar(&toTime, "to-time", "", "have all as it was at this `time`, RFC 3339, with --log")
	c.Flags().StringVar(&log, "log", "", "data `directory` of the stopped service, for the log since the snapshot")
	return c
}

// timeFlag reads --to-time; the zero time where it is not given.
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
	Rows       uint64  `json:"rows"`
	Elapsed    float64 `json:"elapsed_s"`
}

func (a *app) showRestored(t archive.Target, m *archive.Manifest, data string, took time.Duration) error {
	r := restoredReport{m.ID, t.String(), data, len(m.Partitions), m.Totals().Pairs, took.Seconds()}
	if a.json {
		return a.marshal(r)
	}
	serve := "carillon serve --data " + data
	if m.Prefix != "carillon" {
		serve += " --prefix " + m.Prefix
	}
	return a.line("restored %s: %d rows of %d partitions in %s (%s); go on with: %s", r.ID, r.Rows, r.Partitions,
		fmt.Sprintf("%.1f s", r.Elapsed), rate(r.Rows, r.Elapsed), serve)
}
