package report

import (
	"bytes"
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"unicode"
)

// Picture is a plot as an SVG file of its own.
type Picture struct {
	Name string // of its section and itself, such as burst-stored-over-time.svg
	SVG  []byte
}

// Pictures draws each plot of the page of some results, in its order. A picture needs nothing else, and follows the dark mode of
// whoever looks at it.
func Pictures(runs []Run) (all []Picture, err error) {
	names := make(map[string]int)
	for _, s := range sections(runs) {
		for _, p := range s.Plots {
			const margin, heading = 12, 48
			v := picture{Style: template.CSS(style), Kind: p.Kind(), Left: -margin, Top: -heading, Width: plotWidth + 2*margin}
			title := ""
			switch p := p.(type) {
			case *lines:
				view := p.View()
				view.Stops = nil // for who points at a place of the page
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
			all = append(all, Picture{Name: name + ".svg", SVG: b.Bytes()})
		}
	}
	return all, nil
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
