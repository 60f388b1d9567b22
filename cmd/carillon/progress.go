package main

import (
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/snapshot/archive"
)

// progress shows on a terminal how far a long command is, at which rate, and the time left if the total is
// known. Without a terminal it shows nothing. Any goroutine may call it. It is only a drawing: its errors do not
// concern the command.
type progress struct {
	mu        sync.Mutex
	bar       *progressbar.ProgressBar // nil: silent
	left      int                      // to the end of the bar
	verb      string
	began     time.Time
	described time.Time
	unit      string // what is counted
	jobs      int
}

// redraw is the time between two drawings of a bar: short enough for the eye, and long enough to cost next to nothing for each job.
const redraw = 100 * time.Millisecond

// newProgress begins a bar. total is in the unit of step's size, 0 or less if unknown; bytes says that this unit is
// bytes and not jobs.
func (a *app) newProgress(verb string, total int64, bytes bool) *progress {
	p := &progress{verb: verb, unit: "jobs", began: time.Now()}
	if !isTerminal(a.stderr) {
		return p
	}
	p.left = int(total)
	if total <= 0 {
		total, p.left = -1, math.MaxInt // a spinner, which has no end
	}
	p.bar = progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(a.stderr), progressbar.OptionSetDescription(verb), progressbar.OptionThrottle(redraw),
		progressbar.OptionSetWidth(30), progressbar.OptionShowBytes(bytes), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(true), progressbar.OptionSetElapsedTime(true), progressbar.OptionSpinnerType(14),
	)
	return p
}

// newOutputProgress begins the bar of a command that writes its result to output meanwhile. If output is a terminal, there is no bar: it
// would be drawn into the result.
func (a *app) newOutputProgress(verb string, total int64, unit string, output io.Writer) *progress {
	shown := *a
	if isTerminal(output) {
		shown.stderr = io.Discard
	}
	p := shown.newProgress(verb, total, false)
	p.unit = unit
	return p
}

// step counts one job of this size.
func (p *progress) step(size int) { p.advance(1, size) }

// advance counts some jobs, of this size together.
func (p *progress) advance(jobs, size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.jobs += jobs
	if p.bar == nil {
		return
	}
	if now := time.Now(); now.Sub(p.described) >= redraw {
		p.described = now
		p.bar.Describe(fmt.Sprintf("%s %d %s, %.0f/s", p.verb, p.jobs, p.unit, p.rate(now)))
	}
	p.move(size)
}

// skip moves the bar on without counting a job.
func (p *progress) skip(size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		p.move(size)
	}
}

// move moves the bar on, but not beyond its end: the total may have grown since the beginning, and a bar that is past its
// end stays on the screen.
func (p *progress) move(size int) {
	size = min(size, p.left)
	p.left -= size
	_ = p.bar.Add(size)
}

func (p *progress) rate(now time.Time) float64 {
	return float64(p.jobs) / max(now.Sub(p.began).Seconds(), 1e-3)
}

// print writes a line above the bar.
func (p *progress) print(write func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Clear()
	}
	return write()
}

// end removes the bar and returns how long everything took.
func (p *progress) end() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Finish()
	}
	return time.Since(p.began)
}

// jobsIn counts a service's jobs with a status, or all jobs for "".
func jobsIn(s *carillon.StatusReply, status carillon.Status) (n int) {
	for i := range s.Partitions {
		for of, jobs := range s.Partitions[i].Jobs {
			if status == "" || status == of {
				n += int(jobs)
			}
		}
	}
	return n
}

// blocksProgress shows how far a walk over an archive's blocks is. Their size is known only once the walk has begun.
type blocksProgress struct {
	app  *app
	verb string
	bar  *progress
	last archive.Progress
	log  *progress
	done uint64 // of the log
}

func (a *app) newBlocksProgress(verb string) *blocksProgress {
	return &blocksProgress{app: a, verb: verb}
}

// show must be called by one goroutine at a time.
func (p *blocksProgress) show(now archive.Progress) {
	if p.bar == nil {
		p.bar = p.app.newProgress(p.verb, int64(now.Total), true)
		p.bar.unit = "blocks"
	}
	p.bar.advance(int(now.Blocks-p.last.Blocks), int(now.Done-p.last.Done))
	p.last = now
}

// replayed shows how far the log has been applied, after the blocks.
func (p *blocksProgress) replayed(done, total uint64) {
	if p.log == nil {
		p.log = p.app.newProgress("log", int64(total), false)
		p.log.unit = "records"
	}
	p.log.advance(int(done-p.done), int(done-p.done))
	p.done = done
}

func (p *blocksProgress) end() {
	for _, bar := range []*progress{p.log, p.bar} {
		if bar != nil {
			bar.end()
		}
	}
}
