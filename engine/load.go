package engine

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// LoadCursor says up to which key a priority's waiting jobs were read from the table, so from where to read on.
type LoadCursor struct {
	rank       int
	after      Key
	checkpoint int
}

// Rows are the jobs that LoadCursor.Read found: those that wait next.
type Rows struct {
	LoadCursor
	upTo Key // of the table's jobs that wait up to here, none is missing
	jobs []coldJob
}

type coldJob struct {
	row  row
	spec []byte
}

// Len is how many jobs there are.
func (r *Rows) Len() int { return len(r.jobs) }

// LoadCursors says where to read on, for each priority, the highest first.
func (m *Machine) LoadCursors() [priorities]LoadCursor {
	var all [priorities]LoadCursor
	for rank := range all {
		all[rank] = LoadCursor{rank, m.residence.windows[rank], m.residence.checkpoints}
	}
	return all
}

// End is the key up to which jobs are on the wheel, or have been read.
func (r LoadCursor) End() Key { return r.after }

// readSlice bounds the bytes of specs that one Read keeps, unless a single job has more.
const readSlice = 4 << 20

// Read reads the jobs that wait next, up to a time (unix ms), n of them at most, and fewer if they are large: but one at least, if there is
// any. It may run beside the machine, on a table that was opened after the machine was asked for the LoadCursor. Errors: the table's,
// ErrCheckpoint.
func (r LoadCursor) Read(t Table, until int64, n int) (*Rows, error) {
	found := &Rows{LoadCursor: r, upTo: Key{until, math.MaxUint64}}
	if until == math.MaxInt64 {
		found.upTo = allKeys
	}
	below := []byte{byte(r.rank) + 1}
	if until < math.MaxInt64 {
		below = waitingKey(r.rank, Key{until + 1, 0})
	}
	more, err := t.Scan(roomWaiting, waitingKey(r.rank, r.after), below, n, func(key, value []byte) error {
		if err := checkRow(roomWaiting, key, value); err != nil {
			return malformed(roomWaiting, key, err)
		}
		found.jobs = append(found.jobs, coldJob{row: slices.Concat([]byte{roomWaiting}, key, value)})
		return nil
	})
	if err != nil {
		return nil, err
	}
	all := len(found.jobs)
	if err := found.readSpecs(t); err != nil {
		return nil, err
	}
	if n := len(found.jobs); more || n < all {
		found.upTo = found.jobs[n-1].key()
	} else if found.upTo.compare(r.after) < 0 {
		found.upTo = r.after
	}
	return found, nil
}

func waitingKey(rank int, k Key) []byte {
	return appendNumber(appendTime([]byte{byte(rank)}, k.Due), k.Armed)
}

// key is the key of a waiting job.
func (c *coldJob) key() Key {
	d := decoder{b: c.row.key()[1:]}
	return Key{d.time(), d.number()}
}

// readSpecs reads the jobs' specs, in the order in which the table has them. When these become more than readSlice bytes, it leaves out
// as many of the last jobs as seems right by those read so far.
func (r *Rows) readSpecs(t Table) error {
	order := make([]int, len(r.jobs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		x, _ := r.jobs[a].row.names()
		y, _ := r.jobs[b].row.names()
		return cmp.Or(cmp.Compare(x.put, y.put), cmp.Compare(x.index, y.index))
	})
	read, size := 0, 0
	for _, i := range order {
		if i >= len(r.jobs) {
			continue // left out meanwhile
		}
		s, err := readSpec(t, r.jobs[i].row)
		if err != nil {
			return err
		}
		r.jobs[i].spec = append([]byte{}, s...)
		read, size = read+1, size+len(s)
		for size > readSlice && len(r.jobs) > 1 {
			read, size = r.keep(min(max(1, readSlice*read/size), len(r.jobs)-1))
		}
	}
	return nil
}

// keep leaves out all but the first n jobs. It returns how many of these have their specs, and how many bytes of them.
func (r *Rows) keep(n int) (read, size int) {
	clear(r.jobs[n:])
	r.jobs = r.jobs[:n]
	for i := range r.jobs {
		if s := r.jobs[i].spec; s != nil {
			read, size = read+1, size+len(s)
		}
	}
	return read, size
}

// Load brings jobs that were read into memory, onto the wheel. ok is false if they were read before the newest checkpoint, or if the
// window has changed since or is being shrunk: then they are to be read again. Load must be called between records. Errors:
// ErrCheckpoint; the machine is of no use after it.
func (m *Machine) Load(rows *Rows) (ok bool, err error) {
	r := &m.residence
	if rows.checkpoint != r.checkpoints || rows.after != r.windows[rows.rank] || r.shrinking {
		return false, nil
	}
	for i := range rows.jobs {
		c := &rows.jobs[i]
		m.widenWindow(rows.rank, c.key())
		_, id := c.row.names()
		if _, j := m.jobs.find(string(id)); j != nil {
			continue
		}
		if _, gone := r.absent[string(id)]; gone {
			continue
		}
		slot, j, err := m.admitCold(c.row, c.spec)
		if err == nil && j.place != onWheel {
			err = fmt.Errorf("%w: job %q is ready and was not in memory", ErrCheckpoint, id)
		}
		if err != nil {
			r.err = cmp.Or(r.err, err)
			return false, err
		}
		m.setTimer(slot, j)
	}
	m.widenWindow(rows.rank, rows.upTo)
	return true, nil
}

// widenWindow moves the end of a window on, and moves the jobs of later that wait up to there to the wheel.
func (m *Machine) widenWindow(rank int, end Key) {
	m.residence.windows[rank] = end
	later := m.residence.later[rank]
	for later.Len() > 0 {
		next, _ := later.Min()
		if next.compare(end) > 0 {
			return
		}
		later.DeleteMin()
		m.setTimer(next.slot, m.jobs.at(next.slot))
	}
}

// What a tick reads at a time when the host has not read far enough ahead: at most so many jobs (and readSlice bytes), due within so much
// time.
const (
	lateRows  = 1024
	lateAhead = 60_000 // ms
)

// ensureLoaded has the wheel of a priority answer as if all jobs were on it: afterwards all jobs due by a time are on it, or more
// than move, which is the most that it may yield.
func (m *Machine) ensureLoaded(rank int, at int64, move int) {
	r := &m.residence
	if r.windows[rank].covers(at) {
		return
	}
	for m.ContinueShrink(math.MaxInt) {
	}
	for r.err == nil && !r.windows[rank].covers(at) && m.wheels[rank].Len() <= move {
		rows, err := m.LoadCursors()[rank].Read(r.table, at+lateAhead, lateRows)
		if err == nil {
			r.late += uint64(rows.Len())
			_, err = m.Load(rows)
		}
		r.err = cmp.Or(r.err, err)
	}
}

// loadAll brings all jobs into memory.
func (m *Machine) loadAll() error {
	r := &m.residence
	if r.complete || r.err != nil {
		return r.err
	}
	for rank := range priorities {
		for m.ContinueShrink(math.MaxInt) || r.windows[rank] != allKeys {
			rows, err := m.LoadCursors()[rank].Read(r.table, math.MaxInt64, lateRows)
			if err != nil {
				return err
			}
			if _, err := m.Load(rows); err != nil {
				return err
			}
		}
	}
	for _, room := range []byte{roomIdle, roomCompleted} {
		if err := m.loadRoom(room); err != nil {
			return err
		}
	}
	r.complete = true
	return nil
}

// loadRoom brings the jobs of a room, which wait for nothing, into memory.
func (m *Machine) loadRoom(room byte) error {
	r := &m.residence
	var after []byte
	for more := true; more; {
		var rows []row
		var err error
		more, err = r.table.Scan(room, after, nil, lateRows, func(key, value []byte) error {
			if err := checkRow(room, key, value); err != nil {
				return malformed(room, key, err)
			}
			rows = append(rows, slices.Concat([]byte{room}, key, value))
			return nil
		})
		if err != nil {
			return err
		}
		for _, found := range rows {
			after = found.key()
			_, id := found.names()
			if _, j := m.jobs.find(string(id)); j != nil {
				continue
			}
			if _, gone := r.absent[string(id)]; gone {
				continue
			}
			slot, j, err := m.admitRow(found)
			if err != nil {
				return err
			}
			if j.status == statusCompleted {
				m.completed.push(completion{slot, j.armed})
			}
		}
	}
	return nil
}
