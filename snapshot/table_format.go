package snapshot

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"github.com/carillon-scheduler/carillon/wal"
)

// RoomIDs is the room in which absent keys are often looked up. There Get asks filters before it reads a block.
const RoomIDs = 'i'

// The table's own rooms; see docs/formats/table.md.
const (
	roomBase = 'a' // the checkpoint: header and state
	roomDrop = 'd' // <id> <how> <room> <key>: a pair, or pairs, that the checkpoint with this id gave up
	roomUndo = 'u' // <id> <room> <key>: the pair as it was before the checkpoint with this id
)

// Keys of roomBase.
const (
	headerKey = 'h'
	stateKey  = 's'
)

// How pairs were given up.
const (
	dropPair   = 0x00 // the pair with this key
	dropBefore = 0x01 // all pairs of the room before this key
)

// The first byte of an undo's value.
const (
	undoAbsent   = 0x00 // there was no such pair
	undoValue    = 0x01 // its value follows
	undoAppended = 0x02 // neither this pair nor any after it in the room was there
)

const (
	tableVersion   = 1
	tableHeader    = 1 + 8 + 8
	tableKeyPrefix = 1 + 2 + 1 // wal.TableRoom, partition, room
	undoKeyPrefix  = tableKeyPrefix + 8 + 1
	checksumSize   = 4
)

// partitionPrefix is what all keys of a partition begin with.
func partitionPrefix(partition uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{wal.TableRoom}, partition)
}

func appendTableKey(b []byte, partition uint16, room byte, key []byte) []byte {
	b = append(b, wal.TableRoom)
	b = binary.BigEndian.AppendUint16(b, partition)
	b = append(b, room)
	return append(b, key...)
}

func appendUndoKey(b []byte, partition uint16, id uint64, room byte, key []byte) []byte {
	b = appendTableKey(b, partition, roomUndo, nil)
	b = binary.BigEndian.AppendUint64(b, id)
	b = append(b, room)
	return append(b, key...)
}

func appendDropKey(b []byte, partition uint16, id uint64, how, room byte, key []byte) []byte {
	b = appendTableKey(b, partition, roomDrop, nil)
	b = binary.BigEndian.AppendUint64(b, id)
	b = append(b, how, room)
	return append(b, key...)
}

// generation is the prefix of all undo or drop keys of a checkpoint; that of the next id is their upper bound.
func generation(partition uint16, room byte, id uint64) []byte {
	return binary.BigEndian.AppendUint64(appendTableKey(nil, partition, room, nil), id)
}

func appendHeader(b []byte, base Checkpoint) []byte {
	b = append(b, tableVersion)
	b = binary.BigEndian.AppendUint64(b, base.ID)
	return binary.BigEndian.AppendUint64(b, base.Position)
}

// decodeHeader's errors: wal.ErrCorrupt, wal.ErrVersion.
func decodeHeader(v []byte) (Checkpoint, error) {
	if len(v) > 0 && v[0] > tableVersion {
		return Checkpoint{}, fmt.Errorf("%w: job table version %d, this binary reads %d", wal.ErrVersion, v[0], tableVersion)
	}
	if len(v) != tableHeader || v[0] != tableVersion {
		return Checkpoint{}, fmt.Errorf("%w: job table's header is % x", wal.ErrCorrupt, v)
	}
	base := Checkpoint{ID: binary.BigEndian.Uint64(v[1:]), Position: binary.BigEndian.Uint64(v[9:])}
	if base.ID == 0 {
		return Checkpoint{}, fmt.Errorf("%w: job table's header is % x", wal.ErrCorrupt, v)
	}
	return base, nil
}

// appendChecksum appends a checksum to a key and its value in one piece: the low four bytes of their xxhash64. The key is
// included so that a value under another key does not pass.
func appendChecksum(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, uint32(xxhash.Sum64(b)))
}

// cutChecksum checks a stored value and returns it without the checksum, as a part of stored. Errors: wal.ErrCorrupt.
func cutChecksum(d *xxhash.Digest, key, stored []byte) ([]byte, error) {
	n := len(stored) - checksumSize
	if n >= 0 {
		d.Reset()
		_, _ = d.Write(key) // never fails
		_, _ = d.Write(stored[:n])
		if binary.BigEndian.Uint32(stored[n:]) == uint32(d.Sum64()) {
			return stored[:n], nil
		}
	}
	return nil, fmt.Errorf("%w: checksum of the value does not match at key % x", wal.ErrCorrupt, key)
}
