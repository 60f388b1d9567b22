package engine

import (
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
	b := Bounds{Moves: 50, Ready: 200, Sweep: 1}
	f.m.SetBounds(b)
	const jobs = 1000
	for i := range jobs {
		f.put(fmt.Sprintf("job-%d", i), fmt.Sprintf(`{"schedule":"@at 2026-01-01T00:00:01.%03dZ"}`, i))
	}
	f.now += 2000
	put := 0
	for i := range 100 {
		ready, waits := f.m.readyJobs[rankNormal], f.m.Stats().Timers
		f.tick(1)
		put++
		if moved := waits - f.m.Stats().Timers; (moved == 0) != (ready >= b.Ready) {
			t.Fatalf("with %d ready jobs a tick moves %d", ready, moved)
		}
		if n := f.m.readyJobs[rankNormal]; n >= b.Ready+b.Moves || i > 10 && n < b.Ready-1 {
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
	if s := f.m.Stats(); s.Timers+s.Ready != 0 || f.m.readyJobs != [priorities]int{} {
		t.Errorf("%d timers, %d ready, by rank %v are left", s.Timers, s.Ready, f.m.readyJobs)
	}
}

// A time without ticks is remembered until every priority's fires of it are decided, however few of them a tick can take.
func TestMissedBehindOthers(t *testing.T) {
	f := newFeed(t)
	f.m.SetBounds(Bounds{Moves: 1, Ready: 100, Sweep: 1})
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
	} {
		if f.apply(c.e); fmt.Sprintf("%016x", f.m.digest) != c.want {
			t.Errorf("after a record of kind %d it is %016x, and was %s", c.e.Kind, f.m.digest, c.want)
		}
	}
}
