package wal

import "encoding/binary"

// The first byte of a key is its room.
const (
	roomLog   = 'l' // l <sequence>
	TableRoom = 't' // belongs to package snapshot, in a store with ProfileTable
)

// What the store knows of itself: m 0 <name>.
var (
	formatKey = []byte("m\x00format") // version of this layout, one byte
	lastKey   = []byte("m\x00last")   // the log's last sequence at its last truncation
	countKey  = []byte("m\x00synced") // number of the synced batch that wrote it; see mark
)

// storeFormat is the version of the key layout as a whole. In 1 the checkpoints, all of the state each, stood
// beside the log.
const storeFormat = 2

var (
	logStart = []byte{roomLog}
	logEnd   = []byte{roomLog + 1}
)

const logKeySize = 1 + 8

func putLogKey(key []byte, seq uint64) {
	key[0] = roomLog
	binary.BigEndian.PutUint64(key[1:], seq)
}

func logKey(seq uint64) []byte {
	key := make([]byte, logKeySize)
	putLogKey(key, seq)
	return key
}
