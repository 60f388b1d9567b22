package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/google/go-cmp/cmp"

	"github.com/carillon-scheduler/carillon/bench"
)

// histogram returns an encoded histogram with n values: step, 2·step, …, n·step µs.
func histogram(t testing.TB, n, step int64) string {
	t.Helper()
	h := hdrhistogram.New(1, 600e6, 3)
	for i := range n {
		if err := h.RecordValue((i + 1) * step); err != nil {
			t.Fatal(err)
		}
	}
	b, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

type params = map[string]any

var machine = bench.Machine{CPU: "Abacus 2", Cores: 2, Storage: "ext4", NATS: "2.15.2", Sync: "each command", Load: [2]float64{0.5, 1.5}}

func latenessOf(t testing.TB, rate int) bench.Result {
	return bench.Result{
		Workload: "lateness", Params: params{"triggers_per_s": rate, "payload_bytes": 200}, Machine: machine,
		Figures: bench.Figures{{Name: "received_p50_ms", Value: 0.5}, {Name: "received_p99_ms", Value: 7.25}},
		Checks:  &bench.Checks{Expected: 12345},
		Targets: []bench.Target{
			{Figure: "received_p50_ms", Limit: 1, Met: true},
			{Figure: "received_p99_ms", Limit: 5, Floor: 6.5, Met: false},
		},
		Histograms: map[string]string{received: histogram(t, 1000, 10), stored: histogram(t, 1000, 5), sleep: histogram(t, 100, 20)},
	}
}

func dispatch() bench.Result {
	return bench.Result{
		Workload: "dispatch", Params: params{"triggers": 1000}, Machine: machine, Checks: &bench.Checks{Expected: 10, Early: 3},
		Figures: bench.Figures{
			{Name: "ceiling_chained_per_s", Value: 200_000},
			{Name: "ceiling_async_per_s", Value: 100_000},
			{Name: "triggers_per_s", Value: 180_000},
			{Name: "ratio_chained", Value: 0.9},
			{Name: "cron_triggers_per_s", Value: 150_000},
			{Name: "cron_ratio_chained", Value: 0.75},
		},
		Targets: []bench.Target{
			{Figure: "ratio_chained", Limit: 0.85, AtLeast: true, Met: true},
			{Figure: "cron_ratio_chained", Limit: 0.85, AtLeast: true},
		},
	}
}

// samples returns results of each kind that is drawn in a way of its own.
func samples(t testing.TB) []bench.Result {
	drain := []bench.Point{{0, 900}, {0.1, 1000}, {0.2, 500}}
	peer := func(system string, tuned bool, step int64) bench.Result {
		return bench.Result{
			Workload: "burst", Params: params{"system": system, "tuned": tuned, "jobs": 5000}, Machine: machine,
			Figures: bench.Figures{{Name: "drained_per_s", Value: 6e6 / float64(step)}}, Checks: &bench.Checks{Expected: 5000, Early: int(step / 90)},
			Histograms: map[string]string{received: histogram(t, 100, step), off: histogram(t, 100, step)},
		}
	}
	return []bench.Result{
		peer("river", true, 30), peer("river", false, 90), peer("carillon", false, 1),
		{
			Workload: "soak", Params: params{"duration_s": 7200}, Machine: machine,
			Series:     map[string][]bench.Point{"resident_mib": {{0, 100}, {7200, 120}}, "disk_mib": {{0, 500}, {3600, 900}}, "backlog_jobs": {{0, 1}}, "received_p50_ms": {{0, 0.5}, {60, 0.4}}, "received_max_ms": {{0, 0}, {60, 1000}}},
			Histograms: map[string]string{"command_us": histogram(t, 9, 1), received: histogram(t, 9, 1), "received_after_kill_us": histogram(t, 9, 1), "received_without_kills_us": histogram(t, 9, 1)},
		},
		latenessOf(t, 5000),
		dispatch(),
		{
			Workload: "burst", Params: params{"jobs": 2400}, Machine: machine,
			Figures:    bench.Figures{{Name: "drained_per_s", Value: 8000}, {Name: "ceiling_chained_per_s", Value: 12_000}},
			Series:     map[string][]bench.Point{"stored_per_100ms": drain},
			Histograms: map[string]string{"high_received_us": histogram(t, 50, 3), "burst_high_stored_us": histogram(t, 50, 4), "burst_low_stored_us": histogram(t, 50, 5), sleep: histogram(t, 9, 1)},
		},
		{
			Workload: "recovery", Params: params{"jobs": 10}, Machine: machine,
			Figures: bench.Figures{{Name: "first_trigger_s", Value: 1.5}, {Name: "first_trigger_max_s", Value: 1.9}},
		},
		{Workload: "idle", Params: params{"jobs": 10}, Machine: machine, Figures: bench.Figures{{Name: "cpu_percent", Value: 0.25}, {Name: "puts_per_s", Value: 5}}},
		latenessOf(t, 20_000),
		{Workload: "sieve", Figures: bench.Figures{{Name: "primes", Value: 25}}},
	}
}

// read encodes results as files, and reads these with Read.
func read(t testing.TB, results ...bench.Result) (runs []Run) {
	t.Helper()
	for i, r := range results {
		if r.Figures == nil {
			r.Figures = bench.Figures{}
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		more, err := Read(bytes.NewReader(b), fmt.Sprintf("some/where/file%d.json", i))
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, more...)
	}
	return runs
}

// element is an element of the page. Its text includes that of all elements in it.
type element struct {
	name string
	attr map[string]string
	text string
	all  []*element // in it, at any depth
}

func (e *element) find(name, class string) (found []*element) {
	for _, in := range e.all {
		if in.name == name && (class == "" || slices.Contains(strings.Fields(in.attr["class"]), class)) {
			found = append(found, in)
		}
	}
	return found
}

// open writes the page and parses it.
func open(t testing.TB, runs []Run) (*element, Summary) {
	t.Helper()
	var page bytes.Buffer
	s, err := Write(&page, runs)
	if err != nil {
		t.Fatal(err)
	}
	return parsed(t, &page), s
}

// parsed parses a page or a picture, as strictly as XML.
func parsed(t testing.TB, text io.Reader) *element {
	t.Helper()
	root := &element{name: "page"}
	stack := []*element{root}
	d := xml.NewDecoder(text)
	for {
		token, err := d.Token()
		if err == io.EOF {
			return root
		}
		if err != nil {
			t.Fatal(err)
		}
		switch v := token.(type) {
		case xml.StartElement:
			e := &element{name: v.Name.Local, attr: make(map[string]string)}
			for _, a := range v.Attr {
				e.attr[a.Name.Local] = a.Value
			}
			for _, outer := range stack {
				outer.all = append(outer.all, e)
			}
			stack = append(stack, e)
		case xml.EndElement:
			stack = stack[:len(stack)-1]
		case xml.CharData:
			for _, outer := range stack {
				outer.text += string(v)
			}
		}
	}
}

func texts(all []*element) (s []string) {
	for _, e := range all {
		s = append(s, strings.TrimSpace(e.text))
	}
	return s
}

func TestSectionsAndPlots(t *testing.T) {
	page, s := open(t, read(t, samples(t)...))
	var got []string
	for _, v := range page.find("section", "") {
		got = append(got, v.find("h2", "")[0].text)
		for _, f := range v.find("figure", "") {
			caption := f.find("figcaption", "")[0]
			note := caption.find("span", "")[0].text
			lines, bars := f.find("g", "line"), f.find("g", "bar")
			kind := fmt.Sprintf("%d lines", len(lines))
			if len(bars) > 0 {
				kind = fmt.Sprintf("%d bars", len(bars))
			}
			got = append(got, fmt.Sprintf("- %s, %s: %s", strings.TrimSuffix(caption.text, note), kind, strings.Join(texts(append(f.find("text", "name"), endLabels(lines)...)), ", ")))
		}
	}
	want := []string{
		"Lateness",
		"- Lateness, 4 lines: 5,000/s, 20,000/s",
		"Dispatch",
		"- Rate against ceiling, 4 bars: triggers, cron triggers, ceiling chained, ceiling async",
		"Burst",
		"- Rate against ceiling, 2 bars: drained, ceiling chained",
		"- Stored over time, 1 lines: stored",
		"- Received, 2 lines: high, sleep",
		"- Stored, 3 lines: burst high, burst low, sleep",
		"Recovery",
		"- Times, 1 bars: first trigger",
		"Idle",
		"Soak",
		"- Over time, MiB, 2 lines: disk, resident",
		"- Backlog over time, 1 lines: backlog",
		"- Over time, ms, 2 lines: received max, received p50",
		"- Lateness, 1 lines: received",
		"- Latencies, 1 lines: command",
		"- Received, 2 lines: after kill, without kills",
		"Sieve",
		"Peers: burst 5,000 jobs",
		"- Drained per second, 3 bars: carillon, river, river tuned",
		"- Lateness, early ones as 0, 3 lines: carillon, river, river tuned",
		"- Off the due time, early or late, 3 lines: carillon, river, river tuned",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	plots := len(page.find("figure", ""))
	if want := (Summary{Results: 11, Plots: plots, Targets: 6, Met: 3, Checked: 4, Clean: 3}); s != want {
		t.Errorf("summary %+v, want %+v", s, want)
	}
	if head := page.find("p", "verdicts")[0].text; head != "11 results · 3 of 6 targets met · checks failed in 1 of 4" {
		t.Errorf("the page begins with %q", head)
	}
}

// endLabels returns the labels at the ends of lines.
func endLabels(lines []*element) (labels []*element) {
	for _, l := range lines {
		labels = append(labels, l.find("text", "")...)
	}
	return labels
}

func TestEveryTargetAndCheckIsShown(t *testing.T) {
	page, _ := open(t, read(t, latenessOf(t, 5000), dispatch()))
	rows := func(class string) (all [][]string) {
		for _, r := range page.find("table", class)[0].find("tr", "")[1:] {
			all = append(all, texts(r.find("td", "")))
		}
		return all
	}
	want := [][]string{
		{"Lateness", "received p50", "0.5 ms", "≤ 1 ms", "✓ met"},
		{"Lateness", "received p99", "7.25 ms", "≤ 5 ms", "✗ missed (or ≤ 6.5 ms, three times the bare sleep)"},
		{"Dispatch", "ratio chained", "0.9", "≥ 0.85", "✓ met"},
		{"Dispatch", "cron ratio chained", "0.75", "≥ 0.85", "✗ missed"},
	}
	if d := cmp.Diff(want, rows("targets")); d != "" {
		t.Error(d)
	}
	want = [][]string{
		{"Lateness", "✓ clean", "12,345", "0", "0", "0", "0", "0", "0"},
		{"Dispatch", "✗ failed", "10", "3", "0", "0", "0", "0", "0"},
	}
	if d := cmp.Diff(want, rows("checks")); d != "" {
		t.Error(d)
	}
	broken := latenessOf(t, 5000)
	broken.Error = "the engine ended by itself"
	page, _ = open(t, read(t, broken))
	if got := rows("checks")[0][1]; got != "✗ failed: the engine ended by itself" {
		t.Errorf("of a run that did not come to its end it says %q", got)
	}
	unmeasured := latenessOf(t, 5000)
	unmeasured.Figures = unmeasured.Figures[:1]
	page, _ = open(t, read(t, unmeasured))
	if got := rows("targets")[1][2]; got != "–" {
		t.Errorf("what was not measured is said to be %q", got)
	}
	all, _ := open(t, read(t, latenessOf(t, 5000)))
	if head := all.find("p", "verdicts")[0].text; !strings.HasSuffix(head, "1 of 2 targets met · every trigger once, none early") {
		t.Errorf("the page begins with %q", head)
	}
}

func TestTablesHaveAllThatIsKnown(t *testing.T) {
	other := latenessOf(t, 20_000)
	other.Figures = append(other.Figures, bench.Figure{Name: "engine_cpu_us_per_trigger", Value: 130})
	page, _ := open(t, read(t, latenessOf(t, 5000), other))
	got := make(map[string][]string)
	for _, r := range page.find("section", "")[0].find("tr", "") {
		if h := r.find("th", ""); len(h) == 1 && h[0].attr["title"] != "" {
			got[h[0].attr["title"]] = append([]string{h[0].text}, texts(r.find("td", ""))...)
		}
	}
	for name, want := range map[string][]string{
		"received_p99_ms":           {"received p99", "ms", "✗ 7.25", "✗ 7.25"},
		"engine_cpu_us_per_trigger": {"engine cpu", "µs/trigger", "–", "130"},
		"triggers_per_s":            {"triggers", "/s", "5,000", "20,000"},
		"payload_bytes":             {"payload", "bytes", "200"},
		"cpu":                       {"cpu", "", "Abacus 2"},
		"storage":                   {"storage", "", "ext4"},
		"sync":                      {"sync", "", "each command"},
		"nats_server":               {"nats server", "", "2.15.2"},
		"load":                      {"load", "", "0.5, 1.5"},
	} {
		if d := cmp.Diff(want, got[name]); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// The values that are shown at the pointer are those of the histogram, and the targets are marked at their places on the axis.
func TestDistribution(t *testing.T) {
	runs := read(t, latenessOf(t, 5000))
	page, _ := open(t, runs)
	h := runs[0].histograms[received]
	f := page.find("figure", "")[0]
	stops := f.find("g", "stop")
	if len(stops) != 7 { // p50 to p99.9 of 1,000 values
		t.Errorf("%d stops", len(stops))
	}
	for _, s := range stops {
		heading := s.find("text", "heading")[0].text
		p, err := strconv.ParseFloat(heading[1:], 64)
		if err != nil {
			t.Fatal(err)
		}
		us := h.ValueAtQuantile(p)
		if p == 99.9 { // the line's end
			us = h.Max()
		}
		want := "received  " + number(float64(us)/1000) + " ms"
		if rows := texts(s.find("text", "")); !slices.Contains(rows, want) {
			t.Errorf("%s shows %q, not %q", heading, rows, want)
		}
	}
	// Both targets are marked, at 1 and 5 ms.
	y := func(ms float64) float64 { return 260 - 236*(math.Log10(ms)+2)/4 } // 0.01 to 100 ms from 260 up to 24
	var goals []string
	for _, g := range f.find("line", "goal") {
		goals = append(goals, g.attr["y1"])
	}
	if d := cmp.Diff([]string{px(y(1)).String(), px(y(5)).String()}, goals); d != "" {
		t.Error(d)
	}
}

func TestRatesHaveTheirGoals(t *testing.T) {
	page, _ := open(t, read(t, dispatch()))
	at := make(map[string]string)
	length := make(map[string]string)
	for _, b := range page.find("g", "bar") {
		name := b.find("text", "name")[0].text
		length[name] = b.find("rect", "")[0].attr["width"]
		for _, g := range b.find("line", "goal") {
			at[name] = g.attr["x1"]
		}
	}
	// The axis has 0 to 200,000 at x = 4 to 406. The goal is 0.85 of the chained ceiling.
	goal := px(4 + 402*0.85).String()
	if d := cmp.Diff(map[string]string{"triggers": goal, "cron triggers": goal}, at); d != "" {
		t.Error(d)
	}
	want := map[string]string{"triggers": "361.8", "cron triggers": "301.5", "ceiling chained": "402", "ceiling async": "201"}
	if d := cmp.Diff(want, length); d != "" {
		t.Error(d)
	}
}

func TestCountsPerStepAreDrawnPerSecond(t *testing.T) {
	page, _ := open(t, read(t, bench.Result{
		Workload: "burst", Figures: bench.Figures{{Name: "ceiling_chained_per_s", Value: 12_000}},
		Series: map[string][]bench.Point{"stored_per_100ms": {{0.1, 1000}, {0, 900}}},
	}))
	f := page.find("figure", "")[1]
	if rows := texts(f.find("g", "stop")); len(rows) != 2 || !strings.Contains(rows[0], "0 s") || !strings.Contains(rows[0], "9,000/s") || !strings.Contains(rows[1], "10,000/s") {
		t.Errorf("the pointer shows %q", rows)
	}
	if len(f.find("line", "limit")) != 1 {
		t.Error("no ceiling is drawn")
	}
}

func TestNothingIsFetched(t *testing.T) {
	page, _ := open(t, read(t, samples(t)...))
	ids := make(map[string]bool)
	for _, e := range page.all {
		ids["#"+e.attr["id"]] = true
	}
	for _, e := range page.all {
		if slices.Contains([]string{"script", "img", "image", "iframe", "object", "use", "base"}, e.name) {
			t.Errorf("the page has a %s", e.name)
		}
		if h, ok := e.attr["href"]; ok && h != "data:," && !ids[h] {
			t.Errorf("%s refers to %q", e.name, h)
		}
		for name, v := range e.attr {
			if name == "src" || name == "srcset" || name == "style" || strings.HasPrefix(name, "on") || strings.Contains(v, "url(") {
				t.Errorf("%s has %s=%q", e.name, name, v)
			}
		}
	}
	css := page.find("style", "")[0].text
	if css != plotStyle+style || strings.Contains(css, "url(") || strings.Contains(css, "@import") {
		t.Errorf("the style is not plain:\n%s", css)
	}
	policy := page.find("meta", "")[2].attr
	if policy["http-equiv"] != "Content-Security-Policy" || !strings.HasPrefix(policy["content"], "default-src 'none';") {
		t.Errorf("the policy is %v", policy)
	}
}

// A picture is a plot of the page, with its title and note in it, and without what appears only at a pointer.
func TestPictures(t *testing.T) {
	runs := read(t, samples(t)...)
	page, _ := open(t, runs)
	pictures, err := Pictures(runs)
	if err != nil {
		t.Fatal(err)
	}
	figures := page.find("figure", "")
	if len(pictures) == 0 || len(pictures) != len(figures) {
		t.Fatalf("%d pictures of %d plots", len(pictures), len(figures))
	}
	names := make(map[string]bool)
	for i, p := range pictures {
		if names[p.Name] || !regexp.MustCompile(`^[a-z0-9-]+\.svg$`).MatchString(p.Name) {
			t.Errorf("a picture is named %q", p.Name)
		}
		names[p.Name] = true
		svg := parsed(t, bytes.NewReader(p.SVG)).all[0]
		if svg.name != "svg" || svg.attr["xmlns"] != "http://www.w3.org/2000/svg" {
			t.Errorf("%s is no picture of its own: %s %v", p.Name, svg.name, svg.attr)
		}
		// Its colours are plain, for viewers that know no CSS variables, with those of the dark mode for viewers that know modes.
		light, dark, _ := strings.Cut(svg.find("style", "")[0].text, "@media (prefers-color-scheme: dark)")
		for mode, css := range map[string]string{"#b4530a": light, "#f0a04b": dark} {
			if strings.Contains(css, "--") || !strings.Contains(css, ".c0 { color: "+mode+"; }") || strings.Count(css, "{") != strings.Count(css, "}") {
				t.Errorf("%s has the colours\n%s", p.Name, css)
			}
		}
		all := svg.find("text", "")
		if caption := figures[i].find("figcaption", "")[0].text; all[0].text+all[1].text != caption {
			t.Errorf("%s says %q and %q, the page %q", p.Name, all[0].text, all[1].text, caption)
		}
		if got, want := len(svg.find("path", "")), len(figures[i].find("path", "")); got != want || len(svg.find("g", "stop")) > 0 {
			t.Errorf("%s has %d of %d lines, and %d places to point at", p.Name, got, want, len(svg.find("g", "stop")))
		}
	}
	for _, want := range []string{"lateness.svg", "burst-stored-over-time.svg"} {
		if !names[want] {
			t.Errorf("no %s among %v", want, names)
		}
	}
}

// What may be wider than a phone can be scrolled, also by keyboard, and has a label for screen readers.
func TestKeyboardScrolls(t *testing.T) {
	page, _ := open(t, read(t, samples(t)...))
	main := page.find("main", "")
	if len(main) != 1 || len(main[0].find("section", "")) != len(page.find("section", "")) {
		t.Errorf("%d elements main", len(main))
	}
	scrolls := page.find("div", "scroll")
	if tables := page.find("table", ""); len(scrolls) != len(tables) {
		t.Errorf("%d tables, and %d of them scroll", len(tables), len(scrolls))
	}
	for _, e := range scrolls {
		if e.attr["tabindex"] != "0" || e.attr["role"] != "group" || e.attr["aria-label"] == "" {
			t.Errorf("what scrolls has %v", e.attr)
		}
	}
}

var numberPattern = regexp.MustCompile(`-?[0-9.]+`)

// Nothing is drawn outside of its picture.
func TestPlotsStayInTheirFrames(t *testing.T) {
	page, _ := open(t, read(t, samples(t)...))
	for _, svg := range page.find("svg", "") {
		box := numberPattern.FindAllString(svg.attr["viewBox"], -1)
		limits := map[string]float64{}
		for i, names := range map[int][]string{2: {"x", "x1", "x2", "cx"}, 3: {"y", "y1", "y2", "cy"}} {
			most, err := strconv.ParseFloat(box[i], 64)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range names {
				limits[n] = most
			}
		}
		inside := func(name, value string) {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil || v < 0 || v > limits[name] {
				t.Errorf("%s: %s=%q is not within %v", svg.attr["aria-label"], name, value, box)
			}
		}
		for _, e := range svg.all {
			for name, value := range e.attr {
				if _, ok := limits[name]; ok {
					inside(name, value)
				}
			}
			for i, value := range numberPattern.FindAllString(e.attr["d"], -1) {
				inside([]string{"x", "y"}[i%2], value)
			}
			if e.name == "path" && strings.Contains(e.attr["d"], "N") {
				t.Errorf("a path is no number: %s", e.attr["d"])
			}
		}
	}
}

func TestLabelsOverlapNowhere(t *testing.T) {
	for _, at := range [][]px{{10, 10, 10}, {100, 100, 100}, {10, 12, 90, 99, 100}, {50}, {}} {
		spread(at, 100)
		for i, y := range at {
			if y < 0 || y > 100 || i > 0 && y-at[i-1] < lineHeight {
				t.Errorf("labels at %v", at)
			}
		}
	}
}

func TestSameResultsSamePage(t *testing.T) {
	runs := read(t, samples(t)...)
	var first bytes.Buffer
	if _, err := Write(&first, runs); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		var again bytes.Buffer
		if _, err := Write(&again, runs); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first.Bytes(), again.Bytes()) {
			t.Fatal("two pages of the same results differ")
		}
	}
}

// Carillon has the accent colour, and each other system one colour, which is paler for its default settings if it was tuned, too.
func TestPeersHaveTheirColours(t *testing.T) {
	of := func(system string, tuned bool) bench.Result {
		return bench.Result{Workload: "lateness", Params: params{"system": system, "tuned": tuned}, Histograms: map[string]string{received: histogram(t, 9, 1), off: histogram(t, 9, 1)}}
	}
	page, _ := open(t, read(t, of("river", false), of("asynq", true), of("asynq", false), of("carillon", false)))
	got := make(map[string]string)
	for _, l := range page.find("g", "line") { // nothing was early: one plot
		name := l.find("text", "")[0].text
		if got[name] != "" {
			t.Errorf("%s is drawn twice", name)
		}
		got[name] = l.attr["class"]
	}
	want := map[string]string{"carillon": "line c0", "asynq": "line c1 pale", "asynq tuned": "line c1", "river": "line c2"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestManyRunsAreSplit(t *testing.T) {
	var results []bench.Result
	for range 9 {
		results = append(results, latenessOf(t, 5000))
	}
	page, _ := open(t, read(t, results...))
	if got := texts(page.find("h2", "")); !slices.Equal(got, []string{"Lateness", "Lateness (2)"}) {
		t.Errorf("sections are %q", got)
	}
	if got := texts(page.find("nav", "")[0].find("a", "")); len(got) != 2 {
		t.Errorf("links are %q", got)
	}
}

func TestLabels(t *testing.T) {
	of := func(all ...params) []string {
		var results []bench.Result
		for _, p := range all {
			results = append(results, bench.Result{Workload: "x", Params: p})
		}
		return labelled(read(t, results...))
	}
	for _, c := range []struct{ got, want []string }{
		{of(params{"jobs": 5}), []string{"file0"}},
		{of(params{"jobs": 5}, params{"jobs": 50_000}), []string{"5 jobs", "50,000 jobs"}},
		{of(params{"fill": true}, params{"fill": false}), []string{"fill", "no fill"}},
		{of(params{"payload_bytes": 2}, params{"payload_bytes": 3}), []string{"2 bytes", "3 bytes"}},
		{of(params{"mix": params{"cron": 1}}, params{"mix": params{"cron": 2}}), []string{"cron 1", "cron 2"}},
		{of(params{"jobs": 5}, params{"jobs": 5}), []string{"file0", "file1"}},
		{of(params{"kind": "a"}, params{"kind": "b"}, params{"kind": "a"}), []string{"a file0", "b file1", "a file2"}},
		{of(params{"system": "asynq", "tuned": true}, params{"system": "asynq", "tuned": false}), []string{"asynq tuned", "asynq"}},
	} {
		if d := cmp.Diff(c.want, c.got); d != "" {
			t.Error(d)
		}
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string][2]string{
		"received_p999_ms":              {"received p99.9", "ms"},
		"received_p9999_ms":             {"received p99.99", "ms"},
		"triggers_per_s":                {"triggers", "/s"},
		"engine_cpu_us_per_trigger":     {"engine cpu", "µs/trigger"},
		"resident_bytes_per_job":        {"resident", "bytes/job"},
		"grouped_commits_records_per_s": {"grouped commits", "records/s"},
		"stored_per_100ms":              {"stored", "/100ms"},
		"ratio_chained":                 {"ratio chained", ""},
		"pauses_over_10_ms_per_million": {"pauses over 10 ms", "/million"},
		"cpu_percent":                   {"cpu", "%"},
		"s":                             {"s", ""},
		"":                              {"", ""},
	} {
		if label, unit := named(name); label != want[0] || unit != want[1] {
			t.Errorf("%q is %q in %q, want %q", name, label, unit, want)
		}
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.0617: "0.0617", 0.123456: "0.1235", 7.25: "7.25", 19.999: "20", 1234.5: "1,234", 1e6: "1,000,000", -1234567: "−1,234,567", 1e-9: "0",
		math.Inf(1): "0",
	} {
		if got := number(v); got != want {
			t.Errorf("%v is %q, want %q", v, got, want)
		}
	}
}

func TestLinearScale(t *testing.T) {
	for most, want := range map[float64]string{
		0: "0 0.2 0.4 0.6 0.8 1", 1: "0 0.2 0.4 0.6 0.8 1", 7: "0 1 2 3 4 5 6 7", 0.067: "0 0.01 0.02 0.03 0.04 0.05 0.06 0.07", 241_000: "0 50k 100k 150k 200k 250k",
		1.9e6: "0 200k 400k 600k 800k 1M 1.2M 1.4M 1.6M 1.8M 2M", math.Inf(1): "0 0.2 0.4 0.6 0.8 1",
	} {
		s := linear(most)
		var labels []string
		for _, v := range s.ticks {
			labels = append(labels, v.label)
		}
		if got := strings.Join(labels, " "); got != want || s.to < most && !math.IsInf(most, 0) {
			t.Errorf("0 to %v has ticks %q up to %v, want %q", most, got, s.to, want)
		}
	}
}

func TestReadTakesSeveralResults(t *testing.T) {
	runs, err := Read(strings.NewReader(`{"workload":"a","figures":{}}{"workload":"b","figures":{}}

	{"workload":"c",
	 "figures":{"z_ms":1,"a_ms":2}}`+"\n"), "all.json")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range runs {
		got = append(got, fmt.Sprintf("%s %s:%d %v", r.Workload, r.File, r.Line, r.Figures))
	}
	if want := []string{"a all.json:1 []", "b all.json:1 []", "c all.json:3 [{z_ms 1} {a_ms 2}]"}; !slices.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
}

func TestBadFiles(t *testing.T) {
	whole := `{"workload":"a","figures":{}}` + "\n"
	for _, c := range []struct{ data, want string }{
		{"", `r.json:1:1: no result`},
		{" \n\n", `r.json:3:1: no result`},
		{"Carillon\n", `r.json:1:1: invalid character 'C' looking for beginning of value`},
		{whole + `{"workload":`, `r.json:2:13: unexpected EOF`},
		{whole + "{\n \"workload\": x}", `r.json:3:14: invalid character 'x' looking for beginning of value`},
		{whole + `,` + whole, `r.json:2:1: invalid character ',' looking for beginning of value`},
		{whole + `[1]`, `r.json:2:1: [1] is no object: not a result of carillon bench --json`},
		{whole + ` {"workload":` + "\n" + `7}`, `r.json:3:1: json: cannot unmarshal number`},
		{whole + `{}`, `r.json:2:1: no workload: not a result of carillon bench --json`},
		{`{"workload":"a"}`, `r.json:1:1: no figures: not a result of carillon bench --json`},
		{`{"workload":"a","figures":[1]}`, `r.json:1:1: figures: is [1], must be an object`},
		{`{"workload":"a","figures":{"x":"1"}}`, `r.json:1:1: figures: x is "1", must be a number`},
		{`{"workload":"a","figures":{"x":null}}`, `r.json:1:1: figures: x is null, must be a number`},
		{`{"workload":"a","figures":{"x":1e999}}`, `r.json:1:1: figures: x is 1e999, must be a number`},
		{`{"workload":"a","figures":{},"params":7}`, `r.json:1:1: params: is 7, must be an object`},
		{`{"workload":"a","figures":{},"machine":"m"}`, `r.json:1:1: machine: is "m", must be an object`},
		{`{"workload":"a","figures":{},"targets":[{"figure":"b","met":true}]}`, `r.json:1:1: targets: no figure "b"`},
		{whole + `{"workload":"a","figures":{},"histograms":{"h_us":"AAAA"}}`, `r.json:2:1: histograms: h_us: `},
		{`{"workload":"a","figures":{},"histograms":{"h_us":"!"}}`, `r.json:1:1: histograms: h_us: illegal base64`},
		{`{"workload":"a","figures":{},"series":{"x":[[1,"a"]]}}`, `r.json:1:50: json: cannot unmarshal string`},
		{`{"workload":"a","figures":{},"checks":{"early":0.5}}`, `r.json:1:50: json: cannot unmarshal number 0.5`},
	} {
		runs, err := Read(strings.NewReader(c.data), "r.json")
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || runs != nil {
			t.Errorf("%q gives %v, want %s", c.data, err, c.want)
		}
	}
}

func TestHostileTextStaysText(t *testing.T) {
	const evil = `</style></svg><script>alert("x")</script>`
	page, _ := open(t, read(t,
		bench.Result{
			Workload: evil, Params: params{evil: evil, "jobs": evil}, Machine: bench.Machine{CPU: evil}, Figures: bench.Figures{{Name: evil + "_s", Value: 1}},
			Series: map[string][]bench.Point{evil: {{0, 1}}}, Histograms: map[string]string{evil: histogram(t, 9, 1)},
			Targets: []bench.Target{{Figure: evil + "_s", Limit: 1}},
		},
		bench.Result{Workload: evil, Params: params{"system": evil}},
	))
	if len(page.find("script", "")) > 0 || len(page.find("figure", "")) != 2 {
		t.Error("text has become markup")
	}
	// A JSON string may hold characters that XML has none for.
	control := latenessOf(t, 5000)
	control.Params = params{"note": "a\x01\uffff"}
	runs := read(t, control, latenessOf(t, 5000))
	open(t, runs)
	pictures, err := Pictures(runs)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pictures {
		parsed(t, bytes.NewReader(p.SVG))
	}
}

// Whatever Read accepts makes a page, and its errors say where in the file they are.
func FuzzRead(f *testing.F) {
	for _, r := range samples(f) {
		b, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"workload":"a","figures":{"x_s":1e308,"x_max_s":-1,"ceiling_a_per_s":1e308},"series":{"x_per_1ms":[[1e308,1e308],[-5,-7]]}}`))
	f.Add([]byte(`{"workload":"lateness","figures":{"received_p999999999999999999999_ms":1},"targets":[{"figure":"received_p999999999999999999999_ms","limit":1e-300}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		runs, err := Read(bytes.NewReader(data), "f.json")
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f.json:") {
				t.Fatalf("the error does not say where: %v", err)
			}
			return
		}
		var page bytes.Buffer
		if _, err := Write(&page, runs); err != nil {
			t.Fatal(err)
		}
		if s := page.String(); strings.Contains(s, "NaN") || strings.Contains(s, "Inf ") {
			t.Fatal("a place is no number")
		}
	})
}

// A result that was ended early does not look complete, even if its workload has no checks.
func TestEndedWithoutChecks(t *testing.T) {
	runs, err := Read(strings.NewReader(`{"workload":"ceiling","params":{},"machine":{},"figures":{"async_per_s":123456},"error":"stopped by hand"}`), "c.json")
	if err != nil {
		t.Fatal(err)
	}
	var page bytes.Buffer
	s, err := Write(&page, runs)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(page.String(), "stopped by hand") || s.Clean != s.Checked-1 {
		t.Errorf("the page does not say so; its summary is %+v", s)
	}
}
