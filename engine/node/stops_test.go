package node_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/embedded"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/internal/natstest"
	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
	"github.com/carillon-scheduler/carillon/wal"
)

// Every loud stop, caused for real, with what it says and its way out.
// docs/operations.md has the same list.

const partitions = 2

// words checks that an error says all of these.
func words(t testing.TB, err error, want ...string) {
	t.Helper()
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("the error is\n%v\nwhich does not say %q", err, w)
		}
	}
}

// accept is the way out of losses: --accept-loss with all partitions.
func accept(o node.Options) node.Options {
	o.AcceptLoss = map[int]bool{0: true, 1: true}
	return o
}

// recovers checks that a node works with the loss accepted, and at its next start, when nothing is left to accept.
func recovers(t testing.TB, o node.Options) {
	t.Helper()
	for _, start := range []struct {
		o  node.Options
		id string
	}{{accept(o), "after"}, {o, "later"}} {
		r := run(t, start.o)
		fires(t, client(t, r.NATS), start.id)
		ready(t, r)
		r.stop(t)
	}
}

// churn lets n jobs fire, and waits until the log knows that all outputs are stored for good.
func churn(t testing.TB, c *carillon.Client, name string, n int) {
	t.Helper()
	completed := func(s carillon.StatusReply) (jobs uint64) {
		for _, p := range s.Partitions {
			jobs += p.Jobs[carillon.StatusCompleted]
		}
		return jobs
	}
	want := completed(status(t, c)) + uint64(n)
	jobs := func(yield func(carillon.Job) bool) {
		for i := range n {
			if !yield(carillon.Job{ID: fmt.Sprintf("%s-%d", name, i), Schedule: "@in 1ms"}) {
				return
			}
		}
	}
	if err := c.PutAll(t.Context(), jobs, 16, func(j carillon.Job, _ carillon.JobReply, err error) {
		if err != nil {
			t.Errorf("put %s: %v", j.ID, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is stored for good", func() bool {
		s := status(t, c)
		for _, p := range s.Partitions {
			if p.Stopped != "" {
				t.Fatalf("partition %d stopped: %s", p.Partition, p.Stopped)
			}
			if p.Ready > 0 || p.Outbox > 0 {
				return false
			}
		}
		return completed(s) == want
	})
}

// twoCheckpoints waits until both checkpoints of each partition are newer than all that is in the log now.
func twoCheckpoints(t testing.TB, c *carillon.Client, name string) {
	t.Helper()
	for i := range 2 {
		var head uint64
		for _, p := range status(t, c).Partitions {
			head = max(head, p.Position)
		}
		fires(t, c, fmt.Sprintf("%s-checkpoint-%d", name, i)) // there is something new to save
		eventuallyEach(t, c, "it has a checkpoint", func(p carillon.PartitionStatus) bool { return p.Checkpoint > head })
	}
}

// stopped waits until a partition has stopped and says so everywhere; the others go on.
func stopped(t testing.TB, r *running, c *carillon.Client, partition int, want ...string) {
	t.Helper()
	var why string
	eventually(t, "the partition stops", func() bool {
		why = status(t, c).Partitions[partition].Stopped
		return why != ""
	})
	words(t, errors.New(why), want...)
	if ready, says := readyz(t, r.HTTP); ready || !strings.Contains(says, why) {
		t.Errorf("/readyz is %v: %s", ready, says)
	}
	if !contains(r.log, "partition stopped; see docs/operations.md") {
		t.Error("the log does not tell of the stop")
	}
}

func ready(t testing.TB, r *running) {
	t.Helper()
	eventually(t, "the node is ready", func() bool { ok, _ := readyz(t, r.HTTP); return ok })
}

func base(t testing.TB) node.Options {
	s := settings{Data: t.TempDir(), Partitions: partitions}
	return s.options()
}

func TestStopRewoundLog(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	o := e.options(t)
	r := run(t, o)
	c := client(t, r.NATS)
	churn(t, c, "a", 20)
	r.stop(t)
	e.kill()
	older := t.TempDir()
	copyTree(t, e.Dir, older)
	e.start()
	r = run(t, o)
	churn(t, c, "b", 20)

	// Under a running node: it notices when it connects again.
	e.kill()
	replace(t, e.Dir, older)
	e.start()
	<-r.done
	words(t, r.err, "the log ends at", "was read from it")

	words(t, refused(t, o), "the NATS server lost acknowledged records", "docs/operations.md")

	r = run(t, accept(o))
	if s := status(t, c); s.Partitions[0].Jobs[carillon.StatusCompleted]+s.Partitions[1].Jobs[carillon.StatusCompleted] != 40 {
		t.Errorf("jobs are missing: %+v", s.Partitions)
	}
	fires(t, c, "after")
	if !contains(r.log, "the output stream lost outputs; making them again") {
		t.Error("the log does not tell that outputs were made again")
	}
	ready(t, r)
	r.stop(t)
	r = run(t, o) // nothing is left to accept
	fires(t, c, "later")
	ready(t, r)
	allOutputs(t, dial(t, r.NATS), partitions) // those that the server lost were made again
}

// An external server does not have the log at all, because it is another one, or has no key to its streams. Nothing is made there.
func TestStopNoLog(t *testing.T) {
	t.Parallel()
	o, another := base(t), natstest.Start(t, &server.Options{JetStream: true}).ClientURL()
	o.NATS = natstest.Start(t, &server.Options{JetStream: true}).ClientURL()
	r := run(t, o)
	churn(t, client(t, r.NATS), "a", 5)
	r.stop(t)
	there := o
	there.NATS = another
	one := there
	one.AcceptLoss = map[int]bool{0: true}
	for _, o := range []node.Options{there, one} {
		words(t, refused(t, o), "no such stream as CARILLON_LOG", "the NATS server lost acknowledged records", "docs/operations.md")
	}
	for name := range jetStream(t, dial(t, another)).StreamNames(t.Context()).Name() {
		t.Errorf("there is %s", name)
	}
	r = run(t, o)
	fires(t, client(t, r.NATS), "here")
	r.stop(t)
	r = run(t, accept(there))
	fires(t, client(t, r.NATS), "there")
}

func TestStopDifferentLog(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	o := e.options(t)
	r := run(t, o)
	c := client(t, r.NATS)
	churn(t, c, "a", 20)
	r.stop(t)
	e.kill()
	if err := os.RemoveAll(e.Dir); err != nil {
		t.Fatal(err)
	}
	e.start()
	other := e.options(t)
	r = run(t, other)
	churn(t, c, "x", 100)
	put(t, c, beat)
	beats(t, c, 40) // its ticks carry marks of its state
	r.stop(t)

	words(t, refused(t, o), "the log stream is not the one that was read before", "docs/operations.md")

	recovers(t, o)
}

// The local store is older than what the log stream still has.
func TestStopCutLog(t *testing.T) {
	t.Parallel()
	o := base(t)
	o.CheckpointEvery = time.Millisecond
	goesBack(t, o, "log")

	words(t, refused(t, o), "the log begins at", "but it was read only to")

	recovers(t, o)
}

// The same if nothing is left in the stream, as with a service at rest: then no record comes that shows where the log ends.
func TestStopCutLogEmptied(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	for _, o := range []node.Options{base(t), e.options(t)} {
		o.CheckpointEvery = time.Millisecond
		goesBack(t, o, "log")
		purge := func(js jetstream.JetStream) {
			log, err := js.Stream(t.Context(), "CARILLON_LOG")
			if err == nil {
				err = log.Purge(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if o.NATS != "" {
			purge(jetStream(t, dial(t, o.NATS)))
		} else {
			onStreams(t, o.Data, streams.Config{Partitions: partitions}, func(nc *nats.Conn, _ *streams.Log) { purge(jetStream(t, nc)) })
		}

		r := run(t, accept(o))
		fires(t, client(t, r.NATS), "after")
		ready(t, r)
		r.stop(t)
	}
}

// goesBack runs a service, and then replaces one of its directories by a copy from an earlier stop. If that is the local log, it
// ends before the log stream begins.
func goesBack(t *testing.T, o node.Options, dir string) {
	t.Helper()
	r := run(t, o)
	churn(t, client(t, r.NATS), "a", 20)
	r.stop(t)
	older := t.TempDir()
	copyTree(t, filepath.Join(o.Data, dir), older)
	r = run(t, o)
	c := client(t, r.NATS)
	churn(t, c, "b", 20)
	twoCheckpoints(t, c, "b")
	r.stop(t)
	replace(t, filepath.Join(o.Data, dir), older)
}

// onStreams uses the streams of a data directory that no process runs on.
func onStreams(t testing.TB, data string, c streams.Config, use func(*nats.Conn, *streams.Log)) {
	t.Helper()
	server, err := embedded.Start(embedded.Options{Dir: filepath.Join(data, "nats"), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Shutdown()
	nc, err := server.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	s, err := streams.Open(t.Context(), nc, c)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	use(nc, s.Log)
}

// marked checks that a partition's output stream says where a loss was accepted.
func marked(t *testing.T, r *running, partition int) {
	t.Helper()
	mark := func(o output) bool {
		return o.event != nil && o.event.Kind == carillon.EventRejected && o.event.Verb == "accept-loss"
	}
	if !slices.ContainsFunc(outputs(t, dial(t, r.NATS), partition), mark) {
		t.Errorf("partition %d does not mark the loss", partition)
	}
}

// The local store and the log stream are both older than the output streams.
func TestStopAhead(t *testing.T) {
	t.Parallel()
	o := base(t)
	r := run(t, o)
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc)
	churn(t, c, "a", 20)
	one := put(t, c, carillon.Job{ID: in(1, "one")}).ID
	r.stop(t)
	putBack := keepAllButOutputs(t, o)
	r = run(t, o)
	c = client(t, r.NATS)
	for range 30 { // in partition 1 only
		if _, err := c.Fire(t.Context(), one); err != nil {
			t.Fatal(err)
		}
	}
	churn(t, c, "b", 0)
	r.stop(t)
	putBack()

	r = run(t, o)
	c = client(t, r.NATS)
	stopped(t, r, c, 1, "the output stream is ahead of the log", "partition 1")
	fires(t, c, in(0, "zero"))
	_, err := c.Fire(t.Context(), one)
	words(t, err, "partition 1 stopped")
	r.stop(t)

	o.AcceptLoss = map[int]bool{1: true}
	r = run(t, o)
	c = client(t, r.NATS)
	if _, err := c.Fire(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	churn(t, c, "after", 20)
	ready(t, r)
	marked(t, r, 1)
	r.stop(t)
	o.AcceptLoss = nil
	r = run(t, o)
	fires(t, client(t, r.NATS), "later")
	ready(t, r)
}

// keepAllButOutputs keeps a copy of a data directory without the output streams. putBack puts the directory back to that.
func keepAllButOutputs(t *testing.T, o node.Options) (putBack func()) {
	t.Helper()
	older := t.TempDir()
	parts := []string{"log", "jobs", filepath.Join("nats", "jetstream", "$G", "streams", "CARILLON_LOG")}
	for _, part := range parts {
		copyTree(t, filepath.Join(o.Data, part), filepath.Join(older, part))
	}
	return func() {
		for _, part := range parts {
			replace(t, filepath.Join(o.Data, part), filepath.Join(older, part))
		}
	}
}

// The first output that the log no longer knows is an event, as is the one that marks the loss, under the same number. Once the mark is
// stored, the next start must not take it for a copy, and the outputs behind the first event for ones to come.
func TestStopAheadByEvent(t *testing.T) {
	t.Parallel()
	o := base(t)
	r := run(t, o)
	one := put(t, client(t, r.NATS), carillon.Job{ID: in(1, "one")}).ID
	r.stop(t)
	putBack := keepAllButOutputs(t, o)
	r = run(t, o)
	c := client(t, r.NATS)
	if err := dial(t, r.NATS).Publish("carillon.cmd.unknown."+one, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command is rejected", func() bool { return status(t, c).Partitions[1].Published == 1 })
	for range 10 {
		if _, err := c.Fire(t.Context(), one); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the outputs are stored", func() bool { return status(t, c).Partitions[1].Published == 11 })
	r.stop(t)
	putBack()

	o.AcceptLoss = map[int]bool{1: true}
	r = run(t, o)
	ready(t, r)
	marked(t, r, 1)
	r.stop(t)
	o.AcceptLoss = nil
	r = run(t, o)
	if _, err := client(t, r.NATS).Fire(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	ready(t, r)
}

// The outputs that are made after a stream ahead of the log was accepted are published, even if the chain is lost before the first of them
// is stored: the stream then still looks as it did before.
func TestAcceptedAheadPublishes(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	w := startProxy(t, e.url[len("nats://"):])
	o := base(t)
	o.NATS = w.url()
	r := run(t, o)
	nc := dial(t, e.url)
	c := carillon.Connect(nc)
	fires(t, c, in(1, "before"))
	r.stop(t)
	unknown := carillon.Event{Kind: carillon.EventCompleted, Job: "unknown"}
	m := nats.NewMsg("carillon.event.1.completed.unknown")
	m.Data = unknown.AppendJSON(nil)
	m.Header.Set(carillon.HeaderOutput, "1000")
	if _, err := jetStream(t, nc).PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}

	o.AcceptLoss = map[int]bool{1: true}
	w.divert("carillon.event.1.rejected._", "carillon.trigger.1.default")
	r = run(t, o)
	put(t, c, carillon.Job{ID: in(1, "early"), Schedule: "@in 1ms"})
	eventually(t, "its trigger is made, and the chain is lost again", func() bool {
		j, err := c.Get(t.Context(), in(1, "early"))
		return err == nil && j.Fires == 1 && metric(t, r.HTTP, "carillon_chain_lost_total") > 3
	})
	w.divert()
	fires(t, c, in(1, "after"))
	ready(t, r)
	marked(t, r, 1)
	times := make(map[string]int)
	for _, o := range outputs(t, nc, 1) {
		if o.trigger != nil {
			times[o.trigger.Job]++
		}
	}
	if want := map[string]int{in(1, "before"): 1, in(1, "early"): 1, in(1, "after"): 1}; !maps.Equal(times, want) {
		t.Errorf("fired so many times: %v, want %v", times, want)
	}
}

// The output streams lost more than the older checkpoint can make again.
func TestStopBehind(t *testing.T) {
	t.Parallel()
	o := base(t)
	o.CheckpointEvery = time.Millisecond
	r := run(t, o)
	churn(t, client(t, r.NATS), "a", 20)
	r.stop(t)
	older := t.TempDir()
	copyTree(t, filepath.Join(o.Data, "nats"), older)
	r = run(t, o)
	c := client(t, r.NATS)
	churn(t, c, "b", 40)
	eventuallyEach(t, c, "no checkpoint to come holds an output", func(p carillon.PartitionStatus) bool { return p.Outbox == 0 })
	twoCheckpoints(t, c, "b")
	r.stop(t)
	replace(t, filepath.Join(o.Data, "nats"), older)

	r = run(t, o)
	c = client(t, r.NATS)
	for p := range partitions {
		stopped(t, r, c, p, "the output stream lost outputs", "no checkpoint reaches back to output")
	}
	r.stop(t)

	r = run(t, accept(o))
	c = client(t, r.NATS)
	fires(t, c, "after")
	ready(t, r)
	for p := range partitions {
		marked(t, r, p)
	}
	r.stop(t)
	r = run(t, o) // at once: the new end of the stream tells where it goes on
	fires(t, client(t, r.NATS), "later")
	ready(t, r)
}

// Outputs that are given up are counted once, even if the chain is lost again and again before the first output behind them is stored.
func TestAcceptedLossIsCountedOnce(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	w := startProxy(t, e.url[len("nats://"):])
	o := base(t)
	o.NATS, o.CheckpointEvery = w.url(), time.Millisecond
	r := run(t, o)
	nc := dial(t, e.url)
	c := carillon.Connect(nc)
	churn(t, c, "a", 40)
	eventuallyEach(t, c, "no checkpoint to come holds an output", func(p carillon.PartitionStatus) bool { return p.Outbox == 0 })
	twoCheckpoints(t, c, "a")
	r.stop(t)
	made := 0
	for _, m := range outputs(t, nc, 1) {
		made = max(made, int(m.number))
	}
	if err := jetStream(t, nc).DeleteStream(t.Context(), outStream(1)); err != nil {
		t.Fatal(err)
	}

	o.AcceptLoss = map[int]bool{1: true}
	w.divert("carillon.event.1.rejected._", "carillon.trigger.1.default")
	r = run(t, o)
	eventually(t, "the chain is lost again and again", func() bool { return metric(t, r.HTTP, "carillon_chain_lost_total") > 3 })
	w.divert()
	ready(t, r)
	lost := made
	for _, m := range outputs(t, nc, 1) {
		if int(m.number) <= made {
			lost-- // the log did not know yet that it was stored
		}
	}
	if got := int(metric(t, r.HTTP, "carillon_outputs_lost_total")); got != lost || lost == 0 {
		t.Errorf("%d outputs count as lost, want %d", got, lost)
	}
}

// With --accept-loss a node is not ready before it has found out whether there is a loss. Otherwise an operator who
// restarts it without the flag as soon as it is ready would meet the same stop again. Here the node cannot read an
// output stream at first, whose last message is a foreign one.
func TestAcceptLossIsNotReadyBlindly(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	w := startProxy(t, e.url[len("nats://"):])
	o := base(t)
	o.NATS = w.url()
	r := run(t, o)
	nc := dial(t, e.url)
	fires(t, carillon.Connect(nc), in(1, "before"))
	r.stop(t)
	m := nats.NewMsg("carillon.trigger.1.forged")
	m.Header.Set(forged, "1")
	if _, err := jetStream(t, nc).PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}

	w.divert("$JS.API.STREAM.MSG.GET.CARILLON_OUT_1")
	o.AcceptLoss = map[int]bool{1: true}
	r = run(t, o)
	if ok, says := readyz(t, r.HTTP); ok || !strings.Contains(says, "partition 1 has yet to find whether there is a loss to accept") {
		t.Errorf("/readyz is %v: %s", ok, says)
	}
	w.divert()
	ready(t, r)
	fires(t, carillon.Connect(nc), in(1, "after"))
}

// A partition that does not exist is refused: an operator who counts partitions from 1 would not have accepted the loss of the first.
func TestAcceptLossOfNoPartition(t *testing.T) {
	t.Parallel()
	o := base(t)
	o.Partitions, o.AcceptLoss = 2, map[int]bool{1: true, 2: true}
	words(t, refused(t, o), "of partition 2", "there are 0 to 1")
}

// A newer version took a partition over. A client with the permission to write claims poses as one.
func TestStopNewerVersion(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	o := e.options(t)
	r := run(t, o)
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc, carillon.WithTimeout(time.Minute))
	claim := engine.Claim{Node: "newer", Logic: engine.Logic + 1, TZData: "2099a"}
	if err := nc.Publish("carillon.log.1.claim", claim.Encode()); err != nil {
		t.Fatal(err)
	}
	stopped(t, r, c, 1, "under other rules", `node "newer" claimed partition 1`, "logic 2 and tzdata 2099a", "this binary has logic 1")
	fires(t, c, in(0, "zero"))
	r.stop(t)
	words(t, refused(t, o), "under other rules", "logic 2 and tzdata 2099a") // until that version is started
}

// An older version has ticked after the last checkpoint. To compute these ticks by other rules might make another history.
// The rest of the log is not touched, so that version can go on.
func TestStopOlderTicks(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	o := e.options(t)
	nc := dial(t, e.url)
	s, err := streams.Open(t.Context(), nc, streams.Config{Partitions: partitions})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	older := engine.Claim{Node: "older", Logic: engine.Logic, TZData: "1999a"}
	epoch, err := s.Log.Publish(t.Context(), "carillon.log.1.claim", nil, older.Encode())
	if err != nil {
		t.Fatal(err)
	}
	tick := engine.EncodeTicks([]engine.Tick{{Partition: 1, To: time.Now().UnixMilli(), Epoch: epoch, Limit: 1}})
	if _, err := s.Log.Publish(t.Context(), "carillon.log.1.tick", nil, tick); err != nil {
		t.Fatal(err)
	}
	r := run(t, o)
	stopped(t, r, client(t, r.NATS), 1, "under other rules", "partition 1 has ticks under logic", "tzdata 1999a after its checkpoint; drain it with that version")
}

// Such ticks may be only in the log stream, because the process was killed before they were in the local log, or because that is gone.
// A newer version claims nothing before it has read them, so the older one can go on.
func TestStopOlderTicksUnread(t *testing.T) {
	t.Parallel()
	o := base(t)
	older := engine.Claim{Node: "older", Logic: engine.Logic, TZData: "1999a"}
	var last uint64
	onStreams(t, o.Data, streams.Config{Partitions: partitions}, func(_ *nats.Conn, log *streams.Log) {
		epoch, err := log.Publish(t.Context(), "carillon.log.1.claim", nil, older.Encode())
		if err != nil {
			t.Fatal(err)
		}
		tick := engine.EncodeTicks([]engine.Tick{{Partition: 1, To: time.Now().UnixMilli(), Epoch: epoch, Limit: 1}})
		if last, err = log.Publish(t.Context(), "carillon.log.1.tick", nil, tick); err != nil {
			t.Fatal(err)
		}
	})
	words(t, refused(t, o), "under other rules", "partition 1 has ticks under logic", "tzdata 1999a after its checkpoint; drain it with that version")
	onStreams(t, o.Data, streams.Config{Partitions: partitions}, func(_ *nats.Conn, log *streams.Log) {
		info, err := log.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if info.Last != last {
			t.Errorf("the log ends at %d, and at %d before: the older version cannot go on", info.Last, last)
		}
	})
}

// The checkpoint of a clean stop covers every tick: a version with other rules could not apply one that comes after it.
func TestCleanStopHasAllTicks(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	o := e.options(t)
	js := jetStream(t, dial(t, e.url))
	last := uint64(0)
	for round, slow := 0, 0; round < 5; round++ {
		r := run(t, o)
		c := client(t, r.NATS)
		for _, p := range status(t, c).Partitions {
			if p.Checkpoint < last {
				t.Errorf("round %d: partition %d starts from %d, and there is a tick at %d", round, p.Partition, p.Checkpoint, last)
			}
		}
		put(t, c, beat)
		for i := range 10 {
			put(t, c, carillon.Job{ID: fmt.Sprintf("busy-%d", i), Schedule: "@every 3ms"})
		}
		beats(t, c, 3)
		r.stop(t)
		if last = lastTick(t, js); stoppedSlowly(r.log) {
			if slow++; slow > 20 {
				t.Fatal("no stop has its last tick")
			}
			last, round = 0, round-1 // once more: this stop does not count
		}
	}
}

// stoppedSlowly tells whether a node that stopped gave up waiting for its last tick, because the disk stood still.
func stoppedSlowly(l *logBuffer) bool {
	return contains(l, "the checkpoint may be before the log's end", "waited=")
}

// lastTick returns the sequence of the last tick of a log stream.
func lastTick(t testing.TB, js jetstream.JetStream) (last uint64) {
	t.Helper()
	log, err := js.Stream(t.Context(), "CARILLON_LOG")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"0", "1", "_"} {
		m, err := log.GetLastMsgForSubject(t.Context(), "carillon.log."+p+".tick")
		if err == nil {
			last = max(last, m.Sequence)
		} else if !errors.Is(err, jetstream.ErrMsgNotFound) {
			t.Fatal(err)
		}
	}
	return last
}

// A newer version has stopped cleanly. This version could read its checkpoint, but the version in it counts. The
// checkpoint is ours with that version changed. Nor is what has the version byte of a newer format taken for damage, and no loss of it is
// accepted: here a state, and a record of the log.
func TestStopAfterNewerVersion(t *testing.T) {
	t.Parallel()
	o := base(t)
	r := run(t, o)
	churn(t, client(t, r.NATS), "a", 5)
	r.stop(t)
	changeStates(t, o.Data, func(state []byte) []byte { return append([]byte{state[0] + 2}, state[1:]...) })
	words(t, refused(t, accept(o)), "the jobs of partition 1 cannot be read", "written by another version, use that one", "state of version 3, this binary reads 2")
	changeStates(t, o.Data, func(state []byte) []byte {
		return bytes.Replace(append([]byte{state[0] - 2}, state[1:]...), []byte(`"tzdata":"20`), []byte(`"tzdata":"99`), 1)
	})
	words(t, refused(t, o), "under other rules", "under a newer version than this one", "start that version")

	target := archive.OpenDir(nil, filepath.Join(t.TempDir(), "archive"))
	if _, err := node.SaveStopped(t.Context(), o, target, node.SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := node.Restore(t.Context(), target, "", filepath.Join(t.TempDir(), "restored"), node.RestoreOptions{})
	words(t, err, "under other rules", "use that version") // not only once it is started

	store := openStore(t, o.Data, "log")
	at := time.Now()
	record := engine.AppendRecord(nil, &engine.Record{Time: at.UnixNano(), Subject: "carillon.log._.heal"})
	if err := store.Log().Append([]wal.Record{{Seq: store.Log().Last() + 1, Data: record}}); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = node.RestoreToTime(t.Context(), target, "", filepath.Join(t.TempDir(), "restored"), at, o.Data, node.RestoreOptions{})
	words(t, err, "under other rules", "use that version") // even if nothing after the snapshot has fired by the newer rules

	store = openStore(t, o.Data, "log")
	record[0]++
	if err := store.Log().Append([]wal.Record{{Seq: store.Log().Last() + 1, Data: record}}); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	err = refused(t, accept(o))
	words(t, err, "local log", "written by another version, use that one", "record of version 2, this binary reads 1")
	if errors.Is(err, wal.ErrCorrupt) {
		t.Errorf("it is taken for damage: %v", err)
	}
}

// changeStates changes the state in each partition's newest checkpoint.
func changeStates(t testing.TB, data string, change func(state []byte) []byte) {
	t.Helper()
	store := openStore(t, data, "jobs")
	table := snapshot.OpenTable(store)
	for p := range uint16(partitions) {
		b, err := table.Begin(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := table.View(p, func(v *snapshot.View) error {
			state, err := v.State()
			other := change(state)
			if bytes.Equal(other, state) {
				t.Errorf("the state of partition %d is not changed", p)
			}
			b.State(v.Position, other)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}

func openStore(t testing.TB, data, dir string) *wal.Store {
	t.Helper()
	o := wal.Options{Dir: filepath.Join(data, dir)}
	if dir == "jobs" {
		o.Profile = wal.ProfileTable
	}
	store, err := wal.OpenStore(o)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// damage changes a byte of the values under some keys of a store, such that only Pebble's own checksums are right.
func damage(t testing.TB, data, dir string, lower, upper []byte) {
	t.Helper()
	store := openStore(t, data, dir)
	var keys, values [][]byte
	v, err := store.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	it, err := v.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		t.Fatal(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		keys, values = append(keys, bytes.Clone(it.Key())), append(values, bytes.Clone(it.Value()))
	}
	if err := errors.Join(it.Close(), v.Close()); err != nil {
		t.Fatal(err)
	}
	if len(keys) == 0 {
		t.Fatal("there is nothing to damage")
	}
	if err := store.Update(func(b *pebble.Batch) error {
		for i := range keys {
			values[i][len(values[i])-1] ^= 1
			if err := b.Set(keys[i], values[i], nil); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}

// Damage in the job table stops the node, which names the key. The partition can be given up.
func TestStopCorruptJobs(t *testing.T) {
	t.Parallel()
	o := base(t)
	o.CheckpointEvery = time.Millisecond
	r := run(t, o)
	c := client(t, r.NATS)
	put(t, c, carillon.Job{ID: in(0, "zero"), Schedule: "@every 1h"})
	put(t, c, carillon.Job{ID: in(1, "one"), Schedule: "@every 1h"})
	twoCheckpoints(t, c, "a")
	r.stop(t)
	damage(t, o.Data, "jobs", []byte{'t', 0, 1, 's'}, []byte{'t', 0, 1, 't'}) // docs/formats/table.md, rows.md
	words(t, refused(t, o), "the jobs of partition 1 cannot be read", "corrupt", "checksum of the value does not match at key 74 00 01 73")

	r = run(t, accept(o))
	c = client(t, r.NATS)
	if _, err := c.Get(t.Context(), in(0, "zero")); err != nil {
		t.Errorf("the other partition's job: %v", err)
	}
	if _, err := c.Get(t.Context(), in(1, "one")); !errors.Is(err, &carillon.Error{Code: carillon.CodeNotFound}) {
		t.Errorf("the partition that was given up: %v", err)
	}
	fires(t, c, in(1, "after"))
	twoCheckpoints(t, c, "b")
	ready(t, r)
	r.stop(t)
	r = run(t, o)
	fires(t, client(t, r.NATS), in(1, "later"))
	ready(t, r)
}

// unreadable makes a data directory on which a node starts, although the specs of partition 1's jobs, "far0" and so on, are
// damaged: it reads them only when somebody asks.
func unreadable(t testing.TB) node.Options {
	t.Helper()
	o := base(t)
	o.CheckpointEvery, o.HotJobs = time.Millisecond, 1 // so a start reads no spec
	r := run(t, o)
	c := client(t, r.NATS)
	for i := range 6 {
		put(t, c, carillon.Job{ID: in(1, "far"+strconv.Itoa(i)), Schedule: "@every 8000h"})
	}
	twoCheckpoints(t, c, "a")
	r.stop(t)
	damage(t, o.Data, "jobs", []byte{'t', 0, 1, 's'}, []byte{'t', 0, 1, 't'})
	return o
}

// Damage in the job table that is found later stops the partition at its next checkpoint, and no other partition.
func TestStopCorruptJobsLater(t *testing.T) {
	t.Parallel()
	r := run(t, unreadable(t))
	c := client(t, r.NATS)
	brief := carillon.Connect(dial(t, r.NATS), carillon.WithTimeout(time.Second))
	if _, err := brief.ListPage(t.Context(), carillon.ListRequest{}); !errors.Is(err, &carillon.Error{Code: carillon.CodeUnavailable}) {
		t.Errorf("a list of what cannot be read: %v", err)
	}
	put(t, c, carillon.Job{ID: in(0, "zero"), Schedule: "@every 1h"}) // a new record makes checkpoints due
	stopped(t, r, c, 1, "the jobs of partition 1 cannot be read", "checksum of the value does not match at key 74 00 01 73")
	fires(t, c, in(0, "after"))
	before := status(t, c).Partitions[0].Checkpoint
	fires(t, c, in(0, "later"))
	eventually(t, "a checkpoint of the other", func() bool { return status(t, c).Partitions[0].Checkpoint > before })
	if _, err := c.SaveSnapshot(t.Context(), carillon.SnapshotRequest{Dir: t.TempDir()}, nil); !errors.Is(err, &carillon.Error{Code: carillon.CodeUnavailable}) {
		t.Errorf("a snapshot without the partition: %v", err)
	}
	r.stop(t)
}

// Damage in the job table that is found while jobs come into memory stops the partition, and no other one.
func TestStopCorruptJobsAhead(t *testing.T) {
	t.Parallel()
	o := unreadable(t)
	o.LoadAhead = 10_000 * time.Hour // so they are due soon
	r := run(t, o)
	c := client(t, r.NATS)
	stopped(t, r, c, 1, "the jobs of partition 1 cannot be read", "checksum of the value does not match at key 74 00 01 73")
	fires(t, c, in(0, "after"))
	r.stop(t)
}

// Only the job table is replaced by a copy, from before the beginning of the local log.
func TestStopOlderJobs(t *testing.T) {
	t.Parallel()
	o := base(t)
	o.CheckpointEvery = time.Millisecond
	goesBack(t, o, "jobs")
	words(t, refused(t, o), "the jobs of partition", "are as of", "and the local log begins at")

	r := run(t, accept(o))
	fires(t, client(t, r.NATS), "after")
	ready(t, r)
}

// killedWithLog leaves a data directory as a killed process does, with everything in the logs.
func killedWithLog(t testing.TB) settings {
	s := settings{Data: t.TempDir(), Partitions: partitions}
	p := mustSpawn(t, s)
	c := client(t, p.NATS)
	put(t, c, carillon.Job{ID: "keeper", Schedule: "@every 1h"})
	churn(t, c, "a", 20)
	p.kill()
	return s
}

// whole checks that a node has the jobs of killedWithLog and works, and that its outputs have no gap.
func whole(t testing.TB, r *running) {
	t.Helper()
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc)
	if _, err := c.Get(t.Context(), "keeper"); err != nil {
		t.Errorf("keeper: %v", err)
	}
	churn(t, c, "after", 5)
	ready(t, r)
	if n := len(allOutputs(t, nc, partitions)); n != 25 {
		t.Errorf("%d outputs of 25", n)
	}
}

func TestStopCorruptLog(t *testing.T) {
	t.Parallel()
	o := killedWithLog(t).options()
	damage(t, o.Data, "log", []byte{'l', 0, 0, 0, 0, 0, 0, 0, 9}, []byte{'l', 0, 0, 0, 0, 0, 0, 0, 10})
	words(t, refused(t, o), "corrupt", "record 9")

	// The stream has all of it: the local store is built anew from there.
	if err := os.Rename(filepath.Join(o.Data, "log"), filepath.Join(o.Data, "log.damaged")); err != nil {
		t.Fatal(err)
	}
	whole(t, run(t, o))
}

// Damage in a table that Pebble finds in the background, before anybody reads it, ends the process like any other damage. It is not
// treated as a full disk, for which a restart would wait.
func TestStopCorruptTable(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"log", "jobs"} {
		o := killedWithLog(t).options()
		for range 2 { // an open writes what was only in Pebble's log to a table
			if err := openStore(t, o.Data, dir).Close(); err != nil {
				t.Fatal(err)
			}
		}
		tables, err := filepath.Glob(filepath.Join(o.Data, dir, "*.sst"))
		if err != nil || len(tables) == 0 {
			t.Fatalf("%s: there is no table to damage: %v", dir, err)
		}
		for _, name := range tables {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			b[len(b)-30] ^= 1 // the footer
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		words(t, refused(t, o), "wal: corrupt", ".sst")
	}
}

// An output stream has lost the end of what was known to be stored, but not its last sequence, which its index still has. It looks
// like a stream of which a subject was purged, or everything. What was known to be stored is not published again, but the node logs it.
func TestGoneBelowLastSequence(t *testing.T) {
	t.Parallel()
	s := settings{Data: t.TempDir(), Partitions: partitions}
	r := run(t, s.options())
	c := client(t, r.NATS)
	put(t, c, carillon.Job{ID: "keeper", Schedule: "@every 1h"})
	churn(t, c, "a", 20)
	r.stop(t)
	blocks, err := filepath.Glob(filepath.Join(s.Data, "nats", "jetstream", "*", "streams", "CARILLON_OUT_*", "msgs", "1.blk"))
	if err != nil || len(blocks) != partitions {
		t.Fatalf("blocks: %v, %v", blocks, err)
	}
	for i, block := range blocks {
		info, err := os.Stat(block)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			err = os.Remove(block)
		} else {
			err = os.Truncate(block, info.Size()/2)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r = run(t, s.options())
	eventually(t, "it is told", func() bool {
		return strings.Count(r.log.String(), "the end of the output stream is gone") == partitions
	})
	r.stop(t)
}

// A log stream that was healed is as good as before: the local log is built anew from it. If records are missing from its middle, that is
// told.
func TestHealedLogIsWhole(t *testing.T) {
	t.Parallel()
	older := t.TempDir()
	s := settings{Data: t.TempDir(), Partitions: partitions}
	p := mustSpawn(t, s)
	fires(t, client(t, p.NATS), "first")
	copyTree(t, filepath.Join(s.Data, "nats"), older)
	c := client(t, p.NATS)
	put(t, c, carillon.Job{ID: "keeper", Schedule: "@every 1h"})
	churn(t, c, "a", 19)
	p.kill()
	replace(t, filepath.Join(s.Data, "nats"), older)
	p = mustSpawn(t, s)
	eventually(t, "it tells that it heals", func() bool { return contains(p.log, "the log stream lost its end; healing") })
	churn(t, client(t, p.NATS), "b", 0)
	p.kill()
	if err := os.RemoveAll(filepath.Join(s.Data, "log")); err != nil {
		t.Fatal(err)
	}
	r := run(t, s.options())
	whole(t, r)
	const told = "records are missing from the middle of the log stream"
	if contains(r.log, told) {
		t.Errorf("%s, by the node's log", told)
	}
	r.stop(t)
	onStreams(t, s.Data, streams.Config{Partitions: partitions}, func(nc *nats.Conn, _ *streams.Log) {
		log, err := jetStream(t, nc).Stream(t.Context(), "CARILLON_LOG")
		if err != nil {
			t.Fatal(err)
		}
		if err := log.Purge(t.Context(), jetstream.WithPurgeSubject("carillon.log.*.put.>")); err != nil {
			t.Fatal(err)
		}
	})
	if r = run(t, s.options()); !contains(r.log, told) {
		t.Errorf("the node's log does not tell that %s", told)
	}
}

// A stream may keep its last sequence and have lost the records up to it. They are put back behind it, as they were: even a node without a
// local log reads them.
func TestHealedBehindHole(t *testing.T) {
	t.Parallel()
	s := killedWithLog(t)
	onStreams(t, s.Data, streams.Config{Partitions: partitions}, func(nc *nats.Conn, _ *streams.Log) {
		log, err := jetStream(t, nc).Stream(t.Context(), "CARILLON_LOG")
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"put.>", "tick"} { // all behind the claims
			if err := log.Purge(t.Context(), jetstream.WithPurgeSubject("carillon.log.*."+kind)); err != nil {
				t.Fatal(err)
			}
		}
	})
	p := mustSpawn(t, s)
	eventually(t, "it tells that it heals", func() bool { return contains(p.log, "the log stream has a hole below its end; healing") })
	churn(t, client(t, p.NATS), "b", 0)
	p.kill()
	if err := os.RemoveAll(filepath.Join(s.Data, "log")); err != nil {
		t.Fatal(err)
	}
	whole(t, run(t, s.options()))
}

// A record that is too large to be wrapped leaves a hole where it should be put back. After a crash right then, before the local
// log has anything behind the hole, a node starts as after any other: it compares the two logs there.
func TestHealedBehindLargest(t *testing.T) {
	t.Parallel()
	older, log := t.TempDir(), t.TempDir()
	s := settings{Data: t.TempDir(), Partitions: partitions}
	p := mustSpawn(t, s)
	c := client(t, p.NATS)
	put(t, c, carillon.Job{ID: "keeper", Schedule: "@every 1h"})
	copyTree(t, filepath.Join(s.Data, "nats"), older)
	nc := dial(t, p.NATS)
	largest := append([]byte("{}"), bytes.Repeat([]byte(" "), int(nc.MaxPayload())-64)...) // nothing is due, so no tick follows it
	if _, err := jetStream(t, nc).Publish(t.Context(), "carillon.cmd.put.largest", largest); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is applied", func() bool {
		_, err := c.Get(t.Context(), "largest")
		return err == nil
	})
	p.kill()
	copyTree(t, filepath.Join(s.Data, "log"), log)
	replace(t, filepath.Join(s.Data, "nats"), older)
	p = mustSpawn(t, s)
	eventually(t, "it says that a record is too large to be put back", func() bool { return contains(p.log, "a record is too large to be put back") })
	p.kill()
	replace(t, filepath.Join(s.Data, "log"), log)
	p = mustSpawn(t, s)
	c = client(t, p.NATS)
	if _, err := c.Get(t.Context(), "largest"); err != nil {
		t.Error(err)
	}
	fires(t, c, "after")
}

// The local log is gone, and the log stream was cut up to the checkpoints. With the checkpoints the node goes on, without
// them it does not.
func TestStopLocalStoreGone(t *testing.T) {
	t.Parallel()
	o := base(t)
	o.CheckpointEvery = time.Millisecond
	r := run(t, o)
	c := client(t, r.NATS)
	churn(t, c, "a", 20)
	twoCheckpoints(t, c, "a")
	r.stop(t)
	if err := os.RemoveAll(filepath.Join(o.Data, "log")); err != nil {
		t.Fatal(err)
	}
	r = run(t, o)
	c = client(t, r.NATS)
	if n := countJobs(t, c, carillon.StatusCompleted); n < 20 {
		t.Errorf("%d jobs are there", n)
	}
	fires(t, c, "without-log")
	ready(t, r)
	r.stop(t)

	for _, dir := range []string{"log", "jobs"} {
		if err := os.RemoveAll(filepath.Join(o.Data, dir)); err != nil {
			t.Fatal(err)
		}
	}
	words(t, refused(t, o), "the local log is empty and the log stream begins at", "docs/operations.md")

	recovers(t, o)
}

// A start with another prefix or number of partitions than the jobs in the data directory have is refused, and makes no streams:
// these would take room on the disk for good, and beside them the jobs would look damaged.
func TestStopOtherService(t *testing.T) {
	t.Parallel()
	o := base(t)
	r := run(t, o)
	put(t, client(t, r.NATS), carillon.Job{ID: "keeper", Schedule: "@every 1h"})
	r.stop(t)
	other := accept(o)
	other.Prefix, other.Stream = "other", "OTHER"
	words(t, refused(t, other), `has the jobs of a service with the prefix "carillon", not "other"`)
	for _, fresh := range []bool{false, true} { // the streams were removed by hand
		if fresh {
			if err := os.RemoveAll(filepath.Join(o.Data, "nats")); err != nil {
				t.Fatal(err)
			}
		}
		other = accept(o)
		other.Partitions = partitions + 1
		words(t, refused(t, other), fmt.Sprintf("was made with %d partitions, %d were asked for", partitions, partitions+1))
	}
	o.Partitions = 0 // as many as there are, not the default
	r = run(t, o)
	c := client(t, r.NATS)
	if _, err := c.Get(t.Context(), "keeper"); err != nil || len(status(t, c).Partitions) != partitions {
		t.Errorf("%d partitions, %v", len(status(t, c).Partitions), err)
	}
	names := jetStream(t, dial(t, r.NATS)).StreamNames(t.Context())
	for name := range names.Name() {
		if !strings.HasPrefix(name, "CARILLON_") {
			t.Errorf("there is a stream %s", name)
		}
	}
}

// The same if the service was killed before its first checkpoint: only the log tells which service it is.
func TestStopOtherServiceBeforeCheckpoint(t *testing.T) {
	t.Parallel()
	o := base(t)
	o.Data = killedWithLog(t).Data
	other := accept(o)
	other.Prefix, other.Stream = "other", "OTHER"
	words(t, refused(t, other), `has the log of a service with another prefix than "other"`)
	whole(t, run(t, o))
}

// The disk lost the end of the local log, which had been synced. While the stream has it, that is no loss.
func TestStopLocalLogLoss(t *testing.T) {
	t.Parallel()
	s := killedWithLog(t)
	cutEnd := func() {
		files, err := filepath.Glob(filepath.Join(s.Data, "log", "*.log"))
		if err != nil || len(files) == 0 {
			t.Fatalf("Pebble's logs: %v, %v", files, err)
		}
		for _, f := range files {
			info, err := os.Stat(f)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(f, info.Size()/2); err != nil {
				t.Fatal(err)
			}
		}
	}
	cutEnd()
	short := t.TempDir()
	copyTree(t, s.Data, short)
	p, err := spawn(t, s)
	if err != nil {
		t.Fatal(err)
	}
	if !contains(p.log, "the local log lost its end; reading it again from the stream") {
		t.Error("the log does not tell of the loss")
	}
	p.terminate(t)
	whole(t, run(t, s.options()))

	// The stream lost it, too.
	s.Data = short
	if err := os.RemoveAll(filepath.Join(short, "nats")); err != nil {
		t.Fatal(err)
	}
	o := s.options()
	words(t, refused(t, o), "synced batches", "not all of the lost records can be read again")
	words(t, refused(t, o), "synced batches") // and again: it is not forgotten

	r := run(t, accept(o))
	fires(t, client(t, r.NATS), "after")
	ready(t, r)
}
