package archive

import (
	"context"
	"math"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/wal"
)

// A partition goes from one table to another by way of a part. And a table that lacks some of the partitions saves exactly the
// snapshot that a table with all of them does, with the rest from parts.
func TestParts(t *testing.T) {
	ctx := t.Context()
	mem := vfs.NewMem()
	whole, parts := OpenDir(mem, "archive"), OpenDir(mem, "parts")
	all := fixture(t, mem, whole, 400)
	m, err := Get(ctx, whole, "")
	must(t, err)
	_, err = Restore(ctx, whole, "", "all", RestoreOptions{FS: mem})
	must(t, err)
	store, table, err := openTable(mem, mem.PathJoin("all", TableDir))
	must(t, err)
	defer func() { must(t, store.Close()) }()
	o := SaveOptions{Partitions: len(all), Prefix: m.Prefix, sizes: smallSizes}
	part := func(p uint16) string {
		t.Helper()
		o := o
		o.Only = []uint16{p}
		saved, err := Save(ctx, table, parts, o)
		must(t, err)
		return saved.Manifest.ID
	}
	last := uint16(len(all) - 1)
	first := part(last)

	_, err = Get(ctx, parts, "")
	wantErr(t, err, ErrPart)
	_, err = Restore(ctx, parts, first, "new", RestoreOptions{FS: mem})
	wantErr(t, err, ErrPart)

	less, lacks, err := openTable(mem, "lacks")
	must(t, err)
	defer func() { must(t, less.Close()) }()
	for p := range last {
		position, err := RestorePart(ctx, parts, part(p), m.Prefix, lacks, p, 1)
		must(t, err)
		if position != all[p].Position {
			t.Errorf("partition %d is at %d, want %d", p, position, all[p].Position)
		}
	}
	_, err = RestorePart(ctx, parts, first, m.Prefix, lacks, 0, 1)
	wantErr(t, err, ErrNotFound) // another partition
	if _, err := RestorePart(ctx, parts, first, "other", lacks, last, 1); err == nil {
		t.Error("a part of another service was taken")
	}
	_, err = RestorePart(ctx, parts, part(0), m.Prefix, lacks, 0, 1)
	wantErr(t, err, snapshot.ErrNotEmpty)

	elsewhere := func(_ context.Context, p uint16) (Target, string, error) {
		if p == last {
			return parts, first, nil
		}
		return nil, "", nil
	}
	o.FindPart = elsewhere
	again := OpenDir(mem, "again")
	o.Prefix = "other"
	if _, err := Save(ctx, lacks, again, o); err == nil {
		t.Error("a part of another service was saved")
	}
	o.Prefix = m.Prefix
	saved, err := Save(ctx, lacks, again, o)
	must(t, err)
	o.FindPart = nil
	want, err := Save(ctx, table, OpenDir(mem, "want"), o)
	must(t, err)
	if d := cmp.Diff(want.Manifest.Partitions, saved.Manifest.Partitions); d != "" {
		t.Error(d)
	}
	_, err = clean(again)
	must(t, err)

	// Damage is noticed before anything is restored.
	block := saved.Manifest.Partitions[last].Rooms[0].Blocks[0]
	file, err := parts.Get(ctx, block.Name(), math.MaxInt64)
	must(t, err)
	file[len(file)/2] ^= 1
	must(t, parts.Put(ctx, block.Name(), file))
	_, err = RestorePart(ctx, parts, first, m.Prefix, lacks, last, 1)
	wantErr(t, err, wal.ErrCorrupt)
	if there, err := lacks.List(last); err != nil || len(there) > 0 {
		t.Errorf("of a damaged part there is %v, %v", there, err)
	}
	o.FindPart = elsewhere
	_, err = Save(ctx, lacks, OpenDir(mem, "spoilt"), o)
	wantErr(t, err, wal.ErrCorrupt)
}
