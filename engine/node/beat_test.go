package node_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
)

// beat is a job that fires for each due time, however late.
var beat = carillon.Job{ID: "beat", Schedule: "@every 50ms", Misfire: carillon.FireAll, Topic: "beat"}

// beats waits until beat has fired so many times more.
func beats(t testing.TB, c *carillon.Client, more uint64) {
	t.Helper()
	count := func() uint64 {
		r, err := c.Get(t.Context(), beat.ID)
		if err != nil {
			t.Fatal(err)
		}
		return r.Fires
	}
	want := count() + more
	eventually(t, "the job fires", func() bool { return count() >= want })
}

// unbroken checks that each due time of beat is in the streams once, in order, none early, and that no output number
// is missing.
func unbroken(t testing.TB, nc *nats.Conn, c *carillon.Client) {
	t.Helper()
	if _, err := c.Pause(t.Context(), beat.ID); err != nil {
		t.Fatal(err)
	}
	eventuallyEach(t, c, "its outputs are stored", func(p carillon.PartitionStatus) bool { return p.Ready == 0 && p.Published == p.Outputs })
	r, err := c.Get(t.Context(), beat.ID)
	if err != nil {
		t.Fatal(err)
	}
	n := uint64(0)
	const interval = 50 * time.Millisecond
	var due []time.Time
	for _, o := range allOutputs(t, nc, partitions) {
		switch {
		case o.trigger != nil && o.trigger.Job == beat.ID:
			n++
			due = append(due, o.trigger.Scheduled)
		case o.event != nil && o.event.Job == beat.ID && o.event.Reason == carillon.ReasonPaused: // paused by an earlier call of unbroken
			for at := o.event.First; !at.After(o.event.Last); at = at.Add(interval) {
				due = append(due, at)
			}
		}
	}
	for i := range due[1:] {
		if due[i+1].Sub(due[i]) != interval {
			t.Errorf("after %s came %s", due[i].Format(carillon.TimeFormat), due[i+1].Format(carillon.TimeFormat))
		}
	}
	if n != r.Fires || n == 0 {
		t.Errorf("%d triggers are in the streams, the job fired %d times", n, r.Fires)
	}
	if _, err := c.Resume(t.Context(), beat.ID); err != nil {
		t.Fatal(err)
	}
}

func notReady(t testing.TB, url, why string) {
	t.Helper()
	eventually(t, "/readyz says "+why, func() bool {
		ok, says := readyz(t, url)
		return !ok && (why == "" || strings.Contains(says, why))
	})
}

// partitionOfBeat is the partition of beat.
func partitionOfBeat(t testing.TB, c *carillon.Client) int {
	t.Helper()
	r, err := c.Get(t.Context(), beat.ID)
	if err != nil {
		t.Fatal(err)
	}
	return r.Partition
}
