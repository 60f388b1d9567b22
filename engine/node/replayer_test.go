package node

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/wal"
)

// replaying returns a node of one partition that has only its stores.
func replaying(t *testing.T, o Options) *Node {
	t.Helper()
	o.Data = t.TempDir()
	n := &Node{o: o.withDefaults(), layout: engine.Layout{Prefix: "carillon", Partitions: 1}, meters: newWeb().meters}
	n.log = n.o.Logger
	t.Cleanup(func() {
		if err := n.close(); err != nil {
			t.Error(err)
		}
	})
	var err error
	if n.logStore, err = openLogIn(n.o.Data, n.log); err != nil {
		t.Fatal(err)
	}
	n.local = n.logStore.Log()
	if n.jobStore, err = wal.OpenStore(wal.Options{Dir: n.o.Data + "/jobs", Profile: wal.ProfileTable}); err != nil {
		t.Fatal(err)
	}
	n.jobTable = snapshot.OpenTable(n.jobStore)
	if err := n.openPartitions(); err != nil {
		t.Fatal(err)
	}
	return n
}

// However much of the log is applied to a snapshot, that takes no more memory than a node that runs.
func TestReplayIsBounded(t *testing.T) {
	n := replaying(t, Options{HotJobs: 100, CheckpointBytes: 64 << 10})
	const jobs = 2000
	var size int
	var records []wal.Record
	for seq := uint64(1); seq <= jobs; seq++ {
		r := engine.Record{
			Seq: seq, Time: int64(seq) * 1e6, Subject: fmt.Sprintf("carillon.log.0.put.job-%d", seq),
			Data: fmt.Appendf(nil, `{"schedule":"@at 2038-01-01T00:00:00Z","payload":"%01000d"}`, seq),
		}
		records = append(records, wal.Record{Seq: seq, Data: engine.AppendRecord(nil, &r)})
		size = len(records[0].Data)
	}
	if err := n.local.Append(records); err != nil {
		t.Fatal(err)
	}
	r := replayer{n: n, until: math.MaxInt64, stored: make([]uint64, 1)}
	if err := r.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := n.partitions[0]
	between := int(n.o.CheckpointBytes)/size + 1
	if behind := jobs - int(p.checkpoint.Load()); behind > between {
		t.Errorf("the last checkpoint is %d records ago, of at most %d", behind, between)
	}
	if st := p.machine.Stats(); st.Jobs != jobs || st.Hot > n.o.HotJobs+between {
		t.Errorf("%d of %d jobs are in memory", st.Hot, st.Jobs)
	}
}

// A time that the log has twice, because its clock was ahead and then set back, is refused: what was put the second time would
// be missing without an error. Earlier times are accepted, and small steps back, as between two leaders, do not count.
func TestReplayToTimeTwice(t *testing.T) {
	for _, c := range []struct {
		until    int64
		position uint64
		err      error
	}{{2_000, 2, nil}, {3_000, 4, nil}, {60_000, 5, ErrOutOfLog}} {
		n := replaying(t, Options{})
		var records []wal.Record
		for i, at := range []int64{1_000, 2_000, 3_000, 2_960, 3_010, 3_600_000, 10_000} { // the sixth is an hour ahead
			r := engine.Record{Seq: uint64(i + 1), Time: at * 1e6, Subject: fmt.Sprintf("carillon.log.0.put.job-%d", i), Data: []byte("{}")}
			records = append(records, wal.Record{Seq: r.Seq, Data: engine.AppendRecord(nil, &r)})
		}
		if err := n.local.Append(records); err != nil {
			t.Fatal(err)
		}
		r := replayer{n: n, until: c.until, stored: make([]uint64, 1)}
		if err := r.run(t.Context()); !errors.Is(err, c.err) || r.position != c.position {
			t.Errorf("to %d: up to %d, %v", c.until, r.position, err)
		}
	}
}

// What was put back at the log's end has an old time there, which does not mean that the clock was set back. What the log did not have
// before is applied, and changes nothing behind the time.
func TestReplayPutBack(t *testing.T) {
	put := func(seq uint64, at int64) engine.Record {
		return engine.Record{
			Seq: seq, Time: at * 1e6, Subject: fmt.Sprintf("carillon.log.0.put.job-%d", seq), Data: []byte(`{"schedule":"@yearly"}`),
		}
	}
	putBack := func(seq uint64, at int64, old engine.Record) engine.Record {
		return engine.Record{Seq: seq, Time: at * 1e6, Subject: "carillon.log._.heal", Data: engine.EncodeHeal(&old)}
	}
	first, second := put(1, 1_000), put(3, 3_000)
	for _, c := range []struct {
		what     string
		log      []engine.Record
		position uint64
		jobs     int
	}{
		{"behind the time", []engine.Record{first, second, put(4, 60_000), put(5, 90_000), putBack(6, 91_000, first), putBack(7, 91_000, second)}, 4, 3},
		{"before it", []engine.Record{first, second, putBack(4, 3_500, first), put(5, 60_000), put(6, 90_000)}, 5, 3},
		{"what was missing", []engine.Record{second, putBack(5, 5_000, put(4, 4_000)), put(6, 90_000)}, 4, 2},
		{"at its old place", []engine.Record{first, putBack(2, 95_000, put(2, 2_000)), putBack(3, 95_000, second), put(4, 90_000)}, 3, 3},
	} {
		n := replaying(t, Options{})
		var records []wal.Record
		for _, r := range c.log {
			records = append(records, wal.Record{Seq: r.Seq, Data: engine.AppendRecord(nil, &r)})
		}
		if err := n.local.Append(records); err != nil {
			t.Fatal(err)
		}
		r := replayer{n: n, until: 60_000, stored: make([]uint64, 1)}
		err := r.run(t.Context())
		if jobs := n.partitions[0].machine.Stats().Jobs; err != nil || r.position != c.position || jobs != c.jobs {
			t.Errorf("%s: up to %d, %d jobs, %v; want %d and %d", c.what, r.position, jobs, err, c.position, c.jobs)
		}
	}
}
