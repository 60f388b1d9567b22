package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/bench"
)

func newBenchCommandsCommand(a *app) *cobra.Command {
	var c bench.CommandsConfig
	var data, natsURL string
	cmd := &cobra.Command{
		Use:   "commands",
		Short: "Durable creates, updates and deletes a second, and their latency",
		Long: `Durable creates, updates and deletes a second, and their latency: one client with one command at a time,
many clients as fast as answers come, the same at a fixed rate, and an import. A command counts when its
reply is there, and every job is read back at the end.`,
		Example: `  carillon bench commands
  carillon bench commands --clients 200 --offered 10000 --duration 1m
  carillon bench commands --jobs 20000 --imports 20000 --json > commands.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if c.Service, err = a.service(cmd, data, natsURL); err != nil {
				return err
			}
			if c.ClientsCommand, err = a.childCommand(cmd, "bench", "clients"); err != nil {
				return err
			}
			if c.ImportCommand, err = a.childCommand(cmd, "job", "import", "--json"); err != nil {
				return err
			}
			c.Progress = a.steps()
			return measure(a, cmd, c, bench.RunCommands)
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Jobs, "jobs", 300_000, "jobs that many clients create and update; half of them they delete")
	f.IntVar(&c.Imports, "imports", 200_000, "jobs to import")
	f.IntVar(&c.Clients, "clients", 64, "connections of the many clients")
	f.IntVar(&c.Window, "window", 8, "commands that each of the many clients has under way")
	f.IntVar(&c.Offered, "offered", 30_000, "creates a second at which the latency is measured")
	f.DurationVar(&c.Duration, "duration", 10*time.Second, "how long creates are offered at that rate (--offered)")
	f.IntVar(&c.Rounds, "rounds", 3, "rounds of the single client")
	payloadFlag(f, &c.PayloadBytes)
	dataFlag(f, &data)
	natsFlag(f, &natsURL)
	return cmd
}

// newBenchClientsCommand is the clients' process, which bench commands starts.
func newBenchClientsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    "clients",
		Short:  "The clients of bench commands",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.connection.resolve(); err != nil {
				return err
			}
			connect := func() (*nats.Conn, error) { return a.dial(a.connection.server) }
			err := bench.Clients(cmd.Context(), connect, a.connection.names(), a.stdin, a.stdout)
			if cause := context.Cause(cmd.Context()); cause != nil {
				return cmp.Or(err, fmt.Errorf("stopped: %w", cause))
			}
			return err
		},
	}
}
