package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

func newVersionCommand(a *app) *cobra.Command {
	return ownFlags(&cobra.Command{
		Use:   "version",
		Short: "Show the versions of this binary and its parts",
		Long: `Show the versions of this binary and its parts. Engines of one service must agree on logic, the version of the rules
by which the log becomes triggers, and on tzdata, the release of the zone rules.`,
		Example: `  carillon version
  carillon version --json`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Carillon   string `json:"carillon"`
				Logic      int    `json:"logic"`
				Tzdata     string `json:"tzdata"`
				NATSServer string `json:"nats_server"`
				Pebble     string `json:"pebble"`
				Go         string `json:"go"`
			}{
				node.Version(), engine.Logic, schedule.TZVersion(), moduleVersion("github.com/nats-io/nats-server/v2"),
				moduleVersion("github.com/cockroachdb/pebble/v2"), runtime.Version(),
			}
			if a.json {
				return a.marshal(v)
			}
			w := a.table()
			fmt.Fprintf(w, "carillon\t%s\nlogic\t%d\ntzdata\t%s\nnats-server\t%s\npebble\t%s\ngo\t%s\n",
				v.Carillon, v.Logic, v.Tzdata, v.NATSServer, v.Pebble, v.Go)
			return w.Flush()
		},
	})
}

// moduleVersion is the version of a module in this binary.
func moduleVersion(path string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == path {
				return m.Version
			}
		}
	}
	return "unknown"
}
