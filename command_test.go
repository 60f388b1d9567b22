package carillon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// refusal is what a parser must say.
type refusal struct {
	body  string
	code  Code
	field string
}

func checkRefusals(t *testing.T, parse func([]byte) error, cases []refusal) {
	t.Helper()
	for _, c := range cases {
		e, ok := errors.AsType[*Error](parse([]byte(c.body)))
		if !ok || e.Code != c.code || e.Field != c.field || e.Message == "" {
			t.Errorf("%s: %v; want %s: %s", c.body, e, c.code, c.field)
		}
	}
}

func TestParseCondition(t *testing.T) {
	for body, want := range map[string]string{"": "none", " \n": "none", "{}": "none", `{"if_version":null}`: "none", `{"if_version":0}`: "0", ` {"if_version": 12} `: "12"} {
		v, err := ParseCondition([]byte(body))
		got := "none"
		if v != nil {
			got = fmt.Sprint(*v)
		}
		if err != nil || got != want {
			t.Errorf("%q: %s, %v; want %s", body, got, err, want)
		}
		if again, err := ParseCondition(AppendCondition(nil, v)); err != nil || !reflect.DeepEqual(again, v) {
			t.Errorf("%q: read again: %v, %v", body, again, err)
		}
	}
	checkRefusals(t, func(b []byte) error { _, err := ParseCondition(b); return err }, []refusal{
		{"1", CodeInvalidJSON, ""},
		{`{"if_version":1}x`, CodeInvalidJSON, ""},
		{`{"if_version":1,"if_version":1}`, CodeInvalidJSON, "if_version"},
		{`{"ifVersion":1}`, CodeUnknownField, "ifVersion"},
		{`{"if_version":"1"}`, CodeInvalidField, "if_version"},
		{`{"if_version":1.5}`, CodeInvalidField, "if_version"},
	})
}

func TestParseDrain(t *testing.T) {
	for body, undo := range map[string]bool{"": false, " \n": false, "{}": false, `{"undo":null}`: false, `{"undo":false}`: false, ` {"undo": true} `: true} {
		if d, err := ParseDrain([]byte(body)); err != nil || d.Undo != undo {
			t.Errorf("%q: %+v, %v", body, d, err)
		}
	}
	checkRefusals(t, func(b []byte) error { _, err := ParseDrain(b); return err }, []refusal{
		{"true", CodeInvalidJSON, ""},
		{`{"undo":true}x`, CodeInvalidJSON, ""},
		{`{"undo":true,"undo":false}`, CodeInvalidJSON, "undo"},
		{`{"UNDO":true}`, CodeUnknownField, "UNDO"},
		{`{"undo":1}`, CodeInvalidField, "undo"},
	})
}

func TestParseFire(t *testing.T) {
	for _, c := range []struct {
		body, payload string
		has           bool
	}{
		{"", "", false},
		{"{}", "", false},
		{`{"payload_text":null}`, "", false},
		{`{"payload":null}`, "null", true},
		{`{"payload": {"a" : 1} }`, `{"a" : 1}`, true},
		{`{"payload_text":"a\nb"}`, "a\nb", true},
		{`{"payload_text":""}`, "", true},
		{`{"payload_base64":"/w=="}`, "\xff", true},
	} {
		payload, has, err := ParseFire([]byte(c.body))
		if err != nil || string(payload) != c.payload || has != c.has {
			t.Errorf("%s: %q, %v, %v; want %q, %v", c.body, payload, has, err, c.payload, c.has)
		}
		if !has {
			continue
		}
		again, has, err := ParseFire(AppendFire(nil, payload, PayloadNone))
		if err != nil || !has || string(again) != c.payload {
			t.Errorf("%s: read again: %q, %v, %v", c.body, again, has, err)
		}
	}
	checkRefusals(t, func(b []byte) error { _, _, err := ParseFire(b); return err }, []refusal{
		{`"x"`, CodeInvalidJSON, ""},
		{`{"payload":}`, CodeInvalidJSON, ""},
		{`{"schedule":"@hourly"}`, CodeUnknownField, "schedule"},
		{`{"payload":1,"payload_text":"1"}`, CodeInvalidField, "payload_text"},
		{`{"payload_text":1}`, CodeInvalidField, "payload_text"},
		{`{"payload_text":"` + strings.Repeat("x", MaxPayload+1) + `"}`, CodePayloadTooLarge, "payload_text"},
	})
}

func TestParseSelection(t *testing.T) {
	want := Selection{Prefix: "acme-", Label: "team=billing=2", Owner: "acme"}
	got, err := ParseSelection([]byte(`{"prefix":"acme-","label":"team=billing=2","owner":"acme"}`))
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	checkRefusals(t, func(b []byte) error { _, err := ParseSelection(b); return err }, []refusal{
		{"", CodeInvalidJSON, ""},
		{"{}", CodeInvalidField, ""},
		{`{"prefix":""}`, CodeInvalidField, "prefix"},
		{`{"prefix":null}`, CodeInvalidField, ""},
		{`{"prefix":"a.b"}`, CodeInvalidField, "prefix"},
		{`{"label":"=x"}`, CodeInvalidField, "label"},
		{`{"label":"` + strings.Repeat("x", 300) + `"}`, CodeInvalidField, "label"},
		{`{"owner":7}`, CodeInvalidField, "owner"},
		{`{"topic":"x"}`, CodeUnknownField, "topic"},
	})
	job := Job{ID: "acme-1", Owner: "acme", Labels: map[string]string{"team": "billing", "empty": ""}}
	for s, want := range map[Selection]bool{
		{}:                                true,
		{Prefix: "acme-"}:                 true,
		{Prefix: "acme-11"}:               false,
		{Owner: "acme"}:                   true,
		{Owner: "acm"}:                    false,
		{Label: "team"}:                   true,
		{Label: "team=billing"}:           true,
		{Label: "team="}:                  false,
		{Label: "empty="}:                 true,
		{Label: "none"}:                   false,
		{Label: "none="}:                  false,
		{Prefix: "acme", Label: "team=x"}: false,
	} {
		if got := s.Matches(&job); got != want {
			t.Errorf("%+v: %v", s, got)
		}
	}
}

func TestParseList(t *testing.T) {
	for _, body := range []string{"", "{}", " "} {
		if l, err := ParseList([]byte(body)); err != nil || l != (ListRequest{Limit: DefaultListLimit}) {
			t.Errorf("%q: %+v, %v", body, l, err)
		}
	}
	want := ListRequest{Selection{"a", "b", "c"}, "t.*", StatusPaused, 1000, "x"}
	body, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseList(body); err != nil || got != want {
		t.Errorf("%s: %+v, %v", body, got, err)
	}
	checkRefusals(t, func(b []byte) error { _, err := ParseList(b); return err }, []refusal{
		{"[]", CodeInvalidJSON, ""},
		{`{"limit":0}`, CodeInvalidField, "limit"},
		{`{"limit":1001}`, CodeInvalidField, "limit"},
		{`{"status":"done"}`, CodeInvalidField, "status"},
		{`{"status":"deleted"}`, CodeInvalidField, "status"},
		{`{"topic":"a..b"}`, CodeInvalidTopic, "topic"},
		{`{"topic":">.a"}`, CodeInvalidTopic, "topic"},
		{`{"topic":"a*"}`, CodeInvalidTopic, "topic"},
		{`{"cursor":5}`, CodeInvalidField, "cursor"},
		{`{"cursor":"` + strings.Repeat("x", 2000) + `"}`, CodeInvalidField, "cursor"},
		{`{"ids":[]}`, CodeUnknownField, "ids"},
	})
	job := JobReply{Status: StatusPaused, Spec: Job{ID: "a1", Topic: "t.u"}}
	for l, want := range map[ListRequest]bool{
		{}:                                  true,
		{Status: StatusPaused}:              true,
		{Status: StatusScheduled}:           false,
		{Topic: "t.*"}:                      true,
		{Topic: "t"}:                        false,
		{Selection: Selection{Prefix: "b"}}: false,
	} {
		if got := l.Matches(&job); got != want {
			t.Errorf("%+v: %v", l, got)
		}
	}
}

func TestMatchTopic(t *testing.T) {
	for _, c := range []struct {
		filter, topic string
		want          bool
	}{
		{"a", "a", true},
		{"a", "a.b", false},
		{"a.b", "a", false},
		{"*", "a", true},
		{"*", "a.b", false},
		{">", "a.b.c", true},
		{"a.>", "a.b.c", true},
		{"a.>", "a", false},
		{"a.*.c", "a.b.c", true},
		{"a.*.c", "a.b.d", false},
		{"default", "", true},
		{"*", "", true},
		{"x", "", false},
	} {
		if got := MatchTopic(c.filter, c.topic); got != c.want {
			t.Errorf("%s on %s: %v", c.filter, c.topic, got)
		}
	}
}

func TestParsePreview(t *testing.T) {
	got, err := ParsePreview([]byte(`{"schedule":"@hourly"}`))
	if err != nil || got != (PreviewRequest{Schedule: "@hourly", Count: DefaultPreview}) {
		t.Errorf("%+v, %v", got, err)
	}
	full := PreviewRequest{
		Schedule: "0 30 9 * * *", Zone: "Europe/Paris", Gap: GapSkip, Fold: FoldBoth, Start: time.UnixMilli(1).UTC(),
		End: time.UnixMilli(2000).UTC(), After: time.UnixMilli(1500).UTC(), Count: 1000,
	}
	if got, err := ParsePreview(full.AppendJSON(nil)); err != nil || got != full {
		t.Errorf("%+v, %v", got, err)
	}
	checkRefusals(t, func(b []byte) error { _, err := ParsePreview(b); return err }, []refusal{
		{"", CodeInvalidJSON, ""},
		{"{}", CodeInvalidSchedule, "schedule"},
		{`{"schedule":"@hourly","zone":"Local"}`, CodeInvalidZone, "zone"},
		{`{"schedule":"@hourly","count":0}`, CodeInvalidField, "count"},
		{`{"schedule":"@hourly","count":1001}`, CodeInvalidField, "count"},
		{`{"schedule":"@hourly","after":"soon"}`, CodeInvalidField, "after"},
		{`{"schedule":"@hourly","start":"2026-01-02T00:00:00Z","end":"2026-01-01T00:00:00Z"}`, CodeInvalidField, "end"},
		{`{"schedule":"@hourly","topic":"x"}`, CodeUnknownField, "topic"},
	})
}

func TestReplies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := drawJob(t)
		instant := func(name string) time.Time {
			ms := rapid.Int64Range(-1, 253402300799999).Draw(t, name)
			if ms < 0 {
				return time.Time{}
			}
			return time.UnixMilli(ms).UTC()
		}
		count := func(name string) uint64 { return rapid.Uint64Range(0, maxInteger).Draw(t, name) }
		want := JobReply{
			ID: spec.ID, Version: count("version"), Status: rapid.SampledFrom(statuses).Draw(t, "status"), Next: instant("next"),
			LastScheduled: instant("last"), Fires: count("fires"), Skipped: count("skipped"), Partition: rapid.IntRange(0, 1023).Draw(t, "partition"), Spec: spec,
		}
		body := want.AppendJSON(nil)
		if !json.Valid(body) {
			t.Fatalf("no JSON: %s", body)
		}
		got, err := ParseJobReply(body)
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
		page := JobsReply{Jobs: []JobReply{want, want}, Cursor: spec.ID}
		gotPage, err := ParseJobsReply(page.AppendJSON(nil))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(page, gotPage); diff != "" {
			t.Fatal(diff)
		}
	})
	// What a later service adds is passed over; what is something else is not taken for a job.
	got, err := ParseJobReply([]byte(`{"type":"carillon.v1.job","id":"x","new":[{}],"next":null,"spec":{"newer":{"a":1},"owner":"me"}}`))
	if err != nil || got.Spec.Owner != "me" || got.ID != "x" {
		t.Errorf("%+v, %v", got, err)
	}
	page, err := ParseJobsReply([]byte(`{"type":"carillon.v1.jobs","new":[{}],"jobs":[],"cursor":"x"}`))
	if err != nil || page.Cursor != "x" {
		t.Errorf("%+v, %v", page, err)
	}
	preview, err := ParsePreviewReply([]byte(`{"type":"carillon.v1.preview","new":[{}],"next":["2027-01-15T08:00:00.000Z"]}`))
	if err != nil || len(preview.Next) != 1 {
		t.Errorf("%+v, %v", preview, err)
	}
	for _, body := range []string{"", "x", `{"type":"carillon.v1.jobs"}`, `{"id":5}`, `{"spec":[]}`} {
		if _, err := ParseJobReply([]byte(body)); !errors.Is(err, &Error{Code: CodeInternal}) {
			t.Errorf("%s: %v", body, err)
		}
	}
	golden := JobReply{
		ID: "a", Version: 2, Status: StatusScheduled, Next: time.UnixMilli(1_800_000_000_000), LastScheduled: time.UnixMilli(1), Fires: 3, Skipped: 4,
		Partition: 5, Trigger: "a!9", Spec: Job{Payload: []byte("{ }")},
	}
	const want = `{"type":"carillon.v1.job","id":"a","version":2,"status":"scheduled","next":"2027-01-15T08:00:00.000Z",` +
		`"last_scheduled":"1970-01-01T00:00:00.001Z","fires":3,"skipped":4,"partition":5,"trigger":"a!9","spec":{"payload":{ }}}`
	if s := string(golden.AppendJSON(nil)); s != want {
		t.Errorf("got %s\nwant %s", s, want)
	}
}

// A job that was put must be there in a reply, whatever its text is made of: a reply is no longer than a message.
func TestLongTextInReply(t *testing.T) {
	for text, field := range map[string]string{
		strings.Repeat("x", MaxPayload):                  "payload_text",
		strings.Repeat("\n", MaxPayload/4):               "payload_text",
		strings.Repeat("\n", MaxPayload):                 "payload_base64",
		strings.Repeat("\x01", MaxPayload/2):             "payload_base64",
		strings.Repeat(strconv.Quote("a"), MaxPayload/3): "payload_base64",
	} {
		want := JobReply{ID: "j", Status: StatusScheduled, Spec: Job{ID: "j", Payload: []byte(text), Form: PayloadText}}
		b := want.AppendJSON(nil)
		got, err := ParseJobReply(b)
		if err != nil || string(got.Spec.Payload) != text || !bytes.Contains(b[:150], []byte(field)) {
			t.Errorf("%q…: %v, %d bytes of payload in %s…", text[:3], err, len(got.Spec.Payload), b[:150])
		}
		if most := 1<<20 - 1024; len(b) > most || want.Spec.Form != PayloadText {
			t.Errorf("%q…: %d bytes, most %d", text[:3], len(b), most)
		}
	}
}

func TestErrorReply(t *testing.T) {
	e := Error{Code: CodeInvalidSchedule, Field: "schedule", Message: `"x" never fires`}
	const want = `{"type":"carillon.v1.error","code":"invalid_schedule","field":"schedule","message":"\"x\" never fires"}`
	body := e.AppendJSON(nil)
	if string(body) != want {
		t.Errorf("got %s\nwant %s", body, want)
	}
	if got := ParseError(body); *got != e {
		t.Errorf("%+v", got)
	}
	for _, body := range []string{"", "{}", "not json"} {
		if got := ParseError([]byte(body)); got.Code != CodeInternal {
			t.Errorf("%q: %v", body, got)
		}
	}
	numbers := map[Code]int{
		CodeInvalidJobID: 400, CodeInvalidJSON: 400, CodeUnknownField: 400, CodeInvalidSchedule: 400, CodeInvalidZone: 400, CodeInvalidTopic: 400,
		CodeInvalidField: 400, CodeNotFound: 404, CodeVersionConflict: 409, CodePayloadTooLarge: 413, CodeLimitExceeded: 429, CodeInternal: 500, CodeUnavailable: 503,
	}
	for code, n := range numbers {
		if code.Status() != n {
			t.Errorf("%s is %d; want %d", code, code.Status(), n)
		}
	}
	if AsError(nil) != nil || AsError(fmt.Errorf("x: %w", &e)) != &e || AsError(errors.New("x")).Code != CodeInternal {
		t.Error("AsError")
	}
}

func TestEvents(t *testing.T) {
	at := func(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
	for _, c := range []struct {
		event Event
		want  string
	}{
		{
			Event{Kind: EventRejected, Job: "a.b", Verb: "tick", Count: 3, Time: at(5), Error: &Error{Code: CodeInvalidJobID, Message: "no"}},
			`{"type":"carillon.v1.event","kind":"rejected","job":"a.b","verb":"tick","error":{"code":"invalid_job_id","message":"no"},"count":3,"time":"1970-01-01T00:00:00.005Z"}`,
		},
		{
			Event{Kind: EventSkipped, Job: "j", Version: 2, Reason: ReasonExpired, Count: 2, First: at(1000), Last: at(2000), Time: at(3000)},
			`{"type":"carillon.v1.event","kind":"skipped","job":"j","version":2,"reason":"expired","count":2,` +
				`"first":"1970-01-01T00:00:01.000Z","last":"1970-01-01T00:00:02.000Z","time":"1970-01-01T00:00:03.000Z"}`,
		},
		{
			Event{Kind: EventCompleted, Job: "j", Version: 2, Last: at(2000)},
			`{"type":"carillon.v1.event","kind":"completed","job":"j","version":2,"last":"1970-01-01T00:00:02.000Z"}`,
		},
	} {
		body := c.event.AppendJSON(nil)
		if string(body) != c.want {
			t.Errorf("got %s\nwant %s", body, c.want)
		}
		got, err := ParseEvent(body)
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(c.event, got); diff != "" {
			t.Error(diff)
		}
	}
	hostile := Event{Kind: EventRejected, Job: strings.Repeat("é", 2000) + "\xff", Verb: "\x00\""}
	body := hostile.AppendJSON(nil)
	if got, err := ParseEvent(body); err != nil || len(got.Job) != 128 || len(body) > 400 {
		t.Errorf("%d bytes of job, %v: %s", len(got.Job), err, body)
	}
	for _, body := range []string{"", "{}", `{"type":"carillon.v1.job"}`} {
		if _, err := ParseEvent([]byte(body)); err == nil {
			t.Errorf("%q is an event", body)
		}
	}
}
