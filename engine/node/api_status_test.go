package node_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

// Before a partition's first tick its status has no time, instead of a wrong one.
func TestStatusOfNewNode(t *testing.T) {
	t.Parallel()
	r := run(t, base(t))
	nc := dial(t, r.NATS)
	m, err := nc.Request(carillon.DefaultNames().API(carillon.VerbStatus, ""), nil, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if body := string(m.Data); strings.Contains(body, `"now"`) || strings.Contains(body, "1970") || strings.Contains(body, "0001-") {
		t.Errorf("%s", body)
	}
	c := carillon.Connect(nc)
	began := time.Now()
	fires(t, c, in(0, "first"))
	if s := status(t, c); s.Partitions[0].Now.Sub(began).Abs() > time.Minute || !s.Partitions[1].Now.IsZero() {
		t.Errorf("partitions are at %s and %s", s.Partitions[0].Now, s.Partitions[1].Now)
	}
}

// A status says which node answers, what it is built from, how late triggers were, and what there is in each partition.
func TestStatusTells(t *testing.T) {
	t.Parallel()
	o := base(t)
	o.Partitions, o.Name, o.CheckpointEvery = 1, "teller", time.Millisecond
	r := run(t, o)
	c := client(t, r.NATS)
	began := time.Now()
	for _, job := range []carillon.Job{{ID: "now", Schedule: "@in 1ms"}, {ID: "waits", Schedule: "@every 1h"}, {ID: "paused", Schedule: "@every 1h"}} {
		put(t, c, job)
	}
	if _, err := c.Pause(t.Context(), "paused"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it tells of all", func() bool {
		s := status(t, c)
		p := &s.Partitions[0]
		v := s.Versions
		return s.Node == "teller" && s.Ready && len(s.Nodes) == 0 && s.Time.Sub(began).Abs() < time.Hour &&
			v.Carillon == node.Version() && v.Logic == engine.Logic && v.Tzdata == schedule.TZVersion() && v.NATS == server.VERSION && v.Go == runtime.Version() &&
			s.Lateness != nil && s.Lateness.Count == 1 &&
			p.Owner == "teller" && p.Epoch > 0 && p.Position > p.Epoch && p.Jobs[carillon.StatusScheduled] == 1 && p.Jobs[carillon.StatusPaused] == 1 &&
			p.Jobs[carillon.StatusCompleted] == 1 && p.Timers == 1 && p.Outputs == 1 && p.Published == 1 && p.Outbox == 0 && len(p.Skipped) == 0 &&
			p.Checkpoint > 0 && p.CheckpointAt.Sub(began).Abs() < time.Hour
	})
}

// Rejections and skipped fires are counted from the start of the process, although the log from before it is replayed.
func TestStatusCountsFromStart(t *testing.T) {
	t.Parallel()
	s := settings{Data: t.TempDir(), Partitions: 1, CheckpointEvery: time.Hour}
	count := func(url string) (rejected, skipped uint64) {
		p := status(t, client(t, url)).Partitions[0]
		return p.Rejected, p.Skipped[carillon.ReasonExpired]
	}
	p := mustSpawn(t, s)
	c := client(t, p.NATS)
	put(t, c, carillon.Job{ID: "late", Schedule: "@at 2020-01-01T00:00:00Z", Expires: time.Second})
	if _, err := c.Delete(t.Context(), "nobody"); err == nil {
		t.Fatal("a job that was never there was deleted")
	}
	eventually(t, "one is rejected, one skipped", func() bool {
		rejected, skipped := count(p.NATS)
		return rejected == 1 && skipped == 1
	})
	p.kill()
	if rejected, skipped := count(mustSpawn(t, s).NATS); rejected != 0 || skipped != 0 {
		t.Errorf("after a kill %d rejected, %d skipped", rejected, skipped)
	}
}

// A partition whose outputs no stream stores is a problem until one is stored, however often its chain is resumed.
func TestOutputsNotTaken(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	o := e.options(t)
	o.Partitions = 1
	r := run(t, o)
	nc := dial(t, e.url)
	js := jetStream(t, nc)
	put(t, client(t, e.url), carillon.Job{ID: "every", Schedule: "@every 100ms"})
	stream, err := js.Stream(t.Context(), "CARILLON_OUT_0")
	if err != nil {
		t.Fatal(err)
	}
	was := stream.CachedInfo().Config
	other := was
	other.Subjects = []string{"foo.bar"}
	if _, err := js.UpdateStream(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	says := func(ready bool, why string) {
		t.Helper()
		eventually(t, "/readyz says "+why, func() bool {
			ok, said := readyz(t, r.HTTP)
			s := status(t, client(t, e.url))
			return ok == ready && strings.Contains(said, why) && (metric(t, r.HTTP, "carillon_problems") == 0) == ready &&
				s.Ready == ready && (ready || strings.Contains(strings.Join(s.Problems, " "), why))
		})
	}
	says(false, "partition 0 has not been able to publish for")
	says(false, ": streams: no such stream")
	if _, err := js.UpdateStream(t.Context(), was); err != nil {
		t.Fatal(err)
	}
	says(true, "ready")
}

// A node that has just joined others, and has no jobs, is not ready before it knows what is placed on it.
func TestNotReadyBeforePlaced(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	f := newFleet(t, e.url, 4)
	f.settings["a"] = settings{
		Data: t.TempDir(), Name: "a", NATS: e.url, Partitions: 4, Follow: node.FollowPlaced,
		CheckpointEvery: time.Millisecond, EmptyLogAfter: time.Millisecond,
	}
	f.start("a")
	const jobs = 300
	preload(t, e.url, jobs)
	js := jetStream(t, dial(t, e.url))
	eventually(t, "the log has nothing for a new node", func() bool {
		s := logState(t, js).State
		return s.LastSeq >= jobs && s.Msgs == 0
	})
	o := e.options(t)
	o.Name, o.Partitions, o.Follow = "b", 4, node.FollowPlaced
	r := run(t, o)
	for began := time.Now(); ; {
		followed := metric(t, r.HTTP, "carillon_partitions_followed")
		if ok, _ := readyz(t, r.HTTP); ok {
			// On a busy machine it may not be placed within the three seconds that it is given.
			if time.Since(began) < time.Second && followed == 0 && metric(t, r.HTTP, "carillon_partitions_followed") == 0 {
				t.Errorf("it is ready %s after its start, and follows nothing", time.Since(began))
			}
			break
		}
	}
	eventually(t, "it follows something", func() bool { return metric(t, r.HTTP, "carillon_partitions_followed") > 0 })
	f.nodes["a"].terminate(t)
}
