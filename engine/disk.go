package engine

import (
	"encoding/binary"
	"fmt"
)

// Disk says whether an owner's disk is nearly full. It goes through the log, so that every reader refuses
// the same jobs; and in a record of its own, because a partition where nothing is due has no ticks.
type Disk struct {
	Epoch uint64 // the record is ignored unless this is the partition's epoch
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

// applyDisk notes whether the owner's disk is nearly full.
func (m *Machine) applyDisk(e *Entry) {
	if e.Disk.Epoch != m.epoch || m.epoch == 0 {
		m.garbage("stale_epoch")
		return
	}
	m.diskLow = e.Disk.Low
	m.mix(uint64(e.Kind), e.Seq)
}
