package wheel

import (
	"math/bits"
	"unsafe"
)

func (w *Wheel) chunk(c uint32) *chunk {
	return &w.chunks[c/blockChunks].heads[c%blockChunks]
}

func (w *Wheel) record(pos uint32) *record {
	return &w.chunks[pos/blockLen].records[pos%blockLen]
}

func (w *Wheel) recordsOf(c uint32) *[chunkLen]record {
	at := c * chunkLen % blockLen
	return (*[chunkLen]record)(w.chunks[c/blockChunks].records[at : at+chunkLen])
}

func (w *Wheel) pos(id ID) *uint32 {
	return &w.ids[id/blockLen].pos[id%blockLen]
}

func (w *Wheel) node(n uint32) *node {
	return &w.nodes[n/nodeBlockLen][n%nodeBlockLen]
}

func (w *Wheel) slot(i uint32) *slot {
	return &w.node(i / fan).slots[i%fan]
}

// find returns where the record of a live id is.
func (w *Wheel) find(id ID) (pos uint32) {
	if uint32(id) < w.idCount {
		pos = *w.pos(id)
	}
	if pos == 0 {
		panic("wheel: no live timer has this id")
	}
	return pos
}

func (w *Wheel) newID() ID {
	if w.freeIDCount > 0 {
		w.freeIDCount--
		return w.ids[w.freeIDCount/blockLen].free[w.freeIDCount%blockLen]
	}
	id := w.idCount
	if int(id/blockLen) == len(w.ids) {
		w.ids = append(w.ids, new(idBlock))
	}
	w.idCount++
	return ID(id)
}

func (w *Wheel) freeID(id ID) {
	*w.pos(id) = 0
	w.ids[w.freeIDCount/blockLen].free[w.freeIDCount%blockLen] = id
	w.freeIDCount++
}

// addChunk gives slot i another chunk at its end.
func (w *Wheel) addChunk(s *slot, i uint32) {
	c := w.freeChunk
	if c != 0 {
		w.freeChunk = w.chunk(c).next
		w.freeChunkCount--
	} else {
		c = w.chunkCount
		if int(c/blockChunks) == len(w.chunks) {
			w.addBlock()
		}
		w.chunkCount++
	}
	prev := uint32(0)
	if s.head == 0 {
		s.head = c
	} else {
		prev = s.end/chunkLen - 1
		w.chunk(prev).next = c
	}
	*w.chunk(c) = chunk{slot: i, prev: prev, live: ^uint16(0)}
	s.end = c * chunkLen
}

func (w *Wheel) addBlock() {
	if len(w.chunks) == 1<<32/blockLen-1 {
		panic("wheel: no position is left for another timer")
	}
	w.chunks = append(w.chunks, new(chunkBlock))
}

// used is the records in use of chunk c of slot s.
func (w *Wheel) used(s *slot, c uint32) uint16 {
	h := w.chunk(c)
	if h.next != 0 {
		return h.live
	}
	return h.live & (1<<(s.end-c*chunkLen) - 1) // the last
}

// dropChunk takes chunk c, which holds no record any more, out of slot s.
func (w *Wheel) dropChunk(s *slot, c uint32) {
	h := w.chunk(c)
	if h.prev != 0 {
		w.chunk(h.prev).next = h.next
	} else {
		s.head = h.next
	}
	switch {
	case h.next != 0:
		w.chunk(h.next).prev = h.prev
	case h.prev != 0:
		last := w.chunk(h.prev)
		n := uint32(bits.Len16(last.live))
		last.live |= ^uint16(0) << n
		s.end = h.prev*chunkLen + n
	default:
		w.vacate(h.slot)
	}
	w.recycle(c)
}

// recycle puts chunk c, which is in no slot, on the free list.
func (w *Wheel) recycle(c uint32) {
	w.chunk(c).next = w.freeChunk
	w.freeChunk = c
	w.freeChunkCount++
}

// shrink frees chunk c if no record of it is in use, or merges it with a neighbour.
func (w *Wheel) shrink(c uint32) {
	h := w.chunk(c)
	s := w.slot(h.slot)
	if n := bits.OnesCount16(w.used(s, c)); n == 0 {
		w.dropChunk(s, c)
	} else if n <= mergeMax/2 && !w.merge(s, h.prev, c) {
		w.merge(s, c, h.next)
	}
}

// merge moves the records of chunk b of slot s behind those of chunk a, its predecessor, if both exist
// and hold few enough.
func (w *Wheel) merge(s *slot, a, b uint32) bool {
	if a == 0 || b == 0 || bits.OnesCount16(w.used(s, a))+bits.OnesCount16(w.used(s, b)) > mergeMax {
		return false
	}
	to, n := w.chunk(a), uint32(0)
	for _, c := range [...]uint32{a, b} {
		for used := w.used(s, c); used != 0; used &= used - 1 {
			r := *w.record(c*chunkLen + uint32(bits.TrailingZeros16(used)))
			*w.record(a*chunkLen + n) = r
			*w.pos(r.id) = a*chunkLen + n
			n++
		}
	}
	to.live = 1<<n - 1
	w.dropChunk(s, b)
	return true
}

func (w *Wheel) newNode(level, up uint32) uint32 {
	n := w.freeNode
	if n != 0 {
		w.freeNode = w.node(n).up
	} else {
		n = w.nodeCount
		if int(n/nodeBlockLen) == len(w.nodes) {
			w.nodes = append(w.nodes, new(nodeBlock))
		}
		w.nodeCount++
	}
	nd := w.node(n) // its slots are empty
	nd.level, nd.up = level, up
	return n
}

// dropNode frees node n, whose slots are empty.
func (w *Wheel) dropNode(n uint32) {
	w.node(n).up = w.freeNode
	w.freeNode = n
}

// Grow takes the memory for n more timers now, a quarter more than they fill when they are spread evenly.
func (w *Wheel) Grow(n int) {
	for uint64(len(w.ids))*blockLen < uint64(w.idCount-w.freeIDCount)+uint64(n) {
		w.ids = append(w.ids, new(idBlock))
	}
	need := uint64(n+n/4)/chunkLen + levels*fan
	for uint64(len(w.chunks))*blockChunks < uint64(w.chunkCount-w.freeChunkCount)+need {
		w.addBlock()
	}
}

// Bytes is the memory held, in bytes, for timers present and past: it is used again but not given back.
func (w *Wheel) Bytes() int {
	return int(unsafe.Sizeof(*w)) +
		len(w.chunks)*int(unsafe.Sizeof(chunkBlock{})) + cap(w.chunks)*int(unsafe.Sizeof((*chunkBlock)(nil))) +
		len(w.ids)*int(unsafe.Sizeof(idBlock{})) + cap(w.ids)*int(unsafe.Sizeof((*idBlock)(nil))) +
		len(w.nodes)*int(unsafe.Sizeof(nodeBlock{})) + cap(w.nodes)*int(unsafe.Sizeof((*nodeBlock)(nil)))
}
