package snapshot

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2"

	"github.com/carillon-scheduler/carillon/wal"
)

// View is a partition's table as of one checkpoint.
type View struct {
	Checkpoint // of the checkpoint that is seen; zero if the partition has none, and then there are no pairs
	partition  uint16
	snap       *wal.Snapshot

	// undo is the id of the checkpoint whose undo is laid over the table, 0 for none. marks has, for each room that was looked
	// at, the first key that this checkpoint appended; nil if it appended nothing.
	undo  uint64
	marks map[byte][]byte

	// Iterators for lookups, made when needed. Pebble's Get would make one each time, and would not use
	// the filters of the bottom level, where nearly all pairs are. Filters are used for RoomIDs only: in
	// the other rooms nearly all keys that are looked up exist, so their filters would fill the cache for nothing.
	plain, filtered *pebble.Iterator

	key []byte // memory for a key
	sum *xxhash.Digest
}

// Close ends a View that Open returned. A nil View may be closed, too. Errors: wal.ErrFailed.
func (v *View) Close() error {
	if v == nil {
		return nil
	}
	var err error
	for _, it := range []*pebble.Iterator{v.plain, v.filtered} {
		if it != nil {
			err = errors.Join(err, it.Close())
		}
	}
	return errors.Join(err, v.snap.Close())
}

// readBase reads the header of the checkpoint that is seen.
func (v *View) readBase() error {
	value, found, err := v.Get(roomBase, []byte{headerKey})
	v.Checkpoint = Checkpoint{}
	if found {
		v.Checkpoint, err = decodeHeader(value)
	}
	return err
}

// stepBack lays the newest checkpoint's undo over the table. Then Checkpoint is zero if there was no checkpoint before.
func (v *View) stepBack() error {
	v.undo, v.marks = v.ID, make(map[byte][]byte)
	if err := v.readBase(); err != nil {
		return err
	}
	if v.ID != v.undo-1 {
		return fmt.Errorf("%w: the undo of checkpoint %d leads to %d", wal.ErrCorrupt, v.undo, v.ID)
	}
	return nil
}

// State returns the state that Build.State was given; nil for the zero Checkpoint. Errors: wal.ErrCorrupt.
func (v *View) State() ([]byte, error) {
	return v.copy(roomBase, []byte{stateKey})
}

// copy is Get with a copy of the value; nil if there is no such pair.
func (v *View) copy(room byte, key []byte) ([]byte, error) {
	value, found, err := v.Get(room, key)
	if err != nil || !found {
		return nil, err
	}
	return append([]byte{}, value...), nil
}

// last returns the last key of a room in the table; nil if the room is empty.
func (v *View) last(room byte) ([]byte, error) {
	prefix := appendTableKey(nil, v.partition, room, nil)
	it, err := v.snap.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: successor(prefix)})
	if err != nil {
		return nil, err
	}
	var key []byte
	if it.Last() {
		key = bytes.Clone(it.Key()[len(prefix):])
	}
	return key, it.Close() // with the iterator's error
}

// Get looks a pair up. The value is valid until the next call. Many lookups are fastest room by room, in ascending order of
// keys. Errors: wal.ErrCorrupt, with the file or the key; wal.ErrFailed, wal.ErrClosed.
func (v *View) Get(room byte, key []byte) (value []byte, found bool, err error) {
	if value, found, err = v.get(room, key); err == nil {
		err = v.snap.Next()
	}
	return value, found && err == nil, v.snap.Wrap(err)
}

func (v *View) get(room byte, key []byte) (value []byte, found bool, err error) {
	if v.undo != 0 {
		mark, err := v.mark(room)
		if err != nil {
			return nil, false, err
		}
		if mark != nil && bytes.Compare(key, mark) >= 0 {
			return nil, false, nil
		}
		if mark == nil {
			v.key = appendUndoKey(v.key[:0], v.partition, v.undo, room, key)
			value, found, err = v.lookup(false)
			if err != nil {
				return nil, false, err
			}
			if found {
				return v.undone(value)
			}
		}
	}
	v.key = appendTableKey(v.key[:0], v.partition, room, key)
	return v.lookup(room == RoomIDs)
}

// lookup gets the value at v.key.
func (v *View) lookup(filtered bool) (value []byte, found bool, err error) {
	at := &v.plain
	if filtered {
		at = &v.filtered
	}
	if *at == nil {
		if *at, err = v.snap.NewIter(&pebble.IterOptions{UseL6Filters: filtered}); err != nil {
			return nil, false, err
		}
	}
	it := *at
	if !it.SeekPrefixGE(v.key) {
		return nil, false, it.Error()
	}
	stored, err := it.ValueAndErr()
	if err != nil {
		return nil, false, err
	}
	value, err = cutChecksum(v.sum, v.key, stored)
	return value, err == nil, err
}

// undone decodes an undo's value: the pair's old value, or that there was no such pair.
func (v *View) undone(undo []byte) (value []byte, found bool, err error) {
	switch {
	case len(undo) == 1 && undo[0] == undoAbsent:
		return nil, false, nil
	case len(undo) > 0 && undo[0] == undoValue:
		return undo[1:], true, nil
	}
	return nil, false, fmt.Errorf("%w: undo of checkpoint %d holds % x", wal.ErrCorrupt, v.undo, undo)
}

// mark returns the first key that the undone checkpoint appended to a room; nil if it appended nothing.
func (v *View) mark(room byte) ([]byte, error) {
	mark, known := v.marks[room]
	if known {
		return mark, nil
	}
	c, err := v.cursor(appendUndoKey(nil, v.partition, v.undo, room, nil), nil, nil)
	if c.ok && bytes.Equal(c.value, []byte{undoAppended}) {
		mark = bytes.Clone(c.key)
	}
	if cerr := c.close(); err == nil {
		err = cerr
	}
	if err == nil {
		v.marks[room] = mark
	}
	return mark, err
}

// Scan yields the pairs of a room with keys above and below two bounds (both exclusive; nil: no bound), ascending. It
// stops after limit pairs (0: no limit), and then says whether there are more. Key and value are valid only
// during yield. Errors: yield's, wal.ErrCorrupt with the file or the key, wal.ErrFailed, wal.ErrClosed.
func (v *View) Scan(room byte, above, below []byte, limit int, yield func(key, value []byte) error) (more bool, err error) {
	more, err = v.scan(room, above, below, limit, yield)
	return more, v.snap.Wrap(err)
}

func (v *View) scan(room byte, above, below []byte, limit int, yield func(key, value []byte) error) (more bool, err error) {
	var base, undo cursor
	defer func() {
		if cerr := errors.Join(base.close(), undo.close()); err == nil {
			err = cerr
		}
	}()
	if v.undo != 0 {
		mark, err := v.mark(room)
		if err != nil {
			return false, err
		}
		if mark == nil {
			if undo, err = v.cursor(appendUndoKey(nil, v.partition, v.undo, room, nil), above, below); err != nil {
				return false, err
			}
		} else if below == nil || bytes.Compare(mark, below) < 0 {
			below = mark
		}
	}
	if base, err = v.cursor(appendTableKey(nil, v.partition, room, nil), above, below); err != nil {
		return false, err
	}
	for yielded := 0; base.ok || undo.ok; {
		// The lesser key is next. Of two equal keys the undo's pair counts, and the table's is skipped.
		at, found, value := &base, true, base.value
		if order := bytes.Compare(undo.key, base.key); undo.ok && (!base.ok || order <= 0) {
			at = &undo
			if value, found, err = v.undone(undo.value); err != nil {
				return false, err
			}
			if base.ok && order == 0 {
				if err := base.step(); err != nil {
					return false, err
				}
			}
		}
		if found {
			if limit > 0 && yielded == limit {
				return true, nil
			}
			yielded++
			if err := v.snap.Next(); err != nil {
				return false, err
			}
			if err := yield(at.key, value); err != nil {
				return false, err
			}
		}
		if err := at.step(); err != nil {
			return false, err
		}
	}
	return false, nil
}

// cursor walks over stored pairs. The zero cursor is at its end.
type cursor struct {
	it     *pebble.Iterator
	sum    *xxhash.Digest
	prefix int // bytes of a stored key before key

	ok         bool // the cursor is at a pair, which is:
	key, value []byte
}

// cursor returns a cursor at the first pair under a prefix and between two bounds (exclusive; nil: no bound). It must be
// closed, even after an error.
func (v *View) cursor(prefix, above, below []byte) (c cursor, err error) {
	c = cursor{sum: v.sum, prefix: len(prefix)}
	from, to := prefix, successor(prefix)
	if below != nil {
		to = append(bytes.Clone(prefix), below...)
	}
	if above != nil {
		from = append(append(bytes.Clone(prefix), above...), 0)
	}
	if bytes.Compare(from, to) >= 0 {
		return c, nil
	}
	if c.it, err = v.snap.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to}); err != nil {
		return c, err
	}
	return c, c.at(c.it.First())
}

func (c *cursor) step() error { return c.at(c.it.Next()) }

func (c *cursor) at(ok bool) error {
	if c.ok = false; !ok {
		return c.it.Error()
	}
	key := c.it.Key()
	stored, err := c.it.ValueAndErr()
	if err == nil {
		c.value, err = cutChecksum(c.sum, key, stored)
	}
	c.key, c.ok = key[c.prefix:], err == nil
	return err
}

func (c *cursor) close() error {
	if c.it == nil {
		return nil
	}
	return c.it.Close()
}

// successor is the first key after all keys that begin with a prefix. The prefix's first byte must be below 0xff.
func successor(prefix []byte) []byte {
	b := bytes.Clone(prefix)
	for i := len(b) - 1; ; i-- {
		if b[i]++; b[i] != 0 {
			return b[:i+1]
		}
	}
}
