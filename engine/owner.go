package engine

// Owner decides when a partition is ticked, and with what. It has no clock: the host asks it, and tells it the time.
type Owner struct {
	Epoch uint64 // of this owner's claim; 0: it does not own the partition
	last  int64  // when it ticked last, ms of the stream's clock
}

// Timing of an owner, ms.
const (
	// keepAlive bounds the time between ticks while something is due but the publisher has no room for it. It is well
	// below misfireAfter, so that waiting is lateness and never a misfire.
	keepAlive = 250
	// ackPause is the least time since the last tick at which acks alone are worth another.
	ackPause = 1000
)

// Tick returns the tick that the partition needs at now, if it needs one: something is due within lead, or
// outputs became durable. room is how many outputs the publisher can take (Chain.FreeWindow).
func (o *Owner) Tick(m *Machine, now, lead int64, room int, durable Acked) (Tick, bool) {
	if o.Epoch == 0 || o.Epoch != m.epoch {
		return Tick{}, false
	}
	due := false
	if deadline, ok := m.NextDeadline(); ok && deadline <= now+lead {
		due = room > 0 || now >= o.keepAliveUntil(m) || o.last > now
	}
	if durable.Output <= m.outbox.acked.Output {
		durable = Acked{}
	}
	if !due && (durable == Acked{} || now < o.last+ackPause) {
		return Tick{}, false
	}
	o.last = now
	return Tick{
		Partition: m.partition, To: now + lead, Epoch: o.Epoch, Limit: uint64(max(room, 0)), Acked: durable, Mark: m.Mark(),
	}, true
}

// Wake is when Tick should be asked again at the latest, unless something changes before.
func (o *Owner) Wake(m *Machine, now, lead int64, room int, durable Acked) int64 {
	at := int64(none)
	if o.Epoch == 0 || o.Epoch != m.epoch {
		return at // a claim in the log changes that
	}
	if deadline, ok := m.NextDeadline(); ok {
		at = deadline - lead
		if room <= 0 {
			at = max(at, o.keepAliveUntil(m))
		}
	}
	if durable.Output > m.outbox.acked.Output {
		at = min(at, o.last+ackPause)
	}
	return max(at, now)
}

// keepAliveUntil is until when the partition can go without a tick while the publisher has no room. The former owner's ticks count, too: a
// new owner that ticked at once would make no outputs, and its next tick, which could, would have to wait for that one to come back.
func (o *Owner) keepAliveUntil(m *Machine) int64 { return max(o.last, m.to) + keepAlive }
