package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/internal/faultfs"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// bad is a command that must be refused.
type bad struct {
	name, verb, job, body string
	code                  carillon.Code
	field                 string
}

func badCommands() []bad {
	put := func(name, body string, code carillon.Code, field string) bad {
		return bad{name, "put", strings.ReplaceAll(name, " ", "-"), body, code, field}
	}
	schedule := func(name, schedule string) bad {
		return put(name, fmt.Sprintf(`{"schedule":%q}`, schedule), carillon.CodeInvalidSchedule, "schedule")
	}
	topic := func(name, topic string) bad {
		return put(name, fmt.Sprintf(`{"topic":%q}`, topic), carillon.CodeInvalidTopic, "topic")
	}
	headers := func(name, headers string) bad {
		return put(name, `{"headers":`+headers+`}`, carillon.CodeInvalidField, "headers")
	}
	var forty []string
	for i := range 40 {
		forty = append(forty, fmt.Sprintf(`"H%d":"v"`, i))
	}
	return []bad{
		put("no JSON", `hello`, carillon.CodeInvalidJSON, ""),
		put("truncated JSON", `{"schedule":"@in 1s`, carillon.CodeInvalidJSON, ""),
		put("JSON of another type", `[]`, carillon.CodeInvalidJSON, ""),
		put("nothing", ``, carillon.CodeInvalidJSON, ""),
		put("bytes", "{\"\xff\xfe\":1}", carillon.CodeInvalidJSON, ""),
		put("unknown field", `{"shedule":"@in 1s"}`, carillon.CodeUnknownField, "shedule"),
		put("wrong type", `{"schedule":7}`, carillon.CodeInvalidField, "schedule"),
		put("wrong type of a number", `{"max_fires":"3"}`, carillon.CodeInvalidField, "max_fires"),
		put("negative number", `{"max_fires":-3}`, carillon.CodeInvalidField, "max_fires"),
		put("unknown word", `{"misfire":"perhaps"}`, carillon.CodeInvalidField, "misfire"),
		schedule("impossible date", "0 0 30 2 *"),
		schedule("no interval", "@every 0s"),
		schedule("interval backwards", "@every -5s"),
		schedule("no such minute", "61 * * * *"),
		schedule("three fields", "* * *"),
		schedule("no such macro", "@fortnightly"),
		schedule("year 0", "@at 0000-01-01T00:00:00Z"),
		schedule("year 9999", "@at 9999-12-31T23:59:59Z"),
		schedule("no such day", "@at 2026-02-30T00:00:00Z"),
		put("start in the year 0", `{"schedule":"@every 1s","start":"0000-01-01T00:00:00Z"}`, carillon.CodeInvalidField, "start"),
		put("end before start", `{"schedule":"@every 1s","start":"2030-01-01T00:00:00Z","end":"2029-01-01T00:00:00Z"}`, carillon.CodeInvalidField, "end"),
		put("end in the past", `{"schedule":"@every 1s","end":"2009-01-01T00:00:00Z"}`, carillon.CodeInvalidField, "end"),
		put("unknown zone", `{"schedule":"* * * * *","zone":"Europe/Atlantis"}`, carillon.CodeInvalidZone, "zone"),
		put("zone of a path", `{"schedule":"* * * * *","zone":"../../etc/passwd"}`, carillon.CodeInvalidZone, "zone"),
		topic("topic with a space", "a b"),
		topic("topic with a wildcard", "a.*"),
		topic("topic of empty tokens", "a..b"),
		topic("topic of 200 characters", strings.Repeat("t", 200)),
		put("payload over the limit", `{"payload_text":"`+strings.Repeat("x", carillon.MaxPayload+1)+`"}`, carillon.CodePayloadTooLarge, "payload_text"),
		headers("40 headers", "{"+strings.Join(forty, ",")+"}"),
		headers("reserved header", `{"Nats-Msg-Id":"1"}`),
		headers("our header", `{"carillon-output":"1"}`),
		headers("header injection", `{"A":"1\r\nCarillon-Output: 7"}`),
		headers("header name injection", `{"A: 1\r\nB":"1"}`),
		put("version conflict", `{"schedule":"@every 1h","if_version":7}`, carillon.CodeNotFound, ""),
		{"version conflict of a job", "put", "there", `{"schedule":"@every 2h","if_version":7}`, carillon.CodeVersionConflict, "if_version"},
		{"put of what must not exist", "put", "there", `{"schedule":"@every 2h","if_version":0}`, carillon.CodeVersionConflict, "if_version"},
		{"delete of nothing", "delete", "nothing", ``, carillon.CodeNotFound, ""},
		{"pause of nothing", "pause", "nothing", ``, carillon.CodeNotFound, ""},
		{"resume of nothing", "resume", "nothing", ``, carillon.CodeNotFound, ""},
		{"fire of nothing", "fire", "nothing", ``, carillon.CodeNotFound, ""},
		{"delete with a body", "delete", "there", `{"force":true}`, carillon.CodeUnknownField, "force"},
		{"fire of no JSON", "fire", "there", `{`, carillon.CodeInvalidJSON, ""},
		{"id of 200 characters", "put", strings.Repeat("i", 200), `{}`, carillon.CodeInvalidJobID, ""},
		{"id of 4,000 characters", "put", strings.Repeat("i", 4000), `{}`, carillon.CodeInvalidJobID, ""},
		{"id of other characters", "put", "a/b#c", `{}`, carillon.CodeInvalidJobID, ""},
	}
}

// Each bad command, as a request and raw, gets an error with its code and field, and changes nothing.
func TestBadCommands(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc)
	put(t, c, carillon.Job{ID: "there", Schedule: "@every 1h"})
	put(t, c, beat)
	rejected, err := nc.SubscribeSync("carillon.event.*.rejected.>")
	if err != nil {
		t.Fatal(err)
	}
	event := func(name string) carillon.Event {
		t.Helper()
		m, err := rejected.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatalf("%s: no event: %v", name, err)
		}
		e, err := carillon.ParseEvent(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	check := func(b bad, how string, e *carillon.Error) {
		t.Helper()
		if e == nil || e.Code != b.code || e.Field != b.field || e.Message == "" || len(e.Message) > 1000 {
			t.Errorf("%s, %s: %+v; want code %s, field %q", b.name, how, e, b.code, b.field)
		}
		if b.code == carillon.CodeNotFound && !strings.Contains(e.Message, strconv.Quote(b.job)) {
			t.Errorf("%s, %s: %q does not name the job", b.name, how, e.Message)
		}
	}
	for _, b := range badCommands() {
		m, err := nc.RequestMsg(&nats.Msg{Subject: "carillon.api." + b.verb + "." + b.job, Data: []byte(b.body)}, 10*time.Second)
		if err != nil {
			t.Fatalf("%s: %v", b.name, err)
		}
		e := carillon.ParseError(m.Data)
		check(b, "as a request", e)
		if got := m.Header.Get("Nats-Service-Error-Code"); got != strconv.Itoa(b.code.Status()) {
			t.Errorf("%s: the service's error code is %q", b.name, got)
		}
		if got := m.Header.Get("Nats-Service-Error"); got != string(b.code) {
			t.Errorf("%s: the service's error is %q", b.name, got)
		}
		if b.code == carillon.CodeNotFound || b.code == carillon.CodeVersionConflict || b.field == "end" && strings.Contains(b.name, "past") {
			event(b.name) // found out only when it is applied
		}

		if err := nc.Publish("carillon.cmd."+b.verb+"."+b.job, []byte(b.body)); err != nil {
			t.Fatal(err)
		}
		ev := event(b.name)
		check(b, "raw", ev.Error)
		if want := b.job[:min(len(b.job), 128)]; ev.Job != want || ev.Verb != b.verb {
			t.Errorf("%s: the event is about %s of %s", b.name, ev.Verb, ev.Job)
		}
	}
	// Subjects that are no command of a job.
	for subject, code := range map[string]carillon.Code{
		"carillon.cmd.tick.x":   carillon.CodeInvalidField,
		"carillon.cmd.claim.x":  carillon.CodeInvalidField,
		"carillon.cmd.heal.x":   carillon.CodeInvalidField,
		"carillon.cmd.put.*":    carillon.CodeInvalidJobID,
		"carillon.cmd.*.x":      carillon.CodeInvalidField,
		"carillon.cmd.delete.>": carillon.CodeInvalidJobID,
	} {
		if err := nc.Publish(subject, []byte(`{}`)); err != nil {
			t.Fatalf("%s: %v", subject, err)
		}
		if ev := event(subject); ev.Error == nil || ev.Error.Code != code {
			t.Errorf("%s: %+v", subject, ev)
		}
	}
	// The log stream has no subject for a dotted id: JetStream does not store it, and the service refuses it.
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "carillon.cmd.put.a.b", []byte(`{}`)); !errors.Is(err, jetstream.ErrNoStreamResponse) {
		t.Errorf("a dotted id: %v", err)
	}
	m, err := nc.Request("carillon.api.put.a.b", []byte(`{}`), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	check(bad{name: "dotted id", code: carillon.CodeInvalidJobID}, "as a request", carillon.ParseError(m.Data))
	// JetStream does not store headers of over 64 KiB.
	for _, bytes := range []int{carillon.MaxJobIDLength + 1, 70_000} {
		m := &nats.Msg{Subject: "carillon.api.put.there", Data: []byte(`{}`), Header: nats.Header{carillon.HeaderRequest: {strings.Repeat("r", bytes)}}}
		if m, err = nc.RequestMsg(m, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("request id of %d bytes", bytes)
		check(bad{name: name, code: carillon.CodeInvalidField, field: carillon.HeaderRequest}, "as a request", carillon.ParseError(m.Data))
	}

	there, err := c.Get(t.Context(), "there")
	if err != nil || there.Version != 1 || there.Spec.Schedule != "@every 1h" {
		t.Errorf("the job that was attacked: %+v, %v", there, err)
	}
	if s := status(t, c); len(s.Problems) > 0 || s.Partitions[0].Jobs["scheduled"]+s.Partitions[1].Jobs["scheduled"] != 2 {
		t.Errorf("after all that: %+v", s)
	}
	beats(t, c, 3)
	unbroken(t, nc, c)
}

// What a client may not do on the default embedded server.
func TestForbidden(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	refusals := make(chan string, 64)
	nc, err := nats.Connect(r.NATS, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			refusals <- err.Error()
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c := carillon.Connect(nc)
	put(t, c, beat)
	tick := engine.EncodeTicks([]engine.Tick{{Partition: 0, To: now() + 3_600_000, Epoch: 1, Limit: 1000}})
	for subject, body := range map[string]string{
		"carillon.log.0.tick": string(tick), "carillon.log._.tick": string(tick), "carillon.log.0.claim": `{}`, "carillon.log._.heal": "x",
		"carillon.log.0.put.x": `{}`, "carillon.trigger.0.x": "x", "carillon.event.0.rejected.x": "x",
		"$JS.API.STREAM.DELETE.CARILLON_LOG": "", "$JS.API.STREAM.PURGE.CARILLON_OUT_0": "", "$JS.API.STREAM.UPDATE.CARILLON_OUT_1": "{}",
		"$JS.API.STREAM.MSG.DELETE.CARILLON_LOG": `{"seq":1}`, "$JS.API.CONSUMER.DELETE.CARILLON_LOG.engine": "",
	} {
		if err := nc.Publish(subject, []byte(body)); err != nil {
			t.Fatal(err)
		}
		if says := natstest.Receive(t, "a publish is refused on "+subject, refusals); !strings.Contains(says, subject) {
			t.Errorf("%s: %s", subject, says)
		}
	}
	for _, subject := range []string{"carillon.api.get.x", "carillon.api.>"} {
		if _, err := nc.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		natstest.Receive(t, "a subscription is refused to "+subject, refusals)
	}
	beats(t, c, 3)
	unbroken(t, nc, c)
}

// The same forgeries by a client that has all permissions: garbage on the log's own subjects and in the
// output streams is harmless.
func TestForgeries(t *testing.T) {
	t.Parallel()
	e := startExternal(t) // gives every permission
	r := run(t, e.options(t))
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc)
	put(t, c, beat)
	p := partitionOfBeat(t, c)
	epoch := status(t, c).Partitions[p].Epoch
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	good := engine.EncodeTicks([]engine.Tick{{Partition: p, To: now() + 1000, Epoch: epoch, Limit: 10}})
	bodies := []string{
		"", "x", "{}", `{"node":"x"}`, `{"node":"x","logic":0,"tzdata":""}`, strings.Repeat("\xff", 1000), string(good[:len(good)-1]), string(good) + "x",
		string(engine.EncodeTicks([]engine.Tick{{Partition: p, To: now() + 3_600_000, Epoch: epoch - 1, Limit: 1 << 60}})),
		string(engine.EncodeTicks([]engine.Tick{{Partition: 60000, To: 1 << 62, Epoch: 1 << 63, Limit: 1}})),
		string(engine.Disk{Epoch: epoch - 1, Low: true}.Encode()), string(engine.Disk{Epoch: 1 << 63, Low: true}.Encode()),
		string(engine.EncodeHeal(&engine.Record{Seq: 1 << 50, Subject: "carillon.log.0.tick", Data: good})),
		string(engine.EncodeHeal(&engine.Record{Seq: 1, Subject: "carillon.log.0.put.x", Data: []byte(`{}`)})),
		string(engine.EncodeHeal(&engine.Record{Seq: 1, Subject: "carillon.log._.heal", Data: []byte(`{}`)})),
	}
	published := 0
	for _, subject := range []string{
		"carillon.log.0.tick", "carillon.log.1.tick", "carillon.log._.tick", "carillon.log.7.tick", "carillon.log.-1.tick", "carillon.log.00.tick",
		"carillon.log.0.claim", "carillon.log.1.claim", "carillon.log._.claim", "carillon.log.9.claim", "carillon.log._.heal", "carillon.log.0.heal",
		"carillon.log.0.disk", "carillon.log.1.disk", "carillon.log._.disk", "carillon.log.0.nonsense", "carillon.log.0", "carillon.log.0.put.a.b.c", "carillon.log.x.put.y", "carillon.log.0.put.wrongpartition0", "carillon.log.1.put.wrongpartition1",
	} {
		for _, body := range bodies {
			if _, err := js.Publish(t.Context(), subject, []byte(body)); err != nil {
				t.Fatalf("%s: %v", subject, err)
			}
			published++
		}
	}
	for round := range 10 {
		for partition := range partitions {
			m := nats.NewMsg(fmt.Sprintf("carillon.trigger.%d.forged", partition))
			m.Header.Set(forged, "1")
			if round%2 == 1 {
				m.Header.Set(carillon.HeaderOutput, []string{"0", "x", "-1", "18446744073709551615", "3"}[round/2%5])
				m.Header.Set(carillon.HeaderTrigger, "forged@1")
			}
			if _, err := js.PublishMsg(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			published++
		}
		beats(t, c, 2) // the chain goes on behind it
	}
	s := status(t, c)
	if len(s.Problems) > 0 {
		t.Errorf("%d forgeries: %q", published, s.Problems)
	}
	unbroken(t, nc, c)
	if s = status(t, c); s.Partitions[p].Foreign < 10 {
		t.Errorf("%d foreign messages were counted", s.Partitions[p].Foreign)
	}
	r.stop(t)
	o := e.options(t)
	o.Data = r.data
	run(t, o)
	beats(t, c, 3)
	unbroken(t, nc, c)
}

// If the log stream accepts a command for a partition that does not exist, because its subject transform was edited, the node says so.
func TestCommandOfNoPartition(t *testing.T) {
	t.Parallel()
	r := run(t, startExternal(t).options(t))
	nc := dial(t, r.NATS)
	js := jetStream(t, nc)
	log, err := js.Stream(t.Context(), carillon.DefaultNames().LogStream())
	if err != nil {
		t.Fatal(err)
	}
	cfg := log.CachedInfo().Config
	cfg.SubjectTransform.Destination = fmt.Sprintf("carillon.log.%d{{partition(1,2)}}.{{wildcard(1)}}.{{wildcard(2)}}", partitions)
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "carillon.cmd.put.lost", []byte(`{"schedule":"@every 1s"}`)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is said", func() bool { return contains(r.log, "concerns no partition", "put.lost") })
	if n := metric(t, r.HTTP, `carillon_log_ignored_total{reason="malformed"}`); n != 1 {
		t.Errorf("%v records count as malformed", n)
	}
}

// If streams are edited while an engine runs, such that it would not start with them, /readyz says so until they are edited back.
func TestEditedStreams(t *testing.T) {
	t.Parallel()
	r := run(t, startExternal(t).options(t))
	nc := dial(t, r.NATS)
	jobs := carillon.Connect(nc)
	put(t, jobs, beat)
	beats(t, jobs, 1) // a node is ready before it serves anything, and sends no ticks until then
	js := jetStream(t, nc)
	log, out := carillon.DefaultNames().LogStream(), outStream(partitions-1)
	for _, c := range []struct {
		stream string
		edit   func(*jetstream.StreamConfig)
		says   []string
	}{
		{log, func(c *jetstream.StreamConfig) { c.MaxMsgs = 1 }, []string{
			"stream " + log + " was edited: max messages is 1",
			"the log stream refuses ticks: streams: no space: maximum messages exceeded", // in nats-server's own words
		}},
		{out, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 64 << 10 }, []string{"stream " + out + " was edited: max message size is 65536"}},
		{"KV_CARILLON_NODES", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1 }, []string{
			"so others are not known to be gone and not taken over from: cluster: beat: nats: nats: API error: code=400 err_code=10054",
		}},
		{"KV_CARILLON_NODES", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, []string{
			"stream KV_CARILLON_NODES was edited: forgets keys after 1h0m0s; the placement must stay",
		}},
	} {
		stream, err := js.Stream(t.Context(), c.stream)
		if err != nil {
			t.Fatal(err)
		}
		was := stream.CachedInfo().Config
		edited := was
		c.edit(&edited)
		if _, err := js.UpdateStream(t.Context(), edited); err != nil {
			t.Fatal(err)
		}
		for _, says := range c.says {
			notReady(t, r.HTTP, says)
		}
		if _, err := js.UpdateStream(t.Context(), was); err != nil {
			t.Fatal(err)
		}
		ready(t, r)
	}
}

// A client with permission to do so writes into the output streams while the node publishes into them: each
// of its messages is counted and skipped, and no output is lost or duplicated.
func TestForeignInWindow(t *testing.T) {
	t.Run("linked", func(t *testing.T) {
		t.Parallel()
		testForeignInWindow(t, startExternal(t).options(t), "carillon.trigger.%d.forged")
	})
	// The embedded server lets no client publish there, but a stream that republishes can.
	t.Run("watched", func(t *testing.T) {
		t.Parallel()
		testForeignInWindow(t, base(t), "forge.%d")
	})
}

// testForeignInWindow forges by publishing on a subject with a partition's number in it.
func testForeignInWindow(t *testing.T, o node.Options, subject string) {
	r := run(t, o)
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc, carillon.WithTimeout(time.Minute))
	js := jetStream(t, nc)
	if strings.HasPrefix(subject, "forge.") {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: "FORGE", Subjects: []string{"forge.*"},
			RePublish: &jetstream.RePublish{Source: "forge.*", Destination: "carillon.trigger.{{wildcard(1)}}.forged"},
		}); err != nil {
			t.Fatal(err)
		}
	}
	const jobs, interval = 400, 100 * time.Millisecond
	putMass(t, c, jobs, interval)
	const forgeries, row = 4, 150 // so many times for each partition, so many in a row: some come before the chain is resumed
	forge(t, js, c, subject, forgeries, row)
	eventually(t, "each job fires", func() bool {
		for j, err := range c.List(t.Context(), carillon.ListRequest{Selection: carillon.Selection{Prefix: "mass-"}}) {
			if err != nil {
				t.Fatal(err)
			}
			if j.Fires == 0 {
				return false
			}
		}
		return true
	})
	selected(t, c.PauseWhere, carillon.Selection{Prefix: "mass-"})
	for p := range partitions {
		fires(t, c, in(p, "behind")) // by then the last forgery has been met
	}
	verifyMass(t, nc, jobs, interval)
	foreign := total(t, c, func(p carillon.PartitionStatus) uint64 { return p.Foreign })
	if lost := metric(t, r.HTTP, "carillon_chain_lost_total"); foreign != forgeries*row*partitions || lost == 0 {
		t.Errorf("%d foreign messages were counted of %d; chains were lost %.0f times", foreign, forgeries*row*partitions, lost)
	}
}

// Somebody bounded an output stream by messages. What it has dropped before the log knew that it was stored is not published once more
// when the chain is resumed.
func TestStreamBoundedByMessages(t *testing.T) {
	t.Parallel()
	o := base(t)
	onStreams(t, o.Data, streams.Config{Partitions: partitions}, func(nc *nats.Conn, _ *streams.Log) {
		js := jetStream(t, nc)
		stream, err := js.Stream(t.Context(), outStream(1))
		if err != nil {
			t.Fatal(err)
		}
		bounded := stream.CachedInfo().Config
		bounded.MaxMsgs = 10
		if _, err := js.UpdateStream(t.Context(), bounded); err != nil {
			t.Fatal(err)
		}
	})
	r := run(t, o)
	nc := dial(t, r.NATS)
	c := client(t, r.NATS)
	js := jetStream(t, nc)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "FORGE", Subjects: []string{"forge"}, RePublish: &jetstream.RePublish{Source: "forge", Destination: "carillon.trigger.1.forged"},
	}); err != nil {
		t.Fatal(err)
	}
	times := make(map[string]int)
	live, err := nc.SubscribeSync("carillon.trigger.1.default")
	if err != nil {
		t.Fatal(err)
	}
	next := func() {
		m, err := live.NextMsgWithContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		times[m.Header.Get(carillon.HeaderTrigger)]++
	}
	put(t, c, carillon.Job{ID: in(1, "row"), Schedule: "@every 1ms", MaxFires: 100})
	for range 100 {
		next()
	}
	if _, err := js.Publish(t.Context(), "forge", nil); err != nil {
		t.Fatal(err)
	}
	put(t, c, carillon.Job{ID: in(1, "behind"), Schedule: "@in 1ms"})
	eventually(t, "the chain goes on", func() bool {
		return status(t, c).Partitions[1].Foreign == 1 && metric(t, r.HTTP, "carillon_chain_lost_total") > 0
	})
	fires(t, c, in(1, "last"))
	for len(times) < 102 {
		next()
	}
	for id, n := range times {
		if n != 1 {
			t.Errorf("trigger %s was published %d times", id, n)
		}
	}
}

// The engine is stopped and started with wider bounds of its output streams. What these dropped before, when the log did not know yet that it
// was stored, is not published once more, even if that start is killed as soon as it has changed the bounds, and the next one goes on.
func TestWiderBounds(t *testing.T) {
	for _, killed := range []int{0, 1, 2} {
		t.Run(fmt.Sprintf("bytes, killed %d times", killed), func(t *testing.T) {
			t.Parallel()
			o := base(t)
			o.OutMaxBytes = streams.MinStreamBytes
			testWiderBounds(t, o, killed, func(o *node.Options) { o.OutMaxBytes *= 8 }, func(s jetstream.StreamState) bool { return s.FirstSeq > 1 })
		})
		t.Run(fmt.Sprintf("age, killed %d times", killed), func(t *testing.T) {
			t.Parallel()
			o := base(t)
			o.OutMaxAge = 2 * streams.MinStreamAge
			testWiderBounds(t, o, killed, func(o *node.Options) { o.OutMaxAge += time.Hour }, func(s jetstream.StreamState) bool { return s.Msgs == 0 })
		})
	}
}

// testWiderBounds stops the engine once a stream has dropped something, and starts it with wider bounds. killed is how often that start ends
// as soon as it has changed the bounds; each one after it widens them again.
func testWiderBounds(t *testing.T, o node.Options, killed int, widen func(*node.Options), dropped func(jetstream.StreamState) bool) {
	const row = 300
	payload, err := json.Marshal(strings.Repeat("x", 8<<10))
	if err != nil {
		t.Fatal(err)
	}
	r := run(t, o)
	nc := dial(t, r.NATS)
	put(t, client(t, r.NATS), carillon.Job{ID: in(1, "row"), Schedule: "@every 1ms", MaxFires: row, Payload: payload})
	js := jetStream(t, nc)
	var stored uint64
	eventually(t, "all is stored, and the stream has dropped some of it", func() bool {
		s, err := js.Stream(t.Context(), outStream(1))
		if err != nil {
			t.Fatal(err)
		}
		stored = s.CachedInfo().State.LastSeq
		return stored > row && dropped(s.CachedInfo().State) // with the event of its completion
	})
	r.stop(t)

	for range killed {
		widen(&o)
		onStreams(t, o.Data, streams.Config{OutMaxBytes: o.OutMaxBytes, OutMaxAge: o.OutMaxAge, UpdateLimits: true}, func(*nats.Conn, *streams.Log) {})
	}
	if killed != 1 { // after one kill the next start finds the bounds that it wants
		widen(&o)
	}
	r = run(t, o)
	fires(t, client(t, r.NATS), in(1, "last"))
	nc = dial(t, r.NATS)
	for _, m := range outputs(t, nc, 1) {
		if m.seq > stored && m.trigger != nil && m.trigger.Job == in(1, "row") {
			t.Errorf("%s was published again, at %d", m.trigger.ID, m.seq)
		}
	}
}

// putMass puts jobs that fire at an interval. Half of them are due in the same milliseconds, so that many outputs are in flight, the others
// in the milliseconds between.
func putMass(t *testing.T, c *carillon.Client, jobs int, interval time.Duration) {
	t.Helper()
	start := time.Now().UTC().Truncate(time.Second)
	mass := func(yield func(carillon.Job) bool) {
		for i := range jobs {
			at := start.Add(time.Duration(max(0, i-jobs/2)) * time.Millisecond)
			if !yield(carillon.Job{ID: fmt.Sprintf("mass-%d", i), Schedule: "@every " + interval.String(), Start: at, Misfire: carillon.FireAll}) {
				return
			}
		}
	}
	if err := c.PutAll(t.Context(), mass, 64, func(j carillon.Job, _ carillon.JobReply, err error) {
		if err != nil {
			t.Errorf("%s: %v", j.ID, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// forge publishes rows of foreign messages into each output stream in turn, each time once the node has published there again.
func forge(t *testing.T, js jetstream.JetStream, c *carillon.Client, subject string, forgeries, row int) {
	t.Helper()
	var stored [partitions]uint64 // the stream's last sequence after the latest forgeries
	last := func(p int) uint64 {
		out, err := js.Stream(t.Context(), c.Names().OutStream(p))
		if err != nil {
			t.Fatal(err)
		}
		return out.CachedInfo().State.LastSeq
	}
	for i := range forgeries * partitions {
		p := i % partitions
		eventually(t, "the node writes on", func() bool { return last(p) > stored[p]+20 })
		for range row {
			m := nats.NewMsg(fmt.Sprintf(subject, p))
			m.Header.Set(forged, "1")
			m.Header.Set(carillon.HeaderOutput, "7")
			if _, err := js.PublishMsg(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
		stored[p] = last(p)
	}
}

// verifyMass checks that all jobs fired, each for times that are an interval apart: none is missing in between, and none is there twice.
func verifyMass(t *testing.T, nc *nats.Conn, jobs int, interval time.Duration) {
	t.Helper()
	fired := make(map[string][]time.Time)
	for _, o := range displacedOutputs(t, nc, partitions) {
		if o.trigger != nil && strings.HasPrefix(o.trigger.Job, "mass-") {
			fired[o.trigger.Job] = append(fired[o.trigger.Job], o.trigger.Scheduled)
		}
	}
	for job, times := range fired {
		slices.SortFunc(times, time.Time.Compare) // one that was displaced comes later
		for i, at := range times[1:] {
			if at.Sub(times[i]) != interval {
				t.Errorf("%s fired for %s after %s", job, at.Format(carillon.TimeFormat), times[i].Format(carillon.TimeFormat))
			}
		}
	}
	if len(fired) != jobs {
		t.Errorf("%d jobs of %d fired", len(fired), jobs)
	}
}

// Requests that come faster than they can be looked at cost neither the log's reader nor the chains their connection.
func TestFloodOfRequests(t *testing.T) {
	t.Run("embedded", func(t *testing.T) { floodOfRequests(t, base(t)) })
	t.Run("external", func(t *testing.T) {
		o := base(t)
		o.NATS = natstest.Start(t, &server.Options{JetStream: true}).ClientURL()
		floodOfRequests(t, o)
	})
}

func floodOfRequests(t *testing.T, o node.Options) {
	r := run(t, o)
	c := client(t, r.NATS)
	put(t, c, beat)
	body := []byte(`{"payload_text":"` + strings.Repeat("x", 500<<10) + `"}`)
	var flooding sync.WaitGroup
	for i := range 4 {
		nc := dial(t, r.NATS)
		flooding.Go(func() {
			for range 200 { // some 400 MB in all: more than the server holds for a connection
				if err := nc.PublishRequest(fmt.Sprintf("carillon.api.put.flood-%d", i), "nobody", body); err != nil {
					t.Error(err)
				}
			}
			if err := nc.FlushTimeout(time.Minute); err != nil {
				t.Error(err)
			}
		})
	}
	flooding.Wait()
	beats(t, c, 3)
	for _, line := range []string{"reading the log starts over", "chain lost"} {
		if strings.Contains(r.log.String(), line) {
			t.Errorf("the log says %q", line)
		}
	}
}

// While each sync of the log takes over two seconds, only a few commands are admitted at a time, and more are refused. Once it is quick
// again, all are admitted.
func TestSlowAnswers(t *testing.T) {
	t.Parallel()
	o := base(t)
	var slow atomic.Bool
	quick := make(chan struct{})
	o.LogStore.FS = faultfs.Wrap(vfs.Default, func(op errorfs.Op) error {
		if slow.Load() && op.Kind == errorfs.OpFileSyncData {
			select {
			case <-quick:
			case <-time.After(2100 * time.Millisecond):
			}
		}
		return nil
	})
	r := run(t, o)
	c := client(t, r.NATS)
	slow.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var asking sync.WaitGroup
	var refused atomic.Bool
	for i := range 400 { // more than are admitted while answers are slow
		asking.Go(func() {
			for job := (carillon.Job{ID: fmt.Sprintf("j%d", i), Schedule: "@yearly"}); !refused.Load() && ctx.Err() == nil; {
				_, err := c.Put(ctx, job)
				if errors.Is(err, &carillon.Error{Code: carillon.CodeLimitExceeded}) && strings.Contains(err.Error(), "answers take over 2s") {
					refused.Store(true)
				}
			}
		})
	}
	asking.Wait()
	if !refused.Load() {
		t.Error("none of them was refused")
	}
	close(quick)
	eventually(t, "four hundred at once are taken", func() bool {
		var taken atomic.Int64
		for i := range 400 {
			asking.Go(func() {
				if _, err := c.Put(t.Context(), carillon.Job{ID: fmt.Sprintf("j%d", i), Schedule: "@monthly"}); err == nil {
					taken.Add(1)
				}
			})
		}
		asking.Wait()
		return taken.Load() == 400
	})
	r.stop(t)
}

// A flood of bad commands beside a job that goes on firing: CARILLON_FLOOD of them, or a few.
func TestFlood(t *testing.T) {
	n := 50_000
	if s := os.Getenv("CARILLON_FLOOD"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	r := run(t, base(t))
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc, carillon.WithTimeout(time.Minute))
	put(t, c, beat)
	beats(t, c, 3)

	var worst atomic.Int64
	watch, err := nc.Subscribe("carillon.trigger.>", func(m *nats.Msg) {
		tr, err := c.Names().ParseTrigger(m.Subject, m.Header, m.Data)
		if err != nil {
			return
		}
		worst.Store(max(worst.Load(), now()-tr.Scheduled.UnixMilli()))
	})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(1000))
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		body, err := json.Marshal(map[string]int{"nonsense": i})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.PublishAsync(fmt.Sprintf("carillon.cmd.put.bad-%d", i%5), body, jetstream.WithStallWait(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	natstest.Receive(t, "the end of the flood is taken", js.PublishAsyncComplete())
	took := time.Since(began)
	eventually(t, "all are refused", func() bool {
		return total(t, c, func(p carillon.PartitionStatus) uint64 { return p.Rejected }) == uint64(n)
	})
	beats(t, c, 10)
	if err := watch.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	unbroken(t, nc, c)
	var events int
	var told uint64
	for p := range partitions {
		for _, o := range outputs(t, nc, p) {
			if o.event != nil && o.event.Kind == carillon.EventRejected {
				events++
				told += max(o.event.Count, 1)
			}
		}
	}
	if told != uint64(n) || events > n/3 {
		t.Errorf("%d bad commands became %d events that tell of %d", n, events, told)
	}
	t.Logf("%d bad commands in %s (%.0f/s), %d events; the job beside them was %d ms late at most", n, took.Round(time.Millisecond), float64(n)/took.Seconds(), events, worst.Load())
}

// A fire that is sent twice, under one request id, fires once. The second answer names no trigger: only the first one does.
func TestFireRepeated(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc)
	put(t, c, carillon.Job{ID: "again"})
	first, err := c.Fire(t.Context(), "again", carillon.RequestID("one"))
	if err != nil || first.Trigger == "" {
		t.Fatalf("%+v, %v", first, err)
	}
	if second, err := c.Fire(t.Context(), "again", carillon.RequestID("one")); err != nil || second.Trigger != "" {
		t.Errorf("the same once more: %+v, %v", second, err)
	}
	other, err := c.Fire(t.Context(), "again", carillon.RequestID("other"))
	if err != nil || other.Trigger == "" {
		t.Fatalf("%+v, %v", other, err)
	}
	eventually(t, "both have fired", func() bool { return len(allOutputs(t, nc, partitions)) >= 2 })
	var ids []string
	for _, o := range allOutputs(t, nc, partitions) {
		if o.trigger != nil {
			ids = append(ids, o.trigger.ID)
		}
	}
	if !slices.Equal(ids, []string{first.Trigger, other.Trigger}) {
		t.Errorf("fired %v", ids)
	}
	r.stop(t)
}

// A header because of which a worker's library would take a trigger for one of the server's own messages is refused.
func TestHeaderStatus(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	c := client(t, r.NATS)
	job := carillon.Job{ID: "poison", Schedule: "@every 1h", Headers: map[string]string{"status": "409", "Description": "Consumer Deleted"}}
	_, err := c.Put(t.Context(), job)
	var refusal *carillon.Error
	if !errors.As(err, &refusal) || refusal.Code != carillon.CodeInvalidField || refusal.Field != "headers" {
		t.Errorf("put: %v", err)
	}
	words(t, err, `"status" is reserved`)
	var failed error
	err = c.Import(t.Context(), slices.Values([]carillon.ImportJob{{Job: job}}), func(_ int, err error) { failed = err })
	if err != nil || !errors.As(failed, &refusal) || refusal.Field != "headers" {
		t.Errorf("import: %v, %v", err, failed)
	}
}

// The epoch, which stands for "no bound", is refused as a bound: an end there would end nothing, and @every would not count
// from a start there.
func TestBoundsAtTheEpoch(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	c := client(t, r.NATS)
	epoch := time.UnixMilli(0)
	for field, job := range map[string]carillon.Job{
		"start": {ID: "aligned", Schedule: "@every 1h", Start: epoch},
		"end":   {ID: "over", Schedule: "@every 1h", End: epoch},
	} {
		var failed error
		_, put := c.Put(t.Context(), job)
		_, preview := c.Preview(t.Context(), carillon.PreviewRequest{Schedule: job.Schedule, Start: job.Start, End: job.End})
		done := c.Import(t.Context(), slices.Values([]carillon.ImportJob{{Job: job}}), func(_ int, err error) { failed = err })
		for what, err := range map[string]error{"put": put, "preview": preview, "import": errors.Join(done, failed)} {
			if !errors.Is(err, &carillon.Error{Code: carillon.CodeInvalidField, Field: field}) {
				t.Errorf("%s with its %s at the epoch: %v", what, field, err)
			}
		}
	}
}

// The verbs are a NATS micro service, which 'nats service info' shows to clients that may send it requests.
func TestMicroService(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	answer, err := dial(t, r.NATS).Request("$SRV.INFO.carillon", nil, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var info micro.Info
	if err := json.Unmarshal(answer.Data, &info); err != nil {
		t.Fatal(err)
	}
	var subjects []string
	for _, e := range info.Endpoints {
		subjects = append(subjects, e.Subject)
	}
	for _, want := range []string{"carillon.api.put.>", "carillon.api.get.>", "carillon.api.list", "carillon.api.status"} {
		if !slices.Contains(subjects, want) {
			t.Errorf("%s is not among %v", want, subjects)
		}
	}
}

// NATS's library answers questions about the service on any reply subject, except those on which only the engine may publish.
func TestServiceAnswersNoOutputs(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	nc := dial(t, r.NATS)
	for _, subject := range []string{"carillon.trigger.0.default", "carillon.event.0.skipped.j", "carillon.log.0.ping"} {
		heard, err := nc.SubscribeSync(subject)
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.PublishRequest("$SRV.PING", subject, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Request("$SRV.PING", nil, time.Minute); err != nil { // it is answered after the other
			t.Fatal(err)
		}
		if n, _, err := heard.Pending(); n > 0 || err != nil {
			t.Errorf("%s has %d messages, %v", subject, n, err)
		}
	}
}

// A preview returns the fires after its "after", ten by default.
func TestPreview(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	midnight := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	next, err := client(t, r.NATS).Preview(t.Context(), carillon.PreviewRequest{Schedule: "@daily", After: midnight})
	if err != nil || len(next) != 10 || !next[0].Equal(midnight.AddDate(0, 0, 1)) || !next[9].Equal(midnight.AddDate(0, 0, 10)) {
		t.Errorf("%v, %v", next, err)
	}
}

// An @at that is not RFC 3339 to the millisecond is refused to those who ask. A state is not: it puts back a job that was taken.
func TestLooseTime(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	c := client(t, r.NATS)
	job := carillon.Job{ID: "a", Schedule: "@at 2036-12-01T09:00:00+24:00"}
	refusal := &carillon.Error{Code: carillon.CodeInvalidSchedule, Field: "schedule"}
	if _, err := c.Preview(t.Context(), carillon.PreviewRequest{Schedule: job.Schedule}); !errors.Is(err, refusal) {
		t.Errorf("preview: %v", err)
	}
	if _, err := c.Put(t.Context(), job); !errors.Is(err, refusal) {
		t.Errorf("put: %v", err)
	}
	imported := func(state *carillon.JobState) (failed error) {
		t.Helper()
		err := c.Import(t.Context(), slices.Values([]carillon.ImportJob{{Job: job, State: state}}), func(_ int, err error) { failed = err })
		if err != nil {
			t.Fatal(err)
		}
		return failed
	}
	if err := imported(nil); !errors.Is(err, refusal) {
		t.Errorf("import: %v", err)
	}
	accepted := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	if err := imported(&carillon.JobState{Accepted: accepted, From: accepted}); err != nil {
		t.Errorf("import of a state: %v", err)
	}
}

// A local time that a zone's clocks skip nowadays matches no more. Its schedule is refused like one that never matched.
func TestMatchesNoMore(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	c := client(t, r.NATS)
	job := carillon.Job{ID: "a", Schedule: "30 2 * 3 SUNL", Zone: "Europe/Paris", Gap: carillon.GapSkip}
	refusal := &carillon.Error{Code: carillon.CodeInvalidSchedule, Field: "schedule"}
	if _, err := c.Preview(t.Context(), carillon.PreviewRequest{Schedule: job.Schedule, Zone: job.Zone, Gap: job.Gap}); !errors.Is(err, refusal) {
		t.Errorf("preview: %v", err)
	}
	if _, err := c.Put(t.Context(), job); !errors.Is(err, refusal) {
		t.Errorf("put: %v", err)
	}
	job.Gap = carillon.GapShift
	if _, err := c.Put(t.Context(), job); err != nil {
		t.Errorf("put in a zone's gap that is closed: %v", err)
	}
}
