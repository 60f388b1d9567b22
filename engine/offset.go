package engine

// Offset is how far the streams' clock is ahead of a host's own, as the host has measured it. The zero value says: not at
// all. All times are unix ns.
type Offset struct {
	ns int64
	at int64 // when it was last measured, by the host's clock; 0: never
}

// driftPerNano bounds how fast two clocks drift apart: 100 ppm.
const driftPerNano = 10_000

// NS is the offset.
func (o *Offset) NS() int64 { return o.ns }

// Measured learns from something that the streams' clock stamped after it was asked for at sent, and before the answer
// was there at received, both by the host's clock. So the offset lies between the two; the least is taken for it, so that
// nothing is early, and of several the one that the quickest answer gave. That is given up slowly, as clocks drift, and
// at once when it cannot be: one of the clocks was set, or the host's stood still.
func (o *Offset) Measured(sent, received, stamp int64) {
	least, most := stamp-received, stamp-sent
	now := max(least, o.ns-max(0, received-o.at)/driftPerNano)
	if now > most || o.at == 0 {
		now = least
	}
	o.ns, o.at = now, received
}
