package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/node"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// metric reads one value of /metrics, summed over its labels.
func metric(t testing.TB, url, name string) (sum float64) {
	t.Helper()
	_, body := get(t, url+"/metrics")
	found := false
	for line := range strings.Lines(body) {
		label, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if label != name && !strings.HasPrefix(label, name+"{") {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum, found = sum+v, true
	}
	if !found {
		t.Fatalf("there is no metric %s", name)
	}
	return sum
}

func jetStream(t testing.TB, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func logState(t testing.TB, js jetstream.JetStream) jetstream.StreamInfo {
	t.Helper()
	log, err := js.Stream(t.Context(), carillon.DefaultNames().LogStream())
	if err != nil {
		t.Fatal(err)
	}
	return *log.CachedInfo()
}

// isFull tells whether an error is the refusal of a full stream.
func isFull(err error) bool {
	var refusal *jetstream.APIError
	return errors.As(err, &refusal) && refusal.ErrorCode == jetstream.ErrorCode(10077) && strings.Contains(refusal.Description, "maximum bytes")
}

// writer puts one job over and over, as raw commands: its version counts those that were accepted.
type writer struct {
	js                jetstream.JetStream
	job, payload      string
	accepted, refused uint64
}

// write publishes once. Any refusal but that of a full stream is an error.
func (w *writer) write(t testing.TB) error {
	body := fmt.Sprintf(`{"payload_text":"%d %s"}`, w.accepted+w.refused, w.payload)
	_, err := w.js.Publish(t.Context(), "carillon.cmd.put."+w.job, []byte(body))
	switch {
	case err == nil:
		w.accepted++
	case isFull(err):
		w.refused++
	default:
		return err
	}
	return nil
}

// until writes until done returns true.
func (w *writer) until(t testing.TB, done func() bool) {
	t.Helper()
	for !done() {
		if err := w.write(t); err != nil {
			t.Fatal(err)
		}
	}
}

// applied waits until all of the writer's puts that were accepted have been applied.
func (w *writer) applied(t testing.TB, c *carillon.Client) {
	t.Helper()
	var version uint64
	eventually(t, w.job+" is as it was put last", func() bool {
		r, err := c.Get(t.Context(), w.job)
		if errors.Is(err, &carillon.Error{Code: carillon.CodeNotFound}) && w.accepted == 0 {
			return true
		}
		if err != nil {
			t.Fatal(err)
		}
		version = r.Version
		return version >= w.accepted
	})
	if version > w.accepted {
		t.Errorf("%s is at version %d after %d puts", w.job, version, w.accepted)
	}
}

// A flood fills the log stream to the last byte, so that even ticks are refused. It is freed, and everything
// goes on; what was accepted counts, what was refused does not.
func TestLogFull(t *testing.T) {
	o := base(t)
	o.LogMaxBytes = 8 << 20
	r := run(t, o)
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	put(t, c, beat)
	beats(t, c, 5)
	if metric(t, r.HTTP, "carillon_ticks_failed_total") != 0 {
		t.Fatal("ticks failed before the flood")
	}

	var flood sync.WaitGroup
	var over atomic.Bool
	var writers []*writer
	// Large ones fill the stream, small ones its last bytes.
	for i, size := range []int{256 << 10, 256 << 10, 16 << 10, 1 << 10, 10, 10, 0, 0} {
		w := &writer{js: jetStream(t, dial(t, r.NATS)), job: fmt.Sprintf("flood-%d", i), payload: strings.Repeat("x", size)}
		writers = append(writers, w)
		flood.Go(func() {
			for !over.Load() {
				if err := w.write(t); err != nil {
					t.Errorf("%s: %v", w.job, err)
					return
				}
			}
		})
	}
	eventually(t, "ticks are refused", func() bool { return metric(t, r.HTTP, "carillon_ticks_failed_total") > 0 })
	over.Store(true)
	flood.Wait()

	beats(t, c, 10)
	ready(t, r)
	var accepted, refused uint64
	for _, w := range writers {
		w.applied(t, c)
		accepted, refused = accepted+w.accepted, refused+w.refused
	}
	unbroken(t, nc, c)
	if info := logState(t, jetStream(t, nc)); refused == 0 || info.State.FirstSeq == 1 || info.State.Bytes > uint64(info.Config.MaxBytes) {
		t.Errorf("%d commands were refused; the log holds %d bytes of %d, from %d", refused, info.State.Bytes, info.Config.MaxBytes, info.State.FirstSeq)
	}
	t.Logf("%d commands were accepted, %d refused, %.0f ticks failed", accepted, refused, metric(t, r.HTTP, "carillon_ticks_failed_total"))
	r.stop(t)
}

// A client that writes several times as much as the log stream holds, and waits while that is more than three quarters full, never
// finds it full, because it is freed. A client that waits only for its acks races with the disk: BenchmarkLogFreed.
func TestLogFreed(t *testing.T) {
	r, w := patient(t, 1<<40) // so that it is freed only for being full
	c := client(t, r.NATS)
	for range 3 * patientLog >> 20 {
		eventually(t, "the log has room", func() bool {
			return logState(t, w.js).State.Bytes <= patientLog/4*3
		})
		for range 1 << 20 / len(w.payload) {
			if err := w.write(t); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.applied(t, c)
	if failed := metric(t, r.HTTP, "carillon_ticks_failed_total"); w.refused > 0 || failed > 0 {
		t.Errorf("%d of %d commands were refused, and %.0f ticks", w.refused, w.accepted+w.refused, failed)
	}
}

// BenchmarkLogFreed measures the raw commands of a client that waits only for its acks, into a small log stream.
func BenchmarkLogFreed(b *testing.B) {
	_, w := patient(b, 0)
	b.SetBytes(int64(len(w.payload)))
	for b.Loop() {
		if err := w.write(b); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(100*float64(w.refused)/float64(w.accepted+w.refused), "refused_percent")
}

const patientLog = 32 << 20

// patient runs a node with a small log stream, and returns a writer of raw commands of 4 KiB to it.
func patient(t testing.TB, checkpointBytes uint64) (*running, *writer) {
	o := base(t)
	o.LogMaxBytes, o.CheckpointBytes = patientLog, checkpointBytes
	r := run(t, o)
	return r, &writer{js: jetStream(t, dial(t, r.NATS)), job: "patient", payload: strings.Repeat("x", 4<<10)}
}

// A node starts on a log stream that was filled while it was away: there is no room for its claims.
func TestStartWithFullLog(t *testing.T) {
	t.Parallel()
	for name, embedded := range map[string]bool{"embedded": true, "external": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var e *external // fills the stream
			var o node.Options
			if embedded {
				o = base(t)
				e = &external{t: t, natsSettings: natsSettings{Dir: filepath.Join(o.Data, "nats"), Port: natstest.FreePort(t)}}
			} else {
				e = startExternal(t)
				o = e.options(t)
			}
			o.LogMaxBytes = 4 << 20
			r := run(t, o)
			put(t, client(t, r.NATS), beat)
			r.stop(t)
			if embedded {
				e.start()
				t.Cleanup(e.kill)
			}
			var writers []*writer
			js := jetStream(t, dial(t, e.url))
			for i, size := range []int{100 << 10, 1 << 10, 0} {
				w := &writer{js: js, job: fmt.Sprintf("away-%d", i), payload: strings.Repeat("x", size)}
				w.until(t, func() bool { return w.refused > 0 })
				writers = append(writers, w)
			}
			if _, err := js.Publish(t.Context(), "carillon.log.0.claim", nil); !isFull(err) {
				t.Fatalf("the stream has room: %v", err)
			}
			if embedded {
				e.kill()
			}
			r = run(t, o)
			nc := dial(t, r.NATS)
			c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
			for _, w := range writers {
				w.applied(t, c)
			}
			beats(t, c, 5)
			ready(t, r)
			unbroken(t, nc, c)
		})
	}
}

// A node starts on a log stream that is over half full, and all of which another node needs. It cuts nothing before it
// knows which other nodes there are.
func TestStartBesideWhoNeedsTheLog(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	o := e.options(t)
	o.LogMaxBytes = 4 << 20
	r := run(t, o)
	nc := dial(t, r.NATS)
	put(t, carillon.Connect(nc), beat)
	r.stop(t)
	js := jetStream(t, nc)
	slow, err := cluster.Join(t.Context(), js, cluster.Options{Name: "slow", Partitions: partitions, Report: func() cluster.Report {
		return cluster.Report{Draining: true} // it has nothing of the log yet
	}})
	if err != nil {
		t.Fatal(err)
	}
	w := &writer{js: js, job: "away", payload: strings.Repeat("x", 10<<10)}
	w.until(t, func() bool { return logState(t, js).State.Bytes >= uint64(o.LogMaxBytes)*9/16 })
	run(t, o)
	c := carillon.Connect(nc, carillon.WithTimeout(20*time.Second))
	w.applied(t, c)
	beats(t, c, 5)
	if first := logState(t, js).State.FirstSeq; first != 1 {
		t.Errorf("the log is cut: it begins at %d", first)
	}
	if err := slow.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	cutBeyond(t, nc, 1)
	beats(t, c, 5)
	unbroken(t, nc, c)
}

// A log cannot be freed, because a partition that needs it has stopped. Requests wait and are then refused, so
// that the room that is left is for the ticks of the other partitions.
func TestLogKept(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	o := e.options(t)
	o.LogMaxBytes = 4 << 20
	r := run(t, o)
	nc := dial(t, r.NATS)
	c := carillon.Connect(nc)
	put(t, c, beat)
	other := 1 - partitionOfBeat(t, c)
	claim := engine.Claim{Node: "newer", Logic: engine.Logic + 1, TZData: "2099a"}
	if err := nc.Publish(fmt.Sprintf("carillon.log.%d.claim", other), claim.Encode()); err != nil {
		t.Fatal(err)
	}
	stopped(t, r, c, other, "under other rules")

	js := jetStream(t, nc)
	w := &writer{js: js, job: in(1-other, "writer"), payload: strings.Repeat("x", 10<<10)}
	w.until(t, func() bool { return logState(t, js).State.Bytes >= uint64(o.LogMaxBytes)*13/16 })
	w.applied(t, c)
	one := carillon.Job{ID: in(1-other, "one"), Schedule: "@every 1h"}
	_, err := c.Put(t.Context(), one)
	words(t, err, "limit_exceeded", "the log is nearly full; nothing was done")
	if n := metric(t, r.HTTP, `carillon_requests_refused_total{code="limit_exceeded"}`); n == 0 {
		t.Error("no refused request is counted")
	}
	beats(t, c, 5)

	answer := make(chan error, 1)
	go func() {
		_, err := c.Put(t.Context(), one)
		answer <- err
	}()
	info := logState(t, js)
	info.Config.MaxBytes *= 4 // nats stream edit CARILLON_LOG --max-bytes
	if _, err := js.UpdateStream(t.Context(), info.Config); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; err != nil {
		t.Errorf("a put when there was room again: %v", err)
	}
	if w.refused > 0 || metric(t, r.HTTP, "carillon_ticks_failed_total") > 0 {
		t.Errorf("%d commands and %.0f ticks were refused", w.refused, metric(t, r.HTTP, "carillon_ticks_failed_total"))
	}
}

// A member that needs all of the log keeps it above half full. The others do not take checkpoints as fast as they can
// meanwhile: none of them would free anything.
func TestCheckpointsWhileOthersNeedTheLog(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	o := e.options(t)
	o.LogMaxBytes, o.CheckpointEvery = 8<<20, time.Hour
	r := run(t, o)
	c := client(t, r.NATS)
	newcomer, err := cluster.Join(t.Context(), jetStream(t, dial(t, r.NATS)), cluster.Options{
		Bucket: "CARILLON_NODES", Name: "newcomer", Partitions: partitions,
		Report: func() cluster.Report { return cluster.Report{Draining: true} }, // it needs the log from its first record on
	})
	if err != nil {
		t.Fatal(err)
	}
	defer newcomer.Close()
	eventually(t, "the node knows of the newcomer", func() bool { return len(status(t, c).Nodes) == 2 })
	large, err := json.Marshal(strings.Repeat("x", 40<<10))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 120 { // 4.8 MiB
		put(t, c, carillon.Job{ID: "large" + strconv.Itoa(i), Payload: large})
	}
	put(t, c, carillon.Job{ID: "busy", Schedule: "@every 10ms"})
	taken := make(map[uint64]bool)                          // positions of checkpoints
	for _, records := range []float64{200, 300, 400, 500} { // there is time for one checkpoint or more before each
		eventually(t, "the log has gone on", func() bool {
			taken[status(t, c).Partitions[0].Checkpoint] = true
			return metric(t, r.HTTP, "carillon_log_records_total") > records
		})
	}
	if len(taken) > 5 {
		t.Errorf("%d checkpoints were seen", len(taken))
	}
}

// A log is over half full, and a member needs all of it. When nothing comes any more and checkpoints cover all of the log, the
// member needs less: then the log is cut, although no checkpoint is due.
func TestLogIsCutAtRest(t *testing.T) {
	t.Parallel()
	e := startExternal(t)
	o := e.options(t)
	o.LogMaxBytes, o.CheckpointEvery = 4<<20, time.Millisecond
	r := run(t, o)
	nc := dial(t, r.NATS)
	c, js := carillon.Connect(nc), jetStream(t, nc)
	var needs atomic.Uint64
	slow, err := cluster.Join(t.Context(), js, cluster.Options{Name: "slow", Partitions: partitions, Report: func() cluster.Report {
		return cluster.Report{Draining: true, Needs: needs.Load()}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	eventually(t, "the node knows of the slow one", func() bool { return len(status(t, c).Nodes) == 2 })
	large := []byte(`"` + strings.Repeat("x", 8<<10) + `"`)
	for i := 0; logState(t, js).State.Bytes < uint64(o.LogMaxBytes)*9/16; i++ {
		put(t, c, carillon.Job{ID: fmt.Sprint("large-", i), Schedule: "@at 2038-01-01T00:00:00Z", Payload: large})
	}
	eventuallyEach(t, c, "no checkpoint is due", func(p carillon.PartitionStatus) bool { return p.Checkpoint >= logState(t, js).State.LastSeq })
	if first := logState(t, js).State.FirstSeq; first != 1 {
		t.Errorf("the log is cut: it begins at %d", first)
	}
	eventually(t, "the node says what it needs itself", func() bool {
		v := slow.View()
		for i := range v.Members {
			if v.Members[i].Name == o.Name {
				needs.Store(v.Members[i].Needs)
			}
		}
		return needs.Load() > 1
	})
	cutBeyond(t, nc, 1)
}

// A log to which nothing comes for a while is emptied, and not before, because nats-server keeps each subject in it in memory. A
// node that is killed then has lost nothing, and the log goes on with the next sequence.
func TestRestingLogIsEmptied(t *testing.T) {
	t.Parallel()
	s := settings{Data: t.TempDir(), Partitions: partitions, CheckpointEvery: time.Millisecond, EmptyLogAfter: time.Hour}
	const rounds, each = 3, 20
	var last uint64
	for round := range rounds {
		p := mustSpawn(t, s)
		nc := dial(t, p.NATS)
		c, js := carillon.Connect(nc), jetStream(t, nc)
		for i := range each {
			put(t, c, carillon.Job{ID: fmt.Sprint("job-", round*each+i), Schedule: "@at 2038-01-01T00:00:00Z"})
		}
		for i := range (round + 1) * each {
			if _, err := c.Get(t.Context(), fmt.Sprint("job-", i)); err != nil {
				t.Fatal(err)
			}
		}
		if s.EmptyLogAfter == time.Hour {
			eventually(t, "all of it is in checkpoints", func() bool {
				return !slices.ContainsFunc(status(t, c).Partitions, func(p carillon.PartitionStatus) bool {
					return p.Checkpoint < logState(t, js).State.LastSeq
				})
			})
			if logState(t, js).State.Msgs == 0 {
				t.Error("the log is emptied at once")
			}
		} else {
			eventually(t, "the log is empty", func() bool { return logState(t, js).State.Msgs == 0 })
		}
		state := logState(t, js).State
		if state.LastSeq < last+each {
			t.Errorf("the log is at %d after %d commands, was at %d", state.LastSeq, each, last)
		}
		last = state.LastSeq
		p.kill()
		s.EmptyLogAfter = time.Millisecond
	}
}
