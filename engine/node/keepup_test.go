package node

import (
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/wal"
)

// A partition whose checkpoint came from another node has what the local log has above it, and is not followed where that
// begins too late.
func TestKeepUp(t *testing.T) {
	for _, c := range []struct {
		what string
		cut  uint64 // the local log begins there
		err  string
	}{
		{"all that comes next is there", 6, ""},
		{"a record is missing", 7, "the local log was cut to 7"},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := &Node{
				o: Options{Data: t.TempDir(), NATS: "nats://elsewhere"}.withDefaults(), layout: engine.Layout{Prefix: "carillon", Partitions: 1},
				meters: newWeb().meters,
			}
			n.log = n.o.Logger
			n.clock.begin(false)
			open := func(dir string, profile wal.Profile) *wal.Store {
				store, err := wal.OpenStore(wal.Options{Dir: dir, Profile: profile})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := store.Close(); err != nil {
						t.Error(err)
					}
				})
				return store
			}
			n.local = open(n.o.Data+"/log", wal.ProfileLog).Log()
			n.saved = snapshot.OpenTable(open(n.o.Data+"/jobs", wal.ProfileTable))
			const last = 10
			giver := engine.New(n.layout, 0)
			p := &partition{machine: giver, chain: engine.NewChain(), table: table{saved: n.saved}}
			n.partitions = []*partition{p}
			p.follows.Store(true)
			for seq := uint64(1); seq <= last; seq++ {
				r := engine.Record{
					Seq: seq, Time: time.Now().UnixNano(), Subject: "carillon.log.0.put.job-" + string('a'+rune(seq)), Data: []byte(`{"schedule":"@at 2038-01-01T00:00:00Z"}`),
				}
				if err := n.local.Append([]wal.Record{{Seq: seq, Data: engine.AppendRecord(nil, &r)}}); err != nil {
					t.Fatal(err)
				}
				if seq > 5 {
					continue
				}
				e := n.layout.Decode(&r)
				if _, err := giver.Apply(&e); err != nil {
					t.Fatal(err)
				}
				n.applied.Store(seq)
			}
			if err := n.takeCheckpoint(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			p.follows.Store(false)
			p.machine = engine.New(n.layout, 0)
			if err := n.local.Truncate(c.cut); err != nil {
				t.Fatal(err)
			}

			_, err := n.keepUp(t.Context(), p)
			t.Cleanup(func() {
				if err := p.table.close(); err != nil {
					t.Error(err)
				}
			})
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || p.follows.Load() {
					t.Errorf("%v; followed: %t", err, p.follows.Load())
				}
				return
			}
			if st := p.machine.Stats(); err != nil || !p.follows.Load() || st.Jobs != last || p.upTo != last {
				t.Errorf("%v; followed: %t, %d jobs up to %d", err, p.follows.Load(), st.Jobs, p.upTo)
			}
		})
	}
}
