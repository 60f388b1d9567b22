package main

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/engine/node"
)

func newServeCommand(a *app) *cobra.Command {
	var o node.Options
	var level, format string
	var accept []int
	var memory int
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the engine",
		Long: `Run the engine: with a NATS server inside by default, or on an external NATS. Engines on one external NATS share
the partitions, and take over from each other; each needs a name of its own.

It prints one line on standard output when it is ready to take jobs, and its log on standard error. A
first SIGTERM or SIGINT stops it cleanly; everything it owns is in the data directory.`,
		Example: `  carillon serve
  carillon serve --data /var/lib/carillon --listen 0.0.0.0:4222 --http 0.0.0.0:8080
  carillon serve --nats-config nats.conf
  carillon serve --nats nats://nats-1:4222,nats://nats-2:4222 --creds engine.creds --replicas 3`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.connection.server != "" {
				return usagef("--server is for clients; an engine takes --nats")
			}
			var lv slog.Level
			if err := lv.UnmarshalText([]byte(level)); err != nil {
				return usagef("--log-level: %w", err)
			}
			if format != "text" && format != "json" {
				return usagef("--log-format is %q, must be text or json", format)
			}
			if err := a.connection.resolve(); err != nil {
				return err
			}
			for _, name := range []string{"retention", "completed-max", "checkpoint-every", "checkpoint-records", "memory-jobs"} {
				if f := cmd.Flags().Lookup(name); f.Changed && strings.TrimSuffix(f.Value.String(), "s") == "0" { // to the options 0 is the default
					return usagef("--%s is 0, must be more", name)
				}
			}
			names := a.connection.names()
			o.Prefix, o.Stream, o.NATSCreds = names.Prefix, names.Stream, a.connection.creds
			if o.NATS == "" {
				if o.NATSConfig == "" {
					if cmd.Flags().Changed("creds") {
						return usagef("--creds goes with --nats, or with a --nats-config of operator mode")
					}
					o.NATSCreds = "" // those in the environment are a client's
				}
				// Passed over, they would leave an engine open that seems to ask for a password or a certificate.
				for _, name := range []string{"user", "password", "nkey", "tlscert", "tlskey", "tlsca"} {
					if cmd.Flags().Changed(name) {
						return usagef("--%s goes with --nats; users and TLS of the embedded server are those of --nats-config", name)
					}
				}
			} else {
				options, err := a.connection.options()
				if err != nil {
					return err
				}
				o.NATSOptions = options
			}
			handler := slog.Handler(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: lv}))
			if format == "json" {
				handler = slog.NewJSONHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: lv})
			}
			o.MemoryForJobs = memory << 20
			o.Logger, o.OwnProcess = slog.New(handler), true
			o.AcceptLoss = make(map[int]bool)
			for _, p := range accept {
				o.AcceptLoss[p] = true
			}
			return node.Run(cmd.Context(), o, func(r node.Ready) { _ = a.tellReady(r) }) // an engine goes on unheard
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Data, "data", "carillon-data", "directory of everything the engine owns")
	f.StringVar(&o.Listen, "listen", "127.0.0.1:4222", "address for NATS clients of the embedded server; port 0 chooses one")
	f.StringVar(&o.HTTP, "http", "127.0.0.1:8080", "address of /healthz, /readyz and /metrics; port 0 chooses one, off for none")
	f.BoolVar(&o.Profiles, "pprof", false, "serve Go's profiles at /debug/pprof/ of --http, too: what takes CPU and memory")
	f.IntVar(&o.Partitions, "partitions", 0, "number of partitions, fixed when the streams are made (default 8)")
	f.StringVar(&o.Name, "name", "", "name of this node, one of the service (default the host's)")
	f.StringVar(&o.NATSConfig, "nats-config", "", "nats-server configuration file for the embedded server: TLS, accounts, cluster")
	f.StringVar(&o.NATSAccount, "nats-account", "", "with --nats-config: the account that holds the streams")
	f.StringVar(&o.NATS, "nats", "", "URLs of an external NATS instead of the embedded server")
	f.IntVar(&o.Weight, "weight", 1, "with --nats: this node's share of the partitions, beside those of others")
	f.StringVar(&o.Zone, "zone", "", "with --nats: what fails together with this node, e.g. a rack; owner and standby are in different ones")
	f.StringVar((*string)(&o.Follow), "follow", string(node.FollowAll), "with --nats: which partitions' jobs this node keeps: all, or placed, those that it owns or is a standby of")
	f.IntVar(&o.Standbys, "standbys", 1, "with --nats: who takes a partition over first, how many; -1 for none. Set alike on all nodes")
	f.IntVar(&o.Replicas, "replicas", 1, "with --nats: replicas of the streams, when they are made")
	f.Int64Var(&o.LogMaxBytes, "log-max-bytes", 0, "bound of the log stream, when it is made (default 256 MiB)")
	f.Int64Var(&o.OutMaxBytes, "out-max-bytes", 0, "retention of each output stream in bytes, when it is made")
	f.DurationVar(&o.OutMaxAge, "out-max-age", 0, "retention of each output stream in time, when it is made")
	f.BoolVar(&o.PersistAsync, "persist-async", false, "make output streams that acknowledge before they write: faster, and a crash publishes their end again")
	f.DurationVar(&o.Retention, "retention", 24*time.Hour, "how long completed jobs stay queryable")
	f.IntVar(&o.CompletedMax, "completed-max", 250_000, "a completed job of a partition stays until so many others have completed after it")
	f.DurationVar(&o.KeepLog, "keep-log", 0, "how far back in time the local log is kept, for 'carillon snapshot restore --to-time'")
	f.DurationVar(&o.CheckpointEvery, "checkpoint-every", time.Minute, "age at which a checkpoint is renewed while there is work; up to four times that while a burst drains")
	f.Uint64Var(&o.CheckpointRecords, "checkpoint-records", 400_000, "log records after which a checkpoint is taken; up to four times as many while a burst drains")
	f.IntVar(&memory, "memory-jobs", 1024, "MiB that jobs in memory may take, about; the others are on disk until they are due")
	f.IntSliceVar(&accept, "accept-loss", nil, "partitions that may go on after they stopped because outputs were lost or are unknown; see docs/operations.md")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&format, "log-format", "text", "text or json")
	return cmd
}

// tellReady says that the engine takes jobs, and where.
func (a *app) tellReady(r node.Ready) error {
	if !a.json {
		return a.line("%s", readyText(r))
	}
	return a.marshal(readyLine{Type: "ready", NATS: redacted(r.NATS), HTTP: r.HTTP, Partitions: r.Partitions})
}

// readyLine is the same in JSON.
type readyLine struct {
	Type       string `json:"type"`
	NATS       string `json:"nats"`
	HTTP       string `json:"http,omitempty"`
	Partitions int    `json:"partitions"`
}

// readyText is what scripts wait for, and read addresses from.
func readyText(r node.Ready) string {
	line := "carillon ready nats=" + redacted(r.NATS)
	if r.HTTP != "" {
		line += " http=" + r.HTTP
	}
	return fmt.Sprintf("%s partitions=%d", line, r.Partitions)
}
