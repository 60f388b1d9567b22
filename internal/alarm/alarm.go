// Package alarm wakes a goroutine at a given time, or earlier when Wake is called.
//
// When the process is idle, Go's own timers sleep in whole milliseconds of epoll_wait, and are half a millisecond late in the median. On
// Linux an alarm is a timerfd instead, which is an event like any other to the network poller, and is about 0.06 ms late.
package alarm

import "time"

// Alarm is for one goroutine that waits. Any goroutine may set and wake it.
type Alarm struct {
	timer timer         // the system's
	c     chan struct{} // has room for one wake-up
}

// New makes an alarm that is not set. The error is the system's.
func New() (a Alarm, err error) {
	a.c = make(chan struct{}, 1)
	a.timer, err = newTimer(a.Wake)
	return a, err
}

// C returns a channel that receives once the time has come or Wake was called. Until that has been received, nothing more is added.
func (a Alarm) C() <-chan struct{} { return a.c }

// Wake wakes the waiter now.
func (a Alarm) Wake() {
	select {
	case a.c <- struct{}{}:
	default:
	}
}

// Set makes the alarm go off after d, in place of any time that was set before. The error is the system's.
func (a Alarm) Set(d time.Duration) error { return a.timer.set(max(d, 1)) }

// Close ends the alarm: it no longer goes off at a set time.
func (a Alarm) Close() { a.timer.close() }
