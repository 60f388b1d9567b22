package engine

import "github.com/cespare/xxhash/v2"

// frames keeps once what the specs of many jobs say alike: topic and headers in front of the payload; schedule, zone, owner and
// labels behind it. A job then has its payload, and the numbers that stand next to that.
//
// A spec's ends become a frame when they come for the second time of late: jobs that have nothing in common with
// others, such as one-shots with a time each, get none, and pay nothing for it.
type frames struct {
	byEnds map[string]frameRef
	all    []frame // from 1
	free   []frameRef
	late   [256]uint32 // of the ends that came of late and have no frame: half of their hash, at the place that the other half says
	ends   []byte
}

// frame is the two ends of some jobs' specs.
type frame struct {
	ends  string
	front int // length of the first
	jobs  int // 0: free
}

// frameRef is a place among the frames; 0 is none.
type frameRef uint32

// framed is a spec in parts.
type framed struct {
	front  string
	middle []byte
	back   string
}

func (s *framed) append(b []byte) []byte {
	return append(append(append(b, s.front...), s.middle...), s.back...)
}

func (x *frames) init() {
	x.byEnds = make(map[string]frameRef)
	x.all = make([]frame, 1)
}

// acquire returns the frame that a spec fits into, and what is not in it.
func (x *frames) acquire(spec []byte) (ref frameRef, middle []byte) {
	front, back, ok := endsOf(spec)
	if !ok {
		return 0, spec
	}
	x.ends = append(append(x.ends[:0], spec[:front]...), spec[back:]...)
	ref, known := x.byEnds[string(x.ends)]
	if !known {
		h := xxhash.Sum64(x.ends)
		if last := &x.late[h%uint64(len(x.late))]; *last != uint32(h>>32) {
			*last = uint32(h >> 32)
			return 0, spec
		}
		ref = x.add(frame{ends: string(x.ends), front: front})
	}
	x.all[ref].jobs++
	return ref, spec[front:back]
}

func (x *frames) add(f frame) (ref frameRef) {
	if n := len(x.free); n > 0 {
		ref = x.free[n-1]
		x.free = x.free[:n-1]
		x.all[ref] = f
	} else {
		ref = frameRef(len(x.all))
		x.all = append(x.all, f)
	}
	x.byEnds[f.ends] = ref
	return ref
}

// release is told that a job has it no more.
func (x *frames) release(ref frameRef) {
	if ref == 0 {
		return
	}
	f := &x.all[ref]
	if f.jobs--; f.jobs > 0 {
		return
	}
	delete(x.byEnds, f.ends)
	*f = frame{}
	x.free = append(x.free, ref)
}

// frame returns a spec in its parts.
func (x *frames) frame(ref frameRef, middle []byte) framed {
	f := &x.all[ref]
	return framed{front: f.ends[:f.front], middle: middle, back: f.ends[f.front:]}
}

// endsOf says where the first end of a spec ends, and where the second begins.
func endsOf(spec []byte) (front, back int, ok bool) {
	d := decoder{b: spec}
	d.byte()  // version
	d.bytes() // topic
	d.bytes() // header lines
	front = len(spec) - len(d.b)
	d.bytes() // payload
	for range 5 {
		d.byte()
	}
	for range 4 { // most fires, spread, expires, start
		d.uvarint()
	}
	return front, len(spec) - len(d.b), d.err == nil
}
