package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/wal"
)

// A log stream that ends before the local log begins may be an older copy, and is healed. It is none if its last record is younger than
// the first of the local log.
func TestStreamEndsBeforeTheLocalLog(t *testing.T) {
	_, s := openStreams(t)
	began := time.Now().UnixNano()
	later, earlier := began+int64(time.Hour), began-int64(2*steppedBack)
	plain := func(at int64) func(uint64) engine.Record {
		return func(seq uint64) engine.Record {
			return engine.Record{Seq: seq, Time: at, Subject: "carillon.log.0.put.j"}
		}
	}
	heal := func(of engine.Record, at int64) func(uint64) engine.Record {
		return func(seq uint64) engine.Record {
			if of.Seq == 0 {
				of.Seq = seq
			}
			return engine.Record{Seq: seq, Time: at, Subject: "carillon.log._.heal", Data: engine.EncodeHeal(&of)}
		}
	}
	placeholder := func(seq uint64) engine.Record { return engine.Record{Seq: seq, Subject: "carillon.log._.heal"} }
	for i, c := range []struct {
		what         string
		theirs, ours func(seq uint64) engine.Record // the last record of the stream, and the first of the local log
		differ       bool
	}{
		{"an older copy", plain(0), plain(later), false},
		{"an older copy, and the clock was set back a little", plain(0), plain(began), false},
		{"a stream that was written to since", plain(0), plain(earlier), true},
		{"one that was put back in part", heal(engine.Record{Time: earlier - 1}, 0), plain(earlier), false},
		{"a younger one that was put back", heal(engine.Record{Time: began}, 0), plain(earlier), true},
		{"both are put back", heal(engine.Record{Time: earlier - 1}, 0), heal(engine.Record{Time: earlier}, later), false},
		{"the place of a record that was too large to be put back", placeholder, plain(earlier), false},
		{"a hole that was filled at the end", plain(0), heal(engine.Record{Seq: 1, Time: earlier}, later), false},
	} {
		at := uint64(i + 1)
		r := c.theirs(at)
		if _, err := s.Log.Publish(t.Context(), r.Subject, nil, r.Data); err != nil {
			t.Fatal(err)
		}
		store, err := wal.OpenStore(wal.Options{Dir: "log", FS: vfs.NewMem()})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		r = c.ours(at + 5)
		if err := store.Log().Append([]wal.Record{{Seq: r.Seq, Data: engine.AppendRecord(nil, &r)}}); err != nil {
			t.Fatal(err)
		}
		n := &Node{local: store.Log(), streams: s, layout: engine.Layout{Prefix: "carillon", Partitions: 1}}
		info, err := s.Log.Info(t.Context())
		if err != nil || info.Last != at {
			t.Fatalf("%+v, %v", info, err)
		}
		var differs *streams.DiffersError
		if err := n.compare(t.Context(), at, r.Seq, info); errors.As(err, &differs) != c.differ || !c.differ && err != nil {
			t.Errorf("%s: %v, another one is %t", c.what, err, c.differ)
		}
	}
}

// A node that the log has left behind ends, so that its partitions are first known to be followed elsewhere. Only when it starts with
// nothing it goes on from the log's end. If all losses are accepted, it keeps what it has.
func TestLeftBehindAtStart(t *testing.T) {
	const at, first, last = 2, 5, 9
	_, s := openStreams(t)
	for range last {
		if _, err := s.Log.Publish(t.Context(), "carillon.log.0.put.j", nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Log.Trim(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		empty    bool
		accepted map[int]bool
		behind   bool
		follows  bool
		goesOn   uint64
	}{
		"with a partition":       {behind: true, follows: true, goesOn: at},
		"with nothing":           {empty: true, goesOn: last},
		"with a loss, accepted":  {accepted: map[int]bool{0: true}, follows: true, goesOn: at},
		"with another partition": {accepted: map[int]bool{1: true}, behind: true, follows: true, goesOn: at},
	} {
		n := withTables(t, Options{Data: t.TempDir(), NATS: "nats://elsewhere", AcceptLoss: c.accepted}, 1)
		n.streams, n.startsEmpty = s, c.empty
		n.applied.Store(at)
		var behind *leftBehindError
		if err := n.heal(t.Context()); errors.As(err, &behind) != c.behind || !c.behind && err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if c.behind && (behind.at != at || behind.first != first || len(behind.followed) != 1) {
			t.Errorf("%s: %+v", what, behind)
		}
		if n.partitions[0].follows.Load() != c.follows || n.applied.Load() != c.goesOn {
			t.Errorf("%s: it follows its partition: %t, and goes on from %d", what, n.partitions[0].follows.Load(), n.applied.Load())
		}
	}
}

// Records are put back at their old sequences. What the local log does not have keeps its place: single ones, and all from before it
// begins, even if it has none at all. If something else has taken a place, nothing is put behind it unnoticed.
func TestPutBack(t *testing.T) {
	for what, c := range map[string]struct {
		stored []uint64 // in the local log, which has had all up to 4
		cut    uint64
		theirs int // messages in the stream that the local log knows nothing of
		want   []uint64
		err    string
	}{
		"all":              {stored: []uint64{1, 2, 3, 4}, want: []uint64{1, 2, 3, 4}},
		"one is missing":   {stored: []uint64{1, 2, 4}, want: []uint64{1, 2, 0, 4}},
		"its end only":     {stored: []uint64{1, 2, 3, 4}, cut: 4, want: []uint64{4}},
		"nothing is left":  {stored: []uint64{1, 2, 3, 4}, cut: 5},
		"a place is taken": {stored: []uint64{1, 2, 3, 4}, theirs: 1, err: "a record came to stand at 2 instead of 1"},
	} {
		t.Run(what, func(t *testing.T) {
			const last = 4
			n := withTables(t, Options{Data: t.TempDir()}, 1)
			n.nc, n.streams = openStreams(t)
			for _, seq := range c.stored {
				r := engine.Record{Seq: seq, Time: int64(seq), Subject: "carillon.log.0.put.j"}
				if err := n.local.Append([]wal.Record{{Seq: seq, Data: engine.AppendRecord(nil, &r)}}); err != nil {
					t.Fatal(err)
				}
			}
			if err := n.local.Truncate(c.cut); err != nil {
				t.Fatal(err)
			}
			for range c.theirs {
				if _, err := n.streams.Log.Publish(t.Context(), "carillon.log.0.put.j", nil, nil); err != nil {
					t.Fatal(err)
				}
			}
			err := n.putBack(t.Context(), 0, last)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Error(err)
				}
				return
			}
			info, infoErr := n.streams.Log.Info(t.Context())
			if err := errors.Join(err, infoErr); err != nil || info.Last != last || n.head.Load() != last {
				t.Fatalf("%v; the stream ends at %d, and is taken to end at %d", err, info.Last, n.head.Load())
			}
			if int(info.Messages) != len(c.want) {
				t.Errorf("%d records are there, want %d", info.Messages, len(c.want))
			}
			for i, want := range c.want {
				m, err := n.streams.Log.Get(t.Context(), uint64(last-len(c.want)+i+1))
				if err != nil {
					t.Fatal(err)
				}
				r := record(&m)
				if healed, ok := n.layout.Healed(&r); ok != (want > 0) || ok && (healed.Seq != want || healed.Time != int64(want)) {
					t.Errorf("at %d stands %+v, want %d", r.Seq, healed, want)
				}
				if r.Seq == last && !n.appliedAt.Equal(m.Time) {
					t.Errorf("the last one is taken to be of %s, and is of %s", n.appliedAt, m.Time)
				}
			}
		})
	}
}
