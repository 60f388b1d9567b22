package engine

import (
	"encoding/binary"
	"strconv"

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

// specParts is a spec in parts, in the order of the fields. A spec without a template is all payload.
type specParts struct {
	front   string
	payload []byte // with its length
	middle  string
	start   int64 // unix ms; of no meaning without a template
	back    string
}

func (s *specParts) append(b []byte) []byte {
	b = append(append(b, s.front...), s.payload...)
	if s.front == "" {
		return b
	}
	return append(binary.AppendVarint(append(b, s.middle...), s.start), s.back...)
}

// withoutPayload decodes a spec, except its payload, of which nothing is copied.
func (s *specParts) withoutPayload() (carillon.Job, error) {
	if s.front == "" {
		j, err := decodeSpec(s.payload)
		j.Payload = nil
		return j, err
	}
	rest := *s
	rest.payload = []byte{0} // an empty one
	return decodeSpec(rest.append(nil))
}

func (x *templates) init() {
	x.byEnds = make(map[string]templateRef)
	x.all = make([]template, 1)
}

// acquireSpec returns the template that a spec fits into, and the parts that are not in it, the payload with its length, the start in unix
// ms; without a template (0), payload is the whole spec.
func (x *templates) acquireSpec(spec []byte) (ref templateRef, payload []byte, start int64) {
	at, ok := cutsOf(spec)
	if !ok {
		return 0, spec, 0
	}
	x.ends = append(append(append(x.ends[:0], spec[:at.payload]...), spec[at.middle:at.start]...), spec[at.back:]...)
	middle := at.payload
	if ref = x.acquire(middle, middle+at.start-at.middle); ref == 0 {
		return 0, spec, 0
	}
	start, _ = binary.Varint(spec[at.start:at.back])
	return ref, spec[at.payload:at.middle], start
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

// parts puts the own parts of a spec into its template.
func (x *templates) parts(ref templateRef, payload []byte, start int64) specParts {
	f := &x.all[ref]
	return specParts{front: f.ends[:f.middle], payload: payload, middle: f.ends[f.middle:f.back], start: start, back: f.ends[f.back:]}
}

// countMost is the most digits of a count: with more, a number may not fit into 64 bits.
const countMost = 12

// parseCount reads a number as the Go client counts its commands: in base 36, in lower case and without zeros in front.
func parseCount[T ~string | ~[]byte](digits T) (n uint64, ok bool) {
	if len(digits) == 0 || len(digits) > countMost || digits[0] == '0' && len(digits) > 1 {
		return 0, false
	}
	for i := range len(digits) {
		switch c := digits[i]; {
		case '0' <= c && c <= '9':
			n = n*36 + uint64(c-'0')
		case 'a' <= c && c <= 'z':
			n = n*36 + uint64(c-'a'+10)
		default:
			return 0, false
		}
	}
	return n, true
}

// appendCount is the inverse of parseCount.
func appendCount(b []byte, n uint64) []byte { return strconv.AppendUint(b, n, 36) }

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
	start := d.varint()
	at.back = here()
	canonical := at.back-at.start == len(binary.AppendVarint(nil, start))
	return at, d.err == nil && canonical
}
