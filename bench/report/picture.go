package report

import (
	"bytes"
	"fmt"
	"html/template"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// Picture is a plot as an SVG file of its own.
type Picture struct {
	Name string // of its section and itself, such as burst-stored-over-time.svg
	SVG  []byte
}

// Pictures draws each plot of the page for some results, in the page's order. A picture needs nothing else, and follows the viewer's
// dark mode.
func Pictures(runs []Run) (all []Picture, err error) {
	names, style := make(map[string]int), pictureStyle()
	for _, s := range sections(runs) {
		for _, p := range s.Plots {
			const margin, heading = 12, 48
			v := picture{Style: template.CSS(style), Kind: p.Kind(), Left: -margin, Top: -heading, Width: plotWidth + 2*margin}
			title := ""
			switch p := p.(type) {
			case *lines:
				view := p.View()
				view.Stops = nil // they are for a pointer over the page
				v.View, title, v.Height = view, view.Title, heading+view.Height+margin
			case *bars:
				view := p.View()
				v.View, title, v.Height = view, view.Title, heading+view.Height+margin
			}
			var b bytes.Buffer
			if err := pageTemplate.ExecuteTemplate(&b, "picture", v); err != nil {
				return nil, fmt.Errorf("report: %w", err)
			}
			name := fileName(s.Title)
			if own := fileName(title); own != name {
				name += "-" + own
			}
			if names[name]++; names[name] > 1 {
				name += "-" + strconv.Itoa(names[name])
			}
			all = append(all, Picture{Name: name + ".svg", SVG: legible(b.Bytes())})
		}
	}
	return all, nil
}

var (
	colourSet  = regexp.MustCompile(`--(\w+): (#\w+);`)
	colourUsed = regexp.MustCompile(`var\(--(\w+)\)`)
)

// pictureStyle is the plots' style sheet with plain colours: many programs that show SVG files know no CSS variables, and would draw
// everything in black.
func pictureStyle() template.CSS {
	light, rest, _ := strings.Cut(style, "@media (prefers-color-scheme: dark)")
	dark, _, _ := strings.Cut(rest, "@media")
	in := func(theme string) string {
		colours := make(map[string]string)
		for _, c := range colourSet.FindAllStringSubmatch(theme, -1) {
			colours[c[1]] = c[2]
		}
		return colourUsed.ReplaceAllStringFunc(plotStyle, func(used string) string { return colours[colourUsed.FindStringSubmatch(used)[1]] })
	}
	return template.CSS(in(light) + "@media (prefers-color-scheme: dark) {\n" + in(dark) + "}\n")
}

// picture is what page.tmpl shows of one.
type picture struct {
	Style                    template.CSS
	Kind                     string
	View                     any
	Left, Top, Width, Height px
}

// fileName is a title in letters and digits, with dashes between.
func fileName(title string) string {
	return strings.Join(strings.FieldsFunc(strings.ToLower(title), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }), "-")
}
