package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
)

func newJobPauseCommand(a *app) *cobra.Command {
	return a.newChangeCommand(change{
		verb: "pause", past: "paused",
		example: `  carillon job pause report
  carillon job pause --owner acme --yes`,
		one: func(ctx context.Context, c *carillon.Client, id string, o ...carillon.CommandOption) (carillon.JobReply, error) {
			return c.Pause(ctx, id, o...)
		},
		many: (*carillon.Client).PauseWhere,
	}, "Stop the scheduled fires of jobs until they are resumed. 'carillon job fire' still works on them.")
}
