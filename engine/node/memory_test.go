package node

import "testing"

// The room is of one size, whatever the heap's, between half of a large one and eight times a small one.
func TestGCPercent(t *testing.T) {
	for live, want := range map[uint64]int{0: roomMost, 1 << 20: roomMost, 192 << 20: 200, 384 << 20: 100, 768 << 20: roomLeast, 8 << 30: roomLeast} {
		if got := gcPercent(live); got != want {
			t.Errorf("with %d MiB live: %d %%, want %d", live>>20, got, want)
		}
	}
}
