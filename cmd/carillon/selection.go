package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
)

// selectionFlags adds the flags of a selection.
func selectionFlags(c *cobra.Command, s *carillon.Selection) {
	f := c.Flags()
	f.Var((*nonEmpty)(&s.Prefix), "prefix", "only jobs whose ids begin with this `prefix`")
	f.Var((*nonEmpty)(&s.Label), "label", "only jobs with this label, `name=value` or name")
	f.Var((*nonEmpty)(&s.Owner), "owner", "only jobs of this `owner`")
}

// checkSelection makes the service's checks for a selection that is not sent to it. An empty selection includes all jobs.
func checkSelection(s carillon.Selection) error {
	if s == (carillon.Selection{}) {
		return nil
	}
	body, err := json.Marshal(s)
	if err != nil {
		return err
	}
	_, err = carillon.ParseSelection(body)
	return err
}

func describeSelection(s carillon.Selection) string {
	var parts []string
	for _, p := range []struct{ name, value string }{{"prefix", s.Prefix}, {"label", s.Label}, {"owner", s.Owner}} {
		if p.value != "" {
			parts = append(parts, fmt.Sprintf("%s %q", p.name, p.value))
		}
	}
	return strings.Join(parts, " and ")
}
