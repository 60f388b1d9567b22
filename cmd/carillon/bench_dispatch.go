package main

import (
	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/bench"
)

func newBenchDispatchCommand(a *app) *cobra.Command {
	var c bench.DispatchConfig
	var data, natsURL string
	cmd := &cobra.Command{
		Use:   "dispatch",
		Short: "How many triggers a second are stored when more are due than can be published",
		Long: `How many triggers a second are stored when more are due than can be published: one-shots, and cron of six
fields. In turns with the engine: bare messages of the same payload and headers, published in chains, in
chains with the ids that the engine adds, and with PublishAsync.

With --server, the streams must hold a turn's triggers (serve --out-max-bytes).`,
		Example: `  carillon bench dispatch
  carillon bench dispatch --triggers 200000 --pairs 1
  carillon bench dispatch --persist-async --json > dispatch.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := notZero(cmd, "partitions", "cron-rate"); err != nil {
				return err
			}
			if c.Service, err = a.serviceWithoutFiles(cmd, data, natsURL); err != nil {
				return err
			}
			c.Progress = a.steps()
			return measure(a, cmd, c, bench.RunDispatch)
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Triggers, "triggers", 1_000_000, "triggers of each kind of jobs in a pair")
	f.IntVar(&c.CronPerS, "cron-rate", 0, "cron jobs due each second (default 500000, or all triggers)")
	f.IntVar(&c.Pairs, "pairs", 5, "turns of the engine and of the ceiling; each figure is their median")
	payloadFlag(f, &c.PayloadBytes)
	outputFlags(f, &c.Partitions, &c.PersistAsync)
	dataFlag(f, &data)
	natsFlag(f, &natsURL)
	return cmd
}
