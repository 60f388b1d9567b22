package node

import (
	"strconv"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
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
