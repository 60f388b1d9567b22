package engine

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
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

// step is a tick a millisecond further on, and says how many outputs it made.
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

// BenchmarkCheckpoint is a job's share of a checkpoint, and of reading it back.
func BenchmarkCheckpoint(b *testing.B) {
	s := newFeed(b)
	for i := range benchJobs {
		s.put(fmt.Sprintf("job-%07d", i), `{"schedule":"@every 1h","payload":{"n":1}}`)
	}
	b.Run("take", func(b *testing.B) {
		bytes := 0
		for left := b.N; left > 0; left -= benchJobs {
			c := s.m.BeginCheckpoint()
			for part := c.Next(1000); part != nil; part = c.Next(1000) {
				bytes += len(part)
			}
		}
		b.ReportMetric(float64(bytes)/float64(benchJobs)/float64((b.N+benchJobs-1)/benchJobs), "B/job")
	})
	b.Run("restore", func(b *testing.B) {
		for left := b.N; left > 0; left -= benchJobs {
			if _, err := copyByCheckpoint(s.m, 1000); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkMemory is what a recurring job takes of the heap beyond its payload, and how long a collection
// takes with half a million of them: go test -run '^$' -bench Memory -benchtime 1x ./engine
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
		b.ReportMetric((heap()-before)/n-payload, "B/job")
		began := time.Now()
		runtime.GC()
		b.ReportMetric(float64(time.Since(began).Microseconds())/1000, "ms/collection")
		runtime.KeepAlive(s)
	}
}
