package node

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

func spin(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		continue
	}
}

// All of a pause is its own, except the time for which other threads had the core: time asleep counts, and time at work.
func TestOwnPause(t *testing.T) {
	for try := 1; ; try++ { // on a busy machine the thread may be kept from its core until the sleep is over: then it does not wait
		took, itsOwn := pauseFor(func() { time.Sleep(5 * time.Millisecond) })
		if itsOwn == took { // the pause is the sleep
			break
		}
		if try == 100 {
			t.Fatalf("of %s asleep %s count", took, itsOwn)
		}
	}
	for range 2 * runtime.NumCPU() {
		other := exec.Command("sh", "-c", "while :; do :; done")
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = other.Process.Kill() // it runs until then
			_ = other.Wait()         // which is an error
		}()
	}
	for { // each has a third of a core for its own
		took, itsOwn := pauseFor(func() { spin(20 * time.Millisecond) })
		if itsOwn < took*9/10 {
			if itsOwn <= 0 {
				t.Errorf("of %s of work %s count", took, itsOwn)
			}
			break
		}
	}
}

func TestPauseMeter(t *testing.T) {
	s := metrics.NewSet()
	p, m := &partition{}, newPauseMeter(s, "load")
	p.withLock(m, func() {
		if p.mu.TryLock() {
			t.Error("the partition does not wait")
		}
		time.Sleep(20 * time.Millisecond) // this is the pause
	})
	var text strings.Builder
	s.WritePrometheus(&text)
	for _, want := range []string{
		`carillon_load_pause_seconds_bucket{le="0.016"} 0`, "carillon_load_pause_seconds_count 1",
		`carillon_load_pause_own_seconds_bucket{le="0.016"} 0`, "carillon_load_pause_own_seconds_count 1",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the metrics lack %s:\n%s", want, &text)
		}
	}
}
