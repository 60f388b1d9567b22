package schedule

import (
	"math"
	"math/bits"

	carillon "github.com/carillon-scheduler/carillon"
)

// # How the next fire is found
//
// Local time is wall clock time: the instant plus the zone's offset, counted in seconds like an
// instant. An expression is a set of local times, and matches finds the next one in the set by bit masks
// alone. A zone is a sequence of periods with one offset each, in which local time runs like the instant
// does. So the search takes the periods in order, each with the stretch of local time that it answers for:
//
//	              old offset │ new offset
//	ordinary       ──────────┤├──────────      each period answers for its own local times
//	gap, shift     ──────────┤                 the later period answers for the skipped times as well;
//	                         ├────┼──────      what falls there fires as it begins
//	fold, first    ──────────┤                 the later period leaves out the repeated times
//	                    ┄┄┄┄┄├──────────
//	fold, last     ─────┄┄┄┄┄┤                 the earlier one does
//	                    ├────┴──────────
//	gap skip, fold both                        like ordinary
//
// A fire is the same whichever of the skipped times led to it, which is why several collapse to one.
//
// Two changes of a zone are always further apart than the local time that either repeats or skips, so no
// local time comes three times. A test checks this for the embedded rules.

// next returns the first fire at or after t, seconds from 1970.
func (c *cron) next(t int64) (int64, bool) {
	z := c.zone
	if t >= Horizon/1000 {
		return 0, false
	}
	known, match := int64(0), int64(-1) // nothing matches in [known, match)
	for i := z.period(t); i < len(z.off); i++ {
		begin, end, off := z.at[i], z.at[i+1], z.off[i]
		local, stop := max(t, begin)+off, end+off
		if i > 0 {
			old := begin + z.off[i-1] // the local time at which the earlier period ended
			switch gap := old < begin+off; {
			case gap && c.shift && t <= begin:
				local = old
			case !gap && c.fold == carillon.FoldFirst:
				local = max(local, old)
			}
		}
		if c.fold == carillon.FoldLast && i+1 < len(z.off) {
			stop = min(stop, end+z.off[i+1])
		}
		if local < known || local > match {
			known, match = local, c.matches(local)
		}
		if match < stop {
			return max(match-off, begin), true
		}
	}
	return 0, false
}

// hour counts the fires after a given one, up to until, in the rest of its local hour, but at most budget. last is the last of them,
// or the given fire if there are none. This needs no search, so counting many fires takes only one search an hour.
func (c *cron) hour(fire, until, budget int64) (n, last int64) {
	z := c.zone
	i := z.period(fire)
	if fire == z.at[i] {
		return 0, fire // it may have been moved there from skipped times, and not match itself
	}
	until = min(until, z.at[i+1]-1)
	if c.fold == carillon.FoldLast && i+1 < len(z.off) {
		until = min(until, z.at[i+1]+z.off[i+1]-z.off[i]-1)
	}
	within := (fire + z.off[i] - calendarEpoch) % 3600
	begin, last := fire-within, fire
	first := int(within / 60)
	seconds := c.seconds &^ (1<<(within%60+1) - 1)
	for minutes := c.minutes &^ (1<<first - 1); minutes != 0; minutes &= minutes - 1 {
		minute := bits.TrailingZeros64(minutes)
		if minute > first {
			seconds = c.seconds
		}
		for ; seconds != 0; seconds &= seconds - 1 {
			at := begin + int64(minute)*60 + int64(bits.TrailingZeros64(seconds))
			if n == budget || at > until {
				return n, last
			}
			n, last = n+1, at
		}
	}
	return n, last
}

const daySeconds = 24 * 60 * 60

// Days are counted from 1969-01-01, a Wednesday, because a local time may be before 1970; and to the end of 2500, because it may be
// after the Horizon.
const (
	calendarYears = 2501 - 1969
	calendarEpoch = -365 * daySeconds // in Unix seconds
	calendarFirst = 3                 // the weekday of day 0 (0 is Sunday)
)

// monthStart is the first day of each month of the calendar, and the day after the last month.
var monthStart = func() (start [12*calendarYears + 1]int32) {
	for m := range 12 * calendarYears {
		length, year := int32(31), 1969+m/12
		switch m % 12 {
		case 3, 5, 8, 10:
			length = 30
		case 1:
			length = 28
			if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
				length = 29
			}
		}
		start[m+1] = start[m] + length
	}
	return start
}()

// matches returns the first local time at or after the given one that the expression's fields match, or
// math.MaxInt64 if there is none before the calendar's end.
func (c *cron) matches(local int64) int64 {
	local -= calendarEpoch
	day := local / daySeconds
	month := int(day * 4800 / 146097) // 4800 months have 146097 days; exact or one off
	if int64(monthStart[month]) > day {
		month--
	} else if int64(monthStart[month+1]) <= day {
		month++
	}
	days := c.daysOf(month)
	within := int(day - int64(monthStart[month]))
	if days>>within&1 == 1 {
		if s := c.matchesDay(int(local % daySeconds)); s >= 0 {
			return calendarEpoch + day*daySeconds + s
		}
	}
	days &^= 1<<(within+1) - 1
	for days == 0 {
		if month++; month == len(monthStart)-1 {
			return math.MaxInt64
		}
		days = c.daysOf(month)
	}
	day = int64(monthStart[month]) + int64(bits.TrailingZeros32(days))
	return calendarEpoch + day*daySeconds + c.opening
}

// daysOf returns the matching days of a month of the calendar, as bits from 0.
func (c *cron) daysOf(month int) uint32 {
	if c.months>>(month%12)&1 == 0 {
		return 0
	}
	start, end := monthStart[month], monthStart[month+1]
	return c.days[(start+calendarFirst)%7][end-start-28]
}

// matchesDay is matches for the seconds of a day; -1 if none is left.
func (c *cron) matchesDay(s int) int64 {
	hour, minute, second := s/3600, s/60%60, s%60
	if c.hours>>hour&1 == 1 {
		if c.minutes>>minute&1 == 1 {
			if left := c.seconds >> second; left != 0 {
				return int64(s + bits.TrailingZeros64(left))
			}
		}
		if left := c.minutes >> (minute + 1); left != 0 {
			minute += 1 + bits.TrailingZeros64(left)
			return int64(hour*3600 + minute*60 + bits.TrailingZeros64(c.seconds))
		}
	}
	if left := c.hours >> (hour + 1); left != 0 {
		hour += 1 + bits.TrailingZeros32(left)
		return int64(hour)*3600 + c.opening%3600
	}
	return -1
}
