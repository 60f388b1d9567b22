package sim

import "testing"

// TestSabotage breaks one safeguard at a time and asks whether the simulator notices, and how soon.
func TestSabotage(t *testing.T) {
	for _, c := range []struct {
		name   string
		broken Sabotage
	}{
		{"chain", Sabotage{Chain: true}},
		{"clock", Sabotage{Clock: true}},
		{"cut", Sabotage{Cut: true}},
		{"epoch", Sabotage{Epoch: true}},
		{"hold", Sabotage{Hold: true}},
		{"watch", Sabotage{Watch: true}},
		{"save", Sabotage{Save: true}},
		{"table", Sabotage{Table: true}},
		{"take", Sabotage{Take: true}},
		{"reply", Sabotage{Reply: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			seed, err := firstFailure(1, 4000, Options{Sabotage: c.broken})
			if err == nil {
				t.Fatal("4,000 seeds saw nothing")
			}
			t.Logf("seed %d: %v", seed, err)
		})
	}
}

// TestDiverge changes the state of a follower: it finds out within a second and stops, and the owner goes on.
func TestDiverge(t *testing.T) {
	var found int
	var longest int64
	for seed := uint64(1); seed <= 100; seed++ {
		w := newWorld(seed, Options{Diverge: true})
		if err := w.run(); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, transcript(seed, Options{Diverge: true}))
		}
		if w.clocks.foundAfter > 0 {
			found, longest = found+1, max(longest, w.clocks.foundAfter)
		}
	}
	t.Logf("%d followers whose state was changed found out within %d ms", found, longest)
	if found < 50 {
		t.Errorf("in 100 worlds only %d followers had their state changed", found)
	}
}

// TestDeterminism plays a seed twice: the histories are the same, word for word.
func TestDeterminism(t *testing.T) {
	for seed := uint64(1); seed <= 20; seed++ {
		if a, b := history(seed), history(seed); a != b {
			t.Fatalf("seed %d gave two histories", seed)
		}
	}
}

func history(seed uint64) string {
	w := newWorld(seed, Options{Trace: true})
	if err := w.run(); err != nil {
		return w.trace.String() + err.Error()
	}
	return w.trace.String()
}
