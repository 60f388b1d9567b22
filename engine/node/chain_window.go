package node

import (
	"cmp"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
)

// window is what the host tells the chains about the window of outputs in flight (engine/chain.go): how many partitions share it, and
// how much of it is open while outputs overtake others.
type window struct {
	sharing  int           // partitions with something due within the longest lead (nextTick)
	measured int           // outputs that the open part has by the latest measurement; 0: nothing was measured
	at       time.Duration // when that was, since the clock began
	stored   uint64        // how many outputs of all partitions were stored by then
}

// windowInterval is the shortest time over which the rate at which outputs are stored is measured. A sync of the streams, which halves that
// rate, takes a few times as long.
const windowInterval = 10 * time.Millisecond

// measure measures the rate. stored is how many outputs of all partitions are stored now.
func (w *window) measure(now time.Duration, stored uint64) {
	took := now - w.at
	if took < windowInterval {
		return
	}
	since := stored - min(stored, w.stored) // fewer than before: a chain was resumed
	w.measured = engine.OvertakingWindow(float64(since) / took.Seconds())
	w.at, w.stored = now, stored
}

// overtaking is how much of the window is open while outputs overtake others.
func (w *window) overtaking() int { return cmp.Or(w.measured, engine.MaxOvertakingWindow) }
