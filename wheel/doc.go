// Package wheel is a hierarchical timing wheel for a great many timers. It says exactly when the next
// one is due, and yields them in the order (deadline, insertion).
//
// The wheel has no clock. The caller tells it the time, in unix milliseconds:
//
//	w := wheel.New(now)
//	id := w.Insert(deadline, data)
//	...
//	for !w.Advance(now, 1000, func(data uint32, deadline int64) { ... }) {
//		// a thousand are out, more are due
//	}
//	next, ok := w.Next() // sleep until then
//
// Its answers depend only on the calls made, never on how the timers happen to be stored: a new wheel,
// filled from a list of the timers in the order of their insertion, goes on exactly as the
// first one would have.
//
// A Wheel is not safe for concurrent use. wheel.go has an essay on how it works, and the calls; slab.go
// has the memory.
package wheel
