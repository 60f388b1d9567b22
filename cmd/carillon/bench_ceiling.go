package main

import (
	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/bench"
)

func newBenchCeilingCommand(a *app) *cobra.Command {
	var c bench.CeilingConfig
	var data, natsURL string
	cmd := &cobra.Command{
		Use:   "ceiling",
		Short: "What the transport, the disk and the timers of this machine allow",
		Example: `  carillon bench ceiling
  carillon bench ceiling --messages 100000 --rounds 1 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if c.Service, err = a.service(cmd, data, natsURL); err != nil {
				return err
			}
			c.Progress = a.steps()
			return measure(a, cmd, c, bench.RunCeiling)
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Messages, "messages", 500_000, "messages of each measurement of a rate")
	f.IntVar(&c.Streams, "streams", 8, "streams that are published to at once")
	payloadFlag(f, &c.PayloadBytes)
	f.IntVar(&c.Rounds, "rounds", 3, "rounds; each figure is their median")
	dataFlag(f, &data)
	natsFlag(f, &natsURL)
	return cmd
}
