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
// timers of a level are due before all of the levels above it, and within a level the slots are in
// order of time. So the lowest set bit of the lowest occupied level is the earliest slot, a gap of
// an hour or of a century is skipped in one step, and a timer is inserted in constant time. When
// now reaches a slot above level 0, its timers cascade: each is inserted again, and lands lower,
// because it now shares one more digit with now.
//
// What is hard. The simple version lacks three things.
//
//  1. Bounded work. A slot of level 4 is 4.7 hours wide. When it holds a million timers, one step of
//     time, or one search for its earliest timer, costs a million steps.
//  2. Answers that depend on nothing but the calls. Replicas of a partition must agree on what each
//     Advance yields, even if one of them was filled from a checkpoint a second ago and its timers
//     lie at other levels. So the progress of a cascade must not show, and Advance must yield
//     min(budget, due) timers, no fewer.
//  3. Few cache misses in a row. At ten million timers nearly every access outside the cache costs
//     100 ns, and in a linked list each access waits for the one before.
//
// Slots split. A slot never holds more than slotMax timers unsorted. The one too many splits it: the
// slot gets a node of 64 slots of its own, one level below, and its timers move there. That is the
// work of a cascade, but spread over the arrival of the timers, and done only where there are many.
// When now reaches a slot that was split, its node becomes the level below, as it is; when now
// reaches one that was not split, at most slotMax timers move. (Seen as a tree, this is a burst trie
// on the digits of the deadline, and the levels of the wheel are its nodes along now.) A slot of
// level 0 is one millisecond: its timers need no sorting, so it may hold any number.
//
// Rows replace the last cascade. When now reaches a slot of level 1, its records stay where they
// are, and a table of their positions lists them by millisecond: a row for each slot of level 0.
// That saves writing each record and its pos once more. A row comes before the timers in the slot
// itself, which were inserted after the rows were made.
//
// So Advance looks at a few words for each level, moves each timer at most once a level in its life,
// and moves no more than slotMax of them before it yields one. Next looks at slotMax timers at most.
// Insert moves slotMax timers when it splits a slot; it does so once a level when a crowd shares one
// far millisecond, because each split finds all of the crowd in one slot again.
//
// Invariants, where key = max(deadline, now at insertion) is the time at which a timer is due:
//
//   - now <= every key: time never moves past a key. So a late timer (deadline <= now) goes behind
//     those already in the slot of now at level 0, and stays there.
//   - A timer's slot follows from its key, from now, and from which slots are split: begin at the
//     level of the highest digit in which key and now differ, and go down while the slot is split.
//   - Therefore all timers of one key are in one slot, in the order of insertion. A new one is added
//     at the end. A slot's timers move only all together, in their order, and before anything else
//     can be added (split and advanceTo do it in one call). So there is never a timer above, still to
//     cascade, while a later one of the same key is below already. A row counts as the beginning of
//     its slot: rows are made only when level 0 is empty, and no rows are left.
//   - At a level above 0 the slot that now is in is empty, because what shares that digit with now
//     belongs lower. The slots before it are empty because they are in the past.
//   - Moving now to t <= every key changes the place of no timers but those in the slot of t at the
//     highest digit that changes, and those are what advanceTo moves. The reason: a timer at level k
//     shares all higher digits with now and has a greater digit k. Since t lies between now and the
//     timer's key, t shares those higher digits, too, and its digit k is no greater than the timer's.
//     If it is less, the timer stays where it is; if it is equal, the timer is in the slot of t.
//
// In memory a slot is a list of chunks of 16 records, in order, and pos says where the record of an id
// is. The processor overlaps the misses of reading a chunk, and moving a record is two writes that
// nobody waits for. Records are added to the last chunk of a slot only. Most insertions find room
// there, and write the record, its pos, and the slot's end and count, nothing else. Most removals read
// and write the entry of pos and four bytes of the chunk (use), nothing else.
//
// Removals leave gaps. When one leaves 6 records or fewer in a chunk that has 12 or fewer together with
// a neighbour, the two are merged. That bounds the memory wasted, and costs at most three moved records
// for each one written: a merged chunk takes 4 more before the slot needs another chunk. Chunks in rows
// are not merged: they are free within 64 ms.
//
// Tried and rejected (figures: docs/tried.md, "Wheel"):
//
//   - A doubly linked list for each slot: a cascade waits for one cache miss after the other.
//   - Cascades in slices that count in the budget: what Advance yields then depends on where the
//     timers lie, against (2).
//   - The earliest deadline kept for each slot: removing that timer costs a search of the slot.
//   - Free ids linked one by one, or in a stack of their own: taking an id waits for the one before;
//     a stack is another cache miss for each removal, and 4 bytes an id.
//   - Headers of chunks beside their records: removals are slower. Alone, the headers of ten million
//     timers are 10 MB; the records are 120 MB.
//   - Blocks as slices or by unsafe pointers, to save a nil check: no difference.
//   - 64 insertions or removals carried out together: Next after a removal takes twice as long, and one
//     call may split 64 slots.
//   - Other rules for merging, because in a wheel long in use chunks hold 9 timers and removals cost
//     three times as much: later or a slot at a time gained nothing; less often costs memory, or
//     time to insert.
//   - Huge pages: faster, but a service would have to ask the kernel for them.

const (
	digit    = 6
	fan      = 1 << digit
	levels   = (64 + digit - 1) / digit
	chunkLen = 16

	// slotMax bounds a cascade and a search for the earliest timer: 2,048 records are moved in some 20 µs
	// and searched in two. Not less: just after a split each of the 64 new slots has 32 timers on average
	// and half a chunk unused; with 512 it would be 8 timers and half a chunk, which is 30 bytes a timer.
	// Not more: a single Insert or Advance has to do all of a split or a cascade.
	slotMax = fan * 2 * chunkLen

	mergeMax = chunkLen * 3 / 4 // two neighbouring chunks with no more records than this are merged

	wide     = 2 // records that a timer takes if its slot does not give the high half of its deadline
	farLevel = 6 // slots of this level and above never give it
)

// ID names a timer from its insertion until it is removed or expires; then it may be used again.
// 0 is no timer.
type ID uint32

// record is a timer, with the low 32 bits of its deadline only; its slot gives the others. At levels 1 to 5 a slot is no wider
// than 2^30 ms, so it has the high bits. At level 0 the deadline is the slot's millisecond; or, of a timer that is late by less
// than 2^32 ms (49 days), the last time before it with these low bits. A timer that is later than that, or lies at level 6 or
// above (two years ahead, until a crowd splits its slot or its time comes near), takes two records, in a chunk of step wide:
// the second has the high bits as its low.
type record struct {
	low  uint32 // half of the deadline, as a key
	data uint32
	id   ID
}

// chunk is the header of chunkLen records.
type chunk struct {
	slot       uint32 // node*fan + index; or inRows
	prev, next uint32 // in the slot; next also links the free chunks
}

// use is the four bytes of a chunk that Remove reads and writes, so that it mostly need not read the header.
//
// Only the slot knows how many records of its last chunk were written. Remove asks the slot if that chunk is alone in it.
// Otherwise the last chunk may be left without a timer, until the chunk before it goes (dropChunk).
type use struct {
	live  uint16 // records in use, and those not written yet: so writing a record need not change it
	step  uint8  // records that a timer takes: 1, or wide
	alone bool   // the only chunk of its slot, or in rows
}

// ones is use.live of a chunk to which nothing was written, by step.
var ones = [...]uint16{1: 0xffff, wide: 0x5555}

// slot is empty (head 0), a list of chunks, or split (end 0): then head is a node.
type slot struct {
	head  uint32
	end   uint32 // position behind the last record: where the next one goes, if its chunk has room
	count uint32 // timers, and those removed since the last recount
}

func (s *slot) split() bool { return s.head != 0 && s.end == 0 }

type node struct {
	occupied uint64 // a bit for each slot that has timers; at level 0 also if they are in a row only
	from     uint64 // when its first slot begins; not used in a level of the wheel, where now gives it
	level    uint32
	up       uint32 // the slot this node splits; 0 for a level of the wheel
	slots    [fan]slot
}

// rows list the timers of one slot of level 1 by millisecond, once now has reached it; their records stay where they were.
// A row is a linked list of entries in the order of insertion. Entry g is the head of row g, before its first timer. The
// entry of a removed timer stays, and is skipped.
type rows struct {
	left [fan]uint16 // timers in the row
	last [fan]uint16 // the row's last entry; g if it has no timers
	next [fan + slotMax]uint16
	pos  [fan + slotMax]uint32
}

// freeIDs is a stack that takes next to no memory, because the entry of pos of a free id is not needed otherwise: it holds
// the id freeRow below it in the stack. Here are only the topmost row of ids, and the row below it once it was read. Taking
// ids one by one would wait for one entry after the other, so a whole row is read before the first of it is needed.
type freeIDs struct {
	count      uint32
	top, below [freeRow]ID
	belowRead  bool
}

const (
	freeRow = 32
	freeBit = 1 << 31 // set in the pos of an id that is free
)

// inRows is chunk.slot of the chunks in rows. It belongs to node 0, which is none, so no other chunk has it.
const inRows = 1

// Memory comes in blocks, so that growth neither copies nor moves. Blocks hold no pointers. Number 0 of
// chunks, nodes and ids is never used: it stands for none.
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
	recordBlock [blockLen]record   // position of a record: chunk * chunkLen + index in the chunk
	posBlock    [idBlockLen]uint32 // position of an id's record; if the id is free, freeBit and another free id (freeIDs)
	nodeBlock   [nodeBlockLen]node
)

// Wheel holds timers, each a deadline (unix ms) and 32 bits of data for its owner. Make one with New.
type Wheel struct {
	now   uint64         // as a key: unsigned, in the order of the times, 0 for the earliest int64
	next  uint64         // no timer's key is less
	first uint32         // the slot with a timer whose key is next, or 0 if not known
	least uint32         // the position of that timer, if it is above level 0; at level 0 all of a slot have the same key
	busy  uint16         // a bit for each level with an occupied slot
	level [levels]uint32 // the nodes of the levels

	rows rows

	fetched uint32 // a meaningless sum of what fetch read: the compiler drops reads that nothing depends on

	heads                          []*headBlock
	uses                           []*useBlock
	records                        []*recordBlock
	ids                            []*posBlock
	nodes                          []*nodeBlock
	chunkCount, idCount, nodeCount uint32 // numbers ever used, 0 included
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

func toKey(t int64) uint64 { return uint64(t) ^ 1<<63 }

func toTime(key uint64) int64 { return int64(key ^ 1<<63) }

// levelOf is the level of the highest digit in which two keys differ, 0 if they do not.
func levelOf(diff uint64) uint32 { return uint32(bits.Len64(diff|1)-1) / digit }

// Now is the wheel's time in unix ms.
func (w *Wheel) Now() int64 { return toTime(w.now) }

// Len is the number of timers.
func (w *Wheel) Len() int { return int(w.idCount - 1 - w.free.count) }

// Insert adds a timer. If its deadline (unix ms) is not after Now, it is due at Now, after all that are due then already;
// Advance still reports its own deadline.
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

// Next is the time in unix ms at which the next timer is due: exactly the earliest deadline, or Now
// if that is in the past. ok is false when there is no timer.
//
// The answer is remembered until that timer expires or is removed. Then finding the next one looks at
// a single slot, slotMax timers at most.
func (w *Wheel) Next() (deadline int64, ok bool) {
	if w.Len() == 0 {
		return 0, false
	}
	if w.first == 0 {
		w.next, w.first, w.least = w.earliest()
	}
	return toTime(w.next), true
}

// Advance moves time to `to` (unix ms), and calls expired for each timer that is due by then, in the
// order (deadline, insertion), but for at most budget of them. It reports whether these were
// all. If not, time stands at the deadline of the last one it yielded, and a later Advance
// goes on from there. Time never goes back: an earlier `to` counts as Now.
//
// When expired is called, its timer is gone already. expired may call Remove and Insert, but not
// Advance. A timer inserted with a deadline up to `to` is yielded in its turn by the same Advance.
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
			w.advanceTo(at)
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
	w.advanceTo(end)
	return true
}

// pop takes out the first timer of s, a slot of level 0. It is due now.
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

// popRow takes out the first timer of row g. It is due now.
func (w *Wheel) popRow(g uint32) (data uint32) {
	for {
		e := w.rows.next[g]
		w.rows.next[g] = w.rows.next[e]
		pos := w.rows.pos[e]
		u, bit := w.use(pos/chunkLen), uint16(1)<<(pos%chunkLen)
		if w.chunk(pos/chunkLen).slot != inRows || u.live&bit == 0 {
			continue // the timer was removed, and its chunk may be in use elsewhere
		}
		u.live &^= bit
		r := w.record(pos)
		data = r.data
		w.freeID(r.id, w.pos(r.id))
		w.leaveRow(g, pos/chunkLen)
		return data
	}
}

// leaveRow does what is left to do when a timer of row g, in chunk c, is gone.
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

// place puts a timer at the end of the slot that its key belongs to: by itself if the last chunk has room and no split is
// due, as for most insertions, else by placeIn. One function for both saved more registers on the stack at each call, and
// most likely those writes waited behind writes that miss the cache. For the same reason place returns id and calls placed:
// Insert need not keep anything meanwhile.
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

// placed notes the timer at pos, in slot i, if it is the next one due.
func (w *Wheel) placed(key uint64, i, pos uint32) {
	if key < w.next {
		w.next, w.first, w.least = key, i, pos
	}
}

// placeIn is place in the general case: slot i may be empty, its last chunk may be full or of the wrong step, and the slot
// may have to be split afterwards.
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

// recount counts the timers of slot s again. Remove does not keep count: it would have to wait for the
// slot's memory.
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
	w.reinsert(&old, last)
}

// advanceTo moves now to t, which is no greater than any key, and moves the timers of the slots that t is in to lower levels.
func (w *Wheel) advanceTo(t uint64) {
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
				w.makeRows(&s)
			} else {
				w.reinsert(&s, t|(1<<(k*digit)-1))
			}
			return // the slots that t is in at lower levels were empty, and these timers went to others, or to level 0
		}
		w.dropNode(w.level[k-1]) // empty, because its time is over
		w.level[k-1] = s.head
		w.node(s.head).up = 0
		w.busy |= 1 << (k - 1)
	}
}

// reinsert places the timers of a former slot again, in order, and frees its chunks. last is the slot's last millisecond.
// None of the timers is late: late ones lie at level 0, which is neither split nor entered.
func (w *Wheel) reinsert(s *slot, last uint64) {
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

// makeRows makes rows of s, a former slot of level 1. Level 0 must be empty. All that this writes, and what expiry will read
// of it, is read ahead first.
func (w *Wheel) makeRows(s *slot) {
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

// fetch reads ahead what moving records will write, and before that the next chunk. Reads that do not depend on each other
// wait for memory together; the writes, one by one, would each wait alone.
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

// vacate empties slot i. If no slot of its node is occupied then and the node splits a slot above, the node goes, and that
// slot is vacated as well.
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

// startOf is the first millisecond of slot i, as a key.
func (w *Wheel) startOf(i uint32) uint64 {
	nd := w.node(i / fan)
	shift := nd.level * digit
	from := nd.from
	if nd.up == 0 {
		from = w.now >> (shift + digit) << (shift + digit)
	}
	return from | uint64(i%fan)<<shift
}

// lastOf is the last millisecond of slot i, as a key.
func (w *Wheel) lastOf(i uint32) uint64 {
	return w.startOf(i) | (1<<(w.node(i/fan).level*digit) - 1)
}

// firstOf is the first occupied slot of node n.
func (w *Wheel) firstOf(n uint32) uint32 {
	return n*fan + uint32(bits.TrailingZeros64(w.node(n).occupied))
}

// deadline is the deadline of the timer at pos, as a key.
func (w *Wheel) deadline(pos uint32) uint64 {
	c := pos / chunkLen
	h := w.chunk(c)
	last := w.now | (fan - 1)
	if h.slot != inRows {
		last = w.lastOf(h.slot)
	}
	return deadlineIn(w.recordsOf(c), int(pos%chunkLen), w.use(c).step, last)
}

// deadlineIn is the deadline, as a key, of the timer at record j of a chunk, in a slot whose last millisecond is last. If
// the record has only the low half, the deadline is the greatest key up to last with that low half; this holds for late
// timers, too.
func deadlineIn(records *[chunkLen]record, j int, step uint8, last uint64) uint64 {
	low := records[j].low
	if step == wide {
		return uint64(records[j+1].low)<<32 | uint64(low)
	}
	return last - uint64(uint32(last)-low)
}

// earliest finds the least key of all timers, its slot, and, above level 0, the timer's position. There must be a timer.
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
