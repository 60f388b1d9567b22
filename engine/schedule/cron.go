package schedule

import (
	"math/bits"
	"strconv"
	"strings"

	carillon "github.com/carillon-scheduler/carillon"
)

// cron is a parsed cron expression. Bit n of a mask stands for the value n; months count from 0.
type cron struct {
	seconds, minutes uint64
	hours            uint32
	months           uint16
	shift            bool          // a fire in a gap is moved to the gap's end; if false, it is lost
	fold             carillon.Fold // which of two equal local times fires
	opening          int64         // the first fire of a matching day, in seconds since its midnight
	// The matching days of a month, by the weekday of its first day (0 is Sunday) and its length minus
	// 28. Bit 0 is the first day. L, W and # are all resolved here, once.
	days [7][4]uint32
	zone *zone
}

// field describes one field of an expression.
type field struct {
	name     string // as errors call it
	min, max int
	names    []string // of min, min+1, …
}

var (
	secondField  = field{"second", 0, 59, nil}
	minuteField  = field{"minute", 0, 59, nil}
	hourField    = field{"hour", 0, 23, nil}
	dayField     = field{"day of month", 1, 31, nil}
	monthField   = field{"month", 1, 12, []string{"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"}}
	weekdayField = field{"day of week", 0, 6, []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}}
)

// monthDays returns days of a month, as bits from 0, given the weekday of the first day and the month's length.
type monthDays func(first, length int) uint32

func parseCron(words []string, gap carillon.Gap, fold carillon.Fold) (*cron, *carillon.Error) {
	switch len(words) {
	case 5:
		words = append([]string{"0"}, words...)
	case 6:
	default:
		return nil, invalid("a cron expression has 5 fields, or 6 with seconds first, and none for the year; this has %d. "+
			"Others are such as @every 5m, @in 5m and @at 2026-12-01T09:00:00Z", len(words))
	}
	var masks [4]uint64
	for i, f := range []field{secondField, minuteField, hourField, monthField} {
		word := words[[]int{0, 1, 2, 4}[i]]
		for item := range strings.SplitSeq(word, ",") {
			m, err := f.parseItem(item)
			if err != nil {
				return nil, err
			}
			masks[i] |= m
		}
	}
	dom, err := parseDays(words[3], dayField, parseDayOfMonth)
	if err != nil {
		return nil, err
	}
	dow, err := parseDays(words[5], weekdayField, parseDayOfWeek)
	if err != nil {
		return nil, err
	}
	c := &cron{
		seconds: masks[0],
		minutes: masks[1],
		hours:   uint32(masks[2]),
		months:  uint16(masks[3] >> 1),
		shift:   gap == carillon.GapShift,
		fold:    fold,
	}
	if hour := words[2]; strings.ContainsAny(hour[:1], "*?") && !strings.Contains(hour, ",") {
		// These go by elapsed time. Every hour: whatever the clock calls it. Every n hours: no local time fires twice,
		// and none is lost.
		if c.shift, c.fold = true, carillon.FoldFirst; c.hours == 1<<24-1 {
			c.shift, c.fold = false, carillon.FoldBoth
		}
	}
	c.opening = int64(bits.TrailingZeros32(c.hours))*3600 +
		int64(bits.TrailingZeros64(c.minutes))*60 + int64(bits.TrailingZeros64(c.seconds))
	// As in cron: if a day field begins with a star, both fields must match (a star may still have a step). Otherwise
	// it is enough that one of them matches.
	both := strings.ContainsAny(words[3][:1]+words[5][:1], "*?")
	for first := range 7 {
		for length := 28; length <= 31; length++ {
			a, b := dom(first, length), dow(first, length)
			if both {
				a &= b
			} else {
				a |= b
			}
			c.days[first][length-28] = a & (1<<length - 1)
		}
	}
	return c, nil
}

// parseItem reads an item of a list: * (or ?), a or a-b, each with an optional /step. The result has a bit for
// each value.
func (f field) parseItem(item string) (uint64, *carillon.Error) {
	body, stepText, stepped := strings.Cut(item, "/")
	count := f.max - f.min + 1
	step := 1
	if stepped {
		n, err := strconv.ParseUint(stepText, 10, 31)
		if err != nil || n == 0 {
			return 0, f.invalid(item, "the step is not a number from 1")
		}
		step = int(n)
	}
	var lo, hi int
	low, high, ranged := strings.Cut(body, "-")
	switch {
	case body == "*" || body == "?":
		lo, hi = f.min, f.max
	default:
		var err *carillon.Error
		if lo, err = f.parseValue(item, low); err != nil {
			return 0, err
		}
		switch {
		case ranged:
			if hi, err = f.parseValue(item, high); err != nil {
				return 0, err
			}
		case stepped:
			hi = f.max // a/step: from a to the field's end
		default:
			hi = lo
		}
	}
	if hi < lo {
		hi += count // the range wraps around, as FRI-MON does
	}
	var mask uint64
	for v := lo; v <= hi; v += step { // v may be beyond the field's end, as 7 for Sunday is
		mask |= 1 << (f.min + (v-f.min)%count)
	}
	return mask, nil
}

// parseValue reads a number or name. Only a day of week may be one beyond the field's end: 7 is Sunday.
func (f field) parseValue(item, text string) (int, *carillon.Error) {
	for i, name := range f.names {
		if strings.EqualFold(text, name) {
			return f.min + i, nil
		}
	}
	limit := f.max
	if f.name == weekdayField.name {
		limit = 7
	}
	within := strconv.Itoa(f.min) + " to " + strconv.Itoa(limit)
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		if f.names != nil {
			within += ", nor a name from " + f.names[0] + " to " + f.names[len(f.names)-1]
		}
		return 0, f.invalid(item, quote(text)+" is not a number from "+within)
	}
	if int(n) < f.min || int(n) > limit {
		return 0, f.invalid(item, text+" is not within "+within)
	}
	return int(n), nil
}

func (f field) invalid(item, message string) *carillon.Error {
	return invalid("%s %s: %s", f.name, quote(item), message)
}

// parseDays reads a day field. special reads the forms that other fields do not have, and returns nil
// if the item is not one of them.
func parseDays(word string, f field, special func(item string) (monthDays, *carillon.Error)) (monthDays, *carillon.Error) {
	var plain uint64
	var rules []monthDays
	for item := range strings.SplitSeq(word, ",") {
		rule, err := special(strings.ToUpper(item))
		if err != nil {
			return nil, err
		}
		if rule != nil {
			rules = append(rules, rule)
			continue
		}
		m, err := f.parseItem(item)
		if err != nil {
			return nil, err
		}
		plain |= m
	}
	return func(first, length int) (mask uint32) {
		if f.name == dayField.name {
			mask = uint32(plain >> 1)
		} else {
			for day := range length {
				mask |= uint32(plain>>((first+day)%7)&1) << day
			}
		}
		for _, rule := range rules {
			mask |= rule(first, length)
		}
		return mask
	}, nil
}

// parseDayOfMonth reads L, L-3, LW and 15W.
func parseDayOfMonth(item string) (monthDays, *carillon.Error) {
	if item == "L" {
		return func(_, length int) uint32 { return 1 << (length - 1) }, nil
	}
	if item == "LW" {
		return func(first, length int) uint32 { return nearestWeekday(length-1, first, length) }, nil
	}
	if back, ok := strings.CutPrefix(item, "L-"); ok {
		n, err := strconv.ParseUint(back, 10, 16)
		if err != nil || n < 1 || n > 30 {
			return nil, dayField.invalid(item, "after L- comes a number of days from 1 to 30")
		}
		return func(_, length int) uint32 { return 1 << length >> (n + 1) }, nil // 0 if the month is too short
	}
	if day, ok := strings.CutSuffix(item, "W"); ok {
		n, err := strconv.ParseUint(day, 10, 16)
		if err != nil || n < 1 || n > 31 {
			return nil, dayField.invalid(item, "before W comes one day from 1 to 31, or L")
		}
		return func(first, length int) uint32 {
			if int(n) > length {
				return 0
			}
			return nearestWeekday(int(n)-1, first, length)
		}, nil
	}
	return nil, nil
}

// nearestWeekday is the bit of the day from Monday to Friday in the same month that is nearest to a day, counted from 0.
func nearestWeekday(day, first, length int) uint32 {
	switch (first + day) % 7 {
	case 6: // Saturday
		if day--; day < 0 {
			day += 3
		}
	case 0: // Sunday
		if day++; day == length {
			day -= 3
		}
	}
	return 1 << day
}

// parseDayOfWeek reads FRIL, 5L, FRI#2 and 5#2.
func parseDayOfWeek(item string) (monthDays, *carillon.Error) {
	if item == "L" {
		return nil, weekdayField.invalid(item, "say which day is the last of its kind in the month, such as FRIL")
	}
	if name, nth, ok := strings.Cut(item, "#"); ok {
		weekday, err := weekdayField.parseValue(item, name)
		if err != nil {
			return nil, err
		}
		n, bad := strconv.ParseUint(nth, 10, 16)
		if bad != nil || n < 1 || n > 5 {
			return nil, weekdayField.invalid(item, "after # comes a number from 1 to 5; the last of the month is such as FRIL")
		}
		return func(first, _ int) uint32 {
			return 1 << ((weekday-first+7)%7 + 7*int(n-1))
		}, nil
	}
	if name, ok := strings.CutSuffix(item, "L"); ok {
		weekday, err := weekdayField.parseValue(item, name)
		if err != nil {
			return nil, err
		}
		return func(first, length int) uint32 {
			back := (first + length - 1 - weekday) % 7 // days from the last such day to the month's end
			return 1 << (length - 1 - back)
		}, nil
	}
	return nil, nil
}
