package carillon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	benchTopic      = "bench"
	benchPartitions = 8
)

// The environment of a test binary that is to be the benchmark's server instead of running tests.
const (
	envServerDir = "CARILLON_TEST_SERVER_DIR"
	envTriggers  = "CARILLON_TEST_SERVER_TRIGGERS"
)

func TestMain(m *testing.M) {
	dir := os.Getenv(envServerDir)
	if dir == "" {
		os.Exit(m.Run())
	}
	if err := beServer(dir, os.Getenv(envTriggers)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// BenchmarkWorker drains triggers that the output streams hold already, with a handler that does nothing
// and a server in a process of its own. ns/op is the drain, of server and worker together; cpu-ns/op and
// allocs/op are the worker's alone.
func BenchmarkWorker(b *testing.B) {
	for _, concurrency := range []int{1, 16, 256} {
		b.Run(fmt.Sprint("handlers=", concurrency), func(b *testing.B) { benchmarkWorker(b, concurrency) })
	}
}

func benchmarkWorker(b *testing.B, concurrency int) {
	nc, err := nats.Connect(startServer(b))
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ReportAllocs()
	b.ResetTimer()
	before := processCPU(b)
	o := WorkerOptions{Topic: benchTopic, Name: "g", Concurrency: concurrency}
	err = Connect(nc).Work(ctx, o, func(context.Context, *Trigger) error {
		if left.Add(-1) == 0 {
			b.StopTimer()
			b.ReportMetric(float64((processCPU(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
			cancel()
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	if n := left.Load(); n != 0 {
		b.Errorf("%d of %d triggers left", n, b.N)
	}
}

// processCPU is what this process has used so far.
func processCPU(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// startServer runs beServer with b.N triggers until the benchmark ends, and gives its URL.
func startServer(b *testing.B) (url string) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envServerDir+"="+b.TempDir(), envTriggers+"="+strconv.Itoa(b.N))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			b.Error(err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// beServer runs a nats-server, fills its output streams, prints its URL, and ends with its standard input.
func beServer(dir, triggers string) error {
	n, err := strconv.Atoi(triggers)
	if err != nil {
		return err
	}
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true,
	})
	if err != nil {
		return err
	}
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(time.Minute) {
		return errors.New("nats-server is not ready")
	}
	if err := fill(s.ClientURL(), n); err != nil {
		return err
	}
	fmt.Println(s.ClientURL())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// fill makes the output streams and puts n triggers into them, with the headers of the engine's own.
func fill(url string, n int) error {
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	names := DefaultNames()
	for p := range benchPartitions {
		config := jetstream.StreamConfig{Name: names.OutStream(p), Subjects: []string{names.Trigger(p, ">")}}
		if _, err := js.CreateStream(context.Background(), config); err != nil {
			return err
		}
	}
	for i := range n {
		if _, err := js.PublishMsgAsync(benchTrigger(i), jetstream.WithStallWait(time.Minute)); err != nil {
			return err
		}
	}
	<-js.PublishAsyncComplete()
	return nil
}

func benchTrigger(i int) *nats.Msg {
	const ms = 1_800_000_000_250
	job := fmt.Sprintf("job-%08d", i)
	m := nats.NewMsg(DefaultNames().Trigger(i%benchPartitions, benchTopic))
	m.Data = make([]byte, 200)
	m.Header.Set(HeaderJob, job)
	m.Header.Set(HeaderTrigger, FormatTriggerID(job, ms))
	m.Header.Set(HeaderScheduled, time.UnixMilli(ms).UTC().Format(TimeFormat))
	m.Header.Set(HeaderVersion, "3")
	m.Header.Set(HeaderOutput, strconv.Itoa(i/benchPartitions+1))
	m.Header.Set(jetstream.ExpectedLastSeqHeader, strconv.Itoa(i/benchPartitions))
	return m
}
