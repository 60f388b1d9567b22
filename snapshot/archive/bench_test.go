package archive

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A job is a row, an id and a spec: three pairs. go test -run '^$' -bench Archive ./snapshot/archive
func BenchmarkArchive(b *testing.B) {
	const partitions, jobs = 4, 250_000
	dir := b.TempDir()
	store, table, _ := bigTable(b, vfs.Default, dir+"/db", jobs, partitions)
	defer func() { must(b, store.Close()) }()
	target := OpenDir(nil, dir+"/archive")
	report := func(b *testing.B) { b.ReportMetric(float64(b.N*jobs*partitions)/b.Elapsed().Seconds(), "jobs/s") }
	save := func(b *testing.B) *Saved {
		s, err := Save(b.Context(), table, target, SaveOptions{Partitions: partitions, Now: time.Unix(1_800_000_000, 0)})
		must(b, err)
		return s
	}
	b.Run("save", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			must(b, vfs.Default.RemoveAll(dir+"/archive"))
			b.StartTimer()
			s := save(b)
			b.ReportMetric(float64(s.Bytes)/(jobs*partitions), "bytes/job")
		}
		report(b)
	})
	save(b)
	b.Run("save again", func(b *testing.B) {
		for b.Loop() {
			save(b)
		}
		report(b)
	})
	b.Run("verify", func(b *testing.B) {
		for b.Loop() {
			_, err := clean(target)
			must(b, err)
		}
		report(b)
	})
	for _, name := range []string{"restore", "restore routed"} {
		b.Run(name, func(b *testing.B) {
			var o RestoreOptions
			if name != "restore" {
				o.Route = func(from uint16, _ byte, key, value []byte) (Routed, bool, error) {
					return Routed{Partition: from, Key: key, Value: value}, true, nil
				}
			}
			for b.Loop() {
				b.StopTimer()
				must(b, vfs.Default.RemoveAll(dir+"/new"))
				b.StartTimer()
				_, err := Restore(b.Context(), target, "", dir+"/new", o)
				must(b, err)
			}
			report(b)
		})
	}
}
