package engine

import (
	"math"
	"slices"

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
)

var statusNames = [...]string{"", "scheduled", "paused", "completed"}

// A job's place says where its next turn waits.
type place uint8

const (
	nowhere place = iota
	onWheel
	inReady
)

// job is one job's state. A job is in one place at a time: its earliest fire not yet decided is on the
// wheel, or ready, and the fires after it are computed when its turn comes.
type job struct {
	id   string
	spec spec
	plan schedule.Plan

	version  uint64
	accepted int64  // when this version was, ms
	order    uint64 // of creation, in this partition

	next    int64 // the earliest fire not yet decided, ms; of a completed job: when it completed
	last    int64 // the latest fire decided, ms; 0: none
	fires   uint64
	skipped uint64

	// While fires are being counted, over several turns if they are many: so far, and the first.
	counted      uint64
	countedFirst int64
	skipTo       int64 // fires up to here were missed while paused; 0: none

	armed    uint64 // order of arming on the wheel; of a completed job: order of completion
	timer    wheel.ID
	maxFires uint64
	expires  int64 // ms
	status   status
	place    place
	rank     uint8 // 0 goes first
	misfire  carillon.Misfire
	kind     schedule.Kind
}

const none = math.MaxInt64

func (j *job) recurring() bool { return j.kind == schedule.Every || j.kind == schedule.Cron }

const (
	chunkBits  = 12
	chunkSlots = 1 << chunkBits
)

// jobTable holds the jobs in slots that never move, finds them by id, and walks them in order of id.
type jobTable struct {
	byID   map[string]uint32
	sorted *btree.BTreeG[uint32]
	chunks []*[chunkSlots]job
	free   []uint32
	used   uint32 // slots ever handed out
	probe  string // the id that slot probeSlot stands for in comparisons
}

// probeSlot is no job: it lets the tree be searched for an id that has no slot.
const probeSlot = math.MaxUint32

func (t *jobTable) init() {
	t.byID = make(map[string]uint32)
	t.sorted = btree.NewG(64, func(a, b uint32) bool { return t.id(a) < t.id(b) })
}

func (t *jobTable) id(slot uint32) string {
	if slot == probeSlot {
		return t.probe
	}
	return t.at(slot).id
}

func (t *jobTable) at(slot uint32) *job { return &t.chunks[slot>>chunkBits][slot&(chunkSlots-1)] }

func (t *jobTable) find(id string) (uint32, *job) {
	slot, ok := t.byID[id]
	if !ok {
		return 0, nil
	}
	return slot, t.at(slot)
}

func (t *jobTable) add(id string) (uint32, *job) {
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
	*j = job{id: id}
	t.byID[id] = slot
	t.sorted.ReplaceOrInsert(slot)
	return slot, j
}

func (t *jobTable) remove(slot uint32) {
	t.sorted.Delete(slot)
	j := t.at(slot)
	delete(t.byID, j.id)
	*j = job{}
	t.free = append(t.free, slot)
}

func (t *jobTable) len() int { return len(t.byID) }

// from walks the jobs whose ids come at or after id, in order.
func (t *jobTable) from(id string, yield func(slot uint32, j *job) bool) {
	t.probe = id
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

// fifoSlack is how many stale entries are not worth a walk.
const fifoSlack = 1024

// drop removes the entries that are of no use any more.
func (q *fifo) drop(useless func(completion) bool) {
	q.items = slices.DeleteFunc(append(q.items[:0], q.items[q.head:]...), useless)
	q.head = 0
}

func (q *fifo) pop() {
	q.head++
	if q.head > 1024 && q.head > len(q.items)/2 {
		q.items = append(q.items[:0], q.items[q.head:]...)
		q.head = 0
	}
}
