package engine

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/google/btree"
)

// # Which jobs are in memory
//
// A job that does not change and does not come due need not be in memory: the newest checkpoint has it, in a table on
// disk. Which jobs are in memory is the host's choice, and no decision of the machine may depend on it. The machine only ever asks
// for a job by its id, and for the first jobs of a priority that are due by some time. The answers are the same whatever is in
// memory, because of these invariants:
//
//   - Every job that changed since the table's checkpoint is in memory, and the id of every job that was removed since is in absent.
//     So memory takes precedence, and what memory does not know is as the table has it.
//   - Each priority has a window, which ends at a Key. Of the jobs that wait in that priority, those up to the window's end are
//     on the wheel, and no others. Keys are in the order in which the wheel yields: by due time, and among equals by arming. Jobs
//     in memory that wait beyond the window are in later.
//   - A window grows in the order of keys. So among equal deadlines the order of insertion is that of arming, whether all
//     jobs are on the wheel or few.
//   - Before a wheel is asked for what is due, it holds all of that, or more than it may yield (ensureLoaded).
//
// Therefore a tick has the same result on a replica that has all jobs in memory and on one that has
// none, and Load, EvictCommitted, Shrink and Forget may come between any two records.

// Key orders the jobs that wait in a priority.
type Key struct {
	Due   int64  // unix ms
	Armed uint64 // the order of arming in the partition
}

func (k Key) compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Due, o.Due), cmp.Compare(k.Armed, o.Armed))
}

// covers tells whether a window that ends here has all that is due by a time.
func (k Key) covers(at int64) bool { return k.Due > at || k == Key{at, math.MaxUint64} }

// allKeys is the end of a window that has all jobs. A window that has none ends at the zero Key.
var allKeys = Key{math.MaxInt64, math.MaxUint64}

func keyOfJob(j *job) Key { return Key{j.next, j.armed} }

// waiting is a job in memory that waits beyond the window.
type waiting struct {
	Key
	slot uint32
}

// residence knows which jobs are in memory.
type residence struct {
	table        Table // of the newest checkpoint; nil: there is none
	complete     bool  // all jobs are in memory
	windows      [priorities]Key
	later        [priorities]*btree.BTreeG[waiting]
	absent       map[string]uint64 // ids of jobs that were removed, each with the generation of its removal
	transient    []uint32          // slots of jobs that were read from the table for one record
	checkpoints  int               // checkpoints committed; tells whether something was read before the newest
	committed    []*committed
	shrinking    bool   // Shrink was called: jobs beyond the windows are leaving memory (ContinueShrink)
	shrinkCursor uint32 // how many slots ContinueShrink has looked at
	forgottenTo  []byte // key of the last completed job that Forget looked at
	loaded       uint64 // jobs that came into memory from the table
	late         uint64 // those of them that a tick had to wait for
	err          error  // from the table; the machine can no longer be used
}

// committed is a committed generation whose jobs may leave memory (EvictCommitted).
type committed struct {
	*generation
	cursor int
}

func (r *residence) init() {
	r.complete = true
	r.absent = make(map[string]uint64)
	for rank := range r.windows {
		r.windows[rank] = allKeys
		r.later[rank] = btree.NewG(64, func(a, b waiting) bool { return a.compare(b.Key) < 0 })
	}
}

// startCold notes that no job is in memory: they are in a table.
func (r *residence) startCold(t Table) {
	r.table, r.complete = t, false
	clear(r.windows[:])
}

// Attach tells the machine which table its checkpoints go to. The table must show the newest one; for a moment
// after Committed it may show the one before. Without a table no job leaves memory.
func (m *Machine) Attach(t Table) { m.residence.table = t }

// setTimer puts a job that is not due yet on the wheel, or, beyond the window, into later.
func (m *Machine) setTimer(slot uint32, j *job) {
	if k := keyOfJob(j); m.residence.windows[j.rank].compare(k) < 0 {
		j.place = inLater
		m.residence.later[j.rank].ReplaceOrInsert(waiting{k, slot})
		return
	}
	j.place = onWheel
	j.timer = m.wheels[j.rank].Insert(j.next, slot)
}

// lookUp finds a job, in memory or in the table.
func (m *Machine) lookUp(id string) (uint32, *job) {
	if slot, j := m.jobs.find(id); j != nil {
		return slot, j
	}
	return m.fetch(id)
}

// fetch brings a job into memory from the table. The job stays until the next record; if it changes, until a checkpoint has it.
func (m *Machine) fetch(id string) (uint32, *job) {
	r, err := m.readRow(id)
	if err != nil {
		m.residence.err = cmp.Or(m.residence.err, err)
	}
	if err != nil || r == nil {
		return 0, nil
	}
	slot, j, err := m.admitRow(r)
	if err == nil && j.place == inReady {
		err = fmt.Errorf("%w: job %q is ready and was not in memory", ErrCheckpoint, id)
	}
	if err != nil {
		m.residence.err = cmp.Or(m.residence.err, err)
		return 0, nil
	}
	if j.place == onWheel {
		m.setTimer(slot, j)
	}
	m.markTransient(slot)
	return slot, j
}

// readRow reads the row of a job that is not in memory; nil: there is no such job.
func (m *Machine) readRow(id string) (row, error) {
	r := &m.residence
	if _, gone := r.absent[id]; gone || r.complete || r.err != nil {
		return nil, r.err
	}
	return rowOf(r.table, id)
}

// rowOf reads the row of a job; nil: there is no such job.
func rowOf(t Table, id string) (row, error) {
	at, found, err := t.Get(roomIDs, []byte(id))
	if err != nil || !found {
		return nil, err
	}
	if len(at) == 0 || len(at) != 1+keySize(at[0]) {
		return nil, fmt.Errorf("%w: job %q is at % x", ErrCheckpoint, id, at)
	}
	whole := row(append([]byte{}, at...))
	value, found, err := t.Get(whole.room(), whole.key())
	if err != nil {
		return nil, err
	}
	if found {
		if err := checkRow(whole.room(), whole.key(), value); err != nil {
			return nil, malformed(whole.room(), whole.key(), err)
		}
		whole = append(whole, value...)
		if _, is := whole.names(); string(is) == id {
			return whole, nil
		}
	}
	return nil, fmt.Errorf("%w: job %q is not at % x", ErrCheckpoint, id, whole.pointer())
}

// readSpec returns the spec of a row's job. It is valid until the next call of the table.
func readSpec(t Table, r row) ([]byte, error) {
	key, id := r.names()
	s, found, err := t.Get(roomSpecs, key.append(nil))
	if err == nil && !found {
		err = fmt.Errorf("%w: the spec of job %q, of put %d, is missing", ErrCheckpoint, id, key.put)
	}
	return s, err
}

// admitRow brings a row's job into memory. The caller has yet to put it where it waits.
func (m *Machine) admitRow(r row) (uint32, *job, error) {
	s, err := readSpec(m.residence.table, r)
	if err != nil {
		return 0, nil, err
	}
	return m.admitCold(r, s)
}

// admitCold brings a job into memory whose row and spec were read from the table.
func (m *Machine) admitCold(r row, s []byte) (uint32, *job, error) {
	slot, err := m.admit(r, s)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: room %q, key % x: %w", ErrCheckpoint, r.room(), r.key(), err)
	}
	m.jobs.byID.ReplaceOrInsert(slot)
	m.residence.loaded++
	return slot, m.jobs.at(slot), nil
}

// markTransient has a job leave memory before the next record, unless evict finds a reason to keep it.
func (m *Machine) markTransient(slot uint32) {
	if !m.residence.complete {
		m.residence.transient = append(m.residence.transient, slot)
	}
}

func (m *Machine) evictTransient() {
	for _, slot := range m.residence.transient {
		m.evict(slot)
	}
	m.residence.transient = m.residence.transient[:0]
}

// evict takes a job out of memory, if the table has it as it is and it is neither on the wheel nor about to fire.
func (m *Machine) evict(slot uint32) {
	j := m.jobs.at(slot)
	if j.status == statusFree || j.place == onWheel || m.pinned(slot, j) || m.changed(slot, j) {
		return
	}
	if _, gone := m.residence.absent[string(m.jobs.id(j))]; gone {
		return // an earlier job of that id was removed, and the table may still show it; EvictCommitted comes to this one later
	}
	if j.place == inLater {
		m.residence.later[j.rank].Delete(waiting{keyOfJob(j), slot})
	}
	m.jobs.remove(slot)
}

// changed tells whether a job may differ from what the table has.
func (m *Machine) changed(slot uint32, j *job) bool {
	return m.changes.has(slot, j.entry) || m.saving != nil && m.saving.changes.has(slot, j.entry)
}

// noteAbsent notes that a job was removed which the table may still have. The job must be in the changes (touch).
func (m *Machine) noteAbsent(j *job) {
	if m.residence.table != nil && m.changes.at(j.entry).old != 0 {
		m.noteAbsentID(string(m.jobs.id(j)))
	}
}

func (m *Machine) noteAbsentID(id string) {
	m.residence.absent[id] = m.changes.number
	m.changes.absent = append(m.changes.absent, id)
}

// noteCommitted has the jobs of a committed generation leave memory, by EvictCommitted.
func (m *Machine) noteCommitted(g *generation) {
	r := &m.residence
	r.checkpoints++
	r.forgottenTo = nil
	if r.table != nil {
		r.committed = append(r.committed, &committed{generation: g})
	}
}

// EvictCommitted takes jobs out of memory that committed checkpoints wrote. It looks at about n jobs, and tells whether there are more
// to look at. It must be called between records.
func (m *Machine) EvictCommitted(n int) (more bool) {
	r := &m.residence
	for ; n > 0 && len(r.committed) > 0; n-- {
		// An id is absent until its generation is in the table; only then may a later job of that id leave.
		s := r.committed[0]
		if k := len(s.absent); k > 0 {
			if id := s.absent[k-1]; r.absent[id] <= s.number {
				delete(r.absent, id)
			}
			s.absent = s.absent[:k-1]
			continue
		}
		if s.cursor == s.n || r.complete {
			r.committed = slices.Delete(r.committed, 0, 1) // after committed[1:] it would stay reachable, with all its rows
			if len(r.committed) == 0 && len(r.absent) == 0 {
				r.absent = make(map[string]uint64) // a map never gives its memory back
			}
			continue
		}
		if slot := s.at(uint32(s.cursor)).slot; slot != noSlot {
			m.evict(slot)
		}
		s.cursor++
	}
	return len(r.committed) > 0
}

// Shrink has the jobs that wait beyond a key, and those that wait for nothing, leave memory. ContinueShrink carries that out.
func (m *Machine) Shrink(end Key) {
	r := &m.residence
	if r.table == nil {
		return
	}
	r.complete, r.shrinking, r.shrinkCursor = false, true, 0
	for rank, w := range r.windows {
		if end.compare(w) < 0 {
			r.windows[rank] = end
		}
	}
}

// ContinueShrink carries on what Shrink began. It looks at about n jobs, and tells whether there are more to look at.
func (m *Machine) ContinueShrink(n int) (more bool) {
	r := &m.residence
	for ; r.shrinking && n > 0; n-- {
		if r.shrinkCursor == m.jobs.used {
			r.shrinking = false
			break
		}
		slot := r.shrinkCursor
		r.shrinkCursor++
		j := m.jobs.at(slot)
		if j.place == onWheel && r.windows[j.rank].compare(keyOfJob(j)) < 0 {
			m.wheels[j.rank].Remove(j.timer)
			j.place, j.timer = nowhere, 0
			if m.evict(slot); j.status != statusFree {
				m.setTimer(slot, j)
			}
			continue
		}
		m.evict(slot)
	}
	return r.shrinking
}

// jobBytes is about what a job in memory takes beside its texts: itself, and its places in the indexes and on the wheel.
const jobBytes = int(unsafe.Sizeof(job{})) + 48

// forcedCost is about what a forced fire takes beside its body: itself, its job's id, and its places in the maps and the ready queue.
const forcedCost = int(unsafe.Sizeof(forcedFire{})) + 100

// Memory is about how many bytes the jobs in memory take, including the rows that are kept of changed ones until a checkpoint has
// them, what a checkpoint has copied, and the forced fires that wait.
func (m *Machine) Memory() int {
	changes := m.changes.rows.bytes
	if m.saving != nil {
		changes += m.saving.changes.rows.bytes
	}
	for _, s := range m.residence.committed {
		changes += s.rows.bytes
	}
	return m.jobs.byID.Len()*jobBytes + m.jobs.texts.bytes + changes + len(m.forced)*forcedCost + m.forcedBytes
}

// EstimateWindow estimates the key up to which n jobs wait on the wheels, from a sample of them. ok is false if there are
// no more than n.
func (m *Machine) EstimateWindow(n int) (end Key, ok bool) {
	const samples = 1 << 10
	step := max(1, m.jobs.used/samples)
	var keys []Key
	for slot := uint32(0); slot < m.jobs.used; slot += step {
		if j := m.jobs.at(slot); j.place == onWheel {
			keys = append(keys, keyOfJob(j))
		}
	}
	slices.SortFunc(keys, Key.compare)
	i := n / int(step)
	if i >= len(keys) {
		return Key{}, false
	}
	return keys[i], true
}
