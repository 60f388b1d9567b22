package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/bench"
)

// newBenchWorkerCommand is the worker's process, which bench lateness and other workloads start.
func newBenchWorkerCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    "worker",
		Short:  "The worker of bench lateness",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			nc, _, err := a.connect(cmd.Context(), append(bench.Reconnect(), nats.Name("carillon bench worker"))...)
			if err != nil {
				return err
			}
			defer nc.Close()
			err = bench.Work(cmd.Context(), nc, a.connection.names(), a.stdin, a.stdout)
			if cause := context.Cause(cmd.Context()); cause != nil {
				return cmp.Or(err, fmt.Errorf("stopped: %w", cause))
			}
			return err
		},
	}
}
