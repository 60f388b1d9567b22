package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

func newSnapshotVerifyCommand(a *app) *cobra.Command {
	var f archiveFlags
	var ids []string
	c := &cobra.Command{
		Use:   "verify [DIR]",
		Short: "Check every byte of snapshots",
		Long: `Read the snapshots of an archive with all their blocks and check every byte against checksums. It goes on after a
problem; each is told with file and offset, and the exit code is 1. What is damaged is never restored.`,
		Example: `  carillon snapshot verify /backup/carillon
  carillon snapshot verify /backup/carillon --id 20270115T080000.123Z-2f8a61c09d3b4e57
  carillon snapshot verify --bucket carillon-snapshots --json`,
		RunE: func(c *cobra.Command, args []string) error {
			return f.use(c.Context(), a, args, func(t archive.Target) error {
				bar := a.newBlocksProgress("verify")
				v, err := archive.Verify(c.Context(), t, ids, bar.show)
				bar.end()
				if err != nil {
					return err
				}
				return a.showVerified(t, v)
			})
		},
	}
	f.flags(c)
	c.Flags().Var((*nonEmpties)(&ids), "id", "only this `snapshot`; may be repeated (default all)")
	return c
}

// verifiedReport is a verification as JSON.
type verifiedReport struct {
	Archive   string        `json:"archive"`
	Snapshots int           `json:"snapshots"`
	Blocks    int           `json:"blocks"`
	Bytes     int64         `json:"bytes"`
	Rows      uint64        `json:"rows"`
	Unused    int           `json:"unused_blocks"`
	Problems  []problemLine `json:"problems"`
}

type problemLine struct {
	File      string   `json:"file,omitempty"`
	Offset    int64    `json:"offset"`
	Problem   string   `json:"problem"`
	Snapshots []string `json:"snapshots"`
}

func (a *app) showVerified(t archive.Target, v *archive.Verified) error {
	problems := make([]problemLine, 0, len(v.Problems))
	for _, p := range v.Problems {
		l := problemLine{Problem: p.Err.Error(), Snapshots: p.Snapshots}
		if d, ok := errors.AsType[*archive.Damage](p.Err); ok {
			l.File, l.Offset, l.Problem = d.File, d.Offset, d.What
		}
		problems = append(problems, l)
	}
	if a.json {
		if err := a.marshal(verifiedReport{t.String(), v.Snapshots, v.Blocks, v.Bytes, v.Pairs, v.Unused, problems}); err != nil {
			return err
		}
	} else if err := a.printVerified(v); err != nil {
		return err
	}
	switch {
	case len(v.Problems) > 0:
		return fmt.Errorf("%s is damaged: %s", t, count(len(v.Problems), "problem"))
	case v.Snapshots == 0:
		return fmt.Errorf("there is no snapshot in %s", t)
	}
	return nil
}

func (a *app) printVerified(v *archive.Verified) error {
	for _, p := range v.Problems {
		if err := a.line("%v (%s)", p.Err, strings.Join(p.Snapshots, ", ")); err != nil {
			return err
		}
	}
	unused := ""
	if v.Unused > 0 {
		unused = fmt.Sprintf("; %s in no snapshot", count(v.Unused, "block"))
	}
	return a.line("%s, %s, %s, %s%s", count(v.Snapshots, "snapshot"), count(v.Blocks, "block"), count(v.Pairs, "row"), size(v.Bytes), unused)
}
