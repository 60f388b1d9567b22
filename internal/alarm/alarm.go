// Package alarm wakes a goroutine at a given time, or earlier when the alarm is rung.
//
// When the process is idle, Go's own timers sleep in whole milliseconds of epoll_wait, and are half a millisecond late in the median. On
// Linux an alarm is a timerfd instead, which is an event like any other to the network poller, and is about 0.06 ms late.
package alarm

import "time"

// Alarm is for one goroutine that waits. Any goroutine may set and ring it.
type Alarm struct {
	timer timer         // the system's
	rang  chan struct{} // has room for one ring
}

// New makes an alarm that is not set. The error is the system's.
func New() (a Alarm, err error) {
	a.rang = make(chan struct{}, 1)
	a.timer, err = newTimer(a.Ring)
	return a, err
}

// Rang returns a channel that receives once the time has come or Ring was called. Until that has been received, no other ring is added.
func (a Alarm) Rang() <-chan struct{} { return a.rang }

// Ring wakes the waiter now.
func (a Alarm) Ring() {
	select {
	case a.rang <- struct{}{}:
	default:
	}
}

// Set makes the alarm ring after d, in place of any time that was set before. The error is the system's.
func (a Alarm) Set(d time.Duration) error { return a.timer.set(max(d, 1)) }

// Close ends the alarm: it rings no more at a set time.
func (a Alarm) Close() { a.timer.close() }
