package engine

import (
	"bytes"
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/google/btree"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine/schedule"
	"github.com/carillon-scheduler/carillon/wheel"
)

type status uint8

const (
	statusFree      status = iota // the slot holds no job
	statusScheduled               // its next fire is on the wheel or ready, or it has no schedule
	statusPaused
	statusCompleted
	statuses
)

var statusNames = [statuses]string{"", "scheduled", "paused", "completed"}

// A job's place says where its next turn waits.
type place uint8

const (
	nowhere place = iota
	onWheel
	inReady
	inLater // in memory, but beyond the window of what is on the wheel (residence)
)

// job is one job's state, without its texts and its fixed fields. A job waits in one place only: with its earliest fire not yet
// decided. The fires after it are computed when its turn comes. A job holds no pointer, and fields that few jobs have are kept
// apart, in extra. So it fills exactly one line of the cache (TestJobIsALine).
type job struct {
	text  textRef // id, fixed fields, request of the last applied command, spec
	extra uint32  // index of its extra fields; 0: it has none
	expr  exprRef

	timer wheel.ID
	entry uint32 // its latest entry in a generation of changes; noEntry: none

	status status
	place  place
	rank   uint8 // 0 goes first
	terms  terms

	from  int64 // start of its plan, ms; its text has times as distances from it
	next  int64 // the earliest fire not yet decided, ms; of a completed job: when it completed
	last  int64 // the latest fire decided, ms; 0: none
	fires uint64
	armed uint64 // order of arming; of a completed job: order of completion
}

// terms are what a job's turns need of its spec besides the plan, in a byte, so that a job fits into its line: the policy for missed fires
// in the lowest two bits, and above them about how long the spec is. That length must follow from the spec alone: what its text takes
// depends on which jobs were in memory before (templates).
type terms uint8

// Lengths are counted in units of lengthUnit bytes: up to eight by themselves, and above that as a power of two times 4, 5, 6 or 7.
const lengthUnit = 16

func termsOf(m carillon.Misfire, spec int) terms {
	n := uint(spec / lengthUnit)
	e := max(bits.Len(n)-3, 0)
	return terms(m) | terms(min(4*e+int(n>>e), math.MaxUint8>>2))<<2
}

func (t terms) misfire() carillon.Misfire { return carillon.Misfire(t & 3) }

// specBytes is about how many bytes the spec has: at most a fifth, or 15 bytes, fewer than it has.
func (t terms) specBytes() int {
	n := int(t >> 2)
	if e := n/4 - 1; e > 0 {
		n = (4 + n%4) << e
	}
	return n * lengthUnit
}

// extra has the fields that few jobs need.
type extra struct {
	end, offset int64 // of the plan, ms
	maxFires    uint64
	expires     int64 // ms
	skipped     uint64

	// While fires are being counted, which may take several turns: how many so far, and the first of them.
	counted      uint64
	countedFirst int64
	skipTo       int64 // fires up to this time were missed while the job was paused; 0: none
	recovery           // for fires missed before the job was restored
}

const none = math.MaxInt64

const (
	chunkBits  = 10
	chunkSlots = 1 << chunkBits
)

// jobTable holds the jobs in slots that never move, finds them by id, and walks them in order of id.
type jobTable struct {
	byHash index // of ids
	byID   *btree.BTreeG[uint32]
	chunks []*[chunkSlots]job
	free   []uint32
	used   uint32 // slots ever handed out
	probe  []byte // the id that probeSlot stands for in comparisons

	texts         texts
	specBuffer    []byte   // memory for the answer of spec
	requestBuffer []byte   // memory for the answer of request
	extras        []extra  // by job.extra; 0 is empty
	freeExtras    []uint32 // free places in extras
	exprs         exprs
}

// orderDegree makes nodes of some thousand slots. A degree of 64 was as fast, but after a million puts 16,000 small nodes were left
// on pages of the heap with little else on them: 5 MB. For the same reason the tree keeps one free node, not 32.
const orderDegree = 2048

// probeSlot is not a job's slot. It stands for the id in probe, so that the tree can be searched for an id that has no slot.
const probeSlot = math.MaxUint32

func (t *jobTable) init() {
	t.byHash = newIndex()
	less := func(a, b uint32) bool { return bytes.Compare(t.idAt(a), t.idAt(b)) < 0 }
	t.byID = btree.NewWithFreeListG(orderDegree, less, btree.NewFreeListG[uint32](1))
	t.extras = make([]extra, 1)
	t.exprs.init()
	t.texts.specs.init()
	t.texts.clients.init()
}

func (t *jobTable) idAt(slot uint32) []byte {
	if slot == probeSlot {
		return t.probe
	}
	return t.id(t.at(slot))
}

func (t *jobTable) fixed(j *job) fixed { return t.texts.fixed(j.text, j.from) }

// text returns id, fixed fields and spec; id and spec are valid until the job's texts change.
func (t *jobTable) text(j *job) (id []byte, f fixed, s specParts) { return t.texts.get(j.text, j.from) }

// id is valid until the job's texts change.
func (t *jobTable) id(j *job) []byte { return t.texts.id(j.text) }

// request is valid until the next call.
func (t *jobTable) request(j *job) []byte {
	t.requestBuffer = t.texts.appendRequest(t.requestBuffer[:0], j.text)
	return t.requestBuffer
}

// spec is valid until the next call.
func (t *jobTable) spec(j *job) []byte {
	_, _, s := t.text(j)
	t.specBuffer = s.append(t.specBuffer[:0])
	return t.specBuffer
}

func (t *jobTable) at(slot uint32) *job { return &t.chunks[slot>>chunkBits][slot&(chunkSlots-1)] }

// hashOf may differ between replicas and versions: it decides only where an id is found.
func hashOf[T string | []byte](id T) uint32 { return uint32(xxhash.Sum64String(string(id))) }

func (t *jobTable) find(id string) (uint32, *job) {
	for slot := range t.byHash.slots(hashOf(id)) {
		if j := t.at(slot); string(t.id(j)) == id {
			return slot, j
		}
	}
	return 0, nil
}

// add makes a new job, which has its texts, the start of its plan, and nothing else yet.
func (t *jobTable) add(id string, f fixed, from int64, request string, spec []byte) (uint32, *job) {
	slot, j := t.insert(addText(&t.texts, id, f, from, request, spec), from)
	t.byID.ReplaceOrInsert(slot)
	return slot, j
}

// insert gives a slot to a job whose text is stored. The caller has yet to put it into byID.
func (t *jobTable) insert(text textRef, from int64) (uint32, *job) {
	var slot uint32
	if n := len(t.free); n > 0 {
		slot = t.free[n-1]
		t.free = t.free[:n-1]
	} else {
		slot = t.used
		t.used++
		if int(slot>>chunkBits) == len(t.chunks) {
			t.chunks = append(t.chunks, new([chunkSlots]job))
		}
	}
	j := t.at(slot)
	*j = job{text: text, from: from, entry: noEntry}
	t.byHash.insert(hashOf(t.id(j)), slot)
	return slot, j
}

func (t *jobTable) remove(slot uint32) {
	t.byID.Delete(slot)
	j := t.at(slot)
	t.byHash.remove(hashOf(t.id(j)), slot)
	t.clear(j)
	t.texts.remove(j.text)
	*j = job{}
	t.free = append(t.free, slot)
}

// clear drops everything of a job except what stays when another version replaces it: its text, and its entry in the changes.
func (t *jobTable) clear(j *job) {
	t.exprs.release(j.expr)
	if j.extra != 0 {
		t.extras[j.extra] = extra{}
		t.freeExtras = append(t.freeExtras, j.extra)
	}
	*j = job{text: j.text, entry: j.entry}
}

// write replaces a job's texts, and the start of its plan.
func (t *jobTable) write(j *job, f fixed, from int64, request string, spec []byte) {
	before := j.text
	id := t.id(j)
	j.text, j.from = addText(&t.texts, id, f, from, request, spec), from
	t.texts.remove(before)
}

// applySpec sets the other fields of a job that follow from its spec, which has so many bytes.
func (t *jobTable) applySpec(j *job, want *carillon.Job, spec int, expr *schedule.Expr, plan schedule.Plan) {
	j.rank, j.terms = rankOf(want.Priority), termsOf(want.Misfire, spec)
	j.expr = t.exprs.acquire(keyOf(want), expr)
	if want.MaxFires > 0 || want.Expires > 0 {
		r := t.editExtra(j)
		r.maxFires, r.expires = want.MaxFires, want.Expires.Milliseconds()
	}
	_, end, offset := plan.Fields()
	if end != schedule.Horizon || offset != 0 {
		r := t.editExtra(j)
		r.end, r.offset = end, offset
	}
}

func (t *jobTable) plan(j *job) schedule.Plan {
	r := t.extras[j.extra]
	return t.exprs.at(j.expr).Plan(j.from, cmp.Or(r.end, schedule.Horizon), r.offset)
}

func (t *jobTable) kind(j *job) schedule.Kind { return t.exprs.at(j.expr).Kind() }

func (t *jobTable) recurring(j *job) bool {
	k := t.kind(j)
	return k == schedule.Every || k == schedule.Cron
}

// next is the job's first fire after a time.
func (t *jobTable) next(j *job, after int64) (at int64, ok bool) {
	return t.plan(j).NextWith(&t.exprs.all[j.expr].memo, after)
}

// editExtra returns a job's extra fields, to be changed; they are made if the job has none. Valid until the next call.
func (t *jobTable) editExtra(j *job) *extra {
	if j.extra == 0 {
		if n := len(t.freeExtras); n > 0 {
			j.extra = t.freeExtras[n-1]
			t.freeExtras = t.freeExtras[:n-1]
		} else {
			j.extra = uint32(len(t.extras))
			t.extras = append(t.extras, extra{})
		}
	}
	return &t.extras[j.extra]
}

// extra returns a job's extra fields, to be read only: nothing is made for a job that has none.
func (t *jobTable) extra(j *job) extra { return t.extras[j.extra] }

// from walks the jobs whose ids come at or after id, in order.
func (t *jobTable) from(id string, yield func(slot uint32, j *job) bool) {
	t.probe = []byte(id)
	t.byID.AscendGreaterOrEqual(probeSlot, func(slot uint32) bool { return yield(slot, t.at(slot)) })
}

// completion is an entry in the queue of completed jobs. It is stale once the slot holds another job, or the job is no longer
// completed as this number.
type completion struct {
	slot   uint32
	number uint64
}

// fifo is a queue of completions.
type fifo struct {
	items []completion
	head  int
}

func (q *fifo) push(c completion) { q.items = append(q.items, c) }
func (q *fifo) len() int          { return len(q.items) - q.head }
func (q *fifo) first() completion { return q.items[q.head] }

// keptCapacity is up to how many entries a list or map keeps its memory once it is empty: the next burst need not allocate it again,
// but an engine at rest does not keep all that the largest burst took.
const keptCapacity = 1 << 16

// fifoSlack is how many stale entries are too few to be worth a walk.
const fifoSlack = 1024

// drop removes the useless entries.
func (q *fifo) drop(useless func(completion) bool) {
	q.items = slices.DeleteFunc(append(q.items[:0], q.items[q.head:]...), useless)
	q.head = 0
}

func (q *fifo) pop() {
	q.head++
	if q.head == len(q.items) && cap(q.items) > keptCapacity {
		q.items, q.head = nil, 0
	}
	if q.head > 1024 && q.head > len(q.items)/2 {
		q.items = append(q.items[:0], q.items[q.head:]...)
		q.head = 0
	}
}
