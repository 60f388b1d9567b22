package engine

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"weak"

	"github.com/carillon-scheduler/carillon/engine/internal/memtable"
)

// TestCheckpointPause looks at the work of a checkpoint for which the machine must wait: beginning and ending one costs
// the same however many jobs there are, measured by allocations, and a slice takes no more jobs than it was told to.
func TestCheckpointPause(t *testing.T) {
	allocated := func(do func()) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		do()
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	bytes := func(n int) (begin, end uint64) {
		f := newFeed(t)
		s := saved{m: f.m}
		for i := range n {
			f.put(fmt.Sprintf("job-%d", i), `{"schedule":"@every 1s"}`)
			f.put(fmt.Sprintf("dead-%d", i), `{"schedule":"@every 1s"}`)
			f.apply(&Entry{Kind: KindFire, Verb: "fire", Job: fmt.Sprintf("job-%d", i)})
		}
		f.now += 1000
		f.apply(&Entry{Kind: KindTick, Ticks: []Tick{{To: f.now, Epoch: 1, Limit: uint64(2 * n)}}}) // the outputs are never acked
		for i := range n {
			f.apply(&Entry{Kind: KindDelete, Verb: "delete", Job: fmt.Sprintf("dead-%d", i)})
		}
		var c *Checkpoint
		begin = allocated(func() { c = f.m.BeginCheckpoint() })
		if len(f.m.tombstones)+len(c.outputs) < 2*n {
			t.Fatalf("%d tombstones and %d outputs", len(f.m.tombstones), len(c.outputs))
		}
		slices := 0
		for more := true; more; slices++ {
			cursor, deltas := c.cursor, c.deltaCursor
			more = c.Next(100)
			if took := c.cursor - cursor + c.deltaCursor - deltas; took > 100 {
				t.Fatalf("a slice of 100 took %d", took)
			}
		}
		if slices < n/100 {
			t.Fatalf("%d slices", slices)
		}
		b := s.table.Begin()
		c.Write(b, f.m.position)
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
		return begin, allocated(c.Committed)
	}
	fewBegin, fewEnd := bytes(100)
	manyBegin, manyEnd := bytes(5000)
	const slack = 8 << 10 // a list of all jobs would be at least 40 KB
	if manyBegin > fewBegin+slack || manyEnd > fewEnd+slack {
		t.Errorf("to begin takes %d bytes with few, %d with many; to end %d and %d", fewBegin, manyBegin, fewEnd, manyEnd)
	}
}

// counted counts what is written to a table.
type counted struct {
	*memtable.Build
	changes, specs, drops int
}

func (c *counted) Change(room byte, key, old, value []byte) {
	c.changes++
	c.Build.Change(room, key, old, value)
}

func (c *counted) Append(room byte, key, value []byte) {
	if room == roomSpecs {
		c.specs++
	}
	c.Build.Append(room, key, value)
}

func (c *counted) Drop(room byte, key []byte) {
	c.drops++
	c.Build.Drop(room, key)
}

// TestCheckpointIncremental counts what checkpoints write: what changed and no more.
func TestCheckpointIncremental(t *testing.T) {
	f := newFeed(t)
	s := saved{m: f.m}
	write := func(changes, specs, drops int) {
		t.Helper()
		c := f.m.BeginCheckpoint()
		for c.Next(7) {
		}
		b := &counted{Build: s.table.Begin()}
		c.Write(b, f.m.position)
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
		c.Committed()
		if b.changes != changes || b.specs != specs || b.drops != drops {
			t.Errorf("%d changes, %d specs, %d dropped; want %d, %d, %d", b.changes, b.specs, b.drops, changes, specs, drops)
		}
		if n := f.m.Stats().Dirty; n != 0 {
			t.Errorf("%d jobs are dirty after a checkpoint", n)
		}
	}
	for i := range 50 {
		f.put(fmt.Sprintf("job-%d", i), `{"schedule":"@every 1h"}`)
	}
	write(100, 50, 0)
	write(0, 0, 0)
	f.put("job-1", `{"schedule":"@every 2h"}`)                      // row deleted, row, id; spec
	f.apply(&Entry{Kind: KindPause, Verb: "pause", Job: "job-2"})   // row deleted, row, id
	f.apply(&Entry{Kind: KindDelete, Verb: "delete", Job: "job-3"}) // row, id, both deleted
	f.apply(&Entry{Kind: KindFire, Verb: "fire", Job: "job-4"})     // the forced fire
	f.apply(&Entry{Kind: KindPause, Verb: "pause", Job: "job-5"})   // with the next line:
	f.apply(&Entry{Kind: KindResume, Verb: "resume", Job: "job-5"}) // row deleted, row, id
	f.put("new", `{"schedule":"@every 2h"}`)                        // with the next line:
	f.apply(&Entry{Kind: KindDelete, Verb: "delete", Job: "new"})   // nothing
	f.apply(&Entry{Kind: KindDelete, Verb: "delete", Job: "job-6"}) // row deleted
	f.put("job-6", `{"schedule":"@every 1h"}`)                      // row, id; spec
	write(3+3+2+1+3+0+3, 2, 3)
}

// Outputs that are stored for good leave the table.
func TestStoredLeaveTheTable(t *testing.T) {
	f := newFeed(t)
	s := saved{m: f.m}
	f.put("job", `{"schedule":"@every 1s"}`)
	for range 5 {
		f.now += 1000
		f.tick(10)
		if err := s.checkpoint(10); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	if _, err := s.table.View().Scan(roomOutputs, nil, nil, 0, func(_, _ []byte) error { n++; return nil }); err != nil {
		t.Fatal(err)
	}
	if n > 2 { // the newest, and the one that was stored since the checkpoint before
		t.Errorf("of 5 outputs, 4 of which are stored, %d are in the table", n)
	}
}

// Jobs that a checkpoint wrote leave memory once the table has them and EvictCommitted has looked at them all.
func TestCommittedLeavesMemory(t *testing.T) {
	f := newFeed(t)
	s := saved{m: f.m}
	f.m.Attach(s.table.View())
	for i := range 50 {
		f.put(fmt.Sprint("job-", i), `{"schedule":"@every 24h"}`)
	}
	written := weak.Make(f.m.changes)
	memory := f.m.Memory()
	c := f.m.BeginCheckpoint()
	for c.Next(7) {
	}
	if n := f.m.Memory() - memory; n != arenaPage {
		t.Errorf("a checkpoint that is being taken counts for %d bytes, want %d", n, arenaPage)
	}
	if err := s.commit(c); err != nil {
		t.Fatal(err)
	}
	if n := f.m.Memory() - memory; n != arenaPage {
		t.Errorf("until Clean has been through, it counts for %d bytes, want %d", n, arenaPage)
	}
	for f.m.EvictCommitted(7) {
	}
	if n := f.m.Memory() - memory; n != 0 {
		t.Errorf("after that it counts for %d bytes", n)
	}
	runtime.GC()
	if written.Value() != nil {
		t.Error("all that was written is still in memory")
	}
	runtime.KeepAlive(f)
}

// What a checkpoint copies of large jobs counts as used in full, until the copies are gone.
func TestCopiesOfLargeJobsCount(t *testing.T) {
	f := newFeed(t)
	s := saved{m: f.m}
	f.m.Attach(s.table.View())
	const jobs, size = 20, 300 << 10
	for i := range jobs {
		f.put(fmt.Sprintf("job-%d", i), `{"payload":"`+strings.Repeat("x", size)+`"}`)
	}
	memory := f.m.Memory()
	c := f.m.BeginCheckpoint()
	for c.Next(7) {
	}
	if n := f.m.Memory() - memory; n < jobs*size || n > 2*jobs*size {
		t.Errorf("the copies of %d jobs of %d bytes count for %d", jobs, size, n)
	}
	if err := s.commit(c); err != nil {
		t.Fatal(err)
	}
	for f.m.EvictCommitted(7) {
	}
	if n := f.m.Memory() - memory; n != 0 {
		t.Errorf("copies that are gone count for %d bytes", n)
	}
}

// The work of a checkpoint between two records is bounded in bytes of specs, too; and a checkpoint that ends leaves the outbox alone.
func TestCheckpointOfLargeJobs(t *testing.T) {
	f := newFeed(t)
	const size = 300 << 10
	for i := range 20 {
		f.put(fmt.Sprintf("job-%d", i), `{"payload":"`+strings.Repeat("x", size)+`"}`)
	}
	for _, end := range []func(*Checkpoint){(*Checkpoint).Abandon, (*Checkpoint).Committed} {
		c := f.m.BeginCheckpoint()
		for more := true; more; {
			before := c.cursor
			more = c.Next(1000)
			if n := c.cursor - before; n > specSlice/size+1 {
				t.Errorf("%d jobs of %d bytes at a time", n, size)
			}
		}
		if !f.m.outbox.pinned {
			t.Error("it does not keep the outputs that it reads")
		}
		if end(c); f.m.outbox.pinned {
			t.Error("it has ended, and keeps the outputs")
		}
	}
}
