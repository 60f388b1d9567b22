package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/bench"
)

func newBenchSoakCommand(a *app) *cobra.Command {
	var c bench.SoakConfig
	var data, natsURL string
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Mixed load for hours, with every trigger checked, and memory and disk over time",
		Long: `Mixed load for hours, with every trigger checked, and memory and disk over time. Each round prints a line
on standard error. A run that is interrupted ends with the figures so far.`,
		Example: `  carillon bench soak
  carillon bench soak --duration 12h --rate 5000 --kill-every 10m --json > soak.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if c.Service, err = a.serviceWithoutFiles(cmd, data, natsURL); err != nil {
				return err
			}
			c.Report = func(r bench.SoakRound) { fmt.Fprintln(a.stderr, r) }
			return measure(a, cmd, c, bench.RunSoak)
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Rate, "rate", 1000, "triggers a second, half of them of recurring jobs")
	f.DurationVar(&c.Duration, "duration", time.Hour, "how long, in whole rounds")
	f.DurationVar(&c.Round, "round", time.Minute, "length of a round, which is checked and printed as one, in whole seconds")
	f.DurationVar(&c.KillEvery, "kill-every", 0, "how often the engine is killed with -9 and started again (default never)")
	payloadFlag(f, &c.PayloadBytes)
	handlersFlag(f, &c.Concurrency)
	dataFlag(f, &data)
	natsFlag(f, &natsURL)
	return cmd
}
