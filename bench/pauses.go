package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"
)

// pauses counts how long a piece of work took by the clock, which was done again and again.
type pauses struct {
	Count  int           `json:"count"`
	Over1  int           `json:"over_1_ms"`
	Over10 int           `json:"over_10_ms"`
	Max    time.Duration `json:"max_ns"`
}

// add counts pauses that took from lower to upper.
func (p *pauses) add(lower, upper time.Duration, count int) {
	p.Count += count
	if lower >= time.Millisecond {
		p.Over1 += count
	}
	if lower >= 10*time.Millisecond {
		p.Over10 += count
	}
	p.Max = max(p.Max, upper)
}

// merge adds the pauses of another process.
func (p *pauses) merge(o pauses) {
	p.Count += o.Count
	p.Over1 += o.Over1
	p.Over10 += o.Over10
	p.Max = max(p.Max, o.Max)
}

func (p *pauses) perMillion(of int) float64 { return 1e6 * float64(of) / float64(max(1, p.Count)) }

// The floor of pauses: about as long a piece of work as an engine does while a partition waits, and so seldom that it is little
// load, 3 % of a core.
const (
	pauseWorks = 300 * time.Microsecond
	pauseEvery = 10 * time.Millisecond
)

// pauseWork is Work for the floor of an engine's pauses: a process with nothing else to do spins for about as long as an
// engine holds a partition, and counts how long that really takes on a machine whose cores others use, too. It reports when
// its input ends.
func pauseWork(input *json.Decoder, output *json.Encoder) error {
	if err := output.Encode(workerReady{Ready: true}); err != nil {
		return fmt.Errorf("bench: worker: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- input.Decode(&struct{}{}) }()
	runtime.LockOSThread()
	var p pauses
	t := time.NewTicker(pauseEvery)
	defer t.Stop()
	for {
		select {
		case err := <-ended:
			if !errors.Is(err, io.EOF) {
				return fmt.Errorf("bench: worker: its input did not just end: %v", err)
			}
			return output.Encode(p)
		case <-t.C:
		}
		began := time.Now()
		took := time.Duration(0)
		for took < pauseWorks {
			took = time.Since(began)
		}
		p.add(took, took, 1)
	}
}
