package engine

// ClockOffset is how far the streams' clock is ahead of a host's own, as measured by the host. The zero value is no
// offset, never measured. All times are unix ns.
type ClockOffset struct {
	ns int64
	at int64 // when it was last measured, by the host's clock; 0: never
}

// driftPerNano bounds how fast two clocks drift apart: 1 ns in so many, 100 ppm.
const driftPerNano = 10_000

// NS is the offset in ns.
func (o *ClockOffset) NS() int64 { return o.ns }

// Measured takes in a timestamp of the streams' clock. By the host's clock it was asked for at sent, and had come at received. So
// the offset lies between stamp-received and stamp-sent. The lower bound is taken, so that nothing is early; and of several
// measurements the greatest lower bound, which comes from the quickest answer. That bound shrinks slowly with time, because
// clocks drift. It is given up at once if a later measurement contradicts it: then one of the clocks was set, or the host's
// stood still.
func (o *ClockOffset) Measured(sent, received, stamp int64) {
	least, most := stamp-received, stamp-sent
	now := max(least, o.ns-max(0, received-o.at)/driftPerNano)
	if now > most || o.at == 0 {
		now = least
	}
	o.ns, o.at = now, received
}
