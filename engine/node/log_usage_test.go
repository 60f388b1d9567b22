package node

import (
	"testing"

	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/wal"
)

// Records that the stream held already when it was asked do not count as filling it further when the node reads them.
func TestLogUsage(t *testing.T) {
	var f logUsage
	take := func(seq uint64, bytes int) { f.count([]wal.Record{{Seq: seq, Data: make([]byte, bytes)}}) }
	is := func(what string, mustFree, nearlyFull bool) {
		t.Helper()
		if f.mustFree() != mustFree || f.nearlyFull() != nearlyFull {
			t.Errorf("%s: must be freed %t, tight %t", what, f.mustFree(), f.nearlyFull())
		}
	}
	is("never asked", false, false)
	before := f.bytesRead()
	take(1, 6) // while the stream is asked
	f.update(streams.Info{Bytes: 60, MaxBytes: 100, Last: 10}, before)
	is("over half full", true, false)
	for seq := range uint64(9) {
		take(2+seq, 6)
	}
	is("all of that is read", true, false)
	before = f.bytesRead()
	take(11, 10)
	is("and a little more", true, false)
	take(12, 10)
	is("more than there is to spare", true, true)
	room := f.mustWait()
	waits := func(what string, want bool) {
		t.Helper()
		select {
		case <-room:
			if want {
				t.Errorf("%s: who waits for room goes on", what)
			}
		default:
			if !want {
				t.Errorf("%s: who waits for room waits", what)
			}
		}
	}
	f.update(streams.Info{Bytes: 78, MaxBytes: 100, Last: 12}, f.bytesRead())
	waits("not freed", true)
	f.update(streams.Info{Bytes: 50, MaxBytes: 100, Last: 11}, before)
	is("freed, but for what was read since", true, false)
	waits("freed", false)
	if f.mustWait() != nil {
		t.Error("a request waits where there is room")
	}
	f.update(streams.Info{Bytes: 50, MaxBytes: 100, Last: 12}, f.bytesRead())
	is("freed", false, false)
	f.update(streams.Info{Bytes: 50, MaxBytes: -1, Last: 12}, f.bytesRead())
	is("without a limit", false, false)
}
