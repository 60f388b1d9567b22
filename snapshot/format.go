package snapshot

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"github.com/carillon-scheduler/carillon/wal"
)

// Keys, integers big-endian:
//
//	c <partition u32> <id u64> 00 <chunk index u32>   a chunk
//	c <partition u32> <id u64> ff                     the summary, after all chunks
//
// Values:
//
//	chunk    version, xxhash64(key, data), data
//	summary  version, position u64, chunks u32, bytes u64, content u64, xxhash64(key, all before)
//
// content is the xxhash64 over, for each chunk in order, its length as u32 and its data.
const (
	chunkVersion   = 1
	summaryVersion = 1

	prefixSize  = 1 + 4 + 8
	chunkKey    = 0x00
	summaryKey  = 0xff
	chunkHeader = 1 + 8
	summarySize = 1 + 8 + 4 + 8 + 8 + 8
)

// prefix is what all keys of a checkpoint begin with. The one of the next id is their upper bound.
func prefix(partition uint32, id uint64) []byte {
	b := make([]byte, 0, prefixSize+1+4)
	b = append(b, wal.CheckpointsRoom)
	b = binary.BigEndian.AppendUint32(b, partition)
	return binary.BigEndian.AppendUint64(b, id)
}

func encodeChunk(key, data []byte) []byte {
	v := make([]byte, 0, chunkHeader+len(data))
	v = append(v, chunkVersion)
	v = binary.BigEndian.AppendUint64(v, sum(key, data))
	return append(v, data...)
}

// decodeChunk returns a part of v. Errors: wal.ErrCorrupt, wal.ErrVersion.
func decodeChunk(key, v []byte) ([]byte, error) {
	if len(v) > 0 && v[0] > chunkVersion {
		return nil, fmt.Errorf("%w: version %d, this binary reads %d", wal.ErrVersion, v[0], chunkVersion)
	}
	if len(v) < chunkHeader || v[0] != chunkVersion {
		return nil, fmt.Errorf("%w: no valid header", wal.ErrCorrupt)
	}
	data := v[chunkHeader:]
	if binary.BigEndian.Uint64(v[1:]) != sum(key, data) {
		return nil, fmt.Errorf("%w: checksum does not match", wal.ErrCorrupt)
	}
	return data, nil
}

func encodeSummary(key []byte, i Info) []byte {
	v := make([]byte, 0, summarySize)
	v = append(v, summaryVersion)
	v = binary.BigEndian.AppendUint64(v, i.Position)
	v = binary.BigEndian.AppendUint32(v, i.Chunks)
	v = binary.BigEndian.AppendUint64(v, i.Bytes)
	v = binary.BigEndian.AppendUint64(v, i.content)
	return binary.BigEndian.AppendUint64(v, sum(key, v))
}

// decodeSummary leaves partition and id, which stand in the key, to the caller. Errors: wal.ErrCorrupt,
// wal.ErrVersion.
func decodeSummary(key, v []byte) (i Info, err error) {
	if len(v) > 0 && v[0] > summaryVersion {
		return i, fmt.Errorf("%w: checkpoint version %d, this binary reads %d", wal.ErrVersion, v[0], summaryVersion)
	}
	if len(v) != summarySize || v[0] != summaryVersion {
		return i, fmt.Errorf("%w: checkpoint summary of %d bytes", wal.ErrCorrupt, len(v))
	}
	body := v[:summarySize-8]
	if binary.BigEndian.Uint64(v[summarySize-8:]) != sum(key, body) {
		return i, fmt.Errorf("%w: checkpoint summary's checksum does not match", wal.ErrCorrupt)
	}
	i.Position = binary.BigEndian.Uint64(body[1:])
	i.Chunks = binary.BigEndian.Uint32(body[9:])
	i.Bytes = binary.BigEndian.Uint64(body[13:])
	i.content = binary.BigEndian.Uint64(body[21:])
	return i, nil
}

// sum has the key in it so that a value under another key does not pass.
func sum(key, data []byte) uint64 {
	d := xxhash.New()
	_, _ = d.Write(key) // never fails
	_, _ = d.Write(data)
	return d.Sum64()
}

// content hashes a checkpoint's chunks as a whole.
type content struct{ d *xxhash.Digest }

func newContent() content { return content{xxhash.New()} }

func (c content) add(chunk []byte) {
	var n [4]byte
	binary.BigEndian.PutUint32(n[:], uint32(len(chunk)))
	_, _ = c.d.Write(n[:]) // never fails
	_, _ = c.d.Write(chunk)
}
