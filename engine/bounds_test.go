package engine

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon"
)

// feed applies records without their bytes.
type feed struct {
	t   testing.TB
	m   *Machine
	seq uint64
	now int64
}

func newFeed(t testing.TB) *feed {
	f := &feed{t: t, m: New(oneOfOne, 0), now: testEpoch}
	c := Rules()
	c.Node, c.RetentionMS, c.CompletedMax = "n1", 3_600_000, 100_000
	f.apply(&Entry{Kind: KindClaim, Claim: c})
	return f
}

func (f *feed) apply(e *Entry) *carillon.Error {
	f.seq++
	e.Seq, e.Time = f.seq, f.now
	r, err := f.m.Apply(e)
	if err != nil {
		f.t.Fatal(err)
	}
	return r.Err
}

func (f *feed) put(job, body string) {
	if err := f.apply(&Entry{Kind: KindPut, Verb: "put", Job: job, Body: []byte(body)}); err != nil {
		f.t.Fatal(err)
	}
}

// tick advances to now and returns how many outputs that made; it says that all outputs made before are stored for good.
func (f *feed) tick(limit int) int {
	made := f.m.Made()
	f.apply(&Entry{Kind: KindTick, Ticks: []Tick{{To: f.now, Epoch: 1, Limit: uint64(limit), Acked: Acked{made, made}}}})
	return int(f.m.Made() - made)
}

// TestRejectionsAreBounded floods a partition with refused commands: what waits stays small, and every one
// is counted.
func TestRejectionsAreBounded(t *testing.T) {
	f := newFeed(t)
	const flood = 100_000
	for i := range flood {
		e := &Entry{Kind: KindDelete, Verb: "delete", Job: fmt.Sprintf("job-%d", i)}
		if i%2 == 1 {
			e.Kind, e.Verb = KindUnknown, strings.Repeat("bang", 1000)
		}
		if f.apply(e) == nil {
			t.Fatal("not refused")
		}
	}
	if n := len(f.m.rejected); n > maxRejected+2 {
		t.Errorf("%d refusals wait", n)
	}
	f.tick(1 << 16)
	var told uint64
	outputs, _ := f.m.Outbox(0)
	for i := range outputs {
		e, err := carillon.ParseEvent([]byte(outputs[i].Body))
		if err != nil {
			t.Fatal(err)
		}
		if told += e.Count; len(outputs[i].Body) > 5*carillon.MaxJobIDLength {
			t.Errorf("%d bytes tell of a refusal", len(outputs[i].Body))
		}
	}
	if told != flood {
		t.Errorf("%d refusals are told of, there were %d", told, flood)
	}
}

// TestTicksAreBounded has many jobs due at once: a tick moves no more timers and makes no more outputs than its bounds allow, a
// job of high priority comes first although it was put last, and none is lost.
func TestTicksAreBounded(t *testing.T) {
	f := newFeed(t)
	jobs := 3 * DefaultBounds.Moves
	for i := range jobs {
		f.put(fmt.Sprintf("job-%d", i), `{"schedule":"@at 2026-01-01T00:00:01Z","priority":"`+[]string{"low", "normal"}[i%2]+`"}`)
	}
	f.put("high", `{"schedule":"@at 2026-01-01T00:00:01Z","priority":"high"}`)
	f.now += 1000
	if n := f.tick(1); n != 1 {
		t.Fatalf("%d outputs with a limit of 1", n)
	}
	first, _ := f.m.Outbox(0)
	if first[0].Job != "high" {
		t.Errorf("%s went first", first[0].Job)
	}
	total := 1
	for total < jobs+1 {
		before := f.m.Stats().Timers
		n := f.tick(10_000)
		total += n
		if n == 0 || n > 10_000 {
			t.Fatalf("%d outputs with a limit of 10,000", n)
		}
		if moved := before - f.m.Stats().Timers; moved > DefaultBounds.Moves {
			t.Fatalf("%d timers moved by one tick", moved)
		}
	}
	if n := f.m.Stats().Timers + f.m.Stats().Ready; n != 0 {
		t.Errorf("%d are left", n)
	}
}

// TestReadyIsBounded lets a backlog pile up while next to nothing can be published: most of it stays on the
// wheel, jobs of high priority overtake it, and in the end all of it comes, in order.
func TestReadyIsBounded(t *testing.T) {
	f := newFeed(t)
	b := Bounds{Moves: 50, Ready: 200, ReadyBytes: DefaultBounds.ReadyBytes, Sweep: 1}
	f.m.SetBounds(b)
	const jobs = 1000
	for i := range jobs {
		f.put(fmt.Sprintf("job-%d", i), fmt.Sprintf(`{"schedule":"@at 2026-01-01T00:00:01.%03dZ"}`, i))
	}
	f.now += 2000
	put := 0
	for i := range 100 {
		ready, waits := f.m.readyOf.jobs[rankNormal], f.m.Stats().Timers
		f.tick(1)
		put++
		if moved := waits - f.m.Stats().Timers; (moved == 0) != (ready >= b.Ready) {
			t.Fatalf("with %d ready jobs a tick moves %d", ready, moved)
		}
		if n := f.m.readyOf.jobs[rankNormal]; n >= b.Ready+b.Moves || i > 10 && n < b.Ready-1 {
			t.Fatalf("%d are ready after %d ticks", n, i+1)
		}
	}
	f.put("high", `{"schedule":"@in 1ms","priority":"high"}`)
	f.now++
	f.tick(1)
	if o, _ := f.m.Outbox(uint64(put)); o[0].Job != "high" {
		t.Errorf("%s went first", o[0].Job)
	}
	for put < jobs {
		n := f.tick(100)
		outputs, _ := f.m.Outbox(f.m.Made() - uint64(n))
		for i := range outputs {
			if want := fmt.Sprintf("job-%d", put); outputs[i].Job != want {
				t.Fatalf("%s, want %s", outputs[i].Job, want)
			}
			put++
		}
		if n == 0 {
			t.Fatalf("%d came, there were %d", put, jobs)
		}
	}
	if s := f.m.Stats(); s.Timers+s.Ready != 0 || f.m.readyOf.jobs != [priorities]int{} {
		t.Errorf("%d timers, %d ready, by rank %v are left", s.Timers, s.Ready, f.m.readyOf.jobs)
	}
}

// TestReadyIsWeighed has large jobs due together, few of which are in memory: no more of them become ready than take Bounds.ReadyBytes,
// and one step of moves; small ones of another priority are not held up; and in the end all come, in the same order as with all jobs in
// memory.
func TestReadyIsWeighed(t *testing.T) {
	const jobs, size, most = 200, 64 << 10, 1 << 20
	f := newFeed(t)
	s := &saved{m: f.m}
	f.m.Attach(s.table.View())
	large := fmt.Sprintf(`{"schedule":"@at 2026-01-01T00:00:01Z","payload_text":%q}`, strings.Repeat("x", size))
	for i := range jobs {
		f.put(fmt.Sprintf("large-%d", i), large)
		f.put(fmt.Sprintf("small-%d", i), `{"schedule":"@at 2026-01-01T00:00:01Z","priority":"low"}`)
	}
	s.evictAll(t)
	hot, err := Open(oneOfOne, 0, s.table.View())
	if err != nil {
		t.Fatal(err)
	}
	cold, err := OpenCold(oneOfOne, 0, s.table.View())
	if err != nil {
		t.Fatal(err)
	}
	b := DefaultBounds
	b.ReadyBytes = most
	hot.SetBounds(b)
	cold.SetBounds(b)
	f.now += 1000
	tick := func(limit uint64) {
		f.seq++
		for _, m := range []*Machine{hot, cold} {
			if _, err := m.Apply(&Entry{Seq: f.seq, Time: f.now, Kind: KindTick, Ticks: []Tick{{To: f.now, Epoch: 1, Limit: limit}}}); err != nil {
				t.Fatal(err)
			}
		}
		if hot.digest != cold.digest || hot.readyOf != cold.readyOf {
			t.Fatalf("jobs are ready as %v and %v", hot.readyOf, cold.readyOf)
		}
	}
	for range 10 {
		tick(0)
		if n := cold.readyOf.bytes[rankNormal]; n < most || n > most+moveStep*size || cold.readyOf.jobs[rankLow] != jobs {
			t.Fatalf("%d bytes of large jobs are ready, and %d small ones", n, cold.readyOf.jobs[rankLow])
		}
	}
	s.m = cold
	for _, m := range s.opened(t) {
		if m.readyOf != cold.readyOf {
			t.Errorf("after a start it counts %v, and before %v", m.readyOf, cold.readyOf)
		}
	}
	deleted := &Entry{Kind: KindDelete, Verb: "delete", Job: "large-0", Time: f.now}
	demoted := &Entry{Kind: KindPut, Verb: "put", Job: "large-1", Time: f.now, Body: []byte(strings.Replace(large, `{`, `{"priority":"low",`, 1))}
	paused := &Entry{Kind: KindPause, Verb: "pause", Job: "large-2", Time: f.now}
	for _, e := range []*Entry{deleted, demoted, paused} {
		f.seq++
		e.Seq = f.seq
		for _, m := range []*Machine{hot, cold} {
			if r, err := m.Apply(e); err != nil || r.Err != nil || !r.Changed {
				t.Fatal(err, r.Err)
			}
		}
	}
	if hot.readyOf.bytes[rankLow] < size/5*4 {
		t.Errorf("of a large job that is low now %d bytes are ready", hot.readyOf.bytes[rankLow])
	}
	for range 1 + jobs*size/most {
		tick(1 << 16)
	}
	if n := int(cold.Made()); n != 2*jobs-2 || cold.readyOf != (tally{}) {
		t.Errorf("%d came, and %v are left", n, cold.readyOf)
	}
	outputs, _ := cold.Outbox(0)
	others, _ := hot.Outbox(0)
	last := 2
	for i := range outputs {
		var n int
		if _, err := fmt.Sscanf(outputs[i].Job, "large-%d", &n); err == nil && n != 1 {
			if last++; n != last {
				t.Fatalf("output %d is of %s, want job %d", i+1, outputs[i].Job, last)
			}
		}
		if outputs[i].Job != others[i].Job {
			t.Fatalf("output %d is of %s, and with all jobs in memory of %s", i+1, outputs[i].Job, others[i].Job)
		}
	}
	if last != jobs-1 {
		t.Errorf("the last large job that came is %d", last)
	}
}

// The length of a spec is kept in six bits, without much loss.
func TestTermsOfASpec(t *testing.T) {
	for n := range 1 << 20 {
		got := termsOf(carillon.Skip, n)
		if b := got.specBytes(); b > n || n-b > max(n/5, lengthUnit-1) || got.misfire() != carillon.Skip {
			t.Fatalf("%d bytes are kept as %d, skip as %s", n, b, got.misfire())
		}
	}
	if b := termsOf(carillon.FireAll, 1<<40).specBytes(); b < 1<<20 {
		t.Errorf("a length beyond all is kept as %d", b)
	}
}

// TestForcedAreBounded asks for more fires than may wait, by their number and by their payloads: those beyond the bounds are refused, and
// change nothing. There is room again once some have become outputs, or their job is gone; and a machine that goes on from a checkpoint
// decides alike.
func TestForcedAreBounded(t *testing.T) {
	f := newFeed(t)
	s := saved{m: f.m}
	f.put("job", `{"priority":"low"}`)
	f.put("other", `{}`)
	before := f.m.Memory()
	fire := func(job, body string) *carillon.Error {
		return f.apply(&Entry{Kind: KindFire, Verb: "fire", Job: job, Request: fmt.Sprint("request-", f.seq), Body: []byte(body)})
	}
	full := func(what string, err *carillon.Error, words string) {
		t.Helper()
		if err == nil || err.Code != carillon.CodeLimitExceeded || !strings.Contains(err.Message, words) {
			t.Errorf("%s: %v, want it to say %q", what, err, words)
		}
	}
	for i := range maxForced {
		if err := fire([]string{"job", "other"}[i%2], ""); err != nil {
			t.Fatal(i, err)
		}
	}
	request, digest := string(f.m.jobs.request(f.m.jobs.at(0))), f.m.digest
	full("one more", fire("job", ""), "65536 fires that were asked for wait in partition 0")
	full("one more for another", fire("other", `{"payload":1}`), "65536 fires")
	if len(f.m.forced) != maxForced || f.m.digest != digest || string(f.m.jobs.request(f.m.jobs.at(0))) != request {
		t.Error("what was refused changed something")
	}
	if err := f.apply(&Entry{Kind: KindFire, Verb: "fire", Job: "job", Request: request}); err != nil {
		t.Errorf("a repetition of the last one that was taken: %v", err)
	}
	if err := fire("none", ""); err == nil || err.Code != carillon.CodeNotFound {
		t.Errorf("a job that is not there: %v", err)
	}
	f.now++
	f.tick(1)
	if err := fire("job", ""); err != nil {
		t.Errorf("one has become an output, and another is not taken: %v", err)
	}
	full("one more than that", fire("job", ""), "65536 fires")

	for _, job := range []string{"job", "other"} {
		f.apply(&Entry{Kind: KindDelete, Verb: "delete", Job: job})
	}
	if f.put("job", `{}`); len(f.m.forced) != 0 {
		t.Fatalf("%d fires of jobs that are gone wait", len(f.m.forced))
	}
	large := fmt.Sprintf(`{"payload_text":%q}`, strings.Repeat("x", carillon.MaxPayload))
	const fit = maxForcedBytes/carillon.MaxPayload - 1 // with the job itself
	for i := range fit {
		if err := fire("job", large); err != nil {
			t.Fatal(i, err)
		}
	}
	const words = "their payloads and jobs would take more than 64 MiB"
	full("64 MiB and more", fire("job", large), words)
	if n := f.m.Memory() - before; n < fit*carillon.MaxPayload || n > maxForcedBytes+1<<20 {
		t.Errorf("%d MiB of payloads count as %d bytes of memory", fit*carillon.MaxPayload>>20, n)
	}
	if err := fire("job", ""); err != nil {
		t.Errorf("one without a payload of its own: %v", err)
	}
	for what, m := range s.opened(t) {
		f.m = m
		full(what, fire("job", large), words)
		f.now++
		f.tick(1)
		if err := fire("job", large); err != nil {
			t.Errorf("%s: one has become an output, and another is not taken: %v", what, err)
		}
		full(what+", and one more", fire("job", large), words)
		for len(f.m.forced) > 0 {
			f.tick(1 << 16)
		}
		if n := f.m.forcedBytes + f.m.forcedSpecs; n != 0 {
			t.Errorf("%s: %d bytes are left of no fires", what, n)
		}
	}
}

// The jobs that forced fires are of cannot leave memory, so they count, each once and as it is now.
func TestForcedJobsAreWeighed(t *testing.T) {
	f := newFeed(t)
	s := saved{m: f.m}
	const size = 448 << 10
	large := `{"payload_text":"` + strings.Repeat("x", size) + `"}`
	fire := func(job string) *carillon.Error {
		return f.apply(&Entry{Kind: KindFire, Verb: "fire", Job: job})
	}
	const fit = maxForcedBytes / size
	for i := range fit + 2 {
		f.put(fmt.Sprint("job-", i), large)
	}
	f.put("small", `{}`)
	for i := range fit {
		if err := fire(fmt.Sprint("job-", i)); err != nil {
			t.Fatal(i, err)
		}
		if err := fire("job-0"); err != nil {
			t.Fatal("again", i, err)
		}
	}
	full := func(what string) {
		t.Helper()
		if err := fire(fmt.Sprint("job-", fit+1)); err == nil || err.Code != carillon.CodeLimitExceeded || !strings.Contains(err.Message, "payloads and jobs") {
			t.Errorf("%s: %v", what, err)
		}
		if err := fire("small"); err != nil {
			t.Errorf("%s: one of a small job: %v", what, err)
		}
	}
	full("with as many large jobs as fit")
	f.put("job-1", `{}`)
	if err := fire(fmt.Sprint("job-", fit)); err != nil {
		t.Errorf("a job that has fires waiting has become small: %v", err)
	}
	f.put("job-1", large)
	f.apply(&Entry{Kind: KindDelete, Verb: "delete", Job: "job-2"})
	full("a job is large again, and another is gone")
	want := f.m.forcedSpecs
	for _, m := range s.opened(t) {
		if m.forcedSpecs != want {
			t.Errorf("after a start the jobs have %d bytes, and before %d", m.forcedSpecs, want)
		}
	}
	f.now++
	if f.tick(1 << 16); f.m.forcedSpecs != 0 || len(f.m.forcedBy) != 0 {
		t.Errorf("%d bytes are left of no fires", f.m.forcedSpecs)
	}
}

// A forced fire that came and went between two checkpoints does not keep its payload until the next one; one that a checkpoint is to have
// keeps it.
func TestForcedAreFreed(t *testing.T) {
	f := newFeed(t)
	s := saved{m: f.m}
	f.put("job", `{}`)
	fire := func() {
		f.apply(&Entry{Kind: KindFire, Verb: "fire", Job: "job", Body: []byte(`{"payload":1}`)})
	}
	fire()
	c := f.m.BeginCheckpoint()
	fire()
	f.tick(1000)
	if n := len(f.m.forced); n != 0 {
		t.Fatalf("%d wait", n)
	}
	if body := f.m.changes.forced.added[0].body; body != "" {
		t.Errorf("one that is gone has %q", body)
	}
	for c.Next(1) {
	}
	if err := s.commit(c); err != nil {
		t.Fatal(err)
	}
	for _, fired := range open(t, f.m, s.table.View()).forced {
		if fired.body != "1" {
			t.Errorf("in the checkpoint it has %q", fired.body)
		}
	}
	outputs, _ := f.m.Outbox(0)
	if len(outputs) != 2 || outputs[1].Payload() != "1" {
		t.Errorf("the outputs are %+v", outputs)
	}
	f.put("job", `{"payload":"another"}`)
	if n := f.m.forcedSpecs; n != 0 {
		t.Errorf("no fire waits, and the jobs of those that do are counted with %d bytes", n)
	}
}

// A time without ticks is remembered until every priority's fires of it are decided, however few of them a tick can take.
func TestMissedBehindOthers(t *testing.T) {
	f := newFeed(t)
	f.m.SetBounds(Bounds{Moves: 1, Ready: 100, ReadyBytes: DefaultBounds.ReadyBytes, Sweep: 1})
	f.tick(100)
	f.put("low", `{"schedule":"@every 1s","priority":"low","misfire":"skip"}`)
	f.put("high", `{"schedule":"@in 5s","priority":"high"}`)
	f.now += 10_000
	f.tick(100)
	f.tick(100)
	outputs, _ := f.m.Outbox(1)
	if len(outputs) == 0 || outputs[0].Event != carillon.EventSkipped || !strings.Contains(outputs[0].Body, `"count":8,`) {
		t.Errorf("after the job of high priority comes %+v, want that 8 fires of the other were skipped", outputs)
	}
}

// Ids that are deleted and put again leave nothing behind, even behind an id that was deleted first and stays deleted.
func TestTombstonesAreBounded(t *testing.T) {
	f := newFeed(t)
	fireAndDelete := func(job string) {
		t.Helper()
		f.put(job, `{"schedule":"@every 50ms"}`)
		f.now += 100
		f.tick(10)
		if err := f.apply(&Entry{Kind: KindDelete, Verb: "delete", Job: job}); err != nil {
			t.Fatal(err)
		}
	}
	fireAndDelete("first")
	for range 20_000 {
		fireAndDelete("again")
	}
	if len(f.m.tombstones) != 2 || len(f.m.tombstoneQueue) > 2*len(f.m.tombstones)+fifoSlack {
		t.Errorf("%d tombstones, and %d in the list of them", len(f.m.tombstones), len(f.m.tombstoneQueue))
	}
	if f.m.tombstoneQueue[0] != f.m.tombstones["first"] || !slices.Contains(f.m.tombstoneQueue, f.m.tombstones["again"]) {
		t.Error("a tombstone is not in the list")
	}
	f.now += f.m.claim.RetentionMS / 2
	fireAndDelete("again")
	f.now += f.m.claim.RetentionMS / 2
	fireAndDelete("last")
	if len(f.m.tombstones) != 2 || f.m.tombstones["again"] == nil || len(f.m.tombstoneQueue) != 2 {
		t.Errorf("once the earlier ones' time is over there are %d tombstones, and %d in the list", len(f.m.tombstones), len(f.m.tombstoneQueue))
	}
}

// The listener hears of each skip, with its reason.
func TestSkipsAreHeard(t *testing.T) {
	f := newFeed(t)
	got := make(map[string]uint64)
	f.m.Listen(Listener{Skipped: func(reason string, n uint64) { got[reason] += n }})
	f.put("misfire", `{"schedule":"@every 1s","misfire":"skip"}`)
	f.put("expired", `{"schedule":"@every 1m","expires":"1s"}`)
	f.put("paused", `{"schedule":"@every 1s"}`)
	f.tick(100)
	f.apply(&Entry{Kind: KindPause, Verb: "pause", Job: "paused"})
	f.now += 62_000
	f.apply(&Entry{Kind: KindResume, Verb: "resume", Job: "paused"})
	f.tick(100)
	want := map[string]uint64{carillon.ReasonMisfire: 60, carillon.ReasonExpired: 1, carillon.ReasonPaused: 62}
	if !maps.Equal(got, want) {
		t.Errorf("heard of %v, want %v", got, want)
	}
}

// The listener hears of each command with its verb and outcome, and of each record that changed nothing, with the reason. Unknown
// verbs have one name for it, whatever they are.
func TestCommandsAreHeard(t *testing.T) {
	f := newFeed(t)
	var got []string
	f.m.Listen(Listener{
		Command: func(verb string, code carillon.Code) { got = append(got, verb+" "+string(code)) },
		Garbage: func(reason string) { got = append(got, reason) },
	})
	f.put("a", `{}`)
	f.apply(&Entry{Kind: KindFire, Verb: "fire", Job: "none"})
	f.apply(&Entry{Kind: KindUnknown, Verb: "bang", Job: "a"})
	f.apply(&Entry{Kind: KindGarbage})
	f.apply(&Entry{Kind: KindTick, Ticks: []Tick{{To: f.now, Epoch: 7}}})
	f.apply(&Entry{Kind: KindDisk, Disk: Disk{Epoch: 7, Low: true}})
	older := f.m.claim
	older.TZData = "1999a"
	f.apply(&Entry{Kind: KindClaim, Claim: older})
	want := []string{"put ", "fire not_found", "unknown invalid_field", "malformed", "stale_epoch", "stale_epoch", "older_rules"}
	if !slices.Equal(got, want) {
		t.Errorf("heard of %q, want %q", got, want)
	}
}

// An owner's digest is compared with that of a replica, which may be another build of the same Logic. So each decision must go into
// the digest, and always in the same way.
func TestDigest(t *testing.T) {
	f := newFeed(t)
	tick := func(limit uint64) *Entry {
		return &Entry{Kind: KindTick, Ticks: []Tick{{To: f.now + 5, Epoch: 1, Limit: limit}}}
	}
	for _, c := range []struct {
		e    *Entry
		want string
	}{
		{&Entry{Kind: KindPut, Verb: "put", Job: "a", Body: []byte(`{"schedule":"@every 1ms"}`)}, "ec681a99e883a8a6"},
		{&Entry{Kind: KindDisk, Disk: Disk{Epoch: 1, Low: true}}, "76dffd0a91e8292f"},
		{&Entry{Kind: KindFire, Verb: "fire", Job: "a"}, "070baefeeead2438"},
		{&Entry{Kind: KindDelete, Verb: "delete", Job: "none"}, "070baefeeead2438"},
		{tick(1), "b3042eb02f0b912d"},
		{tick(2), "9c32c3a519826209"},
		{tick(9), "26017d1c284c123b"},
		{&Entry{Kind: KindPut, Verb: "put", Job: "a", Body: []byte(`{"schedule":"@every 1ms"}`)}, "26017d1c284c123b"}, // changes nothing
	} {
		if f.apply(c.e); fmt.Sprintf("%016x", f.m.digest) != c.want {
			t.Errorf("after a record of kind %d it is %016x, and was %s", c.e.Kind, f.m.digest, c.want)
		}
	}
}

// A tick whose mark is another than here stops the machine, also if the owner is some marks behind; but not if marks up to that
// position are ignored.
func TestMarks(t *testing.T) {
	f := newFeed(t)
	for range 5 * markEvery {
		f.tick(0)
	}
	newest, fourth := f.seq, f.seq-3*markEvery
	if at := f.m.Mark().Position; at != newest {
		t.Fatalf("the newest mark is at %d, want %d", at, newest)
	}
	for _, c := range []struct {
		at, ignored uint64
		want        error
	}{{newest, 0, ErrDiverged}, {fourth, 0, ErrDiverged}, {newest, newest - 1, ErrDiverged}, {newest, newest, nil}} {
		f.m.IgnoreMarks(c.ignored)
		e := &Entry{Seq: f.seq + 1, Time: f.now, Kind: KindTick, Ticks: []Tick{{To: f.now, Epoch: 1, Mark: Mark{c.at, f.m.digest + 1}}}}
		if _, err := f.m.Apply(e); !errors.Is(err, c.want) {
			t.Errorf("another mark at %d, ignored up to %d: %v, want %v", c.at, c.ignored, err, c.want)
		}
	}
}

// Jobs with a great many missed fires to count hold up nothing that is due, in whatever priority. Once nothing else is ready, more are
// counted, and in the end all.
func TestCountingHoldsUpNothing(t *testing.T) {
	const jobs = 100
	f := newFeed(t)
	f.tick(10)
	f.put("v", `{"schedule":"@every 1s","priority":"low"}`)
	for i := range jobs {
		job := carillon.Job{ID: fmt.Sprint("count-", i), Schedule: "* * * * * *", Misfire: carillon.Skip}
		p := Pack(&job, nil, "")
		since := f.now - 30*countTurns*countSteps*1000
		p.State = &JobState{Accepted: since, From: since}
		if err := f.apply(&Entry{Kind: KindImport, Pack: []PackedJob{p}}); err != nil {
			t.Fatal(err)
		}
	}
	made := make(map[string]int)
	f.m.Listen(Listener{Made: func(o *Output) { made[o.Job]++ }})
	const limit = 8
	f.now += 1000
	for range jobs/limit + 2 { // the first turn of each job is one of those that are due
		f.tick(limit)
	}
	if made["v"] != 1 || f.m.counting.Len() != jobs {
		t.Fatalf("the other fired %d times, and %d of %d jobs are being counted", made["v"], f.m.counting.Len(), jobs)
	}
	for i := 2; i < 5; i++ {
		f.now += 1000
		if f.tick(limit); made["v"] != i {
			t.Errorf("the other fired %d times in %d seconds", made["v"], i)
		}
	}
	short := carillon.Job{ID: "short", Schedule: "* * * * * *", Misfire: carillon.Skip}
	p := Pack(&short, nil, "")
	since := f.now - 3*countSteps*1000
	p.State = &JobState{Accepted: since, From: since}
	f.apply(&Entry{Kind: KindImport, Pack: []PackedJob{p}})
	for range 2 {
		f.tick(limit)
	}
	if made["short"] == 0 {
		t.Error("a job with little to count waits behind others with much more")
	}
	_, j := f.m.jobs.find("count-0")
	if m := open(t, f.m, wholeOf(t, f.m)); m.counting.Len() != jobs || m.countingOf != f.m.countingOf || m.readyOf != f.m.readyOf {
		t.Errorf("after a start %d jobs are being counted, as %v; %v before", m.counting.Len(), m.countingOf, f.m.countingOf)
	}
	f.apply(&Entry{Kind: KindDelete, Verb: "delete", Job: "count-1"})
	if f.m.counting.Len() != jobs-1 {
		t.Errorf("%d jobs are being counted after one of %d was deleted", f.m.counting.Len(), jobs)
	}
	for ticks := 0; f.m.counting.Len() > 0; ticks++ {
		if f.tick(1000); ticks > 10*jobs {
			t.Fatalf("%d jobs are being counted still, of one %d", f.m.counting.Len(), f.m.jobs.extra(j).counted)
		}
	}
	if made["count-0"] == 0 || made["count-1"] != 0 {
		t.Errorf("of the first %d outputs came, of the one deleted %d", made["count-0"], made["count-1"])
	}
}

// Jobs that are being counted stay in memory, so they are bounded as well, by number and by bytes.
func TestCountingIsBounded(t *testing.T) {
	const jobs, ready, long = 300, 10, 1000 * countTurns * countSteps * 1000
	for name, c := range map[string]struct {
		Bounds
		payload, most int
	}{
		"number": {Bounds{Moves: 50, Ready: ready, ReadyBytes: 1 << 20, Sweep: 10}, 1, (countingShare+1)*ready + moveStep},
		"bytes":  {Bounds{Moves: 50, Ready: 1000, ReadyBytes: 4 << 10, Sweep: 10}, 1000, moveStep + 8},
	} {
		f := newFeed(t)
		f.m.SetBounds(c.Bounds)
		f.tick(10)
		f.now++ // so that they wait on the wheel
		for i := range jobs {
			f.put(fmt.Sprint("long-", i), `{"schedule":"* * * * * *","misfire":"skip","payload_text":"`+strings.Repeat("x", c.payload)+`"}`)
		}
		f.now += long
		for range 2 * jobs {
			if f.tick(32); f.m.counting.Len() > c.most {
				t.Fatalf("%s: %d jobs are being counted", name, f.m.counting.Len())
			}
		}
		if f.m.counting.Len() < moveStep {
			t.Fatalf("%s: only %d jobs are being counted", name, f.m.counting.Len())
		}
	}
}

// What leaves the queues by a command is no longer counted there: else the wheels would wait for it for ever.
func TestTalliesOfCommands(t *testing.T) {
	f := newFeed(t)
	jobs := []string{"a", "b", "c", "d"}
	for _, id := range jobs {
		f.put(id, `{"schedule":"* * * * * *"}`)
	}
	f.tick(0) // the first fires are ready
	if n := f.m.readyOf.jobs[rankNormal]; n != len(jobs) {
		t.Fatalf("%d jobs are ready", n)
	}
	f.tick(len(jobs))
	f.now += 2 * countTurns * countSteps * 1000
	f.tick(1) // counts some of what they missed
	if n := f.m.countingOf.jobs[rankNormal]; n == 0 {
		t.Fatal("no missed fires are being counted")
	}
	f.apply(&Entry{Kind: KindDelete, Verb: "delete", Job: "a"})
	f.apply(&Entry{Kind: KindPause, Verb: "pause", Job: "b"})
	f.put("c", `{}`)
	f.put("d", `{"schedule":"@in 1h","priority":"high"}`)
	if n := f.m.ready.Len() + f.m.counting.Len(); n != 0 || f.m.readyOf != (tally{}) || f.m.countingOf != (tally{}) {
		t.Errorf("%d turns are left; ready are %+v, being counted %+v", n, f.m.readyOf, f.m.countingOf)
	}
}
