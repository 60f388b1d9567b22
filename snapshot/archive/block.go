package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/s2"

	"github.com/carillon-scheduler/carillon/wal"
)

// A block is a run of pairs of one room; see docs/formats/snapshot.md.
const (
	blockMagic   = "CARB"
	blockVersion = 1
	blockHeader  = len(blockMagic) + 1

	frameHeader = 4 + 1 + 4 // length, kind, crc32c
	framePlain  = 1         // pairs
	frameSnappy = 2         // pairs, compressed
	frameIndex  = 3         // the index, which is the last frame

)

// maxRaw bounds what a frame decompresses to, so that a damaged length cannot take all memory: room for the largest pair
// and the rest of a frame.
const maxRaw = maxPair + 1<<20

// unpacked bounds what a payload of n bytes can hold: the densest element of a Snappy block makes 64 bytes of 3. Decoders of package s2 also
// take elements that make millions of bytes of 5, so without the bound a small file could take all memory.
func unpacked(n int) int { return n * 64 / 3 }

// maxPair is the size of the largest pair that a save accepts, many times what a job may have.
const maxPair = 64 << 20

// sizes say where blocks and frames end, in raw bytes. They are not part of the format: a reader takes blocks of any size.
type sizes struct {
	frame int // a frame ends after so many. Why not larger: to read one pair, all of its frame must be decompressed.
	least int // of a block. Why not smaller: each block is a file, or an object of several messages.
	mean  int // how much a block goes on beyond least, on average
	// most of a block. Why not larger: a block is in memory whole, several times. Why not smaller: an end at this size moves
	// with an insertion.
	most int
}

var defaultSizes = sizes{frame: 64 << 10, least: 256 << 10, mean: 1 << 20, most: 4 << 20}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// builder gathers a block.
type builder struct {
	sizes  sizes
	file   []byte
	raw    []byte // the frame under construction
	packed []byte // memory for a compressed frame
	first  []byte // first key of the frame
	pairs  uint64 // in the frame
	index  []byte // entries of the frames that are complete
	frames uint64

	info blockInfo
}

// blockInfo is what a block holds.
type blockInfo struct {
	room        byte
	first, last []byte // keys
	pairs, raw  uint64 // raw: bytes of keys, values and their lengths
}

func (b *builder) begin(room byte) {
	b.file = append(append(b.file[:0], blockMagic...), blockVersion)
	b.raw, b.index, b.pairs, b.frames = b.raw[:0], b.index[:0], 0, 0
	b.info = blockInfo{room: room}
}

// add adds a pair, and says whether the block ends with it. That depends only on the pairs of the block. So two rooms with
// a run of pairs in common have the same blocks there, from the first common end on. A pair ends a block with a
// probability in proportion to its size. The key's hash decides, so that a changed value mostly leaves the ends as they are.
func (b *builder) add(key, value []byte) (full bool) {
	before := len(b.raw)
	if b.pairs == 0 {
		b.first = append(b.first[:0], key...)
	}
	if b.info.pairs == 0 {
		b.info.first = bytes.Clone(key)
	}
	b.raw = appendBytes(appendBytes(b.raw, key), value)
	b.info.last = append(b.info.last[:0], key...)
	b.pairs++
	b.info.pairs++
	size := len(b.raw) - before
	b.info.raw += uint64(size)
	if len(b.raw) >= b.sizes.frame {
		b.endFrame()
	}
	n := int(b.info.raw)
	return n >= b.sizes.most || n >= b.sizes.least && xxhash.Sum64(key)%uint64(b.sizes.mean) < uint64(size)
}

func (b *builder) endFrame() {
	if b.pairs == 0 {
		return
	}
	b.index = binary.AppendUvarint(b.index, uint64(len(b.file)))
	b.index = binary.AppendUvarint(b.index, b.pairs)
	b.index = binary.AppendUvarint(b.index, uint64(len(b.raw)))
	b.index = appendBytes(b.index, b.first)
	b.frames++
	kind, payload := byte(framePlain), b.raw
	if b.packed = s2.EncodeSnappy(b.packed[:cap(b.packed)], b.raw); len(b.packed) < len(b.raw) {
		kind, payload = frameSnappy, b.packed
	}
	b.file = appendFrame(b.file, kind, payload)
	b.raw, b.pairs = b.raw[:0], 0
}

// end completes the block. The bytes are valid until the next begin.
func (b *builder) end() ([]byte, blockInfo) {
	b.endFrame()
	index := binary.AppendUvarint([]byte{b.info.room}, b.frames)
	index = appendBytes(append(index, b.index...), b.info.last)
	at := uint32(len(b.file))
	b.file = appendFrame(b.file, frameIndex, index)
	b.file = binary.BigEndian.AppendUint32(b.file, at)
	b.file = binary.BigEndian.AppendUint32(b.file, crc32.Checksum(b.file[len(b.file)-4:], castagnoli))
	return b.file, b.info
}

func appendFrame(b []byte, kind byte, payload []byte) []byte {
	at := len(b)
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(payload))), kind)
	sum := crc32.Update(crc32.Checksum(b[at:], castagnoli), castagnoli, payload)
	b = binary.BigEndian.AppendUint32(b, sum)
	return append(b, payload...)
}

func appendBytes(b, s []byte) []byte { return append(binary.AppendUvarint(b, uint64(len(s))), s...) }

// cutBytes takes a length-prefixed string off the front of b.
func cutBytes(b []byte) (s, rest []byte, ok bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return nil, nil, false
	}
	return b[size : size+int(n)], b[size+int(n):], true
}

// cutPair takes a pair off the front of b.
func cutPair(b []byte) (key, value, rest []byte, ok bool) {
	if key, rest, ok = cutBytes(b); ok {
		value, rest, ok = cutBytes(rest)
	}
	return key, value, rest, ok
}

// blockSum is a block's sha256 in hexadecimal, which its name is made of.
func blockSum(file []byte) string {
	sum := sha256.Sum256(file)
	return hex.EncodeToString(sum[:])
}

// frame is one frame of a block's file.
type frame struct {
	kind    byte
	payload []byte
	end     int // offset of the next frame
}

// readFrame reads the frame at an offset and checks its checksum.
func readFrame(path string, file []byte, at int) (frame, error) {
	left := len(file) - at
	if left < frameHeader {
		return frame{}, damaged(path, at, "the file ends in a frame's header")
	}
	head, n := file[at:at+frameHeader], binary.BigEndian.Uint32(file[at:])
	if uint64(n) > uint64(left-frameHeader) {
		return frame{}, damaged(path, at, "frame of %d bytes, the file has %d more", n, left-frameHeader)
	}
	f := frame{kind: head[4], end: at + frameHeader + int(n)}
	f.payload = file[at+frameHeader : f.end]
	sum := crc32.Update(crc32.Checksum(head[:5], castagnoli), castagnoli, f.payload)
	if sum != binary.BigEndian.Uint32(head[5:]) {
		return frame{}, damaged(path, at, "the frame's checksum does not match")
	}
	return f, nil
}

// openBlock checks a block as a whole against its name, and its pairs one by one. It returns the pairs, encoded as in frames but
// without compression; about is how many bytes of them to expect. Errors: *Damage, wal.ErrVersion.
func openBlock(path, sum string, file []byte, about uint64) (raw []byte, info blockInfo, err error) {
	if got := blockSum(file); got != sum {
		_, _, err := readBlock(path, file, 0)
		if where, ok := errors.AsType[*Damage](err); ok {
			return nil, info, where
		}
		return nil, info, damaged(path, 0, "the sha256 is %s", got)
	}
	return readBlock(path, file, about)
}

// readBlock is openBlock without the check of the name.
func readBlock(path string, file []byte, about uint64) (raw []byte, info blockInfo, err error) {
	if len(file) < blockHeader || string(file[:len(blockMagic)]) != blockMagic || file[len(blockMagic)] == 0 {
		return nil, info, damaged(path, 0, "no header of a block")
	}
	if v := file[len(blockMagic)]; v > blockVersion {
		return nil, info, fmt.Errorf("%w: %s has block version %d, this binary reads %d", wal.ErrVersion, path, v, blockVersion)
	}
	raw = make([]byte, 0, min(about, uint64(unpacked(len(file)))))
	index := make([]byte, 0, 64)
	var frames uint64
	at := blockHeader
	for {
		f, err := readFrame(path, file, at)
		if err != nil {
			return nil, info, err
		}
		if f.kind == frameIndex {
			if err := checkIndex(path, file, at, f, frames, index, &info); err != nil {
				return nil, info, err
			}
			return raw, info, nil
		}
		begin, pairs := len(raw), info.pairs
		if raw, err = appendRaw(raw, f); err != nil {
			return nil, info, damaged(path, at, "%v", err)
		}
		first, err := info.take(raw[begin:])
		if err != nil {
			return nil, info, damaged(path, at, "%v", err)
		}
		index = binary.AppendUvarint(index, uint64(at))
		index = binary.AppendUvarint(index, info.pairs-pairs)
		index = binary.AppendUvarint(index, uint64(len(raw)-begin))
		index = appendBytes(index, first)
		frames++
		at = f.end
	}
}

// appendRaw decompresses a frame.
func appendRaw(raw []byte, f frame) ([]byte, error) {
	switch f.kind {
	case framePlain:
		return append(raw, f.payload...), nil
	case frameSnappy:
		n, err := s2.DecodedLen(f.payload)
		if err != nil {
			return raw, fmt.Errorf("decompress a frame: %w", err)
		}
		if n > min(maxRaw, unpacked(len(f.payload))) {
			return raw, fmt.Errorf("frame of %d bytes that claims %d bytes decompressed", len(f.payload), n)
		}
		begin := len(raw)
		raw = slices.Grow(raw, n)[:begin+n]
		if _, err := s2.Decode(raw[begin:], f.payload); err != nil {
			return raw, fmt.Errorf("decompress a frame: %w", err)
		}
		return raw, nil
	}
	return raw, fmt.Errorf("frame of unknown kind %d", f.kind)
}

// take counts a frame's pairs, and checks that their keys ascend. It returns the first key.
func (i *blockInfo) take(raw []byte) (first []byte, err error) {
	i.raw += uint64(len(raw))
	if len(raw) == 0 {
		return nil, fmt.Errorf("frame without pairs")
	}
	last := i.last
	for n := 0; len(raw) > 0; n++ {
		key, _, rest, ok := cutPair(raw)
		if !ok {
			return nil, fmt.Errorf("pair %d of the frame does not end", n)
		}
		if i.pairs > 0 && bytes.Compare(key, last) <= 0 {
			return nil, fmt.Errorf("key % x comes after % x", key, last)
		}
		if n == 0 {
			first = key
		}
		if i.pairs == 0 {
			i.first = bytes.Clone(key)
		}
		raw, last = rest, key
		i.pairs++
	}
	i.last = append(i.last[:0], last...) // raw may move
	return first, nil
}

// checkIndex checks the end of a block after its frames of pairs: the index frame and the trailer.
func checkIndex(path string, file []byte, at int, f frame, frames uint64, entries []byte, info *blockInfo) error {
	if frames == 0 || len(f.payload) == 0 {
		return damaged(path, at, "block without pairs")
	}
	info.room = f.payload[0]
	want := binary.AppendUvarint([]byte{info.room}, frames)
	want = appendBytes(append(want, entries...), info.last)
	if !bytes.Equal(f.payload, want) {
		return damaged(path, at, "the index does not match the frames")
	}
	trailer := binary.BigEndian.AppendUint32(nil, uint32(at))
	trailer = binary.BigEndian.AppendUint32(trailer, crc32.Checksum(trailer, castagnoli))
	if !bytes.Equal(file[f.end:], trailer) {
		return damaged(path, f.end, "the trailer does not match")
	}
	return nil
}
