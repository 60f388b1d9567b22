package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/bench"
)

func newBenchSoakCommand(a *app) *cobra.Command {
	var c bench.SoakConfig
	var data string
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Mixed load for hours, with every trigger checked, and memory and disk over time",
		Long: `Mixed load for hours, with every trigger checked, and memory and disk over time. Each round prints a line
on standard error. A run that is interrupted ends with the figures so far.`,
		Example: `  carillon bench soak
  carillon bench soak --duration 12h --rate 5000 --kill-every 10m --json > soak.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if c.Service, err = a.service(data); err != nil {
				return err
			}
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			c.WorkerCommand = append([]string{exe, "bench", "worker"}, append(a.childFlags(cmd), "--server")...)
			c.Report = func(r bench.SoakRound) { fmt.Fprintln(a.stderr, r) }
			if err := c.Validate(); err != nil {
				return usageError{err}
			}
			return a.tell(bench.RunSoak(cmd.Context(), c))
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Rate, "rate", 1000, "triggers a second, half of them of recurring jobs")
	f.DurationVar(&c.Duration, "duration", time.Hour, "how long, in whole rounds")
	f.DurationVar(&c.Round, "round", time.Minute, "what is judged and told at once, in whole seconds")
	f.DurationVar(&c.KillEvery, "kill-every", 0, "kill -9 and start the engine so often (default never)")
	f.IntVar(&c.PayloadBytes, "payload", 200, "bytes of each payload")
	f.IntVar(&c.Concurrency, "concurrency", 64, "handlers of the worker")
	f.StringVar(&data, "data", "", "directory to make the engine's data directory in (default the system's for temporary files)")
	return cmd
}
