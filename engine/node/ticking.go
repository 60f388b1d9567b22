package node

import (
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// Ticks in flight: when another may follow, and how long they take.

// Bounds of ticks.
const (
	tickTimeout   = 2 * time.Second        // when no tick has come back for so long, the node reports a problem
	tickPause     = 50 * time.Millisecond  // before another tick, when one was refused or could not be sent
	tickAgain     = 250 * time.Millisecond // before another tick, when one has not come back
	ticksInFlight = 64                     // ticks on their way that are kept track of, at most
	deadAfter     = 15 * time.Second       // when no tick has come back for so long, the embedded server's log stream counts as dead
	leadMin       = 2                      // ms
	leadMax       = 5                      // ms
)

// ticking knows the node's ticks that are on their way, and how long ticks take.
//
// Mostly there is only one, which comes back within milliseconds. If it does not, because the log's leader died or the network is
// slow, others follow it. With only one tick at a time, whatever comes due after it was sent would have to wait until that tick counts
// as lost, and then for the next one to come back. A tick that is appended twice does no harm.
type ticking struct {
	mu       sync.Mutex
	inFlight []sentTick // on their way, oldest first; when one comes back, those before it are forgotten
	ended    bool       // no more are sent
	idle     bool       // everything that was due is applied: no tick is waited for
	since    time.Time  // since when ticks have been sent and none has come back
	round    float64    // smoothed round trip, ms
	spread   float64    // smoothed deviation, ms
}

// sentTick is a tick on its way.
type sentTick struct {
	at     time.Time
	to     int64  // with epoch, what it is recognized by when it comes back
	epoch  uint64 // of its first partition
	empty  bool   // it lets no partition make outputs
	failed error  // why it is not stored; streams.ErrTimeout: it may be stored all the same; nil: no error yet
	stored bool   // the log has taken it
}

// lost tells whether a tick is known not to be stored.
func (s *sentTick) lost() bool { return s.failed != nil && !errors.Is(s.failed, streams.ErrTimeout) }

// newest is the tick that was sent last; nil: none is on its way. Its caller holds mu.
func (t *ticking) newest() *sentTick {
	if len(t.inFlight) == 0 {
		return nil
	}
	return &t.inFlight[len(t.inFlight)-1]
}

// until is when another tick may be sent; it is in the past if one may be sent at once.
func (t *ticking) until() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch last := t.newest(); {
	case last == nil:
		return time.Time{}
	case last.failed != nil:
		return last.at.Add(tickPause)
	default:
		return last.at.Add(tickAgain)
	}
}

// fail notes that the tick that was sent at a time was refused, or was not acknowledged.
func (t *ticking) fail(sent time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := t.index(sent); i >= 0 {
		t.inFlight[i].failed = err
	}
}

// took notes that the log has taken the tick that was sent at a time.
func (t *ticking) took(sent time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := t.index(sent); i >= 0 {
		t.inFlight[i].stored = true
	}
}

// stored tells whether the log has taken a tick that has not come back.
func (t *ticking) stored() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.inFlight, func(s sentTick) bool { return s.stored })
}

// index finds the tick that was sent at a time; -1: it is no longer kept track of. Its caller holds mu.
func (t *ticking) index(sent time.Time) int {
	return slices.IndexFunc(t.inFlight, func(s sentTick) bool { return s.at == sent })
}

// newestIsEmpty tells whether the tick that was sent last, and has not come back, lets no partition make outputs, because none had room.
func (t *ticking) newestIsEmpty() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.newest()
	return last != nil && last.empty
}

// start notes that a record of ticks is sent, and tells whether it may be: not after end.
func (t *ticking) start(ticks []engine.Tick, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return false
	}
	if len(t.inFlight) == 0 || t.idle {
		t.since, t.idle = now, false
	}
	t.inFlight = slices.DeleteFunc(t.inFlight, func(s sentTick) bool { return s.lost() })
	if len(t.inFlight) == ticksInFlight {
		t.inFlight = slices.Delete(t.inFlight, 0, 1)
	}
	empty := !slices.ContainsFunc(ticks, func(k engine.Tick) bool { return k.Limit > 0 })
	t.inFlight = append(t.inFlight, sentTick{at: now, to: ticks[0].To, epoch: ticks[0].Epoch, empty: empty})
	return true
}

// end lets no more ticks be sent, and tells whether one is on its way that may be stored.
func (t *ticking) end() (away bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	return slices.ContainsFunc(t.inFlight, func(s sentTick) bool { return !s.lost() })
}

// abort forgets the ticks on their way: the connection is down, or none is waited for.
func (t *ticking) abort() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inFlight = t.inFlight[:0]
}

// setIdle notes that everything that was due is applied, so no tick is waited for. Lost ticks are forgotten; the others may still be
// stored.
func (t *ticking) setIdle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inFlight, t.idle = slices.DeleteFunc(t.inFlight, func(s sentTick) bool { return s.lost() }), true
}

// ours tells whether a record from the log is one of the ticks on their way, and when that was sent.
func (t *ticking) ours(e *engine.Entry) (sent time.Time, ours bool) {
	if len(e.Ticks) == 0 {
		return time.Time{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.inFlight {
		if s.to == e.Ticks[0].To && s.epoch == e.Ticks[0].Epoch {
			return s.at, true
		}
	}
	return time.Time{}, false
}

// returned notes that the tick that was sent at a time has come back.
func (t *ticking) returned(sent, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inFlight, t.since = slices.Delete(t.inFlight, 0, t.index(sent)+1), now
	ms := float64(now.Sub(sent)) / 1e6
	t.spread += (math.Abs(ms-t.round) - t.spread) / 16
	t.round += (ms - t.round) / 16
}

// refused says why the latest tick was refused; nil: it was not.
func (t *ticking) refused() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last := t.newest(); last != nil && last.lost() {
		return last.failed
	}
	return nil
}

// silentFor is for how long ticks have not come back; 0 if the latest was refused, or none is waited for.
func (t *ticking) silentFor(now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last := t.newest(); last == nil || last.lost() || t.idle {
		return 0
	}
	return now.Sub(t.since)
}

// failingFor is like silentFor, but it counts refused ticks, too. It is 0 if the log has no room, because then no node's ticks come back.
func (t *ticking) failingFor(now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last := t.newest(); last == nil || errors.Is(last.failed, streams.ErrNoSpace) || t.idle {
		return 0
	}
	return now.Sub(t.since)
}

// lead is how far ahead ticks are appended, ms: the time in which nearly all of them come back.
func (t *ticking) lead() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return min(max(int64(math.Ceil(t.round+4*t.spread)), leadMin), leadMax)
}
