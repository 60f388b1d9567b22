package engine

import (
	"encoding/binary"
	"math/bits"
)

// texts holds what a job has of bytes: its id, what is fixed while it keeps its version, the request of its last command and
// its spec; what many have alike of the last two is kept once (frames). They lie in pages without pointers, so that a million
// jobs are as little work for the garbage collector as none, and cost no more than their length and half a unit each.
//
// Freed cells are used again for texts of their own size only: sizes of jobs seldom differ much over time,
// and nothing has to be moved.
type texts struct {
	pages [][]byte
	next  int                     // unused units of the last page begin here
	free  [smallUnits + 1]textRef // first free cell of each size; its first bytes are the next one's ref
	large [][]byte                // texts of more than smallUnits, or for which no page is left; nil: free
	gaps  []textRef               // free places in large
	bytes int                     // in use

	largest int // of all that ever came, in bytes, with its frames
	specs   frames
	clients frames // of requests
}

// textRef names a text: the number of its first unit in the pages or, with largeRef, its place in large. 0
// is no text.
type textRef uint32

const (
	unit       = 4       // bytes
	pageUnits  = 1 << 16 // 256 KiB
	smallUnits = 1024    // 4 KiB
	largeRef   = 1 << 31
	pagesMost  = largeRef / pageUnits // 8 GiB
)

// fixed is what stays as it is while a job keeps its version. It is needed with the texts, or seldom, so it lies with them.
type fixed struct {
	order    uint64 // of creation, in this partition
	version  uint64
	accepted int64  // when this version was, ms
	put      uint64 // sequence of the put that made this version; with index the key of its spec
	index    uint16
}

// fixedMax is the most that append adds.
const fixedMax = 4*binary.MaxVarintLen64 + binary.MaxVarintLen16

func (f *fixed) append(b []byte) []byte {
	b = binary.AppendUvarint(b, f.order)
	b = binary.AppendUvarint(b, f.version)
	b = binary.AppendVarint(b, f.accepted)
	b = binary.AppendUvarint(b, f.put)
	return binary.AppendUvarint(b, uint64(f.index))
}

// cutFixed takes it off the front.
func cutFixed(b []byte) (f fixed, rest []byte) {
	f.order, b = cutUvarint(b)
	f.version, b = cutUvarint(b)
	accepted, b := cutUvarint(b)
	f.accepted = int64(accepted>>1) ^ -int64(accepted&1) // as varints have signs
	f.put, b = cutUvarint(b)
	index, b := cutUvarint(b)
	f.index = uint16(index)
	return f, b
}

func cutUvarint(b []byte) (v uint64, rest []byte) {
	if b[0] < 0x80 {
		return uint64(b[0]), b[1:]
	}
	v, n := binary.Uvarint(b)
	return v, b[n:]
}

// addText stores a text: the id and what is fixed, then request and spec, of each the number of its frame and what is not in it.
func addText[A, B ~string | ~[]byte](t *texts, id A, f fixed, request B, spec []byte) textRef {
	client, count := acquireRequest(&t.clients, request)
	frame, payload, start := t.specs.acquireSpec(spec)
	var buffer [fixedMax + 2*binary.MaxVarintLen32]byte
	head := f.append(buffer[:0])
	head = binary.AppendUvarint(head, uint64(client))
	n := len(head)
	head = binary.AppendUvarint(head, uint64(frame))
	size := textSize(len(id)) + len(head) + textSize(len(count)) + len(payload) + len(start)
	if frame == 0 {
		size += textSize(len(spec)) - len(spec)
	}
	t.largest = max(t.largest, size+len(request)-len(count)+len(spec)-len(payload)-len(start))
	ref, b := t.alloc(size)
	b = appendString(b[:0], id)
	b = append(b, head[:n]...)
	b = appendString(b, count)
	b = append(b, head[n:]...)
	if frame == 0 {
		appendString(b, spec)
	} else {
		own := b[len(b):size]
		copy(own[copy(own, payload):], start)
	}
	return ref
}

// textSize is what appendString needs.
func textSize(n int) int {
	return (bits.Len64(uint64(n)|1)+6)/7 + n
}

func (t *texts) alloc(size int) (textRef, []byte) {
	units := (size + unit - 1) / unit
	t.bytes += units * unit
	if units > smallUnits {
		return t.allocLarge(size)
	}
	if ref := t.free[units]; ref != 0 {
		b := t.cell(ref, units)
		t.free[units] = textRef(binary.LittleEndian.Uint32(b))
		return ref, b
	}
	if len(t.pages) == 0 || t.next+units > pageUnits {
		if len(t.pages) == pagesMost {
			return t.allocLarge(size)
		}
		t.pages = append(t.pages, make([]byte, pageUnits*unit))
		t.next = 0
		if len(t.pages) == 1 {
			t.next = 1 // ref 0 is none
		}
	}
	ref := textRef((len(t.pages)-1)*pageUnits + t.next)
	t.next += units
	return ref, t.cell(ref, units)
}

func (t *texts) allocLarge(size int) (textRef, []byte) {
	b := make([]byte, size)
	if n := len(t.gaps); n > 0 {
		ref := t.gaps[n-1]
		t.gaps = t.gaps[:n-1]
		t.large[ref&^largeRef] = b
		return ref, b
	}
	t.large = append(t.large, b)
	return textRef(len(t.large)-1) | largeRef, b
}

func (t *texts) cell(ref textRef, units int) []byte {
	from := int(ref%pageUnits) * unit
	to := from + units*unit
	return t.pages[ref/pageUnits][from:to:to]
}

// remove gives a text's memory back. What get returned of it must not be used any more.
func (t *texts) remove(ref textRef) {
	size, client, frame := t.measure(ref)
	t.clients.release(client)
	t.specs.release(frame)
	units := (size + unit - 1) / unit
	t.bytes -= units * unit
	if ref&largeRef != 0 {
		t.large[ref&^largeRef] = nil
		t.gaps = append(t.gaps, ref)
		return
	}
	binary.LittleEndian.PutUint32(t.cell(ref, units), uint32(t.free[units]))
	t.free[units] = ref
}

// measure returns the length of a text, and its frames.
func (t *texts) measure(ref textRef) (size int, client, frame frameRef) {
	b := t.at(ref)
	_, rest := cutText(b)
	_, rest = cutFixed(rest)
	client, _, rest = cutRequest(rest)
	frame, _, _, rest = cutSpec(rest)
	return len(b) - len(rest), client, frame
}

// get returns id and spec of a text, where they lie: they are the caller's to read until the text is removed.
func (t *texts) get(ref textRef) (id []byte, f fixed, s framed) {
	id, b := cutText(t.at(ref))
	f, b = cutFixed(b)
	_, _, b = cutRequest(b)
	frame, own, start, _ := cutSpec(b)
	return id, f, t.specs.framed(frame, own, start)
}

// request returns that part alone.
func (t *texts) request(ref textRef) framed {
	_, b := cutText(t.at(ref))
	_, b = cutFixed(b)
	client, own, _ := cutRequest(b)
	return t.clients.framed(client, own, nil)
}

// id returns the first part alone.
func (t *texts) id(ref textRef) []byte {
	id, _ := cutText(t.at(ref))
	return id
}

// fixed returns the second one alone.
func (t *texts) fixed(ref textRef) fixed {
	_, b := cutText(t.at(ref))
	f, _ := cutFixed(b)
	return f
}

// order returns the first of what is fixed.
func (t *texts) order(ref textRef) uint64 {
	_, b := cutText(t.at(ref))
	order, _ := cutUvarint(b)
	return order
}

func (t *texts) at(ref textRef) []byte {
	if ref&largeRef != 0 {
		return t.large[ref&^largeRef]
	}
	return t.pages[ref/pageUnits][int(ref%pageUnits)*unit:]
}

// cutText takes a part off the front.
func cutText(b []byte) (part, rest []byte) {
	n, size := uint64(b[0]), 1
	if n >= 0x80 {
		n, size = binary.Uvarint(b)
	}
	end := size + int(n)
	return b[size:end:end], b[end:]
}

func cutRequest(b []byte) (client frameRef, own, rest []byte) {
	n, b := cutUvarint(b)
	own, rest = cutText(b)
	return frameRef(n), own, rest
}

// cutSpec takes off a payload with its length, and a start; without a frame, the whole.
func cutSpec(b []byte) (frame frameRef, own, start, rest []byte) {
	n, b := cutUvarint(b)
	own, rest = cutText(b)
	if n == 0 {
		return 0, own, nil, rest
	}
	own = b[: len(b)-len(rest) : len(b)-len(rest)]
	b = rest
	_, rest = cutUvarint(b)
	return frameRef(n), own, b[: len(b)-len(rest) : len(b)-len(rest)], rest
}
