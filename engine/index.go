package engine

import (
	"iter"
	"slices"
)

// index finds jobs' slots by the hashes of their ids (extendible hashing). It is a table of segments, each of which grows, or
// is split in two, by itself: an insertion moves at most the cells of one segment, where a table in one piece would have to
// move all of them at once. A cell keeps the hash, so nothing of a job is read when the cell moves. The index takes some
// 10 bytes a job, where a Go map took 19.
//
// The first bits of a hash choose the segment. The bits after them say how far into the segment its cell belongs. If that place
// is taken, the cells behind it are pushed on. So the cells of a segment are in the order of their hashes, with no free cell
// between where a cell belongs and where it is, and a search can end at the first greater hash.
type index struct {
	directory []uint32  // places in segments, by the first bits of a hash; a segment of fewer bits is there more than once
	segments  []segment // in one slice: as objects of their own they held pages of the heap with little else on them
	bits      uint8     // how many first bits of a hash choose a place in directory
	n         int
}

type segment struct {
	cells []cell
	n     int
	bits  uint8 // how many first bits all of its hashes have in common
}

type cell struct {
	hash uint32
	slot uint32 // + 1; 0: free
}

// segmentMax is how many cells a segment has before it is split, which takes some 5 µs. Not more, because an insertion waits for
// that; not fewer, because each segment, with its places in the directory, takes some 48 bytes.
const segmentMax = 1024

func newIndex() index { return index{directory: []uint32{0}, segments: make([]segment, 1)} }

// segment is valid until the next split.
func (x *index) segment(hash uint32) *segment {
	return &x.segments[x.directory[uint64(hash)<<x.bits>>32]]
}

// slots yields the slots of a hash. The index must not change meanwhile.
func (x *index) slots(hash uint32) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		s := x.segment(hash)
		for i := s.search(hash); i < len(s.cells) && s.cells[i].slot != 0 && s.cells[i].hash == hash; i++ {
			if !yield(s.cells[i].slot - 1) {
				return
			}
		}
	}
}

// insert adds a slot, which must not be there yet.
func (x *index) insert(hash, slot uint32) {
	x.n++
	s := x.segment(hash)
	if s.n >= segmentMax && x.split(hash) {
		s = x.segment(hash)
	}
	if s.n >= len(s.cells)-len(s.cells)/8 {
		s.resize(capacityFor(s.n))
	}
	for !s.insert(cell{hash, slot + 1}) {
		s.resize(capacityFor(len(s.cells)))
	}
}

// remove takes out a slot, which must be in the index.
func (x *index) remove(hash, slot uint32) {
	x.n--
	s := x.segment(hash)
	i := s.search(hash)
	for s.cells[i].slot != slot+1 {
		i++
	}
	s.remove(i)
	if s.n&(s.n-1) == 0 && s.n < len(s.cells)/2 && len(s.cells) > 32 {
		s.resize(capacityFor(s.n))
	}
}

// split makes two segments of the one of a hash. It refuses when the directory is much larger than so many jobs need, and then
// the segment grows instead: somebody could choose ids whose hashes begin alike, which would double the directory again and
// again.
func (x *index) split(hash uint32) bool {
	at := x.directory[uint64(hash)<<x.bits>>32]
	s := x.segments[at]
	if s.bits == x.bits {
		if len(x.directory) > 8*(1+x.n/segmentMax) {
			return false
		}
		twice := make([]uint32, 0, 2*len(x.directory))
		for _, at := range x.directory {
			twice = append(twice, at, at)
		}
		x.directory = twice
		x.bits++
	}
	middle := slices.IndexFunc(s.cells, func(c cell) bool { return c.slot != 0 && c.hash<<s.bits>>31 == 1 })
	if middle < 0 {
		middle = len(s.cells)
	}
	halves := [2]segment{{cells: s.cells[:middle], bits: s.bits + 1}, {cells: s.cells[middle:], bits: s.bits + 1}}
	for i := range halves {
		half := &halves[i]
		for _, c := range half.cells {
			if c.slot != 0 {
				half.n++
			}
		}
		half.resize(capacityFor(half.n))
	}
	second := uint32(len(x.segments))
	x.segments[at] = halves[0]
	x.segments = append(x.segments, halves[1])
	each := 1 << (x.bits - s.bits - 1)
	first := int(uint64(hash)<<s.bits>>32)*2*each + each
	for i := range each {
		x.directory[first+i] = second
	}
	return true
}

// home is the first cell that a hash may have. The last sixteenth of the cells is for those that are pushed on.
func (s *segment) home(hash uint32) int {
	room := len(s.cells) - len(s.cells)/16
	return int(uint64(hash<<s.bits) * uint64(room) >> 32)
}

// search finds the first cell of a hash, or where it would be inserted.
func (s *segment) search(hash uint32) int {
	i := s.home(hash)
	for i < len(s.cells) && s.cells[i].slot != 0 && s.cells[i].hash < hash {
		i++
	}
	return i
}

// insert fails if no cell is free behind the place of the new one.
func (s *segment) insert(c cell) bool {
	at := s.search(c.hash)
	free := at
	for free < len(s.cells) && s.cells[free].slot != 0 {
		free++
	}
	if free == len(s.cells) {
		return false
	}
	copy(s.cells[at+1:free+1], s.cells[at:free])
	s.cells[at] = c
	s.n++
	return true
}

func (s *segment) remove(i int) {
	s.n--
	for ; i+1 < len(s.cells) && s.cells[i+1].slot != 0 && s.home(s.cells[i+1].hash) <= i; i++ {
		s.cells[i] = s.cells[i+1]
	}
	s.cells[i] = cell{}
}

// capacityFor is how many cells a segment gets for n: a quarter more.
func capacityFor(n int) int { return n + n/4 + 4 }

// resize gives the segment room cells, or as many as the allocator's size class has; more if those pushed beyond the end need it.
func (s *segment) resize(room int) {
	old := s.cells
	for ; ; room = capacityFor(room) {
		s.cells = slices.Grow([]cell(nil), room)
		s.cells = s.cells[:cap(s.cells)]
		if s.refill(old) {
			return
		}
	}
}

// refill puts cells, in ascending order, into the segment's empty ones. It fails if the last of them would be pushed beyond the end.
func (s *segment) refill(from []cell) bool {
	at := 0
	for _, c := range from {
		if c.slot == 0 {
			continue
		}
		if at = max(at, s.home(c.hash)); at == len(s.cells) {
			return false
		}
		s.cells[at] = c
		at++
	}
	return true
}
