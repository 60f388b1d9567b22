package wheel

import (
	"math"
	"math/bits"
)

// # How the wheel works
//
// The simple version. Write a time in base 64. A timer hangs at the level of the highest digit in
// which its deadline differs from now, in the slot that this digit of the deadline names: level 0
// has 64 slots of 1 ms, level 1 has 64 of 64 ms, and so on; eleven levels hold every int64. All
// timers of a level are due before all of the levels above it, and within a level slots are in
// order of time; so the lowest set bit of the lowest occupied level is the earliest slot, a gap of
// an hour or of a century is skipped in one step, and a timer is inserted in constant time. When
// now reaches a slot of a level above 0, its timers are cascaded: each is put in again, and lands
// lower, because it shares one more digit with now.
//
// What is hard about it. Three things are asked of this wheel which the simple version lacks.
//
//  1. Bounded work. A slot of level 4 is 4.7 hours wide. When a million timers are in it, one step
//     of time, or one search for its earliest, costs a million steps.
//  2. An answer that depends on nothing but the calls. Replicas of a partition must agree on what
//     each Advance yields, also when one of them was filled from a checkpoint a second ago and its
//     timers lie at other levels. So the state of a cascade must not show, and Advance yields
//     min(budget, due) timers, no fewer.
//  3. Memory. At ten million timers nearly every access outside the cache costs 100 ns, and a linked
//     list makes each wait for the one before.
//
// So a slot here never holds more than slotMax timers unsorted. The one too many splits it: the slot
// gets a node of 64 slots of its own, one level below, and its timers are put there. This does the
// cascade's work when the timers arrive, spread over their arrival, and no sooner than their number
// asks for it. When now reaches a slot that was split, its node becomes the level below, as it is;
// when it reaches one that was not, at most slotMax timers are put in again; or, at level 1, lined up
// by millisecond, in rows, while their records stay where they are. (Seen as a tree: a burst trie on
// the digits of the deadline, whose nodes along now are the levels of the wheel.) A slot of level 0 is
// one millisecond, is in order by itself, and may hold any number. Its row, if it has one, comes first:
// what is inserted after the rows were made is put in the slot.
//
// What one call does, then: Advance looks at a few words for each level, moves each timer at most once
// a level in its life, and no more than slotMax of them before it yields one; Next looks at slotMax;
// Insert moves slotMax at a split, and once a level when a crowd shares one far millisecond and each
// split finds all of it in one slot again.
//
// Invariants, with key = max(deadline, now at insertion), the time at which a timer is due:
//
//   - now <= every key: time is never moved past one.
//   - A timer's slot follows from its key, now and which slots are split: begin at the level of
//     the highest digit in which key and now differ, and go down while the slot is split.
//   - Therefore timers of one key are always in one slot, and there in the order of insertion: a new
//     one is added at the end; and a slot's timers move only all together, in their order, and
//     before anything else can be added (split and enter do it, in one call). No timer can be found
//     above, still to cascade, while a later one of the same key is below already. A row counts as the
//     beginning of its slot: rows are made when level 0 is empty, the last ones included.
//   - In level k > 0 the slot that now itself is in is empty: what shares that digit with now
//     belongs lower. Slots before it are empty, too, since they are the past.
//   - Moving now to t <= every key changes the place only of timers in the slot of t at the highest
//     digit that changes, and those are what enter puts in again or lines up: a timer at level k has all higher
//     digits in common with now and a greater digit k. t lies between now and its key, so it has
//     these higher digits in common with both, and a digit k no greater than the timer's. If less,
//     the timer stays where it is; if equal, it is in the slot of t.
//
// A late timer (deadline <= now) has the key now, hence is in the slot of now at level 0, behind
// those already there; and stays there, as time cannot pass it.
//
// How a slot holds its timers. As a list of chunks of 16 records, in order; pos says where the record
// of an id is. Reading a slot is then reading memory in runs whose misses the processor overlaps, and
// to move a record is two writes that nobody waits for. Only the last chunk of a slot is added to.
// Remove clears a bit in four bytes that are kept for each chunk (use), and touches neither the record nor, mostly, the
// chunk's header or the slot. When it leaves 6 or fewer in a chunk that has 12 or fewer together with a neighbour, the
// two become one. That bounds what removals can waste, and costs at most three moved records for each
// written: a slot gets another chunk only when its last is full, which takes 4 writes after a merge. Chunks
// in rows do not merge: they hold what one slot did, and are free within its 64 ms.
//
// How many records of a slot's last chunk were written, only the slot knows. Remove asks it when the chunk is alone. Else
// it goes by those that are not in use any more, and a last chunk may be left without a timer; it goes with the one before.
//
// A record is 12 bytes: it has the low 32 bits of its deadline only. In a slot of levels 1 to 5, which is no wider than 2^30,
// the others are those of the slot; at level 0 a deadline is the slot's millisecond, or late, and then the last one before it
// with these bits, if it is late by less than 2^32 ms (49 days). A timer later than that, or at level 6 and above (two years
// ahead, until a crowd splits its slot or time comes near), takes two records, and its chunk, with 8 of them, is wide.
//
// An id that is free is an entry of pos that is not needed, and holds the id 32 below it in the stack of free ids, which
// therefore takes no memory. Remove has this entry at hand. To take an id is to wait for its entry, which
// says what comes after it; so they are read 32 at a time, before the first of them is needed.
//
// Rows are a table of positions, 12 kB, instead of a last move within 64 ms of the end: a record and its pos are not
// written once more, and no chunk is taken for it. A cascade reads a chunk ahead what it is going to write; the making of
// rows first reads, for all of the slot, what it and expiry will (fetch).
//
// Most insertions go to an existing slot that has room in its last chunk; they write that record, its pos, and the slot's
// end and count, and nothing else (place). Where one way did for all (placeIn), what a call might need was saved on the stack
// each time, and a write that misses the cache most likely held that up. So place also notes itself what may be the next one
// due: Insert need not keep it on the stack.
//
// A removal reads four bytes of a chunk (use) and not its header. It is some 75 instructions, so that no more than four
// are under way at once, each with two reads that wait.
//
// What ten million timers within an hour cost, ns to insert / to remove in random order / to expire, beside the machine's
// floor (BenchmarkFloor). The two figures of a line were measured in turns; lines are of different machines, days and loads, and
// do not compare.
//
//	                                        before         after          floor
//	rows                                    – / – / 70     – / – / 56
//	what rows will write is read first      – / – / 84     – / – / 56             84 at best
//	in a pass of its own                    – / – / 52     – / – / 44
//	a smaller record, and more (below)      51 / 75 / 62   50 / 54 / 45   16      median of nine turns, a machine with other work
//	place beside placeIn                    72 / – / –     60 / – / –     18      an EPYC, less in ten of fourteen turns
//	use, and place notes what may be next   54 / 64 / 46   50 / 52 / 49   15–17   a quiet EPYC, seven turns
//	the same half an hour later             75 / 73 / 50   62 / 58 / 57           nine turns
//
// A smaller record, and more: before that there were 16 bytes a record, a stack of free ids, headers in one block with their records, a look
// at the slot for every last chunk, and one pass to make rows, and a timer took 25.8 bytes instead of 17.7. What it costs to have no
// stack: a million insertions after as many removals, out of order, take 86 each for 76.
//
// In a wheel that has long been in use, what is free is everywhere, and a chunk holds nine timers instead of 16. After three times
// ten million removals and insertions it costs 47 / 160 / 54, where a new one costs 42 / 56 / 44, and a timer takes 25.7 bytes: of
// 100 removals 16 leave a chunk with 6 or fewer, and 6 of those make two chunks one, which moves some twelve records, whose pos are
// anywhere.
//
// Tried, and rejected. Figures: as above, but best of 20 batches on an earlier machine, beside 62 / 52 / 73 for what was here then.
//
//   - The simple version with a doubly linked list a slot, 24 bytes a timer: 131 / 41 / 428. A cascade
//     follows links through memory, each a miss that has to end before the next begins.
//   - Slicing its cascades, counted in the budget, new timers of the slot's range waiting behind it:
//     how many timers an Advance yields then depends on where they lie, against (2).
//   - The earliest deadline kept for each slot: exact until that timer is removed. Then a slot of a
//     million is searched, at each removal of its first.
//   - Free ids linked through pos one by one: taking one waits for memory, each for the one before. In eight lists in turn
//     such an insertion took 127. A stack beside pos, 4 bytes an id: but each line of it is waited for before it is
//     written, and a removal took 8 more.
//   - Headers beside their records, to have one page to look up: slower to remove, 150 against 115,
//     as the headers of ten million timers on their own are 10 MB, and records are 120 MB. In blocks that have 8 kB of
//     headers before their records it is 65 against 61 for 64 kB.
//   - Blocks as slices or by unsafe pointers, so that Go need not read the first bytes of each in order to find that its
//     pointer is not nil: not told apart from noise.
//   - Insertions and removals carried out 64 at a time, so that what they wait for is waited for together: on the other machine
//     79 / 54 / 53, with rows as well. But what removes one and asks for the next waits 94 for 44, and one call may make 64 splits.
//   - In a wheel in use, chunks left with few timers put off and seen to 32 at a time, so that what they wait for is waited for
//     together: 127, 128, 130 to remove beside 127, 127, 132. Neighbours looked at only as a chunk comes down to 6: 132,
//     150, 126 beside 129, 144, 141. Made one with at most 8 or 4 timers instead of 12: 119 and 101 at best, and 31 and 38 bytes.
//   - In a wheel in use, a slot written to twice as often as it has timers swept whole by who comes next, so that its chunks are
//     full again: 149, 150 to remove beside 148, 152, as two neighbours become one long before; where only those of at most 8, or
//     of 4, do, 134, 126 and 82, 103 beside 154, 132, but 67 to 97 to insert beside 63 to 67, and 30 and 36 bytes.
//   - Huge pages: the kernel gave them, and a read that nothing waits for took 9.3 for 10.4, one that is waited for 158 for 182. On a later
//     machine, in use, 55 / 94 / 36 for 66 / 119 / 38, once; but a service would have to ask the kernel for them.

const (
	digit    = 6
	fan      = 1 << digit
	levels   = (64 + digit - 1) / digit
	chunkLen = 16

	// slotMax bounds a cascade and a search for the earliest: 2,048 records are moved in some 20 µs and
	// searched in two. Not less: just after a split each of the 64 new slots has 32 timers on average
	// and half a chunk to spare; with 512 it would be 8 and half a chunk, and 30 bytes a timer. Not
	// more: a split and a cascade are work that a single Insert or Advance has to do at once.
	slotMax = fan * 2 * chunkLen

	mergeMax = chunkLen * 3 / 4 // two neighbours with no more records than this become one chunk

	wide     = 2 // records of a timer whose slot does not tell the high half of its deadline
	farLevel = 6 // the slots of this level and above do not
)

// ID names a timer from its insertion until it is removed or expires; then it may be used again.
// 0 is no timer.
type ID uint32

// record is a timer. The high half of its deadline follows from the slot; or is the low of the next record, if step is wide.
type record struct {
	low  uint32 // half of the deadline, as a key
	data uint32
	id   ID
}

// chunk is the header of chunkLen records.
type chunk struct {
	slot       uint32 // node and index
	prev, next uint32 // in the slot; next also links the free ones
}

// use is what Remove looks at of a chunk.
type use struct {
	live  uint16 // records in use; also all those not written yet, so that writing leaves it alone
	step  uint8  // records a timer takes: 1, or wide
	alone bool   // in its slot, or in rows
}

// ones is the live of a chunk to which nothing was written, by step.
var ones = [...]uint16{1: 0xffff, wide: 0x5555}

// slot is empty (head 0), a list of chunks, or split (end 0): then head is a node.
type slot struct {
	head  uint32
	end   uint32 // position behind the last record: where the next one goes, if its chunk has room
	count uint32 // timers, those removed since the last count included
}

func (s *slot) split() bool { return s.head != 0 && s.end == 0 }

type node struct {
	occupied uint64 // slots; at level 0 also those that have only a row
	from     uint64 // when its first slot begins; a level of the wheel has it from now
	level    uint32
	up       uint32 // the slot this node splits; 0 for a level of the wheel
	slots    [fan]slot
}

// rows are the timers of one slot of level 1, since now reached it, by millisecond; their records stay where they were.
// A row is a list in the order of insertion, which a removed timer stays in. Entry g is before the first of row g.
type rows struct {
	left [fan]uint16 // timers
	last [fan]uint16 // entries; of a row without timers, g
	next [fan + slotMax]uint16
	pos  [fan + slotMax]uint32
}

// freeIDs is a stack, in rows of freeRow: of the last row, and of the one below it when it was read. What is below an id
// of that is in its pos. So the stack takes no memory, and what taking an id waits for is read a row at a time.
type freeIDs struct {
	count      uint32
	top, below [freeRow]ID
	belowRead  bool
}

const (
	freeRow = 32
	freeBit = 1 << 31 // of the pos of an id that is free
)

// inRows is the slot of the chunks of rows. It is one of node 0, so no other chunk has it.
const inRows = 1

// Memory comes in blocks, so that growth neither copies nor moves. None of them holds a pointer, and
// number 0 of chunks, nodes and ids is never used: it is nil.
const (
	blockLen     = 1 << 13 // records
	blockChunks  = blockLen / chunkLen
	headBlockLen = 1 << 12
	useBlockLen  = 1 << 14
	idBlockLen   = 1 << 14
	nodeBlockLen = 1 << 4
)

type (
	headBlock   [headBlockLen]chunk
	useBlock    [useBlockLen]use
	recordBlock [blockLen]record   // a position is a chunk and an index in it: chunk * chunkLen + index
	posBlock    [idBlockLen]uint32 // where the record of an id is; or freeBit, and the id below it
	nodeBlock   [nodeBlockLen]node
)

// Wheel holds timers, each a deadline (unix ms) and 32 bits of data for its owner. Make one with New.
type Wheel struct {
	now   uint64         // as a key: order-preserving, the earliest int64 is 0
	next  uint64         // no key is less
	first uint32         // the slot in which one is equal, or 0 if not known
	least uint32         // where that timer is, if above level 0: there all of a slot have one key
	busy  uint16         // levels with an occupied slot
	level [levels]uint32 // the wheel's nodes

	rows rows

	fetched uint32 // sum of what was read ahead: reads that nothing depends on are left out. It means nothing

	heads                          []*headBlock
	uses                           []*useBlock
	records                        []*recordBlock
	ids                            []*posBlock
	nodes                          []*nodeBlock
	chunkCount, idCount, nodeCount uint32 // ever used, with number 0
	freeChunk, freeNode            uint32
	freeChunkCount                 uint32
	free                           freeIDs
}

// New returns a wheel whose time is now, in unix ms.
func New(now int64) *Wheel {
	w := &Wheel{now: toKey(now), chunkCount: 1, idCount: 1, nodeCount: 1}
	for g := range w.rows.last {
		w.rows.last[g] = uint16(g)
	}
	for k := range w.level {
		w.level[k] = w.newNode(uint32(k), 0, 0)
	}
	return w
}

func toKey(t int64) uint64    { return uint64(t) ^ 1<<63 }
func toTime(key uint64) int64 { return int64(key ^ 1<<63) }

// levelOf is the level of the highest digit in which two keys differ, 0 if they do not.
func levelOf(diff uint64) uint32 { return uint32(bits.Len64(diff|1)-1) / digit }

// Now is the wheel's time in unix ms.
func (w *Wheel) Now() int64 { return toTime(w.now) }

// Len is the number of timers.
func (w *Wheel) Len() int { return int(w.idCount - 1 - w.free.count) }

// Insert adds a timer. A deadline (unix ms) that is not after Now counts as Now: the timer is the last
// of those due now, and still reports its own deadline.
func (w *Wheel) Insert(deadline int64, data uint32) ID {
	id := w.newID()
	return w.place(max(toKey(deadline), w.now), toKey(deadline), data, id)
}

// Remove takes a timer out. It panics if id is not live.
func (w *Wheel) Remove(id ID) {
	p := w.find(id)
	pos := *p
	w.freeID(id, p)
	u := w.use(pos / chunkLen)
	u.live &^= 1 << (pos % chunkLen)
	if pos == w.least {
		w.first, w.least = 0, 0
	}
	if u.alone || bits.OnesCount16(u.live) <= mergeMax/2 {
		w.removed(pos)
	}
}

// Deadline is the deadline the timer was inserted with, in unix ms. It panics if id is not live.
func (w *Wheel) Deadline(id ID) int64 {
	return toTime(w.deadline(*w.find(id)))
}

// Next is the time in unix ms at which the next timer is due: the earliest deadline, exactly, or Now
// if that is in the past. It is false when there is no timer.
//
// The answer is kept until that timer expires or is removed. Then finding the next looks at one
// slot, at most slotMax timers.
func (w *Wheel) Next() (deadline int64, ok bool) {
	if w.Len() == 0 {
		return 0, false
	}
	if w.first == 0 {
		w.next, w.first, w.least = w.earliest()
	}
	return toTime(w.next), true
}

// Advance moves time to `to` (unix ms), calling expired for each timer that is due by then, in the
// order (deadline, insertion), at most budget of them. It reports whether these were
// all. If not, time stands at the deadline of the last one it yielded, and a later Advance
// goes on from there. Time never goes back: an earlier `to` counts as Now.
//
// A timer is gone when expired is called for it. expired may call Insert, also with a deadline up to
// `to`, which is then yielded in its turn by the same Advance, and Remove, but not Advance.
func (w *Wheel) Advance(to int64, budget int, expired func(data uint32, deadline int64)) (done bool) {
	end := max(toKey(to), w.now)
	for w.Len() > 0 {
		if budget <= 0 {
			if next, _ := w.Next(); next <= toTime(end) {
				return false
			}
			break
		}
		k := uint32(bits.TrailingZeros16(w.busy))
		i := w.firstOf(w.level[k])
		at := w.startOf(i)
		if at > end {
			break
		}
		if k > 0 {
			w.enter(at)
			continue
		}
		w.now = at
		g := i % fan
		for ; w.rows.left[g] > 0 && budget > 0; budget-- {
			expired(w.popRow(g), toTime(at))
		}
		for s := w.slot(i); s.head != 0 && budget > 0; budget-- {
			expired(w.pop(s))
		}
	}
	w.enter(end)
	return true
}

// pop takes out the first timer of slot s of level 0, which is due now.
func (w *Wheel) pop(s *slot) (data uint32, deadline int64) {
	c := s.head
	u, used := w.use(c), w.used(s, c)
	records, j := w.recordsOf(c), bits.TrailingZeros16(used)%chunkLen
	r := &records[j]
	data, deadline = r.data, toTime(deadlineIn(records, j, u.step, w.now))
	w.freeID(r.id, w.pos(r.id))
	u.live &= u.live - 1
	if used&(used-1) == 0 {
		w.dropChunk(s, c)
	}
	return data, deadline
}

// popRow takes out the first timer of row g, which is due now.
func (w *Wheel) popRow(g uint32) (data uint32) {
	for {
		e := w.rows.next[g]
		w.rows.next[g] = w.rows.next[e]
		pos := w.rows.pos[e]
		u, bit := w.use(pos/chunkLen), uint16(1)<<(pos%chunkLen)
		if w.chunk(pos/chunkLen).slot != inRows || u.live&bit == 0 {
			continue // removed, and its chunk perhaps used again
		}
		u.live &^= bit
		r := w.record(pos)
		data = r.data
		w.freeID(r.id, w.pos(r.id))
		w.leaveRow(g, pos/chunkLen)
		return data
	}
}

// leaveRow counts out a timer of row g that was in chunk c.
func (w *Wheel) leaveRow(g, c uint32) {
	if w.use(c).live == 0 {
		w.recycle(c)
	}
	if w.rows.left[g]--; w.rows.left[g] == 0 {
		w.rows.last[g] = uint16(g)
		if i := w.level[0]*fan + g; w.slot(i).head == 0 {
			w.vacate(i)
		}
	}
}

// place puts a timer at the end of the slot its key belongs to, and returns its id: what Insert need not keep meanwhile is
// not saved on the stack.
func (w *Wheel) place(key, deadline uint64, data uint32, id ID) ID {
	k := levelOf(w.now ^ key)
	for n := w.level[k]; ; k-- {
		nd := w.node(n)
		g := uint32(key>>(k*digit)) % fan
		s := &nd.slots[g]
		if s.split() {
			n = s.head
			continue
		}
		i := n*fan + g
		if s.end%chunkLen == 0 || k == 0 || k >= farLevel || s.count >= slotMax {
			return w.placeIn(i, key, deadline, data, id)
		}
		pos := s.end
		s.end++
		s.count++
		*w.record(pos) = record{uint32(deadline), data, id}
		*w.pos(id) = pos
		w.placed(key, i, pos)
		return id
	}
}

// placed heeds that a timer may be the next one due.
func (w *Wheel) placed(key uint64, i, pos uint32) {
	if key < w.next {
		w.next, w.first, w.least = key, i, pos
	}
}

// placeIn is place for slot i, which may have no chunk with room, or none of the right step, or too many timers.
func (w *Wheel) placeIn(i uint32, key, deadline uint64, data uint32, id ID) ID {
	nd, s := w.node(i/fan), w.slot(i)
	w.busy |= 1 << levelOf(w.now^key)
	nd.occupied |= 1 << (i % fan)
	k, step := nd.level, uint32(1)
	if k == 0 || k >= farLevel {
		step = w.stepTo(s, k > 0 || key-deadline > math.MaxUint32)
	}
	if s.end%chunkLen == 0 {
		w.addChunk(s, i, step)
	}
	pos := s.end
	s.end += step
	*w.record(pos) = record{uint32(deadline), data, id}
	if step == wide {
		w.record(pos + 1).low = uint32(deadline >> 32)
	}
	*w.pos(id) = pos
	w.placed(key, i, pos)
	if s.count++; s.count > slotMax && k > 0 && w.recount(s) > slotMax/2 {
		w.split(i)
	}
	return id
}

// recount counts the timers of slot s again: Remove does not, as the slot would be one more place in
// memory to wait for.
func (w *Wheel) recount(s *slot) uint32 {
	s.count = 0
	for c := s.head; c != 0; c = w.chunk(c).next {
		s.count += uint32(bits.OnesCount16(w.used(s, c)))
	}
	return s.count
}

// split gives slot i a node of its own.
func (w *Wheel) split(i uint32) {
	if i == w.first {
		w.first = 0
	}
	s := w.slot(i)
	old := *s
	from, last := w.startOf(i), w.lastOf(i)
	*s = slot{head: w.newNode(w.node(i/fan).level-1, i, from)}
	w.scatter(&old, last)
}

// enter moves now to t, which is no greater than any key, and opens the slots that now is in then.
func (w *Wheel) enter(t uint64) {
	k := levelOf(w.now ^ t)
	w.now = t
	for ; k > 0; k-- {
		i := w.level[k]*fan + uint32(t>>(k*digit))%fan
		s := *w.slot(i)
		if s.head == 0 {
			continue
		}
		w.vacate(i)
		if !s.split() {
			if k == 1 {
				w.lineUp(&s)
			} else {
				w.scatter(&s, t|(1<<(k*digit)-1))
			}
			return // to levels below k, in slots after now's
		}
		w.dropNode(w.level[k-1]) // empty: its time is over
		w.level[k-1] = s.head
		w.node(s.head).up = 0
		w.busy |= 1 << (k - 1)
	}
}

// scatter places the timers of s, which is no slot any more and whose time ended with last, anew and in order, and frees
// its chunks. None of them is late: those lie at level 0, which is neither split nor entered.
func (w *Wheel) scatter(s *slot, last uint64) {
	for c := s.head; c != 0; {
		next, step, used, records := w.chunk(c).next, w.use(c).step, w.used(s, c), *w.recordsOf(c)
		w.recycle(c)
		w.fetch(&records, next)
		for ; used != 0; used &= used - 1 {
			j := bits.TrailingZeros16(used) % chunkLen
			key := deadlineIn(&records, j, step, last)
			w.place(key, key, records[j].data, records[j].id)
		}
		c = next
	}
}

// lineUp makes rows of s, which is no slot any more and was of level 1. Level 0 is empty.
func (w *Wheel) lineUp(s *slot) {
	rows := &w.rows
	for c := s.head; c != 0; {
		next := w.chunk(c).next
		w.fetch(w.recordsOf(c), next)
		c = next
	}
	n, occupied := uint16(fan), uint64(0)
	for c := s.head; c != 0; {
		h, records, used := w.chunk(c), w.recordsOf(c), w.used(s, c)
		next := h.next
		*h = chunk{slot: inRows}
		*w.use(c) = use{live: used, step: 1, alone: true}
		if used == 0 {
			w.recycle(c)
		}
		for ; used != 0; used &= used - 1 {
			j := uint32(bits.TrailingZeros16(used)) % chunkLen
			g := records[j].low % fan
			rows.pos[n] = c*chunkLen + j
			rows.next[rows.last[g]] = n
			rows.last[g] = n
			rows.left[g]++
			n++
			occupied |= 1 << g
		}
		c = next
	}
	w.node(w.level[0]).occupied = occupied
	w.busy |= 1
}

// fetch reads what moving some records writes, and first what comes after them: asked for together it is on its way
// together, where each would be waited for.
func (w *Wheel) fetch(records *[chunkLen]record, next uint32) {
	sum := w.fetched + w.chunk(next).slot + uint32(w.use(next).live)
	ahead := w.recordsOf(next)
	for i := 0; i < chunkLen; i += 6 {
		sum += ahead[i].data
	}
	for i := range records {
		sum += *w.pos(records[i].id)
	}
	w.fetched = sum
}

// vacate empties slot i, and takes away its node if that was its last and it splits another slot.
func (w *Wheel) vacate(i uint32) {
	if i == w.first {
		w.first = 0
	}
	for {
		*w.slot(i) = slot{}
		n := i / fan
		if n == w.level[0] && w.rows.left[i%fan] > 0 {
			return
		}
		nd := w.node(n)
		nd.occupied &^= 1 << (i % fan)
		if nd.occupied != 0 {
			return
		}
		if nd.up == 0 {
			w.busy &^= 1 << nd.level
			return
		}
		i = nd.up
		w.dropNode(n)
	}
}

// startOf is the first time of slot i.
func (w *Wheel) startOf(i uint32) uint64 {
	nd := w.node(i / fan)
	shift := nd.level * digit
	from := nd.from
	if nd.up == 0 {
		from = w.now >> (shift + digit) << (shift + digit)
	}
	return from | uint64(i%fan)<<shift
}

// lastOf is the last time of slot i.
func (w *Wheel) lastOf(i uint32) uint64 {
	return w.startOf(i) | (1<<(w.node(i/fan).level*digit) - 1)
}

// firstOf is the first occupied slot of node n.
func (w *Wheel) firstOf(n uint32) uint32 {
	return n*fan + uint32(bits.TrailingZeros64(w.node(n).occupied))
}

// deadline is that of the record at pos, as a key.
func (w *Wheel) deadline(pos uint32) uint64 {
	c := pos / chunkLen
	h := w.chunk(c)
	last := w.now | (fan - 1)
	if h.slot != inRows {
		last = w.lastOf(h.slot)
	}
	return deadlineIn(w.recordsOf(c), int(pos%chunkLen), w.use(c).step, last)
}

// deadlineIn is that of record j in a chunk of a slot whose last time is last: the last deadline until then of which it is
// the low half, unless the other half is there, too. So it is also for one that is late.
func deadlineIn(records *[chunkLen]record, j int, step uint8, last uint64) uint64 {
	low := records[j].low
	if step == wide {
		return uint64(records[j+1].low)<<32 | uint64(low)
	}
	return last - uint64(uint32(last)-low)
}

// earliest finds the least key, the slot it is in, and, above level 0, where the timer is. There must be one.
func (w *Wheel) earliest() (key uint64, i, at uint32) {
	n := w.level[bits.TrailingZeros16(w.busy)]
	for {
		i = w.firstOf(n)
		if w.node(n).level == 0 {
			return w.startOf(i), i, 0
		}
		s := w.slot(i)
		if s.split() {
			n = s.head
			continue
		}
		last := w.lastOf(i)
		for c := s.head; c != 0; c = w.chunk(c).next {
			step, records := w.use(c).step, w.recordsOf(c)
			for used := w.used(s, c); used != 0; used &= used - 1 {
				j := bits.TrailingZeros16(used)
				if d := deadlineIn(records, j, step, last); at == 0 || d < key {
					key, at = d, c*chunkLen+uint32(j)
				}
			}
		}
		return key, i, at
	}
}
