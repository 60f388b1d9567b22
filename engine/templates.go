package engine

import (
	"github.com/cespare/xxhash/v2"

	"github.com/carillon-scheduler/carillon"
)

// templates stores once what many texts have in common. Of a job's spec that is topic and headers in front of the payload; what is
// between payload and start; and end, schedule, zone, owner and labels behind the start. The job then has only its payload, its start,
// and the number of its template. Of a request it is the client's part in front (acquireRequest).
//
// The common parts of a text are its ends. Ends get a template when they come for the fourth time in recent puts, because a template costs
// about what four to six texts save by it. So jobs that have nothing in common with others, such as one-shots with a time each, get none,
// and pay nothing.
type templates struct {
	byEnds map[string]templateRef
	all    []template // by templateRef; the first is not used
	free   []templateRef
	recent [1024]uint32 // hashes of recent ends without a template: half of the hash is the place, half the value, whose lowest bits count
	ends   []byte       // memory for the ends that are looked for
}

// template is what some jobs' texts have around their own parts.
type template struct {
	ends   string // front, middle and back in one
	middle int    // where in ends the middle begins
	back   int    // where in ends the back begins, which follows the start
	jobs   int    // that use it; 0: free
}

// templateRef is a place among the templates; 0 is none.
type templateRef uint32

// textParts is a text in parts, in the order of the fields. A text without a template is all own.
type textParts struct {
	front  string
	own    []byte // of a spec: the payload, with its length
	middle string
	start  []byte
	back   string
}

func (s *textParts) append(b []byte) []byte {
	b = append(append(b, s.front...), s.own...)
	return append(append(append(b, s.middle...), s.start...), s.back...)
}

// withoutPayload decodes a spec, except its payload, of which nothing is copied.
func (s *textParts) withoutPayload() (carillon.Job, error) {
	if s.front == "" {
		j, err := decodeSpec(s.own)
		j.Payload = nil
		return j, err
	}
	rest := textParts{s.front, []byte{0}, s.middle, s.start, s.back} // with an empty payload
	return decodeSpec(rest.append(nil))
}

func (x *templates) init() {
	x.byEnds = make(map[string]templateRef)
	x.all = make([]template, 1)
}

// acquireSpec returns the template that a spec fits into, and the parts that are not in it; without a template (0), payload is the whole
// spec.
func (x *templates) acquireSpec(spec []byte) (ref templateRef, payload, start []byte) {
	at, ok := cutsOf(spec)
	if !ok {
		return 0, spec, nil
	}
	x.ends = append(append(append(x.ends[:0], spec[:at.payload]...), spec[at.middle:at.start]...), spec[at.back:]...)
	middle := at.payload
	if ref = x.acquire(middle, middle+at.start-at.middle); ref == 0 {
		return 0, spec, nil
	}
	return ref, spec[at.payload:at.middle], spec[at.start:at.back]
}

// templateAt is how often ends must come to get a template, a power of two.
const templateAt = 4

// clientLeast is how many bytes a client's part must have to be worth a template.
const clientLeast = 8

// acquireRequest returns the template of a request's client, and the part that is not in it. The Go client makes a request id of its
// own name, a dash and a count; so the client's part is what goes up to the last dash.
func acquireRequest[T ~string | ~[]byte](x *templates, request T) (ref templateRef, own T) {
	n := len(request)
	for n > 0 && request[n-1] != '-' {
		n--
	}
	if n < clientLeast {
		return 0, request
	}
	x.ends = append(x.ends[:0], request[:n]...)
	if ref = x.acquire(n, n); ref == 0 {
		return 0, request
	}
	return ref, request[n:]
}

// acquire returns the template of the ends in x.ends; 0 if they are not worth one.
func (x *templates) acquire(middle, back int) templateRef {
	ref, known := x.byEnds[string(x.ends)]
	if !known {
		if x.seldom() {
			return 0
		}
		ref = x.add(template{ends: string(x.ends), middle: middle, back: back})
	}
	x.all[ref].jobs++
	return ref
}

// seldom counts that the ends in x.ends came once more, and tells whether that was not yet often enough for a template.
func (x *templates) seldom() bool {
	const times = templateAt - 1 // mask of the bits that count
	h := xxhash.Sum64(x.ends)
	last := &x.recent[h%uint64(len(x.recent))]
	switch ends := uint32(h>>32) &^ times; {
	case *last&^times != ends:
		*last = ends | 1
	case *last&times < times:
		*last++
	default:
		*last = 0
		return false
	}
	return true
}

func (x *templates) add(f template) (ref templateRef) {
	if n := len(x.free); n > 0 {
		ref = x.free[n-1]
		x.free = x.free[:n-1]
		x.all[ref] = f
	} else {
		ref = templateRef(len(x.all))
		x.all = append(x.all, f)
	}
	x.byEnds[f.ends] = ref
	return ref
}

// release notes that a job no longer uses a template.
func (x *templates) release(ref templateRef) {
	if ref == 0 {
		return
	}
	f := &x.all[ref]
	if f.jobs--; f.jobs > 0 {
		return
	}
	delete(x.byEnds, f.ends)
	*f = template{}
	x.free = append(x.free, ref)
}

// parts puts a text's own parts into its template.
func (x *templates) parts(ref templateRef, own, start []byte) textParts {
	f := &x.all[ref]
	return textParts{front: f.ends[:f.middle], own: own, middle: f.ends[f.middle:f.back], start: start, back: f.ends[f.back:]}
}

// cuts are where the parts of a spec begin.
type cuts struct{ payload, middle, start, back int }

func cutsOf(spec []byte) (at cuts, ok bool) {
	d := decoder{b: spec}
	here := func() int { return len(spec) - len(d.b) }
	d.byte()  // version
	d.bytes() // topic
	d.bytes() // header lines
	at.payload = here()
	d.bytes()
	at.middle = here()
	for range 5 {
		d.byte()
	}
	for range 3 { // most fires, spread, expires
		d.uvarint()
	}
	at.start = here()
	d.uvarint()
	at.back = here()
	return at, d.err == nil
}
