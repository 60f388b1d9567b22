package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
)

func newStatusCommand(a *app) *cobra.Command {
	var watch bool
	var every time.Duration
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the state of the service, its engines and its partitions",
		Long: `Show the state of the service, its engines and its partitions, as the engine that answers knows it. With --watch it is
shown again and again, with rates since the last look: outputs (triggers and events) and records of the log a second.`,
		Example: `  carillon status
  carillon status --json
  carillon status --watch`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("every") && !watch {
				return usagef("--every goes with --watch")
			}
			if every < time.Millisecond {
				return usagef("--every is %s, must be at least 1ms", every)
			}
			var options []nats.Option
			if watch {
				options = reconnectForever // an outage may be just what the user watches
			}
			nc, client, err := a.connect(c.Context(), options...)
			if err != nil {
				return err
			}
			defer nc.Close()
			if watch {
				return a.watchStatus(c.Context(), client, every)
			}
			r, err := client.Status(c.Context())
			if err != nil {
				return err
			}
			return a.printStatus(&r, nil)
		},
	}
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show it again and again, until interrupted")
	c.Flags().DurationVar(&every, "every", time.Second, "with --watch: how long between two looks")
	return c
}

// watchStatus shows the status again and again until ctx ends. On a terminal each takes the place of the previous one. It shows errors,
// too: a service that does not answer may be just what the user watches for.
func (a *app) watchStatus(ctx context.Context, client *carillon.Client, every time.Duration) error {
	var before *carillon.StatusReply
	for {
		r, err := client.Status(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if isTerminal(a.stdout) && !a.json {
			fmt.Fprint(a.stdout, "\x1b[H\x1b[J")
		}
		if err != nil {
			fmt.Fprintf(a.stderr, "carillon: %s\n", oneLine(err))
		} else {
			if err := a.printStatus(&r, before); err != nil {
				return err
			}
			before = &r
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

// perSecond is by how much a number has grown each second between two looks, or a dash if that is not known.
func perSecond(now, then uint64, r, before *carillon.StatusReply) string {
	if before == nil {
		return "-"
	}
	passed := r.Time.Sub(before.Time).Seconds()
	if passed <= 0 || now < then {
		return "-"
	}
	return fmt.Sprintf("%.0f", float64(now-then)/passed)
}

// printNodes shows the engines that share a NATS.
func (a *app) printNodes(r, before *carillon.StatusReply) error {
	if len(r.Nodes) == 0 {
		return nil
	}
	w := a.table()
	fmt.Fprintln(w, "\nNODE\tSTATE\tZONE\tWEIGHT\tSERVES\tSTANDBY\tPOSITION\tLAG\tRECORDS/S\tCLOCK OFFSET\tVERSION")
	var warnings []string
	for _, n := range r.Nodes {
		var then uint64
		known := before
		if before != nil {
			i := slices.IndexFunc(before.Nodes, func(b carillon.NodeStatus) bool { return b.Node == n.Node })
			if i < 0 {
				known = nil
			} else {
				then = before.Nodes[i].Position
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%d ms\t%s\n",
			n.Node, n.State, orDash(n.Zone), n.Weight, n.Serves, n.Standby, n.Position, n.Lag,
			perSecond(n.Position, then, r, known), n.ClockOffset, n.Version)
		if n.ClockOffset > clockWarning || n.ClockOffset < -clockWarning {
			warnings = append(warnings, fmt.Sprintf("warning: the clock of %s is %.1f s off that of the streams; "+
				"see to the time synchronization of it and of the nats-servers", n.Node, math.Abs(float64(n.ClockOffset))/1000))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, warning := range warnings {
		if err := a.line("%s", warning); err != nil {
			return err
		}
	}
	return nil
}

// clockWarning is the offset of a clock, in ms, from which on a warning is printed. It makes no trigger late, but it misleads readers of
// the machine's logs, and other programs on the machine may not measure their offset.
const clockWarning = 100

// printStatus shows a status, with rates since the previous one if there is one.
func (a *app) printStatus(r, before *carillon.StatusReply) error {
	if a.json {
		return a.raw(r.AppendJSON(nil))
	}
	ready := "ready"
	if !r.Ready {
		ready = "not ready: " + strings.Join(r.Problems, "; ")
	}
	w := a.table()
	fmt.Fprintf(w, "node\t%s, %s\n", r.Node, ready)
	fmt.Fprintf(w, "versions\tcarillon %s, logic %d, tzdata %s, nats-server %s, %s\n",
		r.Versions.Carillon, r.Versions.Logic, r.Versions.Tzdata, r.Versions.NATS, r.Versions.Go)
	if l := r.Lateness; l != nil {
		fmt.Fprintf(w, "lateness\tp50 %.2f ms, p99 %.2f ms, p99.9 %.2f ms, max %.2f ms, of %d triggers\n", l.P50, l.P99, l.P999, l.Max, l.Count)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := a.printNodes(r, before); err != nil {
		return err
	}
	w = a.table()
	head := "\nPARTITION\tOWNER\t"
	if len(r.Nodes) > 0 {
		head += "STANDBY\t"
	}
	head += "EPOCH\tSCHEDULED\tPAUSED\tCOMPLETED\tREADY\tOUTPUTS\tPUBLISHED\t"
	if before != nil {
		head += "OUTPUTS/S\t"
	}
	fmt.Fprintln(w, head+"LAG\tTICK LAG\tREJECTED\tSKIPPED\tSTOPPED")
	for i := range r.Partitions {
		p := &r.Partitions[i]
		var skipped uint64
		for _, n := range p.Skipped {
			skipped += n
		}
		fmt.Fprintf(w, "%d\t%s\t", p.Partition, orDash(p.Owner))
		if len(r.Nodes) > 0 {
			fmt.Fprintf(w, "%s\t", orDash(strings.Join(p.Standbys, ",")))
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%d\t%d\t", p.Epoch, p.Jobs[carillon.StatusScheduled], p.Jobs[carillon.StatusPaused],
			p.Jobs[carillon.StatusCompleted], p.Ready, p.Outputs, p.Published)
		if before != nil {
			var then uint64
			if i < len(before.Partitions) {
				then = before.Partitions[i].Outputs
			}
			fmt.Fprintf(w, "%s\t", perSecond(p.Outputs, then, r, before))
		}
		fmt.Fprintf(w, "%d\t%.1f ms\t%d\t%d\t%s\n", p.Lag, p.TickLag, p.Rejected, skipped, orDash(p.Stopped))
	}
	return w.Flush()
}
