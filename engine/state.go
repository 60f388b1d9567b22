package engine

import "fmt"

// SavedState is the state of a checkpoint, without its pairs.
type SavedState struct {
	Prefix     string
	Partitions int
	Partition  int
	Position   uint64 // sequence of the last record that concerned the partition
	Epoch      uint64 // sequence of the claim in force; 0: there was none
	Made       uint64 // outputs
	To         int64  // the time that ticks have reached, unix ms; 0: none yet
	Now        int64  // the latest timestamp of a record, unix ms
	Jobs       int    // upper bound: it may count completed jobs whose retention is over

	machine *Machine
}

// ReadState reads the state of a checkpoint, without its pairs. Errors: ErrCheckpoint.
func ReadState(state []byte) (*SavedState, error) {
	head := decoder{b: state}
	head.version("state", stateVersion)
	s := &SavedState{Prefix: head.string(), Partitions: int(head.uvarint()), Partition: int(head.uvarint())}
	if head.err != nil {
		return nil, fmt.Errorf("%w: state: %w", ErrCheckpoint, head.err)
	}
	m := New(Layout{Prefix: s.Prefix, Partitions: s.Partitions}, s.Partition)
	d := decoder{b: state}
	scheduled, paused, made := m.readState(&d)
	if err := d.end(); err != nil {
		return nil, fmt.Errorf("%w: state: %w", ErrCheckpoint, err)
	}
	m.counts[statusScheduled], m.counts[statusPaused], m.outbox.made = int(scheduled), int(paused), made
	s.Position, s.Epoch, s.Made, s.To, s.Now, s.machine = m.position, m.epoch, made, m.to, m.now, m
	s.Jobs = int(scheduled + paused + m.finished - min(m.expired.number, m.finished))
	return s, nil
}

// Accepts tells whether the claim c, if it came next, would take the partition; else it has no effect.
func (s *SavedState) Accepts(c Claim) bool { return !s.machine.claim.newer(c) }

// OnNewStreams returns the state for output streams that hold nothing yet. The outputs that are held will come first
// there, under their numbers; those up to stored are left out, because they are known to be stored elsewhere.
func (s *SavedState) OnNewStreams(stored uint64) []byte {
	acked := &s.machine.outbox.acked
	*acked = Acked{Output: max(acked.Output, min(stored, s.Made))}
	return s.machine.appendState(nil)
}
