package main

import (
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/bench"
)

func newBenchScaleCommand(a *app) *cobra.Command {
	var c bench.ScaleConfig
	cmd := ownFlags(&cobra.Command{
		Use:   "scale",
		Short: "What a great many pending jobs do to memory, disk, lateness and restart",
		Long: `What a great many pending jobs do to memory, disk, lateness and restart.

They are one-shots due over a year. A run asks for 700 bytes of free disk for each, 2,100 with --save,
and 4 GiB beside; some 400 stay while it runs. At the end come pairs of midnights: a million
more jobs that are due within a minute, first in memory, then on disk.`,
		Example: `  carillon bench scale
  carillon bench scale --jobs 10000000 --save
  carillon bench scale --jobs 100000000 --data /mnt/large`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := within(cmd, "midnight", 1, math.MaxInt64, "none"); err != nil {
				return err
			}
			c.Progress = a.steps()
			return measure(a, cmd, c, bench.RunScale)
		},
	})
	f := cmd.Flags()
	f.IntVar(&c.Jobs, "jobs", 1_000_000, "jobs pending")
	f.BoolVar(&c.Save, "save", false, "measure lateness while a snapshot is saved, too, and restore that")
	f.IntVar(&c.Midnight, "midnight", 0, "more jobs that are due within a minute (default as many as --jobs, 1,000,000 at most; -1 for none)")
	f.IntVar(&c.Rate, "rate", 5000, "triggers a second of other jobs, while lateness is measured")
	f.DurationVar(&c.Duration, "duration", 30*time.Second, "length of each measurement")
	payloadFlag(f, &c.PayloadBytes)
	dataFlag(f, &c.Service.Data)
	return cmd
}
