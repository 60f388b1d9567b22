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
		prev = (s.end - 1) / chunkLen
		w.chunk(prev).next = c
	}
	*w.chunk(c) = chunk{slot: i, prev: prev}
	s.end = c * chunkLen
}

func (w *Wheel) addBlock() {
	if len(w.chunks) == 1<<32/blockLen-1 { // a slot's end must be a uint32, too
		panic("wheel: no position left for another 8192 timers")
	}
	w.chunks = append(w.chunks, new(chunkBlock))
}

// dropChunk takes chunk c, which holds no record any more, out of its slot.
func (w *Wheel) dropChunk(c uint32) {
	h := w.chunk(c)
	s := w.slot(h.slot)
	if h.prev != 0 {
		w.chunk(h.prev).next = h.next
	} else {
		s.head = h.next
	}
	if h.next != 0 {
		w.chunk(h.next).prev = h.prev
	} else {
		s.end = w.endOf(h.prev)
	}
	if s.head == 0 {
		w.vacate(h.slot)
	}
	w.recycle(c)
}

// endOf is the position behind the last record of chunk c.
func (w *Wheel) endOf(c uint32) uint32 {
	return c*chunkLen + uint32(bits.Len16(w.chunk(c).live))
}

// recycle puts chunk c, which is in no slot, on the free list.
func (w *Wheel) recycle(c uint32) {
	w.chunk(c).next = w.freeChunk
	w.freeChunk = c
	w.freeChunkCount++
}

// merge moves the records of chunk b behind those of chunk a, its predecessor, if both exist and hold
// few enough.
func (w *Wheel) merge(a, b uint32) bool {
	if a == 0 || b == 0 {
		return false
	}
	to, from := w.chunk(a), w.chunk(b)
	if bits.OnesCount16(to.live)+bits.OnesCount16(from.live) > mergeMax {
		return false
	}
	n := uint32(0)
	for _, c := range [...]uint32{a, b} {
		for live := w.chunk(c).live; live != 0; live &= live - 1 {
			r := *w.record(c*chunkLen + uint32(bits.TrailingZeros16(live)))
			*w.record(a*chunkLen + n) = r
			*w.pos(r.id) = a*chunkLen + n
			n++
		}
	}
	to.live = 1<<n - 1
	w.dropChunk(b)
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
