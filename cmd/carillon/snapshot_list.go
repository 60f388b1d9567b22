package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

func newSnapshotListCommand(a *app) *cobra.Command {
	var f archiveFlags
	c := &cobra.Command{
		Use:   "list [DIR]",
		Short: "Show the snapshots of an archive",
		Long: `Show the snapshots of an archive, newest first. Rows are those of the engine's table: a pending job has three. Bytes
are those on disk of all blocks that the snapshot names; snapshots of one archive share the blocks that are equal.
It reads manifests only; 'carillon snapshot verify' reads all.`,
		Example: `  carillon snapshot list /backup/carillon
  carillon snapshot list --bucket carillon-snapshots --json`,
		RunE: func(c *cobra.Command, args []string) error {
			return f.use(c.Context(), a, args, func(t archive.Target) error {
				entries, err := archive.List(c.Context(), t)
				if dir, ok := t.(*archive.Dir); ok && err == nil && len(entries) == 0 {
					err = dir.Check() // a directory that was given by mistake has no snapshots either
				}
				if err != nil {
					return err
				}
				return a.showSnapshots(t, entries)
			})
		},
	}
	f.flags(c)
	return c
}

// snapshotLine is a snapshot as JSON.
type snapshotLine struct {
	ID         string              `json:"id"`
	Time       string              `json:"time,omitempty"`
	Prefix     string              `json:"prefix,omitempty"`
	Versions   *archive.Versions   `json:"versions,omitempty"`
	Partitions []snapshotPartition `json:"partitions,omitempty"`
	Rows       uint64              `json:"rows"`
	Blocks     uint64              `json:"blocks"`
	Bytes      int64               `json:"bytes"`
	Error      string              `json:"error,omitempty"` // why its manifest cannot be read
}

type snapshotPartition struct {
	Partition uint16 `json:"partition"`
	Position  uint64 `json:"position"`
	Time      string `json:"time,omitempty"`
}

func newSnapshotLine(e archive.Entry) snapshotLine {
	l := snapshotLine{ID: e.ID}
	if e.Err != nil {
		l.Error = e.Err.Error()
		return l
	}
	m, totals := e.Manifest, e.Manifest.Totals()
	l.Time, l.Prefix, l.Versions = formatTime(m.Time), m.Prefix, &m.Versions
	l.Rows, l.Blocks, l.Bytes = totals.Pairs, totals.Blocks, totals.Bytes
	for _, p := range m.Partitions {
		s := snapshotPartition{Partition: p.Partition, Position: p.Position}
		if !p.Time.IsZero() {
			s.Time = formatTime(p.Time)
		}
		l.Partitions = append(l.Partitions, s)
	}
	return l
}

func (a *app) showSnapshots(t archive.Target, entries []archive.Entry) error {
	lines := make([]snapshotLine, 0, len(entries))
	for _, e := range entries {
		lines = append(lines, newSnapshotLine(e))
	}
	if a.json {
		return a.marshal(map[string]any{"archive": t.String(), "snapshots": lines})
	}
	w := a.table()
	fmt.Fprintln(w, "ID\tTIME\tPREFIX\tPARTITIONS\tROWS\tBYTES\tERROR")
	for _, l := range lines {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\n", l.ID, orDash(l.Time), orDash(l.Prefix), len(l.Partitions), l.Rows, size(l.Bytes), orDash(l.Error))
	}
	return w.Flush()
}
