package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/bench"
)

func newBenchIdleCommand(a *app) *cobra.Command {
	var c bench.IdleConfig
	cmd := ownFlags(&cobra.Command{
		Use:   "idle",
		Short: "CPU and memory of pending jobs while nothing is due",
		Example: `  carillon bench idle
  carillon bench idle --ahead 12h
  carillon bench idle --jobs 100000 --kind one_shots --settle 0.5s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Progress = a.steps()
			return measure(a, cmd, c, bench.RunIdle)
		},
	})
	f := cmd.Flags()
	f.IntVar(&c.Jobs, "jobs", 1_000_000, "jobs pending")
	f.StringVar(&c.Kind, "kind", bench.IdleIntervals, "intervals, cron or one_shots")
	f.DurationVar(&c.Ahead, "ahead", 20*time.Minute, "when the first job is due, the last half as far again; beyond half an hour they leave memory")
	f.DurationVar(&c.Duration, "duration", 30*time.Second, "how long CPU is measured")
	f.DurationVar(&c.Settle, "settle", 250*time.Second, "how long the engine's memory must not have fallen before CPU is measured; Go collects an idle process every 2m")
	payloadFlag(f, &c.PayloadBytes)
	dataFlag(f, &c.Service.Data)
	return cmd
}
