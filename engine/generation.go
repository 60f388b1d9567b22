package engine

// generation is what changed between two checkpoints. A job is added before its first change (touch), with its row as it was. So a
// checkpoint writes what changed and what that replaces, and nothing of jobs that were created and deleted in between.
type generation struct {
	number uint64
	chunks []*[entriesPerChunk]entry // so that growing moves no entries, which would hold up a tick
	n      int
	rows   arena

	forced     delta[forcedFire]
	tombstones delta[tombstone]
	absent     []string // ids of jobs that were removed and may still be in the table
}

const entriesPerChunk = 1024

// entry is a job that changed.
type entry struct {
	slot   uint32 // noSlot: the job was removed
	before uint32 // its entry in the generation of the checkpoint that is being taken, plus 1; 0: none
	old    ref    // its row at the checkpoint before; 0: the job did not exist
	row    ref    // its row in the checkpoint that is being taken, once that has come to it
	spec   ref    // the same for its spec, if no checkpoint has that yet
}

const (
	noSlot  = ^uint32(0)
	noEntry = ^uint32(0)
)

func newGeneration(number uint64) *generation { return &generation{number: number} }

func (g *generation) at(i uint32) *entry { return &g.chunks[i/entriesPerChunk][i%entriesPerChunk] }

// has tells whether a slot's job is in the generation. entry is the job's latest entry. If that belongs to another generation, then
// the entry of that number in this one, if there is one, has another slot.
func (g *generation) has(slot, entry uint32) bool {
	return int(entry) < g.n && g.at(entry).slot == slot
}

func (g *generation) add(e entry) (i uint32) {
	if g.n%entriesPerChunk == 0 {
		g.chunks = append(g.chunks, new([entriesPerChunk]entry))
	}
	i = uint32(g.n)
	g.n++
	*g.at(i) = e
	return i
}

// drop notes that a job was removed, which must have been touched before.
func (g *generation) drop(entry uint32) { g.at(entry).slot = noSlot }

// touch must be called before a job changes. It keeps the row as it was.
func (m *Machine) touch(slot uint32) {
	j := m.jobs.at(slot)
	if m.changes.has(slot, j.entry) {
		return
	}
	e := entry{slot: slot}
	if c := m.saving; c != nil && c.changes.has(slot, j.entry) {
		c.take(j.entry)
		e.before = j.entry + 1
		e.old = m.changes.rows.add(c.changes.rows.get(c.changes.at(j.entry).row))
	} else {
		m.scratch = m.appendRow(m.scratch[:0], j)
		e.old = m.changes.rows.add(m.scratch)
	}
	j.entry = m.changes.add(e)
}

// touchNew must be called when a slot gets a new job, which no checkpoint has.
func (m *Machine) touchNew(slot uint32) {
	m.jobs.at(slot).entry = m.changes.add(entry{slot: slot})
}

// lifetime says in which generations something that never changes was added and removed (removed 0: it is still there).
type lifetime struct{ added, removed uint64 }

// existsIn tells whether it belongs in the checkpoint of a generation.
func (l *lifetime) existsIn(generation uint64) bool { return l.removed == 0 || l.removed > generation }

// delta notes what was added in a generation, and the keys of what was removed that had been added in an earlier one.
type delta[T any] struct {
	added   []*T
	removed []uint64
}

func (l *delta[T]) add(of *lifetime, it *T, generation uint64) {
	of.added = generation
	l.added = append(l.added, it)
}

func (l *delta[T]) remove(of *lifetime, key, generation uint64) {
	of.removed = generation
	if of.added != generation {
		l.removed = append(l.removed, key)
	}
}

// prepend adds what an older generation noted, in front.
func (l *delta[T]) prepend(older *delta[T]) {
	l.added = append(older.added, l.added...)
	l.removed = append(older.removed, l.removed...)
}

// arena holds byte strings that are all freed together.
type arena struct {
	pages [][]byte
	bytes int // that the pages take
}

// ref is a place in an arena; 0 is none.
type ref uint64

const arenaPage = 1 << 16

func (a *arena) add(b []byte) ref {
	last := len(a.pages) - 1
	if last < 0 || len(a.pages[last])+textSize(len(b)) > cap(a.pages[last]) {
		a.pages = append(a.pages, make([]byte, 1, max(arenaPage, 1+textSize(len(b))))) // nothing begins at 0, so ref 0 is free
		last++
		a.bytes += cap(a.pages[last])
	}
	at := len(a.pages[last])
	a.pages[last] = appendString(a.pages[last], b)
	return ref(last*arenaPage + at)
}

func (a *arena) get(r ref) []byte {
	if r == 0 {
		return nil
	}
	d := decoder{b: a.pages[r/arenaPage][r%arenaPage:]}
	return d.bytes()
}
