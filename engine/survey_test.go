package engine

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
)

// TestSurvey walks over ends of streams of a machine that has made outputs 1 to 9, of which the log knows 2 to be
// stored at sequence 12.
func TestSurvey(t *testing.T) {
	id := func(n uint64) string { return fmt.Sprintf("j@%d", n) }
	m := New(Layout{Prefix: "carillon", Partitions: 1}, 0)
	for n := range int64(9) {
		m.outbox.add(Output{Job: "j", Scheduled: n + 1, Due: n + 1})
	}
	m.outbox.trim(Acked{2, 12})
	type message struct {
		number  uint64
		trigger string
	}
	own := func(numbers ...uint64) (list []message) {
		for _, n := range numbers {
			list = append(list, message{n, id(n)})
		}
		return list
	}
	alien := message{}
	for name, c := range map[string]struct {
		first    uint64 // of the stream
		kept     int64
		messages []message
		end      uint64
		missing  []uint64
		foreign  int
	}{
		"nothing":             {first: 1},
		"all in order":        {first: 1, messages: own(3, 4, 5), end: 5},
		"one displaced":       {first: 1, messages: slices.Concat(own(3), []message{alien}, own(5, 6)), end: 6, missing: []uint64{4}, foreign: 1},
		"the first displaced": {first: 1, messages: slices.Concat([]message{alien}, own(4)), end: 4, missing: []uint64{3}, foreign: 1},
		"that, none aged":     {first: 13, messages: slices.Concat([]message{alien}, own(4)), end: 4, missing: []uint64{3}, foreign: 1},
		"replaced, then more": {first: 1, messages: slices.Concat(own(3), []message{alien}, own(5, 6, 4, 7)), end: 7, foreign: 1},
		"replaced at the end": {first: 1, messages: slices.Concat(own(3), []message{alien}, own(5, 6, 4)), end: 6, foreign: 1},
		"a forged number":     {first: 1, messages: append(own(3), message{4, "x@1"}), end: 3, foreign: 1},
		"a copy":              {first: 1, messages: own(3, 4, 3), end: 4, foreign: 1},
		"aged":                {first: 15, kept: 100, messages: own(5, 6, 8), end: 8, missing: []uint64{7}},
		"gone, and too young": {first: 15, kept: 4, messages: own(5, 6, 8), end: 8, missing: []uint64{4, 7}},
		"those replaced":      {first: 15, messages: own(5, 6, 8, 3, 4, 7), end: 8},
		"ahead":               {first: 1, messages: own(3, 4, 10, 11), end: 11},
		"far ahead":           {first: 1, messages: own(3, 1<<60), end: 1 << 60},
		"ahead, accepted":     {first: 1, messages: own(10, 11, 3, 4), end: 4},
	} {
		s := m.Survey(c.first, 100, c.kept)
		for i, msg := range c.messages {
			s.Add(msg.number, max(13, c.first)+uint64(i), msg.trigger)
		}
		if end := s.End(); end.Number != c.end || end.LastSeq != 100 || end.Number > 0 && end.Identity != id(end.Number) {
			t.Errorf("%s: ends with %+v, want output %d", name, end, c.end)
		}
		if missing := s.Missing(); !slices.Equal(missing, c.missing) || len(s.Foreign) != c.foreign {
			t.Errorf("%s: missing %v, want %v; %d foreign, want %d", name, missing, c.missing, len(s.Foreign), c.foreign)
		}
	}
}

// Where a stream whose messages were linked ends is told by its last output, or if that is not known, by its last sequence.
func TestLastStored(t *testing.T) {
	m := New(Layout{Prefix: "carillon", Partitions: 1}, 0)
	for n := range int64(9) {
		m.outbox.add(Output{Job: "j", Scheduled: n + 1, Due: n + 1})
	}
	m.outbox.trim(Acked{2, 12})
	for _, c := range []struct {
		end    StreamEnd
		number uint64
		err    error
	}{
		{StreamEnd{LastSeq: 11}, 0, ErrBehind},
		{StreamEnd{LastSeq: 12}, 2, nil},
		{StreamEnd{LastSeq: 15}, 5, nil},
		{StreamEnd{LastSeq: 19}, 9, nil},
		{StreamEnd{LastSeq: 20}, 0, ErrAhead},
		{StreamEnd{LastSeq: 40, Number: 1}, 0, ErrBehind},
		{StreamEnd{LastSeq: 40, Number: 2}, 2, nil},
		{StreamEnd{LastSeq: 40, Number: 9}, 9, nil},
		{StreamEnd{LastSeq: 40, Number: 10}, 0, ErrAhead},
	} {
		if number, err := m.LastStored(c.end); number != c.number || !errors.Is(err, c.err) {
			t.Errorf("%+v: output %d, %v; want %d, %v", c.end, number, err, c.number, c.err)
		}
	}
	if held, ok := m.Outbox(2); !ok || len(held) != 7 {
		t.Errorf("%d outputs are held, %t", len(held), ok)
	}
	if _, ok := m.Outbox(1); ok {
		t.Error("an output that is stored is still held")
	}
}

// Behind a stream that is ahead of the machine, and counts as foreign there, the chain goes on with what was not stored.
func TestSurveyStored(t *testing.T) {
	m := New(oneOfOne, 0)
	for n := range int64(9) {
		m.outbox.add(Output{Job: "j", Scheduled: n + 1, Due: n + 1})
	}
	m.outbox.trim(Acked{2, 12})
	for _, c := range []struct {
		first  uint64 // of the stream
		kept   int64
		own    []uint64
		stored uint64
	}{
		{1, 0, nil, 2},
		{1, 0, []uint64{3, 4, 5}, 5},
		{1, 0, []uint64{3, 5}, 5}, // 4 was displaced
		{15, 8, nil, 7},           // what was due before 8 may have been removed
		{15, 0, nil, 2},
		{15, math.MaxInt64, nil, 9},
	} {
		s := m.Survey(c.first, 100, c.kept)
		seq := max(13, c.first)
		for _, n := range c.own {
			s.Add(n, seq, fmt.Sprintf("j@%d", n))
			seq++
		}
		s.Add(20, seq, "j@20")
		if got := s.Stored(); s.End().Number != 20 || got != c.stored {
			t.Errorf("%+v: up to output %d is stored, and the stream ends with %d", c, got, s.End().Number)
		}
	}
}

// A message counts as this partition's output if the output of the number that it claims can be at that place.
func TestForeign(t *testing.T) {
	m := New(oneOfOne, 0)
	for n := range int64(9) {
		m.outbox.add(Output{Job: "j", Scheduled: n + 1})
	}
	m.outbox.add(Output{Kind: OutputEvent, Body: "skipped"})
	m.outbox.trim(Acked{2, 12})
	for _, c := range []struct {
		number, seq uint64
		identity    string
		foreign     bool
	}{
		{0, 5, "", true},
		{0, 20, "", true},
		{1, 11, "j@1", false},
		{2, 12, "j@2", false}, // no longer held
		{1, 13, "j@1", true},
		{2, 13, "j@2", true}, // they stand below
		{3, 13, "j@3", false},
		{9, 40, "j@9", false},
		{3, 13, "j@4", true},
		{9, 40, "x@9", true},
		{10, 41, "j@10", true},
		{10, 41, "rejected", true},
		{10, 41, "skipped", false},
		{11, 42, "j@11", false}, // not made yet
	} {
		if got := m.Foreign(c.number, c.seq, c.identity); got != c.foreign {
			t.Errorf("output %d %s at %d: foreign %t", c.number, c.identity, c.seq, got)
		}
	}
}

// A watched chain sends neither ids nor links; once it is told of a foreign message, it links from then on.
func TestChainWatched(t *testing.T) {
	c := NewChain()
	c.Watch(true)
	c.Resume(0, 0, numbered(1, 4, 0))
	for range 2 {
		if p, ok := c.Next(0); !ok || p.Named || p.Linked {
			t.Errorf("watched it sends %+v", p)
		}
	}
	c.Watch(false)
	c.Lose()
	c.Resume(1, 1, numbered(2, 4, 0))
	for i := range 3 {
		if p, ok := c.Next(0); !ok || !p.Named || p.Linked != (i > 0) {
			t.Errorf("no longer watched it sends %+v", p)
		}
	}
}
