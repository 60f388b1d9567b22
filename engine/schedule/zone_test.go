package schedule

import (
	"errors"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	carillon "github.com/carillon-scheduler/carillon"
)

func TestTZVersion(t *testing.T) {
	if v := TZVersion(); !regexp.MustCompile(`^20\d\d[a-z]$`).MatchString(v) {
		t.Errorf("%q", v)
	}
}

func TestZoneNames(t *testing.T) {
	for _, zone := range []string{"", "UTC", "Europe/Paris", "America/Argentina/Buenos_Aires", "Etc/GMT+12", "EST5EDT"} {
		if _, err := Parse("0 0 * * *", zone, carillon.GapShift, carillon.FoldFirst); err != nil {
			t.Error(err)
		}
	}
	for _, zone := range []string{
		"Local", "local", "utc", "europe/paris", "Europe/Paris ", "Europe", "Europe/", "Mars/Olympus", "../../etc/passwd", "/etc/localtime",
		"Europe/../Europe/Paris", "+02:00", "\x00", strings.Repeat("x", 4000),
	} {
		_, err := Parse("0 0 * * *", zone, carillon.GapShift, carillon.FoldFirst)
		var refusal *carillon.Error
		if !errors.As(err, &refusal) || refusal.Code != carillon.CodeInvalidZone || refusal.Field != "zone" || len(refusal.Message) > 400 {
			t.Errorf("%q: %v", zone, err)
		}
	}
	for _, text := range []string{"", "@every 1s", "@in 1s", "@at 2026-01-01T00:00:00Z"} {
		for _, zone := range []string{"Europe/Paris", "Mars/Olympus"} {
			if _, err := Parse(text, zone, carillon.GapShift, carillon.FoldFirst); !errors.Is(err, &carillon.Error{Code: carillon.CodeInvalidZone}) {
				t.Errorf("%q with %q: %v", text, zone, err)
			}
		}
	}
}

// A location is there for each zone that schedules may have, and for no other name.
func TestLocation(t *testing.T) {
	at := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	for name, want := range map[string]string{"": "12:00 UTC", "UTC": "12:00 UTC", "Europe/Paris": "14:00 CEST", "Etc/GMT-2": "14:00 +02"} {
		loc, err := Location(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := at.In(loc).Format("15:04 MST"); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
	for _, name := range []string{"Local", "Mars/Olympus", "../../etc/passwd"} {
		if loc, err := Location(name); !errors.Is(err, &carillon.Error{Code: carillon.CodeInvalidZone}) || loc != nil {
			t.Errorf("%q: %v, %v", name, loc, err)
		}
	}
}

// TestZoneTables compares the table of each zone with time.Time, and checks what the search relies on.
func TestZoneTables(t *testing.T) {
	for name := range zoneFiles() {
		z, _ := findZone(name)
		loc := zoneByName(t, name)
		agree := func(at int64) {
			t.Helper()
			at = max(at, 0)
			_, want := time.Unix(at, 0).In(loc).Zone()
			if got := z.off[z.period(at)]; got != int64(want) {
				t.Fatalf("%s at %d: offset %d, want %d", name, at, got, want)
			}
		}
		for i := range z.off {
			agree(z.at[i])
			agree(z.at[i+1] - 1)
			if i == 0 {
				continue
			}
			agree(z.at[i] - 1)
			if z.off[i] == z.off[i-1] {
				t.Errorf("%s: no change at %d", name, z.at[i])
			}
			change := func(i int) int64 { return max(z.off[i]-z.off[i-1], z.off[i-1]-z.off[i]) }
			if i > 1 && z.at[i]-z.at[i-1] <= change(i)+change(i-1) {
				t.Errorf("%s: the changes at %d and %d are too close", name, z.at[i-1], z.at[i])
			}
		}
		for at := int64(0); at < Horizon/1000; at += 9_999_991 { // four months, a prime
			agree(at)
		}
		// The last days of each year, where ZoneBounds is vague.
		for year := 1971; year <= 2500; year++ {
			for day := range 3 {
				agree(time.Date(year, 1, 1-day, 0, 0, 0, 0, time.UTC).Unix() - 1)
			}
		}
	}
}

func TestHorizon(t *testing.T) {
	if want := time.Date(2500, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli(); Horizon != want {
		t.Fatal(want)
	}
	last := time.Date(2499, 12, 31, 23, 59, 59, 0, time.UTC).UnixMilli()
	for _, zone := range []string{"UTC", "Pacific/Kiritimati", "Etc/GMT+12", "Europe/Paris"} {
		p := mustParse(t, "* * * * * *", zone, carillon.GapShift, carillon.FoldLast).Bind(0, 0, 0, 0)
		if at, ok := p.Next(last - 1000); !ok || at != last {
			t.Errorf("%s: %d %t", zone, at, ok)
		}
		for _, after := range []int64{last, Horizon, 1<<63 - 1} {
			if at, ok := p.Next(after); ok {
				t.Errorf("%s: %d after %d", zone, at, after)
			}
		}
		for _, after := range []int64{-1, -1 << 63} {
			if at, ok := p.Next(after); !ok || at != 0 {
				t.Errorf("%s: %d %t after %d", zone, at, ok, after)
			}
		}
	}
}

// The calendar of months is checked day by day.
func TestCalendar(t *testing.T) {
	day := int32(0)
	for m := range len(monthStart) - 1 {
		if monthStart[m] != day {
			t.Fatalf("month %d begins at day %d, want %d", m, monthStart[m], day)
		}
		day += int32(time.Date(1969, time.Month(m+2), 0, 0, 0, 0, 0, time.UTC).Day())
	}
	e := mustParse(t, "0 0 * * *", "", carillon.GapShift, carillon.FoldFirst)
	for at := int64(0); at < Horizon; at += daySeconds * 1000 {
		if got := e.cron.matches(at / 1000); got != at/1000 {
			t.Fatalf("%d: %d", at/1000, got)
		}
	}
}

func TestConcurrentParse(t *testing.T) {
	zones.Clear()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for _, zone := range zonesOfNote {
				e, err := Parse("0 12 * * *", zone, carillon.GapShift, carillon.FoldFirst)
				if err != nil {
					t.Error(err)
					return
				}
				if _, ok := e.Bind(0, 0, 0, 0).Next(0); !ok {
					t.Errorf("%s: no fire", zone)
				}
			}
		})
	}
	wg.Wait()
}
