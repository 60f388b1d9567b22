package schedule

import (
	"errors"
	"testing"

	carillon "github.com/carillon-scheduler/carillon"
)

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"", "@at 2026-12-01T09:00:00.250Z", "@in 1m30s", "@every 250ms", "@yearly", "@hourly",
		"0 30 9 * * MON-FRI", "*/15 * * * *", "0 0 L-3,15W,LW * FRI#2", "0 0 ? feb-nov/2 5L,7", "30 2 29 2 *", "0 22-2/2 * * 5-7", "0 0 30 2 *",
	} {
		f.Add(text, "Europe/Paris", uint8(0), uint8(0), int64(1_792_886_400_000))
		f.Add(text, "", uint8(1), uint8(2), int64(0))
	}
	f.Fuzz(func(t *testing.T, text, zone string, gap, fold uint8, after int64) {
		e, err := Parse(text, zone, carillon.Gap(gap%2), carillon.Fold(fold%3))
		if err != nil {
			var refusal *carillon.Error
			if !errors.As(err, &refusal) || refusal.Message == "" {
				t.Fatalf("%v", err)
			}
			if invalidZone := refusal.Code == carillon.CodeInvalidZone; !invalidZone && refusal.Code != carillon.CodeInvalidSchedule ||
				invalidZone != (refusal.Field == "zone") {
				t.Fatalf("%v", err)
			}
			return
		}
		p := e.Bind(1_767_225_600_000, 0, 0, Offset(text, 1000))
		n, last, _ := p.Count(after, 1<<63-1, 20)
		at := after
		for i := range int64(20) {
			next, ok := p.Next(at)
			if !ok {
				break
			}
			if next <= at || next >= Horizon+1000 {
				t.Fatalf("%q in %q: Next(%d) = %d", text, zone, at, next)
			}
			at = next
			if again, ok := p.Next(next - 1); !ok || again != next {
				t.Fatalf("%q in %q: Next(%d) = %d %t", text, zone, next-1, again, ok)
			}
			if e.Kind() == Cron && (i+1 == n) != (at == last) {
				t.Fatalf("%q in %q: Count stops at %d after %d, Next is at %d", text, zone, last, n, at)
			}
		}
	})
}
