package carillon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon/internal/natstest"
)

func TestParseImport(t *testing.T) {
	const full = `{"type":"carillon.v1.job","id":"a","version":3,"status":"paused","next":"2100-01-01T00:00:00.000Z","fires":0,"skipped":0,"partition":1,"spec":{"schedule":"@daily","payload":{"b":  [1.0, "<"] }}}`
	for _, c := range []struct{ line, id, status, payload, err string }{
		{line: `{"id":"a","schedule":"@daily"}`, id: "a"},
		{line: `{"id":"a","spec":{"schedule":"@daily"},"status":"scheduled"}`, id: "a", status: "scheduled"},
		{line: full, id: "a", status: "paused", payload: `{"b":  [1.0, "<"] }`},
		{line: `{"id":"a","spec":{"schedule":"@daily"},"statsu":"paused"}`, err: "unknown_field: statsu: "},
		{line: `{"id":"a","spec":{"schedule":"@daily"},"status":"gone"}`, err: "invalid_field: status: "},
		{line: `{"id":"a","spec":{"schedule":"@daily"},"status":7}`, err: "invalid_field: status: "},
		{line: `{"id":"a","spec":{},"state":{"version":"x"}}`, err: "invalid_field: version: "},
		{line: `{"id":"a","spec":{},"state":{"from":"yesterday"}}`, err: "invalid_field: from: "},
		{line: `{"id":"a","spec":{},"state":{"missed":"never"}}`, err: "invalid_field: missed: "},
		{line: `{"id":"a","spec":{},"state":{"next":1}}`, err: "unknown_field: "},
		{line: `{"id":"a","spec":{},"if_absent":1}`, err: "invalid_field: if_absent: "},
		{line: `{"id":7,"spec":{}}`, err: "invalid_field: id: "},
		{line: `{"spec":{}}`, err: "invalid_job_id: id: "},
		{line: `{"schedule":"@daily"}`, err: "invalid_job_id: id: "},
		{line: `{"id":"a.b","spec":{}}`, err: "invalid_job_id: id: "},
		{line: `{"id":"a","spec":{"owner":"\ud800"}}`, err: "invalid_json: at byte 27: half of a surrogate pair"},
		{line: `{"id":"a","spec":{"owner":"b","owner":"c"}}`, err: "invalid_json: owner: stands twice, the second time at byte 30"},
		{line: `{"id":"a","spec":{"scedule":"@daily"}}`, err: "unknown_field: scedule: "},
		{line: `{"id":"a","spec":null}`, err: "invalid_json: "},
		{line: `{"id":"a","spec":"@daily"}`, err: "invalid_field: spec: is a string; expected an object"},
		{line: `{"id":"a","spec":{},"state":[]}`, err: "invalid_field: state: is an array; expected an object"},
		{line: `{"id":"a","spec":{"schedule":"@daily"}`, err: "invalid_json: "},
		{line: `{"id":"a","scedule":"@daily"}`, err: "unknown_field: scedule: "},
		{line: `[]`, err: "invalid_json: "},
		{line: `garbage`, err: "invalid_json: "},
	} {
		l, err := ParseImport([]byte(c.line))
		job, status := l.Job, l.Status
		if c.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), c.err) {
				t.Errorf("%s: error %v, want %s", c.line, err, c.err)
			}
			continue
		}
		if err != nil || job.ID != c.id || string(status) != c.status || string(job.Payload) != c.payload {
			t.Errorf("%s: %v, id %q, status %q, payload %q", c.line, err, job.ID, status, job.Payload)
		}
	}
}

// A line of an import says the same when it is read back, and so does the answer.
func TestImportLines(t *testing.T) {
	for _, want := range []ImportJob{
		{Job: Job{ID: "a"}},
		{Job: Job{ID: "a"}, Paused: true},
		{Job: Job{ID: "a"}, IfAbsent: true},
		{Job: Job{ID: "a"}, State: &JobState{Version: 3, Accepted: time.UnixMilli(1_800_000_000_001).UTC()}},
		{Job: Job{ID: "a", Schedule: "@daily"}, Paused: true, IfAbsent: true, State: &JobState{
			Version: 3, Accepted: time.UnixMilli(1_800_000_000_000).UTC(), From: time.UnixMilli(1_800_000_000_001).UTC(),
			Last: time.UnixMilli(1_800_000_000_002).UTC(), Fires: 4, Skipped: 5, Missed: new(Misfire),
		}},
		{Job: Job{ID: "b", Schedule: "@daily", Payload: []byte(`{"n": 1}`), Form: PayloadJSON, Labels: map[string]string{"x": "y"}}, Paused: true},
		{Job: Job{ID: "c", Schedule: "@daily", Payload: []byte("{\n}"), Form: PayloadText}},
	} {
		line := AppendImport(nil, &want)
		got, err := ParseImport(line)
		if diff := cmp.Diff(want, got.ImportJob); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", line, err, diff)
		}
	}
	for _, want := range []ImportReply{
		{}, {Imported: 3, Unchanged: 2, LeftOut: 1, Failed: []ImportFail{
			{Line: 1, Error: &Error{Code: CodeInvalidJSON, Message: "at byte 3"}},
			{Line: 7, ID: "a", Error: &Error{Code: CodeInvalidField, Field: "end", Message: "too early"}},
		}},
	} {
		body := want.AppendJSON(nil)
		got, err := ParseImportReply(body)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", body, err, diff)
		}
	}
	if _, err := ParseImportReply([]byte(`{"type":"carillon.v1.import","failed":[{"line":0}]}`)); err == nil {
		t.Error("a failure of no line was read")
	}
}

// numbered are jobs a-0, a-1, …, of which some are paused.
func numbered(n int) (jobs []ImportJob) {
	for i := range n {
		jobs = append(jobs, ImportJob{Job: Job{ID: fmt.Sprint("a-", i), Schedule: "@daily"}, Paused: i%3 == 2})
	}
	return jobs
}

func TestClientImport(t *testing.T) {
	nc, _ := startNATS(t)
	s := startService(t, nc)
	c := Connect(nc, WithTimeout(9*time.Second)) // 3 s a try
	jobs := numbered(5)
	jobs[1].Job.ID = "no id"
	refusal := &Error{Code: CodeInvalidSchedule, Message: "odd"}
	reply := ImportReply{Imported: 3, Failed: []ImportFail{{Line: 3, ID: "a-3", Error: refusal}}}
	s.answers("carillon.api.import", answer{body: (&ImportReply{}).AppendJSON(nil)},
		answer{refusal: &Error{Code: CodeUnavailable, Message: "restarting"}}, answer{}, answer{body: reply.AppendJSON(nil)})
	outcome := make([]error, len(jobs))
	if err := c.Import(t.Context(), slices.Values(jobs), func(i int, err error) { outcome[i] = err }); err != nil {
		t.Fatal(err)
	}
	for i, want := range []Code{"", CodeInvalidJobID, "", CodeInvalidSchedule, ""} {
		if err := outcome[i]; err == nil != (want == "") || err != nil && !errors.Is(err, &Error{Code: want}) {
			t.Errorf("job %d: %v, want %q", i, err, want)
		}
	}
	requests := s.requests("carillon.api.import")
	if len(requests) != 4 {
		t.Fatalf("%d requests; want one that asks, and three tries", len(requests))
	}
	for _, m := range requests[1:] {
		if id := m.Header.Get(HeaderRequest); id == "" || id != requests[1].Header.Get(HeaderRequest) {
			t.Errorf("%s is %q; every try has the same", HeaderRequest, id)
		}
		if lines := strings.Count(string(m.Data), "\n"); lines != 4 {
			t.Errorf("%d lines:\n%s", lines, m.Data)
		}
	}

	// A refusal of the whole request is one of each job, and the context's end ends it.
	s.answers("carillon.api.import", answer{body: (&ImportReply{}).AppendJSON(nil)}, answer{refusal: &Error{Code: CodeInvalidField, Message: "odd"}})
	n := 0
	err := c.Import(t.Context(), slices.Values(numbered(3000)), func(_ int, err error) {
		if n++; !errors.Is(err, &Error{Code: CodeInvalidField}) {
			t.Errorf("%v", err)
		}
	})
	if err != nil || n != 3000 {
		t.Errorf("%d of 3000 were refused, %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	endless := func(yield func(ImportJob) bool) {
		for i := 0; yield(ImportJob{Job: Job{ID: fmt.Sprint("e-", i)}}); i++ {
			if i == 5000 {
				cancel()
			}
		}
	}
	if err := c.Import(ctx, endless, func(int, error) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("an import without end ended with %v", err)
	}
	// What was sent before that, and not answered, may have been put.
	im := importing{Client: c, ctx: ctx, again: make(chan struct{}, 1)}
	_, err = im.request(&importBatch{}, &Error{Code: CodeUnavailable, Message: "the outcome is unknown"})
	if !errors.Is(err, context.Canceled) || !errors.Is(err, unknown) || strings.Contains(err.Error(), "nothing was sent") {
		t.Errorf("a request that is not sent again: %v", err)
	}
}

// A connection that has never been up knows no largest message. An import that waits for it packs its jobs all the same.
func TestImportBeforeConnection(t *testing.T) {
	nc, err := nats.Connect("nats://127.0.0.1:1", nats.RetryOnFailedConnect(true))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	im := newImporting(t.Context(), Connect(nc))
	im.batches = make(chan *importBatch, 3)
	if err := im.split(slices.Values(numbered(3))); err != nil {
		t.Fatal(err)
	}
	if n := len(im.batches); n != 1 {
		t.Errorf("%d requests; want one of all jobs", n)
	}
}

// What a service has no room for is sent again, and nothing else of the request; after a while without room for any it
// is reported.
func TestClientImportFull(t *testing.T) {
	nc, _ := startNATS(t)
	s := startService(t, nc)
	full, odd := &Error{Code: CodeLimitExceeded, Message: "full"}, &Error{Code: CodeInvalidSchedule, Message: "odd"}
	knows := answer{body: (&ImportReply{}).AppendJSON(nil)}
	replies := func(r ImportReply) answer { return answer{body: r.AppendJSON(nil)} }
	s.answers("carillon.api.import", knows,
		answer{refusal: full},
		replies(ImportReply{Imported: 2, Failed: []ImportFail{{2, "a-1", full}, {3, "a-2", odd}, {5, "a-4", full}}}),
		replies(ImportReply{Failed: []ImportFail{{1, "a-1", full}, {2, "a-4", odd}}}),
		replies(ImportReply{Imported: 1}))
	outcome := make(map[int]error)
	told := func(i int, err error) {
		if _, twice := outcome[i]; twice {
			t.Errorf("job %d was reported twice", i)
		}
		outcome[i] = err
	}
	c := Connect(nc, WithTimeout(time.Minute))
	if err := c.Import(t.Context(), slices.Values(numbered(5)), told); err != nil {
		t.Fatal(err)
	}
	for i, want := range []error{nil, nil, odd, nil, odd} {
		if err, ok := outcome[i]; !ok || !errors.Is(err, want) {
			t.Errorf("job %d: %v, want %v", i, err, want)
		}
	}
	var sent []string
	ids := make(map[string]string) // by the jobs that they are of
	for _, m := range s.requests("carillon.api.import")[1:] {
		var jobs []string
		for line := range bytes.Lines(m.Data) {
			l, err := ParseImport(line)
			if err != nil {
				t.Fatal(err)
			}
			jobs = append(jobs, l.Job.ID)
		}
		these, id := strings.Join(jobs, " "), m.Header.Get(HeaderRequest)
		if before, again := ids[these]; again && id != before {
			t.Errorf("%s are sent again as %q, before as %q", these, id, before)
		}
		ids[these] = id
		sent = append(sent, these)
	}
	if diff := cmp.Diff([]string{"a-0 a-1 a-2 a-3 a-4", "a-0 a-1 a-2 a-3 a-4", "a-1 a-4", "a-1"}, sent); diff != "" {
		t.Error(diff)
	}
	if n := len(slices.Compact(slices.Sorted(maps.Values(ids)))); n != 3 {
		t.Errorf("%d ids, of three requests whose lines differ", n)
	}

	// A line that was not sent is no job's, whatever else the answer says.
	s.answers("carillon.api.import", knows,
		replies(ImportReply{Imported: 1, Failed: []ImportFail{{1, "a-0", full}, {9, "a-8", odd}}}), replies(ImportReply{Imported: 1}))
	var restored Restored
	err := c.Restore(t.Context(), slices.Values(numbered(2)), func(r Restored) {
		restored.Jobs, restored.Imported, restored.Failed = restored.Jobs+r.Jobs, restored.Imported+r.Imported, append(restored.Failed, r.Failed...)
	})
	if diff := cmp.Diff(Restored{Jobs: 2, Imported: 2}, restored); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}

	for again := 5; again > 0; again-- {
		s.answers("carillon.api.import", knows, answer{refusal: full})
		before, n, late := len(s.requests("carillon.api.import")), 0, false
		err := Connect(nc, WithTimeout(300*time.Millisecond)).Import(t.Context(), slices.Values(numbered(3000)), func(_ int, err error) {
			n++
			unsure := errors.Is(err, unknown)
			if late = late || unsure; !errors.Is(err, full) && (!unsure || again == 1) {
				t.Errorf("%v", err)
			}
		})
		if err != nil || n != 3000 {
			t.Errorf("%d of 3000 were refused, %v", n, err)
		}
		if tries := len(s.requests("carillon.api.import")) - before; tries < 4 && !late {
			t.Errorf("two requests were tried %d times", tries)
		}
		if !late { // else the last answer came too late, on a machine that stood still, and it is tried once more
			break
		}
	}
}

// What is not answered in time is sent again for longer than one request would be.
func TestClientImportUnanswered(t *testing.T) {
	nc, _ := startNATS(t)
	s := startService(t, nc)
	script := []answer{{body: (&ImportReply{}).AppendJSON(nil)}}
	for range 6 {
		script = append(script, answer{}, answer{refusal: unknown})
	}
	s.answers("carillon.api.import", append(script, answer{body: (&ImportReply{Imported: 5}).AppendJSON(nil)})...)
	n := 0
	err := Connect(nc, WithTimeout(time.Second)).Import(t.Context(), slices.Values(numbered(5)), func(i int, err error) {
		if n++; err != nil {
			t.Errorf("job %d: %v", i, err)
		}
	})
	if err != nil || n != 5 {
		t.Errorf("%d of 5 were put, %v", n, err)
	}
	tries := s.requests("carillon.api.import")[1:]
	for _, m := range tries {
		if id := m.Header.Get(HeaderRequest); id == "" || id != tries[0].Header.Get(HeaderRequest) {
			t.Errorf("%s is %q: what may have been done is known by the same", HeaderRequest, id)
		}
	}
}

// link is a way to a server that can be cut, and a service behind it that says which requests have arrived, and answers none.
type link struct {
	*server.Server
	puts, imports chan struct{}

	mu      sync.Mutex
	cut     bool
	breakAt string // what the client writes when its connection breaks, once
	conn    net.Conn
}

func (l *link) InProcessConn() (conn net.Conn, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return nil, errors.New("the link is cut")
	}
	l.conn, err = l.Server.InProcessConn()
	return linkConn{l.conn, l}, err
}

type linkConn struct {
	net.Conn
	l *link
}

func (c linkConn) Write(p []byte) (int, error) {
	if c.l.breaks(p) {
		_ = c.Close()
	}
	return c.Conn.Write(p)
}

func (l *link) breaks(p []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := l.breakAt != "" && strings.Contains(string(p), l.breakAt)
	if found {
		l.breakAt = ""
	}
	return found
}

func (l *link) setCut(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut = cut; cut {
		_ = l.conn.Close()
	}
}

func (l *link) serve(t *testing.T, m *nats.Msg) {
	switch {
	case strings.HasPrefix(m.Subject, "carillon.api.put."):
		l.puts <- struct{}{}
	case len(m.Data) > 0:
		l.imports <- struct{}{}
	default: // whether imports are known
		if err := m.Respond((&ImportReply{}).AppendJSON(nil)); err != nil {
			t.Error(err)
		}
	}
}

func startLink(t *testing.T) (*link, *nats.Conn) {
	t.Helper()
	t.Parallel()
	l := &link{Server: natstest.Start(t, &server.Options{DontListen: true}), puts: make(chan struct{}, 100), imports: make(chan struct{}, 100)}
	nc, err := nats.Connect("", nats.InProcessServer(l), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err == nil {
		_, err = nc.Subscribe("carillon.api.>", func(m *nats.Msg) { l.serve(t, m) })
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return l, nc
}

// unclear wants an error that says that the outcome is unknown, and not that nothing was sent.
func unclear(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, unknown) || !strings.Contains(err.Error(), "the outcome is unknown") || strings.Contains(err.Error(), "nothing was sent") {
		t.Errorf("%s: %v", what, err)
	}
}

// A request that was sent and not answered may have been applied, even if the connection has been down ever since.
func TestClientLosesConnection(t *testing.T) {
	l, nc := startLink(t)
	c := Connect(nc, WithTimeout(6*time.Second)) // 2 s a try
	ctx, giveUp := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		_, err := c.Put(t.Context(), Job{ID: "j"})
		unclear(t, "put", err)
	})
	work.Go(func() {
		_ = c.Import(ctx, slices.Values(numbered(1)), func(_ int, err error) { unclear(t, "import", err) })
	})
	<-l.puts
	<-l.imports
	l.setCut(true)
	time.AfterFunc(7*time.Second, giveUp) // the first request of the import is over then, and the next one has not been sent
	work.Wait()
}

// So may one that was sent at last, after the connection had been down for a whole try.
func TestClientFindsConnection(t *testing.T) {
	l, nc := startLink(t)
	c := Connect(nc, WithTimeout(30*time.Second)) // some 3 s a try
	l.setCut(true)
	eventually(t, "the connection down", nc.IsReconnecting)
	ctx, giveUp := context.WithCancel(t.Context())
	go func() {
		<-l.puts
		giveUp()
	}()
	time.AfterFunc(4*time.Second, func() { l.setCut(false) })
	_, err := c.Put(ctx, Job{ID: "j"})
	unclear(t, "put", err)
}

// bubbleNATS connects to a server within a bubble of synctest.
func bubbleNATS(t *testing.T) *nats.Conn {
	t.Helper()
	ns, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	t.Cleanup(func() {
		ns.Shutdown()
		ns.WaitForShutdown()
		time.Sleep(time.Second) // a handler may be at it yet
	})
	nc, err := nats.Connect("", nats.InProcessServer(ns))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// An import goes on where the service takes longer for what is under way at once than a try is waited for: what is not answered is sent
// again one by one, and not all of it beside each other, for ever.
func TestClientImportSlow(t *testing.T) {
	const jobs = 12 * MaxImportLines
	synctest.Test(t, func(t *testing.T) {
		nc := bubbleNATS(t)
		_, err := nc.Subscribe("carillon.api.import", func(m *nats.Msg) {
			if len(m.Data) > 0 {
				time.Sleep(800 * time.Millisecond)
			}
			if err := m.Respond((&ImportReply{Imported: MaxImportLines}).AppendJSON(nil)); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		put, failed := 0, 0
		err = Connect(nc).Import(t.Context(), slices.Values(numbered(jobs)), func(_ int, err error) {
			if put++; err != nil {
				failed++
			}
		})
		if err != nil || put != jobs || failed > 0 {
			t.Errorf("%d of %d were put, %d failed, %v", put, jobs, failed, err)
		}
	})
}

// Of several jobs with one id the last one counts, however long requests take and whatever of them there is no room for. Requests without
// such jobs are under way at once.
func TestClientImportOrder(t *testing.T) {
	const repeated, all = 3 * MaxImportLines, 15 * MaxImportLines
	last := make(map[string]string) // the owner of the last job, by id
	var jobs []ImportJob
	for i := range all {
		job := Job{ID: fmt.Sprint("once-", i), Owner: fmt.Sprint(i)}
		if i < repeated {
			job.ID = fmt.Sprint("twice-", i%(repeated/2))
			if i%7 == 0 {
				job.ID = "often"
			}
		}
		jobs, last[job.ID] = append(jobs, ImportJob{Job: job}), job.Owner
	}
	synctest.Test(t, func(t *testing.T) {
		nc := bubbleNATS(t)
		var mu sync.Mutex
		chance, owners, requests, most := rand.New(rand.NewPCG(1, 2)), make(map[string]string), 0, 0
		answer := func(m *nats.Msg) {
			mu.Lock()
			requests++
			most = max(most, requests)
			takes := time.Duration(1+chance.IntN(1000)) * time.Millisecond
			mu.Unlock()
			time.Sleep(takes)
			mu.Lock()
			defer mu.Unlock()
			requests--
			var reply ImportReply
			number := 0
			for line := range bytes.Lines(m.Data) {
				l, err := ParseImport(line)
				if err != nil {
					t.Error(err)
				}
				if number++; chance.IntN(10) == 0 {
					reply.Failed = append(reply.Failed, ImportFail{Line: number, ID: l.Job.ID, Error: noRoom})
					continue
				}
				owners[l.Job.ID] = l.Job.Owner
				reply.Imported++
			}
			if err := m.Respond(reply.AppendJSON(nil)); err != nil {
				t.Error(err)
			}
		}
		if _, err := nc.Subscribe("carillon.api.import", func(m *nats.Msg) { go answer(m) }); err != nil {
			t.Fatal(err)
		}
		done := make([]int, all)
		if err := Connect(nc).Import(t.Context(), slices.Values(jobs), func(i int, err error) {
			if done[i]++; err != nil || done[i] > 1 {
				t.Errorf("job %d is reported %d times, with %v", i, done[i], err)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(last, owners); diff != "" {
			t.Error(diff)
		}
		if most != importRequests {
			t.Errorf("%d requests were under way at once, not %d", most, importRequests)
		}
		clear(owners)
		var restored Restored
		if err := Connect(nc).Restore(t.Context(), slices.Values(jobs), func(r Restored) {
			restored.Jobs, restored.Imported, restored.Failed = restored.Jobs+r.Jobs, restored.Imported+r.Imported, append(restored.Failed, r.Failed...)
		}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(Restored{Jobs: all, Imported: all}, restored); diff != "" || !maps.Equal(last, owners) {
			t.Error(diff)
		}
	})
}

// A service that knows no imports is sent a put for each job, and a paused one never has its schedule before.
func TestClientImportByPuts(t *testing.T) {
	nc, _ := startNATS(t)
	asked := make(chan string, 100)
	if _, err := nc.Subscribe("carillon.api.*.*", func(m *nats.Msg) {
		asked <- strings.TrimPrefix(m.Subject, "carillon.api.") + string(m.Data)
		id := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
		if err := m.Respond((&JobReply{ID: id, Version: 1, Status: StatusPaused}).AppendJSON(nil)); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Subscribe("carillon.api.status", func(m *nats.Msg) {
		if err := m.Respond([]byte(`{}`)); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	done := 0
	err := Connect(nc).Import(t.Context(), slices.Values(numbered(3)), func(_ int, err error) {
		if done++; err != nil {
			t.Error(err)
		}
	})
	if err != nil || done != 3 {
		t.Errorf("%d jobs, %v", done, err)
	}
	close(asked)
	var of []string
	for a := range asked {
		if strings.Contains(a, "a-2") {
			of = append(of, a)
		}
	}
	if diff := cmp.Diff([]string{`put.a-2{"if_version":0}`, "pause.a-2", `put.a-2{"schedule":"@daily"}`}, of); diff != "" {
		t.Error(diff)
	}
}

// What had been put before an earlier job of its id, and is put again behind that, is not said to be refused when there is no room any more.
func TestClientImportRefusedLater(t *testing.T) {
	full := &Error{Code: CodeLimitExceeded, Message: "full"}
	reply := func(lines ...int) []byte {
		r := ImportReply{Imported: uint64(2 - len(lines))}
		for _, line := range lines {
			r.Failed = append(r.Failed, ImportFail{Line: line, ID: "a", Error: full})
		}
		return r.AppendJSON(nil)
	}
	for of, then := range map[string]answer{"request": {refusal: full}, "line": {body: reply(1, 2)}} {
		synctest.Test(t, func(t *testing.T) {
			nc := bubbleNATS(t)
			s := &service{t: t, script: make(map[string][]answer), asked: make(map[string][]*nats.Msg)}
			s.answers("carillon.api.import", answer{body: reply()}, answer{body: reply(1)}, then)
			if _, err := nc.Subscribe("carillon.api.>", s.serve); err != nil { // without a flush: the library's may wait on a channel of another bubble
				t.Fatal(err)
			}
			jobs := []ImportJob{{Job: Job{ID: "a", Owner: "1"}}, {Job: Job{ID: "a", Owner: "2"}}}
			if err := Connect(nc).Import(t.Context(), slices.Values(jobs), func(i int, err error) {
				if !errors.Is(err, unknown) {
					t.Errorf("%s: job %d: %v", of, i, err)
				}
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// By puts, too, the last of one id counts: they follow each other.
func TestClientImportOrderByPuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nc := bubbleNATS(t)
		var mu sync.Mutex
		var owners []string
		slow := time.Second
		if _, err := nc.Subscribe("carillon.api.put.*", func(m *nats.Msg) {
			takes := slow // the first ones take longest
			slow -= 100 * time.Millisecond
			go func() {
				time.Sleep(takes)
				mu.Lock()
				defer mu.Unlock()
				job, err := ParseJob(m.Data)
				if err != nil {
					t.Error(err)
				}
				owners = append(owners, job.Owner)
				if err := m.Respond((&JobReply{ID: "a", Version: 1, Status: StatusScheduled}).AppendJSON(nil)); err != nil {
					t.Error(err)
				}
			}()
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Subscribe("carillon.api.status", func(m *nats.Msg) { _ = m.Respond([]byte(`{}`)) }); err != nil {
			t.Fatal(err)
		}
		var jobs []ImportJob
		for _, owner := range []string{"1", "2", "3"} {
			jobs = append(jobs, ImportJob{Job: Job{ID: "a", Owner: owner}})
		}
		if err := Connect(nc).Import(t.Context(), slices.Values(jobs), func(_ int, err error) {
			if err != nil {
				t.Error(err)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(owners, []string{"1", "2", "3"}) {
			t.Errorf("the puts took effect as %v", owners)
		}
	})
}

// An engine that is starting, and takes nothing yet, is not taken for one that knows no imports.
func TestClientImportWhileServiceStarts(t *testing.T) {
	nc, _ := startNATS(t)
	engine := dial(t, nc.ConnectedUrl())
	var once sync.Once
	if _, err := engine.Subscribe("carillon.api.status", func(m *nats.Msg) {
		once.Do(func() {
			if _, err := engine.Subscribe("carillon.api.import", func(m *nats.Msg) {
				if err := m.Respond((&ImportReply{Imported: uint64(strings.Count(string(m.Data), "\n"))}).AppendJSON(nil)); err != nil {
					t.Error(err)
				}
			}); err != nil {
				t.Error(err)
			}
			if err := engine.Flush(); err != nil {
				t.Error(err)
			}
		})
		if err := m.Respond([]byte(`{}`)); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := engine.Flush(); err != nil {
		t.Fatal(err)
	}
	restored := 0
	if err := Connect(nc).Restore(t.Context(), slices.Values(numbered(3)), func(r Restored) { restored += int(r.Imported) }); err != nil || restored != 3 {
		t.Errorf("%d of 3 were restored, %v", restored, err)
	}
}

// So it is where the service does not answer what its status is, as to a tenant.
func TestClientImportWithoutStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nc := bubbleNATS(t)
		time.AfterFunc(3*time.Second, func() {
			if _, err := nc.Subscribe("carillon.api.import", func(m *nats.Msg) {
				if err := m.Respond((&ImportReply{Imported: uint64(strings.Count(string(m.Data), "\n"))}).AppendJSON(nil)); err != nil {
					t.Error(err)
				}
			}); err != nil {
				t.Error(err)
			}
		})
		began, restored := time.Now(), 0
		err := Connect(nc).Restore(t.Context(), slices.Values(numbered(3)), func(r Restored) { restored += int(r.Imported) })
		if took := time.Since(began); err != nil || restored != 3 || took > 5*time.Second {
			t.Errorf("%d of 3 were restored after %s, %v", restored, took, err)
		}
	})
}

// Where no service answers, an import gives the jobs up after ten timeouts together, and not after one for each job.
func TestClientImportWithoutService(t *testing.T) {
	const jobs = 20 * importPatience * putWindow
	synctest.Test(t, func(t *testing.T) {
		began, failed := time.Now(), 0
		err := Connect(bubbleNATS(t)).Import(t.Context(), slices.Values(numbered(jobs)), func(_ int, err error) {
			if failed++; !errors.Is(err, unknown) {
				t.Error(err)
			}
		})
		if took := time.Since(began); err != nil || failed != jobs || took > (importPatience+3)*DefaultTimeout {
			t.Errorf("%d of %d failed after %s, %v", failed, jobs, took, err)
		}
	})
}

// A source that has nothing for long is not a service that accepts nothing.
func TestClientImportOfASlowSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nc := bubbleNATS(t)
		for _, subject := range []string{"carillon.api.status", "carillon.api.put.*"} {
			if _, err := nc.Subscribe(subject, func(m *nats.Msg) {
				if err := m.Respond((&JobReply{ID: "j", Version: 1}).AppendJSON(nil)); err != nil {
					t.Error(err)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		jobs := func(yield func(ImportJob) bool) {
			for _, job := range numbered(5) {
				if job.Paused = false; !yield(job) {
					return
				}
				time.Sleep((importPatience + 1) * DefaultTimeout)
			}
		}
		if err := Connect(nc).Import(t.Context(), jobs, func(i int, err error) {
			if err != nil {
				t.Errorf("job %d: %v", i, err)
			}
		}); err != nil {
			t.Error(err)
		}
	})
}

// Who gives up a restore before a service answers is told that he did.
func TestClientRestoreGivenUp(t *testing.T) {
	nc, _ := startNATS(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := Connect(nc).Restore(ctx, slices.Values(numbered(1)), func(Restored) {}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// An answer that does not say which lines failed, or why, is one that cannot be read.
func TestParseImportReplyIncomplete(t *testing.T) {
	for _, failed := range []string{`{"line":1}`, `{"error":{"code":"internal","message":"m"}}`, `{"line":1,"error":null}`, `{"line":null,"error":{"code":"internal","message":"m"}}`} {
		if _, err := ParseImportReply([]byte(`{"type":"` + TypeImport + `","imported":0,"unchanged":0,"failed":[` + failed + `]}`)); !errors.Is(err, &Error{Code: CodeInternal}) {
			t.Errorf("%s: %v", failed, err)
		}
	}
}
