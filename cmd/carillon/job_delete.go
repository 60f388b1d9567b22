package main

import (
	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
)

func newJobDeleteCommand(a *app) *cobra.Command {
	return a.newChangeCommand(change{
		verb: "delete", past: "deleted",
		example: `  carillon job delete invoice-7
  carillon job delete invoice-7 --if-version 3
  carillon job delete --prefix invoice- --label team=billing --yes`,
		one:  (*carillon.Client).Delete,
		many: (*carillon.Client).DeleteWhere,
		done: func(s *carillon.StatusReply) int { return -jobsIn(s, "") },
	}, "Delete jobs, with their fires that are still to come or waiting.")
}
