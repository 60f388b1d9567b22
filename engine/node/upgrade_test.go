package node_test

import (
	"archive/zip"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/schedule"
)

// newerZones returns the zones of the newer build: only those that the test needs.
func newerZones(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for offset, name := range []string{"UTC", movedZone} {
		f, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		// A TZif file (RFC 8536) without transitions, of one kind of time with a name of four bytes.
		counts := strings.Repeat("\x00", 16) + "\x00\x00\x00\x01" + "\x00\x00\x00\x04"
		kind := "\x00\x00\x00" + string(byte(offset)) + "\x00\x00"
		if _, err := fmt.Fprint(f, "TZif\x00"+strings.Repeat("\x00", 15)+counts+kind+"NEW\x00"); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// upgrade makes another build the one that a node is started with from now on. It takes checkpoints often.
func (f *fleet) upgrade(name, binary string) {
	s := f.settings[name]
	s.binary, s.CheckpointEvery = binary, 2*time.Second
	f.settings[name] = s
}

// forget removes what a stopped node has, so that it takes another node's state when it starts.
func (f *fleet) forget(name string) {
	f.t.Helper()
	for _, dir := range []string{"log", "jobs"} {
		if err := os.RemoveAll(filepath.Join(f.settings[name].Data, dir)); err != nil {
			f.t.Fatal(err)
		}
	}
}

// stops waits until a node has stopped all partitions, and checks that it has said why for each.
func (f *fleet) stops(name string, why ...string) {
	f.t.Helper()
	all := make([]int, f.partitions)
	for n := range all {
		all[n] = n
	}
	f.stopsOnly(name, all, why...)
}

// stopsOnly is stops for some of the partitions; the others go on.
func (f *fleet) stopsOnly(name string, those []int, why ...string) {
	f.t.Helper()
	p := f.nodes[name]
	eventually(f.t, fmt.Sprintf("%s stops partitions %v", name, those), func() bool {
		return metric(f.t, p.HTTP, "carillon_partitions_stopped") >= float64(len(those))
	})
	ready, says := readyz(f.t, p.HTTP)
	for _, w := range append(why, "stopped: ") {
		if ready || strings.Count(says, w) != len(those) {
			f.t.Errorf("/readyz of %s is %v, without %q for each of %v: %s", name, ready, w, those, says)
		}
	}
	for _, n := range those {
		if !contains(p.log, append(why, "partition stopped; see docs/operations.md", fmt.Sprintf("partition=%d", n))...) {
			f.t.Errorf("%s does not log why it stopped partition %d:\n%s", name, n, p.log.important())
		}
	}
}

// fireOn waits until all partitions have fired from now on, and checks that none of these nodes has stopped one.
func (f *fleet) fireOn(l *load, names ...string) {
	f.t.Helper()
	l.firesBeyond(f.partitions, time.Now())
	for _, name := range names {
		if n := metric(f.t, f.nodes[name].HTTP, "carillon_partitions_stopped"); n != 0 {
			f.t.Errorf("%s has stopped %v partitions:\n%s", name, n, f.nodes[name].log.important())
		}
	}
}

// leaves stops a node, which still serves so many partitions when it goes.
func (f *fleet) leaves(name string, left int) {
	f.t.Helper()
	f.nodes[name].terminate(f.t)
	if !contains(f.nodes[name].log, "handed over", fmt.Sprintf("left=%d", left)) {
		f.t.Errorf("%s left otherwise than with %d partitions", name, left)
	}
}

// turned is a job that is due at even seconds by the older rules, and at odd ones by the newer.
type turned struct{ *era }

func (l *load) putTurned(c *carillon.Client) turned {
	l.t.Helper()
	r := put(l.t, c, carillon.Job{ID: "turned", Schedule: "*/2 * * * * *", Zone: movedZone, Misfire: carillon.FireAll})
	first := millis(r.Next)
	return turned{l.add(&era{job: "turned", version: 1, misfire: carillon.FireAll, mayFrom: first, mustFrom: first})}
}

// finish waits until the job has fired by the newer rules, and deletes it. All its fires up to the latest must be in the streams.
func (o turned) finish(t testing.TB, c *carillon.Client) {
	t.Helper()
	eventually(t, "it fires by the newer rules", func() bool {
		r, err := c.Get(t.Context(), o.job)
		if err != nil {
			t.Fatal(err)
		}
		return r.LastScheduled.Unix()%2 == 1
	})
	r, err := c.Delete(t.Context(), o.job)
	if err != nil {
		t.Fatal(err)
	}
	o.mustTo = millis(r.LastScheduled)
	o.fireTo = o.mustTo
}

// judge makes the oracle expect even seconds until the newer rules came into force, and odd ones from then on. The older rules
// were in force when the span began, and were not when it ended; the one fire that was planned by then comes as planned.
func (o turned) judge(t testing.TB, all []output, older span) {
	t.Helper()
	turn := forever
	for _, out := range all {
		if out.trigger != nil && out.trigger.Job == o.job && out.trigger.Scheduled.Unix()%2 == 1 {
			turn = min(turn, out.trigger.Scheduled.UnixMilli())
		}
	}
	even, odd := every(0, 2000), every(1000, 2000)
	o.grid = func(from, to int64) []int64 {
		return append(even(from, min(to, turn-1)), odd(max(from, turn), to)...)
	}
	if turn <= older.from || turn > older.to+4000 {
		t.Errorf("it fires by the newer rules from %d on; the older ones ended between %d and %d", turn, older.from, older.to)
	}
	t.Logf("%d fires by the older rules for %s, %d by the newer ones", len(even(o.mayFrom, turn)), movedZone, len(odd(turn, o.mustTo)))
}

// Nodes that fire are upgraded to other rules, as docs/operations.md describes it. A newer node among the older ones computes
// nothing and says so; the older ones take over from each other as ever. All older nodes stop, except one that is frozen and
// misses the upgrade. The newer build goes on from the state of the node that stopped last. The frozen node wakes up, finds
// that out and stops before its state differs. So does a newer node that starts from the state that an older one had earlier.
// (One of these two is always there, so that the log is kept for the other.) With another node's state they serve again. Each
// trigger is published once, by the older rules or by the newer ones.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	newer := newerBinary(t)
	e := startExternal(t)
	f := newFleet(t, e.url, 4)
	names := []string{"a", "b", "c"}
	c := carillon.Connect(dial(t, e.url), carillon.WithTimeout(10*time.Second))
	for _, name := range names { // without checkpoints: d needs the log from its beginning
		f.settings[name] = settings{Data: t.TempDir(), Name: name, NATS: e.url, Partitions: f.partitions, CheckpointEvery: time.Hour, Follow: f.follow, Linger: time.Second}
	}
	f.startAll(c, names...)
	l := startLoad(t, e.url, "u", true)
	job := l.putTurned(c)
	olderTicks := []string{
		fmt.Sprintf("has ticks under logic %d and tzdata %s after its checkpoint; drain it with that version", engine.Logic, schedule.TZVersion()),
		fmt.Sprintf("(this one has logic %d and tzdata %s)", newerLogic, newerTZData),
	}
	newerClaim := []string{
		"the log goes on under other rules: node", "claimed partition",
		fmt.Sprintf("with logic %d and tzdata %s; this binary has logic %d and tzdata %s", newerLogic, newerTZData, engine.Logic, schedule.TZVersion()),
	}

	f.settings["d"] = settings{Data: t.TempDir(), Name: "d", NATS: e.url, Partitions: f.partitions, binary: newer}
	l.firesBeyond(f.partitions, time.Now()) // it could claim a partition that has no tick yet
	f.start("d")
	f.stops("d", olderTicks...)
	f.fireOn(l, names...)

	frozen := time.Now()
	f.nodes["c"].signal(t, syscall.SIGSTOP)
	l.firesBeyond(f.partitions, frozen.Add(time.Second)) // a and b serve its partitions
	f.leaves("a", 0)
	f.fireOn(l, "b")
	f.leaves("d", 0)
	older := span{from: now()}
	l.firesBeyond(f.partitions, time.UnixMilli(older.from)) // b alone serves
	f.leaves("b", f.partitions)
	older.to = now()
	f.upgrade("b", newer)
	f.start("b")
	f.fireOn(l, "b")
	f.nodes["c"].signal(t, syscall.SIGCONT)
	f.stops("c", newerClaim...)
	f.fireOn(l, "b")
	f.upgrade("a", newer)
	f.start("a") // older nodes have ticked since it stopped, and the log is kept for c
	f.stops("a", olderTicks...)
	f.leaves("c", 0)
	_, err := spawn(t, f.settings["c"]) // a has the log kept for it
	words(t, err, append(newerClaim, `node "b" claimed`)...)
	f.leaves("a", 0)

	f.upgrade("c", newer)
	cutBeyond(t, l.nc, 0)
	for _, name := range []string{"a", "c"} {
		f.forget(name)
		f.start(name)
		if !contains(f.nodes[name].log, "giving up what this node has") {
			t.Errorf("%s has not given up its own state", name)
		}
	}
	f.shared(c, names...)
	f.fireOn(l, names...)

	job.finish(t, c)
	h, end := l.finish()
	h.downs = append(h.downs, span{from: frozen.UnixMilli(), to: end})
	all := allOutputs(t, l.nc, f.partitions)
	job.judge(t, all, older)
	h.verify(t, all, end)
	f.terminate()
}
