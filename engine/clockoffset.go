package engine

// ClockOffset is how far the streams' clock is ahead of a host's own, as the host has measured it. The zero value says: not at
// all. All times are unix ns.
type ClockOffset struct {
	ns int64
	at int64 // when it was last measured, by the host's clock; 0: never
}

// driftPerNano bounds how fast two clocks drift apart: 100 ppm.
const driftPerNano = 10_000

// NS is the offset.
func (o *ClockOffset) NS() int64 { return o.ns }

// Measured takes in a stamp of the streams' clock, which was asked for at sent and had come at received by the host's. So the
// offset lies between stamp-received and stamp-sent. The least is taken, so that nothing is early, and of several measurements
// the greatest least, that of the quickest answer. It shrinks slowly, as clocks drift, and is given up at once where a later
// measurement contradicts it: one of the clocks was set, or the host's stood still.
func (o *ClockOffset) Measured(sent, received, stamp int64) {
	least, most := stamp-received, stamp-sent
	now := max(least, o.ns-max(0, received-o.at)/driftPerNano)
	if now > most || o.at == 0 {
		now = least
	}
	o.ns, o.at = now, received
}
