package wal

import "encoding/binary"

// The first byte of a key is its room.
const (
	roomLog   = 'l' // l <sequence>
	TableRoom = 't' // belongs to package snapshot, in a store with ProfileTable
)

// The store's own fields: m 0 <name>.
var (
	formatKey = []byte("m\x00format") // storeFormat, one byte
	lastKey   = []byte("m\x00last")   // the log's last sequence at its last truncation
	countKey  = []byte("m\x00synced") // count of the newest synced batch; see mark
)

// storeFormat is the version of the key layout as a whole. In version 1 the store also had the checkpoints, each with all of
// the state.
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
