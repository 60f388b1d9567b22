package wal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Record is one entry of the log.
type Record struct {
	Seq  uint64 // the stream's sequence, from 1
	Data []byte
}

// The value of a record: version, crc32c over the sequence and the data, data. The sequence is in the
// checksum so that a value under another record's key does not pass.
const (
	recordVersion = 1
	recordHeader  = 1 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func recordSum(seq uint64, data []byte) uint32 {
	var key [8]byte
	binary.BigEndian.PutUint64(key[:], seq)
	return crc32.Update(crc32.Checksum(key[:], castagnoli), castagnoli, data)
}

// putRecord fills value, of len(rec.Data)+recordHeader bytes.
func putRecord(value []byte, rec Record) {
	value[0] = recordVersion
	binary.BigEndian.PutUint32(value[1:], recordSum(rec.Seq, rec.Data))
	copy(value[recordHeader:], rec.Data)
}

// decodeRecord returns the data of the record at seq, a part of value. Errors: ErrCorrupt, ErrVersion.
func decodeRecord(seq uint64, value []byte) ([]byte, error) {
	if len(value) == 0 {
		return nil, fmt.Errorf("%w: record %d is empty", ErrCorrupt, seq)
	}
	if value[0] > recordVersion {
		return nil, fmt.Errorf("%w: record %d has version %d, this binary reads %d", ErrVersion, seq, value[0], recordVersion)
	}
	if value[0] != recordVersion || len(value) < recordHeader {
		return nil, fmt.Errorf("%w: record %d has no valid header", ErrCorrupt, seq)
	}
	data := value[recordHeader:]
	if want, got := binary.BigEndian.Uint32(value[1:]), recordSum(seq, data); got != want {
		return nil, fmt.Errorf("%w: record %d: checksum %08x, stored %08x", ErrCorrupt, seq, got, want)
	}
	return data, nil
}
