package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
)

func newNodeDrainCommand(a *app) *cobra.Command {
	var undo bool
	var wait time.Duration
	c := &cobra.Command{
		Use:   "drain NAME",
		Short: "Have an engine hand over its partitions",
		Long: `Have an engine hand over its partitions, and wait until others serve them. It goes on following the log, and gets
nothing until --undo, or until it is started again. An engine that is stopped with SIGTERM hands over by itself.`,
		Example: `  carillon node drain engine-2
  carillon node drain engine-2 --undo`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := notNegative(c, "wait"); err != nil {
				return err
			}
			nc, client, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			defer nc.Close()
			if _, err := nodeOf(c.Context(), client, args[0]); err != nil {
				return err
			}
			r, err := client.DrainNode(c.Context(), args[0], undo)
			if err != nil {
				return err
			}
			if undo && r.Draining {
				return &carillon.Error{
					Code:    carillon.CodeUnavailable,
					Message: fmt.Sprintf("node %s goes on draining: NATS refuses its triggers; its /readyz says what its user may not do", r.Node),
				}
			}
			deadline := time.Now().Add(wait)
			for r.Draining && r.Serves > 0 && time.Now().Before(deadline) {
				select {
				case <-c.Context().Done():
					return c.Context().Err()
				case <-time.After(drainLook):
				}
				n, err := nodeOf(c.Context(), client, args[0])
				if err != nil {
					return err
				}
				r.Serves = n.Serves
			}
			switch {
			case r.Draining && r.Serves > 0:
				return &carillon.Error{
					Code:    carillon.CodeUnavailable,
					Message: fmt.Sprintf("after %s node %s still serves %s; nobody else may be able to", wait, r.Node, count(r.Serves, "partition")),
				}
			case a.json:
				return a.raw(r.AppendJSON(nil))
			case r.Draining:
				return a.line("node %s serves no partition", r.Node)
			}
			return a.line("node %s gets its share again", r.Node)
		},
	}
	c.Flags().BoolVar(&undo, "undo", false, "let it have its share again")
	c.Flags().DurationVar(&wait, "wait", 30*time.Second, "how long to wait until others serve what it had")
	return c
}

// drainLook is the time between two looks at how far a node is.
const drainLook = 100 * time.Millisecond

// nodeOf finds a node in the status.
func nodeOf(ctx context.Context, client *carillon.Client, name string) (carillon.NodeStatus, error) {
	s, err := client.Status(ctx)
	if err != nil {
		return carillon.NodeStatus{}, err
	}
	what := "there is no node %q"
	var names []string
	for _, n := range s.Nodes {
		switch {
		case n.State == carillon.NodeSilent && n.Node == name:
			what = "node %q is silent"
		case n.State == carillon.NodeSilent:
		case n.Node == name:
			return n, nil
		default:
			names = append(names, n.Node)
		}
	}
	message := fmt.Sprintf(what+"; live are %s", name, strings.Join(names, ", "))
	if len(s.Nodes) == 0 {
		message = fmt.Sprintf("engine %s has its NATS to itself: there is nobody to hand over to", s.Node)
	}
	return carillon.NodeStatus{}, &carillon.Error{Code: carillon.CodeNotFound, Message: message}
}
