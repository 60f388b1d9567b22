package engine

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/wal"
)

// The benchmarks hold a million jobs in one partition.
//
//	go test -run '^$' -bench . -benchtime 300000x ./engine

const benchJobs = 1_000_000

// BenchmarkInterval is a trigger of "@every": taken off the wheel, put out, armed again.
func BenchmarkInterval(b *testing.B) {
	s := newFeed(b)
	for i := range benchJobs {
		s.put(fmt.Sprintf("job-%07d", i), `{"schedule":"@every 1s","spread":"1s","payload":{"n":1}}`)
	}
	s.triggers(b)
}

// BenchmarkCron is a trigger of a cron expression.
func BenchmarkCron(b *testing.B) {
	s := newFeed(b)
	for i := range benchJobs {
		s.put(fmt.Sprintf("job-%07d", i), `{"schedule":"* * * * * *","spread":"1s","payload":{"n":1}}`)
	}
	s.triggers(b)
}

// BenchmarkOneShot is a trigger of "@at", and the job's end.
func BenchmarkOneShot(b *testing.B) {
	s := newFeed(b)
	s.oneShots()
	b.ReportAllocs()
	b.ResetTimer()
	for left := b.N; left > 0; {
		if s.m.Stats().Timers == 0 {
			b.StopTimer()
			s = newFeed(b)
			s.oneShots()
			b.StartTimer()
		}
		left -= s.step(left)
	}
}

func (s *feed) oneShots() {
	for i := range benchJobs {
		s.put(fmt.Sprintf("job-%07d", i), `{"schedule":"@at 2026-01-01T00:00:01Z","spread":"1s","payload":{"n":1}}`)
	}
}

func (s *feed) triggers(b *testing.B) {
	b.ReportAllocs()
	b.ResetTimer()
	for left := b.N; left > 0; {
		left -= s.step(left)
	}
}

// step ticks a millisecond further on, and returns how many outputs that made.
func (s *feed) step(limit int) int {
	s.now++
	return s.tick(limit)
}

// BenchmarkPut replaces jobs among a million.
func BenchmarkPut(b *testing.B) {
	s := newFeed(b)
	for i := range benchJobs {
		s.put(fmt.Sprintf("job-%07d", i), `{"schedule":"@every 1h","payload":{"n":1}}`)
	}
	e := &Entry{Kind: KindPut, Verb: "put", Job: "job-0000000"}
	bodies := [2][]byte{[]byte(`{"schedule":"@every 2h","payload":{"n":1}}`), []byte(`{"schedule":"@every 3h","payload":{"n":1}}`)}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		e.Body = bodies[i&1]
		s.apply(e)
	}
}

// BenchmarkPutNew adds jobs to a million.
func BenchmarkPutNew(b *testing.B) {
	s := newFeed(b)
	for i := range benchJobs {
		s.put(fmt.Sprintf("job-%07d", i), `{"schedule":"@every 1h","payload":{"n":1}}`)
	}
	ids := make([]string, b.N)
	for i := range ids {
		ids[i] = fmt.Sprintf("new-%08d", i)
	}
	body := []byte(`{"schedule":"@every 1h","payload":{"n":1}}`)
	b.ReportAllocs()
	b.ResetTimer()
	for _, id := range ids {
		s.apply(&Entry{Kind: KindPut, Verb: "put", Job: id, Body: body})
	}
}

// BenchmarkCheckpoint takes checkpoints on disk, of a million jobs and of an eighth of that, as one of eight partitions has: the first
// one, and one after 10,000 jobs changed. Then it opens the last one.
func BenchmarkCheckpoint(b *testing.B) {
	id := func(i int) string { return fmt.Sprintf("job-%016x", uint64(i)*0x9e3779b97f4a7c15) }
	for _, jobs := range []int{benchJobs / 8, benchJobs} {
		b.Run(fmt.Sprint(jobs), func(b *testing.B) {
			f := newFeed(b)
			for i := range jobs {
				f.put(id(i), `{"schedule":"@every 1h","spread":"1h","payload":{"n":1}}`)
			}
			store, err := wal.OpenStore(wal.Options{Dir: b.TempDir(), Profile: wal.ProfileTable})
			if err != nil {
				b.Fatal(err)
			}
			table := snapshot.OpenTable(store)
			b.ReportMetric(benchTake(b, f.m, table), "first-s")
			for i := range 10_000 {
				f.apply(&Entry{Kind: KindPause, Verb: "pause", Job: id(i * jobs / 10_000)})
			}
			b.ReportMetric(benchTake(b, f.m, table), "10k-s")
			for b.Loop() {
				if err := table.View(0, func(v *snapshot.View) error {
					m, err := Open(oneOfOne, 0, v)
					if err == nil && m.Stats().Jobs != jobs {
						b.Errorf("%d jobs", m.Stats().Jobs)
					}
					return err
				}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*jobs), "open-ns/job")
			b.ReportMetric(0, "ns/op")
			if err := store.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// benchTake takes a checkpoint, returns how long that took, in s, and reports how long the machine had to wait at most.
func benchTake(b *testing.B, m *Machine, table *snapshot.Table) float64 {
	began := time.Now()
	build, err := table.Begin(0)
	if err != nil {
		b.Fatal(err)
	}
	slice := time.Now()
	c := m.BeginCheckpoint()
	more, longest := true, time.Since(slice)
	for more {
		slice = time.Now()
		more = c.Next(500)
		longest = max(longest, time.Since(slice))
	}
	taken := time.Since(began)
	c.Write(build, m.position)
	written := time.Since(began)
	if _, err := build.Commit(); err != nil {
		b.Fatal(err)
	}
	c.Committed()
	b.Logf("taken %s, longest slice %s, written %s, committed %s", taken, longest, written-taken, time.Since(began)-written)
	return time.Since(began).Seconds()
}

// BenchmarkMemory measures how much heap a recurring job takes beyond its payload once a checkpoint has it, and how long
// a garbage collection takes with half a million of them: go test -run '^$' -bench Memory -benchtime 1x ./engine
func BenchmarkMemory(b *testing.B) {
	const n, payload = 500_000, 200
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	body := `{"schedule":"@every 24h","payload":"` + strings.Repeat("x", payload-2) + `"}`
	for range b.N {
		before := heap()
		s := newFeed(b)
		for i := range n {
			s.put(fmt.Sprintf("job-%06d", i), body)
		}
		c := s.m.BeginCheckpoint()
		for c.Next(500) {
		}
		c.Committed()
		b.ReportMetric((heap()-before)/n-payload, "B/job")
		began := time.Now()
		runtime.GC()
		b.ReportMetric(float64(time.Since(began).Microseconds())/1000, "ms/collection")
		runtime.KeepAlive(s)
	}
}

// BenchmarkChain is an output's way through a chain whose window is full: offered, sent, acknowledged with others.
func BenchmarkChain(b *testing.B) {
	c := NewChain()
	c.Share(8, MaxOvertakingWindow)
	c.Resume(0, 0, nil)
	window := c.FreeWindow()
	outputs := numbered(1, uint64(window/minFreeShare), 0)
	b.ReportAllocs()
	for left := b.N; left > 0; {
		if c.FreeWindow() > 0 {
			c.Offer(outputs)
			left -= len(outputs)
		}
		for {
			if _, ok := c.Next(1); !ok {
				break
			}
		}
		c.Acked(c.Stored().Seq + uint64(window/acksInFlight))
	}
}
