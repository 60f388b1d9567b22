package engine

import (
	"encoding/binary"
	"math/bits"
)

// texts holds the variable-length data of jobs. The text of a job has its id, its fixed fields, the request of its last command
// and its spec; what many of the latter two have in common is kept once (templates), and times as distances from the start of the job's
// plan, which lies in its entry (job.from). Texts lie in pages without pointers, so that the garbage collector has as little to do
// with a million jobs as with none. A text costs no more than its length and, on average, half a unit.
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

// append adds the fields to b, with times as distances from from.
func (f *fixed) append(b []byte, from int64) []byte {
	b = binary.AppendUvarint(b, f.order)
	b = binary.AppendUvarint(b, f.version)
	b = binary.AppendVarint(b, f.accepted-from)
	b = binary.AppendUvarint(b, f.put)
	return binary.AppendUvarint(b, uint64(f.index))
}

// cutFixed takes the fixed fields off the front of b.
func cutFixed(b []byte, from int64) (f fixed, rest []byte) {
	f.order, b = cutUvarint(b)
	f.version, b = cutUvarint(b)
	f.accepted, b = cutVarint(b)
	f.accepted += from
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

func cutVarint(b []byte) (v int64, rest []byte) {
	u, rest := cutUvarint(b)
	return int64(u>>1) ^ -int64(u&1), rest // zigzag, as in binary.Varint
}

// addText stores a text: the id and the fixed fields, then request and spec, each as the number of its template and what is not in
// the template. That number is shifted by one bit, which says of a request whether the rest is a count, and of a spec whether there is a
// start.
func addText[A, B ~string | ~[]byte](t *texts, id A, f fixed, from int64, request B, spec []byte) textRef {
	client, rest := acquireRequest(&t.clients, request)
	count, counted := parseCount(rest)
	tmpl, payload, start := t.specs.acquireSpec(spec)

	var buffer [fixedMax + 4*binary.MaxVarintLen64]byte
	head := f.append(buffer[:0], from)
	head = appendTemplate(head, client, counted)
	if counted {
		head, rest = binary.AppendUvarint(head, count), rest[:0]
	} else {
		head = binary.AppendUvarint(head, uint64(len(rest)))
	}
	n := len(head) // the rest of the request stands here
	head = appendTemplate(head, tmpl, start != 0)
	switch {
	case tmpl == 0:
		head = binary.AppendUvarint(head, uint64(len(spec)))
	case start != 0:
		head = binary.AppendVarint(head, start-from)
	}
	size := textSize(len(id)) + len(head) + len(rest) + len(payload)
	t.largest = max(t.largest, size+len(request)+len(spec)-len(payload))
	ref, b := t.alloc(size)
	b = append(appendString(b[:0], id), head[:n]...)
	b = append(append(b, rest...), head[n:]...)
	copy(b[len(b):size], payload)
	return ref
}

func appendTemplate(b []byte, ref templateRef, flag bool) []byte {
	n := uint64(ref) << 1
	if flag {
		n |= 1
	}
	return binary.AppendUvarint(b, n)
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
	_, rest = cutFixed(rest, 0)
	client, rest = skipRequest(rest)
	tmpl, _, _, rest = cutSpec(rest, 0)
	return len(b) - len(rest), client, tmpl
}

// get returns id, fixed fields and spec of a text. Id and spec are not copied: they may be read until the text is removed.
func (t *texts) get(ref textRef, from int64) (id []byte, f fixed, s specParts) {
	id, b := cutText(t.at(ref))
	f, b = cutFixed(b, from)
	_, b = skipRequest(b)
	tmpl, payload, start, _ := cutSpec(b, from)
	return id, f, t.specs.parts(tmpl, payload, start)
}

// appendRequest adds the request to b.
func (t *texts) appendRequest(b []byte, ref textRef) []byte {
	_, rest := cutText(t.at(ref))
	_, rest = cutFixed(rest, 0)
	client, counted, rest := cutTemplate(rest)
	b = append(b, t.clients.all[client].ends...)
	if counted {
		count, _ := cutUvarint(rest)
		return appendCount(b, count)
	}
	own, _ := cutText(rest)
	return append(b, own...)
}

// id returns the id alone.
func (t *texts) id(ref textRef) []byte {
	id, _ := cutText(t.at(ref))
	return id
}

// fixed returns the fixed fields alone.
func (t *texts) fixed(ref textRef, from int64) fixed {
	_, b := cutText(t.at(ref))
	f, _ := cutFixed(b, from)
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

// cutTemplate takes off what appendTemplate added.
func cutTemplate(b []byte) (ref templateRef, flag bool, rest []byte) {
	n, rest := cutUvarint(b)
	return templateRef(n >> 1), n&1 != 0, rest
}

// skipRequest takes a request off the front of b.
func skipRequest(b []byte) (client templateRef, rest []byte) {
	client, counted, rest := cutTemplate(b)
	if counted {
		_, rest = cutUvarint(rest)
	} else {
		_, rest = cutText(rest)
	}
	return client, rest
}

// cutSpec takes a spec off the front of b. With a template, payload has its length in front; without one (template 0), it is the whole
// spec.
func cutSpec(b []byte, from int64) (tmpl templateRef, payload []byte, start int64, rest []byte) {
	tmpl, started, b := cutTemplate(b)
	if started {
		start, b = cutVarint(b)
		start += from
	}
	payload, rest = cutText(b)
	if tmpl != 0 {
		end := len(b) - len(rest)
		payload = b[:end:end]
	}
	return tmpl, payload, start, rest
}
