package main

import (
	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
)

func newJobFireCommand(a *app) *cobra.Command {
	var p payloadFlags
	c := &cobra.Command{
		Use:   "fire ID",
		Short: "Fire a job once, now, outside its schedule",
		Long: `Fire a job once, now, outside its schedule. A payload given here is delivered in place of the job's own.

When no answer comes the outcome is unknown, and it is not tried again: that might fire twice.`,
		Example: `  carillon job fire report
  carillon job fire report --payload '{"kind":"extra"}'`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := carillon.CheckJobID(args[0]); err != nil {
				return err
			}
			var options []carillon.CommandOption
			if p.given() {
				payload, form, err := p.read(c.Context(), a.stdin)
				if err != nil {
					return err
				}
				options = append(options, carillon.FirePayload(payload, form))
			}
			nc, client, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			defer nc.Close()
			r, err := client.Fire(c.Context(), args[0], options...)
			if err != nil {
				return err
			}
			return a.printJob(&r)
		},
	}
	p.flags(c)
	return c
}
