package main

import "github.com/spf13/cobra"

func newNodeCommand(a *app) *cobra.Command {
	return group("node", "Look after the engines that share a NATS", newNodeDrainCommand(a))
}
