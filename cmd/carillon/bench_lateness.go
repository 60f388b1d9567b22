package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/bench"
)

func newBenchLatenessCommand(a *app) *cobra.Command {
	var c bench.LatenessConfig
	var data, natsURL, mix string
	cmd := &cobra.Command{
		Use:   "lateness",
		Short: "How late triggers reach a worker, at a fixed rate for a time",
		Example: `  carillon bench lateness
  carillon bench lateness --rate 20000 --duration 30s --mix intervals=2,cron=1,one_shots=1
  carillon bench lateness --server nats://127.0.0.1:4222 --json > lateness.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if c.Mix, err = bench.ParseMix(mix); err != nil {
				return usagef("--mix: %w", err)
			}
			if c.Service, err = a.serviceWithoutFiles(cmd, data, natsURL); err != nil {
				return err
			}
			c.Progress = a.steps()
			return measure(a, cmd, c, bench.RunLateness)
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Rate, "rate", 5000, "triggers a second")
	f.DurationVar(&c.Duration, "duration", time.Minute, "how long, in whole seconds")
	payloadFlag(f, &c.PayloadBytes)
	f.StringVar(&mix, "mix", "intervals", "kinds of jobs and their weights: intervals, cron, one_shots")
	handlersFlag(f, &c.Concurrency)
	f.Var((*nonEmpty)(&c.Raw), "raw", "`file` for every trigger as CSV")
	dataFlag(f, &data)
	natsFlag(f, &natsURL)
	return cmd
}
