package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/carillon-scheduler/carillon/bench"
)

// plot is a plot on the page. page.tmpl draws its View, in the way that its Kind says.
type plot interface{ Kind() string }

// Plots are laid out in pixels of a picture that the page scales to the available width. The picture is small
// enough that its text can be read on a phone.
const (
	plotWidth  = 480
	plotHeight = 300
	charWidth  = 6.1 // of small text, about
	lineHeight = 15  // of small text
)

// px is a position or a length in a picture, written with one decimal.
type px float64

func (v px) String() string {
	return strings.TrimSuffix(strconv.FormatFloat(float64(v), 'f', 1, 64), ".0")
}

// textWidth is about the width of some text.
func textWidth(s string) px { return px(charWidth * float64(utf8.RuneCountInString(s))) }

// Colours are classes of style.css. The first is the accent: it is Carillon's beside other systems.
const (
	colours = 8
	quiet   = "quiet" // for what others are compared with
)

func colour(i int) string { return "c" + strconv.Itoa(i%colours) }

// frame is the area inside the axes.
type frame struct{ Left, Right, Top, Bottom px }

func (f frame) InnerWidth() px  { return f.Right - f.Left }
func (f frame) InnerHeight() px { return f.Bottom - f.Top }
func (f frame) TickEnd() px     { return f.Bottom + 4 }
func (f frame) TickX() px       { return f.Left - 6 }
func (f frame) TickY() px       { return f.Bottom + 18 }
func (f frame) NameY() px       { return f.Bottom + 34 }
func (f frame) LabelX() px      { return f.Right + 7 }

// mark is a tick of an axis.
type mark struct {
	At    px
	Label string
}

func marks(s scale, first, last px) (all []mark) {
	for _, t := range s.ticks {
		all = append(all, mark{s.place(t.at, first, last), t.label})
	}
	return all
}

// lines is a plot of lines. With log, the y values are logarithms to base 10.
type lines struct {
	title, note  string
	xName, yName string // labels of the axes: what is shown, or its unit
	xScale       func(most float64) scale
	log          bool
	lines        []line
	limits       []float64     // levels to compare with
	goals        []bench.Point // to stay below
	stops        []stop

	x, y scale
}

type line struct {
	label, class string
	points       []bench.Point // by x
	named        bool          // the label is shown at the line's end, too
}

// stop is a place on the x axis whose values are shown under the pointer.
type stop struct {
	at    float64
	label string
}

// distribution is a plot of lateness, ms, over percentiles. Both axes are logarithmic.
func distribution(title string) *lines {
	l := &lines{title: title, xName: "percentile", yName: "ms", xScale: nines, log: true}
	for _, p := range percentiles {
		l.stops = append(l.stops, stop{ninesOf(p.share), p.name})
	}
	return l
}

// leastMs is the lowest value at which a logarithmic axis begins: nothing below 10 µs matters here.
const leastMs = 0.01

func logMs(ms float64) float64 { return math.Log10(max(ms, leastMs)) }

// add adds a line for a histogram of µs, which ends with the greatest value, at the percentile that leaves out only that one.
func (l *lines) add(label, class string, h *hdrhistogram.Histogram, named bool) {
	if h == nil || h.TotalCount() == 0 {
		return
	}
	end := min(math.Log10(float64(h.TotalCount())), mostNines)
	xs := []float64{end}
	for x := 0.0; x < end; x += 0.05 {
		xs = append(xs, x)
	}
	for _, s := range l.stops {
		if s.at < end {
			xs = append(xs, s.at)
		}
	}
	slices.Sort(xs)
	drawn := line{label: label, class: class, named: named}
	for _, x := range xs {
		us := h.ValueAtQuantile(100 * (1 - math.Pow(10, -x)))
		if x == end {
			us = h.Max()
		}
		drawn.points = append(drawn.points, bench.Point{x, logMs(float64(us) / 1000)})
	}
	l.lines = append(l.lines, drawn)
}

// course is a plot of series of one unit over time. For times its y axis is logarithmic, because medians and maxima are far apart.
func course(title, unit string, series []line) *lines {
	l := &lines{title: title, xName: "s", yName: unit, xScale: linear, log: unit == "ms", lines: series}
	var longest []bench.Point
	end := 0.0
	for _, s := range series {
		if len(s.points) > len(longest) {
			longest = s.points
		}
		end = max(end, s.points[len(s.points)-1][0])
	}
	per := 1.0
	switch {
	case end > 3*3600:
		per, l.xName = 3600, "h"
	case end > 600:
		per, l.xName = 60, "min"
	}
	for _, s := range series {
		for i := range s.points {
			s.points[i][0] /= per
			if l.log {
				s.points[i][1] = logMs(s.points[i][1])
			}
		}
	}
	const most = 60
	for i := 0; i < len(longest); i += 1 + len(longest)/most {
		l.stops = append(l.stops, stop{longest[i][0], number(longest[i][0]) + " " + l.xName})
	}
	return l
}

// remark adds a sentence to the note, but each only once.
func (l *lines) remark(s string) {
	if !strings.Contains(l.note, s) {
		l.note = strings.TrimSpace(l.note + " " + s)
	}
}

// share gives plots of one kind the same axes, so that they can be compared.
func share(plots []*lines) {
	mostX, least, most := 0.0, math.Inf(1), math.Inf(-1)
	for _, l := range plots {
		for _, drawn := range l.lines {
			for _, p := range drawn.points {
				mostX, least, most = max(mostX, p[0]), min(least, p[1]), max(most, p[1])
			}
		}
		for _, v := range l.limits {
			most = max(most, v)
		}
		for _, p := range l.goals {
			most = max(most, p[1])
		}
	}
	for _, l := range plots {
		l.x = l.xScale(mostX)
		if l.y = linear(most); l.log {
			l.y = decades(least, most)
		}
	}
}

// at is the last point of a line up to x. ok is false if the line has not begun or has ended there.
func (d *line) at(x float64) (p bench.Point, ok bool) {
	const near = 1e-9
	i := sort.Search(len(d.points), func(i int) bool { return d.points[i][0] > x+near }) - 1
	if i < 0 || x > d.points[len(d.points)-1][0]+near {
		return p, false
	}
	return d.points[i], true
}

func (l *lines) Kind() string { return "lines" }

type (
	lineView struct {
		frame
		Width, Height             px
		Title, Note, XName, YName string
		XTicks, YTicks            []mark
		Limits                    []px
		Goals                     []goalView
		Lines                     []drawnLine
		Stops                     []stopView
	}
	drawnLine struct {
		Class, Path, Label string
		Named              bool
		EndX, EndY, LabelY px
	}
	goalView struct{ From, To, Y px }
	stopView struct {
		X, From, Width            px // of the line under the pointer, and of the area that answers to it
		TipX, TipWidth, TipHeight px
		TextX, HeadingY           px
		Heading                   string
		Rows                      []stopRow
	}
	stopRow struct {
		Class, Text string
		TextY, DotY px
	}
)

// View lays the plot out.
func (l *lines) View() lineView {
	v := lineView{
		frame: frame{Left: 46, Right: plotWidth - 14, Top: 24, Bottom: plotHeight - 40},
		Width: plotWidth, Height: plotHeight, Title: l.title, Note: l.note, XName: l.xName, YName: l.yName,
	}
	for _, d := range l.lines {
		if d.named {
			v.Right = min(v.Right, plotWidth-12-textWidth(shorten(d.label)))
		}
	}
	v.XTicks, v.YTicks = marks(l.x, v.Left, v.Right), marks(l.y, v.Bottom, v.Top)
	x := func(at float64) px { return l.x.place(at, v.Left, v.Right) }
	y := func(at float64) px { return l.y.place(at, v.Bottom, v.Top) }
	for _, at := range l.limits {
		v.Limits = append(v.Limits, y(at))
	}
	for _, p := range l.goals {
		if p[0] <= l.x.to {
			v.Goals = append(v.Goals, goalView{x(p[0]) - 8, x(p[0]) + 8, y(p[1])})
		}
	}
	var named []int // the line with the uppermost end first
	for i, d := range l.lines {
		var path strings.Builder
		command := byte('M')
		for _, p := range d.points {
			fmt.Fprintf(&path, "%c%s %s", command, x(p[0]), y(p[1]))
			command = 'L'
		}
		end := d.points[len(d.points)-1]
		v.Lines = append(v.Lines, drawnLine{
			Class: d.class, Path: path.String(), Label: shorten(d.label), Named: d.named, EndX: x(end[0]), EndY: y(end[1]),
		})
		if d.named {
			named = append(named, i)
		}
	}
	slices.SortStableFunc(named, func(a, b int) int { return cmp.Compare(v.Lines[a].EndY, v.Lines[b].EndY) })
	ends := make([]px, len(named))
	for i, n := range named {
		ends[i] = v.Lines[n].EndY
	}
	spread(ends, v.Bottom)
	for i, n := range named {
		v.Lines[n].LabelY = ends[i]
	}
	for i, s := range l.stops {
		if s, ok := l.stop(s, x, y); ok {
			s.From, s.Width = v.Left, v.InnerWidth()
			if i > 0 {
				s.From = (x(l.stops[i-1].at) + s.X) / 2
			}
			if s.Width = v.Right - s.From; i+1 < len(l.stops) {
				s.Width = (s.X+x(l.stops[i+1].at))/2 - s.From
			}
			v.Stops = append(v.Stops, s)
		}
	}
	return v
}

// stop lays out what is shown while the pointer is near one place of the x axis; ok is false if there is no line.
func (l *lines) stop(s stop, x, y func(float64) px) (v stopView, ok bool) {
	const top = 38
	v = stopView{X: x(s.at), HeadingY: top, Heading: s.label}
	width := textWidth(s.label)
	for _, d := range l.lines {
		p, ok := d.at(s.at)
		if !ok {
			continue
		}
		value := p[1]
		if l.log {
			value = math.Pow(10, value)
		}
		text := d.label + "  " + quantity(value, l.yName)
		width = max(width, textWidth(text))
		v.Rows = append(v.Rows, stopRow{d.class, text, px(top + lineHeight*(len(v.Rows)+1)), y(p[1])})
	}
	v.TipWidth, v.TipHeight = width+12, px(lineHeight*(len(v.Rows)+1)+6)
	if v.TipX = v.X + 8; v.TipX+v.TipWidth > plotWidth {
		v.TipX = max(v.X-8-v.TipWidth, 0)
	}
	v.TextX = v.TipX + 6
	return v, len(v.Rows) > 0
}

// spread moves labels, given from the top down, until none overlaps another and none is below the bottom.
func spread(at []px, bottom px) {
	for i := 1; i < len(at); i++ {
		at[i] = max(at[i], at[i-1]+lineHeight)
	}
	for i := len(at) - 1; i >= 0; i-- {
		at[i] = min(at[i], bottom)
		bottom = at[i] - lineHeight
	}
}

// shorten cuts a label to the length that fits beside a plot.
func shorten(s string) string {
	const most = 20
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return strings.TrimRight(string([]rune(s)[:most-1]), " ,") + "…"
}

// bars is a plot of horizontal bars.
type bars struct {
	title, note string
	unit        string // label of the axis
	bars        []bar

	x scale
}

type bar struct {
	label, class string
	value        float64
	goal         float64 // the value to be reached; 0 for none
	worst        float64 // the worst of the values whose median is value; 0 for none
}

// shareBars gives plots the same axis.
func shareBars(plots []*bars) {
	most := 0.0
	for _, p := range plots {
		for _, b := range p.bars {
			most = max(most, b.value, b.goal, b.worst)
		}
	}
	for _, p := range plots {
		p.x = linear(most)
	}
}

func (p *bars) Kind() string { return "bars" }

type (
	barView struct {
		frame
		Width, Height     px
		Title, Note, Unit string
		Ticks             []mark
		Bars              []drawnBar
	}
	drawnBar struct {
		Class, Label, Value         string
		LabelY, Top, Middle, Bottom px
		Length, ValueX              px
		Goal, Worst                 px // 0 for none
	}
)

func (b drawnBar) Thickness() px  { return b.Bottom - b.Top }
func (b drawnBar) ValueY() px     { return b.Bottom - 2 }
func (b drawnBar) GoalTop() px    { return b.Top - 3 }
func (b drawnBar) GoalBottom() px { return b.Bottom + 3 }

// View lays the plot out: each bar below its label.
func (p *bars) View() barView {
	const (
		top       = 6
		row       = 38
		labelled  = 17 // of a row
		thickness = 12
	)
	v := barView{
		frame: frame{Left: 4, Right: plotWidth - 74, Top: top, Bottom: px(top + row*len(p.bars))},
		Width: plotWidth, Title: p.title, Note: p.note, Unit: p.unit,
	}
	v.Height = v.Bottom + 28
	v.Ticks = marks(p.x, v.Left, v.Right)
	x := func(at float64) px { return p.x.place(at, v.Left, v.Right) }
	for i, b := range p.bars {
		y := v.Top + px(row*i+labelled)
		d := drawnBar{
			Class: b.class, Label: b.label, Value: number(b.value), LabelY: y - 5, Top: y, Middle: y + thickness/2, Bottom: y + thickness,
			Length: x(b.value) - v.Left, ValueX: x(max(b.value, b.worst)) + 6,
		}
		if b.goal > 0 {
			d.Goal = x(b.goal)
			if d.Goal > d.ValueX-6 && d.Goal < d.ValueX+textWidth(d.Value)+6 {
				d.ValueX = d.Goal + 6 // beside it, not upon it
			}
		}
		if b.worst > 0 {
			d.Worst = x(b.worst)
		}
		v.Bars = append(v.Bars, d)
	}
	return v
}
