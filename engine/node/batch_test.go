package node

import (
	"testing"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/wal"
)

// Once a batch has been carried out, it no longer refers to its messages. The memory of a burst is released with the first
// small batch behind it; as much as batches usually take is kept.
func TestBatchReleases(t *testing.T) {
	b := batch{records: []engine.Record{{Seq: 1, Data: []byte("x")}}, bytes: make([]byte, 4*batchKept)}
	b.stored = []wal.Record{{Seq: 1, Data: b.bytes[:1]}}
	b.release()
	if b.records[0].Data != nil {
		t.Error("a record keeps its message")
	}
	if b.stored[0].Data != nil {
		t.Error("a record keeps the batch's bytes")
	}
	if b.bytes == nil {
		t.Error("the bytes of a large batch are not kept for the next one")
	}
	b.bytes = b.bytes[:100]
	b.release()
	if b.bytes != nil {
		t.Errorf("a small batch keeps %d bytes", cap(b.bytes))
	}
	b.bytes = make([]byte, 100, batchKept)
	b.release()
	if b.bytes == nil {
		t.Error("few bytes are not kept")
	}
}
