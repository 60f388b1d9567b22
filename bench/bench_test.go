package bench

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	runtimemetrics "runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/internal/leaktest"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// The test binary is also the engine and the worker: these are real processes, and tests kill them.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{"serve", "work", "half-work", "bench"}, os.Args[1]) {
		if err := child(os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaktest.Main(m)
}

func child(role string, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if role == "work" {
		nc, err := nats.Connect(args[0], Reconnect()...)
		if err != nil {
			return err
		}
		defer nc.Close()
		return Work(ctx, nc, carillon.DefaultNames(), os.Stdin, os.Stdout)
	}
	if role == "half-work" { // a worker that ends before it is ready
		nc, err := nats.Connect(args[0])
		if err != nil {
			return err
		}
		defer nc.Close()
		var start workerStart
		if err := json.NewDecoder(os.Stdin).Decode(&start); err != nil {
			return err
		}
		_, err = carillon.Connect(nc).MakeConsumers(ctx, carillon.WorkerOptions{Topic: topic, Name: start.Name, StartNew: true})
		return err
	}
	if role == "bench" { // a bench that starts an engine in a directory, and does nothing with it
		s, err := Service{Command: []string{os.Args[0], "serve"}, Data: args[0]}.withDefaults()
		if err != nil {
			return err
		}
		e, err := s.open(ctx)
		if err != nil {
			return err
		}
		fmt.Println(e.cmd.Process.Pid)
		<-ctx.Done()
		return e.close()
	}
	var o node.Options
	f := flag.NewFlagSet(role, flag.ContinueOnError)
	f.StringVar(&o.Data, "data", "", "")
	f.StringVar(&o.Listen, "listen", "", "")
	f.StringVar(&o.HTTP, "http", "", "")
	f.Int64Var(&o.OutMaxBytes, "out-max-bytes", 0, "")
	f.Int64Var(&o.LogMaxBytes, "log-max-bytes", 0, "")
	f.IntVar(&o.Partitions, "partitions", 0, "")
	f.BoolVar(&o.PersistAsync, "persist-async", false, "")
	f.DurationVar(&o.CheckpointEvery, "checkpoint-every", 0, "")
	f.IntVar(&o.HotJobs, "hot-jobs", 0, "")
	f.StringVar(&o.NATS, "nats", "", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	return node.Run(ctx, o, func(r node.Ready) {
		fmt.Printf("carillon ready nats=%s http=%s partitions=%d\n", r.NATS, r.HTTP, r.Partitions)
	})
}

func service(t *testing.T, flags ...string) Service {
	t.Helper()
	return Service{Command: append([]string{os.Args[0], "serve"}, flags...), Worker: []string{os.Args[0], "work"}, Data: t.TempDir()}
}

// running starts an engine, which ends with the test, and connects to it.
func running(t *testing.T, flags ...string) (*engine, *nats.Conn) {
	t.Helper()
	s, err := service(t, flags...).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	e, nc, end, err := s.begin(t.Context(), &Result{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	return e, nc
}

// eventually waits for a condition that the machine's load may delay but not prevent.
var eventually = natstest.Eventually

// runningAt returns the service of an engine that runs already, for a workload.
func runningAt(t *testing.T, e *engine) Service {
	t.Helper()
	s := service(t)
	return Service{Server: e.url, Worker: s.Worker, Data: s.Data}
}

// putOther puts a job that belongs to no run. It fires while runs go on.
func putOther(t *testing.T, nc *nats.Conn) {
	t.Helper()
	if _, err := carillon.Connect(nc).Put(t.Context(), carillon.Job{ID: "other", Schedule: "@every 5ms"}); err != nil {
		t.Fatal(err)
	}
}

// onlyOther checks that a run left nothing in a service, where only putOther's job may be.
func onlyOther(t *testing.T, nc *nats.Conn) {
	t.Helper()
	for job, err := range carillon.Connect(nc).List(t.Context(), carillon.ListRequest{}) {
		if err != nil {
			t.Fatal(err)
		}
		if job.ID != "other" {
			t.Errorf("the run left job %s", job.ID)
		}
	}
	js, err := nc.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	for name := range js.StreamNames() {
		if strings.HasPrefix(name, "BENCH") {
			t.Errorf("the run left stream %s", name)
		}
		for consumer := range js.ConsumerNames(name) {
			if strings.HasPrefix(consumer, "bench") {
				t.Errorf("the run left consumer %s of %s", consumer, name)
			}
		}
	}
}

// nothingIn checks that a run left nothing on disk.
func nothingIn(t *testing.T, dir string) {
	t.Helper()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func smallLateness(t *testing.T) LatenessConfig {
	return LatenessConfig{
		Service: service(t),
		Rate:    200, Duration: time.Second, Mix: Mix{Intervals: 2, Cron: 1, OneShots: 1},
	}
}

func TestLateness(t *testing.T) {
	c := smallLateness(t)
	c.Raw = filepath.Join(t.TempDir(), "raw.csv")
	steps := make(map[string]bool)
	c.Progress = func(step string, _, _ int) { steps[step] = true }
	r, err := RunLateness(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Checks.clean() || r.Checks.Expected != 200 {
		t.Errorf("checks are %+v, expected 200 triggers and nothing wrong", r.Checks)
	}
	if got := r.Figures.Get("triggers_per_s"); got != 200 {
		t.Errorf("triggers_per_s is %v, expected 200", got)
	}
	for _, name := range []string{"received_p50_ms", "received_max_ms", "stored_p50_ms", "sleep_p50_ms", "round_trip_p50_ms", "fsync_p50_ms", "engine_resident_mib"} {
		if r.Figures.Get(name) <= 0 {
			t.Errorf("%s is %v", name, r.Figures.Get(name))
		}
	}
	if len(r.Targets) != 3 || r.Machine.NATS == "" || r.Machine.Cores == 0 {
		t.Errorf("targets %v, machine %+v", r.Targets, r.Machine)
	}
	for _, step := range []string{"putting jobs", "measuring"} {
		if !steps[step] {
			t.Errorf("no progress of %q was told", step)
		}
	}
	raw, err := os.ReadFile(c.Raw)
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(raw), "\n"); lines != 201 {
		t.Errorf("%d lines of raw triggers, expected a head and 200", lines)
	}

	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Result
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if len(back.Figures) != len(r.Figures) || back.Figures[3].Name != r.Figures[3].Name || *back.Checks != *r.Checks {
		t.Errorf("the result's JSON reads back as %+v", back)
	}
	h, err := decode(back.Histograms["received_us"])
	if err != nil || h.TotalCount() != 200 {
		t.Errorf("the histogram of the JSON holds %v, %v", h, err)
	}
	var table strings.Builder
	if err := r.Table(&table); err != nil || !strings.Contains(table.String(), "expected 200, early 0") {
		t.Errorf("the table is\n%s%v", &table, err)
	}
}

// A run leaves a running service as it found it, and output numbers of other jobs' triggers do not count as gaps.
func TestLatenessOfARunningService(t *testing.T) {
	e, nc := running(t)
	putOther(t, nc)

	c := smallLateness(t)
	c.Service = runningAt(t, e)
	r, err := RunLateness(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Checks.clean() || r.Checks.Expected != 200 {
		t.Errorf("checks are %+v, expected 200 triggers and nothing wrong", r.Checks)
	}
	onlyOther(t, nc)
}

// A run whose worker ends before it is ready, as at a Ctrl-C, leaves no consumers in the service.
func TestNoConsumersOfAWorkerThatDidNotStart(t *testing.T) {
	t.Parallel()
	e, nc := running(t)
	s := runningAt(t, e)
	s.Worker = []string{os.Args[0], "half-work"}
	for name, run := range map[string]func() error{
		"lateness": func() error { _, err := RunLateness(t.Context(), LatenessConfig{Service: s}); return err },
		"churn":    func() error { _, err := RunChurn(t.Context(), ChurnConfig{Service: s}); return err },
		"soak":     func() error { _, err := RunSoak(t.Context(), SoakConfig{Service: s}); return err },
		"burst": func() error {
			_, err := RunBurst(t.Context(), BurstConfig{Service: s, Jobs: 1000, Rounds: 1, Pause: 1})
			return err
		},
	} {
		if err := run(); err == nil || !strings.Contains(err.Error(), "the worker did not start") {
			t.Errorf("%s ended with %v", name, err)
		}
		onlyOther(t, nc)
	}
}

// A stream that is being made when a run is interrupted is removed.
func TestStreamIsRemovedIfInterrupted(t *testing.T) {
	t.Parallel()
	nc, err := nats.Connect(natstest.Start(t, &server.Options{}).ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	m := &ceiling{CeilingConfig: CeilingConfig{Messages: 1000}, nc: nc, js: js}
	for name, run := range map[string]func(context.Context) error{
		"ceiling": func(ctx context.Context) error { _, err := m.chained(ctx, chains{streams: 1}); return err },
		"floor":   func(ctx context.Context) error { _, err := measureFloor(ctx, nc, "BENCH_x", "", nil); return err },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var made, removed atomic.Int64
		answer := func(subject, with string, count *atomic.Int64) *nats.Subscription {
			sub, err := nc.Subscribe(subject, func(m *nats.Msg) {
				count.Add(1)
				cancel()
				if err := m.Respond([]byte(with)); err != nil {
					t.Error(err)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			return sub
		}
		creates := answer("$JS.API.STREAM.CREATE.*", `{"config":{"name":"BENCH"}}`, &made)
		deletes := answer("$JS.API.STREAM.DELETE.*", `{"success":true}`, &removed)
		err := run(ctx)
		if made.Load() != 1 || removed.Load() != 1 {
			t.Errorf("%s: %d streams were made and %d removed: %v", name, made.Load(), removed.Load(), err)
		}
		if err := errors.Join(creates.Unsubscribe(), deletes.Unsubscribe()); err != nil {
			t.Error(err)
		}
	}
}

// Outputs of others that a stream has dropped before a run could see them are not taken for gaps.
func TestDroppedOutputsAreNoGaps(t *testing.T) {
	e, nc := running(t, "--out-max-bytes", "1048576", "--partitions", "1")
	other := carillon.Job{ID: "other", Schedule: "@every 5ms", Payload: payloadOf(20_000)}
	if _, err := carillon.Connect(nc).Put(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	c := smallLateness(t)
	c.Service = runningAt(t, e)
	c.Duration = 2 * time.Second
	r, err := RunLateness(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), "CARILLON_OUT_0 dropped outputs") {
		t.Errorf("the run ended with %v", err)
	}
	if r.Checks == nil || !r.Checks.clean() || r.Figures.Get("received_p50_ms") == 0 {
		t.Errorf("checks are %+v, figures %v", r.Checks, r.Figures)
	}
}

// If the service ends during a run, the run does not wait for long to remove what it left there.
func TestCleanUpOfAServiceThatEnded(t *testing.T) {
	t.Parallel()
	e, nc := running(t)
	gone := &engine{Service: e.Service, partitions: e.partitions}
	gone.Server = e.url
	if err := e.kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the connection is down", nc.IsReconnecting)
	forgotten := make(chan error, 1)
	go func() { forgotten <- gone.cleanUpWithin(t.Context(), nc, 50*time.Millisecond, "bench-x") }()
	select {
	case err := <-forgotten:
		if err == nil || !strings.Contains(err.Error(), "bench-x") {
			t.Errorf("it says %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("it still waits after a minute")
	}
}

// What was still on its way into the service when a run ended early, and what the service refused to delete, is deleted, too.
func TestCleanUpDeletesWhatComesLate(t *testing.T) {
	t.Parallel()
	nc, err := nats.Connect(natstest.Start(t, &server.Options{JetStream: true}).ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	replies := []carillon.SelectionReply{{}, {Matched: 3, Changed: 1, Failed: 2}, {Matched: 2, Changed: 2}, {}}
	names := carillon.DefaultNames()
	var asked atomic.Int64
	if _, err := nc.Subscribe(names.API(carillon.VerbDelete, ""), func(m *nats.Msg) {
		reply := replies[min(int(asked.Add(1)), len(replies))-1]
		reply.Type = carillon.TypeSelection
		if err := m.Respond(reply.AppendJSON(nil)); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	e := &engine{Service: Service{Server: nc.ConnectedUrl(), Names: names}}
	if err := e.cleanUp(t.Context(), nc, "bench-x"); err != nil {
		t.Fatal(err)
	}
	if n := int(asked.Load()); n != len(replies) {
		t.Errorf("it has asked for the jobs to be deleted %d times, expected %d", n, len(replies))
	}
}

// A worker stops when its input ends, which happens when its bench is killed, even if its plan goes on for long.
func TestWorkerStopsWithItsInput(t *testing.T) {
	e, nc := running(t)
	for name, plans := range map[string][]plan{
		"before a plan": nil,
		"in a plan":     {{Prefix: "x-", From: time.Now().UnixMilli(), To: time.Now().Add(time.Hour).UnixMilli()}},
	} {
		in, give := io.Pipe()
		take, out := io.Pipe()
		ended := make(chan error, 1)
		go func() { ended <- Work(t.Context(), nc, e.Names, in, out) }()
		tell := json.NewEncoder(give)
		if err := tell.Encode(workerStart{Name: "x", Partitions: e.partitions, Concurrency: 1}); err != nil {
			t.Fatal(err)
		}
		if err := json.NewDecoder(take).Decode(&workerReady{}); err != nil {
			t.Fatal(err)
		}
		for _, p := range plans {
			if err := tell.Encode(p); err != nil {
				t.Fatal(err)
			}
		}
		give.Close()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: it works on", name)
		}
	}
}

// Jobs that are due before everything is ready for them are deleted and put again. What they have fired by then does not count.
func TestLatenessBeginsAgain(t *testing.T) {
	t.Parallel() // it mostly waits
	e, nc := running(t)
	putOther(t, nc) // its output numbers are between those that do not count
	c := smallLateness(t)
	c.Service = runningAt(t, e)
	client := carillon.Connect(nc)
	fired := func() (jobs int) {
		for job, err := range client.List(t.Context(), carillon.ListRequest{Selection: carillon.Selection{Prefix: "bench"}}) {
			if err != nil {
				t.Fatal(err)
			}
			jobs += bit(job.Fires > 0 && time.Now().After(job.LastScheduled)) // a fire is counted some milliseconds before it is due
		}
		return jobs
	}
	began := 0
	c.before = func(context.Context) error {
		if began++; began == 1 {
			eventually(t, "it is too late", func() bool { return fired() > 100 })
		}
		return nil
	}
	r, err := RunLateness(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Checks.clean() || r.Checks.Expected != 200 || began < 2 {
		t.Errorf("checks are %+v, expected 200 triggers and nothing wrong; it began %d times", r.Checks, began)
	}
	onlyOther(t, nc)
}

// Jobs are put again, too, if it took too long to put them.
func TestPutTooSlowly(t *testing.T) {
	t.Parallel() // it mostly waits
	_, nc := running(t)
	client := carillon.Connect(nc)
	l := newLoad("slow-", Mix{Intervals: 2, Cron: 1, OneShots: 1}, 200, time.Second, 10)
	slowly := true
	if err := l.put(t.Context(), client, time.Second, func(int) {
		if slowly {
			slowly = false
			eventually(t, "the first is due", func() bool { return time.Now().UnixMilli() > l.plan.From })
		}
	}); err != nil {
		t.Fatal(err)
	}
	jobs := 0
	for job, err := range client.List(t.Context(), carillon.ListRequest{}) {
		if err != nil {
			t.Fatal(err)
		}
		jobs++
		i, ok := l.plan.index(job.ID)
		if due := job.Next.UnixMilli() - l.plan.From; job.Fires == 0 && (!ok || due != l.plan.First[i]) {
			t.Errorf("%s is due %d ms after the first", job.ID, due)
		}
		if at := job.LastScheduled.UnixMilli(); job.Fires > 0 && at < l.plan.From {
			t.Errorf("%s fired %d ms before the first is due", job.ID, l.plan.From-at)
		}
	}
	if jobs != len(l.plan.First) {
		t.Errorf("%d jobs of %d are there", jobs, len(l.plan.First))
	}
}

// In a service that is not the run's own, recurring jobs have an end, because a run that is killed does not delete them.
func TestJobsEnd(t *testing.T) {
	l := newLoad("x-", Mix{Intervals: 1, Cron: 1, OneShots: 1}, 3, time.Second, 10)
	l.plan.From, l.plan.To = 1_800_000_000_000, 1_800_000_001_000
	for _, l.ends = range []bool{true, false} {
		for i := range l.plan.First {
			j := l.job(i)
			recurs := !strings.HasPrefix(j.Schedule, "@at")
			if ends := time.UnixMilli(l.plan.To).Add(outlives).UTC(); l.ends && recurs && !j.End.Equal(ends) || (!l.ends || !recurs) && !j.End.IsZero() {
				t.Errorf("%s, %s, ends at %s", j.ID, j.Schedule, j.End)
			}
			if err := j.Validate(); err != nil {
				t.Error(err)
			}
		}
	}
}

// After a stall of more than a second, fires count as missed. A load's jobs must then make up for each of them.
func TestLoadFiresAll(t *testing.T) {
	l := newLoad("x-", Mix{Intervals: 1, Cron: 1, OneShots: 1}, 3, time.Second, 10)
	for i := range l.plan.First {
		if j := l.job(i); !strings.HasPrefix(j.Schedule, "@at") && j.Misfire != carillon.FireAll {
			t.Errorf("%s, %s, has misfire %s", j.ID, j.Schedule, j.Misfire)
		}
	}
}

// putJobs ends with the first job that is refused, however many follow.
func TestPutJobs(t *testing.T) {
	_, nc := running(t)
	taken := 0
	err := putJobs(t.Context(), carillon.Connect(nc), func(yield func(carillon.Job) bool) {
		for i := 0; ; i++ {
			j := carillon.Job{ID: "put-" + strconv.Itoa(i), Schedule: "@daily"}
			if i == 1000 {
				j.Schedule = "never"
			}
			if !yield(j) {
				return
			}
		}
	}, func(carillon.Job, carillon.JobReply) { taken++ })
	if !errors.Is(err, &carillon.Error{Code: carillon.CodeInvalidSchedule}) || !strings.Contains(err.Error(), "put-1000") || taken == 0 {
		t.Errorf("%d jobs were taken: %v", taken, err)
	}
}

// So does importJobs.
func TestImportJobs(t *testing.T) {
	_, nc := running(t)
	const many = 200_000
	read := 0
	err := importJobs(t.Context(), carillon.Connect(nc), func(yield func(carillon.ImportJob) bool) {
		for ; read < many; read++ {
			j := carillon.Job{ID: "import-" + strconv.Itoa(read), Schedule: "@daily"}
			if read == 100 {
				j.Schedule = "never"
			}
			if !yield(carillon.ImportJob{Job: j}) {
				return
			}
		}
	}, func(int) {})
	if !errors.Is(err, &carillon.Error{Code: carillon.CodeInvalidSchedule}) || !strings.Contains(err.Error(), "job 100:") || read == many {
		t.Errorf("%d jobs were read: %v", read, err)
	}
}

// acquireSlot does not wait for ever for answers that were lost.
func TestAcquireSlot(t *testing.T) {
	room := make(chan struct{}, 1)
	if err := acquireSlot(t.Context(), room, time.Hour); err != nil {
		t.Error(err)
	}
	if err := acquireSlot(t.Context(), room, time.Millisecond); err == nil {
		t.Error("there is no room, and nobody says so")
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := acquireSlot(ended, room, time.Hour); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// If an engine ends while it is measured, the error has its panic, even if many lines follow that.
func TestEngineThatDies(t *testing.T) {
	t.Parallel()
	s, err := service(t).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	e, err := s.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(e.dir, "bench.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := log.WriteString("\npanic: out of tune\n" + strings.Repeat("goroutine\n", 1000)); err != nil {
		t.Fatal(err)
	}
	if err := e.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has ended", func() bool { return errors.Is(e.cmd.Process.Signal(syscall.Signal(0)), os.ErrProcessDone) })
	if err := e.close(); err == nil || !strings.Contains(err.Error(), "the engine ended by itself (signal: killed)") || !strings.Contains(err.Error(), "panic: out of tune") {
		t.Errorf("%v", err)
	}
}

func TestRecovery(t *testing.T) {
	const partitions, outBytes = 2, 1 << 20 // the least that is allowed
	c := RecoveryConfig{
		Service: service(t, "--partitions", fmt.Sprint(partitions), "--out-max-bytes", fmt.Sprint(outBytes), "--log-max-bytes", fmt.Sprint(1<<20)),
		Jobs:    200, Rate: 100, Kills: 2, Fill: true,
	}
	began := time.Now()
	r, err := RunRecovery(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ready_max_s", "first_stored_max_s", "first_trigger_max_s", "caught_up_max_s"} {
		if took := r.Figures.Get(name); took <= 0 || took > time.Since(began).Seconds() {
			t.Errorf("%s is %v in a run of %s", name, took, time.Since(began))
		}
	}
	if held := r.Figures.Get("local_log_min_mib"); held <= 0 {
		t.Errorf("the engine's own directory held %v MiB", held)
	}
	if !r.Checks.clean() || r.Checks.Expected == 0 {
		t.Errorf("checks are %+v", r.Checks)
	}
	if ready, first := r.Figures.Get("ready_s"), r.Figures.Get("first_trigger_s"); ready <= 0 || first <= 0 || first > r.Figures.Get("first_trigger_max_s") {
		t.Errorf("figures are %v", r.Figures)
	}
	if held := r.Figures.Get("outputs_min_mib"); held < partitions*outBytes*fillShare/(1<<20) {
		t.Errorf("output streams held %v MiB when the engine was killed", held)
	}
	// The log's limit is 1 MiB. When the log is half full or more, the engine may cut it at any moment, even right before the
	// kill. Without Fill, the log would hold only the puts of 200 jobs.
	if held := r.Figures.Get("log_filled_min_mib"); held < 0.1 {
		t.Errorf("the log was filled to %v MiB before the engine was killed", held)
	}
}

func TestCeiling(t *testing.T) {
	r, err := RunCeiling(t.Context(), CeilingConfig{
		Service: Service{Data: t.TempDir()}, Messages: 5001, Streams: 3, Rounds: 1, LatencyTime: 200 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"async_per_s", "chained_1_stream_per_s", "chained_per_s", "chained_linked_per_s", "chained_persist_async_per_s",
		"log_round_trip_p50_ms", "sleep_p50_ms", "commit_p50_ms", "grouped_commits_records_per_s",
	} {
		if r.Figures.Get(name) <= 0 {
			t.Errorf("%s is %v", name, r.Figures.Get(name))
		}
	}
}

// A ceiling does not wait for ever for a server that has ended.
func TestCeilingWithoutAcks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := (&link{acks: make(chan error)}).await(t.Context()); !errors.Is(err, errNoAck) || time.Since(began) != stallWait {
			t.Errorf("after %s it says %v", time.Since(began), err)
		}
	})
}

// A ceiling's streams keep all messages. If one has dropped some, that is an error, because its rate would mean nothing.
func TestCeilingKeepsAll(t *testing.T) {
	m, err := openCeiling(t.Context(), CeilingConfig{Service: Service{Data: t.TempDir()}, PayloadBytes: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	name, err := m.stream(t.Context(), jetstream.DefaultPersistMode)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := m.js.Publish(t.Context(), subject(name), m.payload); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.stored(t.Context(), name, 3); err != nil {
		t.Error(err)
	}
	s, err := m.js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	c := s.CachedInfo().Config
	if c.MaxBytes != -1 || c.MaxMsgs != -1 || c.MaxAge != 0 {
		t.Errorf("the stream drops what is beyond %d bytes, %d messages or %s", c.MaxBytes, c.MaxMsgs, c.MaxAge)
	}
	c.MaxMsgs = 2
	if _, err := m.js.UpdateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := m.stored(t.Context(), name, 3); err == nil || !strings.Contains(err.Error(), "dropped 1 of 3") {
		t.Errorf("of a stream that dropped a message: %v", err)
	}
}

// While a ceiling is open, the garbage of the process is collected as an engine's is, and afterwards as before.
func TestCeilingIsCollectedAsEngine(t *testing.T) {
	t.Setenv("GOGC", "") // so that it is restored at the end
	if err := os.Unsetenv("GOGC"); err != nil {
		t.Fatal(err)
	}
	percent := func() uint64 {
		v := []runtimemetrics.Sample{{Name: "/gc/gogc:percent"}}
		runtimemetrics.Read(v)
		return v[0].Value.Uint64()
	}
	before := percent()
	var ceilings []*ceiling
	for range 2 {
		m, err := openCeiling(t.Context(), CeilingConfig{Service: Service{Data: t.TempDir()}, PayloadBytes: 2})
		if err != nil {
			t.Fatal(err)
		}
		ceilings = append(ceilings, m)
	}
	for _, m := range ceilings { // the second time only one is open
		if percent() == before {
			t.Error("the collector is not tended")
		}
		if err := m.close(); err != nil {
			t.Error(err)
		}
	}
	if got := percent(); got != before {
		t.Errorf("%d %% afterwards, want %d", got, before)
	}
}

func TestEngineThatDoesNotStart(t *testing.T) {
	c := smallLateness(t)
	c.Service.Command = append(c.Service.Command, "--no-such-flag")
	_, err := RunLateness(t.Context(), c)
	if err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("the error is %v, expected what the engine said", err)
	}
	nothingIn(t, c.Service.Data)
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := smallLateness(t)
	c.Duration = time.Hour
	c.Mix = Mix{Intervals: 1}
	c.Progress = func(step string, _, _ int) {
		if step == "measuring" {
			cancel()
		}
	}
	if _, err := RunLateness(ctx, c); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	nothingIn(t, c.Service.Data)
}

// judged returns the plan of two jobs, and their arrivals in one partition, which are right until a test spoils them.
func judged() (*plan, []arrival) {
	p := &plan{Prefix: "x-", From: 10_000, To: 12_000, First: []int64{0, 500}, Every: []int64{1000, 0}}
	at := func(job int32, ms int64, output uint64) arrival {
		return arrival{scheduled: ms, received: ms*1e6 + 2e6, stored: ms*1e6 + 1e6, output: output, job: job}
	}
	return p, []arrival{at(-1, 9999, 6), at(0, 10_000, 7), at(1, 10_500, 8), at(0, 11_000, 9), at(0, 12_000, 12)}
}

func TestJudge(t *testing.T) {
	for name, v := range map[string]struct {
		spoil  func(a []arrival) []arrival
		others map[storedOutput]struct{}
		want   Checks
	}{
		"clean": {func(a []arrival) []arrival { return a }, nil, Checks{Expected: 3}},
		"received early": {func(a []arrival) []arrival {
			a[1].received = 10_000*1e6 - 1
			return a
		}, nil, Checks{Expected: 3, Early: 1}},
		"stored early": {func(a []arrival) []arrival {
			a[2].stored = 10_500*1e6 - 1
			return a
		}, nil, Checks{Expected: 3, Early: 1}},
		"on time": {func(a []arrival) []arrival {
			a[1].received, a[1].stored = 10_000*1e6, 10_000*1e6
			return a
		}, nil, Checks{Expected: 3}},
		"very late": {func(a []arrival) []arrival {
			a[1].received += 3600 * 1e9
			return a
		}, nil, Checks{Expected: 3}},
		"the last is missing": {func(a []arrival) []arrival { return a[:3] }, nil, Checks{Expected: 3, Missing: 1}},
		"another's job in the window": {func(a []arrival) []arrival {
			b := a[3]
			b.job, b.output = 2, 10
			return append(a, b)
		}, nil, Checks{Expected: 3}},
		"before the window": {func(a []arrival) []arrival {
			b := a[0]
			b.job, b.scheduled, b.output = 0, 9000, 5
			return append(a, b)
		}, nil, Checks{Expected: 3}},
		"a gap, in another order": {func(a []arrival) []arrival {
			a[3].output, a[4].output = 11, 12
			a[2], a[3] = a[3], a[2]
			return a
		}, nil, Checks{Expected: 3, Gaps: 2}},
		"missing, and its number": {func(a []arrival) []arrival { return slices.Delete(a, 2, 3) }, nil, Checks{Expected: 3, Missing: 1, Gaps: 1}},
		"another holds the number": {func(a []arrival) []arrival {
			a[3].output, a[4].output = 10, 13
			return a
		}, map[storedOutput]struct{}{{outputID{0, 9}, 1}: {}}, Checks{Expected: 3}},
		"nobody holds the number": {func(a []arrival) []arrival {
			a[3].output = 11
			return a
		}, map[storedOutput]struct{}{{outputID{1, 9}, 1}: {}, {outputID{0, 10}, 1}: {}}, Checks{Expected: 3, Gaps: 1}},
		"same fire twice": {func(a []arrival) []arrival {
			b := a[3]
			b.output = 10
			return append(a, b)
		}, nil, Checks{Expected: 3, Duplicate: 1}},
		"two fires of one number": {func(a []arrival) []arrival {
			a[3].output = 8
			return a
		}, nil, Checks{Expected: 3, Duplicate: 1}},
		"another's fire has the number": {func(a []arrival) []arrival {
			b := a[2]
			b.job, b.stored = -1, b.stored+1
			return append(a, b)
		}, nil, Checks{Expected: 3, Duplicate: 1}},
		"the same fire in another message of the number": {func(a []arrival) []arrival {
			b := a[2]
			b.stored++
			return append(a, b)
		}, nil, Checks{Expected: 3, Duplicate: 1}},
		"another's message twice": {func(a []arrival) []arrival {
			b := a[0]
			b.output, b.scheduled, b.stored = 10, 10_700, 10_701*1e6
			a[3].output = 11
			again := b
			again.again = true
			return append(a, b, again)
		}, map[storedOutput]struct{}{{outputID{0, 9}, 1}: {}}, Checks{Expected: 3, Redelivered: 1}},
		"a message that did not arrive has the number": {func(a []arrival) []arrival { return a }, map[storedOutput]struct{}{
			{outputID{0, 8}, 10_501 * 1e6}: {}, {outputID{0, 9}, 1}: {}, // the first is the one that arrived
		}, Checks{Expected: 3, Duplicate: 1}},
		"a number twice after the window": {func(a []arrival) []arrival {
			b := a[4]
			b.stored++
			return append(a, b)
		}, nil, Checks{Expected: 3}},
		"same number twice":    {func(a []arrival) []arrival { return append(a, a[2]) }, nil, Checks{Expected: 3, Duplicate: 1}},
		"same message twice":   {func(a []arrival) []arrival { b := a[2]; b.again = true; return append(a, b) }, nil, Checks{Expected: 3, Redelivered: 1}},
		"first delivery lost":  {func(a []arrival) []arrival { a[2].again = true; return a }, nil, Checks{Expected: 3, Redelivered: 1}},
		"between two fires":    {func(a []arrival) []arrival { a[3].scheduled = 10_999; return a }, nil, Checks{Expected: 3, Stray: 1, Missing: 1}},
		"one-shot's next time": {func(a []arrival) []arrival { b := a[2]; b.scheduled, b.output = 11_500, 10; return append(a, b) }, nil, Checks{Expected: 3, Stray: 1}},
		"other partition": {func(a []arrival) []arrival {
			a[3].partition, a[3].output = 1, 77
			return a
		}, nil, Checks{Expected: 3}},
	} {
		p, arrivals := judged()
		r, err := judge(p, v.spoil(arrivals), v.others)
		if err != nil || r.Checks != v.want {
			t.Errorf("%s: %+v, %v; expected %+v", name, r.Checks, err, v.want)
		}
		if r.Checks.clean() != (v.want.Early+v.want.Missing+v.want.Duplicate+v.want.Gaps+v.want.Stray == 0) {
			t.Errorf("%s: clean is %t", name, r.Checks.clean())
		}
		for _, text := range []string{r.Received, r.Stored} { // each fire once, however often it came
			if h, err := decode(text); err != nil || int(h.TotalCount()) != v.want.Expected-v.want.Missing {
				t.Errorf("%s: %d of %d in a histogram, %v", name, h.TotalCount(), v.want.Expected-v.want.Missing, err)
			}
		}
	}
	p, arrivals := judged()
	r, err := judge(p, arrivals, nil)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int64{r.Received: 2000, r.Stored: 1000} {
		h, err := decode(text)
		if err != nil {
			t.Fatal(err)
		}
		if h.TotalCount() != 3 || !h.ValuesAreEquivalent(h.Min(), want) || !h.ValuesAreEquivalent(h.Max(), want) {
			t.Errorf("3 triggers %d µs late make %d of %d to %d µs", want, h.TotalCount(), h.Min(), h.Max())
		}
	}
	if r, err = judge(p, arrivals[:2], nil); err != nil || !slices.Equal(r.Missing, []string{"x-0@11000", "x-1@10500"}) {
		t.Errorf("missing are %q, %v", r.Missing, err)
	}
}

// Raw triggers are those of the plan's jobs in its window, with how late each was.
func TestRaw(t *testing.T) {
	p, arrivals := judged()
	another, before := arrivals[2], arrivals[1] // another job's in the window, and one before the window
	another.job, before.scheduled = -1, 9000
	w := &worker{chunks: [][]arrival{arrivals[:2], append(arrivals[2:], another, before)}}
	path := filepath.Join(t.TempDir(), "raw.csv")
	if err := w.writeRaw(path, p); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := "due_ms,stored_us,received_us,partition,output,job\n10000,1000,2000,0,7,0\n10500,1000,2000,0,8,1\n11000,1000,2000,0,9,0\n"
	if string(raw) != want {
		t.Errorf("raw triggers are\n%s, expected\n%s", raw, want)
	}
}

func TestDirMiB(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, bytes := range map[string]int{"a": 1 << 19, "in/b": 1 << 20} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, bytes), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := dirMiB(dir); got != 1.5 {
		t.Errorf("%v MiB, expected 1.5", got)
	}
}

func TestPlan(t *testing.T) {
	for _, every := range []int64{0, 1, 7, 1000} {
		for _, first := range []int64{-1, 0, 3, 19, 20, 21} {
			p := &plan{From: 100, To: 120, First: []int64{first}, Every: []int64{every}}
			n := 0
			for ms := int64(90); ms < 130; ms++ {
				due := first >= 0 && ms >= p.From+first && ms < p.To && (ms == p.From+first || every > 0 && (ms-p.From-first)%every == 0)
				k, ok := p.fireIndex(0, ms)
				if ok != due || ok && k != n {
					t.Errorf("first %d, every %d, at %d: fire %d, %t; expected %d, %t", first, every, ms, k, ok, n, due)
				}
				if due {
					n++
				}
			}
			if got := p.fires(0); got != n {
				t.Errorf("first %d, every %d: %d fires, expected %d", first, every, got, n)
			}
		}
	}
}

// Beyond 5,000 triggers a second the limits are a little higher.
// The median of an even number of kills is the mean of the two in the middle, not the worse of them.
func TestRecoveredFigures(t *testing.T) {
	var f Figures
	f.recovered("first_trigger", []recovered{{received: 4 * time.Second}, {received: time.Second}}, func(r recovered) time.Duration { return r.received })
	if want := (Figures{{"first_trigger_s", 2.5}, {"first_trigger_max_s", 4}}); !slices.Equal(f, want) {
		t.Errorf("figures are %v, expected %v", f, want)
	}
}

func TestLatenessTargets(t *testing.T) {
	f := Figures{{"received_p50_ms", 1.2}, {"received_p99_ms", 8}, {"received_p999_ms", 30}}
	for _, c := range []struct {
		rate  int
		sleep float64
		met   [3]bool
	}{{5000, 0, [3]bool{}}, {5001, 0, [3]bool{true, true, false}}, {5000, 3, [3]bool{false, true, false}}, {5000, 10, [3]bool{false, true, true}}} {
		for i, got := range latenessTargets(f, c.rate, func(float64) float64 { return c.sleep }) {
			if got.Met != c.met[i] {
				t.Errorf("%d/s, bare sleep %v: %s met: %t", c.rate, c.sleep, got.Figure, got.Met)
			}
		}
	}
}

func TestTargets(t *testing.T) {
	f := Figures{{"a_ms", 7}}
	for _, v := range []struct {
		limit, floor float64
		met          bool
	}{{7, 0, true}, {6.9, 0, false}, {5, 8, true}, {5, 6, false}, {9, 1, true}} {
		if got := newTarget(f, "a_ms", v.limit, v.floor); got.Met != v.met {
			t.Errorf("7 against %v, floor %v: %t", v.limit, v.floor, got.Met)
		}
	}
	if newTarget(f, "another_ms", 9, 0).Met || newMinTarget(f, "another_ms", 0).Met {
		t.Error("what was not measured met its target")
	}
	r := Result{Checks: &Checks{}, Targets: []Target{{Met: true}}}
	if r.Passed() {
		t.Error("a run that expected nothing passed its checks")
	}
	r.Checks.Expected = 1
	if !r.Passed() {
		t.Error("a clean run did not pass")
	}
	r.Checks.Gaps = 1
	if r.Passed() {
		t.Error("a gap passed")
	}
	r.Checks, r.Targets[0].Met = nil, false
	if r.Passed() {
		t.Error("a missed target passed")
	}
}

// What was not measured has no figure: a zero would look punctual and meet its target, and JSON has no infinity.
func TestNothingMeasured(t *testing.T) {
	f := Figures{}
	f.quantiles("received", newHistogram(), 50, 99, 100)
	f.add("ratio_chained", math.Inf(1))
	f.add("lateness_p99_ratio", math.NaN())
	r := Result{Figures: f, Targets: []Target{newTarget(f, "received_p99_ms", 5, 0), newMinTarget(f, "ratio_chained", 0.85)}}
	if len(f) > 0 || r.Targets[0].Met || r.Targets[1].Met {
		t.Errorf("figures %v, targets %+v", f, r.Targets)
	}
	var table strings.Builder
	if err := r.Table(&table); err != nil || !strings.Contains(table.String(), "received_p99_ms: not measured, must be <= 5\n") {
		t.Errorf("%v in the table\n%s", err, &table)
	}
}

// On a system that does not say what a process has used, an idle engine would need no CPU and no memory.
func TestUnknownUsage(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "go_memstats_heap_alloc_bytes 1000\n") // if that fails, the error below is another
	}))
	defer web.Close()
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	if s, err := look(t.Context(), &engine{http: web.URL, cmd: ended}); err == nil || !strings.Contains(err.Error(), "does not say") {
		t.Errorf("a process of which nothing is known is said to use %+v, %v", s, err)
	}
}

// A table that was kept says that its run did not come to its end.
func TestTableOfEndedRun(t *testing.T) {
	var table strings.Builder
	r := Result{Workload: "soak", Error: "the engine ended by itself"}
	if err := r.Table(&table); err != nil || !strings.Contains(table.String(), "ended early") || !strings.Contains(table.String(), r.Error) {
		t.Errorf("%v in the table\n%s", err, &table)
	}
}

// Pauses that never came were not short.
func TestNoPauses(t *testing.T) {
	c := ScaleConfig{Jobs: 1, Midnight: 1, midnightPairs: 1, midnightTime: time.Second}
	var f Figures
	if err := c.figures(&scaleRun{held: map[string]pauses{floorPause: {Count: 1, Max: time.Millisecond}}}, &f); err != nil {
		t.Fatal(err)
	}
	for _, target := range c.targets(f) {
		if strings.HasSuffix(target.Figure, "pause_max_ms") && target.Met {
			t.Errorf("%s met its target", target.Figure)
		}
	}
	if f.Get("floor_pause_max_ms") != 1 {
		t.Errorf("figures are %v", f)
	}
}

// A cold midnight whose jobs were in memory after all is no better than a hot one because of that.
func TestColdMidnights(t *testing.T) {
	c := ScaleConfig{Jobs: 1000, Midnight: 1000, midnightPairs: 3, midnightTime: time.Minute}
	for loaded, want := range map[float64]bool{0: false, 2500: false, 2700: true, 2880: true} { // 3 × 16 a second for a minute
		missed := 0
		for _, target := range c.targets(Figures{{"midnight_loaded_jobs", loaded}}) {
			missed += bit(target.Figure == "midnight_loaded_jobs" && !target.Met)
		}
		if (missed == 0) != want {
			t.Errorf("%v jobs from disk: the target is met: %t", loaded, !want)
		}
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 12345.678: "12346", 1234.5: "1234", 123.45: "123.5", 1.23456: "1.235", 0.0012345: "0.001234", 100: "100", 250000: "250000", 0.5: "0.5",
	} {
		if got := number(v); got != want {
			t.Errorf("%v is written as %s, expected %s", v, got, want)
		}
	}
}

func TestBadConfigs(t *testing.T) {
	for name, err := range map[string]error{
		"Rate":         LatenessConfig{Rate: -1}.Validate(),
		"Duration":     LatenessConfig{Duration: 1500 * time.Millisecond}.Validate(),
		"PayloadBytes": LatenessConfig{PayloadBytes: 1}.Validate(),
		"Mix":          LatenessConfig{Mix: Mix{Cron: -1, OneShots: 2}}.Validate(),
		"1,000,000":    LatenessConfig{Mix: Mix{Cron: mostWeight + 1}}.Validate(),
		"Concurrency":  LatenessConfig{Concurrency: -1}.Validate(),
		"1 to 100,000": LatenessConfig{Concurrency: 100_001}.Validate(),
		"Raw":          LatenessConfig{Raw: t.TempDir()}.Validate(), // a directory
		"own":          RecoveryConfig{Service: Service{Server: "nats://127.0.0.1:1"}}.Validate(),
		"jobs":         RecoveryConfig{Jobs: 10, Rate: 11}.Validate(),
		"too few":      RecoveryConfig{Jobs: 99, Rate: 50}.Validate(),
		"Kills":        RecoveryConfig{Kills: -1}.Validate(),
		"Messages":     CeilingConfig{Messages: 1}.Validate(),
		"Streams":      CeilingConfig{Streams: 300}.Validate(),
		"Rounds":       CeilingConfig{Rounds: -1}.Validate(),
		"LatencyTime":  CeilingConfig{LatencyTime: -1}.Validate(),
	} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, v := range []struct {
		c interface{ Validate() error }
	}{{LatenessConfig{}}, {RecoveryConfig{}}, {CeilingConfig{}}} {
		if err := v.c.Validate(); err != nil {
			t.Errorf("the defaults of %T: %v", v.c, err)
		}
	}
	if m, err := ParseMix("intervals=2,cron,one_shots=0"); err != nil || m != (Mix{Intervals: 2, Cron: 1}) {
		t.Errorf("mix is %+v, %v", m, err)
	}
	for _, bad := range []string{"", "weekly", "cron=-1", "cron=x", "cron,,intervals", "intervals=0", "cron=0,one_shots=0", "cron=1000001"} {
		if m, err := ParseMix(bad); err == nil {
			t.Errorf("%q is read as %+v", bad, m)
		}
	}
}

func TestPauses(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s := metrics.NewSet()
		bounds := []float64{0.001, 0.005, 0.01, 0.016, 0.025, 1}
		for _, d := range []float64{0.0005, 0.00101, 0.0099, 0.0101, 0.02} {
			s.GetOrCreatePrometheusHistogramExt("other", bounds).Update(100 * d)
			s.GetOrCreatePrometheusHistogramExt("carillon_load_pause_seconds", bounds).Update(d)
			s.GetOrCreatePrometheusHistogramExt("carillon_load_pause_own_seconds", bounds).Update(d / 10)
		}
		s.WritePrometheus(w)
	}))
	defer web.Close()
	e := &engine{http: web.URL}
	p, err := e.pauses(t.Context(), "carillon_load_pause_seconds")
	if err != nil {
		t.Fatal(err)
	}
	if p.Count != 5 || p.Over1 != 4 || p.Over10 != 2 || p.Max != 25*time.Millisecond {
		t.Errorf("pauses are %+v", p)
	}
	// Pauses of processes that ran one after the other are added up.
	held := map[string]pauses{loadPause: {Count: 7, Over1: 2, Over10: 1, Max: time.Second}}
	for range 2 {
		if err := e.addPauses(t.Context(), held); err != nil {
			t.Fatal(err)
		}
	}
	if want := (pauses{Count: 17, Over1: 10, Over10: 5, Max: time.Second}); held[loadPause] != want || held[checkpointPause].Count != 0 {
		t.Errorf("those of three processes are %+v, expected %+v", held, want)
	}
	if want := (pauses{Count: 10, Over1: 4, Max: 5 * time.Millisecond}); held[loadPauseOwn] != want {
		t.Errorf("those that are an engine's own are %+v, expected %+v", held[loadPauseOwn], want)
	}
}

// A trigger that is stored before a kill and again after it is a duplicate, even if the output numbers ascend. Gaps and duplicates among
// the numbers after the kill are counted, too.
func TestRecoveryFollows(t *testing.T) {
	t.Parallel()
	url, js := startNATS(t)
	later := carillon.FormatTriggerID("late", time.Now().Add(time.Hour).UnixMilli())
	for i, v := range []struct {
		name, stored string // output:trigger; the kill is after the third
		want         Checks
	}{
		{"in order", "1:a@1000 2:b@1000 3: 4:a@2000 5: 6:b@2000", Checks{Expected: 2}},
		{"fired again", "1:a@1000 2:b@1000 3: 4:a@1000 5:b@2000", Checks{Expected: 2, Duplicate: 1}},
		{"twice after the kill", "1:a@1000 2: 3: 4:b@1000 5:b@1000", Checks{Expected: 2, Duplicate: 1}},
		{"numbers are left out", "1: 2: 3: 6: 7: 9:", Checks{Gaps: 3}},
		{"numbers are there twice", "1: 2: 3: 4: 3: 4: 5: 4: 6:", Checks{Duplicate: 3}},
		{"early", "1: 2: 3: 4:" + later, Checks{Expected: 1, Early: 1}},
	} {
		names := carillon.NamesFor("r" + strconv.Itoa(i))
		e := &engine{Service: Service{Names: names, Connect: func(url string) (*nats.Conn, error) { return nats.Connect(url) }}, url: url, partitions: 1}
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: names.OutStream(0), Subjects: []string{names.Trigger(0, topic)}}); err != nil {
			t.Fatal(err)
		}
		for stored := range strings.FieldsSeq(v.stored) {
			output, id, _ := strings.Cut(stored, ":")
			m := nats.NewMsg(names.Trigger(0, topic))
			m.Header.Set(carillon.HeaderOutput, output)
			if id != "" {
				m.Header.Set(carillon.HeaderTrigger, id)
			}
			if _, err := js.PublishMsg(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
		var c Checks
		if err := (&RecoveryConfig{}).follow(t.Context(), e, []uint64{3}, &c); err != nil || c != v.want {
			t.Errorf("%s: checks are %+v, %v; expected %+v", v.name, c, err, v.want)
		}
	}
}

// A service that is started beside a run keeps its streams, even if its prefix begins with the run's.
func TestNeighbourKeepsItsStreams(t *testing.T) {
	t.Parallel()
	url, js := startNATS(t)
	own, other := carillon.NamesFor("bench"), carillon.NamesFor("bench_2")
	e := &engine{Service: Service{Names: own, NATS: url, Connect: func(url string) (*nats.Conn, error) { return nats.Connect(url) }}}
	if err := e.reserve(t.Context()); err != nil {
		t.Fatal(err)
	}
	theirs := []string{other.LogStream(), other.OutStream(0), "OBJ_" + other.Stream + "_STATE"}
	for i, name := range append(theirs, own.LogStream(), own.OutStream(7), "OBJ_"+own.Stream+"_STATE", own.TopicStream("a.b")) {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{"s" + strconv.Itoa(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.close(); err != nil {
		t.Fatal(err)
	}
	left := 0
	for range js.StreamNames(t.Context()).Name() {
		left++
	}
	if left != len(theirs) {
		t.Errorf("%d streams are left, expected the other service's %d", left, len(theirs))
	}
}
