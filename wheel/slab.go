package wheel

import (
	"math/bits"
)

func (w *Wheel) chunk(c uint32) *chunk {
	return &w.heads[c/headBlockLen][c%headBlockLen]
}

func (w *Wheel) use(c uint32) *use {
	return &w.uses[c/useBlockLen][c%useBlockLen]
}

func (w *Wheel) record(pos uint32) *record {
	return &w.records[pos/blockLen][pos%blockLen]
}

func (w *Wheel) recordsOf(c uint32) *[chunkLen]record {
	at := c * chunkLen % blockLen
	return (*[chunkLen]record)(w.records[c/blockChunks][at : at+chunkLen])
}

func (w *Wheel) pos(id ID) *uint32 {
	return &w.ids[id/idBlockLen][id%idBlockLen]
}

func (w *Wheel) node(n uint32) *node {
	return &w.nodes[n/nodeBlockLen][n%nodeBlockLen]
}

func (w *Wheel) slot(i uint32) *slot {
	return &w.node(i / fan).slots[i%fan]
}

// find returns the entry of pos of a live id; it panics for any other.
func (w *Wheel) find(id ID) (pos *uint32) {
	if b := id / idBlockLen; int(b) < len(w.ids) {
		if pos = &w.ids[b][id%idBlockLen]; int32(*pos) > 0 {
			return pos
		}
	}
	panic("wheel: no live timer has this id")
}

func (w *Wheel) newID() ID {
	if w.free.count > 0 {
		return w.popID()
	}
	id := w.idCount
	if id == freeBit {
		panic("wheel: no id is left for another timer")
	}
	if int(id/idBlockLen) == len(w.ids) {
		w.ids = append(w.ids, new(posBlock))
	}
	w.idCount++
	return ID(id)
}

// freeID puts id, whose entry of pos is given, on the stack of free ids.
func (w *Wheel) freeID(id ID, pos *uint32) {
	f := &w.free
	k := f.count % freeRow
	if k == 0 {
		f.below, f.belowRead = f.top, true
	}
	*pos = freeBit | uint32(f.below[k])
	f.top[k] = id
	f.count++
}

// popID takes the topmost id off the stack of free ids.
func (w *Wheel) popID() ID {
	f := &w.free
	f.count--
	k := f.count % freeRow
	if !f.belowRead {
		for i, id := range f.top {
			f.below[i] = ID(*w.pos(id) &^ freeBit)
		}
		f.belowRead = true
	}
	id := f.top[k]
	if k == 0 {
		f.top, f.belowRead = f.below, false
	}
	return id
}

// stepTo is how many records the next timer takes at the end of slot s: those of the last chunk's step, but wide if it must
// be wide. A last chunk that is not wide then gets no more records.
func (w *Wheel) stepTo(s *slot, must bool) uint32 {
	for s.end%chunkLen != 0 {
		c := s.end / chunkLen
		u := w.use(c)
		if !must || u.step == wide {
			return uint32(u.step)
		}
		u.live = w.used(s, c)
		s.end = (c + 1) * chunkLen
		if u.live == 0 {
			w.dropChunk(s, c)
		}
	}
	if must {
		return wide
	}
	return 1
}

// addChunk gives slot i another chunk at its end, for timers that take step records each.
func (w *Wheel) addChunk(s *slot, i, step uint32) {
	c := w.freeChunk
	if c != 0 {
		w.freeChunk = w.chunk(c).next
		w.freeChunkCount--
	} else {
		c = w.chunkCount
		w.growChunks(uint64(c) + 1)
		w.chunkCount++
	}
	prev := uint32(0)
	if s.head == 0 {
		s.head = c
	} else {
		prev = s.end/chunkLen - 1
		w.chunk(prev).next = c
		w.use(prev).alone = false
	}
	*w.chunk(c) = chunk{slot: i, prev: prev}
	*w.use(c) = use{live: ones[step], step: uint8(step), alone: prev == 0}
	s.end = c * chunkLen
}

// growChunks allocates memory for count chunks in all, number 0 included.
func (w *Wheel) growChunks(count uint64) {
	if count > freeBit/chunkLen {
		panic("wheel: no position is left for another timer")
	}
	for uint64(len(w.heads))*headBlockLen < count {
		w.heads = append(w.heads, new(headBlock))
	}
	for uint64(len(w.uses))*useBlockLen < count {
		w.uses = append(w.uses, new(useBlock))
	}
	for uint64(len(w.records))*blockChunks < count {
		w.records = append(w.records, new(recordBlock))
	}
}

// used has a bit for each record in use in chunk c of slot s.
func (w *Wheel) used(s *slot, c uint32) uint16 {
	live := w.use(c).live
	if w.chunk(c).next != 0 {
		return live
	}
	return live & (1<<(s.end-c*chunkLen) - 1) // of the last chunk, only what was written
}

// dropChunk takes chunk c, which holds no timer any more, out of slot s. If that leaves a single chunk, which holds no timer
// either, it is taken out as well.
func (w *Wheel) dropChunk(s *slot, c uint32) {
	h := w.chunk(c)
	prev, next := h.prev, h.next
	if prev != 0 {
		w.chunk(prev).next = next
	} else {
		s.head = next
	}
	switch {
	case next != 0:
		w.chunk(next).prev = prev
		w.use(next).alone = prev|w.chunk(next).next == 0
	case prev != 0:
		last := w.use(prev)
		step := uint32(last.step)
		n := (uint32(bits.Len16(last.live)) + step - 1) / step * step
		last.live |= ones[step] << n
		last.alone = w.chunk(prev).prev == 0
		s.end = prev*chunkLen + n
	default:
		w.vacate(h.slot)
	}
	w.recycle(c)
	if prev == 0 && next != 0 && w.used(s, next) == 0 {
		w.dropChunk(s, next)
	}
}

// recycle puts chunk c, which is in no slot, on the free list.
func (w *Wheel) recycle(c uint32) {
	w.chunk(c).next = w.freeChunk
	w.freeChunk = c
	w.freeChunkCount++
}

// removed frees or merges the chunk of pos, if it may now be, after the timer there was removed.
func (w *Wheel) removed(pos uint32) {
	c := pos / chunkLen
	h := w.chunk(c)
	if h.slot == inRows {
		w.leaveRow(w.record(pos).low%fan, c)
		return
	}
	s := w.slot(h.slot)
	if used := w.used(s, c); used == 0 {
		w.dropChunk(s, c)
	} else if !w.merge(s, h.prev, c) {
		w.merge(s, c, h.next)
	}
}

// merge moves the timers of chunk b of slot s behind those of chunk a, its predecessor, if both exist (are not 0), are of
// one step, and hold few enough. It reports whether it did.
func (w *Wheel) merge(s *slot, a, b uint32) bool {
	if a == 0 || b == 0 {
		return false
	}
	to, step := w.use(a), uint32(w.use(a).step)
	timers := bits.OnesCount16(w.used(s, a)) + bits.OnesCount16(w.used(s, b))
	if w.use(b).step != to.step || timers*int(step) > mergeMax {
		return false
	}
	n := uint32(0)
	for _, c := range [...]uint32{a, b} {
		for used := w.used(s, c); used != 0; used &= used - 1 {
			from := c*chunkLen + uint32(bits.TrailingZeros16(used))
			if from == w.least {
				w.least = a*chunkLen + n
			}
			for i := range step {
				*w.record(a*chunkLen + n + i) = *w.record(from + i)
			}
			*w.pos(w.record(a*chunkLen + n).id) = a*chunkLen + n
			n += step
		}
	}
	to.live = ones[step] & (1<<n - 1)
	w.dropChunk(s, b)
	return true
}

func (w *Wheel) newNode(level, up uint32, from uint64) uint32 {
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
	nd.level, nd.up, nd.from = level, up, from
	return n
}

// dropNode frees node n, whose slots are empty.
func (w *Wheel) dropNode(n uint32) {
	w.node(n).up = w.freeNode
	w.freeNode = n
}
