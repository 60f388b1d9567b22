package streams

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkRestart kills a server whose log and eight output streams are filled to as many MiB each as
// CARILLON_RESTART_MIB says ("32,128"; 0 is the default limits), and measures the start of the next process, from exec until
// every stream answers. One iteration a size: go test -run '^$' -bench Restart -benchtime 1x.
func BenchmarkRestart(b *testing.B) {
	sizes := os.Getenv("CARILLON_RESTART_MIB")
	if sizes == "" {
		b.Skip("set CARILLON_RESTART_MIB to the sizes to fill, e.g. 32,128")
	}
	for size := range strings.SplitSeq(sizes, ",") {
		mib, err := strconv.Atoi(size)
		if err != nil {
			b.Fatal(err)
		}
		for _, async := range []bool{false, true} {
			b.Run(fmt.Sprintf("MiB=%d/async=%t", mib, async), func(b *testing.B) { restart(b, mib, async) })
		}
	}
}

func restart(b *testing.B, mib int, async bool) {
	const partitions = 8
	log, out := int64(mib)<<20, int64(mib)<<20
	if mib == 0 {
		log, out = defaultLogMaxBytes, defaultOutBytes/partitions
	}
	cfg := Config{Partitions: partitions, LogMaxBytes: log, OutMaxBytes: out, PersistAsync: async}
	dir := b.TempDir()
	nc, kill := process(b, dir)
	s := open(b, nc, cfg)
	data := make([]byte, benchPayload)
	fill(b, log-log/10, func(i int, onAck func(uint64, error)) error {
		return s.Log.PublishAsync("carillon.cmd.put.job-"+strconv.Itoa(i), nil, data, onAck)
	})
	for p, o := range s.Out {
		expect := uint64(0)
		fill(b, out+out/4, func(i int, onAck func(uint64, error)) error {
			expect++
			return o.PublishChained(&Chained{
				Subject: fmt.Appendf(nil, "carillon.trigger.%d.topic-%d", p, i%100), Header: triggerLines(nil, i), Data: string(data), Expect: expect - 1,
			}, onAck)
		})
	}
	info, err := s.Out[0].Info(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	records, err := s.Log.Info(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	s.Close()

	ready := func() time.Duration {
		start := time.Now()
		nc, kill = process(b, dir)
		s := open(b, nc, Config{})
		for _, o := range s.Out {
			if _, _, err := o.Last(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		took := time.Since(start)
		s.Close()
		return took
	}
	b.ResetTimer()
	var first, again time.Duration
	for b.Loop() {
		kill()
		first += ready() // the state file may be up to two minutes old
		kill()
		again += ready() // the first start wrote a new state file
	}
	kill()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(info.Messages), "messages/stream")
	b.ReportMetric(float64(records.Messages), "log-messages")
	b.ReportMetric(first.Seconds()*1000/float64(b.N), "ms-first")
	b.ReportMetric(again.Seconds()*1000/float64(b.N), "ms-again")
}

// fill publishes until about so many bytes are stored, at some 300 a message, with an ack at every 500th message.
func fill(b *testing.B, bytes int64, publish func(i int, onAck func(uint64, error)) error) {
	b.Helper()
	window := make(chan error, 8)
	for range cap(window) {
		window <- nil
	}
	n := int(bytes / 300)
	for i := range n {
		var onAck func(uint64, error)
		if i%500 == 499 || i == n-1 {
			if err := <-window; err != nil {
				b.Fatal(err)
			}
			onAck = func(_ uint64, err error) { window <- err }
		}
		if err := publish(i, onAck); err != nil {
			b.Fatal(err)
		}
	}
	for range cap(window) {
		if err := <-window; err != nil {
			b.Fatal(err)
		}
	}
}
