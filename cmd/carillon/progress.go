package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progress shows on a terminal how far a long command is, at which rate, and the time left where the
// whole is known. Elsewhere it is silent. Any goroutine may call it.
type progress struct {
	mu        sync.Mutex
	bar       *progressbar.ProgressBar // nil: silent
	verb      string
	began     time.Time
	described time.Time
	jobs      int
}

// redraw is how often a bar is drawn: as often as an eye follows, and far from the cost of a job.
const redraw = 100 * time.Millisecond

// newProgress begins a bar. total is in the unit of step's size, -1 when unknown; bytes says that this
// unit is bytes and not jobs.
func (a *app) newProgress(verb string, total int64, bytes bool) *progress {
	p := &progress{verb: verb, began: time.Now()}
	if !isTerminal(a.stderr) {
		return p
	}
	p.bar = progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(a.stderr), progressbar.OptionSetDescription(verb), progressbar.OptionThrottle(redraw),
		progressbar.OptionSetWidth(30), progressbar.OptionShowBytes(bytes), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(true), progressbar.OptionSetElapsedTime(true), progressbar.OptionSpinnerType(14),
	)
	return p
}

// step counts one job, of this size.
func (p *progress) step(size int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.jobs++
	if p.bar == nil {
		return nil
	}
	if now := time.Now(); now.Sub(p.described) >= redraw {
		p.described = now
		p.bar.Describe(fmt.Sprintf("%s %d jobs, %.0f/s", p.verb, p.jobs, p.rate(now)))
	}
	return p.bar.Add(size)
}

// skip moves the bar on without counting a job.
func (p *progress) skip(size int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar == nil {
		return nil
	}
	return p.bar.Add(size)
}

func (p *progress) rate(now time.Time) float64 {
	return float64(p.jobs) / max(now.Sub(p.began).Seconds(), 1e-3)
}

// print writes a line above the bar.
func (p *progress) print(write func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		if err := p.bar.Clear(); err != nil {
			return err
		}
	}
	return write()
}

// end takes the bar away and returns how long it all took.
func (p *progress) end() (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	took := time.Since(p.began)
	if p.bar == nil {
		return took, nil
	}
	return took, p.bar.Finish()
}
