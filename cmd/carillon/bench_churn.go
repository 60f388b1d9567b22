package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/bench"
)

func newBenchChurnCommand(a *app) *cobra.Command {
	var c bench.ChurnConfig
	var data, natsURL string
	cmd := &cobra.Command{
		Use:   "churn",
		Short: "Jobs that are cancelled or moved just before they are due, while others fire",
		Example: `  carillon bench churn
  carillon bench churn --rate 20000 --nearest 5ms --farthest 100ms`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if c.Service, err = a.serviceWithoutFiles(cmd, data, natsURL); err != nil {
				return err
			}
			c.Progress = a.steps()
			return measure(a, cmd, c, bench.RunChurn)
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Rate, "rate", 5000, "jobs due a second; every other one is cancelled or moved")
	f.DurationVar(&c.Duration, "duration", 30*time.Second, "how long, in whole seconds")
	f.DurationVar(&c.Nearest, "nearest", 50*time.Millisecond, "the shortest time between a change and the job's due time")
	f.DurationVar(&c.Farthest, "farthest", 500*time.Millisecond, "the longest time between a change and the job's due time")
	payloadFlag(f, &c.PayloadBytes)
	handlersFlag(f, &c.Concurrency)
	dataFlag(f, &data)
	natsFlag(f, &natsURL)
	return cmd
}
