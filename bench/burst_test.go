package bench

import (
	"encoding/json"
	"slices"
	"testing"
	"time"
)

func TestBurst(t *testing.T) {
	t.Parallel() // it mostly waits
	c := BurstConfig{
		Service: service(t),
		Jobs:    20_000, SideRate: 400, Partitions: 2, Rounds: 1, Pause: time.Second,
	}
	r, err := RunBurst(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	// The burst's own triggers, and whatever else was due until it was drained.
	if !r.Checks.clean() || r.Checks.Expected <= 20_000 {
		t.Errorf("checks are %+v, expected more than 20,000 triggers and nothing wrong", r.Checks)
	}
	for _, name := range []string{
		"drained_per_s", "drained_s", "ceiling_chained_per_s", "ratio_chained",
		"high_lateness_p50_ms", "high_lateness_p99_ms", "high_lateness_max_ms", "normal_lateness_p99_ms",
		"burst_high_stored_p50_ms", "burst_normal_stored_p99_ms", "burst_low_stored_max_ms",
	} {
		if r.Figures.Get(name) <= 0 {
			t.Errorf("%s is %v", name, r.Figures.Get(name))
		}
	}
	if high, normal, low := r.Figures.Get("burst_high_stored_p50_ms"), r.Figures.Get("burst_normal_stored_p50_ms"), r.Figures.Get("burst_low_stored_p50_ms"); high > normal || normal > low {
		t.Errorf("the middle of high, normal and low priority came after %v, %v, %v ms", high, normal, low)
	}
	stored := 0.
	for _, p := range r.Series["stored_per_100ms"] {
		stored += p[1]
	}
	if stored != 20_000 {
		t.Errorf("the drain over time is of %v triggers", stored)
	}
	for _, name := range []string{"high_received_us", "normal_received_us", "burst_low_stored_us", "sleep_us"} {
		if h, err := decode(r.Histograms[name]); err != nil || h.TotalCount() == 0 {
			t.Errorf("histogram %s: %v", name, err)
		}
	}
	nothingIn(t, c.Service.Data)
}

func TestDrained(t *testing.T) {
	s := newJobBurst("x-", 4, 1)
	s.From = 1_000_000
	at := func(ms int64) int64 { return (s.From + ms) * 1e6 }
	var r Result
	s.drained([]int64{at(400), at(0), at(99), at(100)}, &r)
	if perS, took := r.Figures.Get("drained_per_s"), r.Figures.Get("drained_s"); perS != 10 || took != 0.4 {
		t.Errorf("drained at %v/s in %v s, expected 4 in 0.4 s", perS, took)
	}
	want := []Point{{0, 2}, {0.1, 1}, {0.2, 0}, {0.3, 0}, {0.4, 1}}
	if got := r.Series["stored_per_100ms"]; !slices.Equal(got, want) {
		t.Errorf("over time %v, expected %v", got, want)
	}
	b, err := json.Marshal(r.Series)
	if err != nil || string(b) != `{"stored_per_100ms":[[0,2],[0.1,1],[0.2,0],[0.3,0],[0.4,1]]}` {
		t.Errorf("as JSON: %s, %v", b, err)
	}
}

// A burst that came before its time does not end a run: its checks show that.
func TestDrainedEarly(t *testing.T) {
	s := newJobBurst("x-", 3, 1)
	s.From = 10_000
	var r Result
	s.drained([]int64{8_400e6, 8_500e6, 8_500e6}, &r)
	if v := r.Figures.Get("drained_s"); v != 0.001 {
		t.Errorf("drained in %v s, expected the least that there is", v)
	}
}
