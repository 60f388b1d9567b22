package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
)

func newJobListCommand(a *app) *cobra.Command {
	var l listFlags
	c := &cobra.Command{
		Use:   "list",
		Short: "List jobs, ordered by id",
		Long: `List jobs, ordered by id: all of them, or those that all the flags apply to. They are shown page by
page as they arrive, however many there are.

Here --prefix is the beginning of an id. The service's own goes before the command, or into
$CARILLON_PREFIX: carillon --prefix acme job list`,
		Example: `  carillon job list
  carillon job list --prefix invoice- --status paused
  carillon job list --label team=billing --topic 'billing.>' --limit 20
  carillon job list --json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := notZero(c, "limit"); err != nil {
				return err
			}
			nc, client, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			defer nc.Close()
			if a.json {
				return a.listJSON(c.Context(), client, l)
			}
			return a.listTable(c.Context(), client, l)
		},
	}
	l.flags(c)
	return c
}

// listFlags select the jobs of a list or an export.
type listFlags struct {
	request carillon.ListRequest
	limit   uint // jobs altogether; 0: all
}

func (l *listFlags) flags(c *cobra.Command) {
	selectionFlags(c, &l.request.Selection)
	f := c.Flags()
	f.Var((*nonEmpty)(&l.request.Topic), "topic", "only jobs of this `topic`, which may hold wildcards")
	f.Var((*jobStatus)(&l.request.Status), "status", "only jobs with this `status`: scheduled, paused or completed")
	f.UintVar(&l.limit, "limit", 0, "stop after this `number` of jobs")
}

// jobStatus is a status that a job can have. The protocol reserves more statuses for executions.
type jobStatus carillon.Status

func (v *jobStatus) String() string { return string(*v) }
func (v *jobStatus) Type() string   { return "string" }

func (v *jobStatus) Set(s string) error {
	switch *v = jobStatus(s); carillon.Status(s) {
	case carillon.StatusScheduled, carillon.StatusPaused, carillon.StatusCompleted:
		return nil
	}
	return errors.New("expected scheduled, paused or completed")
}

// pages calls show with one page of jobs after the other. Only one page is in memory at a time.
func (l listFlags) pages(ctx context.Context, client *carillon.Client, show func([]carillon.JobReply) error) error {
	left := l.limit
	for {
		l.request.Limit = carillon.MaxListLimit
		if l.limit > 0 {
			l.request.Limit = int(min(left, carillon.MaxListLimit))
		}
		page, err := client.ListPage(ctx, l.request)
		if err != nil {
			return err
		}
		if err := show(page.Jobs); err != nil {
			return err
		}
		left -= min(left, uint(len(page.Jobs)))
		if l.request.Cursor = page.Cursor; page.Cursor == "" || l.limit > 0 && left == 0 {
			return nil
		}
	}
}

func (a *app) listTable(ctx context.Context, client *carillon.Client, l listFlags) error {
	var w *tabwriter.Writer
	return l.pages(ctx, client, func(page []carillon.JobReply) error {
		if w == nil {
			w = a.table()
			fmt.Fprintln(w, "ID\tSTATUS\tNEXT\tSCHEDULE\tTOPIC\tFIRES\tVERSION")
		}
		for i := range page {
			r := &page[i]
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\n",
				r.ID, r.Status, formatTime(r.Next), orDash(r.Spec.Schedule), cmp.Or(r.Spec.Topic, carillon.DefaultTopic), r.Fires, r.Version)
		}
		return w.Flush()
	})
}

// listJSON writes all pages as one carillon.v1.jobs object.
func (a *app) listJSON(ctx context.Context, client *carillon.Client, l listFlags) error {
	b := []byte(`{"type":"` + carillon.TypeJobs + `","jobs":[`)
	first := true
	err := l.pages(ctx, client, func(page []carillon.JobReply) error {
		for i := range page {
			if !first {
				b = append(b, ',')
			}
			first = false
			b = page[i].AppendJSON(b)
		}
		_, err := a.stdout.Write(b)
		b = b[:0]
		return err
	})
	if err != nil {
		return err
	}
	return a.raw(append(b, "]}"...))
}
