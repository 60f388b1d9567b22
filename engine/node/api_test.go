package node

import (
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"golang.org/x/sync/semaphore"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/embedded"
	"github.com/carillon-scheduler/carillon/engine/schedule"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// malformed is a request whose body is no JSON.
type malformed struct{ micro.Request }

func (malformed) Data() []byte { return []byte("{") }

// sized is a request with so many bytes.
type sized struct {
	micro.Request
	bytes int
}

func (sized) Subject() string { return "carillon.api.put.j" }
func (sized) Reply() string   { return "" }
func (r sized) Data() []byte  { return make([]byte, r.bytes) }

// Requests that are in progress are bounded in number and in bytes; one alone may be larger.
func TestRequestsAreBounded(t *testing.T) {
	n := &Node{server: new(embedded.Server), o: Options{Prefix: "carillon"}}
	begin := func(bytes int) (c *call, fits bool) {
		c, err := n.begin(sized{bytes: bytes})
		return c, !errors.Is(err, &carillon.Error{Code: carillon.CodeLimitExceeded})
	}
	alone, fits := begin(maxCallBytes + 1)
	if !fits {
		t.Error("one that is alone is refused")
	}
	n.end(alone, nil)
	half, _ := begin(maxCallBytes / 2)
	other, fits := begin(maxCallBytes / 2)
	if !fits {
		t.Error("two halves are refused")
	}
	more, fits := begin(1)
	if fits {
		t.Error("a byte more is taken")
	}
	for _, c := range []*call{half, other, more} {
		n.end(c, nil)
	}
	n.requests.calls.Store(maxCalls - 1)
	if _, fits := begin(0); !fits {
		t.Error("the last request is refused")
	}
	if _, fits := begin(0); fits {
		t.Error("one request more is taken")
	}
	if n.requests.bytes.Load() != 0 {
		t.Errorf("%d bytes are left", n.requests.bytes.Load())
	}
}

// asks is a request with a reply subject.
type asks struct {
	sized
	reply string
}

func (a asks) Reply() string { return a.reply }

// The sender of a request chooses the subject on which the engine publishes the answer. It must not be the subject of a record, an output
// or a command, nor of a request to JetStream or to a service.
func TestAnswersGoToWhoAsked(t *testing.T) {
	n := &Node{server: new(embedded.Server), o: Options{Prefix: "carillon"}}
	for reply, answered := range map[string]bool{
		"": true, "_INBOX.x.1": true, "_R_.x": true, "acme.answers": true, "carillon.answers.log": true, "carillons.log.0.tick": true,
		"carillon.log.0.tick": false, "carillon.trigger.0.acme.bill": false, "carillon.event.0.skipped.j": false, "carillon.cmd.delete.j": false,
		"carillon.node.a.api.page": false, "carillon.api.drain.a": false, "carillon.tenant.acme.get.j": false,
		"$JS.API.STREAM.PURGE.CARILLON_LOG": false, "$JS.ACK.x": false, "$KV.CARILLON_NODES.a": false, "$SRV.PING": false,
	} {
		if c, _ := n.begin(asks{reply: reply}); (c != nil) != answered {
			t.Errorf("a request with the reply subject %q is answered: %v", reply, c != nil)
		}
	}
}

// A partition that this node is about to give up gets no more commands here: they go to another node. What other nodes forward it takes, or
// the two would send it to and fro.
func TestCommandsBeforeAPartitionIsGivenUp(t *testing.T) {
	nc, _ := openStreams(t)
	n := &Node{
		server: new(embedded.Server), o: Options{Prefix: "carillon", Name: "a"}, requestConn: nc, log: slog.New(slog.DiscardHandler),
		meters: newMeters(func() *Node { return nil }), partitions: []*partition{{}},
	}
	p := n.partitions[0]
	p.follows.Store(true)
	for _, c := range []struct {
		subject     string
		unfollowing bool
		want        carillon.Code
	}{
		{"carillon.api.put.j", false, carillon.CodeInvalidJSON},
		{"carillon.api.put.j", true, carillon.CodeUnavailable}, // there is no other node
		{"carillon.node.a.api.put.j", true, carillon.CodeInvalidJSON},
	} {
		p.unfollowing.Store(c.unfollowing)
		answers := make(chan *nats.Msg, 1)
		reply := nats.NewInbox()
		sub, err := nc.ChanSubscribe(reply, answers)
		if err != nil {
			t.Fatal(err)
		}
		n.handleCommand(command{asks{reply: reply}, c.subject}, carillon.VerbPut)
		answer := natstest.Receive(t, "an answer", answers)
		if err := carillon.ParseError(answer.Data); !errors.Is(err, &carillon.Error{Code: c.want}) {
			t.Errorf("a command on %s while the partition is given up (%t) ends with %v, want %s", c.subject, c.unfollowing, err, c.want)
		}
		if err := sub.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
	}
	if open := p.unanswered.Load(); open != 0 {
		t.Errorf("%d commands count as unanswered", open)
	}
}

// command is a request on a subject, whose body is no JSON.
type command struct {
	asks
	subject string
}

func (c command) Subject() string      { return c.subject }
func (command) Data() []byte           { return []byte("{") }
func (command) Headers() micro.Headers { return nil }

// Lists wait for those before them, and selections and imports beyond the bound are refused: each takes memory.
func TestListsAndSelectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{requests: requests{lists: make(chan struct{}, maxLists)}}
		for range maxLists {
			n.requests.lists <- struct{}{}
		}
		listed := make(chan error, 1)
		go func() { listed <- n.apiList(&call{Request: malformed{}}) }()
		synctest.Wait()
		if len(listed) > 0 {
			t.Error("a list does not wait")
		}
		<-n.requests.lists
		invalid := &carillon.Error{Code: carillon.CodeInvalidJSON}
		if err := <-listed; !errors.Is(err, invalid) || len(n.requests.lists) != maxLists-1 {
			t.Errorf("the list ended with %v, and %d are in progress", err, len(n.requests.lists))
		}

		n.requests.selections.Store(maxSelections)
		full := &carillon.Error{Code: carillon.CodeLimitExceeded}
		if err := n.apiSelection(&call{Request: malformed{}}, carillon.VerbPause); !errors.Is(err, full) {
			t.Errorf("one selection more: %v", err)
		}
		n.requests.selections.Add(-1)
		if err := n.apiSelection(&call{Request: malformed{}}, carillon.VerbPause); !errors.Is(err, invalid) {
			t.Errorf("one selection less: %v", err)
		}

		n.requests.imports.Store(maxImports)
		tooLong := lines{body: strings.Repeat("\n", carillon.MaxImportLines) + "{"}
		said := fmt.Sprintf("more than %d imports", maxImports)
		for more, refused := range []bool{true, false} {
			n.requests.imports.Add(-int64(more))
			if err := n.apiImport(&call{node: n, Request: tooLong}); !errors.Is(err, full) || strings.Contains(err.Error(), said) != refused {
				t.Errorf("one import more, %d less: %v", more, err)
			}
		}
	})
}

// Requests that get no answer are counted: those that may be old, and those that the client library drops.
func TestIgnoredRequestsAreCounted(t *testing.T) {
	n := &Node{o: Options{Prefix: "carillon"}, log: slog.New(slog.DiscardHandler), meters: newMeters(func() *Node { return nil })}
	if c, _ := n.begin(asks{reply: "_INBOX.x"}); c != nil { // no ping was answered yet
		t.Error("one that may be old is answered")
	}
	if count := n.meters.ignoredRequests("old").Get(); count != 1 {
		t.Errorf("of those that may be old %d are counted", count)
	}

	nc, err := nats.Connect(natstest.Start(t, &server.Options{}).ClientURL(), nats.ErrorHandler(n.noteConnError))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	held := make(chan struct{})
	defer close(held)
	sub, err := nc.Subscribe("asked", func(*nats.Msg) { <-held })
	if err == nil {
		err = sub.SetPendingLimits(1, -1)
	}
	const sent = 10
	for range sent {
		err = errors.Join(err, nc.Publish("asked", nil))
	}
	if err != nil {
		t.Fatal(err)
	}
	natstest.Eventually(t, "those are counted for which there is no room", func() bool { return n.requests.dropped() >= sent-2 })
	if lost, err := sub.Dropped(); err != nil || n.requests.dropped() != lost {
		t.Errorf("%d are counted, %d were dropped (%v)", n.requests.dropped(), lost, err)
	}
}

// Answers go by the connection of requests, whether many are in progress or few: they must not wait for outputs, nor outputs for them.
func TestAnswersHaveTheirConnection(t *testing.T) {
	ns := natstest.Start(t, &server.Options{})
	connect := func(o ...nats.Option) *nats.Conn {
		nc, err := nats.Connect(ns.ClientURL(), o...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	asking, main, wire, requestWire := connect(), connect(), streams.NewWire(ns), streams.NewWire(ns)
	embedded := connect(nats.InProcessServer(requestWire))
	answers, err := asking.SubscribeSync("asked")
	if err == nil {
		err = asking.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]*Node{
		"external": {nc: main, requestConn: connect()},
		"embedded": {nc: main, wire: wire, requestConn: embedded, requestWire: requestWire},
	} {
		for _, calls := range []int64{fewInProgress, fewInProgress + 1} {
			n.requests.calls.Store(calls)
			if err := n.send(&nats.Msg{Subject: "asked", Data: []byte(name)}); err != nil {
				t.Errorf("%s, %d in progress: %v", name, calls, err)
				continue
			}
			if m, err := answers.NextMsg(time.Minute); err != nil || string(m.Data) != name {
				t.Errorf("%s, %d in progress: %v", name, calls, err)
			}
		}
	}
	if sent := main.Stats().OutMsgs; sent != 0 {
		t.Errorf("%d answers went by the other connection", sent)
	}
}

// A list that gets no turn for as long as its client waits is refused: nobody would read the answer, and it would keep others waiting. So
// is a status, a get or a preview.
func TestListsWaitForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{requests: requests{lists: make(chan struct{}, maxLists)}}
		for range maxLists {
			n.requests.lists <- struct{}{}
		}
		began := time.Now()
		err := n.apiList(&call{node: n})
		if took := time.Since(began); took != acquireTimeout || !errors.Is(err, &carillon.Error{Code: carillon.CodeLimitExceeded}) {
			t.Errorf("after %s: %v", took, err)
		}
		n.requests.statuses = make(chan struct{}, 1)
		n.requests.statuses <- struct{}{}
		if err := n.apiStatus(&call{node: n}); !errors.Is(err, &carillon.Error{Code: carillon.CodeLimitExceeded}) {
			t.Errorf("a status: %v", err)
		}
		n.requests.queries = make(chan struct{}, 1)
		n.requests.queries <- struct{}{}
		if err := n.apiPreview(&call{node: n}); !errors.Is(err, &carillon.Error{Code: carillon.CodeLimitExceeded}) {
			t.Errorf("a preview: %v", err)
		}
		n.server, n.partitions = new(embedded.Server), []*partition{{}}
		n.partitions[0].follows.Store(true)
		if err := n.apiGet(&call{node: n, job: "j"}); !errors.Is(err, &carillon.Error{Code: carillon.CodeLimitExceeded}) {
			t.Errorf("a get: %v", err)
		}
	})
}

// lines is a request to import.
type lines struct {
	micro.Request
	body string
}

func (l lines) Data() []byte           { return []byte(l.body) }
func (l lines) Headers() micro.Headers { return nil }

// If the outcome of a part of an import is unknown, the answer is an error without counts: all of the import must be sent again.
func TestImportOfUnknownOutcome(t *testing.T) {
	n := &Node{
		layout: engine.Layout{Prefix: "carillon", Partitions: 1}, partitions: []*partition{{}}, // nobody follows it
		requests: requests{importJobs: semaphore.NewWeighted(maxImportJobs)},
	}
	err := n.apiImport(&call{node: n, Request: lines{body: `{"id":"a","spec":{"schedule":"@daily"}}`}})
	if !errors.Is(err, &carillon.Error{Code: carillon.CodeUnavailable}) {
		t.Errorf("it is told as %v", err)
	}
}

// Pages are merged from what each partition's listing gives: together they have every job once, in order, and none has more jobs or bytes
// than it may, unless it is one job. A listing that has looked at enough is not read on for the same page.
func TestMergeListings(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	short := 0
	for range 300 {
		const ids = 200
		parts, limit, bytes := 1+random.IntN(4), 1+random.IntN(30), 200+random.IntN(2000)
		has, sizes := make([][]carillon.JobReply, parts), make(map[string]int)
		matches := make(map[string]bool) // of those at which a listing looks
		var want, got []string
		for i := range ids {
			id := fmt.Sprintf("%03d", i)
			if matches[id] = random.IntN(4) == 0; matches[id] {
				want = append(want, id)
			}
			p := random.IntN(parts)
			job := carillon.JobReply{ID: id, Spec: carillon.Job{Topic: strings.Repeat("t", random.IntN(300))}}
			has[p], sizes[id] = append(has[p], job), len(job.AppendJSON(nil))+1
		}
		page := func(after string) (r carillon.JobsReply, cut bool) {
			var listings []listing
			for _, jobs := range has {
				over := false
				most := 1 + random.IntN(8)
				read := func(after string) (found []carillon.JobReply, last string, more bool, err error) {
					if over {
						t.Fatal("a listing is read on")
					}
					from := sort.Search(len(jobs), func(i int) bool { return jobs[i].ID > after })
					last = after
					for looked := random.IntN(40) + 1; looked > 0 && from < len(jobs) && len(found) < most; looked-- {
						if last = jobs[from].ID; matches[last] {
							found = append(found, jobs[from])
						}
						from++
					}
					over = len(found) < most || from == len(jobs)
					cut = cut || len(found) < most && from < len(jobs)
					return found, last, from < len(jobs), nil
				}
				listings = append(listings, listing{limit: most, after: after, more: true, page: read})
			}
			r, err := mergeListings(listings, limit, bytes)
			if err != nil {
				t.Fatal(err)
			}
			return r, cut
		}
		for cursor := ""; ; {
			r, cut := page(cursor)
			size := 0
			for i := range r.Jobs {
				got = append(got, r.Jobs[i].ID)
				size += sizes[r.Jobs[i].ID]
			}
			if len(r.Jobs) > limit || size > bytes && len(r.Jobs) > 1 {
				t.Fatalf("a page has %d jobs of %d bytes, at most %d of %d", len(r.Jobs), size, limit, bytes)
			}
			if r.Cursor == "" {
				break
			}
			if !cut && len(r.Jobs) < limit && len(got) < len(want) && size+sizes[want[len(got)]] <= bytes {
				t.Fatalf("a page has %d jobs of %d bytes, and the next one of %d would fit", len(r.Jobs), size, sizes[want[len(got)]])
			}
			after, err := base64.RawURLEncoding.DecodeString(r.Cursor)
			if err != nil || string(after) <= cursor {
				t.Fatalf("after %q comes %q: %v", cursor, after, err)
			}
			if cursor = string(after); len(r.Jobs) == 0 {
				short++
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d partitions, pages of %d: got %q, want %q", parts, limit, got, want)
		}
	}
	if short == 0 {
		t.Error("no page was empty")
	}
	unread := errors.New("cannot be read")
	fails := func(string) ([]carillon.JobReply, string, bool, error) { return nil, "", false, unread }
	if _, err := mergeListings([]listing{{more: true, limit: 1, page: fails}}, 1, 1); !errors.Is(err, unread) {
		t.Errorf("a listing that fails: %v", err)
	}
}

// A completed job is left out of an import, unless it comes with its state.
func TestImportOfCompletedJobs(t *testing.T) {
	im := newImporting(1)
	left, kept := `{"id":"left","status":"completed","spec":{}}`, `{"id":"kept","status":"completed","spec":{},"state":{}}`
	err := im.read(&call{node: new(Node), Request: lines{body: left + "\n" + kept}})
	if err != nil || im.reply.LeftOut != 1 || len(im.reply.Failed) > 0 || len(im.packs[0]) != 1 {
		t.Fatalf("%+v, %v", im.reply, err)
	}
	if pack := im.packs[0][0]; len(pack.jobs) != 1 || pack.jobs[0].ID != "kept" || pack.jobs[0].State == nil || pack.lines[0] != 2 {
		t.Errorf("%+v", pack)
	}
}

// A job's state may have counts and times up to the bounds, and none beyond.
func TestStatesAreBounded(t *testing.T) {
	horizon := time.UnixMilli(schedule.Horizon)
	for what, c := range map[string]struct {
		state carillon.JobState
		field string
	}{
		"counts":   {carillon.JobState{Version: stateMost, Fires: stateMost, Skipped: stateMost}, ""},
		"version":  {carillon.JobState{Version: stateMost + 1}, "version"},
		"fires":    {carillon.JobState{Fires: stateMost + 1}, "fires"},
		"skipped":  {carillon.JobState{Skipped: stateMost + 1}, "skipped"},
		"times":    {carillon.JobState{Accepted: horizon, From: horizon, Last: horizon}, ""},
		"accepted": {carillon.JobState{Accepted: horizon.Add(time.Millisecond)}, "accepted"},
		"from":     {carillon.JobState{From: horizon.Add(time.Millisecond)}, "from"},
		"last":     {carillon.JobState{Last: horizon.Add(time.Millisecond)}, "last"},
	} {
		err := checkState(&carillon.ImportJob{State: &c.state})
		if c.field == "" && err != nil || c.field != "" && !errors.Is(err, &carillon.Error{Code: carillon.CodeInvalidField, Field: c.field}) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// What a node says of the others is what their beats say. A silent one serves nothing.
func TestNodesOfView(t *testing.T) {
	n := new(Node)
	n.applied.Store(100)
	beat := func(name string, draining bool, follows ...cluster.Progress) cluster.Beat {
		return cluster.Beat{
			Node: cluster.Node{Name: name, Zone: "z" + name, Weight: 3}, Version: "v" + name,
			Report: cluster.Report{Draining: draining, ClockOffsetMS: -4, Partitions: follows},
		}
	}
	got := n.nodes(cluster.View{
		Placement: cluster.Placement{{Owner: "b", Standbys: []string{"a", "c"}}, {Owner: "b", Standbys: []string{"c"}}, {Owner: "c"}},
		Members: []cluster.Beat{
			beat("c", true, cluster.Progress{Partition: 2, Position: 70, Epoch: 8}, cluster.Progress{Partition: 0, Position: 60}),
			beat("a", false),
			beat("d", false, cluster.Progress{Position: 101}),
		},
		Silent: []cluster.Beat{beat("b", false, cluster.Progress{Position: 90, Epoch: 7}, cluster.Progress{Partition: 1, Position: 90, Epoch: 6})},
	})
	of := func(name string, state carillon.NodeState, serves, standby int, position, lag uint64) carillon.NodeStatus {
		return carillon.NodeStatus{
			Node: name, State: state, Zone: "z" + name, Weight: 3, Version: "v" + name, Serves: serves, Standby: standby, Position: position, Lag: lag,
			ClockOffset: -4,
		}
	}
	if want := []carillon.NodeStatus{
		of("a", carillon.NodeLive, 0, 1, 0, 100), of("b", carillon.NodeSilent, 0, 0, 90, 10), of("c", carillon.NodeDraining, 1, 2, 70, 30),
		of("d", carillon.NodeLive, 0, 0, 101, 0),
	}; !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// Of a partition that it follows, a node tells how far behind the log it is. Of another one it tells only who serves it.
func TestStatusOfPartition(t *testing.T) {
	layout := engine.Layout{Prefix: "carillon", Partitions: 2}
	n := &Node{layout: layout, meters: newMeters(func() *Node { return nil })}
	p := &partition{number: 1, machine: engine.New(layout, 1), chain: engine.NewChain(), stopped: errors.New("why"), foreign: 4}
	p.follows.Store(true)
	v := cluster.View{
		Placement: cluster.Placement{{}, {Owner: "b", Standbys: []string{"c"}}},
		Members:   []cluster.Beat{{Node: cluster.Node{Name: "b"}, Report: cluster.Report{Partitions: []cluster.Progress{{Partition: 1, Epoch: 5}}}}},
	}
	n.head.Store(10)
	for applied, lag := range map[uint64]uint64{7: 3, 10: 0, 11: 0} {
		n.applied.Store(applied)
		s := n.partitionStatus(p, v)
		if s.Lag != lag || s.Owner != "" || s.Partition != 1 || !slices.Equal(s.Standbys, []string{"c"}) || s.Stopped != "why" || s.Foreign != 4 {
			t.Errorf("applied up to %d: %+v", applied, s)
		}
	}
	n.applied.Store(7)
	p.follows.Store(false)
	if s := n.partitionStatus(p, v); s.Lag != 0 || s.Owner != "b" {
		t.Errorf("not followed: %+v", s)
	}
}
