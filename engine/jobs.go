package engine

import (
	"bytes"
	"cmp"
	"math"
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
	inLater // beyond what is on the wheel
)

// job is one job's state, but for its texts and what is fixed. A job is in one place at a time: its earliest fire not yet
// decided is on the wheel, or ready, and the fires after it are computed when its turn comes. It holds no pointer, and what
// few jobs have is kept aside, in rare. It fills a line of the cache, and TestJobIsALine holds it to that.
type job struct {
	text textRef // id, what is fixed, request of the last applied command, spec
	rare uint32  // place of what few jobs have; 0: nothing
	expr exprRef

	timer wheel.ID
	entry uint32 // in the generation of changes that it is in, if it is in one

	status  status
	place   place
	rank    uint8 // 0 goes first
	misfire carillon.Misfire

	from  int64 // of its plan, ms
	next  int64 // the earliest fire not yet decided, ms; of a completed job: when it completed
	last  int64 // the latest fire decided, ms; 0: none
	fires uint64
	armed uint64 // order of arming; of a completed job: order of completion
}

// rare is what few jobs have.
type rare struct {
	end, offset int64 // of the plan, ms
	maxFires    uint64
	expires     int64 // ms
	skipped     uint64

	// While fires are being counted, over several turns if they are many: so far, and the first.
	counted      uint64
	countedFirst int64
	skipTo       int64 // fires up to here were missed while paused; 0: none
	recovery           // of what was missed before the job was put back
}

const none = math.MaxInt64

const (
	chunkBits  = 10
	chunkSlots = 1 << chunkBits
)

// jobTable holds the jobs in slots that never move, finds them by id, and walks them in order of id.
type jobTable struct {
	byHash index // of ids
	sorted *btree.BTreeG[uint32]
	chunks []*[chunkSlots]job
	free   []uint32
	used   uint32 // slots ever handed out
	probe  []byte // the id that slot probeSlot stands for in comparisons

	texts texts
	whole []byte // the last spec that was asked for
	asked []byte // and the last request
	rares []rare // from 1
	spare []uint32
	exprs exprs
}

// orderDegree makes nodes of some thousand slots. With 64 it was as fast, and after a million puts 16,000 small nodes lay on pages
// of the heap on which little else lived: 5 MB. One that is free is kept for the next, not 32.
const orderDegree = 2048

// probeSlot is no job: it lets the tree be searched for an id that has no slot.
const probeSlot = math.MaxUint32

func (t *jobTable) init() {
	t.byHash = newIndex()
	less := func(a, b uint32) bool { return bytes.Compare(t.idAt(a), t.idAt(b)) < 0 }
	t.sorted = btree.NewWithFreeListG(orderDegree, less, btree.NewFreeListG[uint32](1))
	t.rares = make([]rare, 1)
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

func (t *jobTable) fixed(j *job) fixed { return t.texts.fixed(j.text) }

// id is where the table has it: to be read before the job changes.
func (t *jobTable) id(j *job) []byte { return t.texts.id(j.text) }

// request is valid until the next call.
func (t *jobTable) request(j *job) []byte {
	r := t.texts.request(j.text)
	t.asked = r.append(t.asked[:0])
	return t.asked
}

// spec is valid until the next call.
func (t *jobTable) spec(j *job) []byte {
	_, _, s := t.texts.get(j.text)
	t.whole = s.append(t.whole[:0])
	return t.whole
}

func (t *jobTable) at(slot uint32) *job { return &t.chunks[slot>>chunkBits][slot&(chunkSlots-1)] }

// hashOf need not be stable: it decides nothing but where an id is found.
func hashOf[T string | []byte](id T) uint32 { return uint32(xxhash.Sum64String(string(id))) }

func (t *jobTable) find(id string) (uint32, *job) {
	for slot := range t.byHash.slots(hashOf(id)) {
		if j := t.at(slot); string(t.id(j)) == id {
			return slot, j
		}
	}
	return 0, nil
}

// add gives a new job a slot, with its texts and nothing else.
func (t *jobTable) add(id string, f fixed, request string, spec []byte) (uint32, *job) {
	slot, j := t.insert(addText(&t.texts, id, f, request, spec))
	t.sorted.ReplaceOrInsert(slot)
	return slot, j
}

// insert gives a job with a text a slot, but no place in the order of ids.
func (t *jobTable) insert(text textRef) (uint32, *job) {
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
	*j = job{text: text, entry: noEntry}
	t.byHash.insert(hashOf(t.id(j)), slot)
	return slot, j
}

func (t *jobTable) remove(slot uint32) {
	t.sorted.Delete(slot)
	j := t.at(slot)
	t.byHash.remove(hashOf(t.id(j)), slot)
	t.clear(j)
	t.texts.remove(j.text)
	*j = job{}
	t.free = append(t.free, slot)
}

// clear drops all of a job but its text and its places: what stays when another version replaces it.
func (t *jobTable) clear(j *job) {
	t.exprs.release(j.expr)
	if j.rare != 0 {
		t.rares[j.rare] = rare{}
		t.spare = append(t.spare, j.rare)
	}
	*j = job{text: j.text, entry: j.entry}
}

// write replaces a job's texts.
func (t *jobTable) write(j *job, f fixed, request string, spec []byte) {
	before := j.text
	id := t.id(j)
	j.text = addText(&t.texts, id, f, request, spec)
	t.texts.remove(before)
}

// describe gives a job what its spec says.
func (t *jobTable) describe(j *job, want *carillon.Job, expr *schedule.Expr, plan schedule.Plan) {
	j.rank, j.misfire = rankOf(want.Priority), want.Misfire
	j.expr = t.exprs.acquire(keyOf(want), expr)
	if want.MaxFires > 0 || want.Expires > 0 {
		r := t.rare(j)
		r.maxFires, r.expires = want.MaxFires, want.Expires.Milliseconds()
	}
	var end, offset int64
	j.from, end, offset = plan.Fields()
	if end != schedule.Horizon || offset != 0 {
		r := t.rare(j)
		r.end, r.offset = end, offset
	}
}

func (t *jobTable) plan(j *job) schedule.Plan {
	r := t.rares[j.rare]
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

// rare is what few jobs have, made when this one has nothing of it yet. It is valid until the next call.
func (t *jobTable) rare(j *job) *rare {
	if j.rare == 0 {
		if n := len(t.spare); n > 0 {
			j.rare = t.spare[n-1]
			t.spare = t.spare[:n-1]
		} else {
			j.rare = uint32(len(t.rares))
			t.rares = append(t.rares, rare{})
		}
	}
	return &t.rares[j.rare]
}

// readRare is the same to read only: nothing is made for a job that has none of it.
func (t *jobTable) readRare(j *job) rare { return t.rares[j.rare] }

// from walks the jobs whose ids come at or after id, in order.
func (t *jobTable) from(id string, yield func(slot uint32, j *job) bool) {
	t.probe = []byte(id)
	t.sorted.AscendGreaterOrEqual(probeSlot, func(slot uint32) bool { return yield(slot, t.at(slot)) })
}

// completion is a job's place in the queue of completed jobs. It is stale once the job is another.
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

// roomKept is for how many entries a list or map keeps its memory once it is empty: a burst should not take it anew, and an
// engine at rest not keep all that the largest one took.
const roomKept = 1 << 16

// fifoSlack is how many stale entries are not worth a walk.
const fifoSlack = 1024

// drop removes the entries that are of no use any more.
func (q *fifo) drop(useless func(completion) bool) {
	q.items = slices.DeleteFunc(append(q.items[:0], q.items[q.head:]...), useless)
	q.head = 0
}

func (q *fifo) pop() {
	q.head++
	if q.head == len(q.items) && cap(q.items) > roomKept {
		q.items, q.head = nil, 0
	}
	if q.head > 1024 && q.head > len(q.items)/2 {
		q.items = append(q.items[:0], q.items[q.head:]...)
		q.head = 0
	}
}
