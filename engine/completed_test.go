package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/carillon-scheduler/carillon"
)

// TestGoneIsGone asks for jobs that are gone but still in memory, in every way there is.
func TestGoneIsGone(t *testing.T) {
	f := newFeed(t)
	f.m.SetBounds(Bounds{Moves: 100, Ready: 100, ReadyBytes: DefaultBounds.ReadyBytes})
	for i := range 8 {
		f.put(fmt.Sprintf("job-%d", i), `{"schedule":"@in 1s"}`)
	}
	f.now += 1000
	if n := f.tick(100); n != 8 {
		t.Fatalf("%d fires", n)
	}
	f.apply(&Entry{Kind: KindFire, Verb: "fire", Job: "job-7"}) // pins the job
	f.now += f.m.claim.RetentionMS
	f.apply(&Entry{Kind: KindTick, Ticks: []Tick{{To: f.now, Epoch: 1}}})
	if n := f.m.Stats().Completed; n != 8 {
		t.Fatalf("%d completed jobs are in memory", n)
	}

	if _, ok := f.m.Job("job-0", nil); ok {
		t.Error("it can be asked for")
	}
	if page, _, _ := f.m.Page(&carillon.ListRequest{}, "", 10, 100, nil); len(page) != 1 || page[0].ID != "job-7" {
		t.Errorf("listed are %v", page)
	}
	if c := open(t, f.m, wholeOf(t, f.m)); c.Stats().Completed != 1 {
		t.Errorf("%d completed jobs are exported", c.Stats().Completed)
	}
	for i, kind := range []Kind{KindDelete, KindPause, KindResume, KindFire} {
		err := f.apply(&Entry{Kind: kind, Verb: "x", Job: fmt.Sprintf("job-%d", i)})
		if err == nil || err.Code != carillon.CodeNotFound {
			t.Errorf("kind %d: %v", kind, err)
		}
	}
	f.put("job-4", `{"schedule":"@in 1s","if_version":0}`)
	if r, _ := f.m.Job("job-4", nil); r.Version != 1 || r.Fires != 0 {
		t.Errorf("put again it is %+v", r)
	}
	f.tick(100)
	if _, ok := f.m.Job("job-7", nil); ok {
		t.Error("the fired one is still there")
	}
	f.put("job-8", `{"schedule":"@in 1s"}`)
	f.now += 1000
	f.tick(100)
	f.m.SetBounds(DefaultBounds)
	f.tick(100)
	if s := f.m.Stats(); s.Completed != 2 || s.Jobs != 2 {
		t.Errorf("job-4 and job-8 should be left: %+v", s)
	}
}

// A job that is gone stays gone, whatever a later claim says; here all are still in memory.
func TestGoneForGood(t *testing.T) {
	for _, c := range []struct {
		retention int64 // of the claim between
		kept      int
	}{{1000, 100}, {3_600_000, 0}} {
		f := newFeed(t)
		f.m.SetBounds(Bounds{Moves: 100, Ready: 100, ReadyBytes: DefaultBounds.ReadyBytes})
		f.put("first", `{"schedule":"@in 1s"}`)
		f.put("job", `{"schedule":"@in 1s"}`)
		f.now += 1000
		f.tick(100)
		f.now += 2000
		later := f.m.claim
		later.CompletedMax = 1
		between := later
		between.RetentionMS, between.CompletedMax = c.retention, c.kept
		for _, claim := range []Claim{between, later} {
			f.apply(&Entry{Kind: KindClaim, Claim: claim})
			f.apply(&Entry{Kind: KindTick, Ticks: []Tick{{To: f.now, Epoch: f.seq}}})
			if _, ok := f.m.Job("job", nil); ok || f.m.Stats().Completed != 2 {
				t.Errorf("after a retention of %d ms and %d jobs, under %+v, it is there: %t, %+v", c.retention, c.kept, claim, ok, f.m.Stats())
			}
		}
	}
}

// A job that completes as it is put, and whose retention is over before that is announced, is freed then.
func TestGoneOnceAnnounced(t *testing.T) {
	f := newFeed(t)
	f.put("a", `{"schedule":"@every 1s"}`)
	f.now += 1000
	f.tick(100)
	f.put("a", `{"schedule":"@every 1s","end":"2026-01-01T00:00:00.5Z"}`)
	f.now += f.m.claim.RetentionMS
	f.tick(0)
	if n := f.m.Stats().Jobs; n != 1 {
		t.Fatalf("before it is announced there are %d jobs", n)
	}
	if n := f.tick(100); n != 1 || f.m.Stats().Jobs != 0 {
		t.Errorf("%d outputs announce it, and %d jobs are left", n, f.m.Stats().Jobs)
	}
}

// Completed jobs whose events wait go on after a restart as others do: they are announced, and freed after their retention.
func TestAnnouncedAfterRestart(t *testing.T) {
	f := newFeed(t)
	f.put("a", `{"schedule":"@every 1s"}`)
	f.put("b", `{"schedule":"@every 1s"}`)
	f.now += 1000
	f.tick(100)
	f.put("a", `{"schedule":"@every 1s","end":"2026-01-01T00:00:00.5Z"}`)
	f.put("b", `{"schedule":"@every 1s","end":"2026-01-01T00:00:00.5Z"}`)
	s := saved{m: f.m}
	for what, m := range s.opened(t) {
		g := feed{t: t, m: m, seq: f.seq, now: f.now}
		if n := g.tick(100); n != 2 || m.Stats().Completed != 2 {
			t.Errorf("%s: %d outputs announce them, %+v", what, n, m.Stats())
		}
		g.now += m.claim.RetentionMS
		if g.tick(100); m.Stats().Jobs != 0 {
			t.Errorf("%s: after their retention they are still there: %+v", what, m.Stats())
		}
	}
}

// TestGoneWhileSaved makes the output that pins a completed job while a checkpoint is being taken: the job is in
// that checkpoint.
func TestGoneWhileSaved(t *testing.T) {
	f := newFeed(t)
	f.put("a", `{"schedule":"@in 1s"}`)
	f.now += 1000
	f.tick(1)
	f.apply(&Entry{Kind: KindFire, Verb: "fire", Job: "a"})
	f.now += f.m.claim.RetentionMS
	f.tick(0)
	c, s := f.m.BeginCheckpoint(), saved{m: f.m}
	if n := f.tick(1); n != 1 || f.m.Stats().Jobs != 0 {
		t.Fatalf("%d outputs, %+v", n, f.m.Stats())
	}
	for c.Next(1) {
	}
	if err := s.commit(c); err != nil {
		t.Fatal(err)
	}
	m := open(t, f.m, s.table.View())
	if job, ok := m.Job("a", nil); !ok || job.Status != carillon.StatusCompleted {
		t.Errorf("it is %+v", job)
	}
}

// TestGoneMemory completes far more jobs than are kept: few stay in memory and in the table, but all that a checkpoint taken
// meanwhile must have.
func TestGoneMemory(t *testing.T) {
	f := newFeed(t)
	f.m.claim.CompletedMax = 100
	s := saved{m: f.m}
	for round := range 50 {
		for i := range 200 {
			f.put(fmt.Sprintf("job-%d-%d", round, i), `{"schedule":"@in 1ms","max_fires":1}`)
		}
		before := wholeOf(t, f.m).Dump()
		c := f.m.BeginCheckpoint()
		f.now++
		if n := f.tick(1000); n != 200 {
			t.Fatalf("%d fires", n)
		}
		for c.Next(7) {
		}
		if err := s.commit(c); err != nil {
			t.Fatal(err)
		}
		m := open(t, f.m, s.table.View())
		if got := wholeOf(t, m).Dump(); got != before || m.Stats().Jobs > 300 {
			t.Fatalf("round %d: the checkpoint is another, of %d jobs", round, m.Stats().Jobs)
		}
		if s := f.m.Stats(); s.Completed != 100 || s.Jobs != 100 || f.m.completed.len() > 100 {
			t.Fatalf("round %d: %+v, %d completions", round, s, f.m.completed.len())
		}
		if slots, rares := f.m.jobs.used, len(f.m.jobs.extras); slots > 300 || rares > 301 {
			t.Fatalf("round %d: 300 jobs at most have taken %d slots, and %d of what few have", round, slots, rares)
		}
	}
}

// A job that completes again and again, behind another that stays completed, leaves no memory of its earlier completions.
func TestCompletedAgain(t *testing.T) {
	f := newFeed(t)
	f.put("gone", `{"schedule":"@in 1ms"}`)
	f.now++
	f.tick(1)
	f.now += f.m.claim.RetentionMS
	f.put("once", `{"schedule":"@in 1ms"}`)
	const rounds = 3 * fifoSlack
	for range rounds {
		f.put("again", `{"schedule":"@in 1ms"}`)
		f.now++
		f.tick(2)
	}
	if n := f.m.completed.len(); n > fifoSlack+2*2 {
		t.Errorf("%d completions of two jobs", n)
	}
	f.now += f.m.claim.RetentionMS
	for range 2 * fifoSlack / DefaultBounds.Sweep {
		f.tick(0)
	}
	if s := f.m.Stats(); s.Jobs != 0 || f.m.completed.len() != 0 {
		t.Errorf("after their time: %+v, %d completions", s, f.m.completed.len())
	}
}

// Completed jobs that are only on disk leave the table with the checkpoint after their retention, a few at a time. What commands did to
// them meanwhile stays as it is, and what was read before another checkpoint is read again.
func TestForget(t *testing.T) {
	f := newFeed(t)
	s := &saved{m: f.m}
	complete := func(ids ...string) {
		for _, id := range ids {
			f.put(id, `{"schedule":"@in 1s"}`)
		}
		f.now += 1000
		f.tick(100)
	}
	complete("a", "b", "c", "d", "e")
	f.now += f.m.claim.RetentionMS / 2
	complete("young")
	if _, ok, err := f.m.ForgetCursor(); ok || err != nil {
		t.Errorf("all are in memory, and it is to read: %t, %v", ok, err)
	}
	s.evictAll(t)
	f.m.Shrink(Key{})
	for f.m.ContinueShrink(1000) {
	}
	f.apply(&Entry{Kind: KindFire, Verb: "fire", Job: "c"}) // pins it in memory
	f.now += f.m.claim.RetentionMS / 2
	f.tick(0)

	read := func() *GoneRows {
		t.Helper()
		cursor, ok, err := f.m.ForgetCursor()
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		gone, err := cursor.Read(s.table.View(), 2)
		if err != nil {
			t.Fatal(err)
		}
		return gone
	}
	before := read()
	s.evictAll(t)
	if !f.m.Forget(before) || f.m.Stats().Completed != 6 {
		t.Errorf("of 6 jobs %d are left by what was read before a checkpoint", f.m.Stats().Completed)
	}
	gone, same := read(), read()
	f.put("a", `{}`)
	if err := f.apply(&Entry{Kind: KindDelete, Verb: "delete", Job: "b"}); err == nil {
		t.Error("a job that is gone is deleted")
	}
	more, rounds := f.m.Forget(gone), 1
	if !f.m.Forget(same) {
		t.Error("nothing is left, by what was read before the same was forgotten")
	}
	for ; more; rounds++ {
		more = f.m.Forget(read())
	}
	if n := f.tick(100); n != 2 {
		t.Errorf("%d outputs, want the fire and the refusal", n)
	}
	if err := f.apply(&Entry{Kind: KindDelete, Verb: "delete", Job: "d"}); err == nil {
		t.Error("a job that was forgotten is deleted")
	}
	s.evictAll(t)
	var left []string
	_, err := s.table.View().Scan(roomCompleted, nil, nil, 100, func(key, value []byte) error {
		_, id := row(slices.Concat([]byte{roomCompleted}, key, value)).names()
		left = append(left, string(id))
		return nil
	})
	if err != nil || !slices.Equal(left, []string{"young"}) || rounds != 3 {
		t.Errorf("after %d rounds the table has %q: %v", rounds, left, err)
	}
	if st := f.m.Stats(); st.Completed != 1 || st.Jobs != 2 {
		t.Errorf("%d completed jobs of %d are counted", st.Completed, st.Jobs)
	}
	for id, want := range map[string]bool{"a": true, "b": false, "c": false, "e": false, "young": true} {
		if _, j := f.m.find(id); (j != nil) != want {
			t.Errorf("%s is there: %t", id, !want)
		}
	}
}
