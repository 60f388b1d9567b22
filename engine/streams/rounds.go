package streams

import (
	"math"
	"time"
)

// rounds knows how long answers take, and so how long one is waited for whose question can be asked again.
//
// A message that dies with its server, or its answer that does, is missed by its time alone. A fixed one is either long
// for whoever waits or short for a cluster that is slow but well: there each loss makes more to do, and all of it slower.
// So the longest of late counts, those included that came after they were given up, and double of it is waited for.
// That is what TCP does, but by the longest and not by a mean and deviation: thousands of quick answers a second are
// no reason to forget the slow one a second ago.
type rounds struct {
	known   bool
	longest time.Duration // as of at
	at      time.Duration
}

const (
	// patienceMin is more than what a busy machine's stalls take.
	patienceMin = 500 * time.Millisecond
	// roundsHalve is the time in which half of the longest is forgotten. A stream that always takes as long as this is
	// still waited for when all others are quick; what an outage held up for long is forgotten soon after.
	roundsHalve = 2 * time.Second
)

// took notes an answer that came at now, a time since some beginning.
func (r *rounds) took(round, now time.Duration) {
	forgotten := math.Exp2(-float64(now-r.at) / float64(roundsHalve))
	r.longest = max(round, time.Duration(float64(r.longest)*forgotten))
	r.known, r.at = true, now
}

// patience is how long an answer is worth waiting for; for ever while none has come.
func (r *rounds) patience() time.Duration {
	if !r.known {
		return math.MaxInt64
	}
	return max(patienceMin, 2*r.longest)
}
