package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
)

// change is a command for one job or for all jobs of a selection.
type change struct {
	verb, past string // "pause", "paused"
	example    string
	one        func(*carillon.Client, context.Context, string, ...carillon.CommandOption) (carillon.JobReply, error)
	many       func(*carillon.Client, context.Context, carillon.Selection) (carillon.SelectionReply, error)
	done       func(*carillon.StatusReply) int // a count that grows by one with each job that is changed
}

func (a *app) newChangeCommand(ch change, long string) *cobra.Command {
	var s carillon.Selection
	var yes bool
	var ifVersion uint64
	verb := strings.ToUpper(ch.verb[:1]) + ch.verb[1:]
	c := &cobra.Command{
		Use:   ch.verb + " [ID]",
		Short: verb + " a job, or all jobs of a selection",
		Long: long + `

Give an id, or a selection: jobs that all of --prefix, --label and --owner apply to. A selection is
changed job by job and not in one transaction; the answer counts them. On a terminal it asks first;
a no changes nothing, and the exit code is 1.

Here --prefix is the beginning of an id. The service's own goes before the command, or into
$CARILLON_PREFIX: carillon --prefix acme job ` + ch.verb + ` …`,
		Example: ch.example,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			conditional := c.Flags().Changed("if-version")
			switch selects := s != (carillon.Selection{}); {
			case len(args) == 1 && selects:
				return usagef("give an id or a selection, not both")
			case len(args) == 0 && !selects:
				return usagef("give an id, or a selection by --prefix, --label and --owner")
			case selects && conditional:
				return usagef("--if-version goes with an id")
			}
			if len(args) == 0 {
				return a.changeMany(c.Context(), ch, s, yes)
			}
			var options []carillon.CommandOption
			if conditional {
				options = append(options, carillon.IfVersion(ifVersion))
			}
			return a.changeOne(c.Context(), ch, args[0], options)
		},
	}
	selectionFlags(c, &s)
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask before a selection is changed")
	c.Flags().Uint64Var(&ifVersion, "if-version", 0, "only if the job is at this `version`")
	return c
}

func (a *app) changeOne(ctx context.Context, ch change, id string, options []carillon.CommandOption) error {
	if err := carillon.CheckJobID(id); err != nil {
		return err
	}
	nc, client, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	r, err := ch.one(client, ctx, id, options...)
	if err != nil {
		return err
	}
	if r.Status == carillon.StatusDeleted && !a.json {
		return a.line("%s is deleted", id)
	}
	return a.printJob(&r)
}

func (a *app) changeMany(ctx context.Context, ch change, s carillon.Selection, yes bool) error {
	if isTerminal(a.stdin) && !yes {
		sure, err := a.ask(ctx, fmt.Sprintf("%s all jobs with %s?", ch.verb, describeSelection(s)))
		switch {
		case err != nil:
			return err
		case !sure: // what a script does next must not be done
			return errors.New("nothing was changed")
		}
	}
	nc, client, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	end := a.showChanges(ctx, client, ch)
	r, err := ch.many(client, ctx, s)
	end()
	if err != nil {
		return err
	}
	if a.json {
		err = a.raw(r.AppendJSON(nil))
	} else {
		err = a.line("%d selected, %d %s, %d were %s or gone already, %d failed", r.Matched, r.Changed, ch.past, r.Unchanged, ch.past, r.Failed)
	}
	if err == nil && r.Failed > 0 {
		err = &carillon.Error{Code: carillon.CodeUnavailable, Message: fmt.Sprintf("of %d jobs the outcome is unknown, or there was no room to change them; the same command again does no harm", r.Failed)}
	}
	return err
}

// showChanges shows on a terminal how many jobs of a selection have been changed so far, until end is called. The service answers only
// when all are changed, so the number comes from its status, and includes jobs that others change meanwhile.
func (a *app) showChanges(ctx context.Context, client *carillon.Client, ch change) (end func()) {
	if !isTerminal(a.stderr) {
		return func() {}
	}
	bar := a.newProgress(ch.verb, -1, false)
	_ = bar.bar.RenderBlank() // so that something is shown at once
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		began, shown := -1, 0
		for ctx.Err() == nil {
			if s, err := client.Status(ctx); err == nil {
				n := ch.done(&s)
				if began < 0 {
					began = n
				}
				more := max(n-began-shown, 0)
				shown += more
				bar.advance(more, more)
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * redraw):
			}
		}
	}()
	return func() {
		cancel()
		<-ended
		bar.end()
	}
}

// ask asks a yes-or-no question; anything but a clear yes is a no.
func (a *app) ask(ctx context.Context, question string) (bool, error) {
	if _, err := fmt.Fprintf(a.stderr, "%s [y/N] ", question); err != nil {
		return false, err
	}
	answer, err := bufio.NewReader(contextReader{ctx, a.stdin}).ReadString('\n')
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	if err != nil && answer == "" {
		_, err := fmt.Fprintln(a.stderr)
		return false, err // the end of the input is a no
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes", nil
}
