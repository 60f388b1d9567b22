package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Result is the outcome of one run. Its JSON is what result files hold.
type Result struct {
	Workload   string            `json:"workload"`
	Params     any               `json:"params"`
	Machine    Machine           `json:"machine"`
	Figures    Figures           `json:"figures"`
	Error      string            `json:"error,omitempty"`      // what ended the run early: then the rest is incomplete
	Checks     *Checks           `json:"checks,omitempty"`     // of workloads that have jobs: all but ceiling
	Targets    []Target          `json:"targets,omitempty"`    // what the run should reach
	Histograms map[string]string `json:"histograms,omitempty"` // HdrHistogram V2, compressed, base64; µs
	// Series are values over the time of the run. A name ends with the unit of its values.
	Series map[string][]Point `json:"series,omitempty"`
}

// Point is one value of a series: the seconds since the run's window began, and the value. Its JSON is
// [seconds, value].
type Point [2]float64

// Passed tells whether every check and every target held. Checks of a run that expected nothing have checked nothing.
func (r *Result) Passed() bool {
	for _, t := range r.Targets {
		if !t.Met {
			return false
		}
	}
	return r.Error == "" && (r.Checks == nil || r.Checks.Expected > 0 && r.Checks.clean())
}

// Figure is one number. Its name ends with its unit.
type Figure struct {
	Name  string
	Value float64
}

// Figures are in the order in which they should be read; their JSON is an object.
type Figures []Figure

// add leaves out what is no number, such as a ratio to nothing: it was not measured.
func (f *Figures) add(name string, value float64) {
	if !math.IsNaN(value) && !math.IsInf(value, 0) {
		*f = append(*f, Figure{name, value})
	}
}

// Get returns the value of the figure with a name, 0 if there is none.
func (f Figures) Get(name string) float64 {
	v, _ := f.find(name)
	return v
}

func (f Figures) find(name string) (v float64, ok bool) {
	i := slices.IndexFunc(f, func(v Figure) bool { return v.Name == name })
	if i < 0 {
		return 0, false
	}
	return f[i].Value, true
}

// MarshalJSON keeps the order.
func (f Figures) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, v := range f {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(strconv.AppendQuote(b, v.Name), ':')
		b = append(b, number(v.Value)...)
	}
	return append(b, '}'), nil
}

// UnmarshalJSON keeps the order.
func (f *Figures) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if _, err := d.Token(); err != nil {
		return err
	}
	*f = nil
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		var value float64
		if err := d.Decode(&value); err != nil {
			return err
		}
		f.add(fmt.Sprint(name), value)
	}
	return nil
}

// number writes a value with four significant digits, but with all digits before the point.
func number(v float64) string {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return "0"
	}
	digits := max(0, 3-int(math.Floor(math.Log10(math.Abs(v)))))
	s := strconv.FormatFloat(v, 'f', min(digits, 6), 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// Checks count what must not happen. All but Gaps count triggers.
type Checks struct {
	Expected  int `json:"expected"`  // (job, due time) of the window
	Early     int `json:"early"`     // received, or stored, before their due time
	Missing   int `json:"missing"`   // expected, but never received
	Duplicate int `json:"duplicate"` // the same (job, due time), or the same output number, stored twice
	Gaps      int `json:"gaps"`      // output numbers left out between others of their partition
	Stray     int `json:"stray"`     // within the window, but not expected
	// Redelivered counts repeated deliveries of one stored trigger, which at-least-once allows.
	Redelivered int `json:"redelivered"`
}

// add counts what another part of a run found.
func (c *Checks) add(o Checks) {
	c.Expected += o.Expected
	c.Early += o.Early
	c.Missing += o.Missing
	c.Duplicate += o.Duplicate
	c.Gaps += o.Gaps
	c.Stray += o.Stray
	c.Redelivered += o.Redelivered
}

func (c *Checks) clean() bool {
	return c.Early == 0 && c.Missing == 0 && c.Duplicate == 0 && c.Gaps == 0 && c.Stray == 0
}

// Target is a limit on a figure.
type Target struct {
	Figure  string  `json:"figure"`
	Limit   float64 `json:"limit"`              // the most that the figure may be; with AtLeast, the least
	AtLeast bool    `json:"at_least,omitempty"` // the figure must reach Limit; else it must not exceed it
	// Floor is three times what the machine's own timer did at that percentile in the same run. If it is above
	// Limit, it takes Limit's place. 0: only Limit counts.
	Floor float64 `json:"floor,omitempty"`
	Met   bool    `json:"met"`
}

// newTarget is a figure that must not exceed limit, or floor if that is more. A figure that was not measured misses its target.
func newTarget(f Figures, name string, limit, floor float64) Target {
	v, ok := f.find(name)
	return Target{Figure: name, Limit: limit, Floor: floor, Met: ok && v <= max(limit, floor)}
}

// newMinTarget is a figure that must reach limit.
func newMinTarget(f Figures, name string, limit float64) Target {
	v, ok := f.find(name)
	return Target{Figure: name, Limit: limit, AtLeast: true, Met: ok && v >= limit}
}

// Table writes the result for people.
func (r *Result) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "%s\t\n", r.Workload)
	params, err := json.Marshal(r.Params)
	if err != nil {
		return err
	}
	fmt.Fprintf(t, "  with\t%s\n", params)
	fmt.Fprintf(t, "  on\t%s\n", r.Machine)
	if r.Error != "" {
		fmt.Fprintf(t, "  ended early\t%s\n", r.Error)
	}
	for _, f := range r.Figures {
		fmt.Fprintf(t, "  %s\t%s\n", f.Name, number(f.Value))
	}
	if c := r.Checks; c != nil {
		fmt.Fprintf(t, "  checks\texpected %d, early %d, missing %d, duplicate %d, gaps %d, stray %d, redelivered %d\n",
			c.Expected, c.Early, c.Missing, c.Duplicate, c.Gaps, c.Stray, c.Redelivered)
	}
	for _, v := range r.Targets {
		verdict := "missed"
		if v.Met {
			verdict = "met"
		}
		than, floor := "<=", ""
		if v.AtLeast {
			than = ">="
		}
		if v.Floor > 0 {
			floor = fmt.Sprintf(" (or %s, three times the bare sleep)", number(v.Floor))
		}
		measured := "not measured, must be"
		if value, ok := r.Figures.find(v.Figure); ok {
			measured = number(value)
		}
		fmt.Fprintf(t, "  target %s\t%s: %s %s %s%s\n", verdict, v.Figure, measured, than, number(v.Limit), floor)
	}
	return t.Flush()
}

// newHistogram makes a histogram of µs, up to ten minutes, to three digits.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, 600e6, 3) }

// record records ns. A value beyond the range counts as the range's end, so that RecordValue, which refuses nothing
// else, cannot fail.
func record(h *hdrhistogram.Histogram, ns int64) {
	_ = h.RecordValue(min(max(ns/1000, 0), h.HighestTrackableValue()))
}

// quantiles adds percentiles of a histogram of µs, in ms. An empty histogram has none: zeros would look punctual.
func (f *Figures) quantiles(name string, h *hdrhistogram.Histogram, percentiles ...float64) {
	if h.TotalCount() == 0 {
		return
	}
	for _, q := range percentiles {
		label := "p" + strings.ReplaceAll(strconv.FormatFloat(q, 'f', -1, 64), ".", "")
		if q == 100 {
			label = "max"
		}
		f.add(name+"_"+label+"_ms", float64(h.ValueAtQuantile(q))/1000)
	}
}

func encode(h *hdrhistogram.Histogram) (string, error) {
	b, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	return string(b), err
}
