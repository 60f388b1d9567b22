package engine

import (
	"encoding/binary"
	"fmt"
)

// Acked names an output that is stored for good, and the stream sequence where it stands.
type Acked struct {
	Output uint64 // output number; 0: none yet
	Seq    uint64 // sequence in the partition's output stream
}

// Mark is a digest of a partition's state at a position of the log, to compare replicas by.
type Mark struct{ Position, Digest uint64 }

// Tick tells one partition to advance to To and to turn at most Limit of what is due into outputs.
type Tick struct {
	Partition int
	To        int64  // unix milliseconds
	Epoch     uint64 // the tick is ignored unless this is the partition's epoch
	Limit     uint64 // outputs to make at most
	Acked     Acked
	Mark      Mark // the owner's newest mark; Position 0: none
}

const (
	tickVersion = 1
	maxTicks    = 1 << 16
)

// EncodeTicks encodes a tick record's body; see docs/formats/log-record.md.
func EncodeTicks(ticks []Tick) []byte {
	b := []byte{tickVersion}
	b = binary.AppendUvarint(b, uint64(len(ticks)))
	for _, t := range ticks {
		b = binary.AppendUvarint(b, uint64(t.Partition))
		b = binary.AppendVarint(b, t.To)
		for _, v := range [...]uint64{t.Epoch, t.Limit, t.Acked.Output, t.Acked.Seq, t.Mark.Position, t.Mark.Digest} {
			b = binary.AppendUvarint(b, v)
		}
	}
	return b
}

// DecodeTicks is the inverse of EncodeTicks. It fails on anything else, trailing bytes included.
func DecodeTicks(b []byte) ([]Tick, error) {
	d := decoder{b: b}
	if d.byte() != tickVersion {
		d.fail(errValue)
	}
	n := d.uvarint()
	if n > maxTicks || n > uint64(len(d.b)) {
		d.fail(errShort)
	}
	var ticks []Tick
	for ; n > 0 && d.err == nil; n-- {
		p := d.uvarint()
		if p >= maxTicks {
			d.fail(errValue)
		}
		ticks = append(ticks, Tick{
			Partition: int(p), To: d.varint(), Epoch: d.uvarint(), Limit: d.uvarint(),
			Acked: Acked{d.uvarint(), d.uvarint()}, Mark: Mark{d.uvarint(), d.uvarint()},
		})
	}
	if d.err == nil && len(d.b) > 0 {
		d.fail(errValue)
	}
	if d.err != nil {
		return nil, fmt.Errorf("%w: tick: %w", ErrRecord, d.err)
	}
	return ticks, nil
}
