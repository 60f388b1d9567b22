package report

import (
	"math"
	"regexp"
	"strconv"
	"strings"
)

// scale is an axis: the range that it spans, and its ticks. A logarithmic axis is given logarithms.
type scale struct {
	from, to float64
	ticks    []tick
}

type tick struct {
	at    float64
	label string
}

// place maps a value to pixels; a value outside the range is put at the nearer end.
func (s scale) place(v float64, first, last px) px {
	share := (v - s.from) / (s.to - s.from)
	if !(share > 0) { // also if it is NaN
		return first
	}
	return first + (last-first)*px(min(share, 1))
}

// linear is an axis from 0 to most, with four to nine round steps.
func linear(most float64) scale {
	if !(most > 0) || math.IsInf(most, 0) {
		most = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(most/4)))
	for _, m := range []float64{5, 2} {
		if most/(step*m) >= 4 {
			step *= m
			break
		}
	}
	s := scale{to: step * math.Ceil(most/step*(1-1e-9))}
	for i := 0; float64(i) <= math.Round(s.to/step); i++ {
		v := float64(i) * step
		s.ticks = append(s.ticks, tick{v, short(v)})
	}
	return s
}

// decades is a logarithmic axis of whole powers of ten.
func decades(least, most float64) scale {
	s := scale{from: math.Floor(least), to: math.Ceil(most)}
	if s.to <= s.from {
		s.to = s.from + 1
	}
	for e := s.from; e <= s.to; e++ {
		s.ticks = append(s.ticks, tick{e, number(math.Pow(10, e))})
	}
	return s
}

// nines is an axis of percentiles, on a logarithmic scale of what they leave out: 0 is the least value, 1 the 90th
// percentile, 2 the 99th, and so on.
func nines(most float64) scale {
	s := scale{to: max(math.Ceil(most*4)/4, 1)}
	for _, p := range percentiles {
		if x := ninesOf(p.share); x < s.to+1e-9 && !p.minor {
			s.ticks = append(s.ticks, tick{x, p.name})
		}
	}
	return s
}

func ninesOf(share float64) float64 { return -math.Log10(1 - share) }

// percentiles are the ones whose values are shown under the pointer; the minor ones have no tick.
var percentiles = []struct {
	name  string
	share float64
	minor bool
}{
	{"p50", 0.5, false},
	{"p75", 0.75, true},
	{"p90", 0.9, false},
	{"p95", 0.95, true},
	{"p99", 0.99, false},
	{"p99.5", 0.995, true},
	{"p99.9", 0.999, false},
	{"p99.95", 0.9995, true},
	{"p99.99", 0.9999, false},
	{"p99.999", 0.99999, false},
	{"p99.9999", 0.999999, false},
}

// mostNines is where the axis of percentiles ends.
const mostNines = 6

// number writes a value with four significant digits, but with all digits before the point, in groups of three.
func number(v float64) string {
	if v == 0 || math.IsInf(v, 0) {
		return "0"
	}
	digits := max(0, 3-int(math.Floor(math.Log10(math.Abs(v)))))
	s := strconv.FormatFloat(v, 'f', min(digits, 6), 64)
	whole, rest, point := strings.Cut(s, ".")
	sign := strings.HasPrefix(whole, "-")
	whole = strings.TrimPrefix(whole, "-")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if sign {
		whole = "−" + whole
	}
	if rest = strings.TrimRight(rest, "0"); !point || rest == "" {
		return whole
	}
	return whole + "." + rest
}

// short writes a value for a tick: 250k, 1.5M.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return number(v/1e6) + "M"
	case v >= 1e4:
		return number(v/1e3) + "k"
	}
	return number(v)
}

var (
	unitPattern       = regexp.MustCompile(`^(.+?)(?:_(us|ms|s|mib|bytes|percent|records|jobs))?(?:_per_([0-9a-z]+))?$`)
	countPattern      = regexp.MustCompile(`^(.+_over_[0-9]+_ms)_per_([a-z]+)$`) // a count whose name has a unit in it
	percentilePattern = regexp.MustCompile(`\bp99(9+)\b`)
	unitNames         = map[string]string{"us": "µs", "mib": "MiB", "percent": "%"}
)

// named splits a name of the result files into label and unit: received_p999_ms is "received p99.9" in ms.
func named(name string) (label, unit string) {
	if m := countPattern.FindStringSubmatch(name); m != nil {
		return strings.ReplaceAll(m[1], "_", " "), "/" + m[2]
	}
	m := unitPattern.FindStringSubmatch(name)
	if m == nil {
		return name, ""
	}
	label = percentilePattern.ReplaceAllString(strings.ReplaceAll(m[1], "_", " "), "p99.$1")
	if unit = m[2]; unitNames[unit] != "" {
		unit = unitNames[unit]
	}
	if m[3] != "" {
		unit += "/" + m[3]
	}
	return label, unit
}
