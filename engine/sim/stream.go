package sim

import (
	"fmt"
	"slices"
	"sort"

	"github.com/carillon-scheduler/carillon/engine"
)

// Message is one message of a Stream.
type Message struct {
	Seq     uint64
	Time    int64 // unix ns
	Subject string
	ID      string // its Nats-Msg-Id
	Header  []engine.Field
	Data    []byte
}

// Stream models one JetStream stream of one replica, as far as the engine relies on it: sequences,
// conditional publishes, what removes messages, and what a power failure leaves.
// stream_test.go compares it with a real nats-server.
type Stream struct {
	messages []Message // those present, by sequence
	last     uint64
	lastID   string // Nats-Msg-Id of the last message stored
	lastTime int64
	synced   uint64 // messages up to here survive a power failure
	stuck    bool   // a write failed: until a restart nothing is stored and nothing is answered

	ignoreExpected bool // sabotage: the chain's condition is not checked
}

// WrongSequence is the refusal of a publish that expected another last sequence.
type WrongSequence struct{ Last uint64 }

func (e *WrongSequence) Error() string { return fmt.Sprintf("wrong last sequence: %d", e.Last) }

// WrongID is the refusal of a publish that expected another message id at the end.
type WrongID struct{ Last string }

func (e *WrongID) Error() string { return fmt.Sprintf("wrong last msg ID: %s", e.Last) }

// Expectation is what a publish asks of the stream's end. The zero value asks for nothing.
type Expectation struct {
	Seq   uint64 // Nats-Expected-Last-Sequence, when OnSeq
	OnSeq bool
	ID    string // Nats-Expected-Last-Msg-Id, when not empty
}

// Publish appends a message at its Time and returns its sequence.
func (s *Stream) Publish(m Message, expect Expectation) (uint64, error) {
	if !s.ignoreExpected {
		if expect.OnSeq && expect.Seq != s.last {
			return 0, &WrongSequence{s.last}
		}
		if expect.ID != "" && expect.ID != s.lastID {
			return 0, &WrongID{s.lastID}
		}
	}
	s.last++
	s.lastID, s.lastTime = m.ID, m.Time
	m.Seq = s.last
	s.messages = append(s.messages, m)
	return s.last, nil
}

// Last is the stream's last sequence.
func (s *Stream) Last() uint64 { return s.last }

// First is the first sequence present; of an empty stream the next one, of a new stream 0.
func (s *Stream) First() uint64 {
	switch {
	case len(s.messages) > 0:
		return s.messages[0].Seq
	case s.last > 0:
		return s.last + 1
	}
	return 0
}

// index is the index of the first message at or above seq.
func (s *Stream) index(seq uint64) int {
	return sort.Search(len(s.messages), func(i int) bool { return s.messages[i].Seq >= seq })
}

// Get returns the message at a sequence.
func (s *Stream) Get(seq uint64) (Message, bool) {
	if i := s.index(seq); i < len(s.messages) && s.messages[i].Seq == seq {
		return s.messages[i], true
	}
	return Message{}, false
}

// From returns the messages at and above seq.
func (s *Stream) From(seq uint64) []Message { return slices.Clone(s.messages[s.index(seq):]) }

// Purge removes the messages below seq, which must be over 0. If seq is beyond the end, it raises the last sequence
// to seq - 1.
func (s *Stream) Purge(seq uint64) {
	s.messages = s.From(seq)
	if seq > s.last+1 {
		s.last = seq - 1
	}
}

// Delete removes one message; the last sequence stays.
func (s *Stream) Delete(seq uint64) bool {
	i := s.index(seq)
	if i == len(s.messages) || s.messages[i].Seq != seq {
		return false
	}
	s.messages = slices.Delete(slices.Clone(s.messages), i, i+1)
	return true
}

// Age removes and returns the messages that were stored before a time, unix ns.
func (s *Stream) Age(before int64) []Message {
	n := 0
	for n < len(s.messages) && s.messages[n].Time < before {
		n++
	}
	gone := s.messages[:n]
	s.messages = slices.Clone(s.messages[n:])
	return gone
}

// Sync makes everything stored survive a power failure.
func (s *Stream) Sync() { s.synced = s.last }

// Restart is a restart of the server without any loss.
func (s *Stream) Restart() {
	s.stuck, s.lastID = false, ""
	if m, ok := s.Get(s.last); ok {
		s.lastID = m.ID
	}
}

// PowerLoss loses the messages above cut. With keepLast the last sequence stays, above a hole.
func (s *Stream) PowerLoss(cut uint64, keepLast bool) {
	s.messages = slices.Clone(s.messages[:s.index(cut+1)])
	if !keepLast && cut < s.last {
		s.last, s.synced = cut, min(s.synced, cut)
		if n := len(s.messages); n > 0 {
			s.lastTime = s.messages[n-1].Time
		}
	}
	s.Restart()
}
