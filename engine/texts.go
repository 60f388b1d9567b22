package engine

import (
	"encoding/binary"
	"math/bits"
)

// texts holds the variable-length data of jobs. The text of a job has its id, its fixed fields, the request of its last command
// and its spec; what many of the latter two have in common is kept once (templates). Texts lie in pages without pointers, so
// that the garbage collector has as little to do with a million jobs as with none. A text costs no more than its length and,
// on average, half a unit.
//
// Freed cells are used again for texts of their own size only: the sizes of jobs seldom change much over time,
// and so nothing has to be moved.
type texts struct {
	pages     [][]byte
	next      int                     // first unused unit of the last page
	free      [smallUnits + 1]textRef // the first free cell of each size in units; a free cell begins with the ref of the next
	large     [][]byte                // texts of more than smallUnits, or made when no page was left; nil: free
	freeLarge []textRef               // free places in large
	bytes     int                     // in use

	largest int // the size of the largest text so far, in bytes, with its templates
	specs   templates
	clients templates // the clients' parts of requests
}

// textRef names a text: the number of its first unit in the pages or, with largeRef, its place in large. 0
// names no text.
type textRef uint32

const (
	unit       = 4       // bytes
	pageUnits  = 1 << 16 // 256 KiB
	smallUnits = 1024    // 4 KiB
	largeRef   = 1 << 31
	pagesMost  = largeRef / pageUnits // 8 GiB
)

// fixed has the fields that do not change while a job keeps its version. They are needed together with the texts, or seldom, so
// they lie there.
type fixed struct {
	order    uint64 // of creation, in this partition
	version  uint64
	accepted int64  // when this version was, ms
	put      uint64 // sequence of the put that made this version; with index the key of its spec
	index    uint16
}

// fixedMax is the most that fixed.append adds, in bytes.
const fixedMax = 4*binary.MaxVarintLen64 + binary.MaxVarintLen16

func (f *fixed) append(b []byte) []byte {
	b = binary.AppendUvarint(b, f.order)
	b = binary.AppendUvarint(b, f.version)
	b = binary.AppendVarint(b, f.accepted)
	b = binary.AppendUvarint(b, f.put)
	return binary.AppendUvarint(b, uint64(f.index))
}

// cutFixed takes the fixed fields off the front of b.
func cutFixed(b []byte) (f fixed, rest []byte) {
	f.order, b = cutUvarint(b)
	f.version, b = cutUvarint(b)
	accepted, b := cutUvarint(b)
	f.accepted = int64(accepted>>1) ^ -int64(accepted&1) // zigzag, as in binary.Varint
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

// addText stores a text: the id and the fixed fields, then request and spec, each as the number of its template and what is not in
// the template.
func addText[A, B ~string | ~[]byte](t *texts, id A, f fixed, request B, spec []byte) textRef {
	client, count := acquireRequest(&t.clients, request)
	tmpl, payload, start := t.specs.acquireSpec(spec)
	var buffer [fixedMax + 2*binary.MaxVarintLen32]byte
	head := f.append(buffer[:0])
	head = binary.AppendUvarint(head, uint64(client))
	n := len(head)
	head = binary.AppendUvarint(head, uint64(tmpl))
	size := textSize(len(id)) + len(head) + textSize(len(count)) + len(payload) + len(start)
	if tmpl == 0 {
		size += textSize(len(spec)) - len(spec)
	}
	t.largest = max(t.largest, size+len(request)-len(count)+len(spec)-len(payload)-len(start))
	ref, b := t.alloc(size)
	b = appendString(b[:0], id)
	b = append(b, head[:n]...)
	b = appendString(b, count)
	b = append(b, head[n:]...)
	if tmpl == 0 {
		appendString(b, spec)
	} else {
		own := b[len(b):size]
		copy(own[copy(own, payload):], start)
	}
	return ref
}

// textSize is how many bytes appendString adds for n bytes.
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
	if n := len(t.freeLarge); n > 0 {
		ref := t.freeLarge[n-1]
		t.freeLarge = t.freeLarge[:n-1]
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

// remove frees a text. What get returned of it must not be used any more.
func (t *texts) remove(ref textRef) {
	size, client, tmpl := t.measure(ref)
	t.clients.release(client)
	t.specs.release(tmpl)
	units := (size + unit - 1) / unit
	t.bytes -= units * unit
	if ref&largeRef != 0 {
		t.large[ref&^largeRef] = nil
		t.freeLarge = append(t.freeLarge, ref)
		return
	}
	binary.LittleEndian.PutUint32(t.cell(ref, units), uint32(t.free[units]))
	t.free[units] = ref
}

// measure returns the length of a text, and its templates.
func (t *texts) measure(ref textRef) (size int, client, tmpl templateRef) {
	b := t.at(ref)
	_, rest := cutText(b)
	_, rest = cutFixed(rest)
	client, _, rest = cutRequest(rest)
	tmpl, _, _, rest = cutSpec(rest)
	return len(b) - len(rest), client, tmpl
}

// get returns id, fixed fields and spec of a text. Id and spec are not copied: they may be read until the text is removed.
func (t *texts) get(ref textRef) (id []byte, f fixed, s textParts) {
	id, b := cutText(t.at(ref))
	f, b = cutFixed(b)
	_, _, b = cutRequest(b)
	tmpl, own, start, _ := cutSpec(b)
	return id, f, t.specs.parts(tmpl, own, start)
}

// request returns the request alone.
func (t *texts) request(ref textRef) textParts {
	_, b := cutText(t.at(ref))
	_, b = cutFixed(b)
	client, own, _ := cutRequest(b)
	return t.clients.parts(client, own, nil)
}

// id returns the id alone.
func (t *texts) id(ref textRef) []byte {
	id, _ := cutText(t.at(ref))
	return id
}

// fixed returns the fixed fields alone.
func (t *texts) fixed(ref textRef) fixed {
	_, b := cutText(t.at(ref))
	f, _ := cutFixed(b)
	return f
}

// order returns the first of the fixed fields.
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

// cutText takes a length-prefixed part off the front of b.
func cutText(b []byte) (part, rest []byte) {
	n, size := uint64(b[0]), 1
	if n >= 0x80 {
		n, size = binary.Uvarint(b)
	}
	end := size + int(n)
	return b[size:end:end], b[end:]
}

func cutRequest(b []byte) (client templateRef, own, rest []byte) {
	n, b := cutUvarint(b)
	own, rest = cutText(b)
	return templateRef(n), own, rest
}

// cutSpec takes a spec off the front of b. With a template, own is the payload with its length, and start the job's start; without
// one (template 0), own is the whole spec.
func cutSpec(b []byte) (tmpl templateRef, own, start, rest []byte) {
	n, b := cutUvarint(b)
	own, rest = cutText(b)
	if n == 0 {
		return 0, own, nil, rest
	}
	own = b[: len(b)-len(rest) : len(b)-len(rest)]
	b = rest
	_, rest = cutUvarint(b)
	return templateRef(n), own, b[: len(b)-len(rest) : len(b)-len(rest)], rest
}
