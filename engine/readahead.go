package engine

import (
	"fmt"
	"slices"

	"github.com/carillon-scheduler/carillon"
)

// ReadAhead has jobs of the table that a query asks for, read while the machine goes on. Otherwise the machine would read them itself to
// answer the query, and a partition that waits for its disk fires nothing. "Beside the machine" below means: in another goroutine,
// while records may be applied.
//
//	a := m.ReadAhead()                    // between records
//	err := a.Scan(table, &list, after, n) // beside the machine, on a table that was opened since; for a page only
//	cold := m.Cold(a.IDs())               // between records
//	err = a.Read(table, cold)             // beside the machine
//	m.Page(&list, after, limit, n, a)     // between records
//
// A ReadAhead is good until the next checkpoint is committed: until then the table has the jobs that are not in memory as they were read.
// After that, and for what was not read ahead, the machine reads the table itself, as it does with a nil ReadAhead. So the answers
// are the same either way.
type ReadAhead struct {
	m          *Machine
	checkpoint int
	list       *carillon.ListRequest // nil: it is not for a page
	ids        tableIDs
	jobs       map[string]coldJob // a job without a row does not exist, or the list does not take it
}

// ReadAhead begins to read ahead.
func (m *Machine) ReadAhead() *ReadAhead {
	return &ReadAhead{m: m, checkpoint: m.residence.checkpoints}
}

// Scan reads the ids that Page will look at for the same arguments. Errors: the table's.
func (a *ReadAhead) Scan(t Table, f *carillon.ListRequest, after string, scan int) (err error) {
	a.list = f
	a.ids, err = scanIDs(t, pageRange(f, after, scan))
	return err
}

// IDs are the ids that Scan found.
func (a *ReadAhead) IDs() []string { return a.ids.found }

// Read reads the jobs of some ids, and notes which do not exist. After Scan it keeps only jobs that the list takes, and reads no further
// once they fill a page. Errors: the table's, ErrCheckpoint.
func (a *ReadAhead) Read(t Table, ids []string) error {
	a.jobs = make(map[string]coldJob, len(ids))
	size := 0
	for _, id := range ids {
		if a.list != nil && size >= carillon.MaxPageBytes {
			break
		}
		c, bytes, err := a.read(t, id)
		if err != nil {
			return err
		}
		a.jobs[id] = c
		size += bytes
	}
	return nil
}

// read reads one job, and returns for a page how large it is there, too.
func (a *ReadAhead) read(t Table, id string) (c coldJob, bytes int, err error) {
	if c.row, err = rowOf(t, id); err != nil || c.row == nil {
		return coldJob{}, 0, err
	}
	s, err := readSpec(t, c.row)
	if err != nil {
		return coldJob{}, 0, err
	}
	if a.list != nil {
		j, err := decodeRow(c.row)
		if err != nil {
			return coldJob{}, 0, fmt.Errorf("%w: job %q: %w", ErrCheckpoint, id, err)
		}
		r, err := a.m.viewStored(id, &j, s)
		if err != nil || !a.list.Matches(&r) {
			return coldJob{}, 0, err
		}
		bytes, _ = SpecBytes(&r.Spec)
	}
	c.spec = slices.Clone(s)
	return c, bytes, nil
}

// isValid tells whether what was read is still what the machine's table has.
func (a *ReadAhead) isValid(m *Machine) bool {
	return a != nil && a.m == m && a.checkpoint == m.residence.checkpoints
}

// Cold returns those of some ids whose jobs, if they exist, are only in the table.
func (m *Machine) Cold(ids []string) (cold []string) {
	if m.residence.complete || m.residence.err != nil {
		return nil
	}
	for _, id := range ids {
		if m.isCold(id) {
			cold = append(cold, id)
		}
	}
	return cold
}
