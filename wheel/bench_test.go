package wheel

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server/thw"
)

// The benchmarks hold n timers, due at random within the next hour, and time batches of a tenth of
// them. Bringing the number back to n is not timed. Timers are removed in random order: timers that
// were near in memory at insertion are not near in the order of removal. Expiry steps through the
// milliseconds as an engine would. B/timer is how much the heap grew for each timer; for a wheel in use it is
// how much memory the wheel holds.
//
// The figures in the docs are of ten million timers, one batch each time, beside the floor measured in the same minutes. In a longer
// run a "new" wheel has been in use since its first batch.
//
//	go test -run '^$' -bench '^Benchmark(Floor|Insert|Remove|Expire)$/n=10M' -benchtime 1000000x -count 10 ./wheel
//	go test -run '^$' -bench WorstStep/n=10M -benchtime 1x ./wheel

var sizes = []struct {
	name string
	n    int
}{{"n=1M", 1_000_000}, {"n=10M", 10_000_000}}

func eachSize(b *testing.B, run func(b *testing.B, n int)) {
	for _, size := range sizes {
		b.Run(size.name, func(b *testing.B) { run(b, size.n) })
	}
}

// eachState is eachSize for a wheel that was just filled, and for one that has been in use since: three times as many timers as it
// holds were removed at random and others inserted, so free records are everywhere.
func eachState(b *testing.B, run func(b *testing.B, f *full)) {
	eachSize(b, func(b *testing.B, n int) {
		b.Run("new", func(b *testing.B) { run(b, fill(n)) })
		b.Run("used", func(b *testing.B) {
			f := fill(n)
			for range 30 {
				f.replace(f.shuffle(n / 10))
			}
			f.perTimer = float64(f.Bytes()) / float64(n)
			run(b, f)
		})
	})
}

// batches times b.N operations, at most batch at once, with restore between them.
func batches(b *testing.B, batch int, op func(count int), restore func(count int)) {
	b.ReportAllocs()
	b.ResetTimer()
	for left := b.N; left > 0; {
		count := min(batch, left)
		op(count)
		left -= count
		b.StopTimer()
		restore(count)
		b.StartTimer()
	}
	b.StopTimer()
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// full is a wheel with n timers; data is an index of ids.
type full struct {
	*Wheel
	rng      *rand.Rand
	ids      []ID
	perTimer float64
}

func fill(n int) *full {
	f := &full{rng: rand.New(rand.NewPCG(1, 1)), ids: make([]ID, n, n+n/10)}
	before := heap()
	f.Wheel = New(y2k)
	for i := range f.ids {
		f.ids[i] = f.Insert(f.soon(), uint32(i))
	}
	f.perTimer = float64(heap()-before) / float64(n)
	return f
}

func (f *full) soon() int64 { return f.Now() + 1 + f.rng.Int64N(hour) }

// shuffle brings count random ids to the end of f.ids.
func (f *full) shuffle(count int) []ID {
	for i := range count {
		last := len(f.ids) - 1 - i
		j := f.rng.IntN(last + 1)
		f.ids[last], f.ids[j] = f.ids[j], f.ids[last]
	}
	return f.ids[len(f.ids)-count:]
}

// replace removes timers, and inserts as many others in their place.
func (f *full) replace(ids []ID) {
	for _, id := range ids {
		f.Remove(id)
	}
	for i := range ids {
		ids[i] = f.Insert(f.soon(), 0)
	}
}

// The machine's own floor: a timer's memory is somewhere in 170 MB, and a removal must at least read where it is, and then read
// there. Nothing is written, and nothing depends on what was read.
func BenchmarkFloor(b *testing.B) {
	eachSize(b, func(b *testing.B, n int) {
		rng := rand.New(rand.NewPCG(1, 1))
		heads, pos, order := make([]chunk, n/chunkLen*5/4), make([]uint32, n), make([]uint32, n)
		for i := range n {
			pos[i], order[i] = uint32(rng.IntN(len(heads))), uint32(rng.IntN(n))
		}
		at, sum := 0, uint32(0)
		for b.Loop() {
			sum ^= heads[pos[order[at]]].slot
			if at++; at == n {
				at = 0
			}
		}
		runtime.KeepAlive(sum)
	})
}

func BenchmarkInsert(b *testing.B) {
	eachState(b, func(b *testing.B, f *full) {
		n := f.Len()
		deadlines := make([]int64, n/10)
		for i := range deadlines {
			deadlines[i] = f.soon()
		}
		batches(b, n/10, func(count int) {
			for _, d := range deadlines[:count] {
				f.ids = append(f.ids, f.Insert(d, 0))
			}
		}, func(count int) {
			for _, id := range f.shuffle(count) {
				f.Remove(id)
			}
			f.ids = f.ids[:n]
		})
		b.ReportMetric(f.perTimer, "B/timer")
	})
}

func BenchmarkRemove(b *testing.B) {
	eachState(b, func(b *testing.B, f *full) {
		n := f.Len()
		victims := f.shuffle(n / 10)
		batches(b, n/10, func(count int) {
			for _, id := range victims[:count] {
				f.Remove(id)
			}
		}, func(count int) {
			for i := range victims[:count] {
				victims[i] = f.Insert(f.soon(), 0)
			}
			victims = f.shuffle(n / 10)
		})
		b.ReportMetric(f.perTimer, "B/timer")
	})
}

func BenchmarkExpire(b *testing.B) {
	eachState(b, func(b *testing.B, f *full) {
		n := f.Len()
		batches(b, n/10, func(count int) {
			for yielded := 0; yielded < count; {
				f.Advance(f.Now()+1, count-yielded, func(uint32, int64) { yielded++ })
			}
		}, func(count int) {
			for range count {
				f.Insert(f.soon(), 0)
			}
		})
		b.ReportMetric(f.perTimer, "B/timer")
	})
}

// A recurring timer's life: it expires and is set again, up to an hour ahead.
func BenchmarkRearm(b *testing.B) {
	eachSize(b, func(b *testing.B, n int) {
		f := fill(n)
		batches(b, n, func(count int) {
			for left := count; left > 0; {
				f.Advance(f.Now()+1, left, func(data uint32, _ int64) {
					left--
					f.Insert(f.soon(), data)
				})
			}
		}, func(int) {})
	})
}

// All due in one millisecond, as at midnight.
func BenchmarkExpireBurst(b *testing.B) {
	eachSize(b, func(b *testing.B, n int) {
		w := New(y2k)
		set := func(count int) {
			for range count {
				w.Insert(w.Now()+hour, 0)
			}
		}
		set(n)
		batches(b, n, func(count int) {
			left := count
			w.Advance(w.Now()+hour, count, func(uint32, int64) { left-- })
		}, func(int) { set(n - w.Len()) })
	})
}

// The longest time of a single step of 1 ms, expiry included, while an hour passes; and of a single Insert.
func BenchmarkWorstStep(b *testing.B) {
	eachSize(b, func(b *testing.B, n int) {
		var step, insert time.Duration
		for range b.N {
			w, rng := New(y2k), rand.New(rand.NewPCG(1, 1))
			w.Grow(n)
			for range n {
				at := y2k + hour + rng.Int64N(hour)
				start := time.Now()
				w.Insert(at, 0)
				insert = max(insert, time.Since(start))
			}
			for w.Len() > 0 {
				start := time.Now()
				w.Advance(w.Now()+1, n, func(uint32, int64) {})
				w.Next()
				step = max(step, time.Since(start))
			}
		}
		b.ReportMetric(float64(step.Microseconds()), "µs-step-max")
		b.ReportMetric(float64(insert.Microseconds()), "µs-insert-max")
	})
}

// An hour without a deadline: the engine asks for the next one and moves an hour on.
func BenchmarkIdleHour(b *testing.B) {
	eachSize(b, func(b *testing.B, n int) {
		w := New(y2k)
		for i := range n {
			w.Insert(y2k+300_000*year+int64(i), 0)
		}
		b.ReportAllocs()
		for b.Loop() {
			w.Next()
			w.Advance(w.Now()+hour, 1, nil)
		}
	})
}

// Next where it costs most: each time the earliest timer was just removed.
func BenchmarkNextAfterRemoveOfFirst(b *testing.B) {
	eachSize(b, func(b *testing.B, n int) {
		f := fill(n)
		b.ReportAllocs()
		for b.Loop() {
			next, _ := f.Next()
			id := f.Insert(next-1, 0)
			f.Next()
			f.Remove(id)
			f.Next()
		}
	})
}

// Peers. time.AfterFunc: the runtime's heaps of timers, a goroutine for each that fires.

func BenchmarkAfterFuncInsert(b *testing.B) {
	eachSize(b, func(b *testing.B, n int) {
		timers, perTimer := fillAfterFunc(n)
		batches(b, n/10, func(count int) {
			for range count {
				timers = append(timers, time.AfterFunc(within(time.Hour), func() {}))
			}
		}, func(count int) {
			for _, t := range timers[n:] {
				t.Stop()
			}
			timers = timers[:n]
		})
		b.ReportMetric(perTimer, "B/timer")
		stopAll(timers)
	})
}

func BenchmarkAfterFuncRemove(b *testing.B) {
	eachSize(b, func(b *testing.B, n int) {
		timers, perTimer := fillAfterFunc(n)
		mix := func() { rand.Shuffle(n, func(i, j int) { timers[i], timers[j] = timers[j], timers[i] }) }
		mix()
		batches(b, n/10, func(count int) {
			for _, t := range timers[:count] {
				t.Stop()
			}
		}, func(count int) {
			for i := range timers[:count] {
				timers[i] = time.AfterFunc(within(time.Hour), func() {})
			}
			mix()
		})
		b.ReportMetric(perTimer, "B/timer")
		stopAll(timers)
	})
}

// From the moment at which n timers are due until the last has run.
func BenchmarkAfterFuncExpire(b *testing.B) {
	eachSize(b, func(b *testing.B, n int) {
		b.ReportAllocs()
		b.StopTimer()
		for left := b.N; left > 0; left -= n {
			count := min(n, left)
			var fired sync.WaitGroup
			fired.Add(count)
			due := time.Now().Add(time.Second + time.Duration(count)*2*time.Microsecond)
			for range count {
				time.AfterFunc(time.Until(due), fired.Done)
			}
			time.Sleep(time.Until(due))
			b.StartTimer()
			fired.Wait()
			b.StopTimer()
		}
	})
}

func within(d time.Duration) time.Duration { return d + time.Duration(rand.Int64N(int64(d))) }

func fillAfterFunc(n int) (timers []*time.Timer, perTimer float64) {
	timers = make([]*time.Timer, n, n+n/10)
	before := heap()
	for i := range timers {
		timers[i] = time.AfterFunc(within(time.Hour), func() {})
	}
	return timers, float64(heap()-before) / float64(n)
}

func stopAll(timers []*time.Timer) {
	for _, t := range timers {
		t.Stop()
	}
}

// thw: nats-server's wheel of 4,096 slots of a second, each a map; it yields in no order.

func BenchmarkTHWInsert(b *testing.B) {
	eachSize(b, func(b *testing.B, n int) {
		w, due, perTimer := fillTHW(n)
		batches(b, n/10, func(count int) {
			for i := range count {
				must(w.Add(uint64(n+i), due[i]))
			}
		}, func(count int) {
			for i := range count {
				must(w.Remove(uint64(n+i), due[i]))
			}
		})
		b.ReportMetric(perTimer, "B/timer")
	})
}

func BenchmarkTHWRemove(b *testing.B) {
	eachSize(b, func(b *testing.B, n int) {
		w, due, perTimer := fillTHW(n)
		order := rand.Perm(n)
		batches(b, n/10, func(count int) {
			for _, i := range order[:count] {
				must(w.Remove(uint64(i), due[i]))
			}
		}, func(count int) {
			for _, i := range order[:count] {
				must(w.Add(uint64(i), due[i]))
			}
			rand.Shuffle(n, func(i, j int) { order[i], order[j] = order[j], order[i] })
		})
		b.ReportMetric(perTimer, "B/timer")
	})
}

// thw has a clock of its own, so all n are due at once; this is without the cost of steps.
func BenchmarkTHWExpire(b *testing.B) {
	eachSize(b, func(b *testing.B, n int) {
		b.ReportAllocs()
		b.StopTimer()
		for left := b.N; left > 0; left -= n {
			w := thw.NewHashWheel()
			now := time.Now().UnixNano()
			for i := range min(n, left) {
				must(w.Add(uint64(i), now-rand.Int64N(int64(time.Hour))))
			}
			b.StartTimer()
			w.ExpireTasks(func(uint64, int64) bool { return true })
			b.StopTimer()
			if w.Count() != 0 {
				b.Fatalf("%d not expired", w.Count())
			}
		}
	})
}

func fillTHW(n int) (w *thw.HashWheel, due []int64, perTimer float64) {
	due = make([]int64, n)
	before, now := heap(), time.Now().UnixNano()
	w = thw.NewHashWheel()
	for i := range due {
		due[i] = now + rand.Int64N(int64(time.Hour))
		must(w.Add(uint64(i), due[i]))
	}
	return w, due, float64(heap()-before) / float64(n)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
