package engine

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

func examplePack() []PackedJob {
	version := uint64(300)
	a := Pack(&carillon.Job{ID: "a", Schedule: "@every 1s", Payload: []byte(`{"n":1}`), Form: carillon.PayloadJSON}, &version, "r1")
	b := Pack(&carillon.Job{ID: "b", Schedule: "@daily"}, nil, "")
	b.Paused, b.IfAbsent = true, true
	b.State = &JobState{Version: 7, Accepted: 1_767_225_600_000, From: 1_767_225_660_000, Last: 1_767_225_659_000, Fires: 5, Skipped: 1, Missed: policyOf(carillon.Skip)}
	return []PackedJob{a, b}
}

func TestImportGolden(t *testing.T) {
	page := golden(t, "log-record.md")
	page.is(t, "import", EncodePack(examplePack()))
	got, err := DecodePack(page["import"])
	if diff := cmp.Diff(examplePack(), got); err != nil || diff != "" {
		t.Errorf("import: %v\n%s", err, diff)
	}
	for n := range page["import"] {
		if got, err := DecodePack(page["import"][:n]); err == nil {
			t.Errorf("cut to %d bytes: %+v", n, got)
		}
	}
	if got, err := DecodePack(append(bytes.Clone(page["import"]), 0)); err == nil {
		t.Errorf("with a byte behind: %+v", got)
	}
	unknown := EncodePack([]PackedJob{{ID: "a"}})
	unknown[len("\x01\x01\x01a")] = packedFlags
	if got, err := DecodePack(unknown); err == nil {
		t.Errorf("with a flag that means nothing: %+v", got)
	}
}

func TestPackBounds(t *testing.T) {
	small := make([]PackedJob, MaxPackJobs+1)
	for i := range small {
		small[i] = Pack(&carillon.Job{ID: fmt.Sprint("job-", i)}, nil, "")
	}
	large := Pack(&carillon.Job{ID: "large", Payload: bytes.Repeat([]byte("x"), carillon.MaxPayload), Form: carillon.PayloadText}, nil, "")
	late := examplePack()
	late[1].State.Accepted = 1 << 50
	state := JobState{Version: carillon.MaxFiresBound, Accepted: schedule.Horizon, From: schedule.Horizon, Last: schedule.Horizon, Fires: carillon.MaxFiresBound, Skipped: carillon.MaxFiresBound}
	for _, c := range []struct {
		name string
		jobs []PackedJob
		ok   bool
	}{
		{"as many as there may be", small[1:], true},
		{"one more", small, false},
		{"none", nil, false},
		{"one that is large", []PackedJob{large}, true},
		{"two with it", []PackedJob{large, small[0]}, false},
		{"a time beyond all", late, false},
		{"the largest numbers", []PackedJob{{ID: "a", State: &state}}, true},
	} {
		b := EncodePack(c.jobs)
		got, err := DecodePack(b)
		if (err == nil) != c.ok || c.ok && len(got) != len(c.jobs) {
			t.Errorf("%s: %d jobs, %v", c.name, len(got), err)
		}
		size := 4
		for i := range c.jobs {
			size += c.jobs[i].Size()
		}
		if len(b) > size {
			t.Errorf("%s: takes %d bytes, more than the %d foretold", c.name, len(b), size)
		}
	}
}

// TestPackIsPut gives one machine puts and another the same jobs in imports: in the end all jobs are the same, and so are the
// outcomes.
func TestPackIsPut(t *testing.T) {
	bodies := []string{
		`{"schedule":"@every 1s","spread":"10s","payload":{"a": [1, 2]},"headers":{"A":"b: c","Empty":""},"labels":{"x":"y","a":""},"owner":"o"}`,
		`{"schedule":"0 9 * * MON","zone":"Europe/Paris","dst_gap":"skip","dst_fold":"both","priority":"high","topic":"a.b","misfire":"fire_all"}`,
		`{"schedule":"@in 5s","expires":"1m","payload_text":"\u00e9","start":"2026-01-01T00:00:00Z"}`,
		`{"payload_base64":"/w==","end":"2030-01-01T00:00:00.5Z","max_fires":3}`,
		`{"payload_text":""}`, `{"payload":null}`, `{}`,
		`{"schedule":"nonsense"}`, `{"schedule":"@daily","zone":"No/Where"}`, `{"schedule":"@at 2020-01-01T00:00:00Z","end":"2020-01-01T00:00:00Z"}`,
		`{"schedule":"@every 2s","if_version":1}`, `{"schedule":"@every 2s","if_version":9}`,
	}
	puts, packs := New(fuzzLayout, 0), New(fuzzLayout, 0)
	var pack []PackedJob
	var outcomes []Outcome
	ids := []string{"a", "c", "e", "g"}
	for i := range 3 * len(bodies) * len(ids) {
		body, id := bodies[i*7%len(bodies)], ids[i%len(ids)]
		job, ifVersion, err := carillon.ParsePut([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		job.ID = id
		request := []string{"", fmt.Sprint("r", i/5)}[i%2]
		pack = append(pack, Pack(&job, ifVersion, request))
		r, err := puts.Apply(&Entry{Seq: uint64(i) + 1, Time: testEpoch, Kind: KindPut, Verb: "put", Job: id, Request: request, Body: []byte(body)})
		if err != nil {
			t.Fatal(err)
		}
		outcomes = append(outcomes, Outcome{r.Err, r.Changed})
	}
	record := Record{Seq: 1, Time: testEpoch * 1e6, Subject: fuzzLayout.LogSubject(0, "import"), Data: EncodePack(pack)}
	e := fuzzLayout.Decode(&record)
	r, err := packs.Apply(&e)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(outcomes, r.Jobs); diff != "" {
		t.Error(diff)
	}
	for _, id := range ids {
		a, there := puts.Job(id, nil)
		b, also := packs.Job(id, nil)
		if diff := cmp.Diff(a, b); diff != "" || !there || !also {
			t.Errorf("%s (%t, %t): %s", id, there, also, diff)
		}
	}
	a, b := puts.Stats(), packs.Stats()
	a.Position, b.Position = 0, 0
	if diff := cmp.Diff(a, b); diff != "" {
		t.Error(diff)
	}
	if len(puts.rejected) != len(packs.rejected) || len(packs.rejected) == 0 {
		t.Errorf("%d refusals of puts wait, %d of the import", len(puts.rejected), len(packs.rejected))
	}
}

// TestForgedPack imports specs that no put could make: each is refused, or has the effect of a put. A job of another partition is refused.
func TestForgedPack(t *testing.T) {
	valid := carillon.Job{ID: "a", Schedule: "@every 1s", Payload: []byte(`{"n":1}`), Form: carillon.PayloadJSON, Headers: map[string]string{"A": "b"}}
	change := func(f func(j *carillon.Job)) spec {
		j := valid
		f(&j)
		return spec(encodeSpec(&j))
	}
	lines := strings.Replace(string(encodeSpec(&valid)), "A: b\r\n", "A b\r\n\x20", 1)
	for name, c := range map[string]struct {
		spec spec
		code carillon.Code
	}{
		"a reserved header":     {change(func(j *carillon.Job) { j.Headers = map[string]string{"Nats-Rollup": "all"} }), carillon.CodeInvalidField},
		"a topic with wildcard": {change(func(j *carillon.Job) { j.Topic = "a.>" }), carillon.CodeInvalidTopic},
		"no JSON":               {change(func(j *carillon.Job) { j.Payload = []byte("{") }), carillon.CodeInvalidJSON},
		"an unknown word":       {change(func(j *carillon.Job) { j.Misfire = 9 }), carillon.CodeInvalidField},
		"too large a payload":   {change(func(j *carillon.Job) { j.Payload, j.Form = make([]byte, carillon.MaxPayload+1), carillon.PayloadBase64 }), carillon.CodePayloadTooLarge},
		"nothing":               {"", carillon.CodeInvalidField},
		"no spec":               {"\x01\xff\xff\xff", carillon.CodeInvalidField},
		"a line of no header":   {spec(lines), ""},
	} {
		m := New(fuzzLayout, 0)
		r, err := m.Apply(&Entry{Seq: 1, Time: testEpoch, Kind: KindImport, Pack: []PackedJob{{ID: "a", Spec: []byte(c.spec)}}})
		if err != nil {
			t.Fatal(err)
		}
		if c.code != "" {
			if r.Jobs[0].Err == nil || r.Jobs[0].Err.Code != c.code {
				t.Errorf("%s: %+v", name, r.Jobs[0])
			}
			continue
		}
		_, j := m.find("a")
		if j == nil || r.Jobs[0].Err != nil {
			t.Errorf("%s: %+v", name, r.Jobs[0])
			continue
		}
		if _, header, _ := spec(m.jobs.spec(j)).delivery(); header != "" {
			t.Errorf("%s: delivers %q", name, header)
		}
	}
	elsewhere := PackedJob{ID: "b", Spec: encodeSpec(&valid)}
	r, err := New(fuzzLayout, 0).Apply(&Entry{Seq: 1, Time: testEpoch, Kind: KindImport, Pack: []PackedJob{elsewhere}})
	if err != nil || PartitionOf("b", fuzzLayout.Partitions) == 0 {
		t.Fatalf("b is of partition %d, %v", PartitionOf("b", fuzzLayout.Partitions), err)
	}
	if refusal := r.Jobs[0].Err; refusal == nil || refusal.Code != carillon.CodeInvalidJobID || refusal.Field != "id" {
		t.Errorf("another partition's: %+v", r.Jobs[0])
	}
}

func FuzzDecodePack(f *testing.F) {
	f.Add(EncodePack(examplePack()))
	f.Add(EncodePack(examplePack()[:1]))
	f.Fuzz(func(t *testing.T, b []byte) {
		pack, err := DecodePack(b)
		if err != nil {
			return
		}
		again, err := DecodePack(EncodePack(pack))
		if diff := cmp.Diff(pack, again); err != nil || diff != "" {
			t.Fatalf("%v\n%s", err, diff)
		}
		m := New(Layout{"carillon", 1}, 0)
		e := Entry{Seq: 1, Time: testEpoch, Kind: KindImport, Pack: pack}
		if _, err := m.Apply(&e); err != nil {
			t.Fatal(err)
		}
		same(t, m, open(t, m, wholeOf(t, m)))
	})
}

// A job that was put back, and is complete since, is left alone when it is put back again: no fire is repeated. Without a state it begins
// anew.
func TestPutBackTwice(t *testing.T) {
	f := newFeed(t)
	f.tick(10)
	job := carillon.Job{ID: "j", Schedule: "@every 1s", MaxFires: 10}
	back := Pack(&job, nil, "")
	back.State = &JobState{Version: 1, Accepted: f.now - 8000, From: f.now + 1000, Last: f.now, Fires: 8}
	paused := back
	paused.Paused = true
	for _, c := range []struct {
		PackedJob
		changed bool
		status  carillon.Status
		fires   uint64
	}{
		{back, true, carillon.StatusScheduled, 10},
		{back, false, carillon.StatusCompleted, 10},
		{paused, false, carillon.StatusCompleted, 10},
		{Pack(&job, nil, ""), true, carillon.StatusScheduled, 10},
	} {
		f.seq++
		r, err := f.m.Apply(&Entry{Seq: f.seq, Time: f.now, Kind: KindImport, Pack: []PackedJob{c.PackedJob}})
		if err != nil || r.Jobs[0].Err != nil {
			t.Fatal(err, r.Jobs[0].Err)
		}
		j, _ := f.m.Job("j", nil)
		for range 12 {
			f.now += 1000
			f.tick(10)
		}
		after, _ := f.m.Job("j", nil)
		if r.Jobs[0].Changed != c.changed || j.Status != c.status || after.Fires != c.fires {
			t.Errorf("changed: %t, %s, %d fires; want %t, %s, %d", r.Jobs[0].Changed, j.Status, after.Fires, c.changed, c.status, c.fires)
		}
	}
	if made := f.m.Made(); made != 2+10+2 {
		t.Errorf("%d outputs were made; want 2 and 10 triggers, and twice an event", made)
	}
}

func TestStateOf(t *testing.T) {
	at := func(ms int64) time.Time { return time.UnixMilli(ms) }
	skip := carillon.Skip
	got := StateOf(&carillon.JobState{Version: 2, Accepted: at(3), From: at(4), Last: at(5), Fires: 6, Skipped: 7, Missed: &skip})
	if want := (JobState{2, 3, 4, 5, 6, 7, policyOf(carillon.Skip)}); *got != want {
		t.Errorf("got %+v, want %+v", *got, want)
	}
	if got := StateOf(&carillon.JobState{}); *got != (JobState{}) {
		t.Errorf("of nothing it is %+v", *got)
	}
}
