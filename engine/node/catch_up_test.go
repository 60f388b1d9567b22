package node

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/servers"
	"github.com/carillon-scheduler/carillon/internal/natstest"
	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/wal"
)

// A partition that one node fails to give is asked of another one that follows it, and then again of the first.
func TestFollowFromAnother(t *testing.T) {
	nc, _ := openStreams(t)
	asked := make(chan string, 3)
	n := &Node{o: Options{Name: "new", Prefix: "carillon"}, requestConn: nc}
	p := &partition{}
	n.partitions = []*partition{p}
	v := cluster.View{Members: []cluster.Beat{{Node: cluster.Node{Name: "new"}}}}
	for epoch, name := range []string{"standby", "owner"} {
		_, err := nc.Subscribe("carillon.node."+name+".give.0", func(m *nats.Msg) {
			asked <- name
			refusal := &carillon.Error{Code: carillon.CodeInternal, Message: "damaged"}
			if err := m.RespondMsg(&nats.Msg{Header: nats.Header{micro.ErrorCodeHeader: []string{"500"}}, Data: refusal.AppendJSON(nil)}); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		v.Members = append(v.Members, cluster.Beat{
			Node: cluster.Node{Name: name}, Report: cluster.Report{Partitions: []cluster.Progress{{Position: 7, Epoch: uint64(epoch)}}},
		})
	}
	for _, from := range []string{"owner", "standby", "owner"} {
		if err := n.follow(t.Context(), p, v); !errors.Is(err, &carillon.Error{Code: carillon.CodeInternal}) {
			t.Errorf("a partition that is not given is followed with %v", err)
		}
		if got := natstest.Receive(t, "a question", asked); got != from {
			t.Errorf("node %s is asked, want %s", got, from)
		}
	}
	v.Members = v.Members[:2]
	p.failedFrom = "standby"
	if from := p.giver(v); from != "standby" {
		t.Errorf("node %q is asked where only one follows it", from)
	}
}

// A part that is saved in vain, again and again, is asked for at ever longer intervals, up to a minute. The log is kept for it only
// meanwhile.
func TestPartsInVain(t *testing.T) {
	nc, s := openStreams(t)
	n := &Node{o: Options{Name: "new", Prefix: "carillon", Stream: "CARILLON"}, streams: s, requestConn: nc, log: slog.New(slog.DiscardHandler)}
	n.o.Data = t.TempDir()
	n.servers.Config = servers.Config{Node: "new", URL: nc.ConnectedUrl(), Logger: n.log}
	openLocal(t, n)
	const applied = 7
	n.applied.Store(applied)
	p := &partition{}
	n.partitions = []*partition{p}
	if _, err := nc.Subscribe("carillon.node.owner.give.0", func(m *nats.Msg) {
		if needs := p.needs.Load(); needs != applied {
			t.Errorf("while a part is saved the log is kept above %d, want %d", needs, applied)
		}
		if err := m.Respond([]byte(`{"folder":"gone","id":"gone","position":7}`)); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	v := cluster.View{Members: []cluster.Beat{{
		Node: cluster.Node{Name: "owner"}, Report: cluster.Report{Partitions: []cluster.Progress{{Position: 7, Epoch: 1}}},
	}}}
	for _, want := range []time.Duration{2, 2, 4, 8, 16, 32, 60, 60} {
		if got := p.untilFollowed(); got != want*time.Second {
			t.Errorf("after %d parts in vain the next attempt is after %s, want %s", p.wastedParts, got, want*time.Second)
		}
		if err := n.follow(t.Context(), p, v); err == nil {
			t.Fatal("a part that is not there is followed")
		}
		if needs := p.needs.Load(); needs != 0 {
			t.Errorf("the log is kept above %d for a part that was given up", needs)
		}
	}
}

// openLocal opens the local log and the job table of a node that is not opened otherwise, until the test ends.
func openLocal(t testing.TB, n *Node) {
	t.Helper()
	open := func(dir string, profile wal.Profile) *wal.Store {
		store, err := wal.OpenStore(wal.Options{Dir: n.o.Data + dir, Profile: profile})
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
	n.local = open("/log", wal.ProfileLog).Log()
	n.jobTable = snapshot.OpenTable(open("/jobs", wal.ProfileTable))
}

// A partition whose checkpoint came from another node gets what the local log has above it. It is not followed if the local
// log begins too late for that.
func TestCatchUp(t *testing.T) {
	for _, c := range []struct {
		what string
		last uint64 // record of the local log
		cut  uint64 // it begins there
		err  string
	}{
		{"all that comes next is there", 10, 6, ""},
		{"nothing comes next", 5, 5, ""},
		{"a record is missing", 10, 7, "the local log was cut to 7"},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := &Node{
				o: Options{Data: t.TempDir(), NATS: "nats://elsewhere"}.withDefaults(), layout: engine.Layout{Prefix: "carillon", Partitions: 1},
				meters: newWeb().meters,
			}
			n.log = n.o.Logger
			n.clock.begin(false)
			openLocal(t, n)
			giver := engine.New(n.layout, 0)
			p := &partition{machine: giver, chain: engine.NewChain(), table: table{saved: n.jobTable}}
			n.partitions = []*partition{p}
			p.follows.Store(true)
			for seq := uint64(1); seq <= c.last; seq++ {
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

			_, err := n.catchUp(t.Context(), p)
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
			if st := p.machine.Stats(); err != nil || !p.follows.Load() || st.Jobs != int(c.last) || p.upTo != c.last {
				t.Errorf("%v; followed: %t, %d jobs up to %d", err, p.follows.Load(), st.Jobs, p.upTo)
			}
		})
	}
}

// replayAll brings all partitions up to the last record of the local log, while it goes on reading the log.
func TestReplayAll(t *testing.T) {
	const partitions, jobs = 3, 5*replayBatch + 7
	store, err := wal.OpenStore(wal.Options{Dir: t.TempDir(), Profile: wal.ProfileLog})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	n := &Node{layout: engine.Layout{Prefix: "carillon", Partitions: partitions}, local: store.Log()}
	for i := range partitions {
		p := &partition{number: i, machine: engine.New(n.layout, i)}
		p.follows.Store(true)
		n.partitions = append(n.partitions, p)
	}
	payload := func(i int) string { return `"` + strings.Repeat(string(rune('a'+i%26)), 100) + `"` }
	var records []wal.Record
	for i := range jobs {
		id := fmt.Sprint("job-", i)
		r := engine.Record{
			Seq: uint64(i + 1), Time: time.Now().UnixNano(), Subject: fmt.Sprintf("carillon.log.%d.put.%s", engine.PartitionOf(id, partitions), id),
			Data: []byte(`{"schedule":"@at 2038-01-01T00:00:00Z","payload":` + payload(i) + `}`),
		}
		records = append(records, wal.Record{Seq: r.Seq, Data: engine.AppendRecord(nil, &r)})
	}
	if err := n.local.Append(records); err != nil {
		t.Fatal(err)
	}
	if read, err := n.replayAll(t.Context(), 0); err != nil || read != jobs {
		t.Fatalf("%d records, %v", read, err)
	}
	for i := range jobs {
		id := fmt.Sprint("job-", i)
		job, ok := n.partitions[engine.PartitionOf(id, partitions)].machine.Job(id, nil)
		if !ok || string(job.Spec.Payload) != payload(i) {
			t.Errorf("%s: there %t, with %s", id, ok, job.Spec.Payload)
		}
	}
}
