package carillon

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// What waits is begun in its order, goes back by its pull, and is known to the heartbeat until it is answered.
func TestDeliveries(t *testing.T) {
	s := newDeliveries(2)
	held := func() (names []string) {
		if err := s.each(func(m *nats.Msg) error { names = append(names, m.Subject); return nil }); err != nil {
			t.Fatal(err)
		}
		return names
	}
	check := func(want ...string) {
		t.Helper()
		if got := held(); !slices.Equal(got, want) {
			t.Fatalf("held %v; want %v", got, want)
		}
	}
	begin := func(h int, want string) {
		t.Helper()
		if d, ok := s.begin(h); !ok || d.msg.Subject != want {
			t.Fatalf("began %+v, %v; want %s", d.msg, ok, want)
		}
	}
	a, b := &pull{begun: make(chan struct{}, 1)}, &pull{begun: make(chan struct{}, 1)}
	add := func(of *pull, names ...string) {
		var all []delivery
		for _, name := range names {
			all = append(all, delivery{msg: &nats.Msg{Subject: name}, pull: of})
		}
		s.add(all)
	}
	add(a, "a1", "a2")
	add(b, "b1")
	add(a, "a3")
	add(b, "b2")
	begin(0, "a1")
	begin(1, "a2")
	check("b1", "a3", "b2", "a1", "a2")
	if out := s.withdraw(a); len(out) != 1 || out[0].msg.Subject != "a3" || s.waits(a) || !s.waits(b) {
		t.Fatalf("withdrew %v", out)
	}
	<-a.begun // the token
	s.remove(1)
	check("b1", "b2", "a1")
	begin(0, "b1")
	for i := range 10 { // the gone give their places away
		add(b, strconv.Itoa(i))
	}
	begin(1, "b2")
	s.close()
	for i := range 10 {
		begin(0, strconv.Itoa(i))
	}
	<-b.begun
	check("9", "b2")
	for h := range 2 {
		if d, ok := s.begin(h); ok {
			t.Fatalf("began %s after the end", d.msg.Subject)
		}
	}
	check()
}

func TestPullOutcome(t *testing.T) {
	for _, c := range []struct {
		status, description string
		ended               bool
		err                 error
	}{
		{"100", "Idle Heartbeat", false, nil},
		{"404", "No Messages", true, nil},
		{"408", "Request Timeout", true, nil},
		{"503", "", true, nats.ErrNoResponders},
		{"409", "Consumer Deleted", true, jetstream.ErrConsumerDeleted},
		{"409", "Message Size Exceeds MaxBytes", true, errPullFull},
		{"409", "Batch Completed", true, nil},
	} {
		ended, err := outcome(nats.Header{"Status": {c.status}, "Description": {c.description}})
		if ended != c.ended || !errors.Is(err, c.err) {
			t.Errorf("%s %s: %v, %v", c.status, c.description, ended, err)
		}
	}
	if ended, err := outcome(nats.Header{"Status": {"409"}, "Description": {"Leadership Change"}}); !ended || err == nil || err.Error() != "409 Leadership Change" {
		t.Errorf("%v, %v", ended, err)
	}
}

func TestBeatOf(t *testing.T) {
	for ackWait, want := range map[time.Duration]time.Duration{
		3 * time.Second: time.Second, 30 * time.Second: 10 * time.Second, time.Hour: 10 * time.Second, // another may have made the consumer
	} {
		if beat := heartbeatInterval(ackWait); beat != want {
			t.Errorf("with an AckWait of %s it beats every %s, not %s", ackWait, beat, want)
		}
	}
}

// newPuller is one of a worker that has its consumer.
func newPuller(t *testing.T, nc *nats.Conn) *puller {
	t.Helper()
	w, err := Connect(nc).worker(WorkerOptions{Topic: "t", Name: "g", Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	return &puller{worker: w, inbox: nc.NewInbox(), size: pullSize{least: 8}, came: make(chan *nats.Msg, 16)}
}

// A worker with nothing to do holds no messages of the last burst, however large they were.
func TestPullReleasesBuffers(t *testing.T) {
	t.Parallel()
	p := newPuller(t, dial(t, natstest.Start(t, &server.Options{}).ClientURL()))
	of := &pull{reply: p.inbox + ".1", most: 9, begun: make(chan struct{}, 1)}
	for range of.most {
		p.came <- &nats.Msg{Subject: "carillon.trigger.0.t", Data: make([]byte, 1000)}
	}
	go func() {
		for range of.most {
			p.held.begin(0)
			p.held.remove(0)
		}
	}()
	p.receive(of, nil)
	for i, d := range p.batch[:cap(p.batch)] {
		if d.msg != nil {
			t.Errorf("delivery %d of a batch of %d is kept", i+1, of.most)
		}
	}
	if of.came != of.most || cap(p.batch) < of.most {
		t.Errorf("%d came, with room for %d", of.came, cap(p.batch))
	}
}

// While the connection is down nothing is asked for: it would keep the requests, and all would be answered together.
func TestPullWhileDisconnected(t *testing.T) {
	t.Parallel()
	ns := natstest.Start(t, &server.Options{})
	nc := dial(t, ns.ClientURL())
	p := newPuller(t, nc)
	ns.Shutdown()
	eventually(t, "the connection down", nc.IsReconnecting)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.pull(ctx); err != nil {
		t.Error(err)
	}
	if n, err := nc.Buffered(); err != nil || n > 0 {
		t.Errorf("the connection keeps %d bytes, %v", n, err)
	}
}

// A server that says nothing is asked for one message at a time: it may answer all requests when it comes back.
func TestPullInSilence(t *testing.T) {
	t.Parallel()
	nc := dial(t, natstest.Start(t, &server.Options{}).ClientURL())
	requests, err := nc.SubscribeSync("$JS.API.CONSUMER.MSG.NEXT.CARILLON_OUT_0.g")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	w := newPuller(t, nc).worker
	go func() {
		defer close(ended)
		w.pullAll(ctx, 0)
	}()
	for i, want := range []string{`"batch":8,`, `"batch":1,`, `"batch":8,`} {
		m, err := requests.NextMsg(20 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(m.Data), want) {
			t.Errorf("request %d is for %s; want %s", i, m.Data, want)
		}
		if i == 0 {
			continue // it is lost
		}
		if err := m.RespondMsg(&nats.Msg{Header: nats.Header{"Status": {"408"}}}); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	<-ended
}

// What comes late, while a worker has its hands full, is known to the heartbeat as well.
func TestPullReceivesWhileItWaits(t *testing.T) {
	t.Parallel()
	p := newPuller(t, dial(t, natstest.Start(t, &server.Options{}).ClientURL()))
	of := &pull{reply: p.inbox + ".1", most: 1, begun: make(chan struct{}, 1)}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		p.receive(of, done)
	}()
	held := func() (n int) {
		if err := p.held.each(func(*nats.Msg) error { n++; return nil }); err != nil {
			t.Error(err)
		}
		return n
	}
	for i := range 3 { // one was asked for
		p.came <- &nats.Msg{Subject: "carillon.trigger.0.t", Reply: "answer"}
		eventually(t, "it is held", func() bool { return held() == i+1 })
	}
	close(done)
	<-ended
	if held() != 0 {
		t.Error("what was not begun is kept at the end")
	}
}

// A consumer that is made again begins where the one before did, and one for what is new when that was made. That of a stream that is new
// itself leaves out nothing.
func TestBeginningOf(t *testing.T) {
	created := time.UnixMilli(1_800_000_000_000)
	old, anew := &jetstream.StreamInfo{Created: created.Add(-1)}, &jetstream.StreamInfo{Created: created.Add(1)}
	all := beginning{policy: jetstream.DeliverAllPolicy}
	for policy, want := range map[jetstream.DeliverPolicy]struct{ old, anew beginning }{
		jetstream.DeliverAllPolicy: {all, all},
		jetstream.DeliverNewPolicy: {
			beginning{policy: jetstream.DeliverByStartTimePolicy, at: &created}, beginning{policy: jetstream.DeliverByStartTimePolicy, at: &created},
		},
		jetstream.DeliverByStartSequencePolicy: {beginning{policy: jetstream.DeliverByStartSequencePolicy, seq: 5}, all},
		jetstream.DeliverLastPolicy:            {beginning{policy: jetstream.DeliverByStartSequencePolicy, seq: 8}, all},
		jetstream.DeliverLastPerSubjectPolicy:  {beginning{policy: jetstream.DeliverByStartSequencePolicy, seq: 8}, all},
	} {
		before := &jetstream.ConsumerInfo{Created: created, AckFloor: jetstream.SequenceInfo{Stream: 7}}
		before.Config.DeliverPolicy = policy
		if policy == jetstream.DeliverByStartSequencePolicy {
			before.Config.OptStartSeq = 5
		}
		for s, want := range map[*jetstream.StreamInfo]beginning{old: want.old, anew: want.anew} {
			got := beginningOf(before).in(s)
			if got.made = (time.Time{}); !reflect.DeepEqual(got, want) {
				t.Errorf("%v: %+v, not %+v", policy, got, want)
			}
		}
	}
}
