package node

import (
	"fmt"
	"math"
	"testing"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/wal"
)

// However much the log says that is applied to a snapshot, it takes as much memory as a node that runs.
func TestReplayIsBounded(t *testing.T) {
	n := &Node{
		o: Options{Data: t.TempDir(), HotJobs: 100, CheckpointBytes: 64 << 10}.withDefaults(), layout: engine.Layout{Prefix: "carillon", Partitions: 1},
		meters: newWeb().meters,
	}
	n.log = n.o.Logger
	t.Cleanup(func() {
		if err := n.close(); err != nil {
			t.Error(err)
		}
	})
	var err error
	if n.store, err = openLog(n.o.Data, n.log); err != nil {
		t.Fatal(err)
	}
	n.local = n.store.Log()
	if n.jobs, err = wal.OpenStore(wal.Options{Dir: n.o.Data + "/jobs", Profile: wal.ProfileTable}); err != nil {
		t.Fatal(err)
	}
	n.saved = snapshot.OpenTable(n.jobs)
	if err := n.openPartitions(); err != nil {
		t.Fatal(err)
	}
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
