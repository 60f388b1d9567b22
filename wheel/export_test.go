package wheel

import "unsafe"

// Grow allocates the memory for n more timers ahead: a quarter more chunks than n timers of one record each fill, for
// chunks that are not full.
func (w *Wheel) Grow(n int) {
	for uint64(len(w.ids))*idBlockLen < uint64(w.idCount-w.free.count)+uint64(n) {
		w.ids = append(w.ids, new(posBlock))
	}
	w.growChunks(uint64(w.chunkCount-w.freeChunkCount) + uint64(n+n/4)/chunkLen + levels*fan)
}

// Bytes is the memory held, in bytes. Memory of timers that are gone is used again, but not given back.
func (w *Wheel) Bytes() int {
	return int(unsafe.Sizeof(*w)) +
		len(w.heads)*int(unsafe.Sizeof(headBlock{})) + cap(w.heads)*int(unsafe.Sizeof((*headBlock)(nil))) +
		len(w.uses)*int(unsafe.Sizeof(useBlock{})) + cap(w.uses)*int(unsafe.Sizeof((*useBlock)(nil))) +
		len(w.records)*int(unsafe.Sizeof(recordBlock{})) + cap(w.records)*int(unsafe.Sizeof((*recordBlock)(nil))) +
		len(w.ids)*int(unsafe.Sizeof(posBlock{})) + cap(w.ids)*int(unsafe.Sizeof((*posBlock)(nil))) +
		len(w.nodes)*int(unsafe.Sizeof(nodeBlock{})) + cap(w.nodes)*int(unsafe.Sizeof((*nodeBlock)(nil)))
}

// Deadline is the deadline the timer was inserted with, in unix ms. It panics if id is not live.
func (w *Wheel) Deadline(id ID) int64 {
	return toTime(w.deadline(*w.find(id)))
}
