package snapshot

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/carillon-scheduler/carillon/wal"
)

// benchJobs are rows, ids and specs like the engine's, of random dues over a year.
type benchJobs struct {
	rng   *rand.Rand
	noise *rand.ChaCha8
	armed uint64
	keys  [][]byte // of the rows
	rows  [][]byte
}

func newBenchJobs() *benchJobs {
	return &benchJobs{rng: rand.New(rand.NewPCG(1, 2)), noise: rand.NewChaCha8([32]byte{1})}
}

func (j *benchJobs) id(i int) []byte {
	return fmt.Appendf(nil, "job-%016x", uint64(i)*0x9e3779b97f4a7c15)
}

func (j *benchJobs) specKey(i int) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, uint64(i)), 0)
}

func (j *benchJobs) rowKey() []byte {
	j.armed++
	key := binary.BigEndian.AppendUint64([]byte{1}, j.rng.Uint64N(365*86_400_000))
	return binary.BigEndian.AppendUint64(key, j.armed)
}

func (j *benchJobs) bytes(random, zero int) []byte {
	b := make([]byte, random+zero)
	_, _ = j.noise.Read(b[:random])
	return b
}

// pointer is the value of an id: room, key, status, facets.
func (j *benchJobs) pointer(key []byte) []byte {
	return append(append([]byte{'w'}, key...), j.bytes(0, 9)...)
}

// create adds n jobs with 200 random bytes of payload.
func (j *benchJobs) create(b *Build, n int) {
	for range n {
		i := len(j.keys)
		key, row := j.rowKey(), append(j.bytes(40, 10), j.id(i)...)
		b.Change('w', key, nil, row)
		b.Change(RoomIDs, j.id(i), nil, j.pointer(key))
		b.Append('s', j.specKey(i), j.bytes(200, 70))
		j.keys, j.rows = append(j.keys, key), append(j.rows, row)
	}
}

// fire moves n jobs to another due time.
func (j *benchJobs) fire(b *Build, from, n int) {
	for k := range n {
		i := (from + k*7919) % len(j.keys) // coprime: each job once
		key, row := j.rowKey(), append(j.bytes(40, 10), j.id(i)...)
		b.Change('w', j.keys[i], j.rows[i], nil)
		b.Change('w', key, nil, row)
		b.Change(RoomIDs, j.id(i), j.pointer(j.keys[i]), j.pointer(key))
		j.keys[i], j.rows[i] = key, row
	}
}

func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// settled waits until Pebble has nothing to compact.
func settled(store *wal.Store) {
	for calm := 0; calm < 3; time.Sleep(10 * time.Millisecond) {
		if m := store.Metrics(); m.Compact.NumInProgress == 0 && m.Flush.NumInProgress == 0 {
			calm++
		} else {
			calm = 0
		}
	}
}

func benchCommits(b *testing.B, gather func(*benchJobs, *Build, int), jobs, before int) {
	store := open(b, wal.Options{Dir: b.TempDir(), Profile: wal.ProfileTable})
	table, all := OpenTable(store), newBenchJobs()
	position := uint64(0)
	begin := func() *Build {
		position++
		build, err := table.Begin(0)
		must(b, err)
		build.State(position, nil)
		return build
	}
	for range before {
		build := begin()
		all.create(build, 100_000)
		_, err := build.Commit()
		must(b, err)
	}
	settled(store)
	written := func() (ingested, compacted uint64) {
		total := store.Metrics().Total()
		return total.TableBytesIngested, total.TableBytesCompacted + total.TableBytesFlushed
	}
	ingested, compacted := written()
	var commit, commitCPU, gathering time.Duration
	start := cpu(b)
	for b.Loop() {
		was := cpu(b)
		build := begin()
		gather(all, build, jobs)
		gathering += cpu(b) - was
		was, began := cpu(b), time.Now()
		_, err := build.Commit()
		must(b, err)
		commit += time.Since(began)
		commitCPU += cpu(b) - was
	}
	b.StopTimer()
	settled(store)
	total := cpu(b) - start - gathering
	n := float64(b.N * jobs)
	in, out := written()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(commit.Microseconds())/n, "commit-µs/job")
	b.ReportMetric(float64(total.Microseconds())/n, "cpu-µs/job") // compaction included
	b.ReportMetric(float64(in-ingested)/n, "ingested-B/job")
	b.ReportMetric(float64(out-compacted)/n, "compacted-B/job")
	m := store.Metrics()
	t := m.Total()
	b.ReportMetric(float64(t.TablesSize)/float64(len(all.keys)), "disk-B/job")
	b.ReportMetric(float64(t.TablesCount), "tables")
	b.Logf("%d commits; cpu while they ran %.2f µs/job; %s", b.N, float64(commitCPU.Microseconds())/n, levels(m))
}

func levels(m *pebble.Metrics) string {
	var out []string
	for i, l := range m.Levels {
		if l.TablesCount > 0 {
			out = append(out, fmt.Sprintf("L%d %d files %d MB", i, l.TablesCount, l.TablesSize>>20))
		}
	}
	return fmt.Sprint(out)
}

// Checkpoints of new jobs: 100,000 as at the end of a minute, 19,000 as in an import.
func BenchmarkTableCreate(b *testing.B) {
	for _, jobs := range []int{100_000, 19_000, 1_000} {
		b.Run(fmt.Sprint(jobs), func(b *testing.B) { benchCommits(b, (*benchJobs).create, jobs, 0) })
	}
}

// Checkpoints of recurring jobs that fired, of a million.
func BenchmarkTableFire(b *testing.B) {
	for _, jobs := range []int{100_000, 1_000} {
		b.Run(fmt.Sprint(jobs), func(b *testing.B) {
			from := 0
			benchCommits(b, func(j *benchJobs, build *Build, n int) { j.fire(build, from, n); from++ }, jobs, 10)
		})
	}
}

func BenchmarkTableRead(b *testing.B) {
	store := open(b, wal.Options{Dir: b.TempDir(), Profile: wal.ProfileTable})
	table, all := OpenTable(store), newBenchJobs()
	const runs, perRun = 4, 100_000
	for range runs {
		build, err := table.Begin(0)
		must(b, err)
		build.State(1, nil)
		all.create(build, perRun)
		_, err = build.Commit()
		must(b, err)
	}
	settled(store)
	sample := func(n int, key func(i int) []byte, from int, sorted bool) [][]byte {
		keys := make([][]byte, n)
		for i := range keys {
			keys[i] = key(from + all.rng.IntN(runs*perRun))
		}
		if sorted {
			slices.SortFunc(keys, bytes.Compare)
		}
		return keys
	}
	rowKey := func(i int) []byte { return all.keys[i] }
	for _, c := range []struct {
		name string
		room byte
		keys [][]byte
		want bool
	}{
		{"absent id, random", RoomIDs, sample(20_000, all.id, runs*perRun, false), false},
		{"absent id, sorted 1000s", RoomIDs, sample(1000, all.id, runs*perRun, true), false},
		{"absent id, sorted 20000s", RoomIDs, sample(20_000, all.id, runs*perRun, true), false},
		{"present id, random", RoomIDs, sample(20_000, all.id, 0, false), true},
		{"row, random", 'w', sample(20_000, rowKey, 0, false), true},
		{"spec, random", 's', sample(20_000, all.specKey, 0, false), true},
		{"spec, sorted 20000s", 's', sample(20_000, all.specKey, 0, true), true},
	} {
		b.Run(c.name, func(b *testing.B) {
			must(b, table.View(0, func(v *View) error {
				i := 0
				for b.Loop() {
					if _, found, err := v.Get(c.room, c.keys[i%len(c.keys)]); err != nil || found != c.want {
						return fmt.Errorf("found: %v, %w", found, err)
					}
					i++
				}
				return nil
			}))
		})
	}
	b.Run("view and one present id", func(b *testing.B) {
		i := 0
		for b.Loop() {
			must(b, table.View(0, func(v *View) error {
				_, _, err := v.Get(RoomIDs, all.id(i%(runs*perRun)))
				return err
			}))
			i++
		}
	})
	for _, view := range []struct {
		name string
		open func(uint16, func(*View) error) error
	}{{"scan 256 rows", table.View}, {"scan 256 rows of the older", table.Older}} {
		b.Run(view.name, func(b *testing.B) {
			must(b, view.open(0, func(v *View) error {
				var last []byte
				rows := 0
				for b.Loop() {
					more, err := v.Scan('w', last, nil, 256, func(key, _ []byte) error {
						last = append(last[:0], key...)
						rows++
						return nil
					})
					if err != nil {
						return err
					}
					if !more {
						last = nil
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rows), "ns/row")
				return nil
			}))
		})
	}
}
