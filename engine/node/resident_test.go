package node

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
)

// resident returns a node of one partition with more jobs in memory than there is room for, all of them due at one time.
func resident(t *testing.T, due time.Time) (*Node, *partition) {
	t.Helper()
	m := engine.New(engine.Layout{Prefix: "carillon", Partitions: 1}, 0)
	p := &partition{machine: m}
	p.follows.Store(true)
	m.Attach(&p.table)
	for i := range 10 {
		body := []byte(`{"schedule":"@at ` + due.UTC().Format("2006-01-02T15:04:05.000Z") + `"}`)
		e := engine.Entry{Seq: uint64(i + 1), Time: 1, Kind: engine.KindPut, Verb: "put", Job: strconv.Itoa(i), Body: body}
		if r, err := m.Apply(&e); err != nil || r.Err != nil {
			t.Fatal(err, r.Err)
		}
	}
	return &Node{o: Options{HotJobs: 1, MemoryForJobs: 1, LoadAhead: 30 * time.Minute}, meters: newMeters(nil), partitions: []*partition{p}}, p
}

// Jobs that are due in a moment stay in memory, however many they are: a tick would have to let go of all of them, and read them again.
func TestCrowdStays(t *testing.T) {
	due := time.UnixMilli(1_800_000_000_000)
	for _, c := range []struct {
		before time.Duration
		stays  bool
	}{{evictMargin, true}, {evictMargin + time.Millisecond, false}} {
		n, p := resident(t, due)
		if err := n.loadAndEvictIn(t.Context(), p, due.Add(-c.before).UnixMilli()); err != nil {
			t.Fatal(err)
		}
		if p.machine.Complete() != c.stays {
			t.Errorf("%s before it is due all of it is to stay in memory: %v, want %v", c.before, p.machine.Complete(), c.stays)
		}
	}
}

// The view of the job table is closed once nobody reads it, even if the partition has stopped.
func TestStoppedPartitionReadsNothing(t *testing.T) {
	n, p := resident(t, time.UnixMilli(1_800_000_000_000))
	p.table.used = true
	p.stopped = errors.New("stopped")
	if err := n.loadAndEvict(t.Context()); err != nil || p.table.used {
		t.Errorf("its table counts as read: %v, %v", p.table.used, err)
	}
}
