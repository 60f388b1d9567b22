package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

func newSnapshotCommand(a *app) *cobra.Command {
	return group("snapshot", "Save, restore and look after snapshots",
		newSnapshotSaveCommand(a), newSnapshotRestoreCommand(a), newSnapshotListCommand(a), newSnapshotVerifyCommand(a), newSnapshotPruneCommand(a))
}

// archiveFlags say where an archive is: in a directory, or in a bucket on the service's NATS.
type archiveFlags struct{ bucket string }

func (f *archiveFlags) flags(c *cobra.Command) {
	c.Args = cobra.MaximumNArgs(1)
	c.Flags().Var((*nonEmpty)(&f.bucket), "bucket", "the archive is this JetStream Object Store `bucket`, in place of DIR")
}

func (f *archiveFlags) check(args []string) error {
	switch {
	case len(args) == 0 && f.bucket == "", len(args) > 0 && args[0] == "":
		return usagef("give a directory or --bucket")
	case len(args) > 0 && f.bucket != "":
		return usagef("give a directory or --bucket, not both")
	}
	return nil
}

// use opens the archive that a command line names.
func (f *archiveFlags) use(ctx context.Context, a *app, args []string, do func(archive.Target) error) error {
	if err := f.check(args); err != nil {
		return err
	}
	if f.bucket == "" {
		info, err := os.Stat(args[0])
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is no directory", args[0])
		}
		if err != nil {
			return err // opening the archive would make it
		}
		return do(archive.OpenDir(nil, args[0]))
	}
	nc, _, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := archive.JetStream(nc, a.connection.timeout)
	if err != nil {
		return err
	}
	opening, cancel := context.WithTimeout(ctx, a.connection.timeout)
	defer cancel()
	store, err := js.ObjectStore(opening, f.bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return fmt.Errorf("there is no bucket %s", f.bucket)
	}
	if err != nil {
		return fmt.Errorf("bucket %s: %w", f.bucket, err)
	}
	return do(archive.NewBucket(f.bucket, js, store))
}

// size formats bytes for people: 1.5 MiB.
func size(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n), 0
	for ; f >= 1<<10 && unit < 4; unit++ {
		f /= 1 << 10
	}
	return fmt.Sprintf("%.1f %s", f, []string{"B", "KiB", "MiB", "GiB", "TiB"}[unit])
}
