package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/internal/natstest"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
	"github.com/carillon-scheduler/carillon/wal"
)

// If a node stops before it has caught up with the log, the reads that wait for that fail at once, and so do later ones: another node
// has the answer.
func TestReadsEndWithTheNode(t *testing.T) {
	_, s := openStreams(t)
	if _, err := s.Log.Publish(t.Context(), "carillon.log.0.tick", nil, nil); err != nil {
		t.Fatal(err)
	}
	n := &Node{streams: s}
	n.clock.begin(true)
	wanted := &carillon.Error{Code: carillon.CodeUnavailable}
	answer := make(chan error, 1)
	go func() { answer <- n.readBarrier() }()
	natstest.Eventually(t, "the read waits", func() bool {
		n.waiters.mu.Lock()
		defer n.waiters.mu.Unlock()
		return len(n.waiters.waiting) > 0
	})
	n.waiters.close()
	if err := <-answer; !errors.Is(err, wanted) || !strings.Contains(err.Error(), errStops.Error()) {
		t.Errorf("who waits is told: %v", err)
	}
	if err := n.readBarrier(); !errors.Is(err, wanted) || !strings.Contains(err.Error(), errStops.Error()) {
		t.Errorf("who comes later is told: %v", err)
	}
	n.applied.Store(1)
	if err := n.readBarrier(); err != nil {
		t.Errorf("what the node knows it does not say: %v", err)
	}
}

// Whatever reads jobs does so once the node has all changes that another one may have answered for.
func TestReadsWaitForTheLog(t *testing.T) {
	_, s := openStreams(t)
	if _, err := s.Log.Publish(t.Context(), "carillon.log.0.tick", nil, nil); err != nil {
		t.Fatal(err)
	}
	p := &partition{machine: engine.New(engine.Layout{Prefix: "carillon", Partitions: 1}, 0)}
	p.follows.Store(true)
	n := &Node{streams: s, partitions: []*partition{p}, requests: requests{lists: make(chan struct{}, 1)}}
	n.clock.begin(true)
	n.waiters.close()
	of := func(body string) *call {
		return &call{Request: reads{lines{body: body}}, node: n, job: "j"}
	}
	for what, read := range map[string]func() error{
		"get":       func() error { return n.apiGet(of("")) },
		"list":      func() error { return n.apiList(of("{}")) },
		"page":      func() error { return n.apiPage(of("{}")) },
		"selection": func() error { return n.apiSelection(of(`{"prefix":"j"}`), carillon.VerbPause) },
	} {
		if err := read(); !errors.Is(err, &carillon.Error{Code: carillon.CodeUnavailable}) || !strings.Contains(err.Error(), errStops.Error()) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// reads is a request about partition 0.
type reads struct{ lines }

func (reads) Headers() micro.Headers { return micro.Headers{headerPartitions: {"0"}} }

// Who gives up waiting for the log is forgotten: while nothing is applied, the list would grow with each request.
func TestGivenUpWaitIsForgotten(t *testing.T) {
	n := &Node{}
	n.waiters.waiting = []waiter{{seq: 2}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.awaitApplied(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if w := n.waiters.waiting; len(w) != 1 || w[0].seq != 2 {
		t.Errorf("%d wait", len(w))
	}
}

// A node that stops waits until all requests have their answers, but not for ever.
func TestLastAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{}
		n.requests.calls.Store(1)
		gone := make(chan struct{})
		go func() { n.lastAnswers(); close(gone) }()
		select {
		case <-gone:
			t.Error("it goes while somebody waits for an answer")
		case <-time.After(leaveTimeout / 2):
		}
		answered := time.Now()
		n.requests.calls.Store(0)
		if <-gone; time.Since(answered) >= leaveTimeout/2 {
			t.Error("it stays when all have their answers")
		}
		n.requests.calls.Store(1)
		asked := time.Now()
		if n.lastAnswers(); time.Since(asked) != leaveTimeout {
			t.Errorf("it waits for %s", time.Since(asked))
		}
	})
}

// A node that stops taking requests while their connection is broken gets no share of them when it is back: it waits for it a moment, and
// closes it if it comes back only later.
func TestStopWhileRequestsReconnect(t *testing.T) {
	ns := natstest.Start(t, &server.Options{})
	for _, soon := range []bool{true, false} {
		t.Run(fmt.Sprintf("it is back soon: %t", soon), func(t *testing.T) {
			var closed closedTo
			closed.to.Store("")
			connect := func(o ...nats.Option) *nats.Conn {
				nc, err := nats.Connect(ns.ClientURL(), append(o, nats.MaxReconnects(-1), nats.ReconnectWait(time.Millisecond))...)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(nc.Close)
				return nc
			}
			n, client := &Node{requestConn: connect(nats.SetCustomDialer(&closed))}, connect()
			n.replies.init()
			api, err := micro.AddService(n.requestConn, micro.Config{Name: "carillon", Version: "1.0.0"})
			if err == nil {
				err = api.AddEndpoint("get", micro.HandlerFunc(func(micro.Request) {}))
			}
			if err != nil {
				t.Fatal(err)
			}
			n.api.Store(&api)
			broken := n.requestConn.StatusChanged(nats.RECONNECTING)
			if !soon {
				closed.to.Store(strings.TrimPrefix(ns.ClientURL(), "nats://"))
			}
			if err := n.requestConn.ForceReconnect(); err != nil {
				t.Fatal(err)
			}
			<-broken
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if !soon {
				cancel() // the node's patience is over
			}
			n.finishCommands(ctx)
			closed.to.Store("")
			if n.requests.lingering == soon {
				t.Errorf("the server may still send requests: %t", n.requests.lingering)
			}
			if !soon {
				natstest.Eventually(t, "it is back", n.requestConn.IsConnected)
				n.endRequests()
			}
			natstest.Eventually(t, "requests go to nobody", func() bool {
				_, err := client.Request("get", nil, 100*time.Millisecond)
				return errors.Is(err, nats.ErrNoResponders)
			})
		})
	}
}

// All that ask while a question is under way share the next one, whose answer is of a time after they asked.
func TestLogEndQueriesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e logEndQuery
		var asked uint64
		get := func() (uint64, error) {
			asked++
			mine := asked
			time.Sleep(time.Second)
			return mine, nil
		}
		told := make(chan uint64, 4)
		ask := func() {
			if seq, err := e.ask(t.Context(), get); err != nil {
				t.Error(err)
			} else {
				told <- seq
			}
		}
		go ask()
		time.Sleep(time.Millisecond) // the first question is under way
		for range 3 {
			go ask()
		}
		for _, want := range []uint64{1, 2, 2, 2} {
			if got := <-told; got != want {
				t.Errorf("told of answer %d, want %d", got, want)
			}
		}
		if synctest.Wait(); asked != 2 || e.busy {
			t.Errorf("asked %d times", asked)
		}
		if _, err := e.ask(t.Context(), func() (uint64, error) { return 0, errStops }); !errors.Is(err, errStops) {
			t.Errorf("a question without an answer: %v", err)
		}
	})
}

// A snapshot has what another node answered before it was asked for, even if the node that saves it had not read that by then.
func TestSaveWaitsForTheLog(t *testing.T) {
	n := replaying(t, Options{})
	_, n.streams = openStreams(t)
	n.clock.begin(true)
	r := engine.Record{Subject: "carillon.log.0.put.job", Data: []byte(`{"schedule":"@yearly"}`)}
	seq, err := n.streams.Log.Publish(t.Context(), r.Subject, nil, r.Data)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "archive")
	saved := make(chan error, 1)
	go func() {
		_, _, err := n.save(t.Context(), &carillon.SnapshotRequest{Dir: dir}, &save{})
		saved <- err
	}()
	natstest.Eventually(t, "the save waits", func() bool {
		select {
		case err := <-saved:
			t.Fatalf("it is over: %v", err)
		default:
		}
		n.waiters.mu.Lock()
		defer n.waiters.mu.Unlock()
		return len(n.waiters.waiting) > 0
	})
	r.Seq, r.Time = seq, time.Now().UnixNano()
	if err := n.local.Append([]wal.Record{{Seq: seq, Data: engine.AppendRecord(nil, &r)}}); err != nil {
		t.Fatal(err)
	}
	e := n.layout.Decode(&r)
	p := n.partitions[0]
	p.mu.Lock()
	err = p.replayRecord(&e)
	p.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	n.applied.Store(seq)
	n.waiters.advance(seq)
	if err := <-saved; err != nil {
		t.Fatal(err)
	}
	if s, err := OpenJobs(t.Context(), archive.OpenDir(nil, dir), ""); err != nil || s.Jobs != 1 {
		t.Errorf("%+v, %v", s, err)
	}
}
