package node

import (
	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/wal"
)

// table is a partition's part of the job table, from which its machine reads: always the newest checkpoint. The view that it
// has opened stays open, because opening one costs more than a lookup. The partition's mu guards it.
type table struct {
	saved  *snapshot.Table
	number uint16
	view   *snapshot.View // nil: none is open
	used   bool           // something was read since the last call of renewIdle
	closed bool
}

func (t *table) open() (*snapshot.View, error) {
	t.used = true
	if t.view != nil {
		return t.view, nil
	}
	if t.closed {
		return nil, wal.ErrClosed
	}
	var err error
	t.view, err = t.saved.Open(t.number)
	return t.view, err
}

// renew makes the next read open the newest checkpoint. It returns the view that was open, or nil. The caller must close that view, and
// should do so without mu, because closing it can wait for Pebble to write its manifest.
func (t *table) renew() (before *snapshot.View) {
	before, t.view = t.view, nil
	return before
}

// renewIdle is renew if nothing was read since the last call, and else returns nil: an open view keeps files that compactions have
// replaced.
func (t *table) renewIdle() (before *snapshot.View) {
	if t.used {
		t.used = false
		return nil
	}
	return t.renew()
}

func (t *table) close() error {
	t.closed = true
	return t.renew().Close()
}

// State, Get and Scan are those of engine.Table.

func (t *table) State() ([]byte, error) {
	v, err := t.open()
	if err != nil {
		return nil, err
	}
	return v.State()
}

func (t *table) Get(room byte, key []byte) (value []byte, found bool, err error) {
	v, err := t.open()
	if err != nil {
		return nil, false, err
	}
	return v.Get(room, key)
}

func (t *table) Scan(room byte, above, below []byte, limit int, yield func(key, value []byte) error) (more bool, err error) {
	v, err := t.open()
	if err != nil {
		return false, err
	}
	return v.Scan(room, above, below, limit, yield)
}
