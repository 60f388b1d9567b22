package main

import (
	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/bench"
)

func newBenchBurstCommand(a *app) *cobra.Command {
	var c bench.BurstConfig
	var data, natsURL string
	cmd := &cobra.Command{
		Use:   "burst",
		Short: "How fast jobs drain that are all due in one millisecond, and what that does to others",
		Long: `How fast jobs drain that are all due in one millisecond, beside the rate of bare messages published in
chains, and how late unrelated jobs of high and of normal priority are that come due meanwhile, in the hands
of workers in other processes.

With --server, the streams must hold all triggers (serve --out-max-bytes).`,
		Example: `  carillon bench burst
  carillon bench burst --jobs 333000 --persist-async`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := notZero(cmd, "partitions"); err != nil {
				return err
			}
			if c.Service, err = a.serviceWithoutFiles(cmd, data, natsURL); err != nil {
				return err
			}
			c.Progress = a.steps()
			return measure(a, cmd, c, bench.RunBurst)
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Jobs, "jobs", 1_000_000, "jobs due in one millisecond")
	f.IntVar(&c.SideRate, "side", 500, "triggers a second of unrelated jobs, of high and of normal priority each")
	payloadFlag(f, &c.PayloadBytes)
	outputFlags(f, &c.Partitions, &c.PersistAsync)
	f.IntVar(&c.Rounds, "rounds", 2, "rounds of the ceiling before the burst, and again after it")
	dataFlag(f, &data)
	natsFlag(f, &natsURL)
	return cmd
}
