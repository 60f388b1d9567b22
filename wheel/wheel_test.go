package wheel

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

const (
	hour = int64(3_600_000)
	year = 365 * 24 * hour
	y2k  = int64(946_684_800_000)
)

// modelTimer is a timer of the model, which is a list sorted by (key, seq).
type modelTimer struct {
	key, deadline int64
	seq           uint32 // also its data
	id            ID
}

func byOrder(a, b modelTimer) int {
	return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.seq, b.seq))
}

// pair is a wheel and its model, which must agree.
type pair struct {
	w     *Wheel
	now   int64
	seq   uint32
	model []modelTimer
}

func newPair(now int64) *pair { return &pair{w: New(now), now: now} }

func (p *pair) insert(deadline int64) {
	p.seq++
	m := modelTimer{key: max(deadline, p.now), deadline: deadline, seq: p.seq}
	m.id = p.w.Insert(deadline, m.seq)
	i, _ := slices.BinarySearchFunc(p.model, m, byOrder)
	p.model = slices.Insert(p.model, i, m)
}

func (p *pair) remove(i int) {
	p.w.Remove(p.model[i].id)
	p.model = slices.Delete(p.model, i, i+1)
}

type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// advance compares each timer that is yielded with the model's, and then calls during, which may insert and remove.
func (p *pair) advance(t failer, to int64, budget int, during func()) (done bool) {
	t.Helper()
	end, yielded := max(to, p.now), 0
	done = p.w.Advance(to, budget, func(data uint32, deadline int64) {
		if len(p.model) == 0 {
			t.Fatalf("yielded #%d, but there is no timer", data)
		}
		m := p.model[0]
		if data != m.seq || deadline != m.deadline || m.key > end {
			t.Fatalf("yielded #%d due %d, want #%d due %d, by %d", data, deadline, m.seq, m.deadline, end)
		}
		p.model, p.now = p.model[1:], m.key
		if p.w.Now() != p.now {
			t.Fatalf("Now %d while yielding a timer due %d", p.w.Now(), p.now)
		}
		yielded++
		during()
	})
	due := len(p.model) > 0 && p.model[0].key <= end
	if done == due || due && yielded < max(budget, 0) || yielded > max(budget, 0) {
		t.Fatalf("done %v after %d of budget %d, more due: %v", done, yielded, budget, due)
	}
	if done {
		p.now = end
	}
	return done
}

func (p *pair) agree(t failer) {
	t.Helper()
	if p.w.Now() != p.now || p.w.Len() != len(p.model) {
		t.Fatalf("Now %d, Len %d, want %d, %d", p.w.Now(), p.w.Len(), p.now, len(p.model))
	}
	next, ok := p.w.Next()
	if ok != (len(p.model) > 0) || ok && next != p.model[0].key {
		t.Fatalf("Next %d %v, want one of %d timers: %v", next, ok, len(p.model), p.model[:min(1, len(p.model))])
	}
}

// deadlines compares what Deadline says of every timer.
func (p *pair) deadlines(t failer) {
	t.Helper()
	for _, m := range p.model {
		if d := p.w.Deadline(m.id); d != m.deadline {
			t.Fatalf("Deadline of #%d %d, want %d; now %d", m.seq, d, m.deadline, p.now)
		}
	}
}

// check verifies the invariants that the essay in wheel.go states, and that nothing leaks. Data must
// be numbered from 1 in the order of insertion.
func check(t failer, w *Wheel) {
	t.Helper()
	c := checker{t: t, w: w, first: map[uint32]bool{}, lastOfRow: map[uint32]uint32{}, rowChunks: map[uint32]uint16{}, nodes: map[uint32]bool{}}
	c.rows()
	for k := range uint32(levels) {
		from := w.now >> ((k + 1) * digit) << ((k + 1) * digit)
		c.node(w.level[k], k, 0, from)
		if (w.node(w.level[k]).occupied != 0) != (w.busy>>k&1 == 1) {
			t.Fatalf("level %d: busy %b, occupied %b", k, w.busy, w.node(w.level[k]).occupied)
		}
	}
	c.next()
	c.nothingLeaks()
}

// checker is a check in progress.
type checker struct {
	t failer
	w *Wheel

	timers, chunks int               // found so far
	first          map[uint32]bool   // slots with a timer that is the next one due
	lastOfRow      map[uint32]uint32 // data
	rowChunks      map[uint32]uint16 // records in rows
	nodes          map[uint32]bool   // found so far
}

// rows checks the rows of the lowest level.
func (c *checker) rows() {
	c.t.Helper()
	w := c.w
	for g := range uint32(fan) {
		left, low := uint16(0), w.now/fan*fan+uint64(g)
		for e := w.rows.next[g]; left < w.rows.left[g]; e = w.rows.next[e] {
			pos := w.rows.pos[e]
			chunk, bit := pos/chunkLen, uint16(1)<<(pos%chunkLen)
			if w.chunk(chunk).slot != inRows || w.use(chunk).live&bit == 0 {
				continue
			}
			r := w.record(pos)
			if *w.pos(r.id) != pos || w.deadline(pos) != low || low < w.now || c.rowChunks[chunk]&bit != 0 {
				c.t.Fatalf("timer %+v at %d (pos %d), in the row of %d at %d", *r, pos, *w.pos(r.id), low, w.now)
			}
			if c.lastOfRow[g] >= r.data {
				c.t.Fatalf("#%d before #%d, both due %d", c.lastOfRow[g], r.data, low)
			}
			c.lastOfRow[g] = r.data
			c.rowChunks[chunk] |= bit
			left++
		}
		if left == 0 && w.rows.last[g] != uint16(g) {
			c.t.Fatalf("row %d of no timer ends at %d", g, w.rows.last[g])
		}
		c.timers += int(left)
		if left > 0 && low == w.next {
			c.first[w.level[0]*fan+g] = true
		}
		if left > 0 && low < w.next {
			c.t.Fatalf("next due %d, but #%d is due %d", w.next, c.lastOfRow[g], low)
		}
	}
	for chunk, records := range c.rowChunks {
		if c.chunks++; *w.use(chunk) != (use{live: records, step: 1, alone: true}) {
			c.t.Fatalf("chunk %d: %+v, %b in rows", chunk, *w.use(chunk), records)
		}
	}
}

// node checks a node and those that split its slots. up is the slot that the node splits (0: none), from is where it begins.
func (c *checker) node(n, level, up uint32, from uint64) {
	c.t.Helper()
	w, nd := c.w, c.w.node(n)
	if c.nodes[n] || nd.level != level || nd.up != up {
		c.t.Fatalf("node %d at level %d under slot %d: %d, %d, seen %v", n, level, up, nd.level, nd.up, c.nodes[n])
	}
	c.nodes[n] = true
	for g := range uint32(fan) {
		s, i := nd.slots[g], n*fan+g
		row := n == w.level[0] && w.rows.left[g] > 0
		if (s.head != 0 || row) != (nd.occupied>>g&1 == 1) {
			c.t.Fatalf("slot %d.%d: occupied %b, head %d", level, g, nd.occupied, s.head)
		}
		if s.head == 0 {
			if s != (slot{}) {
				c.t.Fatalf("empty slot %d.%d: %+v", level, g, s)
			}
			continue
		}
		low := from | uint64(g)<<(level*digit)
		if up == 0 && (level > 0 && low <= w.now) {
			c.t.Fatalf("slot %d.%d begins at %d, not after now %d", level, g, low, w.now)
		}
		if s.split() {
			c.node(s.head, level-1, i, low)
			continue
		}
		last := map[uint64]uint32{}
		if row {
			last[low] = c.lastOfRow[g]
		}
		live, end := c.slot(&s, i, level, low, last)
		if (s.end-1)/chunkLen != end || s.count < live || level > 0 && s.count > slotMax {
			c.t.Fatalf("slot %d.%d: %+v, has %d, last chunk %d", level, g, s, live, end)
		}
		c.timers += int(live)
	}
	if nd.occupied == 0 && up != 0 {
		c.t.Fatalf("node %d splits slot %d but is empty", n, up)
	}
}

// slot checks the chunks of slot i, which begins at low, and returns how many timers they have, and the last chunk. last has the data of
// the last timer of each deadline so far.
func (c *checker) slot(s *slot, i, level uint32, low uint64, last map[uint64]uint32) (live, end uint32) {
	c.t.Helper()
	w := c.w
	for chunk := s.head; chunk != 0; end, chunk = chunk, w.chunk(chunk).next {
		h, u := w.chunk(chunk), w.use(chunk)
		c.chunks++
		empty := w.used(s, chunk) == 0 && (h.prev == 0 || h.next != 0) // the last chunk may be empty if it is not alone
		if h.slot != i || h.prev != end || empty || h.next != 0 && u.live&^ones[u.step] != 0 ||
			u.alone != (h.prev == 0 && h.next == 0) {
			c.t.Fatalf("chunk %d after %d in slot %d: %+v, %+v", chunk, end, i, *h, *u)
		}
		for used := w.used(s, chunk); used != 0; used &= used - 1 {
			pos := chunk*chunkLen + uint32(bits.TrailingZeros16(used))
			r := w.record(pos)
			key := max(w.deadline(pos), w.now)
			if *w.pos(r.id) != pos || key>>(level*digit)<<(level*digit) != low {
				c.t.Fatalf("timer %+v at %d (pos %d), slot of %d at level %d", *r, pos, *w.pos(r.id), low, level)
			}
			if last[key] >= r.data {
				c.t.Fatalf("#%d before #%d, both due %d", last[key], r.data, key)
			}
			last[key] = r.data
			live++
			if key == w.next {
				c.first[i] = true
			}
			if key < w.next {
				c.t.Fatalf("next due %d, but #%d is due %d", w.next, r.data, key)
			}
		}
	}
	return live, end
}

// next checks what the wheel remembers of the next timer due.
func (c *checker) next() {
	c.t.Helper()
	w := c.w
	if w.first != 0 && !c.first[w.first] {
		c.t.Fatalf("the next one due is not in slot %d", w.first)
	}
	if i := w.first; i != 0 && w.node(i/fan).level > 0 {
		chunk, bit := w.least/chunkLen, uint16(1)<<(w.least%chunkLen)
		if *w.pos(w.record(w.least).id) != w.least || w.chunk(chunk).slot != i || w.used(w.slot(i), chunk)&bit == 0 || w.deadline(w.least) != w.next {
			c.t.Fatalf("at %d of slot %d is no timer due %d", w.least, i, w.next)
		}
	}
}

// nothingLeaks checks that each id, chunk and node is either in use or free.
func (c *checker) nothingLeaks() {
	c.t.Helper()
	w := c.w
	freeChunks, freeNodes, freeIDs := 0, 0, 0
	for k, id := range w.free.top {
		if at := w.free.count % freeRow; at != 0 && uint32(k) >= at {
			id = w.free.below[k]
		}
		for ; id != 0; id = ID(*w.pos(id) &^ freeBit) {
			freeIDs++
		}
	}
	for chunk := w.freeChunk; chunk != 0; chunk = w.chunk(chunk).next {
		freeChunks++
	}
	for n := w.freeNode; n != 0; n = w.node(n).up {
		freeNodes++
	}
	if c.timers != w.Len() || c.timers+int(w.free.count) != int(w.idCount)-1 || freeIDs != int(w.free.count) ||
		freeChunks != int(w.freeChunkCount) || c.chunks+freeChunks != int(w.chunkCount)-1 ||
		len(c.nodes)+freeNodes != int(w.nodeCount)-1 {
		c.t.Fatalf("%d timers of %d, ids %d (%d) free of %d; chunks %d + %d free (%d) of %d; nodes %d + %d free of %d",
			c.timers, w.Len(), freeIDs, w.free.count, w.idCount-1, c.chunks, freeChunks, w.freeChunkCount, w.chunkCount-1,
			len(c.nodes), freeNodes, w.nodeCount-1)
	}
}

// spans are distances in time that reach every level, with the edges of slots among them.
func drawSpan(t *rapid.T, label string) int64 {
	switch rapid.IntRange(0, 6).Draw(t, label+" kind") {
	case 0:
		return rapid.Int64Range(-5, 70).Draw(t, label)
	case 1:
		return rapid.Int64Range(0, 5000).Draw(t, label)
	case 2:
		return rapid.Int64Range(0, 3*hour).Draw(t, label)
	case 3:
		return rapid.Int64Range(0, 300*year).Draw(t, label)
	case 4:
		return int64(1)<<(digit*rapid.IntRange(0, 7).Draw(t, label+" level")) + rapid.Int64Range(-1, 1).Draw(t, label)
	case 5:
		return -int64(1)<<rapid.SampledFrom([]int{5, 31, 32, 33, 42}).Draw(t, label+" late") + rapid.Int64Range(-1, 1).Draw(t, label)
	}
	return rapid.Int64Range(0, 100).Draw(t, label) * hour / 60 // many at the same time
}

func TestWheelAgainstSortedList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.SampledFrom([]int64{y2k, 0, 1<<42 - 3, -62_167_219_200_000, 253_402_300_799_000}).Draw(t, "start")
		p := newPair(start)
		deadline := func(t *rapid.T) int64 {
			if len(p.model) > 0 && rapid.IntRange(0, 3).Draw(t, "again") == 0 {
				return p.model[rapid.IntRange(0, len(p.model)-1).Draw(t, "as")].deadline
			}
			return p.now + drawSpan(t, "in")
		}
		advance := func(t *rapid.T) {
			to := p.now + drawSpan(t, "to")
			if len(p.model) > 0 && rapid.Bool().Draw(t, "to a timer") {
				to = p.model[rapid.IntRange(0, len(p.model)-1).Draw(t, "timer")].key + rapid.Int64Range(-1, 1).Draw(t, "off")
			}
			budget := rapid.SampledFrom([]int{0, 1, 2, 7, 100, math.MaxInt}).Draw(t, "budget")
			acts := rapid.IntRange(0, 12).Draw(t, "acts")
			p.advance(t, to, budget, func() {
				if acts--; acts < 0 {
					return
				}
				switch rapid.IntRange(0, 4).Draw(t, "during") {
				case 0:
					p.insert(p.now + rapid.Int64Range(-2, 2).Draw(t, "soon"))
				case 1:
					p.insert(min(to, math.MaxInt64-9) + rapid.Int64Range(-2, 2).Draw(t, "about to"))
				case 2:
					p.insert(deadline(t))
				case 3:
					if len(p.model) > 0 {
						p.remove(rapid.IntRange(0, min(20, len(p.model)-1)).Draw(t, "victim"))
					}
				case 4:
					p.agree(t)
				}
			})
		}
		t.Repeat(map[string]func(*rapid.T){
			"":        func(t *rapid.T) { p.agree(t); p.deadlines(t); check(t, p.w) },
			"insert":  func(t *rapid.T) { p.insert(deadline(t)) },
			"advance": advance,
			"run":     advance,
			"remove": func(t *rapid.T) {
				if len(p.model) == 0 {
					t.Skip("empty")
				}
				i := rapid.IntRange(0, len(p.model)-1).Draw(t, "i")
				if d := p.w.Deadline(p.model[i].id); d != p.model[i].deadline {
					t.Fatalf("Deadline %d, want %d", d, p.model[i].deadline)
				}
				p.remove(i)
			},
			"remove first": func(t *rapid.T) {
				if len(p.model) == 0 {
					t.Skip("empty")
				}
				p.remove(0)
			},
			"insert many": func(t *rapid.T) { // enough to split slots, also several levels deep
				rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
				from, width := deadline(t), 1+rapid.SampledFrom([]int64{0, 3, 63, 4096, 100_000, hour, 2 * year}).Draw(t, "width")
				for range min(rapid.SampledFrom([]int{100, slotMax + 1, 2 * slotMax}).Draw(t, "n"), 4*slotMax-len(p.model)) {
					p.insert(from + rng.Int64N(width))
				}
			},
			"remove many": func(t *rapid.T) {
				rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
				keep := rapid.SampledFrom([]float64{0, 0.02, 0.2, 0.5, 0.8}).Draw(t, "keep")
				p.model = slices.DeleteFunc(p.model, func(m modelTimer) bool {
					if rng.Float64() < keep {
						return false
					}
					p.w.Remove(m.id)
					return true
				})
			},
		})
		for !p.advance(t, math.MaxInt64, 1000, func() {}) {
			p.agree(t)
		}
		check(t, p.w)
	})
}

// A long run without rapid's reduction, at the size where slots split and chunks merge all the time.
func TestChurn(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	p := newPair(y2k)
	far := func() int64 { return p.now + rng.Int64N(int64(1)<<rng.IntN(36)) }
	for round := range 60 {
		for range 400 {
			p.insert(far())
		}
		for range 250 {
			p.remove(rng.IntN(len(p.model)))
		}
		p.agree(t)
		p.advance(t, p.now+rng.Int64N(int64(1)<<rng.IntN(24)), rng.IntN(300), func() {
			if rng.IntN(3) == 0 {
				p.insert(far())
			}
			if rng.IntN(3) == 0 && len(p.model) > 0 {
				p.remove(rng.IntN(len(p.model)))
			}
		})
		p.agree(t)
		if round%5 == 0 {
			p.deadlines(t)
			check(t, p.w)
		}
	}
}

// What is yielded does not depend on where the timers lie: a wheel that is filled with the same timers later yields the same for the same
// budgets.
func TestRefilledWheelGoesOnAlike(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	old := newPair(y2k)
	for range 3 * slotMax {
		old.insert(old.now + rng.Int64N(10*hour)/1000*1000)
	}
	for round := range 40 {
		old.advance(t, old.now+rng.Int64N(hour/4), rng.IntN(200), func() {})
		fresh := New(old.now)
		bySeq := slices.Clone(old.model)
		slices.SortFunc(bySeq, func(a, b modelTimer) int { return cmp.Compare(a.seq, b.seq) })
		for _, m := range bySeq {
			fresh.Insert(m.deadline, m.seq)
		}
		to, budget := old.now+rng.Int64N(hour/4), rng.IntN(200)
		var want, got []uint32
		before := old.model
		wantDone := old.advance(t, to, budget, func() {})
		for _, m := range before[:len(before)-len(old.model)] {
			want = append(want, m.seq)
		}
		done := fresh.Advance(to, budget, func(data uint32, _ int64) { got = append(got, data) })
		if done != wantDone || !slices.Equal(got, want) || fresh.Now() != old.w.Now() {
			t.Fatalf("round %d: refilled yields %v, done %v, now %d; the first %v, %v, %d",
				round, got, done, fresh.Now(), want, wantDone, old.w.Now())
		}
	}
}

// A timer that was inserted early, far ahead, and whose slot was split or entered since, precedes one of the same deadline that was
// inserted late.
func TestInsertionOrderOfEqualDeadlines(t *testing.T) {
	for _, crowd := range []int{0, slotMax + 1} {
		t.Run(fmt.Sprint(crowd), func(t *testing.T) {
			p := newPair(y2k)
			at := y2k + year + 12345
			p.insert(at)
			for i := range crowd {
				p.insert(at - int64(i%7)*999)
			}
			for _, before := range []int64{year, hour, 10_000, 70, 64, 1, 0} {
				p.advance(t, at-before-1, math.MaxInt, func() {})
				p.insert(at)
				p.agree(t)
				check(t, p.w)
			}
			if !p.advance(t, at, math.MaxInt, func() {}) || p.w.Len() != 0 {
				t.Fatalf("%d timers left", p.w.Len())
			}
		})
	}
}

// Each timer is earlier than all before it, so the one that splits a slot is the next one due.
func TestNextAcrossSplit(t *testing.T) {
	p := newPair(0)
	for i := range int64(2 * slotMax) {
		nodes := p.w.nodeCount
		p.insert(1<<30 - i)
		if p.w.nodeCount != nodes {
			check(t, p.w)
			p.remove(0)
		}
		p.agree(t)
	}
	if p.w.nodeCount == levels+1 {
		t.Fatal("no slot was split")
	}
}

// The next timer due is moved by a merge, and then removed.
func TestNextAcrossMerge(t *testing.T) {
	p := newPair(0)
	for i := range int64(3 * chunkLen) {
		p.insert(1<<20 - i) // the last chunk has the earliest timer
	}
	p.agree(t)
	least := p.w.least
	for least == p.w.least && len(p.model) > 2 {
		p.remove(len(p.model) / 2)
		p.agree(t)
		check(t, p.w)
	}
	if least == p.w.least {
		t.Fatal("no merge moved it")
	}
	for len(p.model) > 0 {
		p.remove(0)
		p.agree(t)
		check(t, p.w)
	}
}

// When now reaches a slot of level 1, its records stay where they are, even while some of them are removed.
func TestRowsMoveNoRecord(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	p := newPair(0)
	for range 500 {
		p.insert(fan + rng.Int64N(fan))
	}
	pos := map[uint32]uint32{}
	for _, m := range p.model {
		pos[m.seq] = *p.w.pos(m.id)
	}
	p.advance(t, fan, 1, func() {})
	for len(p.model) > 0 {
		check(t, p.w)
		for range min(40, len(p.model)) {
			p.remove(rng.IntN(len(p.model)))
		}
		p.insert(p.now + rng.Int64N(fan))
		p.agree(t)
		for _, m := range p.model {
			if was, ok := pos[m.seq]; ok && *p.w.pos(m.id) != was {
				t.Fatalf("#%d moved from %d to %d", m.seq, was, *p.w.pos(m.id))
			}
		}
		p.advance(t, p.now+5, 20, func() {})
	}
	check(t, p.w)
	if used := p.w.chunkCount - 1 - p.w.freeChunkCount; used != 0 {
		t.Fatalf("%d chunks are not free", used)
	}
}

// A slot never holds more timers than rows have room for, wherever in a chunk its last record is: the next insertion splits it.
func TestSlotMax(t *testing.T) {
	p := newPair(0)
	fill := func(n int) {
		for range n {
			p.insert(fan + int64(p.seq)%fan)
		}
	}
	fill(slotMax)
	for range slotMax/2 + 100 {
		p.remove(0)
	}
	fill(1) // the slot is counted again, and need not be split
	fill(slotMax - len(p.model))
	i := p.w.level[1]*fan + 1
	if s := p.w.slot(i); s.split() || s.count != slotMax || s.end%chunkLen == 0 {
		t.Fatalf("%d timers, split %v, end at %d of a chunk; want %d, in the midst of one", s.count, s.split(), s.end%chunkLen, slotMax)
	}
	fill(1)
	if !p.w.slot(i).split() {
		t.Errorf("%d timers are in one slot", len(p.model))
	}
	for len(p.model) > 0 {
		p.advance(t, p.now+10, 500, func() {})
		p.agree(t)
	}
	check(t, p.w)
}

// A record has only half of its deadline. The other half must be known for timers late by any time, too, beside those that are not
// late; and it must stay known when the slot moves to another level.
func TestBothHalvesOfDeadlines(t *testing.T) {
	for _, start := range []int64{0, 1<<32 - 1, 1<<32 + 5, y2k, -1 << 33} {
		p := newPair(start)
		rng := rand.New(rand.NewPCG(13, 14))
		for range 40 {
			for range rng.IntN(30) { // runs of different kinds in turn, some of several chunks
				p.insert(p.now)
			}
			for _, late := range []int64{1, 1<<32 - 1, 1 << 32, 1<<32 + 1, 1 << 40} {
				p.insert(p.now - late)
				for e := range 43 {
					p.insert(p.now + 1<<e - rng.Int64N(2))
				}
				if rng.IntN(2) == 0 {
					p.remove(rng.IntN(len(p.model)))
				}
			}
			p.deadlines(t)
			check(t, p.w)
			p.agree(t)
		}
		for len(p.model) > 0 {
			p.advance(t, p.model[min(300, len(p.model)-1)].key, 299, func() {})
			p.deadlines(t)
			p.agree(t)
		}
		check(t, p.w)
	}
}

// The last chunk of a slot may hold no timer, if it is not alone. However the rest of the slot is removed, that chunk is freed, too.
func TestLastChunkWithoutTimers(t *testing.T) {
	for name, rest := range map[string]func(t *testing.T, p *pair){
		"removed": func(t *testing.T, p *pair) {
			for len(p.model) > 0 {
				p.remove(0)
			}
		},
		"merged": func(t *testing.T, p *pair) {
			for len(p.model) > 1 {
				p.remove(1)
				check(t, p.w)
			}
			if used := p.w.chunkCount - 1 - p.w.freeChunkCount; used != 1 {
				t.Fatalf("one timer is in %d chunks", used)
			}
			p.remove(0)
		},
		"expired": func(t *testing.T, p *pair) { p.advance(t, p.model[0].key, math.MaxInt, func() {}) },
		"expired by one": func(t *testing.T, p *pair) {
			for len(p.model) > 0 {
				p.advance(t, p.model[0].key, 1, func() {})
				check(t, p.w)
			}
		},
		"closed": func(t *testing.T, p *pair) { // if it is the slot of now, by a timer that needs a wide chunk
			p.insert(p.now - 1<<33)
			check(t, p.w)
			p.deadlines(t)
			p.advance(t, math.MaxInt64, math.MaxInt, func() {})
		},
	} {
		for _, in := range []int64{0, 10, 100, 10_000, 1 << 40} {
			t.Run(fmt.Sprintf("%s in %d", name, in), func(t *testing.T) {
				p := newPair(0)
				for range chunkLen + 5 {
					p.insert(in)
				}
				for len(p.model) > chunkLen/2 { // as many as a wide chunk holds
					p.remove(len(p.model) - 1)
					check(t, p.w)
					if len(p.model) == chunkLen && in < 1<<36 {
						if used := p.w.chunkCount - 1 - p.w.freeChunkCount; used != 2 {
							t.Fatalf("%d chunks, want a second without timers", used)
						}
						break
					}
				}
				p.deadlines(t)
				rest(t, p)
				p.agree(t)
				check(t, p.w)
				if used := p.w.chunkCount - 1 - p.w.freeChunkCount; used != 0 || len(p.model) != 0 {
					t.Fatalf("%d chunks are not free", used)
				}
			})
		}
	}
}

// Free ids are used again in the order last in, first out, and take no memory meanwhile.
func TestFreeIDs(t *testing.T) {
	const n = 5*freeRow + 3
	w, rng := New(0), rand.New(rand.NewPCG(17, 18))
	ids := make([]ID, n)
	for i := range ids {
		ids[i] = w.Insert(hour+int64(i), uint32(i+1))
	}
	held, seq := w.Bytes(), uint32(n)
	var free []ID
	insert := func() {
		seq++
		id := w.Insert(hour, seq)
		if last := len(free) - 1; id != free[last] {
			t.Fatalf("id %d, want %d, of %d", id, free[last], len(free))
		}
		ids, free = append(ids, id), free[:len(free)-1]
	}
	remove := func() {
		i := rng.IntN(len(ids))
		w.Remove(ids[i])
		free = append(free, ids[i])
		ids = slices.Delete(ids, i, i+1)
	}
	for range 300 {
		for to := rng.IntN(n + 1); len(free) < to; {
			remove()
		}
		for range rng.IntN(4) { // up and down, perhaps at the end of a row
			if len(free) > 0 {
				insert()
			}
			remove()
		}
		check(t, w)
		for to := rng.IntN(n); len(free) > to; {
			insert()
		}
		check(t, w)
	}
	if w.Bytes() != held {
		t.Errorf("%d bytes held, %d before", w.Bytes(), held)
	}
}

func TestLateTimers(t *testing.T) {
	w := New(1000)
	w.Insert(1000, 1)
	w.Insert(400, 2)
	w.Insert(700, 3)
	if next, ok := w.Next(); !ok || next != 1000 {
		t.Fatalf("Next %d %v, want now", next, ok)
	}
	var got []int64
	w.Advance(0, 10, func(data uint32, deadline int64) {
		got = append(got, int64(data), deadline)
		if data == 1 {
			w.Insert(-5, 4)
		}
	})
	if want := []int64{1, 1000, 2, 400, 3, 700, 4, -5}; !slices.Equal(got, want) {
		t.Fatalf("yielded %v, want %v", got, want)
	}
	if w.Now() != 1000 {
		t.Fatalf("Now %d: time went back", w.Now())
	}
}

func TestEndsOfTime(t *testing.T) {
	w := New(math.MinInt64)
	for _, d := range []int64{math.MaxInt64, 0, -1, math.MinInt64, 1, math.MaxInt64 - 1} {
		w.Insert(d, 0)
	}
	var got []int64
	w.Advance(math.MaxInt64, 10, func(_ uint32, deadline int64) { got = append(got, deadline) })
	if want := []int64{math.MinInt64, -1, 0, 1, math.MaxInt64 - 1, math.MaxInt64}; !slices.Equal(got, want) {
		t.Fatalf("yielded %v, want %v", got, want)
	}
}

func TestRemoveOfDeadTimerPanics(t *testing.T) {
	w := New(0)
	gone := w.Insert(5, 0)
	w.Insert(6, 0)
	w.Remove(gone)
	for _, id := range []ID{0, gone, 3, math.MaxUint32} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Remove(%d) did not panic", id)
				}
			}()
			w.Remove(id)
		}()
	}
	if w.Len() != 1 {
		t.Fatalf("Len %d, want 1", w.Len())
	}
}

// No operation works on more than a few slots' worth of timers, however many there are: in the worst
// slot of a classic wheel, here half a million, nothing moves them all.
func TestBoundedWork(t *testing.T) {
	const n = 500_000
	rng := rand.New(rand.NewPCG(5, 6))
	w := New(0)
	ids := make([]ID, n)
	const from, width = int64(1) << 30, int64(1) << 30
	for i := range ids {
		ids[i] = w.Insert(from+rng.Int64N(width), uint32(i+1))
	}
	moved := func(op func()) int { // records that are elsewhere than before
		count := 0
		before := make([]uint32, n)
		for i, id := range ids {
			before[i] = *w.pos(id)
		}
		op()
		for i, id := range ids {
			if *w.pos(id) != before[i] {
				count++
			}
		}
		return count
	}
	if m := moved(func() { w.Advance(from-1, 1, nil) }); m != 0 {
		t.Errorf("a step to just before the slot moved %d timers", m)
	}
	first, _ := w.Next()
	if m := moved(func() { w.Advance(first-1, 1, nil) }); m > slotMax {
		t.Errorf("a step into the slot moved %d timers", m)
	}
	if m := moved(func() { w.Advance(first+10, 1, func(uint32, int64) {}) }); m > slotMax+1 {
		t.Errorf("one timer yielded, %d moved", m)
	}
	check(t, w)
}

// Removals cannot make the rest hold much more memory than it needs.
func TestRemovalsGiveRoom(t *testing.T) {
	removalsGiveRoom(t, hour, 2.5)
	removalsGiveRoom(t, 1<<50, 3.5) // in wide chunks
}

// most is how many records of memory a timer may take.
func removalsGiveRoom(t *testing.T, width int64, most float64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, 8))
	w := New(0)
	const keep, rounds = 4_000, 200
	seq := uint32(0)
	for range rounds { // in each, one timer of 50 stays
		var ids []ID
		for range keep / rounds * 50 {
			seq++
			ids = append(ids, w.Insert(width+rng.Int64N(width), seq))
		}
		for j, id := range ids {
			if j%50 != 0 {
				w.Remove(id)
			}
		}
	}
	check(t, w)
	if w.Len() != keep {
		t.Fatalf("Len %d", w.Len())
	}
	if room := float64(w.chunkCount-1-w.freeChunkCount) * chunkLen / keep; room > most {
		t.Errorf("a timer holds %.1f records", room)
	}
}

func TestMemory(t *testing.T) {
	for _, v := range []any{headBlock{}, useBlock{}, recordBlock{}, posBlock{}, nodeBlock{}} {
		if typ := reflect.TypeOf(v); hasPointer(typ) {
			t.Errorf("%v holds a pointer for the collector to follow", typ)
		}
	}
	if !hasPointer(reflect.TypeOf(struct{ a [2]struct{ p *int } }{})) {
		t.Error("hasPointer does not see one")
	}
	if size := float64(unsafe.Sizeof(chunk{}))/chunkLen + float64(unsafe.Sizeof(record{})+unsafe.Sizeof(uint32(0))); size > 17 {
		t.Errorf("%.1f bytes a timer, over 17", size)
	}
	for _, c := range []struct {
		width int64
		most  float64
	}{{fan / 2, 18}, {40_000, 18}, {1 << 30, 18}, {1 << 50, 32}} {
		w, rng := New(0), rand.New(rand.NewPCG(15, 16))
		for range 100_000 {
			w.Insert(1+rng.Int64N(c.width), 0)
		}
		chunks := float64(w.chunkCount) * float64(unsafe.Sizeof(chunk{})+chunkLen*unsafe.Sizeof(record{}))
		if per := chunks/100_000 + 4; per > c.most {
			t.Errorf("%.1f bytes a timer within %d, over %.0f", per, c.width, c.most)
		}
	}
	w := New(0)
	w.Grow(100_000)
	held := w.Bytes()
	for i := range int64(100_000) {
		w.Insert(i*i%hour, 0)
	}
	if grown := w.Bytes() - held; grown > int(unsafe.Sizeof(nodeBlock{}))*16 {
		t.Errorf("Grow left %d bytes to be taken by Insert", grown)
	}
}

func hasPointer(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Array:
		return hasPointer(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if hasPointer(t.Field(i).Type) {
				return true
			}
		}
		return false
	case reflect.Pointer, reflect.UnsafePointer, reflect.Slice, reflect.String, reflect.Map, reflect.Interface, reflect.Func, reflect.Chan:
		return true
	}
	return false
}

func TestNoAllocations(t *testing.T) {
	const n = 50_000
	rng := rand.New(rand.NewPCG(9, 10))
	w := New(y2k)
	w.Grow(2 * n)
	ids := make([]ID, n)
	arm := func(i uint32, _ int64) { ids[i] = w.Insert(w.Now()+1+rng.Int64N(hour), i) }
	for i := range ids {
		arm(uint32(i), 0)
	}
	for name, op := range map[string]func(){
		"insert and remove": func() {
			i := rng.IntN(n)
			w.Remove(ids[i])
			arm(uint32(i), 0)
		},
		"next":               func() { w.Next() },
		"advance and re-arm": func() { w.Advance(w.Now()+10, 100, arm) },
	} {
		if allocs := testing.AllocsPerRun(20_000, op); allocs != 0 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}
