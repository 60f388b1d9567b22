package engine

import (
	"errors"
	"fmt"
)

// Errors that stop a partition's output chain; docs/operations.md has the way out of each.
var (
	// ErrAhead says that the stream has an output that the machine never made: the local state and the
	// log are older than the stream.
	ErrAhead = errors.New("engine: the output stream is ahead of the log")
	// ErrBehind says that the stream lost outputs that are no longer held.
	ErrBehind = errors.New("engine: the output stream lost outputs")
)

// StreamEnd is what an output stream says about its end.
type StreamEnd struct {
	LastSeq uint64
	// The last message that is an output: its number, identity and sequence. Number 0: there is none.
	Number   uint64
	Identity string
	Seq      uint64
}

// Foreign reports whether a message in the stream cannot be an output of this partition, although it may have the shape of one:
// because it has no number (0), because the output of that number is another one, or because its sequence contradicts what the log
// knows to be stored. identity is the trigger's id, or the event's body.
func (m *Machine) Foreign(number, seq uint64, identity string) bool {
	acked := m.outbox.acked
	if number == 0 {
		return true
	}
	if number <= acked.Output || number > m.outbox.made {
		return number <= acked.Output && seq > acked.Seq
	}
	held, _ := m.outbox.after(number - 1)
	return held[0].identity() != identity
}

// LastStored returns the number of the last output in a stream with this end, for Chain.Resume. Errors: ErrAhead, ErrBehind.
func (m *Machine) LastStored(end StreamEnd) (number uint64, err error) {
	acked := m.outbox.acked
	switch {
	case end.Number > 0:
		number = end.Number
	case end.LastSeq < acked.Seq:
		return 0, fmt.Errorf("%w: partition %d: its last sequence is %d, but output %d was stored at %d", ErrBehind, m.partition, end.LastSeq, acked.Output, acked.Seq)
	default:
		number = acked.Output + end.LastSeq - acked.Seq
	}
	switch {
	case number > m.outbox.made:
		return 0, fmt.Errorf("%w: partition %d: the stream is at output %d, the machine at %d", ErrAhead, m.partition, number, m.outbox.made)
	case number < acked.Output:
		return 0, fmt.Errorf("%w: partition %d: the stream ends with output %d, and those up to %d are no longer held", ErrBehind, m.partition, number, acked.Output)
	}
	return number, nil
}

// Survey collects what a walk through an output stream finds, from what the log knows to be stored to the stream's end. It
// is for a chain whose messages were not linked: a foreign message may have taken the place of any of them.
type Survey struct {
	Foreign []uint64 // sequences of the messages that are not outputs of this partition

	machine *Machine
	highest StreamEnd // at the highest output found, which need not be the last message
	ahead   StreamEnd // at the highest number that the machine never made; none if a later output was made: then it was accepted as foreign
	above   uint64    // outputs up to here are not looked for
	cut     bool      // messages are gone in front of the stream's first one: because of its bounds, or lost in a power failure
	first   uint64    // the first output found
	kept    int64     // what was stored since then, unix ms, cannot have been removed because of the stream's bounds
	found   []uint64  // a bit for each output found, from above + 1 on
}

// surveyed bounds how many numbers a survey takes note of: 8 MiB of bits. A number beyond that is forged.
const surveyed = 1 << 26

// Survey begins the survey of a stream with these first and last sequences, in which messages that were stored at kept, unix ms, or later
// cannot have been removed because of its bounds. Add must then be called for every message above the log's acked sequence, in order.
func (m *Machine) Survey(first, last uint64, kept int64) *Survey {
	end := StreamEnd{LastSeq: last}
	return &Survey{machine: m, highest: end, ahead: end, above: m.outbox.acked.Output, cut: first > m.outbox.acked.Seq+1, kept: kept}
}

// Add takes the next message. number is 0 if it does not have the shape of an output.
func (s *Survey) Add(number, seq uint64, identity string) {
	if s.machine.Foreign(number, seq, identity) || s.has(number) {
		s.Foreign = append(s.Foreign, seq)
		return
	}
	if s.first == 0 {
		s.first = number
	}
	end := &s.highest
	if number > s.machine.outbox.made {
		end = &s.ahead
	} else {
		s.ahead.Number = 0
	}
	if number > end.Number {
		end.Number, end.Identity, end.Seq = number, identity, seq
	}
	if number <= s.above || number-s.above > surveyed {
		return
	}
	at := number - s.above - 1
	for uint64(len(s.found)) <= at/64 {
		s.found = append(s.found, 0)
	}
	s.found[at/64] |= 1 << (at % 64)
}

func (s *Survey) has(number uint64) bool {
	if number <= s.above {
		return false
	}
	at := number - s.above - 1
	return at/64 < uint64(len(s.found)) && s.found[at/64]&(1<<(at%64)) != 0
}

// End is the stream's end as LastStored needs it: with the highest output found.
func (s *Survey) End() StreamEnd {
	if s.ahead.Number > 0 {
		return s.ahead
	}
	return s.highest
}

// Missing lists the outputs below the highest one found that the stream does not have, in ascending order.
func (s *Survey) Missing() (missing []uint64) {
	for number := s.above + 1; number < s.highest.Number; number++ {
		if !s.has(number) && !s.removed(number) {
			missing = append(missing, number)
		}
	}
	return missing
}

// Stored is the last output of those that the machine has made which the stream has, or had until it removed it because of its bounds.
// It is for a stream whose end is to count as foreign.
func (s *Survey) Stored() uint64 {
	number := s.machine.outbox.made
	for number > s.above && !s.has(number) && !s.removed(number) {
		number--
	}
	return number
}

// removed tells whether an output that was not found may have been removed because of the stream's bounds.
func (s *Survey) removed(number uint64) bool {
	if !s.cut || number > s.first {
		return false
	}
	held, ok := s.machine.outbox.after(number - 1)
	return !ok || held[0].notBefore() < s.kept
}
