package engine

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// One Read keeps few jobs where they are large, whatever the order in which they were put; those that follow say where to read on, and
// none is left out. Small jobs come as many at a time as are asked for.
func TestReadsAreBounded(t *testing.T) {
	const jobs, large = 120, 300 << 10
	body := func(i, size int) string {
		return fmt.Sprintf(`{"schedule":"@at 2026-01-01T01:00:%02d.%03dZ","payload_text":%q}`, i/100, i%100, strings.Repeat("x", size))
	}
	sizes := map[string]func(i int) int{
		"small": func(int) int { return 10 },
		"large": func(int) int { return large },
		"few are large, and come first": func(i int) int {
			if i < 20 {
				return large
			}
			return 10
		},
		"few are large, and come last": func(i int) int {
			if i >= jobs-20 {
				return large
			}
			return 10
		},
	}
	for name, size := range sizes {
		for _, order := range []string{"as they are due", "backwards", "mixed"} {
			f := newFeed(t)
			s := &saved{m: f.m}
			var want []string
			for i := range jobs {
				want = append(want, fmt.Sprintf("job-%03d", i))
				n := i
				switch order {
				case "backwards":
					n = jobs - 1 - i
				case "mixed":
					n = i * 77 % jobs
				}
				f.put(fmt.Sprintf("job-%03d", n), body(n, size(n)))
			}
			if err := s.checkpoint(1000); err != nil {
				t.Fatal(err)
			}
			m, err := OpenCold(oneOfOne, 0, s.table.View())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			reads := 0
			for c := m.LoadCursors()[rankNormal]; c.End() != allKeys; c = m.LoadCursors()[rankNormal] {
				rows, err := c.Read(s.table.View(), math.MaxInt64, 100)
				if err != nil {
					t.Fatal(err)
				}
				bytes := 0
				for _, j := range rows.jobs {
					_, id := j.row.names()
					got = append(got, string(id))
					bytes += len(j.spec)
				}
				if reads++; bytes > readSlice {
					t.Errorf("%s, put %s: one read has %d bytes", name, order, bytes)
				}
				if ok, err := m.Load(rows); !ok || err != nil {
					t.Fatal(ok, err)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s, put %s: %d jobs came, or not in their order", name, order, len(got))
			}
			if most := map[string]int{"small": 2, "large": 2 * jobs * large / readSlice}[name]; most > 0 && reads > most {
				t.Errorf("%s, put %s: %d reads", name, order, reads)
			}
		}
	}
}
