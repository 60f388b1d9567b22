package bench_test

import (
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/carillon-scheduler/carillon/bench"
)

// What the harness of another module, such as bench/peers, does: record, send a histogram between processes, report.
func TestHarnessOfAnotherModule(t *testing.T) {
	h := bench.NewHistogram()
	for ms := range int64(100) {
		bench.Record(h, ms*1e6)
	}
	bench.Record(h, -5e6)
	text, err := bench.EncodeHistogram(h)
	if err != nil {
		t.Fatal(err)
	}
	again, err := bench.DecodeHistogram(text)
	if err != nil {
		t.Fatal(err)
	}
	var got, want bench.Figures
	want.Quantiles("received", h, 50, 99.9, 100)
	got.Quantiles("received", again, 50, 99.9, 100)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if p50 := got.Get("received_p50_ms"); p50 < 48 || p50 > 50 {
		t.Errorf("p50 is %v ms, want 49", p50)
	}
	if h.Min() != 0 || got.Get("received_max_ms") < 99 {
		t.Errorf("from %d µs to %v ms, want 0 to 99", h.Min(), got.Get("received_max_ms"))
	}
	if m := bench.ThisMachine(t.TempDir(), "on disk"); m.Cores != runtime.NumCPU() || m.Go != runtime.Version() || m.Storage == "" || m.Sync != "on disk" {
		t.Errorf("the machine is %+v", m)
	}
}
