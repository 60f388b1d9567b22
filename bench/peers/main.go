package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/carillon-scheduler/carillon/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// command carries out one command line.
func command(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	verb := "run"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		verb, args = args[0], args[1:]
	}
	f := flag.NewFlagSet("peers "+verb, flag.ContinueOnError)
	f.SetOutput(stderr)
	switch verb {
	case "worker":
		return work(ctx, stdin, stdout)
	case "nats-server":
		if len(args) != 2 {
			return errors.New("nats-server takes a directory and an address")
		}
		return serveNATS(ctx, args[0], args[1], stdout)
	}
	dir := f.String("dir", filepath.Join(os.TempDir(), "carillon-peers"), "directory of all servers' data, removed at the end")
	switch verb {
	case "run":
		return runCommand(ctx, f, dir, args, stdout, stderr)
	case "check":
		carillon := f.String("carillon", "../../bin/carillon", "Carillon's binary")
		if err := f.Parse(args); err != nil {
			return err
		}
		return check(ctx, *dir, *carillon, stdout)
	case "stop":
		if err := f.Parse(args); err != nil {
			return err
		}
		ended, err := stopLeftovers(*dir)
		if err == nil {
			fmt.Fprintf(stdout, "processes ended: %d; removed: %s\n", ended, *dir)
		}
		return err
	}
	return fmt.Errorf("%q is no command; there are run, check and stop", verb)
}

// runCommand runs the workloads, writes each result to a file, and prints the table.
func runCommand(ctx context.Context, f *flag.FlagSet, dir *string, args []string, stdout, stderr io.Writer) (err error) {
	var c config
	carillon := f.String("carillon", "../../bin/carillon", "Carillon's binary")
	out := f.String("out", "results", "directory for the results, one JSON `file` each")
	names := f.String("systems", strings.Join(keys(), ","), "systems to measure")
	workloads := f.String("workloads", "lateness,burst,commands", "workloads to measure them with")
	rates := f.String("rates", "1000", "one-shots a second of lateness, each in a run of its own")
	duration := f.Duration("duration", 20*time.Second, "how long lateness lasts, in whole seconds")
	f.IntVar(&c.jobs, "jobs", 100_000, "one-shots due at once, of burst")
	f.IntVar(&c.callers, "callers", 64, "callers at a time, of commands")
	f.DurationVar(&c.creates, "creates", 10*time.Second, "how long they create jobs; one caller does for half of it")
	if err := f.Parse(args); err != nil {
		return err
	}
	c.systems, c.workloads, c.seconds = strings.Split(*names, ","), strings.Split(*workloads, ","), int(*duration/time.Second)
	for rate := range strings.SplitSeq(*rates, ",") {
		n, err := strconv.Atoi(rate)
		if err != nil || n < 1 {
			return fmt.Errorf("--rates: %q is no number from 1", rate)
		}
		c.rates = append(c.rates, n)
	}
	if err := c.validate(); err != nil {
		return err
	}
	if err := c.findServers(); err != nil {
		return err
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	binary, err := carillonBinary(*carillon, c.systems)
	if err != nil {
		return err
	}
	ws, err := openWorkspace(*dir, binary)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ws.close()) }()

	if err := c.removeResults(*out); err != nil {
		return err
	}
	var o outcome
	failed := run(ctx, ws, c, stderr, func(r bench.Result) error {
		o.results = append(o.results, r)
		return save(*out, &r)
	})
	if len(o.results) > 0 {
		m := o.results[0].Machine
		m.Sync = "what is on disk when: see below the table" // it differs between systems
		fmt.Fprintf(stdout, "%s\n\n", m)
		if err := o.table(stdout, c); err != nil {
			return err
		}
		fmt.Fprintln(stdout)
		if !o.verdict(stdout, c) {
			failed = errors.Join(failed, errors.New("carillon is not ahead in all of it"))
		}
	}
	return failed
}

func (c *config) validate() error {
	for _, key := range c.systems {
		if _, err := find(key); err != nil {
			return fmt.Errorf("--systems: %w", err)
		}
	}
	for _, w := range c.workloads {
		if !slices.Contains([]string{"lateness", "burst", "commands"}, w) {
			return fmt.Errorf("--workloads: %q is no workload; there are lateness, burst and commands", w)
		}
	}
	switch {
	case c.seconds < 1:
		return errors.New("--duration must be a second or more")
	case c.jobs < 1 || c.jobs > 10_000_000:
		return errors.New("--jobs must be 1 to 10,000,000")
	case c.callers < 1:
		return errors.New("--callers must be 1 or more")
	case c.creates < 100*time.Millisecond:
		return errors.New("--creates must be 100ms or more")
	}
	return nil
}

// findServers checks that all servers are installed: else a run would fail only after minutes.
func (c *config) findServers() (missing error) {
	for _, key := range c.systems {
		s, err := find(key)
		if err == nil && s.server != nil {
			_, err = s.server()
		}
		if err != nil {
			missing = errors.Join(missing, fmt.Errorf("%s: %w", key, err))
		}
	}
	return missing
}

// carillonBinary returns the absolute path of Carillon's binary; "" if Carillon is not among the systems.
func carillonBinary(path string, systems []string) (string, error) {
	if !slices.ContainsFunc(systems, func(key string) bool { return key == keyOf("carillon", false) || key == keyOf("carillon", true) }) {
		return "", nil
	}
	path, err := filepath.Abs(path)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return "", fmt.Errorf("--carillon: %w; make build makes it", err)
	}
	return path, nil
}

// resultFile is the name of a result's file; rate is 0 for workloads without one.
func resultFile(dir, workload string, rate int, key string) string {
	if rate > 0 {
		workload += "-" + strconv.Itoa(rate)
	}
	return filepath.Join(dir, workload+"-"+key+".json")
}

// removeResults removes what an earlier run has left of the results of this one: if one of them fails, its file must not be the earlier one.
func (c *config) removeResults(dir string) error {
	for _, w := range c.workloads {
		rates := []int{0}
		if w == "lateness" {
			rates = c.rates
		}
		for _, rate := range rates {
			for _, key := range c.systems {
				if err := os.Remove(resultFile(dir, w, rate, key)); err != nil && !errors.Is(err, os.ErrNotExist) {
					return err
				}
			}
		}
	}
	return nil
}

// save writes a result to a file whose name has the workload, the rate and the system.
func save(dir string, r *bench.Result) error {
	p := r.Params.(params)
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(resultFile(dir, r.Workload, p.Rate, keyOf(p.System, p.Tuned)), append(b, '\n'), 0o644)
}

// check starts every system once and prints its version.
func check(ctx context.Context, dir, carillon string, stdout io.Writer) (err error) {
	binary, err := carillonBinary(carillon, keys())
	if err != nil {
		return err
	}
	ws, err := openWorkspace(dir, binary)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ws.close()) }()
	for i := range systems {
		e, err := systems[i].begin(ctx, ws, "check", params{})
		if err != nil {
			return fmt.Errorf("%s: %w", systems[i].key(), err)
		}
		fmt.Fprintf(stdout, "%s: %s at %s\n", e.key(), e.result.Params.(params).Versions, e.address)
		if err := e.close(); err != nil {
			return fmt.Errorf("%s: %w", e.key(), err)
		}
	}
	return nil
}
