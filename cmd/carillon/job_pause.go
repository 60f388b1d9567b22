package main

import (
	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
)

func newJobPauseCommand(a *app) *cobra.Command {
	return a.newChangeCommand(change{
		verb: "pause", past: "paused",
		example: `  carillon job pause report
  carillon job pause --owner acme --yes`,
		one:  (*carillon.Client).Pause,
		many: (*carillon.Client).PauseWhere,
		done: func(s *carillon.StatusReply) int { return jobsIn(s, carillon.StatusPaused) },
	}, "Stop the scheduled fires of jobs until they are resumed. 'carillon job fire' still works on them.")
}
