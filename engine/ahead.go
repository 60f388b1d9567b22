package engine

import (
	"slices"

	"github.com/carillon-scheduler/carillon"
)

// Ahead is what a table has of jobs that somebody asks for, read beside the machine: to answer it would read them itself, and a
// partition that waits for its disk fires nothing.
//
//	a := m.Ahead()                        // between records,
//	err := a.Scan(table, &list, after, n) // and this beside the machine, for a page, on a table that was opened since;
//	cold := m.Cold(a.IDs())               // between records,
//	err = a.Read(table, cold)             // beside the machine,
//	m.Page(&list, after, limit, n, a)     // between records
//
// It is of use until the next checkpoint: until then the table has the jobs that are not in memory as they were read. After that, and
// where nothing was read, a nil Ahead included, the machine reads the table itself. So the answers are the same either way.
type Ahead struct {
	m    *Machine
	base int
	ids  tableIDs
	jobs map[string]coldJob // those without a row are not there
}

// Ahead begins to read ahead.
func (m *Machine) Ahead() *Ahead { return &Ahead{m: m, base: m.residence.bases} }

// Scan reads the ids at which Page will look for the same list. Errors: the table's.
func (a *Ahead) Scan(t Table, f *carillon.ListRequest, after string, scan int) (err error) {
	a.ids, err = scanIDs(t, pageFrom(f, after, scan))
	return err
}

// IDs are those that Scan found.
func (a *Ahead) IDs() []string { return a.ids.found }

// Read reads jobs, and that some are not there. Errors: the table's, ErrCheckpoint.
func (a *Ahead) Read(t Table, ids []string) error {
	a.jobs = make(map[string]coldJob, len(ids))
	for _, id := range ids {
		var c coldJob
		var err error
		if c.row, err = rowOf(t, id); err != nil {
			return err
		}
		if c.row != nil {
			s, err := readSpec(t, c.row)
			if err != nil {
				return err
			}
			c.spec = slices.Clone(s)
		}
		a.jobs[id] = c
	}
	return nil
}

// holds tells whether what was read is as the machine's table has it.
func (a *Ahead) holds(m *Machine) bool { return a != nil && a.m == m && a.base == m.residence.bases }

// Cold are those of some ids whose jobs, if there are any, are in the table alone.
func (m *Machine) Cold(ids []string) (cold []string) {
	if m.residence.complete || m.residence.err != nil {
		return nil
	}
	for _, id := range ids {
		if m.cold(id) {
			cold = append(cold, id)
		}
	}
	return cold
}
