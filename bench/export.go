package bench

import "github.com/HdrHistogram/hdrhistogram-go"

// What follows is for harnesses in other modules, such as bench/peers, whose results are of the same shape.

// ThisMachine describes the machine that the run begins on; dir is where the measured service keeps its data, and sync
// says what is on disk when.
func ThisMachine(dir, sync string) Machine { return thisMachine(dir, sync) }

// NewHistogram makes a histogram of µs, up to ten minutes, to three digits: the kind that a Result holds.
func NewHistogram() *hdrhistogram.Histogram { return newHistogram() }

// Record records ns in a histogram of µs. A value below 0 counts as 0, and one beyond the range as the range's end.
func Record(h *hdrhistogram.Histogram, ns int64) { record(h, ns) }

// Quantiles adds percentiles of a histogram of µs as <name>_p50_ms and the like; 100 is <name>_max_ms. It adds none of an empty histogram.
func (f *Figures) Quantiles(name string, h *hdrhistogram.Histogram, percentiles ...float64) {
	f.quantiles(name, h, percentiles...)
}

// EncodeHistogram returns a histogram in the form in which a Result holds it. The error is hdrhistogram's.
func EncodeHistogram(h *hdrhistogram.Histogram) (string, error) { return encode(h) }

// DecodeHistogram reads what EncodeHistogram returned. The error is hdrhistogram's.
func DecodeHistogram(s string) (*hdrhistogram.Histogram, error) { return decode(s) }
