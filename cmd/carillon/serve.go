package main

import (
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

func newServeCommand(a *app) *cobra.Command {
	s := serveFlags{app: a}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the engine",
		Long: `Run the engine: with a NATS server inside by default, or on an external NATS. Engines on one external NATS share
the partitions, and take over from each other; each needs a name of its own.

It prints one line on standard output when it is ready to take jobs, and its log on standard error. A
first SIGTERM or SIGINT stops it cleanly; everything it owns is in the data directory.`,
		Example: `  carillon serve
  carillon serve --data /var/lib/carillon --out-max-bytes 1073741824
  carillon serve --nats-config nats.conf --nats-account CARILLON
  carillon serve --nats nats://nats-1:4222,nats://nats-2:4222 --creds engine.creds --replicas 3`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.resolve(cmd); err != nil {
				return err
			}
			if err := refuseArchive(s.options.Data); err != nil {
				return err
			}
			catchBrokenPipes()
			return node.Run(cmd.Context(), s.options, func(r node.Ready) { _ = a.printReady(r) }) // an engine goes on even if this fails
		},
	}
	hideFlags(cmd, "server", "timeout")
	f := cmd.Flags()
	s.process(f)
	s.sharing(f)
	s.keeping(f)
	return cmd
}

// refuseArchive refuses an archive of snapshots as a data directory. An engine would start on it without a job, and the archive would take
// no more snapshots.
func refuseArchive(data string) error {
	if _, err := os.Stat(filepath.Join(data, "snapshots")); err != nil || archive.OpenDir(nil, data).Check() != nil {
		return nil
	}
	return fmt.Errorf("%[1]s is an archive of snapshots; 'carillon snapshot restore %[1]s --data DIR' makes a data directory of it", data)
}

// serveFlags are the options of an engine, and the flags that must be converted for them.
type serveFlags struct {
	app           *app
	options       node.Options
	level, format string // of the process's log
	accept        []int
	memory        int // MiB
}

// process adds the flags of this process: where its files are, where it listens and what it logs.
func (s *serveFlags) process(f *pflag.FlagSet) {
	s.options.Data, s.options.Listen, s.options.HTTP = "carillon-data", "127.0.0.1:4222", "127.0.0.1:8080"
	f.Var((*nonEmpty)(&s.options.Data), "data", "directory of everything the engine owns")
	f.Var((*address)(&s.options.Listen), "listen", "address for NATS clients of the embedded server, unless --nats-config says it; port 0 chooses one")
	f.Var((*addressOrOff)(&s.options.HTTP), "http", "address of /healthz, /readyz and /metrics; port 0 chooses one, off for none")
	f.BoolVar(&s.options.Profiles, "pprof", false, "serve Go's profiles at /debug/pprof/ of --http, too: what takes CPU and memory")
	f.IntVar(&s.memory, "memory-jobs", 1024, "MiB that jobs in memory may take, about; the others are on disk until they are due")
	f.StringVar(&s.level, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&s.format, "log-format", "text", "text or json")
}

// sharing adds the flags about the NATS that has the engine's streams, and about the engines that share it.
func (s *serveFlags) sharing(f *pflag.FlagSet) {
	f.Var((*nonEmpty)(&s.options.Name), "name", "name of this node, one of the service (default the host's)")
	f.Var((*nonEmpty)(&s.options.NATSConfig), "nats-config", "nats-server configuration file for the embedded server: TLS, accounts, cluster")
	f.Var((*nonEmpty)(&s.options.NATSAccount), "nats-account", "with --nats-config: the account that holds the streams")
	f.Var((*nonEmpty)(&s.options.NATS), "nats", "URLs of an external NATS instead of the embedded server")
	f.IntVar(&s.options.Weight, "weight", 1, "with --nats: this node's share of the partitions, relative to the weights of the others")
	f.Var((*nonEmpty)(&s.options.Zone), "zone", "with --nats: what fails together with this node, e.g. a rack; owner and standby are in different ones")
	f.StringVar((*string)(&s.options.Follow), "follow", string(node.FollowAll), "with --nats: which partitions' jobs this node keeps: all, or placed, those that it owns or is a standby of")
	f.IntVar(&s.options.Standbys, "standbys", 1, "with --nats: how many nodes stand by to take over each partition; -1 for none. Set alike on all nodes")
	f.IntVar(&s.options.Replicas, "replicas", 1, "with --nats: replicas of the streams when they are made; those that are there must have as many, and may have more")
}

// keeping adds the flags about the streams, and about what is kept in them and beside them.
func (s *serveFlags) keeping(f *pflag.FlagSet) {
	f.IntVar(&s.options.Partitions, "partitions", 0, "number of partitions, fixed when the streams are made (default what they were made with, else 8)")
	f.Int64Var(&s.options.LogMaxBytes, "log-max-bytes", 0, "bound of the log stream; with --nats or --nats-config only when it is made (default 256 MiB)")
	f.Int64Var(&s.options.OutMaxBytes, "out-max-bytes", 0, "retention of each output stream in bytes; with --nats or --nats-config only when it is made (default 512 MiB shared by all)")
	f.DurationVar(&s.options.OutMaxAge, "out-max-age", 0, "retention of each output stream in time; with --nats or --nats-config only when it is made (default 72h)")
	f.BoolVar(&s.options.PersistAsync, "persist-async", false, "make output streams that acknowledge before they write: faster, and a crash publishes their end again")
	f.DurationVar(&s.options.Retention, "retention", 24*time.Hour, "how long completed jobs stay queryable")
	f.IntVar(&s.options.CompletedMax, "completed-max", 250_000, "a completed job of a partition stays until so many others have completed after it")
	f.DurationVar(&s.options.KeepLog, "keep-log", 0, "how far back in time the local log is kept, for 'carillon snapshot restore --to-time'")
	f.DurationVar(&s.options.CheckpointEvery, "checkpoint-every", time.Minute, "age at which a checkpoint is renewed while there is work; up to four times that while a burst drains")
	f.Uint64Var(&s.options.CheckpointRecords, "checkpoint-records", 400_000, "log records after which a checkpoint is taken; up to four times as many while a burst drains")
	f.IntSliceVar(&s.accept, "accept-loss", nil, "partitions that may go on after they stopped because outputs were lost or are unknown; see docs/operations.md")
}

// resolve turns the flags into options, and refuses flags that make no sense.
func (s *serveFlags) resolve(cmd *cobra.Command) (err error) {
	o, connection := &s.options, &s.app.connection
	if connection.server != "" {
		return usagef("--server is for clients; an engine takes --nats")
	}
	if cmd.Flags().Changed("timeout") { // an engine has times of its own, and would go to another server the later
		return usagef("--timeout is for clients")
	}
	if o.Logger, err = s.logger(cmd.ErrOrStderr()); err != nil {
		return err
	}
	if err := connection.resolve(); err != nil {
		return err
	}
	if err := s.numbers(cmd); err != nil {
		return err
	}
	if o.Profiles && o.HTTP == "off" {
		return usagef("--pprof goes with --http, which is off")
	}
	names := connection.names()
	o.Prefix, o.Stream = names.Prefix, names.Stream
	o.MemoryForJobs, o.OwnProcess = s.memory<<20, true
	o.AcceptLoss = make(map[int]bool)
	for _, p := range s.accept {
		if p < 0 || p >= node.MaxPartitions {
			return usagef("--accept-loss is %d, must be 0 to %d", p, node.MaxPartitions-1)
		}
		o.AcceptLoss[p] = true
	}
	if o.Follow != node.FollowAll && o.Follow != node.FollowPlaced {
		return usagef("--follow is %q, must be %s or %s", o.Follow, node.FollowAll, node.FollowPlaced)
	}
	if o.NATS == "" {
		if err := s.embedded(cmd); err != nil {
			return err
		}
	} else if err := s.external(cmd); err != nil {
		return err
	}
	if err := o.Validate(); err != nil {
		return usageError{err}
	}
	if o.NATS != "" {
		o.NATSCreds = connection.creds
		o.NATSOptions, err = connection.options()
	}
	return err
}

// numbers refuses numbers and times that are out of range.
func (s *serveFlags) numbers(cmd *cobra.Command) error {
	for _, f := range []struct {
		flag        string
		least, most int64
		none        string // see within
	}{
		{"partitions", 1, node.MaxPartitions, ""},
		{"replicas", 1, streams.MaxReplicas, ""},
		{"weight", 1, cluster.MaxWeight, ""},
		{"standbys", 1, cluster.MaxStandbys, "none"},
		{"memory-jobs", 1, math.MaxInt >> 20, ""},
		{"completed-max", 1, math.MaxInt64, ""},
		{"log-max-bytes", streams.MinStreamBytes, math.MaxInt64, "no bound"},
		{"out-max-bytes", streams.MinStreamBytes, math.MaxInt64, "no bound"},
	} {
		if err := within(cmd, f.flag, f.least, f.most, f.none); err != nil {
			return err
		}
	}
	if age := s.options.OutMaxAge; cmd.Flags().Changed("out-max-age") && age < streams.MinStreamAge && age != -1 {
		return usagef("--out-max-age is %s, must be %s or more, or -1ns for no bound", age, streams.MinStreamAge)
	}
	if err := notZero(cmd, "retention", "checkpoint-every", "checkpoint-records"); err != nil {
		return err
	}
	return notNegative(cmd, "retention", "checkpoint-every", "keep-log")
}

// embedded refuses flags that have no effect on an embedded server. If they were ignored, an engine would be open that seems to require
// a password or a certificate, or to listen only on loopback.
func (s *serveFlags) embedded(cmd *cobra.Command) error {
	if s.options.NATSConfig != "" {
		s.options.NATSCreds = s.app.connection.creds
		if cmd.Flags().Changed("listen") {
			return usagef("--listen goes without --nats-config, whose file says where the server listens")
		}
	} else if s.options.NATSAccount != "" {
		return usagef("--nats-account goes with --nats-config")
	} else if cmd.Flags().Changed("creds") { // not for the environment's, which are for clients
		return usagef("--creds goes with --nats, or with a --nats-config of operator mode")
	}
	for _, name := range []string{"user", "password", "nkey", "tlscert", "tlskey", "tlsca", "tlsfirst", "inbox-prefix"} {
		if cmd.Flags().Changed(name) {
			return usagef("--%s goes with --nats; users and TLS of the embedded server are those of --nats-config", name)
		}
	}
	return nil
}

// external refuses flags of the embedded server beside --nats, where they have no effect either.
func (s *serveFlags) external(cmd *cobra.Command) error {
	for _, name := range []string{"listen", "nats-account"} {
		if cmd.Flags().Changed(name) {
			return usagef("--%s is for the embedded server; with --nats there is none", name)
		}
	}
	return checkServers("--nats", s.options.NATS)
}

func (s *serveFlags) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.level)); err != nil {
		return nil, usagef("--log-level is %q, must be debug, info, warn or error", s.level)
	}
	switch s.format {
	case "text":
		return textLogger(w, level), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})), nil
	}
	return nil, usagef("--log-format is %q, must be text or json", s.format)
}

// textLogger writes errors without stack traces. slog's text handler formats them by %+v, by which Pebble's errors have one.
func textLogger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if err, ok := a.Value.Any().(error); ok {
			a.Value = slog.AnyValue(messageOnly{err})
		}
		return a
	}}))
}

type messageOnly struct{ error }

func (e messageOnly) MarshalText() ([]byte, error) { return []byte(e.Error()), nil }

// printReady prints that the engine accepts jobs, and at which addresses.
func (a *app) printReady(r node.Ready) error {
	if !a.json {
		return a.line("%s", readyText(r))
	}
	return a.marshal(readyLine{Type: "ready", NATS: redacted(r.NATS), HTTP: r.HTTP, Partitions: r.Partitions})
}

// readyLine is what printReady prints as JSON.
type readyLine struct {
	Type       string `json:"type"`
	NATS       string `json:"nats"`
	HTTP       string `json:"http,omitempty"`
	Partitions int    `json:"partitions"`
}

// readyText is what printReady prints as text. Scripts wait for this line, and read addresses from it.
func readyText(r node.Ready) string {
	line := "carillon ready nats=" + redacted(r.NATS)
	if r.HTTP != "" {
		line += " http=" + r.HTTP
	}
	return fmt.Sprintf("%s partitions=%d", line, r.Partitions)
}
