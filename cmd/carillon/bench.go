package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carillon-scheduler/carillon/bench"
)

func newBenchCommand(a *app) *cobra.Command {
	c := group("bench", "Measure the engine, beside what the machine itself can do",
		newBenchLatenessCommand(a), newBenchRecoveryCommand(a), newBenchCeilingCommand(a), newBenchWorkerCommand(a),
		newBenchDispatchCommand(a), newBenchBurstCommand(a),
		newBenchCommandsCommand(a), newBenchClientsCommand(a), newBenchChurnCommand(a), newBenchIdleCommand(a), newBenchScaleCommand(a), newBenchSoakCommand(a),
		newBenchReportCommand(a),
	)
	c.Long = `Measure the engine, beside what the machine itself can do. docs/benchmarks.md has the method and figures.

Without --server, whatever $NATS_URL and the like say, an engine is started for the run, on ports of its own and in a
directory that is removed afterwards; with --nats it has its streams on a NATS that runs already. A run ends with exit
code 1 when a check or a target failed.`
	return c
}

// service returns which engine is to be measured, from the flags of the connection.
func (a *app) service(cmd *cobra.Command, data, natsURL string) (bench.Service, error) {
	given := a.connection.server != "" // the flag alone: $NATS_URL may well point at what must not be loaded
	if !given && natsURL == "" {       // an engine of its own has no users, and its processes inherit the environment
		for _, v := range a.connection.credentials() {
			if err := os.Unsetenv(v.name); err != nil {
				return bench.Service{}, err
			}
		}
	}
	if err := a.connection.resolve(); err != nil {
		return bench.Service{}, err
	}
	worker, err := a.childCommand(cmd, "bench", "worker")
	s := bench.Service{Data: data, Connect: a.dial, Names: a.connection.names(), NATS: natsURL, Worker: worker}
	if err != nil {
		return s, err
	}
	if given && natsURL != "" {
		return s, usagef("--server is of a service that runs already, --nats of an engine that is started: give one of them")
	}
	if natsURL != "" {
		if err := checkServers("--nats", natsURL); err != nil {
			return s, err
		}
	}
	if given {
		s.Server = a.connection.server
		return s, nil
	}
	s.Command = []string{worker[0], "serve", "--prefix", a.connection.prefix}
	if natsURL != "" {
		s.Command = append(s.Command, a.childFlags(cmd, "timeout")...)
	}
	return s, nil
}

// serviceWithoutFiles is service for a workload that writes no files itself: only an engine that is started has a data directory.
func (a *app) serviceWithoutFiles(cmd *cobra.Command, data, natsURL string) (bench.Service, error) {
	if data != "" && a.connection.server != "" {
		return bench.Service{}, usagef("--data is for an engine that is started, --server of a service that runs already: give one of them")
	}
	return a.service(cmd, data, natsURL)
}

// dial connects with the flags of the connection, but to another address.
func (a *app) dial(url string) (*nats.Conn, error) {
	options, err := a.connection.clientOptions()
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(url, append(options, bench.Reconnect()...)...)
	return nc, redactError(err)
}

// childFlags returns the flags of the connection, without the server's and those that are named, for a process that this one starts.
func (a *app) childFlags(cmd *cobra.Command, without ...string) (args []string) {
	for _, name := range connectionFlags {
		if f := cmd.Flag(name); name != "server" && !slices.Contains(without, name) && f != nil && f.Changed {
			args = append(args, "--"+name+"="+f.Value.String())
		}
	}
	return args
}

// childCommand is a command of this binary, with the flags of the connection, to which a server's URL is added.
func (a *app) childCommand(cmd *cobra.Command, words ...string) ([]string, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return append(append(append([]string{exe}, words...), a.childFlags(cmd)...), "--server"), nil
}

// The flags that several workloads have.

func dataFlag(f *pflag.FlagSet, data *string) {
	f.Var((*nonEmpty)(data), "data", "`directory` to make the run's files in (default the system's for temporary files)")
}

func natsFlag(f *pflag.FlagSet, url *string) {
	f.Var((*nonEmpty)(url), "nats", "`URL`s of a NATS that runs already, for the run's streams, with all rights of the account; the run removes what it makes there")
}

func payloadFlag(f *pflag.FlagSet, bytes *int) {
	f.IntVar(bytes, "payload", 200, "bytes of each payload")
}

func handlersFlag(f *pflag.FlagSet, handlers *int) {
	f.IntVar(handlers, "concurrency", 64, "handlers of the worker")
}

func outputFlags(f *pflag.FlagSet, partitions *int, persistAsync *bool) {
	f.IntVar(partitions, "partitions", 0, "partitions of the engine that is started (default its own)")
	f.BoolVar(persistAsync, "persist-async", false, "output streams, and a ceiling, that acknowledge before they write")
}

// errMissed ends a run that was carried out but missed a check or a target.
var errMissed = errors.New("a check or a target failed")

// measure runs a workload, unless its flags make no sense, and prints the result.
func measure[C interface{ Validate() error }](a *app, cmd *cobra.Command, c C, run func(context.Context, C) (bench.Result, error)) error {
	if err := noZeros(cmd); err != nil {
		return err
	}
	if err := c.Validate(); err != nil {
		return fieldError(cmd, err)
	}
	r, err := run(cmd.Context(), c)
	if a.endSteps != nil {
		a.endSteps()
	}
	return a.printResult(r, err)
}

// fieldFlags are the flags of fields of other names.
var fieldFlags = map[string]string{"PayloadBytes": "payload", "SideRate": "side", "CronPerS": "cron-rate", "KillEvery": "kill-every", "PersistAsync": "persist-async"}

// fieldError makes wrong usage of what a workload says of one of its fields: the user knows it by the name of a flag.
func fieldError(cmd *cobra.Command, err error) error {
	word, says, _ := strings.Cut(strings.TrimPrefix(err.Error(), "bench: "), " ")
	field := strings.TrimSuffix(word, ":")
	if flag := cmp.Or(fieldFlags[field], strings.ToLower(field)); cmd.Flags().Lookup(flag) != nil {
		return usagef("--%s%s %s", flag, word[len(field):], says)
	}
	return usageError{err}
}

// printResult prints a result, and returns the error with which the command ends.
func (a *app) printResult(r bench.Result, err error) error {
	if err != nil {
		if r.Figures == nil {
			return err
		}
		r.Error = err.Error()
	}
	if a.json {
		b, e := json.Marshal(r)
		if e != nil {
			return e
		}
		if e := a.raw(b); e != nil {
			return e
		}
	} else if e := r.Table(a.stdout); e != nil {
		return e
	}
	if err == nil && !r.Passed() {
		err = errMissed
	}
	return err
}

// steps shows one bar after the other, for the steps of a run; on a terminal only. endSteps removes the last one.
func (a *app) steps() func(step string, done, total int) {
	if !isTerminal(a.stderr) {
		return nil
	}
	var mu sync.Mutex
	var bar *progressbar.ProgressBar // only a drawing: its errors do not matter
	shown := ""
	remove := func() {
		if bar != nil {
			_ = bar.Finish()
			_ = bar.Clear() // the end of a bar that was told of a little more than its total removes nothing
		}
	}
	a.endSteps = func() {
		mu.Lock()
		defer mu.Unlock()
		remove()
	}
	return func(step string, done, total int) {
		mu.Lock()
		defer mu.Unlock()
		if step != shown {
			remove()
			shown = step
			bar = progressbar.NewOptions(total,
				progressbar.OptionSetWriter(a.stderr), progressbar.OptionSetDescription(step), progressbar.OptionThrottle(redraw),
				progressbar.OptionSetWidth(30), progressbar.OptionClearOnFinish(), progressbar.OptionSetPredictTime(true),
			)
		}
		_ = bar.Set(done)
	}
}
