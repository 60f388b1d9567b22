package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func newServeCommand() *cobra.Command {
	return ownFlags(&cobra.Command{
		Use: "serve", Short: "Run an engine", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return errors.New("serve is not built in") },
	})
}
