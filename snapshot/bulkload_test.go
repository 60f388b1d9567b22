package snapshot

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/carillon-scheduler/carillon/wal"
)

// After a random history, Rooms and Live show the newest checkpoint without what that one gave up. When they are filled into
// another table, that is a first checkpoint, on which the next ones build.
func TestLiveAndBulkLoad(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 1))
		store, err := wal.OpenStore(tableOptions(vfs.NewMem()))
		must(t, err)
		table := small(store)
		h := walk(t, table, newHistory(), rng, 1+rng.IntN(6))
		want := h.newest.settle()
		otherStore, err := wal.OpenStore(tableOptions(vfs.NewMem()))
		must(t, err)
		other := small(otherStore)
		fill, err := other.BulkLoad(5)
		must(t, err)
		must(t, table.View(5, func(v *View) error {
			rooms, err := v.Rooms()
			if err != nil {
				return err
			}
			got := noRows().Pairs
			for _, room := range rooms {
				if err := v.Live(room, func(key, value []byte) error {
					got[room][string(key)] = string(value)
					return fill.Set(room, key, value)
				}); err != nil {
					return err
				}
			}
			if d := cmp.Diff(want.Pairs, got); d != "" {
				return errors.New(d)
			}
			return nil
		}))
		base, err := fill.Commit(want.Base.Position, []byte(want.State))
		must(t, err)
		if base != (Checkpoint{1, want.Base.Position}) {
			t.Fatalf("base is %v", base)
		}

		want.Base = base
		filled := history{want, noRows()}
		must(t, filled.check(other, 5, rng))
		// The next step's keys of appending rooms are above those that are there.
		want.Base.ID = h.newest.Base.ID
		b, next, err := history{want, noRows()}.step(other, 5, rng, 300)
		must(t, err)
		_, err = b.Commit()
		must(t, err)
		next.newest.Base.ID, next.older.Base = 2, base
		must(t, next.check(other, 5, rng))
		must(t, errors.Join(store.Close(), otherStore.Close()))
	}
}

func TestBulkLoadMisuse(t *testing.T) {
	fs := vfs.NewMem()
	store, err := wal.OpenStore(tableOptions(fs))
	must(t, err)
	defer closeStore(t, store)
	table := small(store)
	for _, c := range []struct {
		pairs []string // room and key
		want  string
	}{
		{[]string{"wb", "wa"}, "comes after"},
		{[]string{"wa", "wa"}, "comes after"},
		{[]string{"wa", "ia"}, "comes after"},
		{[]string{"ab"}, "the table's own"},
		{[]string{"ub"}, "the table's own"},
	} {
		fill, err := table.BulkLoad(1)
		must(t, err)
		if _, err := table.BulkLoad(1); !errors.Is(err, ErrBusy) {
			t.Fatalf("a second BulkLoad: %v", err)
		}
		for _, p := range c.pairs {
			err = fill.Set(p[0], []byte(p[1:]), nil)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.pairs, err)
		}
		if _, cerr := fill.Commit(1, nil); cerr == nil {
			t.Errorf("%q: committed", c.pairs)
		}
		fill.Abort()
	}
	list, err := table.List(1)
	must(t, err)
	if len(list) != 0 {
		t.Errorf("there is a checkpoint: %v", list)
	}
	left, err := fs.List("db/building")
	must(t, err)
	if len(left) > 0 {
		t.Errorf("%q are left", left)
	}
	fill, err := table.BulkLoad(1)
	must(t, err)
	_, err = fill.Commit(7, nil)
	must(t, err)
	if _, err := fill.Commit(7, nil); err == nil {
		t.Error("committed twice")
	}
	if _, err := table.BulkLoad(1); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("BulkLoad into a full partition: %v", err)
	}
	must(t, table.View(1, func(v *View) error {
		rooms, err := v.Rooms()
		if err == nil && len(rooms) > 0 {
			err = fmt.Errorf("rooms %q in %v", rooms, slices.Collect(maps.Keys(v.marks)))
		}
		return err
	}))
}
