package main

import "github.com/spf13/cobra"

func newLogCommand(a *app) *cobra.Command {
	return group("log", "Look into the log of commands and ticks", newLogDumpCommand(a))
}
