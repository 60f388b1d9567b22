package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/bench"
)

func newBenchIdleCommand(a *app) *cobra.Command {
	var c bench.IdleConfig
	var data string
	cmd := ownFlags(&cobra.Command{
		Use:   "idle",
		Short: "CPU and memory of pending jobs while nothing is due",
		Example: `  carillon bench idle
  carillon bench idle --jobs 100000 --kind one_shots --settle 0.5s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			c.Service = bench.Service{Data: data, Command: []string{exe, "serve"}}
			c.Progress = a.steps()
			if err := c.Validate(); err != nil {
				return usageError{err}
			}
			return a.tell(bench.RunIdle(cmd.Context(), c))
		},
	})
	f := cmd.Flags()
	f.IntVar(&c.Jobs, "jobs", 1_000_000, "jobs pending")
	f.StringVar(&c.Kind, "kind", bench.IdleIntervals, "intervals, cron or one_shots")
	f.DurationVar(&c.Duration, "duration", 30*time.Second, "how long CPU is measured")
	f.DurationVar(&c.Settle, "settle", 250*time.Second, "how long the engine's memory must not fall any more; Go collects an idle process every 2m")
	f.IntVar(&c.PayloadBytes, "payload", 200, "bytes of each payload")
	f.StringVar(&data, "data", "", "directory to make the engine's data directory in (default the system's for temporary files)")
	return cmd
}
