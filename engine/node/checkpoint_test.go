package node

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/internal/natstest"
	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/wal"
)

// bursting is a node with two partitions: in old a checkpoint may be due, and in burst jobs that are due may wait.
type bursting struct {
	*Node
	old, burst *partition
}

func newBursting() *bursting {
	n := &Node{o: Options{CheckpointEvery: time.Minute, CheckpointRecords: 1000, CheckpointBytes: 1 << 20, HotJobs: 1}}
	n.clock.begin(false)
	n.applied.Store(10)
	for i := range 2 {
		n.partitions = append(n.partitions, &partition{number: i, machine: engine.New(engine.Layout{Prefix: "carillon", Partitions: 2}, i)})
		n.partitions[i].follows.Store(true)
	}
	return &bursting{n, n.partitions[0], n.partitions[1]}
}

// begin makes a job due in burst, and no tick lets it fire.
func (b *bursting) begin(t *testing.T) {
	t.Helper()
	id := ""
	for _, id = range []string{"a", "b", "c", "d"} {
		if engine.PartitionOf(id, 2) == b.burst.number {
			break
		}
	}
	claim := engine.Rules()
	claim.Node = "n1"
	now := time.Now().UnixMilli()
	for i, e := range []engine.Entry{
		{Kind: engine.KindClaim, Claim: claim},
		{Kind: engine.KindPut, Verb: "put", Job: id, Body: []byte(`{"schedule":"@at 1999-01-01T00:00:00Z"}`)},
		{Kind: engine.KindTick, Ticks: []engine.Tick{{Partition: b.burst.number, To: now, Epoch: 1}}}, // limit 0: the job stays ready
	} {
		e.Seq, e.Time = uint64(i+1), now
		if r, err := b.burst.machine.Apply(&e); err != nil || r.Err != nil {
			t.Fatal(err, r.Err)
		}
	}
}

// stop ends the burst: its partition stops, and its jobs wait for nothing that could come.
func (b *bursting) stop() {
	b.burst.mu.Lock()
	defer b.burst.mu.Unlock()
	b.burst.stopped = errors.New("stopped")
}

// due tells whether a checkpoint of old is due if the last one is so old.
func (b *bursting) due(age time.Duration) bool {
	b.old.checkpointAt.Store(int64(b.clock.running() - age))
	return b.checkpointDue(b.old, 0)
}

// A checkpoint that is due for its age, or because the log is long, waits while jobs that are due wait in any partition. It does
// not wait for ever, nor if the log has become very long or has to be freed, nor for the jobs of a partition that has stopped.
func TestCheckpointWaitsForBursts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBursting()
		if b.due(30*time.Second) || !b.due(2*time.Minute) {
			t.Fatal("with nothing due an old checkpoint is to be renewed, and no other")
		}
		b.begin(t)
		if !b.hasBacklog() || b.due(2*time.Minute) {
			t.Error("it is renewed while another partition drains")
		}
		if !b.due(4 * time.Minute) {
			t.Error("it waits for ever")
		}
		b.applied.Store(1000)
		if b.due(time.Second) {
			t.Error("one with a long log is taken while another partition drains")
		}
		if !b.checkpointDue(b.old, b.applied.Load()) {
			t.Error("it waits though the log has to be freed")
		}
		b.applied.Store(burstTimes * 1000)
		if !b.due(time.Second) {
			t.Error("the log grows for ever")
		}
		b.o.CheckpointRecords = 1 << 62
		if b.due(time.Second) {
			t.Error("there is no number of records that is never reached")
		}
		b.o.CheckpointRecords = 1000
		b.stop()
		b.applied.Store(1000)
		if !b.due(time.Second) {
			t.Error("one with a long log waits for a partition that has stopped")
		}
		b.applied.Store(10)
		if !b.due(2 * time.Minute) {
			t.Error("it waits for a partition that has stopped")
		}
	})
}

// withTables returns a node that follows some partitions, which have no jobs, and takes checkpoints of them.
func withTables(t *testing.T, o Options, partitions int) *Node {
	t.Helper()
	n := &Node{o: o.withDefaults(), layout: engine.Layout{Prefix: "carillon", Partitions: partitions}, meters: newWeb().meters}
	n.log = n.o.Logger
	n.clock.begin(false)
	openLocal(t, n)
	for i := range partitions {
		p := &partition{number: i, machine: engine.New(n.layout, i), table: table{saved: n.jobTable, number: uint16(i)}}
		p.machine.Attach(&p.table)
		t.Cleanup(func() {
			if err := p.table.close(); err != nil {
				t.Error(err)
			}
		})
		p.follows.Store(true)
		n.partitions = append(n.partitions, p)
	}
	return n
}

// A checkpoint makes the one before it the older one. From then on no other is due, by the log's length or by age, and nobody waits for one.
func TestCheckpointIsNoted(t *testing.T) {
	n := withTables(t, Options{Data: t.TempDir(), CheckpointBytes: 1000, CheckpointEvery: time.Hour}, 1)
	p := n.partitions[0]
	for before, applied := range []uint64{10, 20, 30} {
		n.applied.Store(applied)
		n.logUsage.count([]wal.Record{{Seq: applied, Data: make([]byte, 1000)}})
		p.checkpointAt.Store(int64(n.clock.running() - n.o.CheckpointEvery))
		if !n.checkpointLong(p) || !n.checkpointOld(p) {
			t.Fatal("no checkpoint is due")
		}
		if err := n.takeCheckpoint(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if newest, older := p.checkpoint.Load(), p.older.Load(); newest != applied || older != uint64(before*10) {
			t.Errorf("the newest checkpoint is at %d, want %d, and the older one at %d, want %d", newest, applied, older, before*10)
		}
		if n.checkpointLong(p) || n.checkpointOld(p) || p.checkpointWaiters.Load() > 0 {
			t.Errorf("another is due: the log is long %t, it is old %t, %d wait", n.checkpointLong(p), n.checkpointOld(p), p.checkpointWaiters.Load())
		}
	}
}

// A checkpoint that finds a partition's jobs damaged stops that partition, and no other one. Any other error is the node's.
func TestCheckpointOfDamagedJobs(t *testing.T) {
	o := Options{Data: t.TempDir()}
	store, err := wal.OpenStore(wal.Options{Dir: filepath.Join(o.Data, "jobs"), Profile: wal.ProfileTable})
	if err != nil {
		t.Fatal(err)
	}
	header := []byte{wal.TableRoom, 0, 0, 'a', 'h'} // docs/formats/table.md
	err = store.Update(func(b *pebble.Batch) error { return b.Set(header, []byte("damaged"), nil) })
	if err := errors.Join(err, store.Close()); err != nil {
		t.Fatal(err)
	}
	n := withTables(t, o, 2)
	n.membership.changed = make(chan struct{}, 1)
	n.applied.Store(10)
	if err := n.checkpointAll(t.Context()); err != nil {
		t.Errorf("the node fails: %v", err)
	}
	damaged, other := n.partitions[0], n.partitions[1]
	if why := damaged.whyStopped(); !errors.Is(why, wal.ErrCorrupt) || !strings.Contains(why.Error(), "jobs of partition 0 cannot be read") {
		t.Errorf("the one whose jobs are damaged stopped with %v", why)
	}
	if other.whyStopped() != nil || other.checkpoint.Load() != 10 {
		t.Errorf("the other one stopped with %v; its checkpoint is at %d", other.whyStopped(), other.checkpoint.Load())
	}
	build, err := n.jobTable.Begin(1)
	if err != nil {
		t.Fatal(err)
	}
	defer build.Abort()
	if err := n.checkpointAll(t.Context()); !errors.Is(err, snapshot.ErrBusy) || other.whyStopped() != nil {
		t.Errorf("while another checkpoint is written: %v; the partition stopped with %v", err, other.whyStopped())
	}
}

// While nothing comes by the log, older checkpoints are renewed as far as this node has come, although another node needs more of the log:
// that one would wait for this one in turn.
func TestCheckpointsAtRest(t *testing.T) {
	const needed, last = 5, 10
	n := withTables(t, Options{Data: t.TempDir(), Name: "a", EmptyLogAfter: time.Nanosecond}, 1)
	nc, s := openStreams(t)
	n.streams = s
	joinBeside(t, n, nc, cluster.Report{})
	joinAs(t, nc, "b", 1, cluster.Report{Needs: needed})
	natstest.Eventually(t, "it knows what the other one needs", func() bool { return n.neededElsewhere() == needed })
	for _, applied := range []uint64{needed, last} {
		n.applied.Store(applied)
		if err := n.takeCheckpoint(t.Context(), n.partitions[0]); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.checkpointRound(t.Context()); err != nil {
		t.Fatal(err)
	}
	if older := n.partitions[0].older.Load(); older != last {
		t.Errorf("the older checkpoint is at %d, want %d", older, last)
	}
}

// joinBeside makes a node one of several, with the same report in each of its beats.
func joinBeside(t *testing.T, n *Node, nc *nats.Conn, r cluster.Report) {
	t.Helper()
	n.membership.joinEnded = make(chan struct{})
	n.membership.member = joinAs(t, nc, n.o.Name, len(n.partitions), r)
	close(n.membership.joinEnded)
}

// joinAs makes a member with the same report in each of its beats.
func joinAs(t *testing.T, nc *nats.Conn, name string, partitions int, r cluster.Report) *cluster.Member {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	m, err := cluster.Join(t.Context(), js, cluster.Options{
		Bucket: nodesBucket("CARILLON"), Name: name, Partitions: partitions, Report: func() cluster.Report { return r },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// Of its share of memory a partition may use three quarters before a checkpoint is urgent, and all of it while a burst drains.
func TestUrgentCheckpoints(t *testing.T) {
	b := newBursting()
	b.begin(t)
	b.o.HotJobs, b.o.MemoryForJobs = 0, len(b.partitions)*b.burst.machine.Memory()
	if b.checkpointUrgent(b.burst) {
		t.Error("it does not wait though there is memory left")
	}
	b.o.MemoryForJobs--
	if !b.checkpointUrgent(b.burst) {
		t.Error("it waits though memory has run out")
	}
	b.o.MemoryForJobs++
	b.stop()
	if !b.checkpointUrgent(b.burst) {
		t.Error("with nothing to wait for memory may run out")
	}
}

// A checkpoint that has begun rests while a burst drains. One for whose end somebody waits does not.
func TestCheckpointRestsForBursts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBursting()
		b.begin(t)
		b.applied.Store(1000)
		b.old.checkpointWaiters.Add(1)
		if b.checkpointWaits(b.old) {
			t.Error("who waits for its end to take one of his own waits for the burst, too")
		}
		b.old.checkpointWaiters.Add(-1)
		b.due(2 * time.Minute)
		var drained atomic.Bool
		var going sync.WaitGroup
		rest := b.checkpointRest(t.Context(), b.old)
		going.Go(func() {
			time.Sleep(time.Millisecond) // its work: it rests for a multiple of that
			rest()
			if !drained.Load() {
				t.Error("one that has begun goes on while another partition drains")
			}
		})
		time.Sleep(5 * restMost) // in the bubble's time: it would have gone on
		synctest.Wait()
		drained.Store(true)
		b.stop()
		going.Wait()
	})
}

// A checkpoint that is due only for its age rests for a multiple of the time that it worked, but never for long. It rests for
// less if another one is needed soon, and not at all if the log has to be freed or the node ends.
func TestResting(t *testing.T) {
	n := new(Node)
	rested := func(ctx context.Context, after time.Duration) time.Duration {
		rest := n.checkpointRest(ctx, new(partition))
		for began := time.Now(); time.Since(began) < after; {
		}
		began := time.Now()
		rest()
		return time.Since(began)
	}
	const short = restMost / restFull
	if d := rested(t.Context(), short); d < restMost {
		t.Errorf("it rested for %s", d)
	}
	lessThan := func(ctx context.Context, most, after time.Duration, why string) {
		for range 100 { // the machine may stand still, too
			if rested(ctx, after) < most {
				return
			}
		}
		t.Errorf("it rests for %s though %s", most, why)
	}
	lessThan(t.Context(), 10*restMost, 10*restMost/restFull, "it was the disk that took its time")
	ended, end := context.WithCancel(t.Context())
	end()
	lessThan(ended, restMost, short, "the node ends")
	n.logUsage.update(streams.Info{Bytes: 51, MaxBytes: 100}, 0)
	if n.restFactor() != 0 {
		t.Error("it rests while the log has to be freed")
	}
	n.logUsage.update(streams.Info{Bytes: 40, MaxBytes: 100}, 0)
	n.o.CheckpointRecords, n.o.CheckpointBytes = 1000, 1<<20
	n.partitions = []*partition{{machine: engine.New(engine.Layout{Prefix: "carillon", Partitions: 1}, 0)}}
	n.partitions[0].follows.Store(true)
	n.applied.Store(1000)
	lessThan(t.Context(), restMost, short, "the log of another partition is long")
	if d := rested(t.Context(), short); d < restShort*short {
		t.Errorf("it rested for %s while the log of another partition is long", d)
	}
}

// Until the partitions have recovered, a compaction stands still, unless it is behind or the node ends.
func TestCompactionsStandStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(Node)
		ctx, end := context.WithCancel(t.Context())
		var going sync.WaitGroup
		compact := func(behind bool, toldBy func() bool, why string) {
			rest := n.compactionRest(ctx)
			going.Go(func() {
				time.Sleep(time.Millisecond) // its work
				if rest(behind); !toldBy() {
					t.Error("it goes on though " + why)
				}
			})
		}
		always := func() bool { return true }
		compact(true, always, "")
		going.Wait()
		compact(false, n.rebuilt.Load, "the partitions have not recovered")
		time.Sleep(5 * restMost) // in the bubble's time: it would have gone on
		synctest.Wait()
		n.rebuilt.Store(true)
		going.Wait()
		n.rebuilt.Store(false)
		compact(false, func() bool { return ctx.Err() != nil }, "the node does not end")
		time.Sleep(5 * restMost)
		synctest.Wait()
		end()
		going.Wait()
	})
}

// A compaction rests while records come, unless it is behind or the node ends.
func TestCompactionsRest(t *testing.T) {
	const work = restMost / restFull
	rested := func(ctx context.Context, behind, records bool) time.Duration {
		n := new(Node)
		n.rebuilt.Store(true)
		rest := n.compactionRest(ctx)
		for range 2 {
			for began := time.Now(); time.Since(began) < work; {
			}
			if records {
				n.applied.Add(1)
			}
			began := time.Now()
			rest(behind)
			if d := time.Since(began); d >= restMost {
				return d
			}
		}
		return 0
	}
	if rested(t.Context(), false, true) < restMost {
		t.Error("it does not rest while records come")
	}
	ended, end := context.WithCancel(t.Context())
	end()
	for why, d := range map[string]func() time.Duration{
		"nothing comes": func() time.Duration { return rested(t.Context(), false, false) },
		"it is behind":  func() time.Duration { return rested(t.Context(), true, true) },
		"the node ends": func() time.Duration { return rested(ended, false, true) },
	} {
		tries := 0
		for ; tries < 100 && d() > 0; tries++ { // the machine may stand still, too
		}
		if tries == 100 {
			t.Errorf("it rests though %s", why)
		}
	}
}
