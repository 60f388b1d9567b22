package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/embedded"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// What the log is told to be durable was synced after it was written: a stream that acknowledges before it writes may have
// written it behind the sync that came with the ack.
func TestDurableIsSynced(t *testing.T) {
	dir := t.TempDir()
	block := filepath.Join(dir, "A", "streams", "CARILLON_OUT_0", "msgs", "1.blk")
	if err := os.MkdirAll(filepath.Dir(block), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(data string) {
		t.Helper()
		if err := os.WriteFile(block, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("before")
	outputs, err := streams.NewFileSync(dir, "CARILLON_OUT_", 1)
	if err != nil {
		t.Fatal(err)
	}
	bell, err := newAlarm()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(bell.close)
	p := &partition{chain: engine.NewChain()}
	n := &Node{server: &embedded.Server{}, outputs: outputs, meters: newMeters(nil), bell: bell, partitions: []*partition{p}}
	stored := engine.Acked{Output: 7, Seq: 9}
	p.chain.Resume(stored.Seq, stored.Output, nil)
	sync := func(durable engine.Acked, blocks uint64) {
		t.Helper()
		if err := n.syncOutputs(t.Context()); err != nil {
			t.Fatal(err)
		}
		if p.durable != durable || uint64(n.meters.blocksSynced.Get()) != blocks {
			t.Fatalf("%+v is durable, and %d blocks were synced; want %+v and %d", p.durable, n.meters.blocksSynced.Get(), durable, blocks)
		}
	}
	sync(engine.Acked{}, 1)
	write("and output 7")
	sync(stored, 2)
	write("something that nobody waits for")
	sync(stored, 2)
}
