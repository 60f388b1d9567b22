package carillon

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"
)

func TestNames(t *testing.T) {
	n := DefaultNames()
	for got, want := range map[string]string{
		n.Command(VerbPut, "x"):                           "carillon.cmd.put.x",
		n.API(VerbGet, "x"):                               "carillon.api.get.x",
		n.API(VerbList, ""):                               "carillon.api.list",
		n.Log(3, VerbPut, "x"):                            "carillon.log.3.put.x",
		n.Record(3, "tick"):                               "carillon.log.3.tick",
		n.Record(-1, "tick"):                              "carillon.log._.tick",
		n.Trigger(3, "a.b"):                               "carillon.trigger.3.a.b",
		n.Trigger(3, ""):                                  "carillon.trigger.3.default",
		n.AllTriggers("a.>"):                              "carillon.trigger.*.a.>",
		n.AllEvents():                                     "carillon.event.>",
		n.Event(0, EventSkipped, "x"):                     "carillon.event.0.skipped.x",
		n.Event(0, EventRejected, "a.b"):                  "carillon.event.0.rejected._",
		n.LogStream():                                     "CARILLON_LOG",
		n.OutStream(12):                                   "CARILLON_OUT_12",
		n.TopicStream("a.*.b/c.>"):                        "CARILLON_TOPIC_a_ANY_b-c_ALL",
		n.TopicSubject("a.*"):                             "carillon.topic.a.*",
		NamesFor("bells").Command(VerbFire, "x"):          "bells.cmd.fire.x",
		NamesFor("bells").OutStream(0):                    "BELLS_OUT_0",
		Names{Prefix: "a", Stream: "b"}.Trigger(0, "t.u"): "a.trigger.0.t.u",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if err := n.Validate(); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "a.b", "a b", "*", ">", "$JS", "é", strings.Repeat("x", 33)} {
		if err := NamesFor(bad).Validate(); !errors.Is(err, &Error{Code: CodeInvalidField, Field: "prefix"}) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for _, subject := range []string{
		"", "carillon", "carillon.trigger", "carillon.trigger.", "carillon.trigger.3", "carillon.trigger.3.", "carillon.trigger.-1.t", "carillon.trigger.x.t",
		"carillon.event.3.skipped.x", "bells.trigger.3.t", "carillon.topic.",
	} {
		if p, topic, ok := n.SplitTrigger(subject); ok {
			t.Errorf("%s is no trigger's, but of %d, %s", subject, p, topic)
		}
	}
}

func TestTriggerID(t *testing.T) {
	for _, c := range []struct {
		id, job string
		n       int64
		forced  bool
	}{
		{FormatTriggerID("a@b", 1_800_000_000_250), "a@b", 1_800_000_000_250, false},
		{FormatForcedID("a@b", 77), "a@b", 77, true},
	} {
		job, n, forced, ok := SplitTriggerID(c.id)
		if !ok || job != c.job || n != c.n || forced != c.forced {
			t.Errorf("%s: %s, %d, %v, %v", c.id, job, n, forced, ok)
		}
	}
	for _, id := range []string{"", "a", "@1", "a@", "a@x", "a@-1", "a.b@1", "a!", "a!b@1", "a@99999999999999999999"} {
		if _, _, _, ok := SplitTriggerID(id); ok {
			t.Errorf("%s is no trigger's id", id)
		}
	}
}

func triggerHeaders() nats.Header {
	return nats.Header{
		HeaderJob: {"j"}, HeaderTrigger: {"j@1800000000250"}, HeaderScheduled: {"2027-01-15T08:00:00.250Z"}, HeaderVersion: {"3"}, HeaderOutput: {"44"},
		"Tenant": {"acme"},
	}
}

func TestParseTrigger(t *testing.T) {
	n := DefaultNames()
	h := triggerHeaders()
	h.Set(HeaderMissed, "12")
	got, err := n.ParseTrigger("carillon.trigger.7.a.b", h, []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	want := Trigger{
		Job: "j", ID: "j@1800000000250", Scheduled: time.UnixMilli(1_800_000_000_250).UTC(), Version: 3, Output: 44, Missed: 12, Partition: 7,
		Topic: "a.b", Headers: h, Payload: []byte("x"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	got.Received = got.Scheduled.Add(3 * time.Millisecond)
	if got.Lateness() != 3*time.Millisecond || got.Forced() {
		t.Error(got.Lateness(), got.Forced())
	}
	got.ID = "j!5"
	if !got.Forced() {
		t.Error("not forced")
	}
	for name, bad := range map[string][]string{
		HeaderJob:       {"", "other"},
		HeaderTrigger:   {"", "j", "j@", "x@1"},
		HeaderScheduled: {"", "1800000000250", "2027-01-15T08:00:00Z"},
		HeaderVersion:   {"", "-1", "x"},
		HeaderOutput:    {"", "1.5"},
		HeaderMissed:    {"x", "-1"},
	} {
		for _, value := range bad {
			h := triggerHeaders()
			h.Set(name, value)
			if _, err := n.ParseTrigger("carillon.trigger.7.a.b", h, nil); err == nil {
				t.Errorf("%s: %q makes a trigger", name, value)
			}
		}
	}
	if _, err := n.ParseTrigger("carillon.event.7.skipped.j", triggerHeaders(), nil); err == nil {
		t.Error("an event makes a trigger")
	}
	if _, err := n.ParseTrigger("carillon.trigger.7.t", nil, nil); err == nil {
		t.Error("no headers make a trigger")
	}
}

func TestParseTime(t *testing.T) {
	for _, s := range []string{
		"2027-01-15T08:00:00.250Z", "2028-02-29T23:59:59.999Z", "0000-01-01T00:00:00.000Z", "9999-12-31T00:00:00.000Z",
		"2027-02-29T00:00:00.000Z", "2027-06-31T00:00:00.000Z", "2027-00-10T00:00:00.000Z", "2027-13-10T00:00:00.000Z", "2027-01-00T00:00:00.000Z",
		"2027-01-15T24:00:00.000Z", "2027-01-15T08:60:00.000Z", "2027-01-15T08:00:60.000Z", "2027-01-15T8:00:00.0000Z", "2027-01-15T08:00:00,250Z",
		"2027-01-15T08:00:00.250z", "2027-01-15 08:00:00.250Z", "2027-01-15T08:00:00.25Z", "-027-01-15T08:00:00.250Z", "2027-01-15T08:00:00.2:0Z", "",
	} {
		want, err := time.Parse(TimeFormat, s)
		sound := err == nil && want.Format(TimeFormat) == s
		if got, ok := parseTime(s); ok != sound || ok && got != want {
			t.Errorf("%s: %v, %v; want %v, %v", s, got, ok, want, sound)
		}
	}
}

func FuzzParseTrigger(f *testing.F) {
	f.Add("carillon.trigger.7.a.b", "j", "j@1800000000250", "2027-01-15T08:00:00.250Z", "3", "44", "12")
	f.Add("carillon.topic.a", "j", "j!9", "2027-01-15T08:00:00.250Z", "0", "0", "")
	f.Fuzz(func(t *testing.T, subject, job, id, scheduled, version, output, missed string) {
		h := nats.Header{HeaderJob: {job}, HeaderTrigger: {id}, HeaderScheduled: {scheduled}, HeaderVersion: {version}, HeaderOutput: {output}, HeaderMissed: {missed}}
		tr, err := DefaultNames().ParseTrigger(subject, h, nil)
		if err != nil {
			return
		}
		if CheckJobID(tr.Job) != nil || tr.Job != job || tr.Topic == "" || tr.Scheduled.Format(TimeFormat) != scheduled {
			t.Fatalf("%+v", tr)
		}
	})
}

// FuzzParseRequests feeds every other decoder of the protocol.
func FuzzParseRequests(f *testing.F) {
	for _, s := range []string{
		"", `{"if_version":3}`, `{"payload_text":"x"}`, `{"prefix":"a","label":"b=c","owner":"d"}`, `{"topic":"a.>","status":"paused","limit":5,"cursor":"x"}`,
		`{"schedule":"@hourly","after":"2027-01-15T08:00:00.250Z","count":5}`, `{"type":"carillon.v1.job","id":"x","spec":{"payload":[1]}}`,
		`{"type":"carillon.v1.jobs","jobs":[{"id":"x"}]}`, `{"type":"carillon.v1.event","kind":"skipped"}`, `{"type":"carillon.v1.preview","next":["2027-01-15T08:00:00.250Z"]}`,
		`{"id":"x","schedule":"@hourly"}`, `{"dir":"/a","recheck":true}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if v, err := ParseCondition(b); err == nil {
			if _, err := ParseCondition(AppendCondition(nil, v)); err != nil {
				t.Fatal(err)
			}
		}
		if payload, has, err := ParseFire(b); err == nil && has {
			if again, has, err := ParseFire(AppendFire(nil, payload, PayloadNone)); err != nil || !has || string(again) != string(payload) {
				t.Fatalf("%q: %q, %v, %v", payload, again, has, err)
			}
		}
		if p, err := ParseSnapshot(b); err == nil {
			body, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			if again, err := ParseSnapshot(body); err != nil || again != p {
				t.Fatalf("%+v: %+v, %v", p, again, err)
			}
		}
		if p, err := ParsePreview(b); err == nil {
			if again, err := ParsePreview(p.AppendJSON(nil)); err != nil || again != p {
				t.Fatalf("%+v: %+v, %v", p, again, err)
			}
		}
		if j, err := ParseLine(b); err == nil {
			if again, err := ParseLine(j.AppendLine(nil)); err != nil || again.ID != j.ID || string(again.Payload) != string(j.Payload) {
				t.Fatalf("%+v: %+v, %v", j, again, err)
			}
		}
		if e, err := ParseEvent(b); err == nil {
			if _, err := ParseEvent(e.AppendJSON(nil)); err != nil {
				t.Fatal(err)
			}
		}
		if s, err := ParseSelection(b); err == nil && s == (Selection{}) {
			t.Fatal("everything selected")
		}
		if l, err := ParseList(b); err == nil && (l.Limit < 1 || l.Limit > MaxListLimit) {
			t.Fatalf("%+v", l)
		}
		for _, parse := range []func([]byte) error{
			func(b []byte) error { _, err := ParseJobReply(b); return err },
			func(b []byte) error { _, err := ParseJobsReply(b); return err },
			func(b []byte) error { _, err := ParsePreviewReply(b); return err },
		} {
			if err := parse(b); err != nil && !errors.Is(err, &Error{Code: CodeInternal}) {
				t.Fatal(err)
			}
		}
	})
}

// AppendTime writes what time.Format does, of every year.
func TestAppendTime(t *testing.T) {
	east := time.FixedZone("", 5*3600+1800)
	rapid.Check(t, func(t *rapid.T) {
		at := time.UnixMilli(rapid.Int64Range(-70_000_000_000_000, 300_000_000_000_000).Draw(t, "ms")).In(east)
		if got, want := string(AppendTime([]byte("at "), at)), "at "+at.UTC().Format(TimeFormat); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	})
}
