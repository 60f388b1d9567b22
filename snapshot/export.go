package snapshot

import (
	"bytes"

	"github.com/cockroachdb/pebble/v2"
)

// Rooms returns the rooms that are not empty, ascending, without the table's own. Errors: wal.ErrCorrupt.
func (v *View) Rooms() ([]byte, error) {
	prefix := appendTableKey(nil, v.partition, 0, nil)[:tableKeyPrefix-1]
	it, err := v.snap.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: successor(prefix)})
	if err != nil {
		return nil, err
	}
	var rooms []byte
	for ok := it.First(); ok; {
		room := it.Key()[len(prefix)]
		if room != roomBase && room != roomDrop && room != roomUndo {
			rooms = append(rooms, room)
		}
		ok = it.SeekGE(successor(appendTableKey(nil, v.partition, room, nil)))
	}
	return rooms, it.Close() // with the iterator's error
}

// Live yields all pairs of a room, ascending, except those that Drop or Cut gave up and that stay only for
// the older checkpoint. The View must be of the newest one. Key and value are valid only during yield. Errors: Scan's.
func (v *View) Live(room byte, yield func(key, value []byte) error) error {
	dropped, err := v.drops(dropPair, room)
	if err != nil {
		return err
	}
	var cut []byte
	if cuts, err := v.drops(dropBefore, room); err != nil {
		return err
	} else if len(cuts) > 0 {
		cut = cuts[len(cuts)-1]
	}
	_, err = v.Scan(room, nil, nil, 0, func(key, value []byte) error {
		for len(dropped) > 0 && bytes.Compare(dropped[0], key) < 0 {
			dropped = dropped[1:] // a pair that is not there
		}
		if bytes.Compare(key, cut) < 0 || len(dropped) > 0 && bytes.Equal(dropped[0], key) {
			return nil
		}
		return yield(key, value)
	})
	return err
}

// drops lists the keys of a room that the newest checkpoint gave up, ascending; how is dropPair or dropBefore.
func (v *View) drops(how, room byte) ([][]byte, error) {
	var keys [][]byte
	c, err := v.cursor(appendDropKey(nil, v.partition, v.ID, how, room, nil), nil, nil)
	for ; err == nil && c.ok; err = c.step() {
		keys = append(keys, bytes.Clone(c.key))
	}
	if cerr := c.close(); err == nil {
		err = cerr
	}
	return keys, err
}
