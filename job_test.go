package carillon

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const protocolExample = `{
  "schedule": "0 30 9 * * MON-FRI",
  "zone": "Europe/Paris",
  "start": "2026-12-01T00:00:00Z",
  "end": "2027-12-01T00:00:00Z",
  "max_fires": 1000,
  "spread": "30s",
  "misfire": "fire_once",
  "expires": "10m",
  "topic": "billing.renewals",
  "priority": "normal",
  "payload": {"any": "json"},
  "headers": {"Tenant": "acme"},
  "owner": "acme",
  "labels": {"team": "billing"}
}`

func TestParseJob(t *testing.T) {
	got, err := ParseJob([]byte(protocolExample))
	if err != nil {
		t.Fatal(err)
	}
	want := Job{
		Schedule: "0 30 9 * * MON-FRI", Zone: "Europe/Paris",
		Start: time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC), End: time.Date(2027, 12, 1, 0, 0, 0, 0, time.UTC),
		MaxFires: 1000, Spread: 30 * time.Second, Expires: 10 * time.Minute, Topic: "billing.renewals",
		Payload: []byte(`{"any": "json"}`), Form: PayloadJSON,
		Headers: map[string]string{"Tenant": "acme"}, Owner: "acme", Labels: map[string]string{"team": "billing"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
	canonical := `{"schedule":"0 30 9 * * MON-FRI","zone":"Europe/Paris","start":"2026-12-01T00:00:00Z","end":"2027-12-01T00:00:00Z",` +
		`"max_fires":1000,"spread":"30s","expires":"10m","topic":"billing.renewals","payload":{"any": "json"},` +
		`"headers":{"Tenant":"acme"},"owner":"acme","labels":{"team":"billing"}}`
	if s := string(got.AppendJSON(nil)); s != canonical {
		t.Fatalf("canonical form\n got %s\nwant %s", s, canonical)
	}
}

func TestParseAccepts(t *testing.T) {
	for _, c := range []struct{ body, canonical string }{
		{`{}`, `{}`},
		{" \r\n\t{ } \n", `{}`},
		{`{"schedule":null,"zone":null,"labels":null,"max_fires":null,"if_version":null,"start":null}`, `{}`},
		{`{"topic":"default","priority":"normal","misfire":"fire_once","dst_gap":"shift","dst_fold":"first"}`, `{}`},
		{`{"headers":{},"labels":{}}`, `{}`},
		{`{"priority":"high","misfire":"skip","dst_gap":"skip","dst_fold":"both"}`, `{"dst_gap":"skip","dst_fold":"both","misfire":"skip","priority":"high"}`},
		{`{"payload":null}`, `{"payload":null}`},
		{`{"payload": 1.50E+3 }`, `{"payload":1.50E+3}`},
		{"{\"payload\": [ 1,\r\n {\"a\" : \"\\ud800\"} ] }", "{\"payload\":[ 1,\r\n {\"a\" : \"\\ud800\"} ]}"},
		{`{"payload":{"a":1,"a":2}}`, `{"payload":{"a":1,"a":2}}`},
		{`{"payload_text":""}`, `{"payload_text":""}`},
		{`{"payload_text":"a\u0000\u00e9\ud83d\ude00\/\"\\\n"}`, `{"payload_text":"a\u0000é😀/\"\\\n"}`},
		{`{"payload_base64":"/wA="}`, `{"payload_base64":"/wA="}`},
		{`{"sche\u0064ule":"@hourly"}`, `{"schedule":"@hourly"}`},
		{`{"start":"2026-12-01T09:00:00.250+02:00"}`, `{"start":"2026-12-01T07:00:00.25Z"}`},
		{`{"start":"1970-01-01T00:00:00Z","end":"9999-12-31T23:59:59.999Z"}`, `{"start":"1970-01-01T00:00:00Z","end":"9999-12-31T23:59:59.999Z"}`},
		{`{"spread":"0s"}`, `{}`},
		{`{"spread":"90s","expires":"1h0m0.5s"}`, `{"spread":"1m30s","expires":"1h0m0.5s"}`},
		{`{"spread":"60m","expires":"87648h"}`, `{"spread":"1h","expires":"87648h"}`},
		{`{"max_fires":9007199254740991}`, `{"max_fires":9007199254740991}`},
		{`{"topic":"a.b.c.d.e.f.g.h"}`, `{"topic":"a.b.c.d.e.f.g.h"}`},
		{`{"headers":{"traceparent":"00-4bf9-01","X":""}}`, `{"headers":{"X":"","traceparent":"00-4bf9-01"}}`},
		{`{"labels":{"b":"","a":"x=y"}}`, `{"labels":{"a":"x=y","b":""}}`},
	} {
		j, _, err := ParsePut([]byte(c.body))
		if err != nil {
			t.Errorf("%s: %v", c.body, err)
			continue
		}
		if got := string(j.AppendJSON(nil)); got != c.canonical {
			t.Errorf("%s\n got %s\nwant %s", c.body, got, c.canonical)
		}
	}
}

func TestIfVersion(t *testing.T) {
	for body, want := range map[string]string{`{}`: "none", `{"if_version":0}`: "0", `{"if_version":7}`: "7"} {
		_, v, err := ParsePut([]byte(body))
		got := "none"
		if v != nil {
			got = fmt.Sprint(*v)
		}
		if err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", body, got, err, want)
		}
	}
	if _, err := ParseJob([]byte(`{"if_version":0}`)); !errors.Is(err, &Error{Code: CodeUnknownField, Field: "if_version"}) {
		t.Errorf("if_version is no part of a job, but: %v", err)
	}
}

func TestParseRefuses(t *testing.T) {
	long := strings.Repeat("x", 200)
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	for _, c := range []struct {
		body  string
		code  Code
		field string
		say   string // what the message must name
	}{
		{``, CodeInvalidJSON, "", "empty"},
		{"  \n", CodeInvalidJSON, "", "empty"},
		{`null`, CodeInvalidJSON, "", "byte 0"},
		{`[]`, CodeInvalidJSON, "", "byte 0"},
		{"\ufeff{}", CodeInvalidJSON, "", "byte 0"},
		{`{`, CodeInvalidJSON, "", "ends at byte 1"},
		{`{"schedule"`, CodeInvalidJSON, "", "ends at byte 11"},
		{`{"schedule":"@ho`, CodeInvalidJSON, "", "ends at byte 16"},
		{`{"schedule":}`, CodeInvalidJSON, "", "byte 12"},
		{`{"payload":{"a":[1,2}}`, CodeInvalidJSON, "", "byte 20"},
		{`{"payload":01}`, CodeInvalidJSON, "", "byte 12"},
		{`{"payload":1.}`, CodeInvalidJSON, "", "byte 13"},
		{`{"payload":-}`, CodeInvalidJSON, "", "byte 12"},
		{`{"payload":1e}`, CodeInvalidJSON, "", "byte 13"},
		{`{"payload":tru}`, CodeInvalidJSON, "", "byte 11"},
		{`{"payload":"\x"}`, CodeInvalidJSON, "", "byte 13"},
		{`{"payload":"\u12g4"}`, CodeInvalidJSON, "", "byte 14"},
		{`{"payload":"\u12`, CodeInvalidJSON, "", "byte 14"},
		{`{"payload":"\`, CodeInvalidJSON, "", "ends at byte 13"},
		{"{\"payload\":\"a\nb\"}", CodeInvalidJSON, "", "byte 13"},
		{"{\"payload\":\"\xff\"}", CodeInvalidJSON, "", "byte 11"},
		{`{"payload":` + strings.Repeat("[", 20000), CodeInvalidJSON, "", "10000"},
		{`{"payload_text":"x\ud800"}`, CodeInvalidJSON, "", "byte 18"},
		{`{"payload_text":"x\ud800\u0041"}`, CodeInvalidJSON, "", "byte 18"},
		{`{"payload_text":"\udc00\ud800"}`, CodeInvalidJSON, "", "byte 17"},
		{`{}x`, CodeInvalidJSON, "", "byte 2"},
		{`{}{}`, CodeInvalidJSON, "", "byte 2"},
		{`{"schedule":"@hourly",}`, CodeInvalidJSON, "", "byte 22"},
		{`{'schedule':"@hourly"}`, CodeInvalidJSON, "", "byte 1"},
		{`{"owner":"a","owner":"b"}`, CodeInvalidJSON, "owner", "byte 13"},
		{`{"owner":null,"owner":"b"}`, CodeInvalidJSON, "owner", "twice"},
		{`{"headers":{"a":"1","a":"2"}}`, CodeInvalidJSON, "headers", "twice"},
		{`{"labels":{"a":"1","a":"2"}}`, CodeInvalidJSON, "labels", "twice"},

		{`{"Schedule":"@hourly"}`, CodeUnknownField, "Schedule", "schedule"},
		{`{"id":"x"}`, CodeUnknownField, "id", ""},
		{`{"` + long + `":1}`, CodeUnknownField, long[:128], ""},

		{`{"schedule":5}`, CodeInvalidField, "schedule", "a number; expected a string"},
		{`{"max_fires":"5"}`, CodeInvalidField, "max_fires", "a string; expected a whole number"},
		{`{"max_fires":0}`, CodeInvalidField, "max_fires", "1"},
		{`{"max_fires":-1}`, CodeInvalidField, "max_fires", "-1"},
		{`{"max_fires":1.0}`, CodeInvalidField, "max_fires", "1.0"},
		{`{"max_fires":1e3}`, CodeInvalidField, "max_fires", "digits"},
		{`{"max_fires":9007199254740992}`, CodeInvalidField, "max_fires", "9007199254740991"},
		{`{"max_fires":99999999999999999999999999}`, CodeInvalidField, "max_fires", "9007199254740991"},
		{`{"if_version":-1}`, CodeInvalidField, "if_version", "whole number from 0"},
		{`{"headers":[]}`, CodeInvalidField, "headers", "an array; expected an object"},
		{`{"headers":{"a":1}}`, CodeInvalidField, "headers", "string"},
		{`{"labels":{"a":null}}`, CodeInvalidField, "labels", "null; expected a string"},
		{`{"owner":true}`, CodeInvalidField, "owner", "a boolean"},
		{`{"owner":""}`, CodeInvalidField, "owner", "empty"},
		{`{"owner":"a\tb"}`, CodeInvalidField, "owner", "control"},
		{`{"owner":"` + long + `"}`, CodeInvalidField, "owner", "200 bytes; at most 128"},

		{`{"schedule":""}`, CodeInvalidSchedule, "schedule", "empty"},
		{`{"schedule":"` + strings.Repeat("1,", 300) + `"}`, CodeInvalidSchedule, "schedule", "600 bytes; at most 512"},
		{`{"schedule":"* * * * é"}`, CodeInvalidSchedule, "schedule", "ASCII"},
		{`{"zone":""}`, CodeInvalidZone, "zone", "empty"},
		{`{"zone":"Local"}`, CodeInvalidZone, "zone", "IANA"},
		{`{"zone":"../etc/passwd"}`, CodeInvalidZone, "zone", "IANA"},
		{`{"zone":"/etc/localtime"}`, CodeInvalidZone, "zone", "IANA"},
		{`{"zone":"` + long + `"}`, CodeInvalidZone, "zone", "at most 64"},

		{`{"dst_gap":"SKIP"}`, CodeInvalidField, "dst_gap", "shift, skip"},
		{`{"dst_fold":"none"}`, CodeInvalidField, "dst_fold", "first, last, both"},
		{`{"misfire":"fire_twice"}`, CodeInvalidField, "misfire", "fire_once, fire_all, skip"},
		{`{"priority":3}`, CodeInvalidField, "priority", "normal, high, low"},

		{`{"spread":30}`, CodeInvalidField, "spread", `"30s"`},
		{`{"spread":"30"}`, CodeInvalidField, "spread", `"30s"`},
		{`{"spread":"-1s"}`, CodeInvalidField, "spread", "8784h"},
		{`{"spread":"8785h"}`, CodeInvalidField, "spread", "8784h"},
		{`{"spread":"1us"}`, CodeInvalidField, "spread", "millisecond"},
		{`{"expires":"0s"}`, CodeInvalidField, "expires", "1ms"},
		{`{"expires":"87649h"}`, CodeInvalidField, "expires", "87648h"},
		{`{"expires":"9999999999999h"}`, CodeInvalidField, "expires", "1ms to 87648h"},
		{`{"start":1733000000}`, CodeInvalidField, "start", "RFC 3339"},
		{`{"start":"2026-02-30T00:00:00Z"}`, CodeInvalidField, "start", "RFC 3339"},
		{`{"start":"2026-12-01T9:00:00Z"}`, CodeInvalidField, "start", "RFC 3339"},
		{`{"start":"2026-12-01T09:00:00,5Z"}`, CodeInvalidField, "start", "RFC 3339"},
		{`{"start":"2026-12-01T09:00:00+24:00"}`, CodeInvalidField, "start", "RFC 3339"},
		{`{"start":"2026-12-01T09:00:00+01:60"}`, CodeInvalidField, "start", "RFC 3339"},
		{`{"start":"2026-12-01"}`, CodeInvalidField, "start", "RFC 3339"},
		{`{"start":"2026-12-01T09:00:00"}`, CodeInvalidField, "start", "RFC 3339"},
		{`{"start":"0000-01-01T00:00:00Z"}`, CodeInvalidField, "start", "1970 to 9999"},
		{`{"start":"0001-01-01T00:00:00Z"}`, CodeInvalidField, "start", "1970 to 9999"},
		{`{"start":"1970-01-01T00:00:00+01:00"}`, CodeInvalidField, "start", "1970 to 9999"},
		{`{"end":"9999-12-31T23:59:59-05:00"}`, CodeInvalidField, "end", "1970 to 9999"},
		{`{"start":"2026-12-01T00:00:00.0001Z"}`, CodeInvalidField, "start", "millisecond"},
		{`{"start":"2026-12-01T00:00:00.0000000009Z"}`, CodeInvalidField, "start", "RFC 3339"},
		{`{"start":"2026-12-01T00:00:00Z","end":"2026-12-01T00:00:00Z"}`, CodeInvalidField, "end", "after start"},

		{`{"topic":""}`, CodeInvalidTopic, "topic", "empty"},
		{`{"topic":"a..b"}`, CodeInvalidTopic, "topic", "empty token"},
		{`{"topic":".a"}`, CodeInvalidTopic, "topic", "empty token"},
		{`{"topic":"a."}`, CodeInvalidTopic, "topic", "empty token"},
		{`{"topic":"a b"}`, CodeInvalidTopic, "topic", `" "`},
		{`{"topic":"a.*"}`, CodeInvalidTopic, "topic", `"*"`},
		{`{"topic":"a.>"}`, CodeInvalidTopic, "topic", `">"`},
		{`{"topic":"é"}`, CodeInvalidTopic, "topic", "ASCII"},
		{`{"topic":"` + long + `"}`, CodeInvalidTopic, "topic", "200 bytes"},
		{`{"topic":"1.2.3.4.5.6.7.8.9"}`, CodeInvalidTopic, "topic", "9 tokens; at most 8"},

		{`{"payload":1,"payload_text":"x"}`, CodeInvalidField, "payload_text", "payload"},
		{`{"payload":null,"payload_base64":""}`, CodeInvalidField, "payload_base64", "one payload"},
		{`{"payload_text":{}}`, CodeInvalidField, "payload_text", "an object; expected a string"},
		{`{"payload_base64":"/wA"}`, CodeInvalidField, "payload_base64", "base64"},
		{`{"payload_base64":"/wB="}`, CodeInvalidField, "payload_base64", "base64"},
		{`{"payload_base64":"_wA="}`, CodeInvalidField, "payload_base64", "base64"},
		{`{"payload_base64":"/w\nA="}`, CodeInvalidField, "payload_base64", "base64"},
		{`{"payload":"` + strings.Repeat("x", MaxPayload-1) + `"}`, CodePayloadTooLarge, "payload", "524289 bytes; at most 524288"},
		{`{"payload_text":"` + strings.Repeat("x", MaxPayload+1) + `"}`, CodePayloadTooLarge, "payload_text", "524289 bytes; at most 524288"},
		{`{"payload_base64":"` + base64.StdEncoding.EncodeToString(make([]byte, MaxPayload+1)) + `"}`, CodePayloadTooLarge, "payload_base64", "524289 bytes; at most 524288"},

		{`{"headers":{` + many(40, `"H%d":"x"`) + `}}`, CodeInvalidField, "headers", "40 headers; at most 32"},
		{`{"headers":{"H":"` + strings.Repeat("x", MaxHeaderBytes) + `"}}`, CodeInvalidField, "headers", "16385 bytes of names and values; at most 16384"},
		{`{"headers":{"Nats-Msg-Id":"x"}}`, CodeInvalidField, "headers", "reserved"},
		{`{"headers":{"nATS-Rollup":"x"}}`, CodeInvalidField, "headers", "reserved"},
		{`{"headers":{"CARILLON-job":"x"}}`, CodeInvalidField, "headers", "reserved"},
		{`{"headers":{"":"x"}}`, CodeInvalidField, "headers", "empty name"},
		{`{"headers":{"A B":"x"}}`, CodeInvalidField, "headers", "RFC 7230"},
		{`{"headers":{"A:":"x"}}`, CodeInvalidField, "headers", "RFC 7230"},
		{`{"headers":{"A\r\nB":"x"}}`, CodeInvalidField, "headers", "RFC 7230"},
		{`{"headers":{"A":"x\r\nNats-Rollup: all"}}`, CodeInvalidField, "headers", "CR, LF"},
		{`{"headers":{"A":"x\u0000"}}`, CodeInvalidField, "headers", "control"},
		{`{"headers":{"A":" x"}}`, CodeInvalidField, "headers", "white space"},

		{`{"labels":{` + many(33, `"l%d":"x"`) + `}}`, CodeInvalidField, "labels", "33 labels; at most 32"},
		{`{"labels":{"":"x"}}`, CodeInvalidField, "labels", "empty name"},
		{`{"labels":{"a=b":"x"}}`, CodeInvalidField, "labels", "="},
		{`{"labels":{"` + long + `":"x"}}`, CodeInvalidField, "labels", "200 bytes; at most 128"},
		{`{"labels":{"a":"` + long + `"}}`, CodeInvalidField, "labels", "200 bytes; at most 128"},
		{`{"labels":{"a":"x\n"}}`, CodeInvalidField, "labels", "control"},
	} {
		_, _, err := ParsePut([]byte(c.body))
		e, ok := errors.AsType[*Error](err)
		short := cut(c.body)
		if !ok {
			t.Errorf("%s: %v; want an *Error", short, err)
			continue
		}
		if e.Code != c.code || e.Field != c.field || !strings.Contains(e.Message, c.say) {
			t.Errorf("%s\n got %s\nwant %s: %s: …%s…", short, e, c.code, c.field, c.say)
		}
		if len(e.Message) > 600 {
			t.Errorf("%s: a message of %d bytes", short, len(e.Message))
		}
	}
}

// What is at the limits is accepted.
func TestParseLimits(t *testing.T) {
	var headers, labels []string
	for i := range MaxHeaders {
		headers = append(headers, fmt.Sprintf(`"H%02d":"%s"`, i, strings.Repeat("x", MaxHeaderBytes/MaxHeaders-3)))
		labels = append(labels, fmt.Sprintf(`"%0*d":"%s"`, MaxLabelLength, i, strings.Repeat("x", MaxLabelLength)))
	}
	for _, body := range []string{
		`{"payload":"` + strings.Repeat("x", MaxPayload-2) + `"}`,
		`{"payload_text":"` + strings.Repeat("x", MaxPayload) + `"}`,
		`{"payload_base64":"` + base64.StdEncoding.EncodeToString(make([]byte, MaxPayload)) + `"}`,
		`{"payload":` + strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth) + `}`,
		`{"headers":{` + strings.Join(headers, ",") + `}}`,
		`{"labels":{` + strings.Join(labels, ",") + `}}`,
		`{"owner":"` + strings.Repeat("o", MaxOwnerLength) + `"}`,
		`{"topic":"` + strings.Repeat("t", MaxTopicLength) + `"}`,
		`{"schedule":"` + strings.Repeat("s", MaxScheduleText) + `"}`,
		`{"spread":"8784h","expires":"87648h"}`,
	} {
		j, err := ParseJob([]byte(body))
		if err != nil {
			t.Errorf("%s…: %v", cut(body), err)
			continue
		}
		again, err := ParseJob(j.AppendJSON(nil))
		if err != nil || !reflect.DeepEqual(j, again) {
			t.Errorf("%s…: not the same when read again: %v", cut(body), err)
		}
	}
}

func TestCheckJobID(t *testing.T) {
	for _, id := range []string{"a", "A-Z_a:z=0@9+", strings.Repeat("x", 128)} {
		if err := CheckJobID(id); err != nil {
			t.Error(err)
		}
	}
	for _, id := range []string{"", "a.b", "a b", "*", ">", "é", "a/b", "a!1", "x\x00", strings.Repeat("x", 129), strings.Repeat("x", 4000)} {
		err := CheckJobID(id)
		if !errors.Is(err, &Error{Code: CodeInvalidJobID}) || len(err.Error()) > 300 {
			t.Errorf("%.20q: %v", id, err)
		}
	}
}

// drawJob draws a valid job.
func drawJob(t *rapid.T) Job {
	text := func(most int) *rapid.Generator[string] {
		return rapid.StringN(0, most/4, most).Filter(plain)
	}
	instant := rapid.Custom(func(t *rapid.T) time.Time {
		return time.UnixMilli(rapid.Int64Range(0, 253402300799999).Draw(t, "ms")).UTC()
	})
	maybe := func(name string) bool { return rapid.Bool().Draw(t, name) }
	var j Job
	j.ID = rapid.StringMatching(`[A-Za-z0-9_:=@+-]{1,128}`).Draw(t, "id")
	if maybe("scheduled") {
		j.Schedule = rapid.StringMatching(`[ -~\t]{1,60}`).Draw(t, "schedule")
		j.Zone = rapid.SampledFrom([]string{"", "Europe/Paris", "America/Argentina/Buenos_Aires", "Etc/GMT+5"}).Draw(t, "zone")
	}
	j.Gap = Gap(rapid.IntRange(0, 1).Draw(t, "gap"))
	j.Fold = Fold(rapid.IntRange(0, 2).Draw(t, "fold"))
	j.Misfire = Misfire(rapid.IntRange(0, 2).Draw(t, "misfire"))
	j.Priority = Priority(rapid.IntRange(0, 2).Draw(t, "priority"))
	if maybe("bounded") {
		j.Start, j.End = instant.Draw(t, "start"), instant.Draw(t, "end")
		if !j.End.After(j.Start) {
			j.End = time.Time{}
		}
	}
	j.MaxFires = rapid.Uint64Range(0, MaxFiresBound).Draw(t, "max_fires")
	j.Spread = time.Duration(rapid.Int64Range(0, MaxSpread.Milliseconds()).Draw(t, "spread")) * time.Millisecond
	j.Expires = time.Duration(rapid.Int64Range(0, MaxExpires.Milliseconds()).Draw(t, "expires")) * time.Millisecond
	if maybe("topical") {
		j.Topic = rapid.StringMatching(`[!-)+\-/-=?-~]{1,12}(\.[!-)+\-/-=?-~]{1,12}){0,7}`).Filter(func(s string) bool { return s != DefaultTopic }).Draw(t, "topic")
	}
	switch j.Form = PayloadForm(rapid.IntRange(0, 3).Draw(t, "form")); j.Form {
	case PayloadJSON:
		j.Payload = drawJSON(t)
	case PayloadText:
		j.Payload = []byte(rapid.String().Draw(t, "text"))
	case PayloadBase64:
		j.Payload = rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
	}
	if len(j.Payload) == 0 {
		j.Payload = nil
	}
	if maybe("headed") {
		value := text(100).Filter(func(s string) bool { return strings.Trim(s, " \t") == s })
		j.Headers = rapid.MapOfN(rapid.StringMatching(`[A-BD-MO-Z!#$%&'*+.^_|~-][a-z0-9]{0,20}`), value, 1, 8).Draw(t, "headers")
	}
	j.Owner = text(MaxOwnerLength).Draw(t, "owner")
	if maybe("labelled") {
		name := text(MaxLabelLength).Filter(func(s string) bool { return s != "" && !strings.Contains(s, "=") })
		j.Labels = rapid.MapOfN(name, text(MaxLabelLength), 1, 8).Draw(t, "labels")
	}
	return j
}

// drawJSON draws JSON with white space of its own inside.
func drawJSON(t *rapid.T) []byte {
	var value *rapid.Generator[any]
	value = rapid.Deferred(func() *rapid.Generator[any] {
		return rapid.OneOf(
			rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Int64().AsAny(), rapid.Float64().AsAny(), rapid.String().AsAny(),
			rapid.SliceOfN(value, 0, 3).AsAny(), rapid.MapOfN(rapid.String(), value, 0, 3).AsAny(),
		)
	})
	v := value.Draw(t, "json")
	var b []byte
	var err error
	if rapid.Bool().Draw(t, "indented") {
		b, err = json.MarshalIndent([]any{v}, "\t", " ") // of several lines, whatever v is
	} else {
		b, err = json.Marshal(v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestJobRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawJob(t)
		valid := j
		if err := valid.Validate(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(j, valid); diff != "" {
			t.Fatalf("Validate changed a canonical job: %s", diff)
		}
		body := j.AppendJSON(nil)
		if !json.Valid(body) {
			t.Fatalf("no JSON: %s", body)
		}
		got, err := ParseJob(body)
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		got.ID = j.ID
		if diff := cmp.Diff(j, got); diff != "" {
			t.Fatalf("%s: %s", body, diff)
		}

		line := j.AppendLine(nil)
		if bytes.ContainsAny(line, "\r\n") {
			t.Fatalf("more than one line: %q", line)
		}
		got, err = ParseLine(line)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if j.Form == PayloadJSON && got.Form == PayloadText {
			got.Form = PayloadJSON
		}
		if diff := cmp.Diff(j, got); diff != "" {
			t.Fatalf("%s: %s", line, diff)
		}

		// encoding/json may change a payload's white space, nothing else.
		std, err := json.Marshal(j)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(std, &got); err != nil {
			t.Fatal(err)
		}
		if j.Form == PayloadJSON {
			got.Payload, j.Payload = compacted(t, got.Payload), compacted(t, j.Payload)
		}
		got.Form = j.Form
		if diff := cmp.Diff(j, got); diff != "" {
			t.Fatalf("%s: %s", std, diff)
		}
	})
}

func compacted(t *rapid.T, b []byte) []byte {
	v, err := json.Marshal(json.RawMessage(b))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestValidateBuilt(t *testing.T) {
	paris := time.FixedZone("", 3600)
	j := Job{
		ID: "x", Schedule: "@daily", Zone: defaultZone, Topic: DefaultTopic, Start: time.Date(2030, 1, 1, 0, 0, 0, 0, paris), Payload: []byte(`{"a":1}`),
		Headers: map[string]string{}, Labels: map[string]string{},
	}
	if err := j.Validate(); err != nil {
		t.Fatal(err)
	}
	want := Job{ID: "x", Schedule: "@daily", Start: time.Date(2029, 12, 31, 23, 0, 0, 0, time.UTC), Payload: []byte(`{"a":1}`), Form: PayloadJSON}
	if diff := cmp.Diff(want, j); diff != "" {
		t.Error(diff)
	}
	for payload, form := range map[string]PayloadForm{"": PayloadNone, "hello": PayloadText, " 1": PayloadText, "\xff": PayloadBase64, "1": PayloadJSON} {
		j := Job{Payload: []byte(payload)}
		if err := j.Validate(); err != nil || j.Form != form {
			t.Errorf("%q: form %d, %v; want %d", payload, j.Form, err, form)
		}
	}
	for _, c := range []struct {
		job   Job
		code  Code
		field string
	}{
		{Job{ID: "a.b"}, CodeInvalidJobID, ""},
		{Job{Misfire: 3}, CodeInvalidField, "misfire"},
		{Job{Priority: 3}, CodeInvalidField, "priority"},
		{Job{Gap: 2}, CodeInvalidField, "dst_gap"},
		{Job{Fold: 3}, CodeInvalidField, "dst_fold"},
		{Job{Form: 4, Payload: []byte("x")}, CodeInvalidField, "payload"},
		{Job{Form: 4, Payload: make([]byte, MaxPayload+1)}, CodeInvalidField, "payload"},
		{Job{Form: PayloadJSON, Payload: []byte("{")}, CodeInvalidJSON, "payload"},
		{Job{Form: PayloadJSON, Payload: []byte("1 ")}, CodeInvalidJSON, "payload"},
		{Job{Form: PayloadText, Payload: []byte("\xff")}, CodeInvalidField, "payload_text"},
		{Job{Payload: make([]byte, MaxPayload+1)}, CodePayloadTooLarge, "payload_text"},
		{Job{Spread: time.Microsecond}, CodeInvalidField, "spread"},
		{Job{Expires: -time.Second}, CodeInvalidField, "expires"},
		{Job{Start: time.Unix(0, 1)}, CodeInvalidField, "start"},
		{Job{MaxFires: 1 << 60}, CodeInvalidField, "max_fires"},
		{Job{Headers: map[string]string{"nats-x": ""}}, CodeInvalidField, "headers"},
		{Job{Owner: "\xff"}, CodeInvalidField, "owner"},
	} {
		err := c.job.Validate()
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Code != c.code || e.Field != c.field {
			t.Errorf("%+v: %v; want %s: %s", c.job.Headers, err, c.code, c.field)
		}
	}
}

func FuzzParseJob(f *testing.F) {
	f.Add([]byte(protocolExample))
	f.Add([]byte(`{"payload_base64":"/wA=","if_version":3,"dst_fold":"both","topic":"a.b"}`))
	f.Add([]byte("{\"payload\":[1,\n{\"a\":\"\\ud83d\\ude00\"}],\"spread\":\"1h0m0.001s\"}"))
	f.Fuzz(func(t *testing.T, body []byte) {
		before := bytes.Clone(body)
		j, _, err := ParsePut(body)
		if !bytes.Equal(before, body) {
			t.Fatal("the body was changed")
		}
		if err != nil {
			e, ok := errors.AsType[*Error](err)
			if !ok || e.Code == "" || e.Message == "" || !utf8.ValidString(e.Message) || !utf8.ValidString(e.Field) {
				t.Fatalf("%q", err)
			}
			return
		}
		if !json.Valid(body) {
			t.Fatalf("accepted, but no JSON: %q", body)
		}
		canonical := j.AppendJSON(nil)
		again, err := ParseJob(canonical)
		if err != nil {
			t.Fatalf("%s: %v", canonical, err)
		}
		if diff := cmp.Diff(j, again); diff != "" {
			t.Fatal(diff)
		}
		if twice := again.AppendJSON(nil); !bytes.Equal(canonical, twice) {
			t.Fatalf("%s\n%s", canonical, twice)
		}
		if err := again.Validate(); err != nil {
			t.Fatal(err)
		}
		j.ID = "x"
		line := j.AppendLine(nil)
		if _, err := ParseLine(line); err != nil || bytes.ContainsAny(line, "\r\n") {
			t.Fatalf("%q: %v", line, err)
		}
	})
}

// FuzzJSON holds the reader against encoding/json: what one reads, the other does.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,-2.5e+3,true,false,null,"\u00e9\n"]}`, `[[],{}]`, `"\ud800"`, "01", "-", "1.e5", `{"a":1,}`, "\"\x00\""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := reader{b: b}
		r.space()
		e := r.skip(1)
		r.space()
		got := e == nil && r.i == len(b)
		if want := json.Valid(b) && utf8.Valid(b); got != want {
			t.Fatalf("%q: accepted %v, want %v (%v)", b, got, want, e)
		}
		if !got || b[0] != '"' || b[len(b)-1] != '"' {
			return
		}
		var want string
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatal(err)
		}
		r = reader{b: b}
		s, e := r.string()
		if e == nil && string(s) != want || e != nil && !strings.ContainsRune(want, utf8.RuneError) {
			t.Fatalf("%q: %q, %v; want %q", b, s, e, want)
		}
	})
}

var typicalPut = []byte(`{"schedule":"@every 15m","topic":"billing.renewals","spread":"30s","misfire":"fire_once","expires":"10m",` +
	`"priority":"high","payload":{"customer":"c-184467","plan":"annual","amount":12900,"currency":"EUR","retry":false,"tags":["renewal","auto"]},` +
	`"headers":{"Tenant":"acme"},"owner":"acme","labels":{"team":"billing"}}`)

func BenchmarkParsePut(b *testing.B) {
	b.SetBytes(int64(len(typicalPut)))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := ParsePut(typicalPut); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendJSON(b *testing.B) {
	j, err := ParseJob(typicalPut)
	if err != nil {
		b.Fatal(err)
	}
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = j.AppendJSON(dst[:0])
	}
}

func BenchmarkAppendTime(b *testing.B) {
	at := time.UnixMilli(1_796_115_600_250)
	var dst []byte
	for _, v := range []struct {
		name string
		to   func([]byte, time.Time) []byte
	}{
		{"AppendTime", AppendTime},
		{"AppendFormat", func(dst []byte, t time.Time) []byte { return t.UTC().AppendFormat(dst, TimeFormat) }},
	} {
		b.Run(v.name, func(b *testing.B) {
			for b.Loop() {
				dst = v.to(dst[:0], at)
			}
		})
	}
}
