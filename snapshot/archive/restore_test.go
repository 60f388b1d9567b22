package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
)

// Into another number of partitions, and some left out: by a hash of the key in room i, and by formulas in the others.
func TestRoute(t *testing.T) {
	ctx := t.Context()
	mem := vfs.NewMem()
	target := OpenDir(mem, "archive")
	all := fixture(t, mem, target, 400)
	saved, err := Get(ctx, target, "")
	must(t, err)
	for _, partitions := range []int{1, 3, 5} {
		route := func(from uint16, room byte, key, value []byte) (Routed, bool, error) {
			h := fnv.New32a()
			_, _ = h.Write(value)
			to := Routed{Partition: uint16(h.Sum32() % uint32(partitions)), Key: append(bytes.Clone(key), byte(from)), Value: value}
			return to, len(value)%7 > 0, nil
		}
		want := make([]content, partitions)
		for i := range want {
			want[i] = content{Position: uint64(100 + i), State: fmt.Sprint("new ", i), Pairs: map[string]string{}}
		}
		routed := 0
		for from, c := range all {
			for full, value := range c.Pairs {
				to, keep, err := route(uint16(from), full[0], []byte(full[1:]), []byte(value))
				must(t, err)
				if keep {
					want[to.Partition].Pairs[full[:1]+string(to.Key)] = value
				}
			}
		}
		_, err := Restore(ctx, target, "", "new", RestoreOptions{
			FS: mem, Partitions: partitions,
			Route: func(from uint16, room byte, key, value []byte) (Routed, bool, error) {
				routed++
				return route(from, room, key, value)
			},
			States: func() (states []State, err error) {
				if pairs := saved.Totals().Pairs; uint64(routed) != pairs {
					return nil, fmt.Errorf("asked for states after %d of %d pairs", routed, pairs)
				}
				for _, c := range want {
					states = append(states, State{c.Position, []byte(c.State)})
				}
				return states, nil
			},
		})
		must(t, err)
		got, err := restored(mem, "new", partitions)
		must(t, err)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatal(d)
		}
		must(t, mem.RemoveAll("new"))
	}
}

// An archive on disk, and a directory that was restored from it, are closed to others than the user and the group.
func TestOthersCannotEnter(t *testing.T) {
	dir := t.TempDir()
	archive, data := dir+"/made/archive", dir+"/data"
	target := OpenDir(nil, archive)
	fixture(t, vfs.NewMem(), target, 60)
	_, err := Restore(t.Context(), target, "", data, RestoreOptions{})
	must(t, err)
	for _, d := range []string{archive, archive + "/blocks", archive + "/snapshots", data, data + "/jobs"} {
		info, err := os.Stat(d)
		must(t, err)
		if info.Mode()&0o027 != 0 {
			t.Errorf("%s has mode %s", d, info.Mode())
		}
	}
}

func TestRestoreRefuses(t *testing.T) {
	ctx := t.Context()
	mem := vfs.NewMem()
	target := OpenDir(mem, "archive")
	fixture(t, mem, target, 400) // rooms of more blocks than are read ahead
	keep := func(from uint16, room byte, key, value []byte) (Routed, bool, error) {
		return Routed{Partition: from, Key: key, Value: value}, true, nil
	}
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		o    RestoreOptions
		want string
	}{
		"partitions without route":  {RestoreOptions{Partitions: 3}, "2 partitions into 3"},
		"partitions without states": {RestoreOptions{Partitions: 3, Route: keep}, "2 partitions into 3"},
		"route's error": {RestoreOptions{Route: func(uint16, byte, []byte, []byte) (Routed, bool, error) {
			return Routed{}, false, boom
		}}, "boom"},
		"an unknown partition": {RestoreOptions{Route: func(_ uint16, _ byte, key, value []byte) (Routed, bool, error) {
			return Routed{2, key, value}, true, nil
		}}, "partition 2 of 2"},
		"order": {RestoreOptions{Route: func(_ uint16, _ byte, key, value []byte) (Routed, bool, error) {
			down := bytes.Clone(key)
			for i := range down {
				down[i] = ^down[i]
			}
			return Routed{0, down, value}, true, nil
		}}, "comes after"},
		"one key twice": {RestoreOptions{Route: func(_ uint16, _ byte, key, value []byte) (Routed, bool, error) {
			return Routed{0, key, value}, true, nil
		}}, "comes after"},
		"states":  {RestoreOptions{States: func() ([]State, error) { return make([]State, 1), nil }}, "states of 1"},
		"finish":  {RestoreOptions{Finish: func(string) error { return boom }}, "boom"},
		"context": {RestoreOptions{}, "canceled"},
	} {
		ctx, cancel := context.WithCancel(ctx)
		if name == "context" {
			c.o.Progress = func(Progress) { cancel() }
		}
		c.o.FS = mem
		_, err := Restore(ctx, target, "", "new", c.o)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		for _, dir := range []string{"new", "new.tmp"} {
			if _, err := mem.Stat(dir); err == nil {
				t.Fatalf("%s: %s is left", name, dir)
			}
		}
	}
	must(t, mem.MkdirAll("new/x", 0o755))
	_, err := Restore(ctx, target, "", "new", RestoreOptions{FS: mem})
	wantErr(t, err, ErrNotEmpty)
	must(t, mem.RemoveAll("new/x"))
	must(t, mem.MkdirAll("new.tmp/x", 0o755)) // not a restore's
	_, err = Restore(ctx, target, "", "new", RestoreOptions{FS: mem})
	wantErr(t, err, ErrNotEmpty)
	_, err = mem.Stat("new.tmp/x")
	must(t, err)
	must(t, mem.RemoveAll("new.tmp"))
	lock, err := lockBuildDir(mem, "new.tmp")
	must(t, err)
	_, err = Restore(ctx, target, "", "new", RestoreOptions{FS: mem})
	wantErr(t, err, ErrLocked)
	must(t, lock.Close())
	// Into an empty directory, over what an interrupted restore left; and Finish sees the table.
	finished := false
	_, err = Restore(ctx, target, "", "new", RestoreOptions{FS: mem, Finish: func(dir string) error {
		finished = true
		_, err := mem.Stat(dir + "/" + TableDir)
		return err
	}})
	must(t, err)
	names, err := mem.List("new")
	must(t, err)
	if !finished || !slices.Equal(names, []string{TableDir}) {
		t.Errorf("finished: %v, there is %q", finished, names)
	}
}
