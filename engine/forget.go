package engine

import (
	"bytes"
	"errors"
	"slices"
)

// ForgetCursor says from where the table is to be read next to find completed jobs that are gone.
type ForgetCursor struct {
	after      []byte // key of the last completed job that was looked at
	gone       watermark
	checkpoint int
}

// GoneRows are completed jobs of the table that are gone, as found by ForgetCursor.Read.
type GoneRows struct {
	ForgetCursor
	rows []row
	more bool
}

// errEnough ends a scan.
var errEnough = errors.New("enough")

// ForgetCursor says where to read on. ok is false if all jobs are in memory: then there is nothing to read.
// Errors: Machine.Err.
func (m *Machine) ForgetCursor() (f ForgetCursor, ok bool, err error) {
	r := &m.residence
	return ForgetCursor{slices.Clone(r.forgottenTo), m.expired, r.checkpoints}, !r.complete && r.err == nil, r.err
}

// Read reads the next completed jobs that are gone, at most n. It may run beside the machine, on a table that was opened after the
// machine was asked for the ForgetCursor. Errors: the table's, ErrCheckpoint.
func (f ForgetCursor) Read(t Table, n int) (*GoneRows, error) {
	g := &GoneRows{ForgetCursor: f}
	var err error
	g.more, err = t.Scan(roomCompleted, f.after, nil, n, func(key, value []byte) error {
		if err := checkRow(roomCompleted, key, value); err != nil {
			return malformed(roomCompleted, key, err)
		}
		if !f.gone.passedKey(key) {
			return errEnough
		}
		g.rows = append(g.rows, slices.Concat([]byte{roomCompleted}, key, value))
		return nil
	})
	if errors.Is(err, errEnough) {
		g.more, err = false, nil
	}
	return g, err
}

// Forget has the next checkpoint take the jobs out of the table, and tells whether there may be more. It does nothing, and returns true,
// if they were read before the newest checkpoint or before another Forget: then they are to be read again. It must be called between
// records.
func (m *Machine) Forget(g *GoneRows) (more bool) {
	r := &m.residence
	if g.checkpoint != r.checkpoints || !bytes.Equal(g.after, r.forgottenTo) {
		return true
	}
	for _, gone := range g.rows {
		r.forgottenTo = append(r.forgottenTo[:0], gone.key()...)
		_, id := gone.names()
		if _, j := m.jobs.find(string(id)); j != nil {
			continue
		}
		if _, absent := r.absent[string(id)]; absent {
			continue
		}
		m.changes.add(entry{slot: noSlot, old: m.changes.rows.add(gone)})
		m.noteAbsentID(string(id))
		m.counts[statusCompleted]--
	}
	return g.more
}
