package node

import (
	"errors"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
)

// A checkpoint that is only old waits while jobs that are due wait in any partition, but not for ever, and not for those
// of a partition that has stopped.
func TestOldCheckpointWaitsForBursts(t *testing.T) {
	layout := engine.Layout{Prefix: "carillon", Partitions: 2}
	n := &Node{o: Options{CheckpointEvery: time.Minute}}
	n.clock.begin(false)
	for i := range 2 {
		n.partitions = append(n.partitions, &partition{number: i, machine: engine.New(layout, i)})
	}
	old, burst := n.partitions[0], n.partitions[1]
	aged := func(age time.Duration) bool {
		old.checkpointAt.Store(int64(n.clock.running() - age))
		return n.checkpointOld(old)
	}
	if aged(30*time.Second) || !aged(2*time.Minute) {
		t.Fatal("with nothing due an old checkpoint is to be renewed, and no other")
	}
	id := ""
	for _, id = range []string{"a", "b", "c", "d"} {
		if engine.PartitionOf(id, 2) == burst.number {
			break
		}
	}
	claim := engine.Rules()
	claim.Node = "n1"
	now := time.Now().UnixMilli()
	for i, e := range []engine.Entry{
		{Kind: engine.KindClaim, Claim: claim},
		{Kind: engine.KindPut, Verb: "put", Job: id, Body: []byte(`{"schedule":"@at 2020-01-01T00:00:00Z"}`)},
		{Kind: engine.KindTick, Ticks: []engine.Tick{{Partition: burst.number, To: now, Epoch: 1}}}, // limit 0: the job stays ready
	} {
		e.Seq, e.Time = uint64(i+1), now
		if r, err := burst.machine.Apply(&e); err != nil || r.Err != nil {
			t.Fatal(err, r.Err)
		}
	}
	if !n.draining() || aged(2*time.Minute) {
		t.Error("it is renewed while another partition drains")
	}
	if !aged(4 * time.Minute) {
		t.Error("it waits for ever")
	}
	if burst.stopped = errors.New("stopped"); !aged(2 * time.Minute) {
		t.Error("it waits for a partition that has stopped")
	}
}
