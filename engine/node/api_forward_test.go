package node

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/embedded"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// beside returns a node a that knows of a node b. Both say that they follow partition 1, and b that it serves partition 0, which only it
// follows. Nobody follows partition 2.
func beside(t *testing.T) *Node {
	t.Helper()
	nc, _ := openStreams(t)
	n := &Node{
		server: new(embedded.Server), o: Options{Prefix: "carillon", Name: "a"}, nc: nc, requestConn: nc, log: slog.New(slog.DiscardHandler),
		meters: newMeters(func() *Node { return nil }),
	}
	for number := range 3 {
		n.partitions = append(n.partitions, &partition{number: number})
	}
	n.partitions[1].follows.Store(true)
	joinBeside(t, n, nc, cluster.Report{Partitions: []cluster.Progress{{Partition: 1, Position: 9}}})
	joinAs(t, nc, "b", len(n.partitions), cluster.Report{Partitions: []cluster.Progress{{Position: 9, Epoch: 3}, {Partition: 1, Position: 5}}})
	natstest.Eventually(t, "a knows of b", func() bool { return len(n.view().Members) == 2 })
	return n
}

// passed is a request on a subject with a body and headers.
type passed struct {
	command
	header micro.Headers
}

func (p passed) Headers() micro.Headers { return p.header }

// A request is passed on to the node that follows the partition, with the client's request id and no other header, and that node's answer to
// the client, whole. It is passed on once: not if it came from another node, nor by a node to itself.
func TestRequestsArePassedOnOnce(t *testing.T) {
	n := beside(t)
	asked, answers := make(chan *nats.Msg, 1), make(chan *nats.Msg, 1)
	reply := nats.NewInbox()
	for subject, to := range map[string]chan *nats.Msg{"carillon.node.b.>": asked, reply: answers} {
		if _, err := n.nc.ChanSubscribe(subject, to); err != nil {
			t.Fatal(err)
		}
	}
	request := func(header micro.Headers) *call {
		return &call{Request: passed{command{asks{reply: reply}, "carillon.api.put.j"}, header}, node: n, job: "j"}
	}
	for id, header := range map[string]micro.Headers{
		"":  {"Nats-Trace-Dest": {"carillon.log.0.tick"}},
		"r": {"Nats-Trace-Dest": {"carillon.log.0.tick"}, carillon.HeaderRequest: {"r"}},
	} {
		forwarded := make(chan error, 1)
		go func() { forwarded <- n.forward(request(header), n.partitions[0]) }()
		m := natstest.Receive(t, "a request is passed on", asked)
		if m.Subject != "carillon.node.b.api.put.j" || string(m.Data) != "{" || m.Header.Get(carillon.HeaderRequest) != id || len(m.Header) != len(header)-1 {
			t.Errorf("passed on: %s %v %s", m.Subject, m.Header, m.Data)
		}
		if err := m.RespondMsg(&nats.Msg{Data: []byte("refused"), Header: nats.Header{micro.ErrorCodeHeader: {"404"}}}); err != nil {
			t.Fatal(err)
		}
		if err := <-forwarded; err != nil {
			t.Error(err)
		}
		if m := natstest.Receive(t, "an answer", answers); string(m.Data) != "refused" || m.Header.Get(micro.ErrorCodeHeader) != "404" {
			t.Errorf("the answer is %v %s", m.Header, m.Data)
		}
	}

	fromAnother := request(nil)
	fromAnother.forwarded = true
	for why, forward := range map[string]func() error{
		"node a does not follow partition 0 just now": func() error { return n.forward(fromAnother, n.partitions[0]) },
		"node a does not follow partition 1 just now": func() error { return n.forward(request(nil), n.partitions[1]) },
		"no live node follows partition 2":            func() error { return n.forward(request(nil), n.partitions[2]) },
	} {
		if err := forward(); !errors.Is(err, &carillon.Error{Code: carillon.CodeUnavailable}) || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want: %s", err, why)
		}
	}
	if len(asked) > 0 {
		t.Error("another one was passed on")
	}

	// While a's disk stands still, b answers for both.
	n.clock.began = time.Now().Add(-time.Hour)
	n.partitions[0].follows.Store(true)
	for _, stalled := range []bool{false, true} {
		if stalled {
			n.appending.Store(1)
		}
		if n.answersHere(n.partitions[0]) == stalled || n.answersHere(n.partitions[1]) == stalled {
			t.Errorf("the disk stands still: %t; it answers", stalled)
		}
		if to := n.followersView().Follower(1); (to == "b") != stalled {
			t.Errorf("the disk stands still: %t; partition 1 is asked of %s", stalled, to)
		}
	}
	n.partitions[2].follows.Store(true)
	if !n.answersHere(n.partitions[2]) {
		t.Error("the disk stands still, and nobody answers for the partition that only this node follows")
	}
}

// A request about many jobs is put together from all partitions, or fails: also if nobody follows one of them.
func TestWhoFollows(t *testing.T) {
	n := beside(t)
	if here, there, err := n.whoFollows(); !errors.Is(err, &carillon.Error{Code: carillon.CodeUnavailable}) {
		t.Errorf("nobody follows partition 2, and asked are %v, %v: %v", here, there, err)
	}
	n.partitions = n.partitions[:2]
	here, there, err := n.whoFollows()
	if err != nil || numbers(here) != "1" || len(there) != 1 || numbers(there["b"]) != "0" {
		t.Errorf("%s are here, %v there: %v", numbers(here), there, err)
	}
}

// A request between nodes names partitions that the node which answers follows.
func TestNamedPartitions(t *testing.T) {
	n := &Node{partitions: []*partition{{}, {number: 1}, {number: 2}}}
	n.partitions[0].follows.Store(true)
	n.partitions[2].follows.Store(true)
	for names, want := range map[string]carillon.Code{
		"0": "", "2,0": "", "1": carillon.CodeUnavailable, "0,1": carillon.CodeUnavailable,
		"": carillon.CodeInvalidField, "x": carillon.CodeInvalidField, "0,-1": carillon.CodeInvalidField, "3": carillon.CodeInvalidField,
	} {
		ps, err := n.namedPartitions(&call{Request: passed{header: micro.Headers{headerPartitions: {names}}}})
		switch {
		case want == "":
			if err != nil || numbers(ps) != names {
				t.Errorf("%q names %s: %v", names, numbers(ps), err)
			}
		case !errors.Is(err, &carillon.Error{Code: want}):
			t.Errorf("%q names %s: %v, want %s", names, numbers(ps), err, want)
		}
	}
}

// A node that takes long over another one's request says so all the while, and the other one waits for its answer, or its error.
func TestNodesWaitForEachOther(t *testing.T) {
	n := beside(t)
	said := make(chan *nats.Msg, 100)
	reply := nats.NewInbox()
	sub, err := n.nc.ChanSubscribe(reply, said)
	if err != nil {
		t.Fatal(err)
	}
	n.handleNode(asks{reply: reply}, func(c *call) error {
		for range 2 {
			if m := natstest.Receive(t, "it says that it is at work", said); len(m.Data) > 0 {
				t.Errorf("it says %s", m.Data)
			}
		}
		return c.answer([]byte("done"))
	})
	if m := natstest.Receive(t, "its answer", said); string(m.Data) != "done" {
		t.Errorf("its answer is %s", m.Data)
	}
	if err := sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}

	if _, err := n.nc.Subscribe("carillon.node.b.page", func(m *nats.Msg) {
		answer := &nats.Msg{Data: m.Data, Header: m.Header}
		if m.Header.Get("Refuse") != "" {
			refusal := carillon.Error{Code: carillon.CodeNotFound, Message: "no"}
			answer = &nats.Msg{Data: refusal.AppendJSON(nil), Header: nats.Header{micro.ErrorCodeHeader: {"404"}}}
		}
		if err := errors.Join(m.Respond(nil), m.Respond(nil), m.RespondMsg(answer)); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	before := n.nc.NumSubscriptions()
	answer, err := n.askNode(t.Context(), "b", "page", nats.Header{headerAfter: {"j"}}, []byte("asked"))
	if err != nil || string(answer.Data) != "asked" || answer.Header.Get(headerAfter) != "j" {
		t.Errorf("b answers %+v, %v", answer, err)
	}
	if _, err := n.askNode(t.Context(), "b", "page", nats.Header{"Refuse": {"1"}}, nil); !errors.Is(err, &carillon.Error{Code: carillon.CodeNotFound}) {
		t.Errorf("b refuses: %v", err)
	}
	// Nobody listens there.
	if _, err := n.askNode(t.Context(), "gone", "page", nil, nil); !errors.Is(err, &carillon.Error{Code: carillon.CodeUnavailable}) {
		t.Errorf("one that has gone: %v", err)
	}
	if left := n.nc.NumSubscriptions() - before; left > 0 {
		t.Errorf("%d subscriptions are left", left)
	}

	ask := map[string][]*partition{"b": n.partitions[:2], "gone": n.partitions[2:]}
	var told []string
	err = n.askEach(t.Context(), ask, "page", []byte("asked"), func(answer []byte) error {
		told = append(told, string(answer))
		return errors.New("is not taken")
	})
	if len(told) != 1 || err == nil || !strings.Contains(err.Error(), "is not taken") || !strings.Contains(err.Error(), "node gone did not answer") {
		t.Errorf("told: %q, %v", told, err)
	}
}

// However many jobs a page takes from a partition, the node that has them is not asked for more than a list may have.
func TestPagesAskedOfOthers(t *testing.T) {
	n := beside(t)
	if _, err := n.nc.Subscribe("carillon.node.b.page", func(m *nats.Msg) {
		list, err := carillon.ParseList(m.Data)
		if err != nil || list.Limit != carillon.MaxListLimit || list.Owner != "o" || m.Header.Get(headerPartitions) != "0" || m.Header.Get(headerAfter) != "j1" {
			t.Errorf("asked: %v %s", m.Header, m.Data)
		}
		r := carillon.JobsReply{Jobs: []carillon.JobReply{{ID: "j2"}}}
		answer := &nats.Msg{Data: r.AppendJSON(nil), Header: nats.Header{headerAfter: {"j3"}}}
		if list.Topic != "" {
			answer.Header.Set(headerMore, "true")
		}
		if err := m.RespondMsg(answer); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"", "t"} {
		list := &carillon.ListRequest{Selection: carillon.Selection{Owner: "o"}, Topic: topic}
		jobs, last, more, err := n.askPage("b", 0, list, "j1", carillon.MaxListLimit+8)
		if err != nil || len(jobs) != 1 || jobs[0].ID != "j2" || last != "j3" || more != (topic != "") {
			t.Errorf("%+v up to %s, more: %v, %v", jobs, last, more, err)
		}
	}
}
