// Package memtable is the table of checkpoints in memory, for tests and the simulator. It does what snapshot.Table
// does, for one partition, and does not take the caller's word: what a checkpoint says that a pair was must be what
// it was.
package memtable

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Checkpoint is a checkpoint in the table. The zero Checkpoint is that of an empty one.
type Checkpoint struct{ ID, Position uint64 }

// Table is a partition's newest checkpoint and the one before it. The zero Table is empty.
type Table struct{ newest, older version }

// version is a checkpoint. It never changes.
type version struct {
	Checkpoint
	state []byte
	pairs map[string]string // by room and key
	last  map[byte]string   // keys ever appended, by room
	drops map[string]bool   // pairs that go with the next checkpoint
	cuts  map[byte]string   // and those below in a room
}

// settled is a version without what it gave up.
func (v version) settled() version {
	v.pairs = maps.Clone(v.pairs)
	maps.DeleteFunc(v.pairs, func(pair, _ string) bool { return v.drops[pair] || pair[1:] < v.cuts[pair[0]] })
	v.drops, v.cuts = nil, nil
	return v
}

// List returns the checkpoints, newest first.
func (t *Table) List() (list []Checkpoint) {
	for _, v := range []version{t.newest, t.older} {
		if v.ID != 0 {
			list = append(list, v.Checkpoint)
		}
	}
	return list
}

// Clone returns a copy.
func (t *Table) Clone() *Table { c := *t; return &c }

// StepBack makes the older checkpoint the newest, and tells whether there was one.
func (t *Table) StepBack() bool {
	if t.older.ID == 0 {
		return false
	}
	t.newest, t.older = t.older, version{}
	return true
}

// View is what can be read of a checkpoint. It stays as it is.
type View struct{ version }

// View returns the newest checkpoint.
func (t *Table) View() View { return View{t.newest} }

// Older returns the checkpoint before the newest.
func (t *Table) Older() View { return View{t.older} }

// Table returns a table with nothing but this checkpoint.
func (v View) Table() *Table { return &Table{newest: v.version} }

// State returns what Build.State was given.
func (v View) State() ([]byte, error) { return v.state, nil }

// Get looks a pair up.
func (v View) Get(room byte, key []byte) (value []byte, found bool, err error) {
	s, found := v.pairs[string(room)+string(key)]
	return []byte(s), found, nil
}

// Scan yields the pairs of a room between two keys, ascending.
func (v View) Scan(room byte, above, below []byte, limit int, yield func(key, value []byte) error) (more bool, err error) {
	n := 0
	for _, pair := range slices.Sorted(maps.Keys(v.pairs)) {
		key := pair[1:]
		if pair[0] != room || above != nil && key <= string(above) || below != nil && key >= string(below) {
			continue
		}
		if limit > 0 && n == limit {
			return true, nil
		}
		n++
		if err := yield([]byte(key), []byte(v.pairs[pair])); err != nil {
			return false, err
		}
	}
	return false, nil
}

// Dump returns the state and all pairs, in one order.
func (v View) Dump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%x\n", v.state)
	for _, pair := range slices.Sorted(maps.Keys(v.pairs)) {
		fmt.Fprintf(&b, "%c %x %x\n", pair[0], pair[1:], v.pairs[pair])
	}
	return b.String()
}

// Build gathers the next checkpoint. What is wrong with it is an error of Commit.
type Build struct {
	table    *Table
	from, to version
	touched  map[string]bool
	changed  map[byte]bool // rooms
	appended map[byte]bool
	removes  []string
	stated   bool
	err      error
}

// Begin begins the next checkpoint.
func (t *Table) Begin() *Build {
	b := &Build{
		table: t, from: t.newest.settled(),
		touched: make(map[string]bool), changed: make(map[byte]bool), appended: make(map[byte]bool),
	}
	b.to = b.from
	b.to.ID++
	b.to.pairs = made(maps.Clone(b.from.pairs))
	b.to.last = made(maps.Clone(b.from.last))
	b.to.drops, b.to.cuts = make(map[string]bool), make(map[byte]string)
	return b
}

// made makes a map where there is none.
func made[K cmp.Ordered, V any](m map[K]V) map[K]V {
	if m == nil {
		m = make(map[K]V)
	}
	return m
}

func (b *Build) fail(format string, args ...any) {
	if b.err == nil {
		b.err = fmt.Errorf("memtable: "+format, args...)
	}
}

// State says what position of the log the checkpoint is of, and what it has beside pairs.
func (b *Build) State(position uint64, state []byte) {
	if position < b.from.Position {
		b.fail("position %d after %d", position, b.from.Position)
	}
	b.to.Position, b.to.state, b.stated = position, slices.Clone(state), true
}

// Change says what a pair was and is; nil: none.
func (b *Build) Change(room byte, key, old, value []byte) {
	pair := string(room) + string(key)
	was, there := b.from.pairs[pair]
	switch {
	case b.touched[pair]:
		b.fail("room %q, key %x comes twice", room, key)
	case there != (old != nil) || was != string(old):
		b.fail("room %q, key %x was %x (there: %t), and not %x", room, key, was, there, old)
	}
	b.touched[pair], b.changed[room] = true, true
	if value == nil {
		delete(b.to.pairs, pair)
	} else {
		b.to.pairs[pair] = string(value)
	}
}

// Remove says that a pair is no more, if there was one.
func (b *Build) Remove(room byte, key []byte) {
	b.changed[room] = true
	b.removes = append(b.removes, string(room)+string(key))
}

// Append adds a pair to a room, behind all that ever came there.
func (b *Build) Append(room byte, key, value []byte) {
	pair := string(room) + string(key)
	if b.touched[pair] || string(key) <= b.from.last[room] {
		b.fail("room %q: %x is appended behind %x", room, key, b.from.last[room])
	}
	b.touched[pair], b.appended[room] = true, true
	b.to.pairs[pair] = string(value)
	b.to.last[room] = max(b.to.last[room], string(key))
}

// Drop says that an appended pair is unused from this checkpoint on.
func (b *Build) Drop(room byte, key []byte) {
	pair := string(room) + string(key)
	if _, there := b.from.pairs[pair]; !there || b.to.drops[pair] {
		b.fail("room %q: %x is dropped, and was not there (%t) or dropped before", room, key, there)
	}
	b.appended[room], b.to.drops[pair] = true, true
}

// Cut says so of all appended pairs of a room below a key.
func (b *Build) Cut(room byte, key []byte) { b.appended[room], b.to.cuts[room] = true, string(key) }

// Commit makes the checkpoint the newest.
func (b *Build) Commit() error {
	for _, pair := range b.removes {
		if b.touched[pair] {
			b.fail("room %q, key %x comes twice", pair[0], pair[1:])
		}
		delete(b.to.pairs, pair)
	}
	for room := range b.changed {
		if b.appended[room] {
			b.fail("room %q is changed and appended to", room)
		}
	}
	if !b.stated {
		b.fail("checkpoint without state")
	}
	if b.err == nil {
		b.table.older, b.table.newest = b.from, b.to
	}
	return b.err
}
