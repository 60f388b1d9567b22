package main

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

func newSnapshotPruneCommand(a *app) *cobra.Command {
	var f archiveFlags
	var o archive.PruneOptions
	c := &cobra.Command{
		Use:   "prune [DIR]",
		Short: "Drop old snapshots",
		Long: `Drop snapshots, and then the blocks that none of the others names. With both --keep and --older-than a snapshot must
meet both to go. Of services that share an archive each keeps its own. Without any flag only blocks go that an
interrupted save or prune left.

It can be interrupted at any moment. While it runs nobody saves into the archive, and it does not begin while somebody
does. A snapshot that cannot be read ends it, as nobody knows what it names, unless --drop names it.`,
		Example: `  carillon snapshot prune /backup/carillon --keep 7
  carillon snapshot prune /backup/carillon --keep 7 --older-than 720h --dry-run
  carillon snapshot prune --bucket carillon-snapshots --drop 20270115T080000.123Z-2f8a61c09d3b4e57`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := within(c, "keep", 1, math.MaxInt64, ""); err != nil {
				return err
			}
			if err := notNegative(c, "older-than"); err != nil {
				return err
			}
			o.Now = time.Now()
			return f.use(c.Context(), a, args, func(t archive.Target) error {
				bar := a.newProgress("prune", -1, false)
				bar.unit = "blocks"
				o.Progress = func(int, int) { bar.step(1) }
				p, err := archive.Prune(c.Context(), t, o)
				bar.end()
				if errors.Is(err, archive.ErrNotFound) {
					return fmt.Errorf("%w; if a prune that was interrupted has dropped it, one without it goes on", err)
				}
				if err != nil {
					return err
				}
				return a.showPruned(p, o.DryRun)
			})
		},
	}
	f.flags(c)
	c.Flags().IntVar(&o.Keep, "keep", 0, "the `number` of newest snapshots of each service that stay")
	c.Flags().DurationVar(&o.OlderThan, "older-than", 0, "drop what is older, e.g. 720h")
	c.Flags().Var((*nonEmpties)(&o.Drop), "drop", "drop this `snapshot`, also a damaged one; may be repeated")
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "say what would go, and change nothing")
	return c
}

// prunedReport is a prune as JSON.
type prunedReport struct {
	Dropped []string `json:"dropped"`
	Kept    []string `json:"kept"`
	Blocks  int      `json:"blocks_removed"`
	Bytes   int64    `json:"bytes_freed"`
	DryRun  bool     `json:"dry_run,omitempty"`
}

func (a *app) showPruned(p *archive.Pruned, dryRun bool) error {
	if a.json {
		return a.marshal(prunedReport{append([]string{}, p.Dropped...), append([]string{}, p.Kept...), p.Blocks, p.Bytes, dryRun})
	}
	dropped, freed := "dropped", "freed"
	if dryRun {
		dropped, freed = "would drop", "would free"
	}
	for _, id := range p.Dropped {
		if err := a.line("%s %s", dropped, id); err != nil {
			return err
		}
	}
	return a.line("%s kept; %s %s, %s", count(len(p.Kept), "snapshot"), freed, count(p.Blocks, "block"), size(p.Bytes))
}
