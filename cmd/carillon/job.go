package main

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
)

func newJobCommand(a *app) *cobra.Command {
	c := group("job", "Put, look at and change jobs",
		newJobPutCommand(a), newJobGetCommand(a), newJobListCommand(a), newJobDeleteCommand(a), newJobPauseCommand(a),
		newJobResumeCommand(a), newJobFireCommand(a), newJobImportCommand(a), newJobExportCommand(a),
	)
	c.Example = `  carillon job put report --cron '0 9 * * MON-FRI' --zone Europe/Paris
  carillon job list --label team=billing
  carillon job fire report`
	return c
}

// printJob prints on one line the state of a job after a command.
func (a *app) printJob(r *carillon.JobReply) error {
	if a.json {
		return a.raw(r.AppendJSON(nil))
	}
	s := fmt.Sprintf("%s is %s at version %d", r.ID, r.Status, r.Version)
	if !r.Next.IsZero() {
		s += ", next " + formatTime(r.Next)
	}
	if r.Trigger != "" {
		s += ", fired " + r.Trigger
	}
	return a.line("%s", s)
}

// pairs reads repeated flags of the form name=value.
func pairs(flag string, given []string) (map[string]string, error) {
	if len(given) == 0 {
		return nil, nil
	}
	m := make(map[string]string, len(given))
	for _, s := range given {
		name, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, usagef("--%s %q is not of the form name=value", flag, s)
		}
		if !utf8.ValidString(s) {
			return nil, usagef("--%s %q is not UTF-8", flag, s)
		}
		if _, twice := m[name]; twice {
			return nil, usagef("--%s gives %q twice", flag, name)
		}
		m[name] = value
	}
	return m, nil
}
