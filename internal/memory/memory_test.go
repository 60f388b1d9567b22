package memory

import (
	"os"
	"runtime/metrics"
	"testing"
)

// The room is of one size, whatever the heap's, between half of a large one and eight times a small one.
func TestGCPercent(t *testing.T) {
	for live, want := range map[uint64]int{0: maxGrowth, 1 << 20: maxGrowth, 192 << 20: 200, 384 << 20: 100, 768 << 20: minGrowth, 8 << 30: minGrowth} {
		if got := gcPercent(live); got != want {
			t.Errorf("with %d MiB live: %d %%, want %d", live>>20, got, want)
		}
	}
}

// An idle engine gives garbage back once, and what is free again and again.
func TestToGive(t *testing.T) {
	for _, c := range []struct {
		given               bool
		live, free, objects uint64
		want                uint64
	}{
		{false, 100, 5, 130, 35},
		{false, 100, 5, 90, 5}, // the collector has seen what is gone since
		{true, 100, 5, 130, 5},
		{true, 100, 0, 130, 0},
	} {
		if got := toGive(c.given, c.live, c.free, c.objects); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// What is measured beside a node is collected as a node is, and afterwards as before.
func TestTendCollector(t *testing.T) {
	percent := func() uint64 {
		v := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(v)
		return v[0].Value.Uint64()
	}
	before := percent()
	for _, set := range []bool{true, false} {
		if t.Setenv("GOGC", "77"); !set { // which also has it be as it was in the end
			if err := os.Unsetenv("GOGC"); err != nil {
				t.Fatal(err)
			}
		}
		end := TendCollector()
		if got := percent(); (got == before) != set || !set && (got < minGrowth || got > maxGrowth) {
			t.Errorf("set in the environment %t: %d %% while it is tended, %d before", set, got, before)
		}
		end()
		if got := percent(); got != before {
			t.Errorf("set in the environment %t: %d %% afterwards, want %d", set, got, before)
		}
	}
}
