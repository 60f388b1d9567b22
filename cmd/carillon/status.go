package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
)

func newStatusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the state of the service and its partitions",
		Example: `  carillon status
  carillon status --json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			nc, client, err := a.connect()
			if err != nil {
				return err
			}
			defer nc.Close()
			r, err := client.Status(c.Context())
			if err != nil {
				return err
			}
			return a.printStatus(&r)
		},
	}
}

func (a *app) printStatus(r *carillon.StatusReply) error {
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
	w = a.table()
	fmt.Fprintln(w, "\nPARTITION\tOWNER\tEPOCH\tSCHEDULED\tPAUSED\tCOMPLETED\tREADY\tOUTPUTS\tPUBLISHED\tLAG\tTICK LAG\tREJECTED\tSKIPPED\tSTOPPED")
	for i := range r.Partitions {
		p := &r.Partitions[i]
		var skipped uint64
		for _, n := range p.Skipped {
			skipped += n
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%.1f ms\t%d\t%d\t%s\n",
			p.Partition, orDash(p.Owner), p.Epoch, p.Jobs[carillon.StatusScheduled], p.Jobs[carillon.StatusPaused],
			p.Jobs[carillon.StatusCompleted], p.Ready, p.Outputs, p.Published, p.Lag, p.TickLag, p.Rejected, skipped, orDash(p.Stopped))
	}
	return w.Flush()
}
