package node

import (
	"runtime"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

// pauseMeter is how long partitions wait for parts of one kind of work, in seconds.
type pauseMeter struct {
	clock *metrics.PrometheusHistogram // by the clock
	own   *metrics.PrometheusHistogram // without the time for which others had the core, where the system tells that
}

func newPauseMeter(s *metrics.Set, what string) *pauseMeter {
	return &pauseMeter{
		clock: s.NewPrometheusHistogramExt("carillon_"+what+"_pause_seconds", histogramBounds),
		own:   s.NewPrometheusHistogramExt("carillon_"+what+"_pause_own_seconds", histogramBounds),
	}
}

// use is what a thread has had of the machine.
type use struct {
	ran    time.Duration // on a core
	waited int64         // how often it gave its core up: for the disk, a lock, another goroutine
}

// own is the part of a time that is due to what was done in it. A thread that waited did so for something; one that did not, but
// ran for less, was kept from its core by others.
func own(took time.Duration, before, after use) time.Duration {
	if after.waited != before.waited {
		return took
	}
	return min(took, after.ran-before.ran)
}

// holding does something while it holds a partition's mu, and notes for how long the partition had to wait for it.
func (n *Node) holding(p *partition, pause *pauseMeter, do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	took, itsOwn := pauseFor(do)
	pause.clock.Update(took.Seconds())
	pause.own.Update(itsOwn.Seconds())
}

// pauseFor does something, and tells how long that took, and how much of it is its own.
func pauseFor(do func()) (took, itsOwn time.Duration) {
	runtime.LockOSThread() // what it uses is the thread's
	defer runtime.UnlockOSThread()
	began, before := time.Now(), threadUse()
	do()
	after, took := threadUse(), time.Since(began)
	return took, own(took, before, after)
}

// inSlices does something long in parts, between which the partition goes on. It rests after each, with runtime.Gosched
// at least: otherwise the next part mostly has the lock before whoever waits for it has woken up, and one record passes
// between two parts.
func (n *Node) inSlices(p *partition, pause *pauseMeter, rest func(), slice func() (more bool)) {
	for more := true; more; rest() {
		n.holding(p, pause, func() { more = slice() })
	}
}
