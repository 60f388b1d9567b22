package engine

import (
	"encoding/binary"
	"math/bits"
)

// texts holds what a job has of bytes: its id, the request of its last command and its spec. They lie in
// pages without pointers, so that a million jobs are as little work for the garbage collector as none, and
// cost no more than their length and half a unit each.
//
// Freed cells are used again for texts of their own size only: sizes of jobs seldom differ much over time,
// and nothing has to be moved.
type texts struct {
	pages [][]byte
	next  int                     // unused units of the last page begin here
	free  [smallUnits + 1]textRef // first free cell of each size; its first bytes are the next one's ref
	large [][]byte                // texts of more than smallUnits; nil: free
	gaps  []textRef               // free places in large
	bytes int                     // in use

	largest int // of all that ever came, in bytes
}

// textRef names a text: the number of its first unit in the pages or, with largeRef, its place in large. 0
// is no text.
type textRef uint32

const (
	unit       = 8       // bytes
	pageUnits  = 1 << 17 // 1 MiB
	smallUnits = 512     // 4 KiB
	largeRef   = 1 << 31
)

// addText stores a text: its three parts, each after its length.
func addText[A, B, C ~string | ~[]byte](t *texts, id A, request B, s C) textRef {
	size := textSize(len(id)) + textSize(len(request)) + textSize(len(s))
	ref, b := t.alloc(size)
	b = appendString(b[:0], id)
	b = appendString(b, request)
	appendString(b, s)
	return ref
}

// textSize is what appendString needs.
func textSize(n int) int {
	return (bits.Len64(uint64(n)|1)+6)/7 + n
}

func (t *texts) alloc(size int) (textRef, []byte) {
	units := (size + unit - 1) / unit
	t.bytes += units * unit
	t.largest = max(t.largest, size)
	if units > smallUnits {
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
	if ref := t.free[units]; ref != 0 {
		b := t.cell(ref, units)
		t.free[units] = textRef(binary.LittleEndian.Uint32(b))
		return ref, b
	}
	if len(t.pages) == 0 || t.next+units > pageUnits {
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

func (t *texts) cell(ref textRef, units int) []byte {
	from := int(ref%pageUnits) * unit
	to := from + units*unit
	return t.pages[ref/pageUnits][from:to:to]
}

// remove gives a text's memory back. What get returned of it must not be used any more.
func (t *texts) remove(ref textRef) {
	id, request, s := t.get(ref)
	units := (textSize(len(id)) + textSize(len(request)) + textSize(len(s)) + unit - 1) / unit
	t.bytes -= units * unit
	if ref&largeRef != 0 {
		t.large[ref&^largeRef] = nil
		t.gaps = append(t.gaps, ref)
		return
	}
	binary.LittleEndian.PutUint32(t.cell(ref, units), uint32(t.free[units]))
	t.free[units] = ref
}

// get returns the parts of a text, where they lie: they are the caller's to read until the text is removed.
func (t *texts) get(ref textRef) (id, request []byte, s []byte) {
	b := t.at(ref)
	id, b = cutText(b)
	request, b = cutText(b)
	s, _ = cutText(b)
	return id, request, s
}

// id returns the first part alone.
func (t *texts) id(ref textRef) []byte {
	id, _ := cutText(t.at(ref))
	return id
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
