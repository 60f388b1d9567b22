package node

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// A checkpoint that is due for its age, or because the log is long, waits while jobs that are due wait in any partition. It does
// not wait for ever, nor if the log has become very long or has to be freed, nor for the jobs of a partition that has stopped.
func TestCheckpointWaitsForBursts(t *testing.T) { synctest.Test(t, checkpointWaitsForBursts) }

func checkpointWaitsForBursts(t *testing.T) {
	layout := engine.Layout{Prefix: "carillon", Partitions: 2}
	n := &Node{o: Options{CheckpointEvery: time.Minute, CheckpointRecords: 1000, CheckpointBytes: 1 << 20, HotJobs: 1}}
	n.clock.begin(false)
	for i := range 2 {
		n.partitions = append(n.partitions, &partition{number: i, machine: engine.New(layout, i)})
		n.partitions[i].follows.Store(true)
	}
	old, burst := n.partitions[0], n.partitions[1]
	aged := func(age time.Duration) bool {
		old.checkpointAt.Store(int64(n.clock.running() - age))
		return n.checkpointDue(old, 0)
	}
	n.applied.Store(10)
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
		{Kind: engine.KindPut, Verb: "put", Job: id, Body: []byte(`{"schedule":"@at 1999-01-01T00:00:00Z"}`)},
		{Kind: engine.KindTick, Ticks: []engine.Tick{{Partition: burst.number, To: now, Epoch: 1}}}, // limit 0: the job stays ready
	} {
		e.Seq, e.Time = uint64(i+1), now
		if r, err := burst.machine.Apply(&e); err != nil || r.Err != nil {
			t.Fatal(err, r.Err)
		}
	}
	if !n.hasBacklog() || aged(2*time.Minute) {
		t.Error("it is renewed while another partition drains")
	}
	if !aged(4 * time.Minute) {
		t.Error("it waits for ever")
	}
	n.applied.Store(1000)
	if aged(time.Second) {
		t.Error("one with a long log is taken while another partition drains")
	}
	if !n.checkpointDue(old, n.applied.Load()) {
		t.Error("it waits though the log has to be freed")
	}
	n.applied.Store(burstTimes * 1000)
	if !aged(time.Second) {
		t.Error("the log grows for ever")
	}
	n.o.CheckpointRecords = 1 << 62
	if aged(time.Second) {
		t.Error("there is no number of records that is never reached")
	}
	n.o.CheckpointRecords = 1000
	n.applied.Store(1000)
	// Of its share of memory a partition may use three quarters, and all of it while a burst drains.
	n.o.HotJobs, n.o.MemoryForJobs = 0, len(n.partitions)*burst.machine.Memory()
	if n.checkpointUrgent(burst) {
		t.Error("it does not wait though there is memory left")
	}
	n.o.MemoryForJobs--
	if !n.checkpointUrgent(burst) {
		t.Error("it waits though memory has run out")
	}
	n.o.HotJobs = 1
	old.checkpointWaiters.Add(1)
	if n.checkpointWaits(old) {
		t.Error("who waits for its end to take one of his own waits for the burst, too")
	}
	old.checkpointWaiters.Add(-1)
	// One that has begun does not go on, either.
	aged(2 * time.Minute)
	var drained atomic.Bool
	var going sync.WaitGroup
	rest := n.checkpointRest(t.Context(), old)
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
	burst.mu.Lock()
	burst.stopped = errors.New("stopped")
	burst.mu.Unlock()
	going.Wait()
	n.o.HotJobs, n.o.MemoryForJobs = 0, len(n.partitions)*burst.machine.Memory()
	if !n.checkpointUrgent(burst) {
		t.Error("with nothing to wait for memory may run out")
	}
	n.o.HotJobs = 1
	if !aged(time.Second) {
		t.Error("one with a long log waits for a partition that has stopped")
	}
	n.applied.Store(10)
	if !aged(2 * time.Minute) {
		t.Error("it waits for a partition that has stopped")
	}
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

// A compaction rests while records come, unless it is behind or the node ends.
func TestCompactionsRest(t *testing.T) {
	const work = restMost / restFull
	rested := func(ctx context.Context, behind, records bool) time.Duration {
		n := new(Node)
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
