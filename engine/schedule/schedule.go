package schedule

import (
	"fmt"
	"strings"
	"time"

	carillon "github.com/carillon-scheduler/carillon"
)

// Horizon is 2500-01-01T00:00:00Z, in Unix milliseconds. No schedule fires at or after it (before its
// offset is added), nor before 1970. It is more than the 400 years of a Gregorian cycle ahead, so
// an expression that does not match until then never does.
const Horizon int64 = 16725225600000

// Kind is the form of a schedule.
type Kind uint8

const (
	None  Kind = iota // no schedule: fires only by request
	At                // @at: once, at a given time
	In                // @in: once, some time after acceptance
	Every             // @every: at a fixed interval
	Cron              // a cron expression, or one of @yearly … @hourly
)

// Expr is a parsed schedule with its zone and its rules for changes of the clock. It is immutable and
// may be shared by any number of plans and goroutines.
type Expr struct {
	kind Kind
	ms   int64 // the time of @at, the duration of @in and @every
	cron *cron // for Cron
}

// Kind says which form the schedule has.
func (e *Expr) Kind() Kind { return e.kind }

var shorthands = map[string]string{
	"@yearly":   "0 0 0 1 1 *",
	"@annually": "0 0 0 1 1 *",
	"@monthly":  "0 0 0 1 * *",
	"@weekly":   "0 0 0 * * 0",
	"@daily":    "0 0 0 * * *",
	"@midnight": "0 0 0 * * *",
	"@hourly":   "0 0 * * * *",
}

// Parse reads a schedule as docs/time.md defines it; the empty text is the schedule of kind None. zone
// is an IANA name, empty for UTC; only cron expressions may have another. gap and fold apply to cron
// expressions only.
//
// The error is always a *carillon.Error: CodeInvalidSchedule with Field "schedule", or CodeInvalidZone
// with Field "zone".
func Parse(text, zone string, gap carillon.Gap, fold carillon.Fold) (*Expr, error) {
	e, err := parse(text, zone, gap, fold)
	if err != nil {
		if other := remedy(split(text)); other != "" && err.Code == carillon.CodeInvalidSchedule {
			return nil, invalid("%s", other)
		}
		return nil, err
	}
	return e, nil
}

func split(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == '\t' })
}

// remedy says what to write instead of a form that crontabs or other schedulers accept; "" if words are no such form. It is called
// only for what is refused anyway.
func remedy(words []string) string {
	if len(words) == 0 {
		return ""
	}
	first, last := words[0], words[len(words)-1]
	lower := strings.ToLower(first)
	name, _, call := strings.Cut(lower, "(")
	zoned := ""
	if strings.HasPrefix(lower, "cron_tz=") || strings.HasPrefix(lower, "tz=") {
		zoned = first
	} else if zoneFiles()[last] != nil {
		zoned = last
	}
	switch known := shorthands[lower] != "" || lower == "@at" || lower == "@in" || lower == "@every"; {
	case zoned != "":
		return quote(zoned) + ": the time zone belongs in the field zone"
	case known && lower != first:
		return quote(first) + ": write " + lower
	case lower == "@reboot":
		return quote(first) + ": no job fires because an engine starts; @in 1m fires once, a minute after the job is put"
	case call && (name == "cron" || name == "rate" || name == "at"):
		return quote(first) + ": write it without " + name + "(…), as a cron expression without a year, @every 5m or @at 2026-12-01T09:00:00Z"
	}
	return ""
}

func parse(text, zone string, gap carillon.Gap, fold carillon.Fold) (*Expr, *carillon.Error) {
	if len(text) > carillon.MaxScheduleText {
		return nil, invalid("%d bytes is longer than the %d allowed", len(text), carillon.MaxScheduleText)
	}
	for i := range len(text) {
		if c := text[i]; c != '\t' && (c < ' ' || c > '~') {
			return nil, invalid("%s has a character that no schedule has, at byte %d", quote(text), i)
		}
	}
	words := split(text)
	if long, ok := shorthands[strings.Join(words, " ")]; ok {
		words = strings.Fields(long)
	}
	e := &Expr{}
	var err *carillon.Error
	switch {
	case text == "":
	case len(words) == 0:
		return nil, invalid("is blank")
	case words[0] == "@at":
		e.kind = At
		e.ms, err = parseTime(words[1:])
	case words[0] == "@in":
		e.kind = In
		e.ms, err = parseDuration(words)
	case words[0] == "@every":
		e.kind = Every
		e.ms, err = parseDuration(words)
	case words[0][0] == '@':
		return nil, invalid("%s is none of @at, @in, @every, @yearly, @annually, @monthly, @weekly, @daily, @midnight and @hourly", quote(text))
	default:
		e.kind = Cron
		e.cron, err = parseCron(words, gap, fold)
	}
	if err != nil {
		return nil, err
	}
	rules, err := findZone(zone)
	if err != nil {
		return nil, err
	}
	if e.kind != Cron {
		if zone != "" && zone != "UTC" {
			return nil, invalidZone("a zone is for cron expressions only: %s has no use for %s", quote(text), quote(zone))
		}
		return e, nil
	}
	e.cron.zone = rules
	if _, ok := e.cron.next(0); !ok {
		return nil, invalid("%s can never match", quote(text))
	}
	return e, nil
}

// CheckAhead refuses a cron expression that has matched for the last time before now, unix ms: this happens in a zone whose clocks
// now always skip that hour. Parse does not refuse it, because it looks from 1970 on: it must give the same answer for as long as
// there are logs.
func (e *Expr) CheckAhead(now int64) error {
	if e.kind == Cron {
		if _, ok := e.Bind(now, 0, 0, 0).Next(now); !ok {
			return invalid("the expression can never match any more")
		}
	}
	return nil
}

// CheckTime refuses an @at whose time is not RFC 3339 to the millisecond. Parse takes all that time.Parse takes, because logs may hold
// it: hours of one digit, a comma for the point, an offset of a day, and digits of a second beyond the nine that are read. The
// expression is that of the text.
func (e *Expr) CheckTime(text string) error {
	if e.kind != At {
		return nil
	}
	word := split(text)[1]
	rest := word[len("2006-01-02T15:04:05"):]
	offset := strings.TrimLeft(rest, ".0123456789")
	fraction := rest[:len(rest)-len(offset)]
	switch {
	case word[len("2006-01-02T15")] != ':',
		offset != "Z" && (len(offset) != len("+00:00") || offset[3] != ':' || offset[1:3] > "23" || offset[4:] > "59"):
		return noTime(word)
	case len(fraction) > len(".250") && strings.Trim(fraction[len(".250"):], "0") != "":
		return tooFine(word)
	}
	return nil
}

func noTime(word string) *carillon.Error {
	return invalid("%s is not an RFC 3339 time such as 2026-12-01T09:00:00.250Z, with its offset, Z or such as +01:00", quote(word))
}

func tooFine(word string) *carillon.Error {
	return invalid("%s is finer than a millisecond", quote(word))
}

// parseTime reads RFC 3339 to the millisecond, and what time.Parse takes beyond it (CheckTime).
func parseTime(words []string) (int64, *carillon.Error) {
	if len(words) != 1 {
		return 0, invalid("@at takes one time, in one word, such as @at 2026-12-01T09:00:00.250Z")
	}
	// time.Parse accepts more than RFC 3339, such as hours of one digit. So does UnmarshalText for now, but a later Go
	// may be stricter there, and would then read something else in an old log.
	t, err := time.Parse(time.RFC3339, words[0])
	if err != nil {
		return 0, noTime(words[0])
	}
	if t.Nanosecond()%int(time.Millisecond) != 0 {
		return 0, tooFine(words[0])
	}
	ms := t.UnixMilli()
	if ms < 0 || ms >= Horizon {
		return 0, invalid("%s is not within the years 1970 to 2499", quote(words[0]))
	}
	return ms, nil
}

// parseDuration reads what follows @in or @every.
func parseDuration(words []string) (int64, *carillon.Error) {
	if len(words) != 2 {
		return 0, invalid("%s takes one duration, in one word, such as %[1]s 1m30s", words[0])
	}
	d, err := time.ParseDuration(words[1])
	switch {
	case err != nil:
		return 0, invalid("%s is not a duration such as 250ms, 1m30s or 24h, with units h, m, s and ms, from 1ms to 10 years", quote(words[1]))
	case d < carillon.MinInterval:
		return 0, invalid("%s %s: the shortest duration is 1ms", words[0], quote(words[1]))
	case d > carillon.MaxInterval:
		return 0, invalid("%s %s: the longest duration is 10 years (%s)", words[0], quote(words[1]), carillon.MaxInterval)
	case d%time.Millisecond != 0:
		return 0, invalid("%s %s: durations are whole milliseconds", words[0], quote(words[1]))
	}
	return d.Milliseconds(), nil
}

func invalid(format string, args ...any) *carillon.Error {
	return &carillon.Error{Code: carillon.CodeInvalidSchedule, Field: "schedule", Message: fmt.Sprintf(format, args...)}
}

func invalidZone(format string, args ...any) *carillon.Error {
	return &carillon.Error{Code: carillon.CodeInvalidZone, Field: "zone", Message: fmt.Sprintf(format, args...)}
}

// quote quotes s, and cuts it so that an error never repeats all of a hostile input.
func quote(s string) string {
	const longest = 64
	if len(s) > longest {
		return fmt.Sprintf("%q…", s[:longest])
	}
	return fmt.Sprintf("%q", s)
}
