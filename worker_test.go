package carillon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// startWorker runs a worker until the test ends or calls stop, which returns Work's error. If the test does not call it, there must be none.
func startWorker(t *testing.T, c *Client, o WorkerOptions, h Handler) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Work(ctx, o, h) }()
	var called atomic.Bool
	end := sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(time.Minute): // not natstest.Receive: stop may be called on another goroutine than the test's
			t.Error("the worker did not stop within a minute")
			return nil
		}
	})
	t.Cleanup(func() {
		if err := end(); err != nil && !called.Load() {
			t.Errorf("the worker ended with %v", err)
		}
	})
	return func() error {
		called.Store(true)
		return end()
	}
}

// pending counts what the group has not acknowledged, over all partitions.
func pending(t *testing.T, js jetstream.JetStream, name string, partitions int) (waiting, unanswered int) {
	t.Helper()
	for p := range partitions {
		info := consumerInfo(t, js, name, p)
		if info == nil {
			return 1, 1 // not made yet
		}
		waiting += int(info.NumPending)
		unanswered += info.NumAckPending
	}
	return waiting, unanswered
}

// consumerInfo is nil where there is no consumer.
func consumerInfo(t *testing.T, js jetstream.JetStream, name string, partition int) *jetstream.ConsumerInfo {
	t.Helper()
	c, err := js.Consumer(t.Context(), DefaultNames().OutStream(partition), name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return c.CachedInfo()
}

// made tells whether the group has its consumers.
func made(t *testing.T, js jetstream.JetStream, name string, partitions int) func() bool {
	return func() bool {
		for p := range partitions {
			if consumerInfo(t, js, name, p) == nil {
				return false
			}
		}
		return true
	}
}

// settled tells whether the consumers, each of which is to get something, have all of it answered. One that is being made
// says for a moment that nothing waits.
func settled(t *testing.T, js jetstream.JetStream, name string, partitions int) func() bool {
	return func() bool {
		for p := range partitions {
			info := consumerInfo(t, js, name, p)
			if info == nil || info.NumPending > 0 || info.NumAckPending > 0 || info.Delivered.Consumer == 0 {
				return false
			}
		}
		return true
	}
}

func TestWorkSharesAllPartitions(t *testing.T) {
	nc, js := startNATS(t)
	out := makeOutput(t, js, 3)
	const each = 200
	for i := range each {
		for p := range 3 {
			out.trigger(p, "billing.renewals", fmt.Sprintf("job-%d-%d", p, i), 1_800_000_000_250, `{"n": 1}`)
			out.trigger(p, "other", "other", int64(i), "")
			out.publish(p, &nats.Msg{Subject: fmt.Sprintf("carillon.event.%d.completed.x", p), Data: []byte("{}")})
		}
	}
	var mu sync.Mutex
	seen := make(map[string]int)
	by := make([]int, 2)
	shared := make(chan struct{}) // closed once both have some: a quick one must not have taken all by then
	var sample Trigger
	c := Connect(nc)
	for i := range by {
		startWorker(t, c, WorkerOptions{Topic: "billing.*", Name: "group", Concurrency: 4}, func(ctx context.Context, tr *Trigger) error {
			mu.Lock()
			seen[tr.ID]++
			if by[i]++; by[i] == 1 && by[1-i] > 0 {
				close(shared)
			}
			if tr.Job == "job-2-0" {
				sample = *tr
			}
			mu.Unlock()
			select {
			case <-shared:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}
	eventually(t, "all triggers acknowledged", settled(t, js, "group", 3))
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 3*each {
		t.Fatalf("%d triggers; want %d", len(seen), 3*each)
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s came %d times", id, n)
		}
	}
	if sample.Stored.IsZero() || sample.Received.Before(sample.Stored.Add(-time.Second)) || sample.Headers.Get("Tenant") != "acme" {
		t.Errorf("%+v", sample)
	}
	sample.Stored, sample.Received, sample.Headers = time.Time{}, time.Time{}, nil
	want := Trigger{
		Job: "job-2-0", ID: "job-2-0@1800000000250", Scheduled: time.UnixMilli(1_800_000_000_250).UTC(), Version: 3, Output: 1,
		Partition: 2, Topic: "billing.renewals", Payload: []byte(`{"n": 1}`), Attempt: 1,
	}
	if !reflect.DeepEqual(sample, want) {
		t.Errorf("got %+v, want %+v", sample, want)
	}
}

func TestWorkRetriesAndGivesUp(t *testing.T) {
	nc, js := startNATS(t)
	out := makeOutput(t, js, 1)
	for _, job := range []string{"fine", "flaky", "broken", "hopeless"} {
		out.trigger(0, "t", job, 1, "")
	}
	givenUp, err := js.CreateStream(t.Context(), jetstream.StreamConfig{ // as docs/protocol.md says
		Name: "GIVEN_UP", Subjects: []string{"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.*.g"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	attempts := make(map[string][]int)
	var asked []int
	var told []string
	startWorker(t, Connect(nc), WorkerOptions{
		Topic: "t", Name: "g", AckWait: time.Hour, MaxAttempts: 4,
		RetryDelay: func(attempt int, err error) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, attempt)
			return time.Millisecond
		},
		OnError: func(tr *Trigger, err error) {
			mu.Lock()
			defer mu.Unlock()
			if tr == nil {
				t.Error(err)
				return
			}
			what := tr.Job
			if errors.Is(err, ErrGivenUp) {
				what += " for good"
			}
			told = append(told, what)
		},
	}, func(_ context.Context, tr *Trigger) error {
		mu.Lock()
		defer mu.Unlock()
		attempts[tr.Job] = append(attempts[tr.Job], tr.Attempt)
		switch {
		case tr.Job == "flaky" && tr.Attempt < 3, tr.Job == "hopeless":
			return errors.New("not\r\nyet")
		case tr.Job == "broken":
			return fmt.Errorf("wrapped: %w", Permanent(errors.New("no such customer")))
		}
		return nil
	})
	eventually(t, "all answered", settled(t, js, "g", 1))
	mu.Lock()
	defer mu.Unlock()
	want := map[string][]int{"fine": {1}, "flaky": {1, 2, 3}, "broken": {1}, "hopeless": {1, 2, 3, 4}}
	if !reflect.DeepEqual(attempts, want) {
		t.Errorf("attempts %v; want %v", attempts, want)
	}
	if slices.Sort(asked); !slices.Equal(asked, []int{1, 1, 2, 2, 3}) {
		t.Errorf("RetryDelay was asked for attempts %v", asked)
	}
	if slices.Sort(told); strings.Join(told, ", ") != "broken for good, flaky, flaky, hopeless, hopeless, hopeless, hopeless for good" {
		t.Errorf("OnError was told of %v", told)
	}
	eventually(t, "two given up", func() bool {
		info, err := givenUp.Info(t.Context())
		return err == nil && info.State.Msgs == 2
	})
	var list []string
	for seq := range uint64(2) {
		m, err := givenUp.GetMsg(t.Context(), seq+1)
		if err != nil {
			t.Fatal(err)
		}
		var a struct {
			Stream     string
			Seq        uint64 `json:"stream_seq"`
			Deliveries int
			Reason     string
		}
		if err := json.Unmarshal(m.Data, &a); err != nil {
			t.Fatal(err)
		}
		stream, err := js.Stream(t.Context(), a.Stream)
		if err != nil {
			t.Fatal(err)
		}
		trigger, err := stream.GetMsg(t.Context(), a.Seq)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, fmt.Sprintf("%s %d %s", trigger.Header.Get(HeaderJob), a.Deliveries, a.Reason))
	}
	if slices.Sort(list); strings.Join(list, ", ") != "broken 1 wrapped: no such customer, hopeless 4 not yet" {
		t.Errorf("given up are %v", list)
	}
}

// A handler that takes longer than AckWait keeps its trigger, and so does what waits behind it in the
// worker's hands. AckWait is long enough here for a heartbeat to come in time on a busy machine, and what takes long is over
// when there were more of them than fit into it.
func TestWorkHeartbeat(t *testing.T) {
	nc, js := startNATS(t)
	out := makeOutput(t, js, 1)
	for i := range 2 {
		out.trigger(0, "t", fmt.Sprint("job", i), 1, "")
	}
	const ackWait, beats = 15 * time.Second, 4
	acks, err := nc.SubscribeSync("$JS.ACK.>")
	if err != nil {
		t.Fatal(err)
	}
	var calls, again atomic.Int32
	over := make(chan struct{})
	startWorker(t, Connect(nc), WorkerOptions{Topic: "t", Name: "g", Concurrency: 1, AckWait: ackWait}, func(_ context.Context, tr *Trigger) error {
		if tr.Attempt > 1 {
			again.Add(1)
		}
		if calls.Add(1) > 1 {
			return nil
		}
		eventually(t, "both in hand", func() bool {
			_, unanswered := pending(t, js, "g", 1)
			return unanswered == 2
		})
		defer close(over)
		seen := make(map[string]int) // by delivery
		for len(seen) < 2 || slices.Min(slices.Collect(maps.Values(seen))) < beats {
			m, err := acks.NextMsg(time.Minute)
			if err != nil {
				t.Errorf("after %v heartbeats: %v", seen, err)
				return nil
			}
			if string(m.Data) != "+WPI" {
				t.Errorf("an answer while the work goes on: %s %s", m.Subject, m.Data)
			}
			if seen[m.Subject]++; seen[m.Subject] > 3*beats {
				t.Errorf("heartbeats are %v", seen)
				return nil
			}
		}
		return nil
	})
	<-over
	eventually(t, "all acknowledged", settled(t, js, "g", 1))
	if calls.Load() != 2 || again.Load() != 0 {
		t.Errorf("%d calls, %d of them redeliveries; want 2 and none", calls.Load(), again.Load())
	}
}

func TestWorkConcurrency(t *testing.T) {
	nc, js := startNATS(t)
	out := makeOutput(t, js, 4)
	for i := range 100 {
		out.trigger(i%4, "t", fmt.Sprint("job", i), 1, "")
	}
	const bound = 3
	var running, most atomic.Int32
	full := make(chan struct{})
	startWorker(t, Connect(nc), WorkerOptions{Topic: "t", Name: "g", Concurrency: bound}, func(context.Context, *Trigger) error {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if n == bound {
			select {
			case <-full:
			default:
				close(full)
			}
		}
		<-full // nobody ends before the bound is reached, so that it must be
		return nil
	})
	eventually(t, "all acknowledged", settled(t, js, "g", 4))
	if most.Load() != bound {
		t.Errorf("%d handlers at a time; want %d", most.Load(), bound)
	}
}

func TestWorkDrains(t *testing.T) {
	nc, js := startNATS(t)
	out := makeOutput(t, js, 2)
	const jobs = 10
	for i := range jobs {
		out.trigger(i%2, "t", fmt.Sprint("job", i), 1, "")
	}
	o := WorkerOptions{Topic: "t", Name: "g", Concurrency: 2, AckWait: time.Hour} // only a nak gives anything back
	began, end := make(chan string, jobs), make(chan struct{})
	stop := startWorker(t, Connect(nc), o, func(ctx context.Context, tr *Trigger) error {
		began <- tr.Job
		<-end
		return ctx.Err()
	})
	mine := []string{<-began, <-began}
	eventually(t, "more in hand than begun", func() bool {
		_, unanswered := pending(t, js, "g", 2)
		return unanswered > len(mine)
	})
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	var mu sync.Mutex
	var theirs []string
	startWorker(t, Connect(nc), o, func(_ context.Context, tr *Trigger) error {
		mu.Lock()
		defer mu.Unlock()
		theirs = append(theirs, tr.Job)
		return nil
	})
	eventually(t, "the rest done by another worker", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(theirs) == jobs-len(mine)
	})
	select {
	case err := <-stopped:
		t.Fatalf("stopped with handlers under way: %v", err)
	default:
	}
	close(end)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	eventually(t, "all acknowledged", settled(t, js, "g", 2))
	mu.Lock()
	defer mu.Unlock()
	for _, job := range mine {
		if slices.Contains(theirs, job) {
			t.Errorf("%s was done twice", job)
		}
	}
}

func TestWorkGrace(t *testing.T) {
	nc, js := startNATS(t)
	makeOutput(t, js, 1).trigger(0, "t", "job", 1, "")
	began := make(chan struct{})
	o := WorkerOptions{Topic: "t", Name: "g", Grace: 10 * time.Millisecond}
	stop := startWorker(t, Connect(nc), o, func(ctx context.Context, _ *Trigger) error {
		close(began)
		<-ctx.Done()
		return ctx.Err()
	})
	<-began
	if err := stop(); err == nil || !strings.Contains(err.Error(), "did not end within 10ms") {
		t.Fatalf("%v; want the grace to be named", err)
	}
}

// What the end of a worker cuts off comes again, at once and also after the last attempt, unless no retry can cure it.
func TestWorkGraceOfLastAttempt(t *testing.T) {
	nc, js := startNATS(t)
	out := makeOutput(t, js, 1)
	out.trigger(0, "t", "slow", 1, "")
	out.trigger(0, "t", "hopeless", 1, "")
	began, told := make(chan struct{}, 2), make(chan string, 2)
	o := WorkerOptions{
		Topic: "t", Name: "g", Grace: time.Millisecond, AckWait: time.Hour, MaxAttempts: 1, // only a nak gives anything back
		RetryDelay: func(int, error) time.Duration { return time.Hour },
		OnError: func(tr *Trigger, err error) {
			if tr != nil {
				told <- fmt.Sprintf("%s %t", tr.Job, errors.Is(err, ErrGivenUp))
			}
		},
	}
	stop := startWorker(t, Connect(nc), o, func(ctx context.Context, tr *Trigger) error {
		began <- struct{}{}
		<-ctx.Done()
		if tr.Job == "hopeless" {
			return Permanent(ctx.Err())
		}
		return ctx.Err()
	})
	<-began
	<-began
	if err := stop(); err == nil {
		t.Error("the worker ended without an error")
	}
	if said := []string{<-told, <-told}; !slices.Contains(said, "slow false") || !slices.Contains(said, "hopeless true") {
		t.Errorf("what was told to be given up: %v", said)
	}
	again := make(chan string, 1)
	startWorker(t, Connect(nc), o, func(_ context.Context, tr *Trigger) error {
		again <- fmt.Sprint(tr.Job, " ", tr.Attempt > 1) // it may have gone into a pull of the first worker in between
		return nil
	})
	if got := natstest.Receive(t, "what was cut off", again); got != "slow true" {
		t.Errorf("%s was delivered again", got)
	}
	eventually(t, "all answered", settled(t, js, "g", 1))
}

// A worker without handlers under way has nothing to cancel, whatever its grace: the pull on its way may take longer.
func TestWorkGraceOfNobody(t *testing.T) {
	nc, js := startNATS(t)
	makeOutput(t, js, 1)
	o := WorkerOptions{Topic: "t", Name: "g", Grace: time.Millisecond}
	stop := startWorker(t, Connect(nc), o, func(context.Context, *Trigger) error { return nil })
	eventually(t, "it pulls", func() bool {
		c, err := js.Consumer(t.Context(), "CARILLON_OUT_0", "g")
		return err == nil && c.CachedInfo().NumWaiting > 0
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// Whatever else stands in the stream, and a consumer that is taken away, stop no worker.
func TestWorkSurvives(t *testing.T) {
	nc, js := startNATS(t)
	out := makeOutput(t, js, 1)
	out.publish(0, &nats.Msg{Subject: "carillon.trigger.0.t", Data: []byte("foreign")})
	out.trigger(0, "t", "first", 1, "")
	var mu sync.Mutex
	seen := make(map[string]bool)
	var told []string
	startWorker(t, Connect(nc), WorkerOptions{
		Topic: "t", Name: "g",
		OnError: func(_ *Trigger, err error) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, err.Error())
		},
	}, func(_ context.Context, tr *Trigger) error {
		mu.Lock()
		defer mu.Unlock()
		seen[tr.Job] = true
		return nil
	})
	has := func(job string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return seen[job]
		}
	}
	eventually(t, "the first trigger", has("first"))
	eventually(t, "all answered", settled(t, js, "g", 1))
	mu.Lock()
	if len(told) != 1 || !strings.Contains(told[0], "no trigger") {
		t.Errorf("told %q", told)
	}
	mu.Unlock()
	if err := js.DeleteConsumer(t.Context(), "CARILLON_OUT_0", "g"); err != nil {
		t.Fatal(err)
	}
	out.trigger(0, "t", "second", 2, "")
	eventually(t, "the second trigger", has("second"))
}

func TestWorkStartNew(t *testing.T) {
	nc, js := startNATS(t)
	out := makeOutput(t, js, 1)
	out.trigger(0, "t", "old", 1, "")
	got := make(chan string, 10)
	o := WorkerOptions{Topic: "t", Name: "g", StartNew: true}
	h := func(_ context.Context, tr *Trigger) error { got <- tr.Job; return nil }
	stop := startWorker(t, Connect(nc), o, h)
	eventually(t, "the consumer made", made(t, js, "g", 1))
	out.trigger(0, "t", "new", 2, "")
	if job := <-got; job != "new" {
		t.Errorf("got %s", job)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	// A worker that comes back goes on where the group was, whatever it asks for.
	out.trigger(0, "t", "meanwhile", 3, "")
	startWorker(t, Connect(nc), o, h)
	if job := <-got; job != "meanwhile" {
		t.Errorf("got %s", job)
	}
}

// A worker does not wait for a connection that is closed.
func TestWorkEndsWithItsConnection(t *testing.T) {
	nc, js := startNATS(t)
	makeOutput(t, js, 2)
	own := dial(t, nc.ConnectedUrl())
	ended := make(chan error, 1)
	go func() {
		ended <- Connect(own).Work(t.Context(), WorkerOptions{Topic: "t", Name: "g"}, func(context.Context, *Trigger) error { return nil })
	}()
	eventually(t, "the consumers made", made(t, js, "g", 2))
	own.Close()
	if err := natstest.Receive(t, "the worker ends without a connection", ended); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("ended with %v", err)
	}
}

// A worker that is stopped while the server is away cannot know that its last acks have arrived.
func TestWorkStoppedWithoutItsServer(t *testing.T) {
	t.Parallel()
	ns := natstest.Start(t, &server.Options{JetStream: true})
	nc := dial(t, ns.ClientURL(), nats.ReconnectWait(time.Hour)) // another test's server may soon listen on the same port
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	makeOutput(t, js, 1)
	stop := startWorker(t, Connect(nc), WorkerOptions{Topic: "t", Name: "g", OnError: func(*Trigger, error) {}}, func(context.Context, *Trigger) error { return nil })
	eventually(t, "the consumer made", made(t, js, "g", 1))
	ns.Shutdown()
	eventually(t, "the connection is down", nc.IsReconnecting)
	if err := stop(); !errors.Is(err, nats.ErrTimeout) || !strings.Contains(err.Error(), "acks") {
		t.Errorf("it ended with %v", err)
	}
}

// What waits for a handler when the connection is closed is not begun: it could not be acknowledged, and others have it.
func TestWorkBeginsNothingWithoutItsConnection(t *testing.T) {
	nc, js := startNATS(t)
	out := makeOutput(t, js, 1)
	for i := range 5 {
		out.trigger(0, "t", fmt.Sprint("j-", i), 1000, "")
	}
	own := dial(t, nc.ConnectedUrl())
	var begun atomic.Int32
	o := WorkerOptions{Topic: "t", Name: "g", Concurrency: 1, AckWait: time.Second, Grace: time.Second, OnError: func(*Trigger, error) {}}
	ended := make(chan error, 1)
	go func() {
		ended <- Connect(own).Work(t.Context(), o, func(ctx context.Context, _ *Trigger) error {
			begun.Add(1)
			<-ctx.Done() // the end of the grace
			return nil
		})
	}()
	eventually(t, "others with the worker", func() bool { return begun.Load() == 1 && consumerInfo(t, js, "g", 0).NumAckPending > 1 })
	own.Close()
	err := natstest.Receive(t, "the worker ends without a connection", ended)
	if n := begun.Load(); !errors.Is(err, nats.ErrConnectionClosed) || n != 1 {
		t.Errorf("%d triggers were begun, and it ended with %v", n, err)
	}
}

// A consumer that is made anew for workers that began with what was new leaves out nothing that came while there was none.
func TestWorkStartNewAgain(t *testing.T) {
	nc, js := startNATS(t)
	out := makeOutput(t, js, 1)
	out.trigger(0, "t", "old", 1, "")
	var mu sync.Mutex
	seen := make(map[string]bool)
	has := func(job string) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return seen[job]
		}
	}
	startWorker(t, Connect(nc), WorkerOptions{Topic: "t", Name: "g", StartNew: true}, func(_ context.Context, tr *Trigger) error {
		mu.Lock()
		defer mu.Unlock()
		seen[tr.Job] = true
		return nil
	})
	eventually(t, "the consumer made", made(t, js, "g", 1))
	out.trigger(0, "t", "first", 2, "")
	eventually(t, "the first trigger", has("first"))
	if err := js.DeleteConsumer(t.Context(), "CARILLON_OUT_0", "g"); err != nil {
		t.Fatal(err)
	}
	out.trigger(0, "t", "second", 3, "")
	eventually(t, "the second trigger", has("second"))
	if has("old")() {
		t.Error("what the stream held before the worker began came, too")
	}
}

// A consumer that is made anew on a stream that is new itself leaves out nothing of it, wherever in the old one its predecessor began, and one
// that began with the stream's last message leaves out nothing that came since.
func TestWorkPreparedConsumerAgain(t *testing.T) {
	nc, js := startNATS(t)
	names := DefaultNames()
	makeOutput(t, js, 2)
	var mu sync.Mutex
	seen := make(map[string]bool)
	for p, begin := range []jetstream.ConsumerConfig{
		{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: 3}, {DeliverPolicy: jetstream.DeliverLastPolicy},
	} {
		begin.Durable, begin.FilterSubject, begin.AckPolicy = "g", names.Trigger(p, "t"), jetstream.AckExplicitPolicy
		if _, err := js.CreateConsumer(t.Context(), names.OutStream(p), begin); err != nil {
			t.Fatal(err)
		}
	}
	w, err := Connect(nc).worker(WorkerOptions{Topic: "t", Name: "g", OnError: func(*Trigger, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	w.do = func(_ context.Context, tr *Trigger) error {
		mu.Lock()
		defer mu.Unlock()
		seen[tr.Job] = true
		return nil
	}
	if _, err := w.makeConsumers(t.Context()); err != nil {
		t.Fatal(err)
	}
	// All of this is before the worker takes anything.
	if err := js.DeleteStream(t.Context(), names.OutStream(0)); err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteConsumer(t.Context(), names.OutStream(1), "g"); err != nil {
		t.Fatal(err)
	}
	out := &output{t: t, js: js, last: make([]uint64, 2)}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: names.OutStream(0), Subjects: []string{names.Trigger(0, ">")}}); err != nil {
		t.Fatal(err)
	}
	for p := range 2 {
		out.trigger(p, "t", fmt.Sprint("first-", p), 1, "")
		out.trigger(p, "t", fmt.Sprint("second-", p), 2, "")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.run(ctx, 2) }()
	eventually(t, "all answered", settled(t, js, "g", 2))
	cancel()
	if err := natstest.Receive(t, "the worker's end", ended); err != nil {
		t.Error(err)
	}
	for _, job := range []string{"first-0", "second-0", "first-1", "second-1"} {
		if !seen[job] {
			t.Errorf("%s was left out; seen: %v", job, seen)
		}
	}
}

func TestWorkRefuses(t *testing.T) {
	nc, js := startNATS(t)
	c := Connect(nc)
	nothing := func(context.Context, *Trigger) error { return nil }
	if err := c.Work(t.Context(), WorkerOptions{Topic: "t", Name: "g"}, nothing); !errors.Is(err, &Error{Code: CodeNotFound}) {
		t.Errorf("without streams: %v", err)
	}
	makeOutput(t, js, 1)
	startWorker(t, c, WorkerOptions{Topic: "t", Name: "g"}, nothing)
	eventually(t, "the consumer made", made(t, js, "g", 1))
	for _, o := range []struct {
		WorkerOptions
		want Error
	}{
		{WorkerOptions{Topic: "u", Name: "g"}, Error{Code: CodeInvalidField, Field: "name"}},
		{WorkerOptions{Name: "g"}, Error{Code: CodeInvalidTopic}},
		{WorkerOptions{Topic: "a b", Name: "g"}, Error{Code: CodeInvalidTopic}},
		{WorkerOptions{Topic: "t"}, Error{Code: CodeInvalidField, Field: "name"}},
		{WorkerOptions{Topic: "t", Name: "a.b"}, Error{Code: CodeInvalidField, Field: "name"}},
		{WorkerOptions{Topic: "t", Name: "a b"}, Error{Code: CodeInvalidField, Field: "name"}},
		{WorkerOptions{Topic: "t", Name: "\u00e4"}, Error{Code: CodeInvalidField, Field: "name"}},
		{WorkerOptions{Topic: "t", Name: "g", Concurrency: -1}, Error{Code: CodeInvalidField, Field: "concurrency"}},
		{WorkerOptions{Topic: "t", Name: "g", Concurrency: math.MaxInt}, Error{Code: CodeInvalidField, Field: "concurrency"}},
		{WorkerOptions{Topic: "t", Name: "g", AckWait: time.Millisecond}, Error{Code: CodeInvalidField, Field: "ack_wait"}},
		{WorkerOptions{Topic: "t", Name: "g", MaxAttempts: -1}, Error{Code: CodeInvalidField, Field: "max_attempts"}},
		{WorkerOptions{Topic: "t", Name: "g", Grace: -1}, Error{Code: CodeInvalidField, Field: "grace"}},
	} {
		if err := c.Work(t.Context(), o.WorkerOptions, nothing); !errors.Is(err, &o.want) {
			t.Errorf("%v; want %v", err, &o.want)
		}
	}
	if err := c.Work(t.Context(), WorkerOptions{Topic: "t", Name: "g"}, nil); !errors.Is(err, &Error{Code: CodeInvalidField, Field: "handler"}) {
		t.Errorf("without a handler: %v", err)
	}
}

// A worker whose consumers were made for more topics than its own ends, and leaves what is of others to them.
func TestWorkPreparedForOthers(t *testing.T) {
	nc, js := startNATS(t)
	out := makeOutput(t, js, 1)
	c := Connect(nc)
	wide := WorkerOptions{Topic: "billing.>", Name: "billing"}
	if n, err := c.MakeConsumers(t.Context(), wide); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	out.trigger(0, "billing.invoices", "invoice", 1_800_000_000_000, "")
	narrow := wide
	narrow.Topic, narrow.Partitions = "billing.renewals", 1
	err := c.Work(t.Context(), narrow, func(_ context.Context, tr *Trigger) error {
		t.Errorf("it was given %s of %s", tr.Job, tr.Topic)
		return nil
	})
	if !errors.Is(err, &Error{Code: CodeInvalidField, Field: "name"}) {
		t.Errorf("it ended with %v", err)
	}
	wide.Partitions = 1
	var got atomic.Pointer[Trigger]
	startWorker(t, c, wide, func(_ context.Context, tr *Trigger) error {
		got.Store(tr)
		return nil
	})
	eventually(t, "the trigger goes to another", func() bool { return got.Load() != nil })
}

// So does one whose consumer was changed to another topic while it ran.
func TestWorkConsumerChanged(t *testing.T) {
	nc, js := startNATS(t)
	out := makeOutput(t, js, 1)
	c := Connect(nc)
	ended := make(chan error, 1)
	go func() {
		ended <- c.Work(t.Context(), WorkerOptions{Topic: "t", Name: "g"}, func(_ context.Context, tr *Trigger) error {
			t.Errorf("it was given %s of %s", tr.Job, tr.Topic)
			return nil
		})
	}()
	eventually(t, "the consumer made", made(t, js, "g", 1))
	changed := consumerInfo(t, js, "g", 0).Config
	changed.FilterSubject = DefaultNames().Trigger(0, "u")
	if _, err := js.UpdateConsumer(t.Context(), DefaultNames().OutStream(0), changed); err != nil {
		t.Fatal(err)
	}
	out.trigger(0, "u", "j", 1000, "")
	if err := natstest.Receive(t, "the worker's end", ended); !errors.Is(err, &Error{Code: CodeInvalidField, Field: "name"}) {
		t.Errorf("it ended with %v", err)
	}
	var got atomic.Bool
	startWorker(t, c, WorkerOptions{Topic: "u", Name: "g"}, func(context.Context, *Trigger) error {
		got.Store(true)
		return nil
	})
	eventually(t, "the trigger goes to another", got.Load)
}

// A worker whose connection was down for longer than it waits for messages is subscribed to its inbox once, as before.
func TestWorkSubscribesOnce(t *testing.T) {
	t.Parallel()
	ns := natstest.Start(t, &server.Options{JetStream: true})
	js, err := jetstream.New(dial(t, ns.ClientURL()))
	if err != nil {
		t.Fatal(err)
	}
	out := makeOutput(t, js, 1)
	nc, err := nats.Connect(ns.ClientURL(), nats.ReconnectWait(3*pullWait), nats.ReconnectJitter(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	var handled atomic.Int32
	startWorker(t, Connect(nc), WorkerOptions{Topic: "t", Name: "g"}, func(context.Context, *Trigger) error {
		handled.Add(1)
		return nil
	})
	subscriptions := func() uint32 {
		id, err := nc.GetClientID()
		if err != nil {
			t.Fatal(err)
		}
		of, err := ns.Connz(&server.ConnzOptions{CID: id})
		if err != nil || len(of.Conns) != 1 {
			t.Fatalf("%d connections, %v", len(of.Conns), err)
		}
		return of.Conns[0].NumSubs
	}
	out.trigger(0, "t", "first", 1000, "")
	eventually(t, "the first trigger handled", func() bool { return handled.Load() == 1 })
	before := subscriptions()
	id, err := nc.GetClientID()
	if err == nil {
		err = ns.DisconnectClientByID(id)
	}
	if err != nil {
		t.Fatal(err)
	}
	out.trigger(0, "t", "second", 2000, "")
	eventually(t, "the second trigger handled", func() bool { return handled.Load() == 2 })
	if after := subscriptions(); after != before {
		t.Errorf("it has %d subscriptions, and had %d", after, before)
	}
}

// Workers of one name that differ in AckWait give signs of life by their own: the consumers have the longest.
func TestWorkConsumers(t *testing.T) {
	nc, js := startNATS(t)
	makeOutput(t, js, 1)
	c := Connect(nc)
	_, err := js.CreateConsumer(t.Context(), DefaultNames().OutStream(0), jetstream.ConsumerConfig{ // as earlier versions made them
		Durable: "old", FilterSubject: DefaultNames().Trigger(0, "t"), AckPolicy: jetstream.AckExplicitPolicy,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct {
		name       string
		wait, want time.Duration
		pulls      int
	}{
		{"new", time.Minute, time.Minute, 10000},
		{"new", time.Second, time.Minute, 10000},
		{"new", time.Hour, time.Hour, 10000},
		{"old", time.Minute, time.Minute, 512},
	} {
		if _, err := c.MakeConsumers(t.Context(), WorkerOptions{Topic: "t", Name: s.name, AckWait: s.wait}); err != nil {
			t.Fatal(err)
		}
		if got := consumerInfo(t, js, s.name, 0).Config; got.AckWait != s.want || got.MaxWaiting != s.pulls {
			t.Errorf("after %s: %s waits for %s, and for %d pulls", s.wait, s.name, got.AckWait, got.MaxWaiting)
		}
	}
}

// The longest AckWait of a name counts for a consumer that is made again, too, whichever worker makes it.
func TestWorkConsumerAgainWaitsAsLong(t *testing.T) {
	nc, js := startNATS(t)
	makeOutput(t, js, 1)
	c := Connect(nc)
	if _, err := c.MakeConsumers(t.Context(), WorkerOptions{Topic: "t", Name: "g", AckWait: time.Minute}); err != nil {
		t.Fatal(err)
	}
	w, err := c.worker(WorkerOptions{Topic: "t", Name: "g", AckWait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"found", "made again"} {
		if err := w.makeConsumer(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if got := consumerInfo(t, js, "g", 0).Config.AckWait; got != time.Minute {
			t.Errorf("%s: the consumer waits for %s", what, got)
		}
		if err := js.DeleteConsumer(t.Context(), DefaultNames().OutStream(0), "g"); err != nil {
			t.Fatal(err)
		}
	}
}

// A server or an account may bound what a consumer has unanswered, and what a pull asks for: so much it is then.
func TestWorkWithinLimits(t *testing.T) {
	t.Parallel()
	ns := natstest.Start(t, &server.Options{JetStream: true, JetStreamLimits: server.JSLimitOpts{MaxAckPending: 3, MaxRequestBatch: 2}})
	nc := dial(t, ns.ClientURL())
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	out := makeOutput(t, js, 1)
	const all = 20
	for i := range all {
		out.trigger(0, "t", fmt.Sprint(i), 1000, "")
	}
	var handled atomic.Int32
	o := WorkerOptions{Topic: "t", Name: "g", Concurrency: 8, OnError: func(_ *Trigger, err error) { t.Error(err) }}
	startWorker(t, Connect(nc), o, func(context.Context, *Trigger) error {
		handled.Add(1)
		return nil
	})
	eventually(t, "all triggers handled", func() bool { return handled.Load() == all })
	if _, err := Connect(nc).MakeConsumers(t.Context(), o); err != nil { // which are there
		t.Error(err)
	}
}

// late finds no consumer, which another worker makes just then.
type late struct {
	jetstream.JetStream
	other func()
}

func (l *late) Consumer(ctx context.Context, stream, name string) (jetstream.Consumer, error) {
	c, err := l.JetStream.Consumer(ctx, stream, name)
	l.other()
	return c, err
}

// A right that is missing is told, where else a worker would only be quiet, or be given the same triggers for ever.
func TestWorkWithoutRights(t *testing.T) {
	t.Parallel()
	to := func(allow ...string) *server.SubjectPermission { return &server.SubjectPermission{Allow: allow} }
	o := &server.Options{JetStream: true, Users: []*server.User{
		{Username: "service"},
		{Username: "pull", Permissions: &server.Permissions{Publish: to("$JS.ACK.>")}},
		{Username: "answers", Permissions: &server.Permissions{Subscribe: to("carillon.>")}},
		{Username: "ack", Permissions: &server.Permissions{Publish: to("$JS.API.CONSUMER.MSG.NEXT.>")}},
		{Username: "INFO.CARILLON_OUT_0", Permissions: &server.Permissions{Publish: to("$JS.API.CONSUMER.>")}},
		{Username: "CONSUMER.INFO", Permissions: &server.Permissions{Publish: to("$JS.API.STREAM.>")}},
		{Username: "CONSUMER.CREATE", Permissions: &server.Permissions{Publish: to("$JS.API.STREAM.>", "$JS.API.CONSUMER.INFO.>")}},
	}}
	url := natstest.Start(t, o).ClientURL()
	as := func(user string) *nats.Conn {
		nc, err := nats.Connect(url, nats.UserInfo(user, ""), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	service := as("service")
	js, err := jetstream.New(service)
	if err != nil {
		t.Fatal(err)
	}
	out := makeOutput(t, js, 1)
	out.trigger(0, "t", "j", 1, "")
	told := map[string]chan error{"pull": make(chan error, 100), "answers": make(chan error, 100), "ack": make(chan error, 100)}
	for user, told := range told {
		o := WorkerOptions{Topic: "t", Name: user, Partitions: 1, OnError: func(_ *Trigger, err error) { told <- err }}
		if _, err := Connect(service).MakeConsumers(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		startWorker(t, Connect(as(user)), o, func(context.Context, *Trigger) error { return nil })
	}
	for _, lacks := range []string{"INFO.CARILLON_OUT_0", "CONSUMER.INFO", "CONSUMER.CREATE"} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		_, err := Connect(as(lacks)).MakeConsumers(ctx, WorkerOptions{Topic: "t", Name: "new"})
		if !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), lacks) || ctx.Err() != nil {
			t.Errorf("without %s: %v", lacks, err)
		}
		cancel()
	}
	for user, told := range told {
		if err := natstest.Receive(t, "the worker is told that it lacks a right: "+user, told); !errors.Is(err, nats.ErrPermissionViolation) {
			t.Errorf("%s: %v", user, err)
		}
	}
}

// So is one for topic queues, where else the wait for an answer would end without a reason.
func TestTopicQueueWithoutRights(t *testing.T) {
	t.Parallel()
	to := func(allow ...string) *server.SubjectPermission { return &server.SubjectPermission{Allow: allow} }
	o := &server.Options{JetStream: true, Users: []*server.User{
		{Username: "service"},
		{Username: "looks", Permissions: &server.Permissions{Publish: to("$JS.API.STREAM.INFO.>")}},
		{Username: "makes", Permissions: &server.Permissions{Publish: to("$JS.API.STREAM.INFO.>", "$JS.API.STREAM.CREATE.>")}},
	}}
	url := natstest.Start(t, o).ClientURL()
	as := func(user string) *Client {
		nc, err := nats.Connect(url, nats.UserInfo(user, ""), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return Connect(nc, WithTimeout(time.Hour))
	}
	service := as("service")
	js, err := service.jetStream()
	if err != nil {
		t.Fatal(err)
	}
	makeOutput(t, js, 1)
	lacks := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), what) {
			t.Errorf("without %s: %v", what, err)
		}
	}
	_, err = as("looks").CreateTopicQueue(t.Context(), "t", TopicQueueOptions{})
	lacks("STREAM.CREATE", err)
	if _, err := service.CreateTopicQueue(t.Context(), "t", TopicQueueOptions{}); err != nil {
		t.Fatal(err)
	}
	lacks("STREAM.DELETE", as("looks").DeleteTopicQueue(t.Context(), "t"))
	_, err = as("looks").TopicQueues(t.Context())
	lacks("STREAM.LIST", err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: DefaultNames().OutStream(1), Subjects: []string{"carillon.trigger.1.>"}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = as("makes").CreateTopicQueue(t.Context(), "t", TopicQueueOptions{}) // which lacks a partition
	lacks("STREAM.UPDATE", err)
}

// A puller is told of a right that its worker lacks by what another one of its pullers asked for, too: the connection keeps its last error
// alone, and that may be the other one's at each look. What others lack on the connection is not its business.
func TestForbidden(t *testing.T) {
	o := &server.Options{Users: []*server.User{{Username: "u", Permissions: &server.Permissions{
		Publish: &server.SubjectPermission{Allow: []string{"none"}}, Subscribe: &server.SubjectPermission{Allow: []string{"none"}},
	}}}}
	nc, err := nats.Connect(natstest.Start(t, o).ClientURL(), nats.UserInfo("u", ""), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	w := &worker{Client: Connect(nc), WorkerOptions: WorkerOptions{Name: "g"}}
	one, other := &puller{worker: w, partition: 0, inbox: nc.NewInbox()}, &puller{worker: w, partition: 1, inbox: nc.NewInbox()}
	for what, c := range map[string]struct {
		do   func() error
		told bool
	}{
		"a pull":      {func() error { _, err := other.ask(); return err }, true},
		"its answers": {func() error { _, err := nc.ChanSubscribe(other.inbox+".*", make(chan *nats.Msg, 1)); return err }, true},
		"an ack":      {func() error { return nc.Publish("$JS.ACK.CARILLON_OUT_1.g.1.1.1.1.0", nil) }, true},
		"another worker's pull": {func() error {
			return nc.Publish("$JS.API.CONSUMER.MSG.NEXT.CARILLON_OUT_1.h", nil)
		}, false},
		"something else": {func() error { return nc.Publish("orders.g", nil) }, false},
	} {
		before := nc.LastError()
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		natstest.Eventually(t, what+" is refused", func() bool { return nc.LastError() != before })
		if err := one.forbidden(); errors.Is(err, nats.ErrPermissionViolation) != c.told {
			t.Errorf("%s: %v", what, err)
		}
		if err := one.forbidden(); err != nil {
			t.Errorf("%s: told once more: %v", what, err)
		}
	}
}

// A subscription that nats-server took away with a right or a limit does not come back with it by itself: the worker makes it again.
func TestWorkRightsTakenForAWhile(t *testing.T) {
	for name, c := range map[string]struct {
		user, account string
		says          error
		on            uint64 // which connection: a limit closes the first
	}{
		"subjects":      {`, permissions: { subscribe: { deny: ["_INBOX.>"] } }`, "", nats.ErrPermissionViolation, 0},
		"subscriptions": {"", "limits { max_subs: 1 },", nats.ErrMaxSubscriptionsExceeded, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := func(user, account string) *server.Options {
				o := natstest.ParseOptions(t, fmt.Sprintf(
					"accounts { A { jetstream: enabled, %s users: [{user: w, password: w %s}, {user: e, password: e}] } }", account, user))
				o.JetStream = true
				return o
			}
			first := options("", "")
			ns := natstest.Start(t, first)
			connect := func(user string, on nats.ErrHandler) (*nats.Conn, jetstream.JetStream) {
				nc, err := nats.Connect(ns.ClientURL(), nats.UserInfo(user, user), nats.ErrorHandler(on), nats.ReconnectWait(10*time.Millisecond))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(nc.Close)
				js, err := jetstream.New(nc)
				if err != nil {
					t.Fatal(err)
				}
				return nc, js
			}
			quiet := func(*nats.Conn, *nats.Subscription, error) {}
			_, js := connect("e", quiet)
			out := makeOutput(t, js, 2)
			taken := make(chan error, 100)
			nc, _ := connect("w", func(_ *nats.Conn, _ *nats.Subscription, err error) {
				select {
				case taken <- err:
				default:
				}
			})
			var handled atomic.Int32
			o := WorkerOptions{Topic: "t", Name: "g", OnError: func(*Trigger, error) {}}
			startWorker(t, Connect(nc), o, func(context.Context, *Trigger) error {
				handled.Add(1)
				return nil
			})
			fire := func(all int32) {
				t.Helper()
				for p := range 2 {
					out.trigger(p, "t", "j", int64(all), "")
				}
				eventually(t, "all triggers are handled", func() bool { return handled.Load() == all })
			}
			fire(2)
			reload := func(user, account string) {
				o, with := first.Clone(), options(user, account)
				o.Accounts, o.Users = with.Accounts, with.Users
				if err := ns.ReloadOptions(o); err != nil {
					t.Fatal(err)
				}
			}
			reload(c.user, c.account)
			for {
				if err := <-taken; !errors.Is(err, c.says) {
					t.Fatal(err)
				}
				if nc.Stats().Reconnects >= c.on {
					break
				}
			}
			reload("", "")
			_, out.js = connect("e", quiet) // the limit was the other's, too
			fire(4)
		})
	}
}

// Of workers of one name that begin together one makes the consumer, and what it takes holds for the others.
func TestWorkConsumersOfTwoAtOnce(t *testing.T) {
	nc, js := startNATS(t)
	makeOutput(t, js, 1)
	c := Connect(nc)
	second := func(o WorkerOptions) error {
		w, err := c.worker(o)
		if err != nil {
			t.Fatal(err)
		}
		first := WorkerOptions{Topic: "t", Name: o.Name, AckWait: time.Minute}
		w.js = &late{w.js, sync.OnceFunc(func() {
			if _, err := c.MakeConsumers(t.Context(), first); err != nil {
				t.Error(err)
			}
		})}
		_, err = w.makeConsumers(t.Context())
		return err
	}
	if err := second(WorkerOptions{Topic: "u", Name: "topics"}); !errors.Is(err, &Error{Code: CodeInvalidField, Field: "name"}) {
		t.Errorf("another topic: %v", err)
	}
	if err := second(WorkerOptions{Topic: "t", Name: "waits", AckWait: time.Second, StartNew: true}); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"topics", "waits"} {
		if got := consumerInfo(t, js, name, 0).Config; got.FilterSubject != DefaultNames().Trigger(0, "t") || got.AckWait != time.Minute {
			t.Errorf("%s: it takes %s and waits for %s", name, got.FilterSubject, got.AckWait)
		}
	}
}

// Triggers that are larger than all before are not taken ahead by as many.
func TestWorkTakesBytesAhead(t *testing.T) {
	nc, js := startNATS(t)
	out := makeOutput(t, js, 1)
	const small, large, size = 3000, 60, 400 << 10
	for i := range small {
		out.trigger(0, "t", "small", int64(i), "")
	}
	for i := range large {
		out.trigger(0, "t", "large", int64(i), strings.Repeat("x", size))
	}
	begun, done := make(chan struct{}, large), make(chan struct{})
	o := WorkerOptions{Topic: "t", Name: "g", Concurrency: 1, OnError: func(_ *Trigger, err error) { t.Error(err) }}
	stop := startWorker(t, Connect(nc), o, func(_ context.Context, tr *Trigger) error {
		if tr.Job == "large" {
			begun <- struct{}{}
			<-done
		}
		return nil
	})
	defer func() {
		close(done)
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	<-begun
	var info *jetstream.ConsumerInfo
	eventually(t, "the pulls end", func() bool {
		info = consumerInfo(t, js, "g", 0)
		return info.NumWaiting == 0
	})
	if has, most := large-int(info.NumPending), 2*pullBytes/size; has > most { // the large ones are at the end
		t.Errorf("the worker has %d of the large triggers, want %d at the most", has, most)
	}
}

// A question about a consumer that has no leader yet is lost: the worker asks again.
func TestWorkAsksAgain(t *testing.T) {
	t.Parallel()
	ns := natstest.Start(t, &server.Options{JetStream: true})
	nc := dial(t, ns.ClientURL())
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	out := makeOutput(t, js, 1)
	out.trigger(0, "t", "j", 1000, "")
	account := ns.GlobalAccount()
	question := "$JS.API.CONSUMER.INFO." + DefaultNames().OutStream(0) + ".g"
	var lost atomic.Int32
	if _, err := nc.Subscribe("lost", func(*nats.Msg) { // and never answered
		lost.Add(1)
		account.RemoveMapping(question)
	}); err != nil {
		t.Fatal(err)
	}
	if err := account.AddMapping(question, "lost"); err != nil {
		t.Fatal(err)
	}
	var handled atomic.Int32
	startWorker(t, Connect(nc), WorkerOptions{Topic: "t", Name: "g"}, func(context.Context, *Trigger) error {
		handled.Add(1)
		return nil
	})
	eventually(t, "the trigger handled", func() bool { return handled.Load() == 1 })
	if lost.Load() != 1 {
		t.Errorf("%d questions were lost; want 1", lost.Load())
	}
}

// slowConsumers is a JetStream that takes so long for each request about the one consumer that it has, or will have.
type slowConsumers struct {
	jetstream.JetStream
	took time.Duration
	made atomic.Pointer[jetstream.ConsumerInfo]
}

func (s *slowConsumers) answer(ctx context.Context, do func()) (jetstream.Consumer, error) {
	time.AfterFunc(s.took/2, do)
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(s.took):
	}
	if s.made.Load() == nil {
		return nil, jetstream.ErrConsumerNotFound
	}
	return slowConsumer{info: s.made.Load()}, nil
}

func (s *slowConsumers) Consumer(ctx context.Context, _, _ string) (jetstream.Consumer, error) {
	return s.answer(ctx, func() {})
}

func (s *slowConsumers) CreateConsumer(ctx context.Context, _ string, cfg jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	return s.answer(ctx, func() { s.made.Store(&jetstream.ConsumerInfo{Config: cfg}) })
}

func (s *slowConsumers) CreateOrUpdateConsumer(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	return s.CreateConsumer(ctx, stream, cfg)
}

type slowConsumer struct {
	jetstream.Consumer
	info *jetstream.ConsumerInfo
}

func (c slowConsumer) CachedInfo() *jetstream.ConsumerInfo { return c.info }

// A worker begins also where the few answers that it needs for that take seconds together, though each comes in time.
func TestWorkWaitsForSlowServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := Connect(&nats.Conn{}).worker(WorkerOptions{Topic: "t", Name: "g"})
		if err != nil {
			t.Fatal(err)
		}
		w.js = &slowConsumers{took: consumerAnswer * 9 / 10}
		if err := w.retryMakeConsumer(t.Context(), 0); err != nil {
			t.Error(err)
		}
	})
}

// heldConsumers is a JetStream that does not answer about the consumer of one stream until it is released.
type heldConsumers struct {
	jetstream.JetStream
	stream          string
	asked, released chan struct{}
}

func (h *heldConsumers) Consumer(_ context.Context, stream, _ string) (jetstream.Consumer, error) {
	if stream == h.stream {
		close(h.asked)
		<-h.released
	}
	return nil, jetstream.ErrConsumerNotFound
}

func (h *heldConsumers) CreateConsumer(_ context.Context, _ string, cfg jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	return slowConsumer{info: &jetstream.ConsumerInfo{Config: cfg}}, nil
}

// While one partition's consumer is waited for, another's is made.
func TestConsumersAreMadeSideBySide(t *testing.T) {
	t.Parallel()
	w, err := Connect(&nats.Conn{}).worker(WorkerOptions{Topic: "t", Name: "g"})
	if err != nil {
		t.Fatal(err)
	}
	js := &heldConsumers{stream: w.names.OutStream(0), asked: make(chan struct{}), released: make(chan struct{})}
	w.js = js
	made := make(chan int, 2)
	ask := func(p int) {
		go func() {
			if err := w.makeConsumer(t.Context(), p); err != nil {
				t.Error(err)
			}
			made <- p
		}()
	}
	ask(0)
	natstest.Receive(t, "a question about the first", js.asked)
	ask(1)
	if p := natstest.Receive(t, "a consumer while the first is waited for", made); p != 1 {
		t.Errorf("the consumer of partition %d is made first", p)
	}
	close(js.released)
	natstest.Receive(t, "the first consumer", made)
}

// Requests of topic queues are waited for as long as all others, and not for JetStream's five seconds.
func TestTopicQueueTimeout(t *testing.T) {
	t.Parallel()
	nc := dial(t, natstest.Start(t, &server.Options{}).ClientURL())
	if _, err := nc.Subscribe("$JS.API.>", func(*nats.Msg) {}); err != nil { // and never answered
		t.Fatal(err)
	}
	c := Connect(nc, WithTimeout(50*time.Millisecond))
	for name, ask := range map[string]func() error{
		"create": func() error { _, err := c.CreateTopicQueue(t.Context(), "t", TopicQueueOptions{}); return err },
		"delete": func() error { return c.DeleteTopicQueue(t.Context(), "t") },
		"list":   func() error { _, err := c.TopicQueues(t.Context()); return err },
	} {
		ended := make(chan error, 1)
		go func() { ended <- ask() }()
		select {
		case err := <-ended:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(4 * time.Second):
			t.Errorf("%s waits for longer than it was told to", name)
		}
	}
}

func TestTopicQueue(t *testing.T) {
	nc, js := startNATS(t)
	out := makeOutput(t, js, 3)
	c := Connect(nc)
	for p := range 3 {
		out.trigger(p, "billing.old", fmt.Sprint("old", p), 1, "")
	}
	queue, err := c.CreateTopicQueue(t.Context(), "billing.*", TopicQueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateTopicQueue(t.Context(), "billing.*", TopicQueueOptions{}); err != nil {
		t.Errorf("made twice: %v", err)
	}
	for p := range 3 {
		out.trigger(p, "billing.new", fmt.Sprint("new", p), 2, "payload")
		out.trigger(p, "billing.two.tokens", "x", 2, "")
		out.trigger(p, "other", "x", 2, "")
	}
	read := func(s jetstream.Stream, n int) (jobs []string) {
		t.Helper()
		consumer, err := s.CreateConsumer(t.Context(), jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy})
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			m, err := consumer.Next(jetstream.FetchMaxWait(20 * time.Second))
			if err != nil {
				t.Fatal(err)
			}
			tr, err := c.Names().ParseTrigger(m.Subject(), m.Headers(), m.Data())
			if err != nil {
				t.Fatal(err)
			}
			if tr.Partition != -1 || tr.Version != 3 || m.Subject() != c.Names().TopicSubject(tr.Topic) {
				t.Errorf("%s: %+v", m.Subject(), tr)
			}
			jobs = append(jobs, tr.Topic+"/"+tr.Job)
		}
		slices.Sort(jobs)
		return jobs
	}
	if got := read(queue, 3); strings.Join(got, " ") != "billing.new/new0 billing.new/new1 billing.new/new2" {
		t.Errorf("got %v", got)
	}
	all, err := c.CreateTopicQueue(t.Context(), ">", TopicQueueOptions{FromStart: true, Storage: jetstream.MemoryStorage, MaxAge: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if got := read(all, 12); got[0] != "billing.new/new0" || got[3] != "billing.old/old0" {
		t.Errorf("got %v", got)
	}

	if _, err := c.CreateTopicQueue(t.Context(), "a.b", TopicQueueOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateTopicQueue(t.Context(), "a_b", TopicQueueOptions{}); !errors.Is(err, &Error{Code: CodeInvalidField, Field: "topic"}) {
		t.Errorf("two topics in one stream: %v", err)
	}
	if err := c.DeleteTopicQueue(t.Context(), "a_b"); !errors.Is(err, &Error{Code: CodeInvalidField, Field: "topic"}) {
		t.Errorf("the stream of another topic is deleted: %v", err)
	}
	if _, err := c.CreateTopicQueue(t.Context(), "a b", TopicQueueOptions{}); !errors.Is(err, &Error{Code: CodeInvalidTopic}) {
		t.Errorf("%v", err)
	}
	for _, topic := range []string{"a.$1", "*.$1", "a.{{partition(3,1)}}.b"} { // NATS would map them to another subject
		if _, err := c.CreateTopicQueue(t.Context(), topic, TopicQueueOptions{}); !errors.Is(err, &Error{Code: CodeInvalidTopic}) {
			t.Errorf("%s: %v", topic, err)
		}
	}
	for _, topic := range []string{"a.$x", "$.{b}"} {
		if _, err := c.CreateTopicQueue(t.Context(), topic, TopicQueueOptions{}); err != nil {
			t.Errorf("%s: %v", topic, err)
		}
		if err := c.DeleteTopicQueue(t.Context(), topic); err != nil {
			t.Errorf("%s: %v", topic, err)
		}
	}
	if _, err := c.CreateTopicQueue(t.Context(), "c", TopicQueueOptions{Replicas: 9}); !errors.Is(err, &Error{Code: CodeInvalidField, Field: "replicas"}) {
		t.Errorf("%v", err)
	}
	infos, err := c.TopicQueues(t.Context())
	if err != nil || len(infos) != 3 {
		t.Errorf("%d queues, %v; want 3", len(infos), err)
	}
	if err := c.DeleteTopicQueue(t.Context(), "billing.*"); err != nil {
		t.Error(err)
	}
	if err := c.DeleteTopicQueue(t.Context(), "billing.*"); !errors.Is(err, &Error{Code: CodeNotFound}) {
		t.Errorf("deleted twice: %v", err)
	}
}

// holds waits until a topic queue has had as many triggers.
func holds(t *testing.T, queue jetstream.Stream, triggers uint64) {
	t.Helper()
	eventually(t, fmt.Sprintf("the queue has had %d triggers", triggers), func() bool {
		info, err := queue.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return info.State.LastSeq >= triggers
	})
}

// mends makes a topic queue that is there already, and says what of it has changed.
func mends(t *testing.T, c *Client, topic string) (change TopicQueueChange) {
	t.Helper()
	if _, err := c.CreateTopicQueue(t.Context(), topic, TopicQueueOptions{Changed: func(c TopicQueueChange) { change = c }}); err != nil {
		t.Fatal(err)
	}
	if topics, err := c.OutdatedTopicQueues(t.Context()); err != nil || len(topics) > 0 {
		t.Errorf("once it is mended, those of %q are outdated, %v", topics, err)
	}
	return change
}

// A queue takes in partitions that it lacked, with what they have already. That is so although it has dropped its first trigger, and its
// last one is younger. With fewer partitions nothing changes.
func TestTopicQueueGrows(t *testing.T) {
	nc, js := startNATS(t)
	out := makeOutput(t, js, 2)
	c := Connect(nc)
	queue, err := c.CreateTopicQueue(t.Context(), "a.*", TopicQueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateTopicQueue(t.Context(), "a.*.b", TopicQueueOptions{Replicas: 1}); err != nil {
		t.Fatal(err)
	}
	makeOutput(t, js, 4)
	out.last = append(out.last, 0, 0)
	for p := range 4 {
		out.trigger(3-p, "a.b", "x", 1, "")
		out.trigger(3-p, "other", "x", 1, "")
	}
	holds(t, queue, 2)
	if err := queue.Purge(t.Context(), jetstream.WithPurgeKeep(1)); err != nil {
		t.Fatal(err)
	}
	if topics, err := c.OutdatedTopicQueues(t.Context()); err != nil || len(topics) != 2 || !slices.Contains(topics, "a.*") || !slices.Contains(topics, "a.*.b") {
		t.Errorf("those of %q are outdated, %v", topics, err)
	}
	if err := c.DeleteTopicQueue(t.Context(), "a.*.b"); err != nil {
		t.Fatal(err)
	}
	if change := mends(t, c, "a.*"); !slices.Equal(change.Added, []int{2, 3}) || len(change.Anew) > 0 {
		t.Errorf("%+v", change)
	}
	holds(t, queue, 4)
	if change := mends(t, c, "a.*"); !change.empty() {
		t.Errorf("once more: %+v", change)
	}
	if err := js.DeleteStream(t.Context(), DefaultNames().OutStream(3)); err != nil {
		t.Fatal(err)
	}
	if change := mends(t, c, "a.*"); !change.empty() {
		t.Errorf("with fewer partitions: %+v", change)
	}
}

// A queue that was made without the triggers from before it begins with the first trigger of streams that were made anew since.
// nats-server would leave out as many as the old streams had.
func TestTopicQueueOfStreamsMadeAnew(t *testing.T) {
	nc, js := startNATS(t)
	const before, after = 10, 4
	out := makeOutput(t, js, 2)
	c := Connect(nc)
	for i := range before {
		for p := range 2 {
			out.trigger(p, "a", fmt.Sprint(i), 1, "")
		}
	}
	queue, err := c.CreateTopicQueue(t.Context(), ">", TopicQueueOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out.trigger(1, "a", "last", 1, "") // of partition 0 the queue has had none
	holds(t, queue, 1)
	for p := range 2 {
		if err := js.DeleteStream(t.Context(), DefaultNames().OutStream(p)); err != nil {
			t.Fatal(err)
		}
	}
	out = makeOutput(t, js, 2)
	for i := range after {
		for p := range 2 {
			out.trigger(p, "a", fmt.Sprint("new", i), 1, "")
		}
	}
	eventually(t, "the queue reads the new streams", func() bool { // where it reads them already, another start alone would not do
		info, err := queue.Info(t.Context())
		return err == nil && !slices.ContainsFunc(info.Sources, func(s *jetstream.StreamSourceInfo) bool {
			return s.Active > 2*time.Second || s.Seq > 0 || s.Error != nil
		})
	})
	if change := mends(t, c, ">"); len(change.Added) > 0 || !slices.Equal(change.Anew, []int{0, 1}) {
		t.Errorf("%+v", change)
	}
	holds(t, queue, 1+2*after)
	if change := mends(t, c, ">"); !change.empty() {
		t.Errorf("once more: %+v", change)
	}
}

func TestPermanent(t *testing.T) {
	if err := Permanent(nil); err != nil {
		t.Errorf("no error has become %T", err)
	}
	if err := Permanent(io.EOF); !errors.Is(err, io.EOF) || err.Error() != "EOF" {
		t.Errorf("%v", err)
	}
}

func TestWatch(t *testing.T) {
	nc, js := startNATS(t)
	out := makeOutput(t, js, 2)
	c := Connect(nc)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	triggers, err := c.Watch(ctx, "t.>")
	if err != nil {
		t.Fatal(err)
	}
	events, err := c.WatchEvents(ctx)
	if err != nil {
		t.Fatal(err)
	}
	out.trigger(0, "other", "x", 1, "")
	out.publish(1, &nats.Msg{Subject: "carillon.trigger.1.t.a", Data: []byte("foreign")})
	out.trigger(1, "t.a", "mine", 1, "body")
	event := Event{Kind: EventCompleted, Job: "mine", Version: 3, Time: time.UnixMilli(5).UTC()}
	out.publish(1, &nats.Msg{Subject: c.Names().Event(1, event.Kind, event.Job), Data: event.AppendJSON(nil)})
	for tr, err := range triggers {
		if err != nil || tr.Job != "mine" || string(tr.Payload) != "body" || tr.Received.IsZero() {
			t.Errorf("%+v, %v", tr, err)
		}
		break
	}
	for _, err := range triggers {
		if !errors.Is(err, nats.ErrBadSubscription) {
			t.Errorf("walked again: %v", err)
		}
	}
	for e, err := range events {
		if err != nil || e != event {
			t.Errorf("%+v, %v", e, err)
		}
		cancel() // the loop ends by itself
	}
	if _, err := c.Watch(ctx, "a..b"); !errors.Is(err, &Error{Code: CodeInvalidTopic}) {
		t.Errorf("%v", err)
	}
}

// A connection that breaks while a watch begins, and comes back, is not closed.
func TestWatchBeginsWhileTheConnectionBreaks(t *testing.T) {
	l, nc := startLink(t)
	l.mu.Lock()
	l.breakAt = "PING"
	l.mu.Unlock()
	if _, err := Connect(nc).Watch(t.Context(), "t"); err != nil {
		t.Error(err)
	}
	if nc.Stats().Reconnects == 0 {
		t.Error("the connection did not break")
	}
}

// A connection that is closed ends a watch, in whichever way.
func TestWatchTellsOfTheEnd(t *testing.T) {
	nc, _ := startNATS(t)
	for name, end := range map[string]func(*nats.Conn){
		"close": (*nats.Conn).Close,
		"drain": func(nc *nats.Conn) {
			if err := nc.Drain(); err != nil {
				t.Error(err)
			}
		},
	} {
		own := dial(t, nc.ConnectedUrl())
		triggers, err := Connect(own).Watch(t.Context(), "t")
		if err != nil {
			t.Fatal(err)
		}
		end(own)
		for _, err := range triggers {
			if !errors.Is(err, nats.ErrConnectionClosed) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// A watch whose subscription was taken away with its right would be quiet for ever: the subscription does not come back with the right.
func TestWatchTellsOfLostRight(t *testing.T) {
	t.Parallel()
	options := func(rights string) *server.Options {
		o := natstest.ParseOptions(t, "accounts { A { users: [{user: w, password: w "+rights+"}] } }")
		o.JetStream = true
		return o
	}
	first := options("")
	ns := natstest.Start(t, first)
	nc, err := nats.Connect(ns.ClientURL(), nats.UserInfo("w", "w"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	triggers, err := Connect(nc).Watch(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		for _, err := range triggers {
			ended <- err
		}
	}()
	for _, rights := range []string{`, permissions: { subscribe: { deny: ["carillon.trigger.>"] } }`, ""} {
		o, with := first.Clone(), options(rights)
		o.Accounts, o.Users = with.Accounts, with.Users
		if err := ns.ReloadOptions(o); err != nil {
			t.Fatal(err)
		}
	}
	if err := natstest.Receive(t, "the end of the watch", ended); !errors.Is(err, nats.ErrPermissionViolation) {
		t.Errorf("it ended with %v", err)
	}
}

// A message that was lost ends a watch, also where a smaller one behind it found room.
func TestWatchTellsOfLoss(t *testing.T) {
	nc, js := startNATS(t)
	out := makeOutput(t, js, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	own := dial(t, nc.ConnectedUrl())
	triggers, err := Connect(own).Watch(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("x", 512<<10)
	for i := range watchBuffer/len(large) + 1 {
		out.trigger(0, "t", fmt.Sprint("large-", i), 1, large)
	}
	out.trigger(0, "t", "small", 1, "")
	if err := own.Flush(); err != nil { // what was published before is there
		t.Fatal(err)
	}
	for tr, err := range triggers {
		if errors.Is(err, nats.ErrSlowConsumer) {
			return
		}
		if err != nil || tr.Job == "small" {
			t.Fatalf("%s came, %v, and a loss before it was not told", tr.Job, err)
		}
	}
}

func TestSplitReply(t *testing.T) {
	for _, reply := range []string{
		"$JS.ACK.S.C.3.44.55.1800000000250000001.7",
		"$JS.ACK._.hash.S.C.3.44.55.1800000000250000001.7",
		"$JS.ACK.hub.hash.S.C.3.44.55.1800000000250000001.7.token",
		"$JS.ACK.S.C.3.44.55.1800000000250000001", "$JS.ACK.hash.S.C.3.44.55.1800000000250000001.7", "$JS.API.S.C.3.44.55.1800000000250000001.7", "",
	} {
		m := nats.Msg{Reply: reply, Sub: &nats.Subscription{}}
		want, err := m.Metadata()
		delivered, stored, ok := splitReply(reply)
		if ok != (err == nil) {
			t.Errorf("%s: %v; the library says %v", reply, ok, err)
		}
		if ok && (delivered != int(want.NumDelivered) || !stored.Equal(want.Timestamp)) {
			t.Errorf("%s: %d, %s; the library says %+v", reply, delivered, stored, want)
		}
	}
	for _, reply := range []string{"$JS.ACK.S.C.x.44.55.1800000000250000001.7", "$JS.ACK.S.C.3.44.55.x.7"} {
		if _, _, ok := splitReply(reply); ok {
			t.Errorf("%s was read", reply)
		}
	}
}

// What a worker takes ahead grows while it is fast, shrinks when it is slow, and is bounded by bytes.
func TestPullSize(t *testing.T) {
	s := pullSize{least: 8}
	for _, want := range []int{8, 16, 32, 64, 128, 256, 512, 1024, 1024} {
		if got := s.next(); got != want {
			t.Fatalf("a fast worker asks for %d, want %d", got, want)
		}
		s.took(s.now, 200, pullShort/2)
	}
	s.took(100, 200, pullShort/2) // fewer than asked for
	if got := s.next(); got != 1024 {
		t.Errorf("after a pull that was not full: %d, want 1024", got)
	}
	for _, want := range []int{512, 256, 128, 64, 32, 16, 8, 8} {
		s.took(s.now, 200, pullLong+1)
		if got := s.next(); got != want {
			t.Fatalf("a slow worker asks for %d, want %d", got, want)
		}
	}
	s.now = 1024
	s.took(1024, pullBytes/100, pullShort)
	if got := s.next(); got != 100 {
		t.Errorf("with large messages: %d, want 100", got)
	}
	s.took(100, 2*pullBytes, pullShort)
	if got := s.next(); got != 8 {
		t.Errorf("with huge messages: %d, want 8", got)
	}
}

// A service that was restored may have more partitions than the worker found when it began.
func TestWorkGrows(t *testing.T) {
	_, js := startNATS(t)
	makeOutput(t, js, 1).trigger(0, "a", "before", 1, "")
	ctx, cancel := context.WithCancel(t.Context())
	var did sync.Map
	ended := make(chan error, 1)
	go func() {
		ended <- Connect(js.Conn()).Work(ctx, WorkerOptions{Topic: "a", Name: "w", StartNew: true}, func(_ context.Context, tr *Trigger) error {
			did.Store(tr.Job, true)
			return nil
		})
	}()
	eventually(t, "the worker began", func() bool {
		_, err := js.Consumer(t.Context(), DefaultNames().OutStream(0), "w")
		return err == nil
	})
	if err := js.DeleteStream(t.Context(), DefaultNames().OutStream(0)); err != nil {
		t.Fatal(err)
	}
	out := makeOutput(t, js, 3)
	for p := range 3 {
		out.trigger(p, "a", fmt.Sprint("job-", p), 1, "")
	}
	for p := 1; p < 3; p++ {
		eventually(t, "the new partitions are worked on", func() bool { _, ok := did.Load(fmt.Sprint("job-", p)); return ok })
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// What comes to a worker that is stopping goes to the next one, and not to its own open pulls again and again: deliveries
// that no handler began count as attempts.
func TestWorkGivesBackOnce(t *testing.T) {
	nc, js := startNATS(t)
	out := makeOutput(t, js, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	work := func(ctx context.Context, do Handler) {
		ended <- Connect(nc).Work(ctx, WorkerOptions{Topic: "a", Name: "w"}, do)
	}
	began := make(chan bool, 1)
	go work(ctx, func(context.Context, *Trigger) error { began <- true; return nil })
	out.trigger(0, "a", "first", 1, "")
	<-began
	eventually(t, "both pulls are open", func() bool { return consumerInfo(t, js, "w", 0).NumWaiting == 2 })
	cancel()
	out.trigger(0, "a", "second", 2, "")
	if err := <-ended; err != nil {
		t.Fatal(err)
	}

	ctx, cancel = context.WithCancel(t.Context())
	attempt := make(chan int, 1)
	go work(ctx, func(_ context.Context, tr *Trigger) error { attempt <- tr.Attempt; return nil })
	if n := <-attempt; n > 3 { // one of each pull, and this one
		t.Errorf("the trigger was delivered %d times before", n-1)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}
