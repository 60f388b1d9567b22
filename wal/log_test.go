package wal

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestAppend(t *testing.T) {
	opts := Options{Dir: t.TempDir()}
	s := open(t, opts)
	l := s.Log()
	extent := func(first, last uint64) {
		t.Helper()
		if l.First() != first || l.Last() != last {
			t.Fatalf("log from %d to %d, want %d to %d", l.First(), l.Last(), first, last)
		}
	}
	extent(0, 0)
	must(t, l.Append(nil))
	extent(0, 0)
	must(t, l.Append([]Record{{5, []byte("five")}, {7, []byte("seven")}}))
	extent(5, 7)
	wantErr(t, l.Append([]Record{{9, nil}, {9, nil}}), ErrOrder)
	wantErr(t, l.Append([]Record{{0, nil}}), ErrOrder)
	extent(5, 7)

	written := s.count
	must(t, l.Append([]Record{{5, []byte("five")}, {7, []byte("seven")}})) // changes nothing
	wantErr(t, l.Append([]Record{{6, nil}, {7, []byte("other")}, {8, nil}}), ErrConflict)
	extent(5, 7)
	must(t, l.Truncate(5)) // drops nothing
	if s.count != written {
		t.Errorf("%d batches were written although nothing changes", s.count-written)
	}
	_, err := l.Get(6)
	wantErr(t, err, ErrNotFound)
	must(t, l.Append([]Record{{3, []byte("three")}, {5, []byte("five")}, {6, []byte("six")}, {9, nil}})) // fills gaps
	extent(3, 9)
	want := map[uint64]string{3: "three", 5: "five", 6: "six", 7: "seven", 9: ""}
	if d := cmp.Diff(want, contents(t, s)); d != "" {
		t.Fatal(d)
	}
	_, err = l.Get(8)
	wantErr(t, err, ErrNotFound)
	data, err := l.Get(7)
	must(t, err)
	if string(data) != "seven" {
		t.Fatalf("Get(7) = %q", data)
	}

	stop := errors.New("stop")
	var seen []uint64
	wantErr(t, l.Read(6, func(r Record) error {
		seen = append(seen, r.Seq)
		if r.Seq == 7 {
			return stop
		}
		return nil
	}), stop)
	if !slices.Equal(seen, []uint64{6, 7}) {
		t.Fatalf("read %v", seen)
	}

	must(t, l.Truncate(6))
	extent(6, 9)
	_, err = l.Get(5)
	wantErr(t, err, ErrNotFound)
	must(t, l.Truncate(100))
	extent(0, 9)
	must(t, s.Close())
	s = open(t, opts)
	l = s.Log()
	extent(0, 9)
	must(t, l.Append([]Record{{math.MaxUint64, []byte("end")}}))
	extent(math.MaxUint64, math.MaxUint64)
	if d := cmp.Diff(map[uint64]string{math.MaxUint64: "end"}, contents(t, s)); d != "" {
		t.Fatal(d)
	}
}

// submit is Append in two steps, so that appends can overlap.
func submit(l *Log, recs []Record) (wait func() error) {
	done, _, err := l.submit(recs)
	if err != nil {
		return func() error { return err }
	}
	return sync.OnceValue(done)
}

// A record submitted again before its first sync must wait for that sync.
func TestSubmitAgain(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	l := s.Log()
	rec := []Record{{1, []byte("x")}}
	first := submit(l, rec)
	must(t, submit(l, rec)())
	if l.Last() != 1 {
		t.Fatalf("appended, but the log ends at %d", l.Last())
	}
	must(t, first())
	must(t, first())

	// Of two batches, the waiter of the earlier one may come last; it does not take back what the later one has made visible.
	earlier, later := submit(l, []Record{{2, nil}}), submit(l, []Record{{3, nil}})
	_, err := l.Get(3) // not on disk yet
	wantErr(t, err, ErrNotFound)
	must(t, later())
	must(t, earlier())
	if l.Last() != 3 {
		t.Errorf("the log ends at %d, expected 3", l.Last())
	}
	if s.mark.state.count != s.count {
		t.Errorf("the mark has count %d, and batch %d is on disk", s.mark.state.count, s.count)
	}
}

func TestOnSync(t *testing.T) {
	var mu sync.Mutex
	var records, size int
	s := open(t, Options{Dir: t.TempDir(), OnSync: func(d time.Duration, r, b int) {
		mu.Lock()
		defer mu.Unlock()
		if d <= 0 {
			t.Errorf("a sync took %v", d)
		}
		records, size = records+r, size+b
	}})
	must(t, s.Log().Append([]Record{{1, []byte("abc")}, {2, []byte("de")}}))
	wantErr(t, s.Log().Append([]Record{{1, []byte("other")}}), ErrConflict)
	if records != 2 || size != 5 {
		t.Errorf("OnSync saw %d records of %d bytes, want 2 of 5", records, size)
	}
}

// Readers and a truncation beside the appender see whole records, in order, and nothing beyond Last.
func TestConcurrent(t *testing.T) {
	s := open(t, Options{Dir: "db", FS: vfs.NewMem(), MemTableBytes: 128 << 10})
	l := s.Log()
	const n = 3000
	data := func(seq uint64) string { return fmt.Sprint("record ", seq) }
	var wg sync.WaitGroup
	done := make(chan struct{})
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				last := uint64(0)
				if err := l.Read(0, func(r Record) error {
					if last != 0 && r.Seq != last+1 {
						return fmt.Errorf("%d after %d", r.Seq, last)
					}
					if string(r.Data) != data(r.Seq) {
						return fmt.Errorf("record %d is %q", r.Seq, r.Data)
					}
					last = r.Seq
					return nil
				}); err != nil {
					t.Error(err)
					return
				}
				if now := l.Last(); last > now {
					t.Errorf("read %d, but the log ends at %d", last, now)
				}
			}
		})
	}
	wg.Go(func() {
		for l.Last() < n {
			if last := l.Last(); last > 50 {
				if err := l.Truncate(last - 50); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	var waits []func() error
	for seq := uint64(1); seq <= n; seq++ {
		waits = append(waits, submit(l, []Record{{seq, []byte(data(seq))}}))
		if len(waits) == 4 || seq == n {
			for _, wait := range waits {
				must(t, wait())
			}
			waits = waits[:0]
		}
	}
	close(done)
	wg.Wait()
	if l.Last() != n || l.First() == 0 {
		t.Errorf("log from %d to %d", l.First(), l.Last())
	}
}

// model is what a log should hold.
type model struct {
	recs        map[uint64]string
	first, last uint64
}

func (m *model) clone() model { return model{maps.Clone(m.recs), m.first, m.last} }

func (m *model) extent() {
	m.first = 0
	for seq := range m.recs {
		if m.first == 0 || seq < m.first {
			m.first = seq
		}
		m.last = max(m.last, seq)
	}
}

func (m *model) append(recs []Record) error {
	for _, r := range recs {
		if have, ok := m.recs[r.Seq]; ok && have != string(r.Data) {
			return ErrConflict
		}
	}
	for _, r := range recs {
		m.recs[r.Seq] = string(r.Data)
	}
	m.extent()
	return nil
}

func (m *model) truncate(before uint64) {
	maps.DeleteFunc(m.recs, func(seq uint64, _ string) bool { return seq < before })
	m.extent()
}

func (m *model) check(s *Store) error {
	got, err := readAll(s)
	if err != nil {
		return err
	}
	for seq, data := range m.recs {
		if have, ok := got[seq]; !ok || have != data {
			return fmt.Errorf("of %d records, %d is missing or wrong (there: %v)", len(m.recs), seq, ok)
		}
	}
	if len(got) != len(m.recs) {
		return fmt.Errorf("%d records, want %d", len(got), len(m.recs))
	}
	if l := s.Log(); l.First() != m.first || l.Last() != m.last {
		return fmt.Errorf("log from %d to %d, want %d to %d", l.First(), l.Last(), m.first, m.last)
	}
	return nil
}

// The log is compared with a map, with restarts.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		opts := Options{Dir: "db", FS: vfs.NewMem(), MemTableBytes: minMemTableBytes}
		s, err := OpenStore(opts)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		m := model{recs: map[uint64]string{}}
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				seqs := rapid.SliceOfNDistinct(rapid.Uint64Range(1, 60), 0, 8, rapid.ID).Draw(t, "seqs")
				slices.Sort(seqs)
				var recs []Record
				for _, seq := range seqs {
					data := fmt.Sprint("record ", seq)
					if rapid.IntRange(0, 30).Draw(t, "other") == 0 {
						data = "other"
					}
					recs = append(recs, Record{seq, []byte(data)})
				}
				if got, want := s.Log().Append(recs), m.append(recs); !errors.Is(got, want) {
					t.Fatalf("Append: %v, want %v", got, want)
				}
			},
			"truncate": func(t *rapid.T) {
				before := rapid.Uint64Range(0, 70).Draw(t, "before")
				m.truncate(before)
				if err := s.Log().Truncate(before); err != nil {
					t.Fatal(err)
				}
			},
			"get": func(t *rapid.T) {
				seq := rapid.Uint64Range(0, 70).Draw(t, "seq")
				got, err := s.Log().Get(seq)
				if want, ok := m.recs[seq]; ok && string(got) != want || ok != (err == nil) {
					t.Fatalf("Get(%d) = %q, %v, want %q, %v", seq, got, err, want, ok)
				}
			},
			"reopen": func(t *rapid.T) {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if s, err = OpenStore(opts); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				if err := m.check(s); err != nil {
					t.Fatal(err)
				}
			},
		})
	})
}

// After a crash the log is what it was after some operation, at or after the last one that had returned.
func TestCrash(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 1))
		noise := rand.NewChaCha8([32]byte{byte(seed)})
		mem := vfs.NewCrashableMem()
		history := []model{{recs: map[uint64]string{}}} // history[i] is the log after i operations
		for life := range 4 {
			opts := Options{Dir: "db", FS: mem, MemTableBytes: minMemTableBytes}
			s, err := OpenStore(opts)
			if err != nil {
				t.Fatalf("seed %d, life %d: %v", seed, life, err)
			}
			// Which of the states is it?
			var i int
			for i = len(history) - 1; i >= 0; i-- {
				if err = history[i].check(s); err == nil {
					break
				}
			}
			if i < 0 {
				t.Fatalf("seed %d, life %d: none of the states; against the oldest possible: %v", seed, life, err)
			}
			history = history[i : i+1]
			acked := 0
			var waits []func() error
			for range 1 + rng.IntN(150) {
				next := history[len(history)-1].clone()
				truncate := rng.IntN(8) == 0
				if truncate {
					before := next.first + rng.Uint64N(30)
					wait, err := s.Log().truncate(before)
					must(t, err)
					next.truncate(before)
					waits = append(waits, wait)
				} else {
					var recs []Record
					seq := next.last
					for range 1 + rng.IntN(5) {
						seq += 1 + rng.Uint64N(3)
						data := make([]byte, rng.IntN(3000))
						_, _ = noise.Read(data)
						recs = append(recs, Record{seq, data})
					}
					waits = append(waits, submit(s.Log(), recs))
					must(t, next.append(recs))
				}
				history = append(history, next)
				// A truncation that has nothing to drop does not wait for a sync.
				if !truncate && rng.IntN(3) == 0 {
					must(t, waits[len(waits)-1]())
					acked = len(history) - 1
				}
			}
			percent := []int{0, 0, 30, 70, 100}[rng.IntN(5)]
			clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
			must(t, s.Close())
			for _, wait := range waits {
				must(t, wait())
			}
			mem, history = clone, history[acked:]
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, group := range []int{1, 10, 100, 1000} {
		for _, ahead := range []int{0, 1, 4} {
			b.Run(fmt.Sprintf("group=%d/ahead=%d", group, ahead), func(b *testing.B) {
				s := open(b, Options{Dir: b.TempDir()})
				data := make([]byte, 300)
				rng := rand.NewChaCha8([32]byte{})
				_, _ = rng.Read(data)
				recs := make([]Record, group)
				seq := uint64(0)
				var waits []func() error
				b.SetBytes(int64(group * len(data)))
				for b.Loop() {
					for i := range recs {
						seq++
						recs[i] = Record{seq, data}
					}
					waits = append(waits, submit(s.Log(), recs))
					if len(waits) > ahead {
						must(b, waits[0]())
						waits = waits[1:]
					}
				}
				for _, wait := range waits {
					must(b, wait())
				}
				b.ReportMetric(float64(b.N*group)/b.Elapsed().Seconds(), "records/s")
			})
		}
	}
}

func BenchmarkRead(b *testing.B) {
	s := open(b, Options{Dir: b.TempDir()})
	recs := make([]Record, 100_000)
	for i := range recs {
		recs[i] = Record{uint64(i + 1), make([]byte, 300)}
	}
	must(b, s.Log().Append(recs))
	must(b, s.db.Flush())
	n := 0
	for b.Loop() {
		must(b, s.Log().Read(0, func(Record) error { n++; return nil }))
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "records/s")
}
