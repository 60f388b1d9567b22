package streams

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The server runs in this process, as `carillon serve` runs it, on file storage in a temporary
// directory: go test -run '^$' -bench . ./engine/streams

const benchPayload = 200

func triggerHeader(i int) nats.Header {
	return nats.Header{
		"Carillon-Job":       {"invoice-12345678"},
		"Carillon-Trigger":   {"invoice-12345678@1700000000000"},
		"Carillon-Scheduled": {"2026-12-01T09:00:00.250Z"},
		"Carillon-Version":   {"3"},
		"Carillon-Output":    {strconv.Itoa(i)},
		"Carillon-Missed":    {"2"},
	}
}

// BenchmarkPublishAsync is the usual way, with an ack for each message.
func BenchmarkPublishAsync(b *testing.B) {
	_, nc, _ := fresh(b, Config{Partitions: 1})
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(4000))
	if err != nil {
		b.Fatal(err)
	}
	data := make([]byte, benchPayload)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		m := &nats.Msg{Subject: "carillon.trigger.0.x", Header: triggerHeader(i), Data: data}
		if _, err := js.PublishMsgAsync(m, jetstream.WithStallWait(time.Minute)); err != nil {
			b.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
}

// triggerLines are the same headers in the form of the wire.
func triggerLines(dst []byte, i int) []byte {
	dst = append(dst, "Carillon-Output: "...)
	dst = strconv.AppendInt(dst, int64(i), 10)
	return append(dst, "\r\nCarillon-Job: invoice-12345678\r\nCarillon-Trigger: invoice-12345678@1700000000000\r\n"+
		"Carillon-Scheduled: 2026-12-01T09:00:00.250Z\r\nCarillon-Version: 3\r\nCarillon-Missed: 2\r\n"...)
}

// appendID is a message id as the engine makes them.
func appendID(dst []byte, i uint64) []byte {
	return strconv.AppendUint(append(dst, "AB34CD56EF.1."...), i, 36)
}

// BenchmarkPublishChained asks for every 500th ack and keeps 8 such windows open for each stream: through the
// client library, on the wire, and on the wire with each message linked to the one before. cpu-ns/op is of the whole process, server
// included.
func BenchmarkPublishChained(b *testing.B) {
	for _, streams := range []int{1, 8} {
		for _, async := range []bool{false, true} {
			for _, way := range []string{"library", "wire", "linked"} {
				b.Run(fmt.Sprintf("streams=%d/async=%t/%s", streams, async, way), func(b *testing.B) {
					benchmarkChained(b, Config{Partitions: streams, PersistAsync: async}, way)
				})
			}
		}
	}
}

func benchmarkChained(b *testing.B, cfg Config, way string) {
	start := fresh
	if way != "library" {
		start = wired
	}
	s, _, _ := start(b, cfg)
	m := Chained{Data: string(make([]byte, benchPayload))}
	last := make([]uint64, cfg.Partitions)
	windows := make([]chan error, cfg.Partitions)
	subjects := make([]string, cfg.Partitions)
	for p := range windows {
		windows[p] = make(chan error, 8)
		for range cap(windows[p]) {
			windows[p] <- nil
		}
		subjects[p] = fmt.Sprintf("carillon.trigger.%d.x", p)
	}
	b.ReportAllocs()
	cpu := cpuTime(b)
	for i := 0; b.Loop(); i++ {
		p := i % cfg.Partitions
		var onAck func(uint64, error)
		if last[p]%500 == 499 {
			s.Flush()
			if err := <-windows[p]; err != nil {
				b.Fatal(err)
			}
			onAck = func(_ uint64, err error) { windows[p] <- err }
		}
		m.Subject = append(m.Subject[:0], subjects[p]...)
		m.Header = m.Header[:0]
		if way == "linked" {
			m.Header = append(appendID(append(m.Header, "Nats-Msg-Id: "...), last[p]), "\r\n"...)
			if last[p] > 0 {
				m.Header = append(appendID(append(m.Header, "Nats-Expected-Last-Msg-Id: "...), last[p]-1), "\r\n"...)
			}
		}
		m.Header = triggerLines(m.Header, i)
		m.Expect = last[p]
		if err := s.Out[p].PublishChained(&m, onAck); err != nil {
			b.Fatal(err)
		}
		last[p]++
	}
	for p, o := range s.Out {
		if seq, err := publishChained(b, o, subjects[p], nil, last[p]); seq != last[p]+1 || err != nil {
			b.Fatal(seq, err)
		}
	}
	b.ReportMetric(float64(cpuTime(b)-cpu)/float64(b.N), "cpu-ns/op")
}

func cpuTime(b *testing.B) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkSend is only the client's part: what a message costs before the server sees it.
func BenchmarkSend(b *testing.B) {
	_, nc, _ := fresh(b, Config{Partitions: 1})
	data := make([]byte, benchPayload)
	for name, header := range map[string]func(i int) nats.Header{
		"headers=0": func(int) nats.Header { return nil },
		"headers=1": func(i int) nats.Header { return nats.Header{"Carillon": {strconv.Itoa(i)}} },
		"headers=6": triggerHeader,
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				m := &nats.Msg{Subject: "nobody", Header: header(i), Data: data}
				if err := nc.PublishMsg(m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRead reads a backlog of 300-byte records, in each of the ways there are.
func BenchmarkRead(b *testing.B) {
	const n = 300_000
	s, nc, _ := fresh(b, Config{Partitions: 1})
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(4000))
	if err != nil {
		b.Fatal(err)
	}
	data := make([]byte, 300)
	for range n {
		if _, err := js.PublishAsync("carillon.log.0.tick", data, jetstream.WithStallWait(time.Minute)); err != nil {
			b.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()

	for name, read := range map[string]func() error{
		"push": func() error {
			err := s.Log.Read(b.Context(), Position{}, func(batch []Message) error {
				if batch[len(batch)-1].Seq >= n {
					return errEnough
				}
				return nil
			})
			if !errors.Is(err, errEnough) {
				return err
			}
			return nil
		},
		"pull": func() error {
			c, err := js.OrderedConsumer(b.Context(), "CARILLON_LOG", jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
			if err != nil {
				return err
			}
			done, left := make(chan struct{}), n
			cc, err := c.Consume(func(jetstream.Msg) {
				if left--; left == 0 {
					close(done)
				}
			}, jetstream.PullMaxMessages(20_000))
			if err != nil {
				return err
			}
			<-done
			cc.Stop()
			<-cc.Closed()
			return nil
		},
		"direct": func() error {
			for next := uint64(1); next <= n; {
				inbox := nc.NewInbox()
				sub, err := nc.SubscribeSync(inbox)
				if err != nil {
					return err
				}
				req := fmt.Appendf(nil, `{"seq":%d,"batch":5000,"next_by_subj":">"}`, next)
				if err := nc.PublishRequest("$JS.API.DIRECT.GET.CARILLON_LOG", inbox, req); err != nil {
					return err
				}
				for {
					m, err := sub.NextMsgWithContext(b.Context())
					if err != nil {
						return err
					}
					if status := m.Header.Get("Status"); status == "204" {
						break
					} else if status != "" {
						return errors.New(m.Header.Get("Description"))
					}
					next++
				}
				if err := sub.Unsubscribe(); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := read(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

// BenchmarkReadLatency appends 500 records a second and reports how long each takes to come back.
func BenchmarkReadLatency(b *testing.B) {
	s, nc, _ := fresh(b, Config{Partitions: 1})
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	for name, read := range map[string]func(ctx context.Context, got chan<- time.Time) error{
		"push": func(ctx context.Context, got chan<- time.Time) error {
			info, err := s.Log.Info(ctx)
			if err != nil {
				return err
			}
			err = s.Log.Read(ctx, Position{Seq: info.Last}, func(batch []Message) error {
				now := time.Now()
				for range batch {
					got <- now
				}
				return nil
			})
			if !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		},
		"pull": func(ctx context.Context, got chan<- time.Time) error {
			c, err := js.OrderedConsumer(ctx, "CARILLON_LOG", jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverNewPolicy})
			if err != nil {
				return err
			}
			cc, err := c.Consume(func(jetstream.Msg) { got <- time.Now() })
			if err != nil {
				return err
			}
			<-ctx.Done()
			cc.Stop()
			<-cc.Closed()
			return nil
		},
	} {
		b.Run(name, func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			got := make(chan time.Time, 1)
			ended := make(chan error, 1)
			go func() { ended <- read(ctx, got) }()
			// The reader is there when the first record comes back.
			for up := false; !up; {
				if err := s.Log.PublishAsync("carillon.log.0.tick", nil, nil, nil); err != nil {
					b.Fatal(err)
				}
				select {
				case <-got:
					up = true
				case <-time.After(100 * time.Millisecond):
				}
			}
			var took []time.Duration
			next := time.Now()
			for b.Loop() {
				next = next.Add(2 * time.Millisecond)
				time.Sleep(time.Until(next))
				start := time.Now()
				if err := s.Log.PublishAsync("carillon.log.0.tick", nil, []byte("tick"), nil); err != nil {
					b.Fatal(err)
				}
				took = append(took, (<-got).Sub(start))
			}
			cancel()
			if err := <-ended; err != nil {
				b.Fatal(err)
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
		})
	}
}
