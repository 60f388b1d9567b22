package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/bench"
)

func newBenchBurstCommand(a *app) *cobra.Command {
	var c bench.BurstConfig
	var data string
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
			if c.Service, err = a.service(data); err != nil {
				return err
			}
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			c.WorkerCommand = append([]string{exe, "bench", "worker"}, append(a.childFlags(cmd), "--server")...)
			c.Progress = a.steps()
			if err := c.Validate(); err != nil {
				return usageError{err}
			}
			return a.tell(bench.RunBurst(cmd.Context(), c))
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Jobs, "jobs", 1_000_000, "jobs due in one millisecond")
	f.IntVar(&c.SideRate, "side", 500, "triggers a second of unrelated jobs, of high and of normal priority each")
	f.IntVar(&c.PayloadBytes, "payload", 200, "bytes of each payload")
	f.IntVar(&c.Partitions, "partitions", 0, "partitions of the engine that is started (default its own)")
	f.BoolVar(&c.PersistAsync, "persist-async", false, "output streams, and a ceiling, that acknowledge before they write")
	f.IntVar(&c.Rounds, "rounds", 2, "rounds of the ceiling before the burst, and again after it")
	f.StringVar(&data, "data", "", "directory to make the engine's data directory in (default the system's for temporary files)")
	return cmd
}
