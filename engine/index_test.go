package engine

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// The index gives the same answers as a map, even for hashes that are equal, nearly equal, or the greatest possible.
func TestIndexIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := newIndex()
		model := make(map[uint32][]uint32)
		spread := rapid.SampledFrom([]uint32{1, 7, 100, 1 << 12, math.MaxUint32}).Draw(t, "spread")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		base := rapid.SampledFrom([]uint32{0, 1 << 31, math.MaxUint32}).Draw(t, "base")
		hash := func() uint32 {
			if h := rng.Uint32N(spread); base == math.MaxUint32 {
				return base - h
			} else {
				return base + h
			}
		}
		next, n := uint32(0), 0
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				for range rapid.SampledFrom([]int{1, 40, 1100}).Draw(t, "n") {
					h := hash()
					x.insert(h, next)
					model[h] = append(model[h], next)
					next++
					n++
				}
			},
			"remove": func(t *rapid.T) {
				for range rapid.SampledFrom([]int{1, 40, 1100}).Draw(t, "n") {
					h := hash()
					if slots := model[h]; len(slots) > 0 {
						i := rng.IntN(len(slots))
						x.remove(h, slots[i])
						model[h] = slices.Delete(slots, i, i+1)
						n--
					}
				}
			},
			"": func(t *rapid.T) {
				if x.n != n {
					t.Fatalf("%d slots, want %d", x.n, n)
				}
				looks := 0
				for h, want := range model { // some of them
					if looks++; looks > 500 {
						break
					}
					got := slices.Sorted(x.slots(h))
					if slices.Sort(want); !slices.Equal(got, want) {
						t.Fatalf("hash %08x has %d, want %d", h, got, want)
					}
				}
				for range 100 {
					if h := rng.Uint32(); len(model[h]) == 0 && len(slices.Collect(x.slots(h))) > 0 {
						t.Fatalf("hash %08x is there", h)
					}
				}
				if most := 16 * (1 + n/segmentMax); len(x.directory) > most && n == int(next) {
					t.Fatalf("a directory of %d for %d slots", len(x.directory), n)
				}
			},
		})
	})
}

// No insertion moves more than the cells of a few segments, and a slot takes some ten bytes, however many there are.
func TestIndexGrowsBitByBit(t *testing.T) {
	x := newIndex()
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range uint32(300_000) {
		x.insert(rng.Uint32(), n)
		if n < 10_000 || n%1000 > 0 {
			continue
		}
		bytes, largest := 4*cap(x.directory)+int(unsafe.Sizeof(segment{}))*cap(x.segments), 0
		for _, s := range x.segments {
			bytes += 8 * len(s.cells)
			largest = max(largest, s.n)
		}
		if largest > segmentMax {
			t.Fatalf("of %d slots a segment has %d", n+1, largest)
		}
		if each := float64(bytes) / float64(n+1); each > 11 {
			t.Fatalf("%.1f bytes for each of %d slots", each, n+1)
		}
	}
	hashes := func(yield func(uint32) bool) {
		rng := rand.New(rand.NewPCG(1, 2))
		for yield(rng.Uint32()) {
		}
	}
	n := uint32(0)
	for h := range hashes {
		x.remove(h, n)
		if n++; n == 300_000 {
			break
		}
	}
	cells := 0
	for _, s := range x.segments {
		cells += len(s.cells)
	}
	if most := 48 * len(x.directory); x.n != 0 || cells > most {
		t.Errorf("%d slots are left, in %d cells; at most %d are kept", x.n, cells, most)
	}
}
