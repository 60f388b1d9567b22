package carillon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
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
		{line: `{"spec":{}}`, err: "invalid_job_id: "},
		{line: `{"id":"a.b","spec":{}}`, err: "invalid_job_id: "},
		{line: `{"id":"a","spec":{"scedule":"@daily"}}`, err: "unknown_field: scedule: "},
		{line: `{"id":"a","spec":null}`, err: "invalid_json: "},
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
	c := Connect(nc, WithTimeout(3*time.Second))
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
	s.answers("carillon.api.import", answer{body: (&ImportReply{}).AppendJSON(nil)}, answer{refusal: &Error{Code: CodeLimitExceeded, Message: "full"}})
	n := 0
	err := c.Import(t.Context(), slices.Values(numbered(3000)), func(_ int, err error) {
		if n++; !errors.Is(err, &Error{Code: CodeLimitExceeded}) {
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
