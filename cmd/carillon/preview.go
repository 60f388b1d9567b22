package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

func newPreviewCommand(a *app) *cobra.Command {
	var f *fields
	c := &cobra.Command{
		Use:   "preview SCHEDULE",
		Short: "Show when a schedule would fire",
		Example: `  carillon preview '0 30 9 * * MON-FRI' --zone Europe/Paris
  carillon preview '30 2 * * *' --zone America/New_York --after 2026-03-07T00:00:00Z --count 3
  carillon preview '@every 90m' --start 2026-12-01T00:00:00Z --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			body, err := f.body(map[string]any{"schedule": args[0]})
			if err != nil {
				return err
			}
			p, err := carillon.ParsePreview(body)
			if err != nil {
				return err
			}
			nc, client, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			defer nc.Close()
			next, err := client.Preview(c.Context(), p)
			if err != nil {
				return err
			}
			return a.printPreview(next, p.Zone)
		},
	}
	f = newFields(c)
	f.schedule()
	f.text("after", "after", "show fires after this `time`, RFC 3339 (default now)")
	f.number("count", "count", "`number` of fires to show (default 10)")
	return c
}

func (a *app) printPreview(next []time.Time, zone string) error {
	if a.json {
		r := carillon.PreviewReply{Next: next}
		return a.raw(r.AppendJSON(nil))
	}
	if len(next) == 0 {
		return a.line("no fire")
	}
	loc, err := schedule.Location(zone)
	if err != nil { // the service took it, so its rules are newer
		fmt.Fprintf(a.stderr, "carillon: this command's zone rules, %s, have no %s; the times are in UTC\n", schedule.TZVersion(), zone)
		loc = time.UTC
	}
	w := a.table()
	fmt.Fprintf(w, "%s\tUTC\n", loc)
	for _, t := range next {
		fmt.Fprintf(w, "%s\t%s\n", t.In(loc).Format("Mon 2006-01-02 15:04:05.000 MST"), formatTime(t))
	}
	return w.Flush()
}
