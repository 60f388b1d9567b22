package main

import (
	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/bench"
)

func newBenchRecoveryCommand(a *app) *cobra.Command {
	var c bench.RecoveryConfig
	cmd := ownFlags(&cobra.Command{
		Use:   "recovery",
		Short: "How soon triggers come again after kill -9",
		Example: `  carillon bench recovery
  carillon bench recovery --jobs 1000000 --fill=false`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Progress = a.steps()
			return measure(a, cmd, c, bench.RunRecovery)
		},
	})
	f := cmd.Flags()
	f.IntVar(&c.Jobs, "jobs", 100_000, "jobs present")
	f.IntVar(&c.Rate, "rate", 1000, "triggers a second that the jobs make")
	f.IntVar(&c.Kills, "kills", 3, "how often the engine is killed")
	f.BoolVar(&c.Fill, "fill", true, "fill the output streams to their retention and the log as far as it goes, first")
	payloadFlag(f, &c.PayloadBytes)
	dataFlag(f, &c.Service.Data)
	return cmd
}
