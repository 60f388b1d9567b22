package node

import (
	"log/slog"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/wal"
)

// What a partition needs that is being taken or given up is not cut.
func TestLogOfPartitionsOnTheMove(t *testing.T) {
	n := &Node{partitions: []*partition{{}, {}}}
	n.applied.Store(10)
	for needs, want := range map[uint64]uint64{0: 11, 5: 6} {
		n.partitions[1].needs.Store(needs)
		if got, err := n.needed(); err != nil || got != want {
			t.Errorf("one partition needs what is above %d: the log is needed from %d on, want %d (%v)", needs, got, want, err)
		}
	}
}

// What the local log keeps of the past is given up for room to fire, too: then there is no checkpoint any more after which it would be.
func TestKeptLogMakesRoomToFire(t *testing.T) {
	const last, older, newest = 10, 5, 8
	n := &Node{
		o: Options{Data: t.TempDir(), KeepLog: time.Hour}.withDefaults(), layout: engine.Layout{Prefix: "carillon", Partitions: 1},
		log: slog.New(slog.DiscardHandler), meters: newWeb().meters, alarm: newAlarm(t),
	}
	_, n.streams = openStreams(t)
	n.clock.begin(false)
	openLocal(t, n)
	p := &partition{machine: engine.New(n.layout, 0)}
	p.follows.Store(true)
	n.partitions = []*partition{p}
	for seq := uint64(1); seq <= last; seq++ {
		r := engine.Record{Seq: seq, Time: n.clock.ns(), Subject: "carillon.log.0.put.job"}
		if err := n.local.Append([]wal.Record{{Seq: seq, Data: engine.AppendRecord(nil, &r)}}); err != nil {
			t.Fatal(err)
		}
	}
	n.applied.Store(last)
	for _, position := range []uint64{older, newest} {
		build, err := n.jobTable.Begin(0)
		if err != nil {
			t.Fatal(err)
		}
		build.State(position, []byte("state"))
		if _, err := build.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := n.trim(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if first := n.local.First(); first != 1 {
		t.Fatalf("the log begins at %d", first)
	}
	n.refuseJobs.Store(true)
	n.holdTicks.Store(true)
	if err := n.checkpointRound(t.Context()); err != nil {
		t.Fatal(err)
	}
	if first := n.local.First(); first != older+1 {
		t.Errorf("without room to fire the log begins at %d; from %d on it is needed", first, older+1)
	}
}
