package node

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"golang.org/x/sync/semaphore"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/internal/natstest"
)

// A record of an import is small enough for a tick to wait only a moment behind it, whether its jobs are many or large. Each record but the
// last is full.
func TestPacksAreBounded(t *testing.T) {
	for _, payload := range []int{0, 1000, 100_000, 200_000} {
		im := newImporting(1)
		jobs := 3 * engine.MaxPackBytes / max(payload, 100)
		for line := range jobs {
			job := carillon.Job{ID: strconv.Itoa(line), Payload: []byte(strings.Repeat("x", payload)), Form: carillon.PayloadText}
			im.add(&carillon.ImportJob{Job: job}, "", line)
		}
		line := 0
		for i, pack := range im.packs[0] {
			data := engine.EncodePack(pack.jobs)
			if again, err := engine.DecodePack(data); err != nil || len(again) != len(pack.jobs) {
				t.Errorf("payloads of %d: pack %d has %d jobs in %d bytes: %v", payload, i, len(pack.jobs), len(data), err)
			}
			if i > 0 {
				before := im.packs[0][i-1]
				if size := before.size + pack.jobs[0].Size(); len(before.jobs) < engine.MaxPackJobs && size <= engine.MaxPackBytes {
					t.Errorf("payloads of %d: pack %d has %d jobs, and the next one would fit into %d bytes", payload, i-1, len(before.jobs), size)
				}
			}
			for at, job := range pack.jobs {
				if pack.lines[at] != line || job.ID != strconv.Itoa(line) {
					t.Fatalf("payloads of %d: job %s of line %d comes after %d", payload, job.ID, pack.lines[at], line)
				}
				line++
			}
		}
		if line != jobs {
			t.Errorf("payloads of %d: %d of %d jobs are packed", payload, line, jobs)
		}
	}
}

// A record is not sent before the one with an earlier line of the same id has its outcome: here both would wait for room in the log at once,
// and go on in any order.
func TestPacksOfOneIDFollowEachOther(t *testing.T) {
	for first, atATime := range map[string]int64{"a": 1, "b": 2} {
		synctest.Test(t, func(t *testing.T) {
			p := &partition{}
			p.follows.Store(true)
			n := &Node{requests: requests{importJobs: semaphore.NewWeighted(maxImportJobs)}, partitions: []*partition{p}}
			n.replies.init()
			n.logUsage.update(streams.Info{Bytes: 100, MaxBytes: 100}, 0) // a record is refused when it has waited for roomTimeout
			ctx, stop := context.WithCancel(t.Context())
			var work sync.WaitGroup
			work.Go(func() { n.replies.run(ctx) })
			im := newImporting(1)
			for line, id := range []string{first, "a"} {
				job := carillon.Job{ID: id, Payload: make([]byte, engine.MaxPackBytes), Form: carillon.PayloadBase64}
				im.add(&carillon.ImportJob{Job: job}, "", line+1)
			}
			work.Go(func() { n.sendPacks(im) })
			synctest.Wait()
			if open := n.replies.open.Load(); open != atATime {
				t.Errorf("%s and a: %d records are under way, not %d", first, open, atATime)
			}
			time.Sleep(3 * roomTimeout)
			im.under.Wait()
			if len(im.reply.Failed) != 2 {
				t.Errorf("%s and a: %d of 2 have their outcome", first, len(im.reply.Failed))
			}
			stop()
			work.Wait()
		})
	}
}

// However many imports there are, only so many jobs of theirs are sent and not answered at a time. Once the outcome of one record is unknown,
// its import sends no more.
func TestJobsOfImportsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{requests: requests{importJobs: semaphore.NewWeighted(maxImportJobs)}}
		p := &partition{}
		p.follows.Store(true)
		n.replies.init()
		n.logUsage.update(streams.Info{Bytes: 100, MaxBytes: 100}, 0) // a record is refused when it has waited for roomTimeout
		ctx, stop := context.WithCancel(t.Context())
		var work sync.WaitGroup
		work.Go(func() { n.replies.run(ctx) })
		const imports, packs, atATime = 20, 4, maxImportJobs / engine.MaxPackJobs
		send := func() (sent []*importing) {
			for range imports {
				im := newImporting(1)
				sent = append(sent, im)
				work.Go(func() {
					for range packs {
						pack := &importPack{jobs: make([]engine.PackedJob, engine.MaxPackJobs), lines: make([]int, engine.MaxPackJobs)}
						n.sendPack(im, p, pack)
					}
					im.under.Wait()
				})
			}
			synctest.Wait()
			return sent
		}
		failed := func(sent []*importing) (lines, unknown int) {
			for _, im := range sent {
				if lines += len(im.reply.Failed); im.isUnknown() {
					unknown++
				}
			}
			return lines, unknown
		}
		sent := send()
		for left := imports * packs; left > 0; left -= atATime {
			if open := n.replies.open.Load(); open != int64(min(left, atATime)) {
				t.Errorf("with %d records left %d are sent", left, open)
			}
			time.Sleep(roomTimeout)
			synctest.Wait()
		}
		if lines, unknown := failed(sent); lines != imports*packs*engine.MaxPackJobs || unknown > 0 {
			t.Errorf("%d lines were refused, the outcome of %d imports is unknown", lines, unknown)
		}
		sent = send()
		stop()
		work.Wait()
		lines, unknown := failed(sent)
		if lines > 0 || unknown < atATime/packs || !n.requests.importJobs.TryAcquire(maxImportJobs) {
			t.Errorf("when the engine stopped: %d lines failed, %d imports are unknown, or some jobs seem to be under way", lines, unknown)
		}
		n.requests.importJobs.Release(maxImportJobs)
		n.sendPack(sent[0], p, &importPack{jobs: make([]engine.PackedJob, 1), lines: make([]int, 1)})
		if open := n.replies.open.Load(); open != 0 || !n.requests.importJobs.TryAcquire(maxImportJobs) {
			t.Errorf("an import whose outcome is unknown sends %d records more, or holds their jobs", open)
		}
	})
}

// A pack is passed on to the node that follows its partition. Its outcome is unknown unless that node tells of each job.
func TestPacksArePassedOn(t *testing.T) {
	n := beside(t)
	asked, tells := make(chan *nats.Msg, 1), make(chan *nats.Msg, 1)
	if _, err := n.nc.Subscribe("carillon.node.b.pack.0", func(m *nats.Msg) {
		asked <- m
		if err := m.RespondMsg(<-tells); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	pack := []engine.PackedJob{engine.Pack(&carillon.Job{ID: "j"}, nil, "")}
	refusal := carillon.Error{Code: carillon.CodeLimitExceeded, Message: "no"}
	for what, c := range map[string]struct {
		told nats.Msg
		want carillon.Code
		why  string
	}{
		"its outcome":  {nats.Msg{Data: []byte(`[{"Changed":true}]`)}, "", ""},
		"two outcomes": {nats.Msg{Data: []byte(`[{},{}]`)}, carillon.CodeUnavailable, "it told of 2 of 1 jobs"},
		"no outcomes":  {nats.Msg{Data: []byte(`?`)}, carillon.CodeUnavailable, "node b did not answer"},
		"an error":     {nats.Msg{Data: refusal.AppendJSON(nil), Header: nats.Header{micro.ErrorCodeHeader: {"429"}}}, carillon.CodeLimitExceeded, "no"},
	} {
		outcome := make(chan reply, 1)
		tells <- &c.told
		n.forwardPack(n.partitions[0], pack, func(r reply) { outcome <- r })
		if got, err := engine.DecodePack(natstest.Receive(t, "the pack", asked).Data); err != nil || len(got) != 1 || got[0].ID != "j" {
			t.Errorf("%s: passed on are %+v, %v", what, got, err)
		}
		r := natstest.Receive(t, "the outcome", outcome)
		if c.want == "" {
			if r.err != nil || len(r.jobs) != 1 || !r.jobs[0].Changed {
				t.Errorf("%s: %+v", what, r)
			}
		} else if r.err == nil || r.err.Code != c.want || !strings.Contains(r.err.Message, c.why) {
			t.Errorf("%s: %v", what, r.err)
		}
	}
	outcome := make(chan reply, 1)
	n.forwardPack(n.partitions[2], pack, func(r reply) { outcome <- r })
	if r := natstest.Receive(t, "the outcome", outcome); r.err == nil || !strings.Contains(r.err.Message, "no live node follows partition 2") {
		t.Errorf("nobody follows the partition: %v", r.err)
	}
}
