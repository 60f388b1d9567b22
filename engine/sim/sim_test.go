package sim

import (
	"errors"
	"flag"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

var (
	seedFlag  = flag.Uint64("seed", 1, "first seed")
	seedsFlag = flag.Uint64("seeds", 0, "seeds to play; 0: 2000, and a few with the race detector or -short")
)

// TestSim plays seeds. One that fails is played again with its history written down:
//
//	go test ./engine/sim -run '^TestSim$' -seed=N -seeds=1
func TestSim(t *testing.T) {
	seeds := *seedsFlag
	if seeds == 0 {
		seeds = 2000
		if raceDetector || testing.Short() {
			seeds = 100
		}
	}
	if seed, err := firstFailure(*seedFlag, seeds, Options{}); err != nil {
		t.Fatalf("%v\n%s", err, transcript(seed, Options{}))
	}
}

// firstFailure plays seeds on all processors and returns the lowest that fails among those played.
func firstFailure(from, count uint64, o Options) (seed uint64, err error) {
	var next atomic.Uint64
	var mu sync.Mutex
	var work sync.WaitGroup
	next.Store(from)
	var failed atomic.Bool
	for range runtime.GOMAXPROCS(0) {
		work.Go(func() {
			for !failed.Load() {
				s := next.Add(1) - 1
				if s >= from+count {
					return
				}
				if e := Run(s, o); e != nil {
					failed.Store(true)
					mu.Lock()
					if err == nil || s < seed {
						seed, err = s, e
					}
					mu.Unlock()
				}
			}
		})
	}
	work.Wait()
	return seed, err
}

func transcript(seed uint64, o Options) string {
	o.Trace = true
	var f *Failure
	if !errors.As(Run(seed, o), &f) {
		return "the same seed did not fail again: the simulation is not deterministic"
	}
	return f.Trace
}
