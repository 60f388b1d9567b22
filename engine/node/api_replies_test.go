package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// answers are replies that run, and the outcomes that they have passed on.
type answers struct {
	*replies
	stop context.CancelFunc
	told chan reply
}

func newAnswers(t *testing.T) *answers {
	ctx, stop := context.WithCancel(t.Context())
	a := &answers{replies: new(replies), stop: stop, told: make(chan reply, 2*maxCalls)}
	a.init()
	var work sync.WaitGroup
	work.Go(func() { a.run(ctx) })
	t.Cleanup(func() { stop(); work.Wait() })
	return a
}

func (a *answers) done(r reply) { a.told <- r }

// The outcomes of all commands that can be in progress may come before the acks that tell their sequences.
func TestRepliesBeforeTheirAcks(t *testing.T) {
	a := newAnswers(t)
	a.open.Add(maxCalls)
	for seq := range uint64(maxCalls) {
		a.applied(seq+1, &reply{job: carillon.JobReply{Version: seq + 1}})
	}
	for seq := range uint64(maxCalls) {
		a.await(seq+1, a.done)
	}
	seen := make(map[uint64]bool)
	for range maxCalls {
		r := <-a.told
		if r.err != nil || seen[r.job.Version] {
			t.Fatalf("version %d, %v", r.job.Version, r.err)
		}
		seen[r.job.Version] = true
	}
}

// Once no command is under way, the outcomes that are kept, such as those of a burst of imports, are released.
func TestEarlyOutcomesAreDropped(t *testing.T) {
	a := newAnswers(t)
	kept := func() (bytes int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		for i := range a.unclaimed {
			for _, e := range a.unclaimed[i].ring {
				if e.r != nil {
					bytes += len(e.r.jobs) * outcomeBytes
				}
			}
		}
		return bytes
	}
	a.open.Add(1)
	const others = 4000
	for seq := range uint64(others) {
		a.applied(seq+2, &reply{jobs: make([]engine.Outcome, 256)})
	}
	if bytes := kept(); bytes > 2*unclaimedMost || bytes < others/2*256*outcomeBytes {
		t.Errorf("%d bytes of outcomes are kept, of %d", bytes, others*256*outcomeBytes)
	}
	a.applied(1, &reply{})
	a.await(1, a.done)
	<-a.told
	natstest.Eventually(t, "no outcome is kept once no command is under way", func() bool { return kept() == 0 })
}

// Outcomes for which no request waits here, such as those of raw commands, do not fill the memory while a request waits for another one.
func TestRepliesNobodyWaitsFor(t *testing.T) {
	a := newAnswers(t)
	a.open.Add(2000) // somebody waits all the while
	const payload = 200 << 10
	for seq := range uint64(2000) {
		a.applied(seq+1, &reply{job: carillon.JobReply{Spec: carillon.Job{Payload: make([]byte, payload)}}})
	}
	kept := 0
	for i := range a.unclaimed {
		for _, e := range a.unclaimed[i].ring {
			if e.r != nil {
				kept += len(e.r.job.Spec.Payload)
			}
		}
	}
	if kept > 2*(unclaimedMost+payload) {
		t.Errorf("%d MiB are kept", kept>>20)
	}
	for seq := uint64(2000 - unclaimedMost/payload/2); seq < 2000; seq++ {
		a.await(seq+1, a.done)
		if r := <-a.told; r.err != nil || len(r.job.Spec.Payload) != payload {
			t.Fatalf("%+v", r)
		}
	}
}

// A job without a payload may be large, too.
func TestRepliesWithHeadersNobodyWaitsFor(t *testing.T) {
	a := newAnswers(t)
	const outcomes = 20_000
	a.open.Add(outcomes)
	spec := carillon.Job{Headers: map[string]string{}, Labels: map[string]string{}}
	for i := range carillon.MaxHeaders {
		spec.Headers[fmt.Sprint(i)] = strings.Repeat("h", 500)
		spec.Labels[fmt.Sprint(i)] = strings.Repeat("l", carillon.MaxLabelLength)
	}
	_, each := engine.SpecBytes(&spec)
	for seq := range uint64(outcomes) {
		a.applied(seq+1, &reply{job: carillon.JobReply{Spec: spec}})
	}
	kept := 0
	for i := range a.unclaimed {
		for _, e := range a.unclaimed[i].ring {
			if e.r != nil {
				kept += each
			}
		}
	}
	if each < carillon.MaxHeaders*(500+carillon.MaxLabelLength) || kept > 2*(unclaimedMost+each) || kept < unclaimedMost {
		t.Errorf("%d MiB are kept, %d bytes each", kept>>20, each)
	}
	a.await(outcomes, a.done)
	if r := <-a.told; len(r.job.Spec.Headers) != carillon.MaxHeaders {
		t.Errorf("%+v", r)
	}
	natstest.Eventually(t, "nothing counts as waiting", func() bool { return a.queuedBytes.Load() == 0 })
}

func TestRepliesAfterTheirAcks(t *testing.T) {
	a := newAnswers(t)
	a.await(7, a.done)
	a.applied(7, &reply{changed: true})
	if r := <-a.told; !r.changed || r.err != nil {
		t.Errorf("%+v", r)
	}
	a.applied(7, &reply{}) // it was passed on already
	a.await(8, a.done)
	a.applied(8, &reply{changed: true})
	if r := <-a.told; !r.changed {
		t.Errorf("%+v", r)
	}
}

// A request whose outcome does not come gets an error: after a time, and when the engine stops.
func TestRepliesInVain(t *testing.T) {
	inVain := func(r reply, why string) {
		t.Helper()
		if !errors.Is(r.err, &carillon.Error{Code: carillon.CodeUnavailable}) || !strings.Contains(r.err.Message, why) {
			t.Errorf("%v, want %s", r.err, why)
		}
	}
	a := newAnswers(t)
	a.await(1, a.done)
	a.mu.Lock()
	a.deadlines[0].at = time.Now()
	a.mu.Unlock()
	inVain(<-a.told, "in time")
	a.mu.Lock()
	left := len(a.deadlines)
	a.mu.Unlock()
	if left > 0 {
		t.Errorf("%d deadlines are left", left)
	}
	a.await(2, a.done)
	a.stop()
	inVain(<-a.told, "stops")
	a.await(3, a.done)
	inVain(<-a.told, "stops")
	a.failed(a.done, notTaken(errors.New("lost")))
	inVain(<-a.told, "lost")
}

// Each request is given up when it has waited for replyTimeout, or a little longer, whichever were given up before it. One that was answered
// is not, nor does it hold up others. None counts as in progress after that, nor after the engine's end.
func TestRepliesAreGivenUpInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnswers(t)
		for round := range uint64(3) {
			began := time.Now()
			for i := range uint64(3) {
				a.open.Add(1)
				a.await(10*round+i+1, a.done)
				time.Sleep(replyTimeout / 10)
			}
			a.applied(10*round+1, &reply{changed: true})
			if r := <-a.told; !r.changed || r.err != nil {
				t.Errorf("round %d: %+v", round, r)
			}
			for i := 1; i < 3; i++ {
				r := <-a.told
				late := time.Since(began) - time.Duration(i)*replyTimeout/10 - replyTimeout
				if r.err == nil || late < 0 || late > replyTimeout/10 {
					t.Errorf("round %d: request %d is told of %v, %s after its time", round, i, r.err, late)
				}
			}
			a.mu.Lock()
			if len(a.waiting) > 0 || len(a.deadlines) > 0 {
				t.Errorf("round %d: %d wait, %d have a deadline", round, len(a.waiting), len(a.deadlines))
			}
			a.mu.Unlock()
		}
		a.stop()
		synctest.Wait()
		a.open.Add(1)
		a.await(100, a.done)
		<-a.told
		synctest.Wait()
		if open := a.open.Load(); open != 0 || len(a.told) > 0 {
			t.Errorf("%d are in progress, %d were told more than once", open, len(a.told))
		}
	})
}

// A command that waits for room in the log goes there once there is some. One that the log refuses, or the library, as on a closed connection,
// has its outcome at once.
func TestCommandsOnTheirWay(t *testing.T) {
	nc, s := openStreams(t)
	n := &Node{o: Options{Prefix: "carillon"}, nc: nc, streams: s}
	n.replies.init()
	var work sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	work.Go(func() { n.replies.run(ctx) })
	told := make(chan reply, 1)
	submit := func() { n.submit(carillon.VerbDelete, "j", "", nil, func(r reply) { told <- r }) }

	n.logUsage.update(streams.Info{Bytes: 100, MaxBytes: 100}, 0)
	submit()
	n.logUsage.update(streams.Info{MaxBytes: 100}, 0)
	var last uint64
	natstest.Eventually(t, "it is in the log", func() bool {
		info, err := s.Log.Info(t.Context())
		last = info.Last
		return err == nil && last > 0
	})
	n.replies.applied(last, &reply{changed: true})
	if r := natstest.Receive(t, "its outcome", told); r.err != nil || !r.changed {
		t.Errorf("%+v", r)
	}

	unknown := &carillon.Error{Code: carillon.CodeUnavailable}
	for what, spoil := range []func(){
		func() { n.o.Prefix = "other" }, // of which there is no stream
		nc.Close,
	} {
		spoil()
		for _, open := range []int64{0, fewInProgress} {
			n.replies.open.Add(open)
			submit()
			if r := natstest.Receive(t, "its outcome", told); !errors.Is(r.err, unknown) {
				t.Errorf("spoilt %d, %d in progress: %+v", what, open, r)
			}
			n.replies.open.Add(-open)
		}
	}
	if r := notTaken(streams.ErrNoSpace); r.err.Code != carillon.CodeLimitExceeded {
		t.Errorf("the log is full: %v", r.err) // nothing was done
	}
	stop()
	work.Wait()
}

// A command is not written past what the library has yet to write: it would come into the log before commands that were sent before it.
func TestNothingIsOvertaken(t *testing.T) {
	ns := natstest.Start(t, &server.Options{})
	nc, err := nats.Connect(ns.ClientURL(), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	n := &Node{nc: nc}
	natstest.Eventually(t, "all is written", n.nothingBuffered)
	ns.Shutdown()
	natstest.Eventually(t, "the library keeps what it is given", func() bool { return nc.Status() == nats.RECONNECTING })
	if err := nc.Publish("before", nil); err != nil {
		t.Fatal(err)
	}
	if n.nothingBuffered() {
		t.Error("the next one would be written first")
	}
}

// A request that waits for room in the log does not wait any more once the engine stops.
func TestWaitForRoomEndsWithTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{}
		n.replies.init()
		n.logUsage.update(streams.Info{Bytes: 100, MaxBytes: 100}, 0)
		ctx, stop := context.WithCancel(t.Context())
		var work sync.WaitGroup
		work.Go(func() { n.replies.run(ctx) })
		told := make(chan reply, 1)
		n.submit(carillon.VerbDelete, "j", "", nil, func(r reply) { told <- r })
		synctest.Wait()
		stopped := time.Now()
		stop()
		r := <-told
		if waited := time.Since(stopped); waited > 0 || !errors.Is(r.err, &carillon.Error{Code: carillon.CodeUnavailable}) {
			t.Errorf("it waits for %s more, and is told: %v", waited, r.err)
		}
		work.Wait()
	})
}

// The more commands are under way, the longer a commit waits for them: not at all for a few, and never for long.
func TestGather(t *testing.T) {
	for open, want := range map[int64]time.Duration{
		0: 0, 1: 0, 16: 0, 25: 100 * time.Microsecond, 100: 400 * time.Microsecond, 500: 2 * time.Millisecond, maxCalls: 2 * time.Millisecond,
	} {
		r := new(replies)
		r.open.Store(open)
		if got := r.gather(); got != want {
			t.Errorf("with %d commands under way a commit waits %s, want %s", open, got, want)
		}
	}
}

// BenchmarkReply measures the way of a put's outcome back to its request, up to the bytes of the answer.
func BenchmarkReply(b *testing.B) {
	r := new(replies)
	r.init()
	job := carillon.JobReply{ID: "job-1", Version: 1, Status: carillon.StatusScheduled, Next: time.UnixMilli(1_796_115_600_250)}
	job.Spec.Schedule, job.Spec.Payload = "@at 2026-12-01T09:00:00.250Z", make([]byte, 200)
	for i := range job.Spec.Payload {
		job.Spec.Payload[i] = '1'
	}
	var size int
	b.ReportAllocs()
	for seq := uint64(1); b.Loop(); seq++ {
		r.await(seq, func(r reply) { size += len(r.job.AppendJSON(make([]byte, 0, answerBytes+len(r.job.Spec.Payload)))) })
		r.applied(seq, &reply{job: job})
		r.queue[0].done(*r.queue[0].r)
		r.queue, r.deadlines = r.queue[:0], r.deadlines[:0]
	}
}
