package node

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
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
	})
}
