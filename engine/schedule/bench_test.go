package schedule

import (
	"testing"

	carillon "github.com/carillon-scheduler/carillon"
)

func BenchmarkNext(b *testing.B) {
	const now = 1_767_225_600_000 // 2026-01-01
	for _, c := range []struct{ name, text, zone string }{
		{"every", "@every 250ms", ""},
		{"second", "* * * * * *", "UTC"},
		{"minute", "*/15 * * * *", "Europe/Paris"},
		{"weekdays", "0 30 9 * * MON-FRI", "Europe/Paris"},
		{"last_friday", "0 0 18 ? * FRIL", "America/New_York"},
		{"yearly", "@yearly", "America/New_York"},
		{"leap_monday", "0 0 */28 2 MON#5", "Europe/Paris"},
	} {
		e := mustParse(b, c.text, c.zone, carillon.GapShift, carillon.FoldFirst)
		p := e.Bind(now, 0, 0, 17)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			at := int64(now)
			for b.Loop() {
				next, ok := p.Next(at)
				if at = next; !ok || at > now+4_000_000_000_000 {
					at = now
				}
			}
		})
	}
}

// BenchmarkCount counts what an hour without an engine missed.
func BenchmarkCount(b *testing.B) {
	const now = 1_767_225_600_000 // 2026-01-01
	for _, text := range []string{"* * * * * *", "*/5 * * * * *", "* * * * *"} {
		p := mustParse(b, text, "Europe/Paris", carillon.GapShift, carillon.FoldFirst).Bind(now, 0, 0, 17)
		b.Run(text, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for last, done := int64(now), false; !done; {
					_, last, done = p.Count(last, now+3_600_000, 512)
				}
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse("0 30 9 LW * MON-FRI", "Europe/Paris", carillon.GapShift, carillon.FoldFirst); err != nil {
			b.Fatal(err)
		}
	}
}
