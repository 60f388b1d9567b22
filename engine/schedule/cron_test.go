package schedule

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	carillon "github.com/carillon-scheduler/carillon"
)

func mustParse(t testing.TB, text, zone string, gap carillon.Gap, fold carillon.Fold) *Expr {
	t.Helper()
	e, err := Parse(text, zone, gap, fold)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// fires lists the next fires after a local time, each in local time.
func fires(t *testing.T, e *Expr, zone, after string, n int) []string {
	t.Helper()
	loc := zoneByName(t, zone)
	start, err := time.ParseInLocation("2006-01-02 15:04:05", after, loc)
	if err != nil {
		t.Fatal(err)
	}
	p, at := e.Bind(0, 0, 0, 0), start.UnixMilli()
	var got []string
	for range n {
		var ok bool
		if at, ok = p.Next(at); !ok {
			return append(got, "none")
		}
		got = append(got, time.UnixMilli(at).In(loc).Format("06-01-02 15:04:05 -0700"))
	}
	return got
}

func TestForms(t *testing.T) {
	const after = "2026-01-01 00:00:00" // a Thursday
	for _, c := range []struct{ text, want string }{
		{"* * * * *", "26-01-01 00:01:00, 26-01-01 00:02:00"},
		{"* * * * * *", "26-01-01 00:00:01, 26-01-01 00:00:02"},
		{"0 30 9 * * MON-FRI", "26-01-01 09:30:00, 26-01-02 09:30:00, 26-01-05 09:30:00"},
		{"  30\t9   *  *  mon-Fri ", "26-01-01 09:30:00, 26-01-02 09:30:00, 26-01-05 09:30:00"},
		{"*/20 9 * * *", "26-01-01 09:00:00, 26-01-01 09:20:00, 26-01-01 09:40:00, 26-01-02 09:00:00"},
		{"*/60 * * * *", "26-01-01 01:00:00, 26-01-01 02:00:00"},
		{"5/99999 */24 * * *", "26-01-01 00:05:00, 26-01-02 00:05:00"},
		{"0 ?/30 ? 1,? ? *", "26-01-01 00:30:00, 26-01-01 01:00:00"},
		{"50/5 9 * * *", "26-01-01 09:50:00, 26-01-01 09:55:00, 26-01-02 09:50:00"},
		{"0 22-2/2 * * *", "26-01-01 02:00:00, 26-01-01 22:00:00, 26-01-02 00:00:00, 26-01-02 02:00:00"},
		{"0 0 * * FRI-MON", "26-01-02 00:00:00, 26-01-03 00:00:00, 26-01-04 00:00:00, 26-01-05 00:00:00, 26-01-09 00:00:00"},
		{"0 0 * * 5-7", "26-01-02 00:00:00, 26-01-03 00:00:00, 26-01-04 00:00:00, 26-01-09 00:00:00"},
		{"0 0 * * 7", "26-01-04 00:00:00, 26-01-11 00:00:00"},
		{"0 0 * * 0", "26-01-04 00:00:00, 26-01-11 00:00:00"},
		{"0 0 30-2 * ?", "26-01-02 00:00:00, 26-01-30 00:00:00, 26-01-31 00:00:00, 26-02-01 00:00:00"},
		{"0 0 1 NOV-feb *", "26-02-01 00:00:00, 26-11-01 00:00:00, 26-12-01 00:00:00, 27-01-01 00:00:00"},
		{"0 0 L * *", "26-01-31 00:00:00, 26-02-28 00:00:00, 26-03-31 00:00:00"},
		{"0 0 L-3 * *", "26-01-28 00:00:00, 26-02-25 00:00:00"},
		{"0 0 L-30 * *", "26-03-01 00:00:00, 26-05-01 00:00:00"},
		{"0 0 l,1 * *", "26-01-31 00:00:00, 26-02-01 00:00:00, 26-02-28 00:00:00"},
		{"0 0 LW * *", "26-01-30 00:00:00, 26-02-27 00:00:00, 26-03-31 00:00:00"},
		{"0 0 15W * *", "26-01-15 00:00:00, 26-02-16 00:00:00, 26-03-16 00:00:00, 26-04-15 00:00:00, 26-05-15 00:00:00, 26-06-15 00:00:00, 26-07-15 00:00:00, 26-08-14 00:00:00"},
		// Never out of its month: 2026-02-01 is a Sunday, 2026-08-01 a Saturday.
		{"0 0 1W 2-8 *", "26-02-02 00:00:00, 26-03-02 00:00:00, 26-04-01 00:00:00, 26-05-01 00:00:00, 26-06-01 00:00:00, 26-07-01 00:00:00, 26-08-03 00:00:00"},
		{"0 0 31W * *", "26-01-30 00:00:00, 26-03-31 00:00:00, 26-05-29 00:00:00"},
		{"0 0 2W 4,5 *", "26-04-02 00:00:00, 26-05-01 00:00:00"}, // 2026-05-02 is a Saturday
		{"0 0 * * FRIL", "26-01-30 00:00:00, 26-02-27 00:00:00"},
		{"0 0 * * 5L", "26-01-30 00:00:00, 26-02-27 00:00:00"},
		{"0 0 * * 7L", "26-01-25 00:00:00, 26-02-22 00:00:00"},
		{"0 0 * * FRI#2", "26-01-09 00:00:00, 26-02-13 00:00:00"},
		{"0 0 ? * thu#5", "26-01-29 00:00:00, 26-04-30 00:00:00"},
		{"0 0 ? * MON#1,MON#3", "26-01-05 00:00:00, 26-01-19 00:00:00, 26-02-02 00:00:00"},
		{"0 0 29 2 *", "28-02-29 00:00:00, 32-02-29 00:00:00"},
		{"0 0 */28 2 THU#5", "52-02-29 00:00:00, 80-02-29 00:00:00"},
		// If day of month and day of week are both restricted, either may match. A field that begins with a star is not restricted.
		{"0 0 13 * FRI", "26-01-02 00:00:00, 26-01-09 00:00:00, 26-01-13 00:00:00, 26-01-16 00:00:00"},
		{"0 0 */2 * FRI", "26-01-09 00:00:00, 26-01-23 00:00:00, 26-02-13 00:00:00"},
		{"0 0 1-31/2 * FRI", "26-01-02 00:00:00, 26-01-03 00:00:00, 26-01-05 00:00:00"},
		{"0 0 13 * */5", "26-02-13 00:00:00, 26-03-13 00:00:00, 26-09-13 00:00:00"},
		{"0 0 ? * ?", "26-01-02 00:00:00, 26-01-03 00:00:00"},
		{"@yearly", "27-01-01 00:00:00, 28-01-01 00:00:00"},
		{"@annually", "27-01-01 00:00:00"},
		{"@monthly", "26-02-01 00:00:00, 26-03-01 00:00:00"},
		{"@weekly", "26-01-04 00:00:00, 26-01-11 00:00:00"},
		{"@daily", "26-01-02 00:00:00, 26-01-03 00:00:00"},
		{"@midnight", "26-01-02 00:00:00"},
		{"@hourly", "26-01-01 01:00:00, 26-01-01 02:00:00"},
	} {
		e := mustParse(t, c.text, "", carillon.GapShift, carillon.FoldFirst)
		if e.Kind() != Cron {
			t.Errorf("%q has kind %d", c.text, e.Kind())
		}
		want := strings.Split(c.want, ", ")
		got := fires(t, e, "UTC", after, len(want))
		for i := range got {
			got[i] = strings.TrimSuffix(got[i], " +0000")
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q\n got %q\nwant %q", c.text, got, want)
		}
	}
}

func TestClockChanges(t *testing.T) {
	const (
		shift, skip       = carillon.GapShift, carillon.GapSkip
		first, last, both = carillon.FoldFirst, carillon.FoldLast, carillon.FoldBoth
	)
	for _, c := range []struct {
		text, zone string
		gap        carillon.Gap
		fold       carillon.Fold
		after      string
		want       string
	}{
		// Paris skips 02:00 to 03:00 on 2026-03-29 and repeats it on 2026-10-25.
		{"30 2 * * *", "Europe/Paris", shift, first, "2026-03-28 12:00:00", "26-03-29 03:00:00 +0200, 26-03-30 02:30:00 +0200"},
		{"30 2 * * *", "Europe/Paris", skip, first, "2026-03-28 12:00:00", "26-03-30 02:30:00 +0200"},
		{"*/10 2,3 * * *", "Europe/Paris", shift, first, "2026-03-28 03:50:00", "26-03-29 03:00:00 +0200, 26-03-29 03:10:00 +0200"},
		{"*/20 2 * * *", "Europe/Paris", shift, first, "2026-03-28 03:50:00", "26-03-29 03:00:00 +0200, 26-03-30 02:00:00 +0200"},
		{"30 2 * * *", "Europe/Paris", shift, first, "2026-10-24 12:00:00", "26-10-25 02:30:00 +0200, 26-10-26 02:30:00 +0100"},
		{"30 2 * * *", "Europe/Paris", shift, last, "2026-10-24 12:00:00", "26-10-25 02:30:00 +0100, 26-10-26 02:30:00 +0100"},
		{"30 2 * * *", "Europe/Paris", shift, both, "2026-10-24 12:00:00", "26-10-25 02:30:00 +0200, 26-10-25 02:30:00 +0100, 26-10-26 02:30:00 +0100"},
		{"0 0-23 * * *", "Europe/Paris", shift, first, "2026-10-25 01:00:00", "26-10-25 02:00:00 +0200, 26-10-25 03:00:00 +0100"},
		// By elapsed time, whatever dst_gap and dst_fold say.
		{"0 * * * *", "Europe/Paris", skip, last, "2026-10-25 01:00:00", "26-10-25 02:00:00 +0200, 26-10-25 02:00:00 +0100, 26-10-25 03:00:00 +0100"},
		{"30 */1 * * *", "Europe/Paris", shift, first, "2026-03-29 01:00:00", "26-03-29 01:30:00 +0100, 26-03-29 03:30:00 +0200, 26-03-29 04:30:00 +0200"},
		{"*/30 * * * *", "Europe/Paris", shift, first, "2026-10-25 01:30:00", "26-10-25 02:00:00 +0200, 26-10-25 02:30:00 +0200, 26-10-25 02:00:00 +0100, 26-10-25 02:30:00 +0100, 26-10-25 03:00:00 +0100"},
		{"0 */2 * * *", "Europe/Paris", skip, both, "2026-10-24 23:00:00", "26-10-25 00:00:00 +0200, 26-10-25 02:00:00 +0200, 26-10-25 04:00:00 +0100"},
		{"0 */2 * * *", "Europe/Paris", skip, both, "2026-03-28 23:00:00", "26-03-29 00:00:00 +0100, 26-03-29 03:00:00 +0200, 26-03-29 04:00:00 +0200"},
		// Half an hour: 02:00 to 02:30 is skipped on 2026-10-04, 01:30 to 02:00 repeated on 2026-04-05.
		{"15 2 * * *", "Australia/Lord_Howe", shift, first, "2026-10-03 12:00:00", "26-10-04 02:30:00 +1100, 26-10-05 02:15:00 +1100"},
		{"45 1 * * *", "Australia/Lord_Howe", shift, both, "2026-04-04 12:00:00", "26-04-05 01:45:00 +1100, 26-04-05 01:45:00 +1030, 26-04-06 01:45:00 +1030"},
		{"15 1 * * *", "Australia/Lord_Howe", shift, both, "2026-04-04 12:00:00", "26-04-05 01:15:00 +1100, 26-04-06 01:15:00 +1030"},
		// Midnight does not exist: São Paulo 2018-11-04, Beirut 2026-03-29, Havana 2026-03-08.
		{"@daily", "America/Sao_Paulo", shift, first, "2018-11-03 00:00:00", "18-11-04 01:00:00 -0200, 18-11-05 00:00:00 -0200"},
		{"@daily", "Asia/Beirut", shift, first, "2026-03-28 00:00:00", "26-03-29 01:00:00 +0300, 26-03-30 00:00:00 +0300"},
		{"@daily", "America/Havana", skip, first, "2026-03-07 00:00:00", "26-03-09 00:00:00 -0400"},
		// Havana repeats 00:00 to 01:00 on 2026-11-01: midnight twice, one of them on a new date.
		{"@daily", "America/Havana", shift, first, "2026-10-31 12:00:00", "26-11-01 00:00:00 -0400, 26-11-02 00:00:00 -0500"},
		{"@daily", "America/Havana", shift, last, "2026-10-31 12:00:00", "26-11-01 00:00:00 -0500, 26-11-02 00:00:00 -0500"},
		{"@weekly", "America/Sao_Paulo", shift, first, "2018-02-17 12:00:00", "18-02-18 00:00:00 -0300, 18-02-25 00:00:00 -0300"},
		{"30 23 * * *", "America/Sao_Paulo", shift, both, "2018-02-17 12:00:00", "18-02-17 23:30:00 -0200, 18-02-17 23:30:00 -0300, 18-02-18 23:30:00 -0300"},
		// Apia had no 2011-12-30 at all.
		{"0 9 * * *", "Pacific/Apia", shift, first, "2011-12-29 08:00:00", "11-12-29 09:00:00 -1000, 11-12-31 00:00:00 +1400, 11-12-31 09:00:00 +1400"},
		{"0 9 * * *", "Pacific/Apia", skip, first, "2011-12-29 08:00:00", "11-12-29 09:00:00 -1000, 11-12-31 09:00:00 +1400"},
		{"0 * * * *", "Pacific/Apia", shift, first, "2011-12-29 22:00:00", "11-12-29 23:00:00 -1000, 11-12-31 00:00:00 +1400"},
		{"0 9 30 12 *", "Pacific/Apia", shift, first, "2011-12-01 00:00:00", "11-12-31 00:00:00 +1400, 12-12-30 09:00:00 +1400"},
		// Rules beyond the end of the file's list.
		{"30 2 * * SUN", "Europe/Paris", shift, first, "2499-03-28 12:00:00", "99-03-29 03:00:00 +0200, 99-04-05 02:30:00 +0200"},
	} {
		e := mustParse(t, c.text, c.zone, c.gap, c.fold)
		want := strings.Split(c.want, ", ")
		if got := fires(t, e, c.zone, c.after, len(want)); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q in %s, gap %d, fold %d\n got %q\nwant %q", c.text, c.zone, c.gap, c.fold, got, want)
		}
	}
}

// An offset that is not whole minutes: Monrovia was 0:44:30 behind UTC until 1972.
func TestOffsetWithSeconds(t *testing.T) {
	e := mustParse(t, "0 0 * * *", "Africa/Monrovia", carillon.GapShift, carillon.FoldFirst)
	at, _ := e.Bind(0, 0, 0, 0).Next(time.Date(1971, 6, 1, 0, 0, 0, 0, time.UTC).UnixMilli())
	if want := time.Date(1971, 6, 1, 0, 44, 30, 0, time.UTC).UnixMilli(); at != want {
		t.Errorf("got %s", show(at, time.UTC))
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct{ text, says string }{
		{"   ", "blank"},
		{strings.Repeat("1,", 300) + "1 * * * *", "longer than"},
		{"* * * * *\n", "byte 9"},
		{"* * * * ſun", "byte 8"},
		{"* * * *", "this has 4"},
		{"60 * * * *", `minute "60": 60 is not within 0 to 59`},
		{"60 * * * * *", `second "60": 60`},
		{"* 24 * * *", `hour "24": 24 is not within 0 to 23`},
		{"* * 0 * *", `day of month "0"`},
		{"* * 32 * *", `day of month "32"`},
		{"* * * 13 *", `month "13": 13 is not within 1 to 12`},
		{"* * * 0 *", `month "0"`},
		{"* * * * 8", `day of week "8": 8 is not within 0 to 7`},
		{"* * * * FOO", `day of week "FOO": "FOO" is not a number from 0 to 7, nor a name from SUN to SAT`},
		{"* * * MON *", `nor a name from JAN to DEC`},
		{"* MON * * *", `hour "MON"`},
		{"1,,2 * * * *", `minute ""`},
		{"1- * * * *", `minute "1-"`},
		{"-1 * * * *", `minute "-1"`},
		{"+1 * * * *", `minute "+1"`},
		{"1-2-3 * * * *", `"2-3" is not a number`},
		{"*-5 * * * *", `minute "*-5"`},
		{"*/0 * * * *", "the step"},
		{"*/-1 * * * *", "the step"},
		{"*/ * * * *", "the step"},
		{"*/1/2 * * * *", "the step"},
		{"?-5 * * * *", `minute "?-5"`},
		{"5? * * * *", `"5?" is not a number`},
		{"* * * L *", `month "L"`},
		{"* * L-0 * *", "after L-"},
		{"* * L-31 * *", "after L-"},
		{"* * L/2 * *", `day of month "L/2"`},
		{"* * 1-15W * *", "before W"},
		{"* * 0W * *", "before W"},
		{"* * W * *", "before W"},
		{"* * * * L", "such as FRIL"},
		{"* * * * 8L", `day of week "8L"`},
		{"* * * * FRI#0", "after #"},
		{"* * * * FRI#6", "after #"},
		{"* * * * #1", `"" is not a number`},
		{"0 0 30 2 *", "never match"},
		{"0 0 0 30 2 *", "never match"},
		{"0 0 31 4,6,9,11 *", "never match"},
		{"0 0 L-29 2 *", "never match"},
		{"0 0 */30 2 MON#5", "never match"},
		{"@every", "@every takes one duration"},
		{"@every 0s", "shortest"},
		{"@every -5s", "shortest"},
		{"@every 1us", "shortest"},
		{"@every 1500us", "whole milliseconds"},
		{"@every 5", "not a duration"},
		{"@every 1d", "not a duration"},
		{"@every 5 s", "takes one"},
		{"@every 87649h", "longest"},
		{"@every 99999999999999h", "not a duration"},
		{"@in 0s", "shortest"},
		{"@in -1m", "shortest"},
		{"@in 87649h", "longest"},
		{"@at", "@at takes one time"},
		{"@at tomorrow", "not an RFC 3339"},
		{"@at 2026-12-01", "not an RFC 3339"},
		{"@at 2026-12-01T09:00:00", "not an RFC 3339"},
		{"@at 2026-02-30T09:00:00Z", "not an RFC 3339"},
		{"@at 2026-12-01T24:00:00Z", "not an RFC 3339"},
		{"@at 2026-12-01T09:00:00.2505Z", "finer"},
		{"@at 0000-01-01T00:00:00Z", "1970 to 2499"},
		{"@at 1969-12-31T23:59:59.999Z", "1970 to 2499"},
		{"@at 2500-01-01T00:00:00Z", "1970 to 2499"},
		{"@at 9999-12-31T23:59:59Z", "1970 to 2499"},
		{"@", "is none of"},
		{"@daily now", "is none of"},
		// What other schedulers accept, and what to write instead.
		{"CRON_TZ=Europe/Paris 0 9 * * *", `"CRON_TZ=Europe/Paris": the time zone belongs in the field zone`},
		{"TZ=UTC @daily", `"TZ=UTC": the time zone belongs in the field zone`},
		{"0 9 * * * America/New_York", `"America/New_York": the time zone belongs in the field zone`},
		{"0 0 12 * * ? 2026", "5 fields, or 6 with seconds first, and none for the year; this has 7"},
		{"0 0 12 * * ? *", "none for the year; this has 7"},
		{"cron(0 12 * * ? *)", "without cron(…)"},
		{"rate(5 minutes)", "without rate(…)"},
		{"at(2026-12-01T09:00:00)", "without at(…)"},
		{"@Daily", `"@Daily": write @daily`},
		{"@EVERY 5m", `"@EVERY": write @every`},
		{"@reboot", "no job fires because an engine starts"},
		{"@every 1d", "with units h, m, s and ms"},
		{"@in PT5M", "with units h, m, s and ms"},
		{"@every 5 minutes", "in one word"},
		{"@at 2026-12-01T09:00:00", "with its offset, Z or such as +01:00"},
		{"@at 1796083200000", "with its offset"},
		{"@at 2026-12-01 09:00:00Z", "in one word"},
		{"5m", "this has 1. Others are such as @every 5m"},
		{"2026-12-01T09:00:00Z", "@at 2026-12-01T09:00:00Z"},
		{"PT5M", "@every 5m"},
		{"every 5 minutes", "this has 3. Others are such as @every 5m"},
		{"0 9 * * FRI#L", "FRIL"},
	} {
		e, err := Parse(c.text, "", carillon.GapShift, carillon.FoldFirst)
		var refusal *carillon.Error
		if !errors.As(err, &refusal) || refusal.Code != carillon.CodeInvalidSchedule || refusal.Field != "schedule" || !strings.Contains(refusal.Message, c.says) {
			t.Errorf("%q: %v, %v; want %q", c.text, e, err, c.says)
		}
	}
}

// What time.Parse takes beyond RFC 3339 is read, because logs may hold it, and refused to those who ask.
func TestCheckTime(t *testing.T) {
	for text, says := range map[string]string{
		"@at 2026-12-01T9:00:00Z":                   "not an RFC 3339",
		"@at 2026-12-01T9:00:00.25Z":                "not an RFC 3339",
		"@at 2026-12-01T09:00:00,250Z":              "not an RFC 3339",
		"@at 2026-12-01T09:00:00,25Z":               "not an RFC 3339",
		"@at 2026-12-01T09:00:00,0000Z":             "not an RFC 3339",
		"@at 2026-12-01T09:00:00+24:00":             "not an RFC 3339",
		"@at 2026-12-01T09:00:00.250-00:60":         "not an RFC 3339",
		"@at 2026-12-01T09:00:00.2500000001Z":       "finer",
		"@at 2026-12-01T09:00:00.0000000000000001Z": "finer",
		"@at 2026-12-01T09:00:00Z":                  "",
		"  @at\t2026-12-01T09:00:00.2Z ":            "",
		"@at 2026-12-01T09:00:00.250000000000000Z":  "",
		"@at 2026-12-01T09:00:00.250-23:59":         "",
		"@at 1970-01-01T00:00:00Z":                  "",
		"@in 1s":                                    "",
		"@every 1s":                                 "",
		"0 9 * * *":                                 "",
		"":                                          "",
	} {
		err := mustParse(t, text, "", carillon.GapShift, carillon.FoldFirst).CheckTime(text)
		if says == "" && err == nil {
			continue
		}
		var refusal *carillon.Error
		if !errors.As(err, &refusal) || refusal.Code != carillon.CodeInvalidSchedule || says == "" || !strings.Contains(refusal.Message, says) {
			t.Errorf("%q: %v; want %q", text, err, says)
		}
	}
}

func TestAtInEvery(t *testing.T) {
	const accepted = 1_000_000
	for _, c := range []struct {
		text  string
		kind  Kind
		start int64
		want  []int64
	}{
		{"", None, 0, nil},
		{"@at 1970-01-01T00:30:00.250Z", At, 0, []int64{1_800_250}},
		{"@at 1970-01-01T02:30:00.250000+02:00", At, 0, []int64{1_800_250}},
		{"@at 1970-01-01T00:30:00Z", At, 1_800_000, []int64{1_800_000}},
		{"@at 1970-01-01T00:30:00Z", At, 1_800_001, nil},
		{"@in 1m30s", In, 0, []int64{1_090_000}},
		{"@every 250ms", Every, 0, []int64{1_000_250, 1_000_500, 1_000_750}},
		{"@every 250ms", Every, 1_000_100, []int64{1_000_100, 1_000_350}},
		{"@every 250ms", Every, 999_900, []int64{1_000_150, 1_000_400}}, // counted from its start
	} {
		e := mustParse(t, c.text, "UTC", carillon.GapShift, carillon.FoldFirst)
		if e.Kind() != c.kind {
			t.Errorf("%q: kind %d", c.text, e.Kind())
		}
		var got []int64
		after, p := int64(accepted), e.Bind(accepted, c.start, 0, 0)
		for range max(len(c.want), 1) {
			at, ok := p.Next(after)
			if !ok {
				break
			}
			got, after = append(got, at), at
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%q from %d: got %d, want %d", c.text, c.start, got, c.want)
		}
	}
}
