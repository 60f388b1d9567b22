package engine

import (
	"encoding/binary"
	"encoding/json"
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
	Epoch     uint64 // ignored unless it is the partition's
	Limit     uint64 // outputs
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

// Disk is an owner's word about the room on its disk. It goes through the log so that every reader refuses
// the same jobs, and in a record of its own since a partition where nothing is due has no ticks.
type Disk struct {
	Epoch uint64 // ignored unless it is the partition's
	Low   bool   // new jobs are refused, until an owner says otherwise
}

const diskVersion = 1

// Encode gives the disk record's body; see docs/formats/log-record.md.
func (d Disk) Encode() []byte {
	return appendBool(binary.AppendUvarint([]byte{diskVersion}, d.Epoch), d.Low)
}

// DecodeDisk reads a disk record's body. It fails on anything else, trailing bytes included.
func DecodeDisk(b []byte) (Disk, error) {
	d := decoder{b: b}
	if d.byte() != diskVersion {
		d.fail(errValue)
	}
	disk := Disk{Epoch: d.uvarint()}
	low := d.byte()
	if d.err == nil && (low > 1 || len(d.b) > 0) {
		d.fail(errValue)
	}
	if d.err != nil {
		return Disk{}, fmt.Errorf("%w: disk: %w", ErrRecord, d.err)
	}
	disk.Low = low == 1
	return disk, nil
}

// Claim takes a partition: its sequence in the log becomes the partition's epoch. It also carries what
// every reader must compute alike: the versions of the rules, and the settings that outputs depend on.
type Claim struct {
	Node         string `json:"node"`
	Logic        int    `json:"logic"`         // Logic of the binary that claims
	TZData       string `json:"tzdata"`        // version of the zone rules, "2025c"
	RetentionMS  int64  `json:"retention_ms"`  // how long a completed job stays queryable
	CompletedMax int    `json:"completed_max"` // a completed job stays until so many others have completed after it
}

// Encode gives the claim record's body, JSON.
func (c Claim) Encode() []byte {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err) // a struct of strings and integers
	}
	return b
}

// DecodeClaim reads a claim record's body.
func DecodeClaim(b []byte) (Claim, error) {
	var c Claim
	if err := json.Unmarshal(b, &c); err != nil {
		return Claim{}, fmt.Errorf("%w: claim: %w", ErrRecord, err)
	}
	if c.Node == "" || len(c.Node) > 128 || c.Logic < 1 || c.TZData == "" || len(c.TZData) > 32 || c.RetentionMS < 0 || c.CompletedMax < 0 {
		return Claim{}, fmt.Errorf("%w: claim: %w", ErrRecord, errValue)
	}
	return c, nil
}

// newer tells whether c was made under later rules than o.
func (c Claim) newer(o Claim) bool {
	if c.Logic != o.Logic {
		return c.Logic > o.Logic
	}
	return c.TZData > o.TZData
}

func (c Claim) sameRules(o Claim) bool { return c.Logic == o.Logic && c.TZData == o.TZData }
