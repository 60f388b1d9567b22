package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
)

func newJobGetCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "get ID",
		Short: "Show a job",
		Example: `  carillon job get report
  carillon job get report --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := carillon.CheckJobID(args[0]); err != nil {
				return err
			}
			nc, client, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			defer nc.Close()
			r, err := client.Get(c.Context(), args[0])
			if err != nil {
				return err
			}
			return a.describeJob(&r)
		},
	}
}

// describeJob shows everything about a job, one field on each line.
func (a *app) describeJob(r *carillon.JobReply) error {
	if a.json {
		return a.raw(r.AppendJSON(nil))
	}
	w := a.table()
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, value)
		}
	}
	instant := func(name string, t time.Time) {
		if !t.IsZero() {
			row(name, formatTime(t))
		}
	}
	j := &r.Spec
	row("id", r.ID)
	row("status", string(r.Status))
	row("version", fmt.Sprint(r.Version))
	instant("next", r.Next)
	instant("last scheduled", r.LastScheduled)
	row("fires", fmt.Sprint(r.Fires))
	row("skipped", fmt.Sprint(r.Skipped))
	row("partition", fmt.Sprint(r.Partition))
	row("schedule", j.Schedule)
	row("zone", j.Zone)
	if j.Gap != 0 {
		row("dst gap", j.Gap.String())
	}
	if j.Fold != 0 {
		row("dst fold", j.Fold.String())
	}
	instant("start", j.Start)
	instant("end", j.End)
	if j.MaxFires != 0 {
		row("max fires", fmt.Sprint(j.MaxFires))
	}
	if j.Spread != 0 {
		row("spread", j.Spread.String())
	}
	row("misfire", j.Misfire.String())
	if j.Expires != 0 {
		row("expires", j.Expires.String())
	}
	row("topic", cmp.Or(j.Topic, carillon.DefaultTopic))
	row("priority", j.Priority.String())
	row("owner", excerpt([]byte(j.Owner), len(j.Owner)))
	row("labels", joined(j.Labels))
	row("headers", joined(j.Headers))
	if len(j.Payload) > 0 {
		row("payload", fmt.Sprintf("%s (%s)", excerpt(j.Payload, 200), count(len(j.Payload), "byte")))
	}
	return w.Flush()
}

func joined(m map[string]string) string {
	var list []string
	for name, value := range m {
		list = append(list, excerpt([]byte(name+"="+value), len(name)+1+len(value))) // they may hold a terminal's control sequences
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
