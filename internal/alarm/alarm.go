// Package alarm wakes a goroutine at a time, or before that when it is rung.
//
// Go's own timers sleep in whole milliseconds of epoll_wait when the process is idle (half a millisecond late in the median). On Linux
// an alarm is a timerfd instead, which to the network poller is an event like any other, and comes about 0.06 ms late.
package alarm

import "time"

// Alarm is for one goroutine that waits. Any goroutine may set and ring it.
type Alarm struct {
	timer timer         // the system's
	rang  chan struct{} // has room for one word
}

// New makes an alarm that is not set. Error: what the system says.
func New() (a Alarm, err error) {
	a.rang = make(chan struct{}, 1)
	a.timer, err = newTimer(a.Ring)
	return a, err
}

// Rang has a word once the time has come or Ring was called. What happens before the word is taken adds no other.
func (a Alarm) Rang() <-chan struct{} { return a.rang }

// Ring wakes the waiter now.
func (a Alarm) Ring() {
	select {
	case a.rang <- struct{}{}:
	default:
	}
}

// Set makes the alarm ring after d, instead of when it was to ring before. Error: what the system says.
func (a Alarm) Set(d time.Duration) error { return a.timer.set(max(d, 1)) }

// Close ends the alarm: its time does not come any more.
func (a Alarm) Close() { a.timer.close() }
