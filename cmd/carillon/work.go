package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/internal/loglimit"
)

func newWorkCommand(a *app) *cobra.Command {
	w := worker{app: a}
	var prepare bool
	c := &cobra.Command{
		Use:   "work TOPIC [flags] [-- COMMAND [ARG]...]",
		Short: "Run a command for each trigger of a topic, or print it",
		Long: `Take the triggers of a topic, which may hold wildcards, and run a command for each, or print it.

Workers of one --name share the work: each trigger goes to one of them, and how far they are is remembered.
The command gets the payload on standard input, and CARILLON_JOB, CARILLON_TRIGGER, CARILLON_SCHEDULED,
CARILLON_TOPIC, CARILLON_VERSION, CARILLON_MISSED and CARILLON_ATTEMPT in its environment. When it ends
with 0 the trigger is acknowledged; else it comes again, later each time. The same trigger may come
twice, after a crash for one: CARILLON_TRIGGER is the key to notice it by. What the command writes is
passed on when it has ended, a MiB of each stream at most.

A worker needs consumers of its --name on the output streams, and makes them. If its user may not, somebody
else makes them before, with --prepare, and the worker says with --partitions how many there are.

SIGTERM or Ctrl-C ends it: no more triggers are taken, and commands under way get --grace to end. What is
cut off then comes again, whatever --max-attempts says, and the exit code is 1.`,
		Example: `  carillon work billing.renewals --name billing -- ./renew.sh
  mkdir -p out && carillon work reports --name reports --concurrency 4 --max-attempts 5 -- sh -c 'cat > "out/$CARILLON_JOB"'
  carillon work '>' --name look --json
  carillon work billing.renewals --name billing --prepare   # by an operator, once
  carillon work billing.renewals --name billing --partitions 8 -- ./renew.sh`,
		Args: func(c *cobra.Command, args []string) error {
			if before := c.ArgsLenAtDash(); before != 1 && (before >= 0 || len(args) != 1) {
				return fmt.Errorf("give one topic, and a command to run after --")
			}
			if c.ArgsLenAtDash() >= 0 && len(args) == 1 { // a shell makes this of a variable that is not set
				return fmt.Errorf("there is no command after --")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			w.options.Topic, w.command = args[0], args[1:]
			if w.options.Name == "" {
				return usagef("--name is missing")
			}
			if err := notZero(c, "concurrency", "max-attempts", "grace", "ack-wait", "partitions"); err != nil {
				return err
			}
			if err := optionError(w.options.Validate()); err != nil {
				return err
			}
			if a.json && !prepare && len(w.command) > 0 {
				return usagef("--json is for triggers that are printed; what a command writes is passed on as it is")
			}
			if prepare {
				return w.prepare(c.Context())
			}
			return w.run(c.Context())
		},
	}
	f := c.Flags()
	f.StringVar(&w.options.Name, "name", "", "`name` shared by the workers of one kind (needed)")
	f.IntVar(&w.options.Concurrency, "concurrency", 0, "`number` of triggers at a time (default 16)")
	f.IntVar(&w.options.MaxAttempts, "max-attempts", 0, "give up a trigger that fails when it has been delivered this `number` of times (default never)")
	f.DurationVar(&w.options.Grace, "grace", 0, "how long commands get to end (default 30s)")
	f.DurationVar(&w.options.AckWait, "ack-wait", 0, "how long a worker may be silent before its triggers go to others (default 30s)")
	f.BoolVar(&w.options.StartNew, "start-new", false, "where the name is new: leave out triggers that are there already")
	f.BoolVar(&prepare, "prepare", false, "make the consumers, say how many there are, and end")
	f.IntVar(&w.options.Partitions, "partitions", 0, "`number` of consumers that --prepare has made; then none is made or looked at")
	return c
}

type worker struct {
	app     *app
	options carillon.WorkerOptions
	command []string
	mu      sync.Mutex // one trigger's output at a time

	errorLimit loglimit.Limiter // problems other than a trigger's: there may be one every two seconds in each partition
}

// maxErrorLines is how many of them may be printed in each period (loglimit.Every).
const maxErrorLines = 16

func (w *worker) run(ctx context.Context) error {
	w.options.OnError = w.report
	if len(w.command) > 0 {
		if _, err := exec.LookPath(w.command[0]); err != nil {
			return err // else each trigger would fail, and might be given up
		}
		catchBrokenPipes() // else commands would be left behind, and their work would be done again
	}
	nc, client, err := w.app.connect(ctx, append(w.app.tellConnection(ctx, &w.mu), reconnectForever...)...)
	if err != nil {
		return err
	}
	defer nc.Close()
	return client.Work(ctx, w.options, w.handle)
}

func (w *worker) prepare(ctx context.Context) error {
	if len(w.command) > 0 {
		return usagef("--prepare runs no command")
	}
	nc, client, err := w.app.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	partitions, err := client.MakeConsumers(ctx, w.options)
	if err != nil {
		return err
	}
	if w.app.json {
		return w.app.marshal(struct {
			Name       string `json:"name"`
			Partitions int    `json:"partitions"`
		}{w.options.Name, partitions})
	}
	return w.app.line("workers %s have their consumers on %d output streams", w.options.Name, partitions)
}

func (w *worker) report(t *carillon.Trigger, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t == nil {
		message := strings.ReplaceAll(oneLine(err), "MakeConsumers", "--prepare") // which the library knows as a function
		held, ok := w.errorLimit.Allow(maxErrorLines, time.Now())
		switch {
		case !ok:
		case held == 0:
			fmt.Fprintf(w.app.stderr, "carillon: %s\n", message)
		default:
			fmt.Fprintf(w.app.stderr, "carillon: %s (and %d lines before were held back)\n", message, held)
		}
		return
	}
	fmt.Fprintf(w.app.stderr, "carillon: %s, attempt %d: %v\n", t.ID, t.Attempt, err)
}

// boundedOutput is the beginning of what a command has written. It is bounded, because many commands may run at once, for hours, and each
// may write as much as it likes.
type boundedOutput struct {
	kept []byte
	cut  int
}

// maxOutput is how many bytes of a command's output are kept.
const maxOutput = 1 << 20

func (s *boundedOutput) Write(b []byte) (int, error) {
	keep := min(len(b), maxOutput-len(s.kept))
	s.kept = append(s.kept, b[:keep]...)
	s.cut += len(b) - keep
	return len(b), nil
}

// show passes the output on, and says how much of it is missing.
func (s *boundedOutput) show(to, tell io.Writer, trigger string) error {
	_, err := to.Write(s.kept)
	if s.cut > 0 {
		fmt.Fprintf(tell, "carillon: %s: %d bytes of what the command wrote are left out, behind the first %d\n", trigger, s.cut, maxOutput)
	}
	return err
}

// handle prints a trigger, or runs the command and prints its output.
func (w *worker) handle(ctx context.Context, t *carillon.Trigger) error {
	var out, errOut boundedOutput
	var err error
	if len(w.command) > 0 {
		cmd := exec.CommandContext(ctx, w.command[0], w.command[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(t.Payload), &out, &errOut
		cmd.Env = append(os.Environ(),
			"CARILLON_JOB="+t.Job, "CARILLON_TRIGGER="+t.ID, "CARILLON_SCHEDULED="+formatTime(t.Scheduled), "CARILLON_TOPIC="+t.Topic,
			"CARILLON_VERSION="+strconv.FormatUint(t.Version, 10), "CARILLON_MISSED="+strconv.FormatUint(t.Missed, 10),
			"CARILLON_ATTEMPT="+strconv.Itoa(t.Attempt))
		setGroup(cmd)
		cmd.WaitDelay = time.Second // a process that has left the group may hold the pipes open
		if err = cmd.Run(); errors.Is(err, exec.ErrWaitDelay) {
			err = nil // the command has ended with 0; a process that it left behind holds the pipes open
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case len(w.command) > 0:
		errErr := errOut.show(w.app.stderr, w.app.stderr, t.ID)
		outErr := out.show(w.app.stdout, w.app.stderr, t.ID)
		if err != nil {
			return err
		}
		if lost := errors.Join(errErr, outErr); lost != nil { // the output is lost, but the work is done
			fmt.Fprintf(w.app.stderr, "carillon: %s: what the command wrote is lost: %v\n", t.ID, lost)
		}
		return nil
	case w.app.json:
		return w.app.marshal(newTriggerLine(t))
	}
	return showTrigger(w.app.stdout, t)
}
