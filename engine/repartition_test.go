package engine

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/internal/memtable"
)

// service is the machines of all partitions, with one log.
type service struct {
	t     testing.TB
	ms    []*Machine
	seq   uint64
	now   int64
	from  []uint64 // the number of the output before the first one in each stream
	fired []string
}

func newService(t testing.TB, partitions int) *service {
	w := &service{t: t, now: testEpoch}
	for p := range partitions {
		w.ms = append(w.ms, New(Layout{"carillon", partitions}, p))
	}
	w.begin()
	return w
}

// begin has a node claim the partitions, and notes the outputs that they make from now on.
func (w *service) begin() {
	for _, m := range w.ms {
		w.from = append(w.from, m.Acked().Output)
		c := Rules()
		c.Node, c.RetentionMS, c.CompletedMax = "n", 40*time.Hour.Milliseconds(), 100_000
		w.apply(m, &Entry{Kind: KindClaim, Claim: c})
	}
	w.listen()
}

// listen notes the outputs that are held and those that are made from now on.
func (w *service) listen() {
	w.fired = nil
	note := func(o *Output) {
		w.fired = append(w.fired, fmt.Sprintf("%s v%d %d %s %s", o.ID(), o.Version, o.Missed, o.Event, o.Payload()))
	}
	for _, m := range w.ms {
		held, _ := m.Outbox(m.Acked().Output)
		for i := range held {
			note(&held[i])
		}
		m.Listen(Listener{Made: note})
	}
}

func (w *service) apply(m *Machine, e *Entry) *carillon.Error {
	w.seq++
	e.Seq, e.Time = w.seq, w.now
	r, err := m.Apply(e)
	if err != nil {
		w.t.Fatal(err)
	}
	return r.Err
}

func (w *service) do(kind Kind, verb, job, body string) *carillon.Error {
	return w.apply(w.ms[PartitionOf(job, len(w.ms))], &Entry{Kind: kind, Verb: verb, Job: job, Body: []byte(body)})
}

func (w *service) put(job, body string) {
	w.t.Helper()
	if err := w.do(KindPut, "put", job, body); err != nil {
		w.t.Fatal(err)
	}
}

// tick advances some partitions to now. It says that outputs made before are stored for good, unless they are to be held.
func (w *service) tick(limit int, hold bool, only ...int) {
	w.seq++
	for p, m := range w.ms {
		if len(only) > 0 && !slices.Contains(only, p) {
			continue
		}
		acked := Acked{Output: m.Made(), Seq: m.Made() - w.from[p]}
		if hold {
			acked = m.Acked()
		}
		e := &Entry{Seq: w.seq, Time: w.now, Kind: KindTick, Ticks: []Tick{{Partition: p, To: w.now, Epoch: m.epoch, Limit: uint64(limit), Acked: acked}}}
		if _, err := m.Apply(e); err != nil {
			w.t.Fatal(err)
		}
	}
}

// repartitioned is the service restored into other partitions, from a snapshot.
func (w *service) repartitioned(partitions int, only carillon.Selection, cold bool, missed ...carillon.Misfire) *service {
	w.t.Helper()
	var views []memtable.View
	for _, m := range w.ms {
		views = append(views, wholeOf(w.t, m))
	}
	return w.repartitionedFrom(views, partitions, only, cold, missed...)
}

// repartitionedFrom is repartitioned, from given checkpoints of all partitions.
func (w *service) repartitionedFrom(views []memtable.View, partitions int, only carillon.Selection, cold bool, missed ...carillon.Misfire) *service {
	w.t.Helper()
	var states []*SavedState
	var newest Claim
	for _, v := range views {
		state, _ := v.State() // it is in memory
		s, err := ReadState(state)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, policy := range missed {
			s.OverrideMisfire(policy)
		}
		states = append(states, s)
		if newest.Node == "" || s.machine.claim.newer(newest) {
			newest = s.machine.claim
		}
	}
	r, err := NewRepartition(states, partitions, w.seq, only)
	if err != nil {
		w.t.Fatal(err)
	}
	for p, v := range views {
		for _, room := range r.Rooms() {
			if _, err := v.Scan(room, nil, nil, 0, func(key, value []byte) error { return r.Inspect(p, room, key, value) }); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	r.Prepare()
	routed := w.routed(r, views, partitions)
	other := &service{t: w.t, seq: w.seq, now: w.now}
	stateOf, _ := r.States()
	for i, state := range stateOf {
		if specs, jobs := len(routed[i][roomSpecs]), len(routed[i][roomIDs]); specs != jobs {
			w.t.Fatalf("partition %d of %d: %d specs of %d jobs", i, partitions, specs, jobs)
		}
		opened := Open
		if cold {
			opened = OpenCold
		}
		m, err := opened(Layout{"carillon", partitions}, i, w.table(state, routed[i]).View())
		if err != nil {
			w.t.Fatalf("partition %d of %d: %v", i, partitions, err)
		}
		if m.claim != newest || m.epoch == 0 {
			w.t.Errorf("partition %d of %d goes by %+v, epoch %d; it was %+v", i, partitions, m.claim, m.epoch, newest)
		}
		other.ms = append(other.ms, m)
	}
	return other
}

// routedRooms are the pairs that were routed to a partition, by room.
type routedRooms map[byte][]routedPair

type routedPair struct{ key, value []byte }

// allRooms are the rooms of a partition's state, in their order.
var allRooms = []byte("cfgioswz")

// routed routes the pairs of all checkpoints. From each checkpoint those of a room must come in the order of their new keys.
func (w *service) routed(r *Repartition, views []memtable.View, partitions int) []routedRooms {
	w.t.Helper()
	all := make([]routedRooms, partitions)
	for i := range all {
		all[i] = make(routedRooms)
	}
	for _, room := range allRooms {
		for p, v := range views {
			var last []byte
			if _, err := v.Scan(room, nil, nil, 0, func(key, value []byte) error {
				to, keep, err := r.Route(p, room, key, value)
				if err != nil || !keep {
					return err
				}
				if room != roomOutputs && last != nil && bytes.Compare(to.Key, last) <= 0 {
					w.t.Fatalf("room %q: % x was routed after % x", room, to.Key, last)
				}
				last = bytes.Clone(to.Key)
				all[to.Partition][room] = append(all[to.Partition][room], routedPair{last, bytes.Clone(to.Value)})
				return nil
			}); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	return all
}

// table makes the table of a partition: a checkpoint with a state and pairs.
func (w *service) table(state []byte, rooms routedRooms) *memtable.Table {
	w.t.Helper()
	table := new(memtable.Table)
	b := table.Begin()
	b.State(w.seq, state)
	for _, room := range allRooms {
		pairs := rooms[room]
		slices.SortFunc(pairs, func(a, b routedPair) int { return bytes.Compare(a.key, b.key) })
		for _, p := range pairs {
			if room == roomSpecs || room == roomOutputs {
				b.Append(room, p.key, p.value)
			} else {
				b.Change(room, p.key, nil, p.value)
			}
		}
	}
	if err := b.Commit(); err != nil {
		w.t.Fatal(err)
	}
	return table
}

// sameFires fails if two services did not make the same outputs.
func sameFires(t *testing.T, want, got *service) {
	t.Helper()
	a, b := slices.Sorted(slices.Values(want.fired)), slices.Sorted(slices.Values(got.fired))
	if d := cmp.Diff(a, b); d != "" {
		t.Fatalf("outputs (-original +restored):\n%s", d)
	}
}

// month is a service with all kinds of jobs in all states, after two days.
func month(t *testing.T) *service {
	w := newService(t, 4)
	hour := time.Hour.Milliseconds()
	for i := range 60 {
		w.put(fmt.Sprintf("cron-%d", i), fmt.Sprintf(`{"schedule":"%d %d * * *","zone":"Europe/Paris","spread":"10m","payload":{"n": %d},"labels":{"team":"t%d"}}`, i, i%24, i, i%3))
		w.put(fmt.Sprintf("every-%d", i), fmt.Sprintf(`{"schedule":"@every %dm","misfire":"fire_all","max_fires":%d}`, 7+i, 20+5*i))
		w.put(fmt.Sprintf("once-%d", i), fmt.Sprintf(`{"schedule":"@in %dh","priority":"high","owner":"o%d"}`, 6*(i+1), i%2))
		w.put(fmt.Sprintf("idle-%d", i), `{}`)
	}
	for p, m := range w.ms { // one record for each partition
		var pack []PackedJob
		for i := range 40 {
			job := carillon.Job{ID: fmt.Sprintf("pack-%d", i), Schedule: fmt.Sprintf("@every %dh", 5+i), Owner: fmt.Sprint("o", i%2)}
			if PartitionOf(job.ID, len(w.ms)) == p {
				pack = append(pack, Pack(&job, nil, ""))
			}
		}
		w.apply(m, &Entry{Kind: KindImport, Pack: pack})
	}
	w.put("june", `{"schedule":"0 0 1 5 *"}`)
	w.put("june", `{"schedule":"0 0 1 6 *"}`)
	for range 50 {
		w.now += hour
		w.tick(1000, false)
	}
	for i := range 20 {
		w.do(KindDelete, "delete", fmt.Sprintf("every-%d", 3*i), "")
		w.do(KindPause, "pause", fmt.Sprintf("cron-%d", 2*i), "")
	}
	w.now += 4 * hour
	w.tick(30, true) // leaves a backlog, and outputs that are held
	for i := range 30 {
		w.do(KindFire, "fire", fmt.Sprintf("cron-%d", i), `{"payload":1}`)
		w.do(KindFire, "fire", fmt.Sprintf("once-%d", i%3), "")
		w.do(KindDelete, "delete", fmt.Sprintf("nobody-%d", i), "")
	}
	return w
}

// later goes on for a month, with commands for jobs that were there.
func (w *service) later() {
	hour := time.Hour.Milliseconds()
	for i := range 30 * 24 {
		w.now += hour
		if i == 100 {
			for k := range 20 {
				w.do(KindResume, "resume", fmt.Sprintf("cron-%d", 2*k), "")
				w.put(fmt.Sprintf("every-%d", 3*k), `{"schedule":"@every 50m"}`)
				w.put(fmt.Sprintf("once-%d", k), `{"schedule":"@every 90m"}`)
				w.do(KindDelete, "delete", fmt.Sprintf("cron-%d", 2*k+1), "")
				w.put(fmt.Sprintf("new-%d", k), `{}`)
			}
		}
		w.tick(500, false)
	}
}

// TestRepartitionMonth restores a service into other numbers of partitions and lets both go on for a month: every later
// output is the same.
func TestRepartitionMonth(t *testing.T) {
	for i, partitions := range []int{1, 3, 8} {
		w := month(t)
		for p, m := range w.ms {
			if s := m.Stats(); s.Ready == 0 || s.Paused == 0 || s.Completed == 0 || len(m.tombstones) == 0 || len(m.forced) == 0 || len(m.rejected) == 0 || m.Made() == m.Acked().Output {
				t.Fatalf("partition %d has nothing to lose: %+v", p, s)
			}
		}
		other := w.repartitioned(partitions, carillon.Selection{}, i%2 == 0)
		jobs := func(w *service) (scheduled, paused int) {
			for _, m := range w.ms {
				scheduled, paused = scheduled+m.counts[statusScheduled], paused+m.counts[statusPaused]
			}
			return scheduled, paused
		}
		as, ap := jobs(w)
		if bs, bp := jobs(other); as != bs || ap != bp {
			t.Fatalf("%d scheduled and %d paused, the original has %d and %d", bs, bp, as, ap)
		}
		for _, id := range []string{"cron-0", "cron-1", "every-1", "every-3", "once-1", "idle-7"} {
			a, _ := w.ms[PartitionOf(id, len(w.ms))].Job(id, nil)
			b, _ := other.ms[PartitionOf(id, partitions)].Job(id, nil)
			a.Partition, b.Partition = 0, 0
			if d := cmp.Diff(a, b); d != "" {
				t.Fatalf("%s (-original +restored):\n%s", id, d)
			}
		}
		for p, m := range other.ms {
			for _, s := range w.ms { // numbers go on above all that are taken
				if m.created < s.created || m.armed < s.armed || m.finished < s.finished || m.tombstoned < s.tombstoned {
					t.Errorf("partition %d has counted to %d, %d, %d and %d", p, m.created, m.armed, m.finished, m.tombstoned)
				}
			}
			held, _ := m.Outbox(m.Acked().Output)
			for i := range held {
				if job := held[i].Job; PartitionOf(job, partitions) != p {
					t.Errorf("partition %d publishes an output of %s", p, job)
				}
			}
		}
		goOn(t, w, other)
		if len(w.fired) < 5000 {
			t.Fatalf("only %d outputs", len(w.fired))
		}
		if partitions != 1 {
			continue
		}
		// And once more, from the restored service, whose numbers have gone on.
		again := other.repartitioned(3, carillon.Selection{}, true)
		goOn(t, other, again)
	}
}

// Into fewer partitions more forced fires may come than a partition takes: all become outputs, and new ones are taken once there is room.
func TestRepartitionForced(t *testing.T) {
	w := newService(t, 2)
	var jobs []string
	for p := range w.ms {
		job := "job"
		for PartitionOf(job, 2) != p {
			job += "-"
		}
		w.put(job, `{}`)
		jobs = append(jobs, job)
		for range maxForced/2 + 10 {
			if err := w.do(KindFire, "fire", job, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	other := w.repartitioned(1, carillon.Selection{}, true)
	other.begin()
	m := other.ms[0]
	if n := len(m.forced); n != maxForced+20 {
		t.Fatalf("%d fires wait", n)
	}
	refused := func() bool {
		err := other.do(KindFire, "fire", jobs[0], "")
		if err != nil && err.Code != carillon.CodeLimitExceeded {
			t.Fatal(err)
		}
		return err != nil
	}
	for ; len(m.forced) >= maxForced; other.tick(7, false) {
		if other.now++; !refused() {
			t.Fatalf("one was taken, and %d wait", len(m.forced))
		}
	}
	if refused() {
		t.Errorf("one was refused, and %d wait", len(m.forced))
	}
	for len(m.forced) > 0 {
		other.now++
		other.tick(1<<16, false)
	}
	other.tick(1, false)
	if n := len(other.fired); n != maxForced+20+1+1 { // the one that was taken, and the event of those that were refused
		t.Errorf("%d outputs", n)
	}
}

// goOn lets a service and one that was restored from it go on, and compares the outputs that they make from there on.
func goOn(t *testing.T, w, restored *service) {
	t.Helper()
	w.from = nil
	w.begin()
	restored.begin()
	w.later()
	restored.later()
	sameFires(t, w, restored)
}

// A partition with few completed and deleted jobs keeps what it knows of them beside a partition with many.
func TestRepartitionUneven(t *testing.T) {
	w := newService(t, 2)
	id := func(partition int, name string, n int) string {
		for n = 1000 * n; PartitionOf(fmt.Sprintf("%s-%d", name, n), 2) != partition; n++ {
		}
		return fmt.Sprintf("%s-%d", name, n)
	}
	for i := range 50 {
		w.put(id(0, "busy", i), `{"schedule":"@in 1s"}`)
		w.put(id(0, "gone", i), `{"schedule":"@in 1s"}`)
	}
	for i := range 5 {
		w.put(id(1, "quiet", i), `{"schedule":"@in 2s"}`)
	}
	w.put(id(1, "gone", 0), `{"schedule":"@in 1s"}`)
	w.put(id(1, "over", 0), `{"schedule":"@every 1s"}`)
	for range 3 {
		w.now += 1000
		w.tick(1000, false)
	}
	for i := range 50 {
		w.do(KindDelete, "delete", id(0, "gone", i), "")
	}
	w.do(KindDelete, "delete", id(1, "gone", 0), "")
	w.now += 500
	w.put(id(1, "over", 0), `{"schedule":"@every 1s","end":"2026-01-01T00:00:01Z"}`) // which has yet to be announced
	other := w.repartitioned(1, carillon.Selection{}, true)
	m := other.ms[0]
	if last := m.tombstoneQueue[len(m.tombstoneQueue)-1]; last.id != id(1, "gone", 0) {
		t.Errorf("the last of %d tombstones is that of %s", len(m.tombstoneQueue), last.id)
	}
	other.begin()
	c := Rules()
	c.Node, c.RetentionMS, c.CompletedMax = "n", 40*time.Hour.Milliseconds(), 60 // more than there are
	other.apply(m, &Entry{Kind: KindClaim, Claim: c})
	other.tick(1000, false)
	for i := range 5 {
		if _, ok := m.Job(id(1, "quiet", i), nil); !ok {
			t.Errorf("%s is gone", id(1, "quiet", i))
		}
	}
	if n := len(other.fired); !strings.Contains(other.fired[n-1], carillon.EventCompleted) {
		t.Errorf("the last of the outputs %q does not announce the completed job", other.fired)
	}
	for i := range c.CompletedMax {
		other.put(fmt.Sprint("new-", i), `{"schedule":"@in 1s"}`)
	}
	other.now += 1000
	other.tick(1000, false)
	page, _, _ := m.Page(&carillon.ListRequest{}, "", 1000, 1000, nil)
	for i := range page {
		if !strings.HasPrefix(page[i].ID, "new-") {
			t.Errorf("%s is there after %d others have completed", page[i].ID, c.CompletedMax)
		}
	}
	if len(page) != c.CompletedMax {
		t.Errorf("%d of %d new ones are there", len(page), c.CompletedMax)
	}
}

// Completed jobs that are gone may still be in a checkpoint. A restore leaves them out, except one with a forced fire.
func TestRestoredGone(t *testing.T) {
	w := newService(t, 2)
	for i := range 10 {
		w.put(fmt.Sprintf("once-%d", i), fmt.Sprintf(`{"schedule":"@in %ds"}`, i+1))
	}
	for range 10 {
		w.now += 1000
		w.tick(100, false)
	}
	w.do(KindFire, "fire", "once-0", "")
	for p, m := range w.ms {
		c := Rules()
		c.Node, c.RetentionMS, c.CompletedMax = "n", 40*time.Hour.Milliseconds(), 2
		w.apply(m, &Entry{Kind: KindClaim, Claim: c})
		w.apply(m, &Entry{Kind: KindFire, Verb: "fire", Job: fmt.Sprintf("none-%d", p)}) // once that is out, it is gone
	}
	var views []memtable.View
	var want, extracted []string
	for _, m := range w.ms {
		s := saved{m: m}
		newest := "newest"
		for PartitionOf(newest, 2) != m.partition {
			newest += "-"
		}
		w.put(newest, `{}`)
		if err := s.checkpoint(100); err != nil {
			t.Fatal(err)
		}
		w.do(KindDelete, "delete", newest, "") // its spec stays one step longer
		if err := s.checkpoint(100); err != nil {
			t.Fatal(err)
		}
		views = append(views, s.table.View())
		for _, j := range w.extractedFrom(views[len(views)-1], carillon.Selection{}) {
			extracted = append(extracted, j.Job.ID)
		}
		page, _, _ := m.Page(&carillon.ListRequest{}, "", 100, 100, nil)
		for i := range page {
			want = append(want, page[i].ID)
		}
		if m.counts[statusCompleted] <= len(page) {
			t.Fatalf("%d of %d completed jobs are gone", m.counts[statusCompleted]-len(page), m.counts[statusCompleted])
		}
	}
	other := w.repartitionedFrom(views, 1, carillon.Selection{}, true)
	page, _, _ := other.ms[0].Page(&carillon.ListRequest{}, "", 100, 100, nil)
	var got []string
	for i := range page {
		got = append(got, page[i].ID)
	}
	slices.Sort(want)
	slices.Sort(extracted)
	if len(want) != 5 || !slices.Equal(got, want) {
		t.Errorf("repartitioned are %q, want %q", got, want)
	}
	none := w.repartitionedFrom(views, 1, carillon.Selection{Owner: "nobody"}, true) // which looks at all specs
	if s := none.ms[0].Stats(); s.Jobs != 0 {
		t.Errorf("%d jobs of nobody are restored", s.Jobs)
	}
	if want = slices.DeleteFunc(want, func(id string) bool { return id == "once-0" }); !slices.Equal(extracted, want) {
		t.Errorf("extracted are %q, want %q", extracted, want)
	}
}

// A completed job that is gone once it is announced goes along until then.
func TestRestoredUntold(t *testing.T) {
	w := newService(t, 1)
	jobs := []string{"a", "b", "c", "d"}
	for _, id := range jobs {
		w.put(id, `{"schedule":"@every 1s"}`)
	}
	w.now += 1000
	w.tick(100, false)
	w.tick(0, false)
	c := Rules()
	c.Node, c.RetentionMS, c.CompletedMax = "n", 40*time.Hour.Milliseconds(), 1
	w.apply(w.ms[0], &Entry{Kind: KindClaim, Claim: c})
	for _, id := range jobs {
		w.put(id, `{"schedule":"@every 1s","end":"2026-01-01T00:00:01Z"}`)
	}
	other := w.repartitioned(2, carillon.Selection{}, true)
	other.begin()
	other.tick(100, false)
	if len(other.fired) != len(jobs) || strings.Count(strings.Join(other.fired, ""), carillon.EventCompleted) < len(jobs) {
		t.Errorf("outputs are %q, want that %d jobs are completed", other.fired, len(jobs))
	}
}

// Outputs that were stored are not published again, although the checkpoint still has some.
func TestRestoredStored(t *testing.T) {
	w := newService(t, 1)
	s := saved{m: w.ms[0]}
	w.put("job", `{"schedule":"@every 1s"}`)
	for range 3 {
		w.now += 1000
		w.tick(100, false)
		if err := s.checkpoint(100); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(decoded(encoded(s.table.View())).rooms[roomOutputs]); n != 2 {
		t.Fatalf("the checkpoint has %d outputs, want one that is stored and one that is not", n)
	}
	other := w.repartitionedFrom([]memtable.View{s.table.View()}, 2, carillon.Selection{}, true)
	if other.listen(); len(other.fired) != 1 || !strings.Contains(other.fired[0], fmt.Sprint("job@", w.now)) {
		t.Errorf("%q are to be published, want the last one", other.fired)
	}
}

// A restore into other partitions takes as much memory for each job as the docs say.
func TestSpecRouteSize(t *testing.T) {
	if size := unsafe.Sizeof(specRoute{}); size != 24 {
		t.Errorf("%d bytes a job, not 24", size)
	}
}

// Some of the jobs only: those of a prefix, a label, an owner.
func TestRepartitionSelection(t *testing.T) {
	for _, only := range []carillon.Selection{{Prefix: "cron-1"}, {Label: "team=t1"}, {Owner: "o1"}, {Prefix: "every"}, {Prefix: "cron-2", Label: "team"}, {Prefix: "x"}} {
		w := month(t)
		want := make(map[string]bool)
		for _, m := range w.ms {
			page, _, _ := m.Page(&carillon.ListRequest{Selection: only}, "", 1000, 1000, nil)
			for _, j := range page {
				want[j.ID] = true
			}
		}
		other := w.repartitioned(3, only, only.Label == "")
		got := make(map[string]bool)
		for _, m := range other.ms {
			page, _, _ := m.Page(&carillon.ListRequest{}, "", 1000, 1000, nil)
			for _, j := range page {
				got[j.ID] = true
			}
		}
		if d := cmp.Diff(want, got); d != "" || (len(want) == 0) != (only.Prefix == "x") {
			t.Fatalf("%+v: %d jobs (-want +got):\n%s", only, len(want), d)
		}
		var held [2]int
		for i, w := range []*service{w, other} {
			for _, m := range w.ms {
				outputs, _ := m.Outbox(m.Acked().Output)
				for _, o := range outputs {
					if o.Kind == OutputEvent {
						continue
					}
					j, err := decodeSpec([]byte(o.spec))
					if err != nil {
						t.Fatal(err)
					}
					if j.ID = o.Job; only.Matches(&j) {
						held[i]++
					}
				}
			}
		}
		if held[0] != held[1] {
			t.Errorf("%+v: %d triggers are held, there were %d", only, held[1], held[0])
		}
		other.begin()
		other.quiet()
		for _, o := range other.fired {
			if id, _, found := strings.Cut(o, "@"); found && only.Prefix != "" && !strings.HasPrefix(id, only.Prefix) {
				t.Fatalf("%+v: put out %s", only, o)
			}
		}
		if len(want) > 0 && len(other.fired) == 0 {
			t.Fatalf("%+v: nothing fires", only)
		}
	}
}

// quiet goes on for a month without commands.
func (w *service) quiet() {
	for range 30 {
		w.now += 24 * time.Hour.Milliseconds()
		w.tick(5000, false)
	}
}

// Partitions stood at different times. What came due since the earliest time of those in which something was due is missed; the
// times of the others do not matter.
func TestRepartitionTime(t *testing.T) {
	for _, in := range [][3]int{{1, 2, 3}, {3, 2, 0}} {
		t.Run(fmt.Sprint(in), func(t *testing.T) { testRepartitionTime(t, in[0], in[1], in[2]) })
	}
}

func testRepartitionTime(t *testing.T, far, due, ready int) {
	w := newService(t, 4)
	name := func(p int, s string) string {
		for PartitionOf(s, 4) != p {
			s += "-"
		}
		return s
	}
	minute := time.Minute.Milliseconds()
	w.put(name(far, "far"), `{"schedule":"@in 100h"}`) // nothing due: its time is that of the first tick for ever
	w.tick(10, false)
	w.put(name(due, "due"), `{"schedule":"@every 1m","misfire":"skip"}`)
	w.put(name(ready, "ready"), `{"schedule":"@in 1m","misfire":"skip"}`)
	w.now += minute
	w.tick(10, false, due)  // fires, and stands here
	w.tick(0, false, ready) // ready
	w.now += 500
	w.tick(0, false, ready)
	w.put(name(ready, "new"), `{"schedule":"@in 1s"}`)
	w.now += minute + 1000
	w.tick(0, false, ready) // and this one has missed nothing that the one with something due has not
	other := w.repartitioned(2, carillon.Selection{}, true)
	for _, m := range other.ms {
		if m.to != testEpoch+minute {
			t.Errorf("restored to %d ms, the partition with something due stands at %d", m.to-testEpoch, minute)
		}
		if len(m.gaps) != 1 || m.gaps[0] != (gap{testEpoch, testEpoch + minute}) { // nothing beyond that: the next tick makes a gap from there
			t.Errorf("gaps %+v", m.gaps)
		}
	}
	other.begin()
	other.now += minute
	other.tick(10, false)
	fired := strings.Join(slices.Sorted(slices.Values(other.fired)), "\n")
	for _, want := range []string{name(ready, "ready") + "@", name(ready, "new") + "@", `"reason":"misfire","count":2`} {
		if !strings.Contains(fired, want) {
			t.Errorf("no %s in\n%s", want, fired)
		}
	}
}

func TestMergeGaps(t *testing.T) {
	const until, over = 100_000, 100_000 + misfireAfter + 1
	for _, tt := range []struct{ gaps, want []gap }{
		{nil, nil},
		{[]gap{{5000, 9000}, {1000, 3000}}, []gap{{1000, 3000}, {5000, 9000}}},
		{[]gap{{1000, 3000}, {3000, 9000}}, []gap{{1000, 3000}, {3000, 9000}}},
		{[]gap{{2999, 9000}, {1000, 3000}}, []gap{{1000, 9000}}},
		{[]gap{{1000, 9000}, {2000, 3000}, {8999, 10_000}}, []gap{{1000, 10_000}}},
		{[]gap{{until - 1, until + 50_000}}, []gap{{until - 1, over}}},
		{[]gap{{1000, 3000}, {until, until + 50_000}}, []gap{{1000, 3000}}},
	} {
		if got := mergeGaps(slices.Clone(tt.gaps), until); !slices.Equal(got, tt.want) {
			t.Errorf("of %v are made %v, want %v", tt.gaps, got, tt.want)
		}
	}
}

// The event of a refusal is in its job's partition; that of many collapsed refusals is in one partition, with the count of all.
func TestRepartitionRefusals(t *testing.T) {
	w := newService(t, 3)
	const refused = 6 * maxRejected
	for i := range refused {
		w.do(KindDelete, "delete", fmt.Sprintf("none-%d", i), "")
	}
	told := func(w *service) (total uint64, collapsed int) {
		w.begin()
		w.tick(10_000, true)
		for _, m := range w.ms {
			outputs, _ := m.Outbox(0)
			for i := range outputs {
				e, err := carillon.ParseEvent([]byte(outputs[i].Body))
				if err != nil {
					t.Fatal(err)
				}
				total += e.Count
				if e.Job == "" {
					collapsed++
				}
				if p := PartitionOf(e.Job, len(w.ms)); e.Job != "" && p != m.partition {
					t.Errorf("%s belongs to partition %d, and %d tells of it", e.Job, p, m.partition)
				}
			}
		}
		return total, collapsed
	}
	for _, partitions := range []int{1, 2, 5} {
		n, collapsed := told(w.repartitioned(partitions, carillon.Selection{}, true))
		if n != refused || collapsed != min(partitions, len(w.ms)) {
			t.Errorf("%d partitions tell of %d refusals, there were %d; and %d times of many at once", partitions, n, refused, collapsed)
		}
	}
}

func TestRepartitionRefuses(t *testing.T) {
	f := newFeed(t)
	f.put("a", `{"schedule":"@every 1s"}`)
	state := func() *SavedState {
		s, err := ReadState(f.m.appendState(nil))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, n := range []int{0, -1, 1 << 16} {
		if _, err := NewRepartition([]*SavedState{state()}, n, 1, carillon.Selection{}); err == nil {
			t.Errorf("into %d partitions", n)
		}
	}
	r, err := NewRepartition([]*SavedState{state()}, 2, 1, carillon.Selection{Owner: "o"})
	if err != nil {
		t.Fatal(err)
	}
	for _, room := range []byte("fwczsgoix") {
		for _, pair := range [][2]string{{"", ""}, {"k", "v"}, {"k", "\x01\x00\x01\x00\x00"}, {"12345678", "\x01"}, {"123456789012", "\x02\xff"}, {"12345678901234567", "\x01\x01\xff"}} {
			key, value := []byte(pair[0]), []byte(pair[1])
			if room != 'i' && room != 'g' && room != 'o' && room != 'x' && room != 's' {
				if err := r.Inspect(0, room, key, value); !errors.Is(err, ErrCheckpoint) {
					t.Errorf("inspect room %q, key %x: %v", room, key, err)
				}
			}
			if room == 's' && len(key) == 12 {
				continue // a spec that no row names may be anything
			}
			if _, _, err := r.Route(0, room, key, value); !errors.Is(err, ErrCheckpoint) {
				t.Errorf("room %q, key %x: %v", room, key, err)
			}
		}
	}
	nobodys := &forcedFire{seq: 1, id: "nobody"}
	key, value := appendNumber(nil, nobodys.seq), nobodys.value()
	if err := r.Inspect(0, roomForced, key, value); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Route(0, roomForced, key, value); !errors.Is(err, ErrCheckpoint) {
		t.Errorf("a fire of no job: %v", err)
	}
	f.m.created = maxRenumbered / 2
	if _, err := NewRepartition([]*SavedState{state(), state()}, 1, 1, carillon.Selection{}); err == nil {
		t.Error("numbers that cannot be multiplied")
	}
}
