package node

import (
	"runtime"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

// pauseMeter measures for how long partitions have to wait while parts of one kind of work are done, in seconds.
type pauseMeter struct {
	clock *metrics.PrometheusHistogram // by the clock
	own   *metrics.PrometheusHistogram // without the time for which other threads had the core, if the system tells that
}

func newPauseMeter(s *metrics.Set, what string) *pauseMeter {
	return &pauseMeter{
		clock: s.NewPrometheusHistogramExt("carillon_"+what+"_pause_seconds", histogramBounds),
		own:   s.NewPrometheusHistogramExt("carillon_"+what+"_pause_own_seconds", histogramBounds),
	}
}

// usage is what a thread has used of the machine so far.
type usage struct {
	ran    time.Duration // on a core
	waited int64         // how often it gave its core up: for the disk, a lock, another goroutine
}

// ownTime returns how much of the time that some work took is due to the work itself. If the thread waited, it waited for something that
// the work needs, and all of the time counts. If it did not wait but ran for less than took, other threads had its core for the rest.
func ownTime(took time.Duration, before, after usage) time.Duration {
	if after.waited != before.waited {
		return took
	}
	return min(took, after.ran-before.ran)
}

// pauseFor calls do, and returns how long that took, and how much of the time is its own (own).
func pauseFor(do func()) (took, itsOwn time.Duration) {
	runtime.LockOSThread() // threadUsage is of a thread, not of a goroutine
	defer runtime.UnlockOSThread()
	began, before := time.Now(), threadUsage()
	do()
	after, took := threadUsage(), time.Since(began)
	return took, ownTime(took, before, after)
}
