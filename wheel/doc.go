// Package wheel is a hierarchical timing wheel for a great many timers: it says exactly when the next
// one is due, and hands them out in the order (deadline, insertion).
//
// It has no clock. Time is what the caller says it is, in unix milliseconds:
//
//	w := wheel.New(now)
//	id := w.Insert(deadline, data)
//	...
//	for !w.Advance(now, 1000, func(data uint32, deadline int64) { ... }) {
//		// a thousand are out, more are due
//	}
//	next, ok := w.Next() // sleep until then
//
// What it answers depends only on the calls made, never on how the timers happen to be stored: a wheel
// filled again from a list of its timers, in the order of their insertion, goes on exactly as the
// first one would have.
//
// A Wheel is not safe for concurrent use. wheel.go has the essay and the calls, slab.go where timers lie.
package wheel
