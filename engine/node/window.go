package node

import (
	"cmp"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
)

// window is how many partitions share the window of outputs, and how much of it is open while outputs overtake others.
type window struct {
	sharing  int           // partitions that have something to put out
	measured int           // outputs; 0: it is not measured
	at       time.Duration // of the latest look, since the clock began
	stored   uint64        // outputs, in all, then
}

// windowLook is the shortest time over which it is measured how quickly outputs are stored. A sync of the streams, which halves that,
// takes a few times as long.
const windowLook = 10 * time.Millisecond

// look measures by how many outputs are stored in all.
func (w *window) look(now time.Duration, stored uint64) {
	took := now - w.at
	if took < windowLook {
		return
	}
	since := stored - min(stored, w.stored) // fewer than before: a chain was resumed
	w.measured = engine.Hurried(float64(since) / took.Seconds())
	w.at, w.stored = now, stored
}

// hurried is how much of the window is open while outputs overtake others.
func (w *window) hurried() int { return cmp.Or(w.measured, engine.HurriedMost) }
