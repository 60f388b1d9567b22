package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

func newSnapshotSaveCommand(a *app) *cobra.Command {
	var f archiveFlags
	var s saver
	c := &cobra.Command{
		Use:   "save [DIR]",
		Short: "Save a snapshot of all jobs",
		Long: `Save a snapshot of all jobs of a service while it fires, or with --data of one that is stopped. What the archive has
already is not written again, so any save but the first is short; and yet each snapshot stands alone.

The service writes it: DIR is a directory on its machine, made if absent; a relative one is taken from where this
command runs. With --bucket the archive is a JetStream Object Store of the service's NATS. Ctrl-C gives the save up.`,
		Example: `  carillon snapshot save /backup/carillon
  carillon -s nats://acme:4222 snapshot save /backup/carillon --json
  carillon snapshot save --bucket carillon-snapshots
  carillon snapshot save /backup/carillon --data /var/lib/carillon`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := f.check(args); err != nil {
				return err
			}
			s.app, s.began = a, time.Now()
			if s.data == "" {
				return s.ask(c.Context(), f.bucket, args)
			}
			if f.bucket != "" {
				return usagef("--data saves into a directory: a bucket's NATS may be the one that is stopped")
			}
			if err := noConnection(c); err != nil {
				return err
			}
			return s.stopped(c.Context(), args[0])
		},
	}
	f.flags(c)
	c.Flags().Var((*nonEmpty)(&s.data), "data", "save this data `directory` of a stopped service")
	c.Flags().BoolVar(&s.recheck, "recheck", false, "compare blocks that the archive has, and mend those that differ")
	return c
}

// saver is one 'snapshot save'.
type saver struct {
	data    string
	recheck bool

	app   *app
	began time.Time
}

// savedReport is a save as JSON.
type savedReport struct {
	ID           string  `json:"id"`
	Archive      string  `json:"archive"`
	Partitions   int     `json:"partitions"`
	Rows         uint64  `json:"rows"`
	Blocks       uint64  `json:"blocks"`
	Written      int     `json:"blocks_written"`
	WrittenBytes int64   `json:"bytes_written"`
	Elapsed      float64 `json:"elapsed_s"`
}

// ask makes the service save.
func (s *saver) ask(ctx context.Context, bucket string, args []string) error {
	r := carillon.SnapshotRequest{Bucket: bucket, Recheck: s.recheck}
	if bucket == "" {
		dir, err := filepath.Abs(args[0])
		if err != nil {
			return err
		}
		r.Dir = dir
	}
	nc, client, err := s.app.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	bar := s.app.newBlocksProgress("save")
	done, err := client.SaveSnapshot(ctx, r, func(now carillon.SnapshotReply) {
		if now.Phase == carillon.SnapshotWrite {
			bar.show(archive.Progress{Done: now.Done, Total: now.Total, Pairs: now.Rows, Blocks: now.Blocks})
		}
	})
	bar.end()
	if err != nil {
		return err
	}
	return s.show(savedReport{
		ID: done.ID, Archive: done.Archive, Partitions: done.Partitions, Rows: done.Rows, Blocks: done.Blocks, Written: done.Written, WrittenBytes: done.WrittenBytes,
	})
}

// stopped saves a data directory.
func (s *saver) stopped(ctx context.Context, dir string) error {
	bar := s.app.newBlocksProgress("save")
	t := archive.OpenDir(nil, dir)
	saved, err := node.SaveStopped(ctx, node.Options{Data: s.data}, t, node.SaveOptions{Recheck: s.recheck, Progress: bar.show})
	bar.end()
	if err != nil {
		return err
	}
	totals := saved.Manifest.Totals()
	return s.show(savedReport{
		ID: saved.Manifest.ID, Archive: t.String(), Partitions: len(saved.Manifest.Partitions), Rows: totals.Pairs, Blocks: totals.Blocks,
		Written: saved.Written, WrittenBytes: saved.Bytes,
	})
}

func (s *saver) show(r savedReport) error {
	r.Elapsed = time.Since(s.began).Seconds()
	if s.app.json {
		return s.app.marshal(r)
	}
	return s.app.line("saved %s: %s in %s, %d of them new, %s, in %s (%s)", r.ID, count(r.Rows, "row"), count(r.Blocks, "block"), r.Written,
		size(r.WrittenBytes), fmt.Sprintf("%.1f s", r.Elapsed), rate(r.Rows, "rows", r.Elapsed))
}

// rate formats how many of something there were a second, for people.
func rate(n uint64, what string, seconds float64) string {
	return fmt.Sprintf("%.0f %s/s", float64(n)/max(seconds, 1e-3), what)
}
