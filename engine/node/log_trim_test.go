package node

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/embedded"
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

// checkpointed returns a node of one partition that has records 1 to last in its local log, and two checkpoints. KeepLog is an hour.
func checkpointed(t *testing.T, log *slog.Logger, last uint64, checkpoints ...uint64) (*Node, *nats.Conn) {
	t.Helper()
	n := &Node{
		o: Options{Data: t.TempDir(), KeepLog: time.Hour}.withDefaults(), layout: engine.Layout{Prefix: "carillon", Partitions: 1},
		log: log, meters: newWeb().meters, alarm: newAlarm(t),
	}
	nc, s := openStreams(t)
	n.streams = s
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
	for _, position := range checkpoints {
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
	return n, nc
}

// While the log stream is over half full and cannot be cut, that is tried ten times a second. The log tells of it now and then.
func TestLogThatCannotBeCut(t *testing.T) {
	var log bytes.Buffer
	const last = 10
	n, nc := checkpointed(t, slog.New(slog.NewTextHandler(&log, nil)), last, 5, 8)
	n.server = &embedded.Server{} // so it knows that no other node needs the log
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for range last {
		if _, err := js.Publish(t.Context(), "carillon.cmd.put.job", nil); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := js.Stream(t.Context(), n.streams.Log.Name())
	if err != nil {
		t.Fatal(err)
	}
	denied := stream.CachedInfo().Config
	denied.DenyPurge = true
	if _, err := js.UpdateStream(t.Context(), denied); err != nil {
		t.Fatal(err)
	}
	const attempts = 50
	for range attempts {
		if err := n.trim(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if lines := strings.Count(log.String(), "the log stream was not trimmed"); lines == 0 || lines == attempts {
		t.Errorf("%d lines about %d attempts:\n%s", lines, attempts, &log)
	}
}

// What the local log keeps of the past is given up for room to fire, too: then there is no checkpoint any more after which it would be.
func TestKeptLogMakesRoomToFire(t *testing.T) {
	const last, older, newest = 10, 5, 8
	n, _ := checkpointed(t, slog.New(slog.DiscardHandler), last, older, newest)
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
