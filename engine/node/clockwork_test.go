package node

import (
	"strconv"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/engine"
)

// A tick allows no more outputs than there is space for, however large they are; small ones have the whole window.
func TestRoomForLargeOutputs(t *testing.T) {
	const payload = 500 << 10
	layout := engine.Layout{Prefix: "carillon", Partitions: 2}
	n := &Node{o: Options{OutboxMax: 8 << 20}}
	for i := range 2 {
		p := &partition{number: i, machine: engine.New(layout, i), chain: engine.NewChain(), owner: engine.Owner{Epoch: 1}}
		p.chain.Resume(0, 0, nil)
		n.partitions = append(n.partitions, p)
	}
	large := 0
	for engine.PartitionOf(strconv.Itoa(large), 2) != 0 {
		large++
	}
	claim := engine.Rules()
	claim.Node = "n1"
	for i, e := range []engine.Entry{
		{Kind: engine.KindClaim, Claim: claim},
		{Kind: engine.KindPut, Verb: "put", Job: strconv.Itoa(large), Body: []byte(`{"payload":"` + strings.Repeat("x", payload) + `"}`)},
	} {
		e.Seq, e.Time = uint64(i+1), 1
		if r, err := n.partitions[0].machine.Apply(&e); err != nil || r.Err != nil {
			t.Fatal(err, r.Err)
		}
	}
	rooms := func() (rooms []int) {
		n.owners(n.outboxSpace(), func(_ *partition, room int, _ engine.Acked) { rooms = append(rooms, room) })
		return rooms
	}
	window := n.partitions[1].chain.Room()
	if got := rooms(); got[0] < 1 || got[0]*payload > n.o.OutboxMax/2 || got[1] != window {
		t.Errorf("there is room for %v, in a window of %d", got, window)
	}
	n.o.OutboxMax = payload
	if got := rooms(); got[0] != 1 {
		t.Errorf("there is room for %v where not even one fits: nothing would ever go out", got)
	}
	n.o.OutboxMax = 0
	if got := rooms(); got[0] != 0 || got[1] != 0 {
		t.Errorf("there is room for %v without any space", got)
	}
}
