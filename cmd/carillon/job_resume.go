package main

import (
	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
)

func newJobResumeCommand(a *app) *cobra.Command {
	return a.newChangeCommand(change{
		verb: "resume", past: "resumed",
		example: `  carillon job resume report
  carillon job resume --label team=billing --yes`,
		one:  (*carillon.Client).Resume,
		many: (*carillon.Client).ResumeWhere,
		done: func(s *carillon.StatusReply) int { return -jobsIn(s, carillon.StatusPaused) },
	}, "Let paused jobs fire again. Fires missed while they were paused are skipped and counted.")
}
