package node_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon"
)

// served returns a partition that a node serves.
func (f *fleet) served(c *carillon.Client, by string) (partition int) {
	f.t.Helper()
	for p, owner := range owners(status(f.t, c)) {
		if owner == by {
			return p
		}
	}
	f.t.Fatalf("%s serves nothing", by)
	return 0
}

// putMistaken puts a job that is due at once, or a millisecond later in a node that is mistaken. later is how many
// ms later it must fire. It returns the sequence of the job's record in the log, and when that was stored.
func (l *load) putMistaken(id string, later int64) (sequence uint64, stored time.Time) {
	l.t.Helper()
	due := now()
	l.add(&era{job: id, version: 1, mustTo: forever, fireTo: forever, skipTo: forever, grid: at(due + later)})
	job := carillon.Job{ID: id, Schedule: "@at " + time.UnixMilli(due).UTC().Format(carillon.TimeFormat), Topic: mistaken}
	sequence, err := l.client.Send(l.t.Context(), carillon.Command{Verb: carillon.VerbPut, Job: id, Body: carillon.AppendPut(nil, &job, nil)})
	if err != nil {
		l.t.Fatal(err)
	}
	log, err := jetStream(l.t, l.nc).Stream(l.t.Context(), "CARILLON_LOG")
	if err != nil {
		l.t.Fatal(err)
	}
	m, err := log.GetMsg(l.t.Context(), sequence)
	if err != nil {
		l.t.Fatal(err)
	}
	return sequence, m.Time
}

// logged returns when a node logged the first line that has these words.
func logged(t testing.TB, l *logBuffer, words ...string) time.Time {
	t.Helper()
	at, err := lineTime(line(l, words...))
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// diverge makes the state of a partition differ, under load, between the owner and the follower. It checks that the follower
// stops this partition and no other, and that the owner goes on serving. It returns the sequence of the record that did it.
func (f *fleet) diverge(c *carillon.Client, l *load, owner, follower string, later int64) (sequence uint64) {
	f.t.Helper()
	p := f.served(c, owner)
	sequence, stored := l.putMistaken(idIn(p, f.partitions, "mistaken-by-"+follower), later)
	differs := fmt.Sprintf("this replica's state differs from the owner's: partition %d at sequence", p)
	f.stopsOnly(follower, []int{p}, differs)
	f.t.Logf("%s found out that partition %d of %s differs in %s", follower, p, owner,
		logged(f.t, f.nodes[follower].log, differs).Sub(stored).Round(time.Millisecond))
	f.fireOn(l, owner)
	if n := metric(f.t, f.nodes[follower].HTTP, "carillon_partitions_stopped"); n != 1 {
		f.t.Errorf("%s has stopped %v partitions:\n%s", follower, n, f.nodes[follower].log.important())
	}
	eventually(f.t, owner+" says who serves", func() bool {
		s := status(f.t, c)
		if s.Node == owner && s.Partitions[p].Owner != owner {
			f.t.Errorf("%s serves partition %d of %s", s.Partitions[p].Owner, p, owner)
		}
		return s.Node == owner
	})
	return sequence
}

// From one moment on two nodes compute different things by the same rules: one of them has a mistake that shows with one
// job. Whichever node follows that job's partition finds out by the owner's marks, and stops the partition. The owner goes
// on, and so does everything else. A follower that was wrong takes the owner's state and follows again. If the owner is
// wrong, what it has published counts.
func TestDivergeLive(t *testing.T) {
	t.Parallel()
	newer := newerBinary(t)
	e := startExternal(t)
	f := newFleet(t, e.url, 4)
	c := carillon.Connect(dial(t, e.url), carillon.WithTimeout(10*time.Second))
	// The first one cuts the log soon, once the other has left.
	f.settings["right"] = settings{Data: t.TempDir(), Name: "right", NATS: e.url, Partitions: f.partitions, CheckpointEvery: 100 * time.Millisecond, binary: newer}
	f.start("right")
	l := startLoad(t, e.url, "v", true)
	f.settings["wrong"] = settings{Data: t.TempDir(), Name: "wrong", NATS: e.url, Partitions: f.partitions, binary: newer, Mistaken: true}
	f.start("wrong")
	f.shared(c, "right", "wrong")
	f.fireOn(l, "right", "wrong")

	sequence := f.diverge(c, l, "right", "wrong", 0)
	f.leaves("wrong", 0)
	cutBeyond(t, l.nc, sequence)
	f.forget("wrong")
	f.start("wrong")
	if !contains(f.nodes["wrong"].log, "giving up what this node has") {
		t.Error("it has not given up its own state")
	}
	f.shared(c, "right", "wrong")
	f.fireOn(l, "right", "wrong")

	f.diverge(c, l, "wrong", "right", 1)
	f.leaves("right", 0)
	l.verify(f.partitions)
	f.nodes["wrong"].terminate(t)
}
