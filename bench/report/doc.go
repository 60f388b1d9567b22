// Package report turns the result files of bench into one HTML page that needs nothing else: no network, no
// script, no font. [Read] reads the results of a file, [Write] writes the page, and [Pictures] returns only
// the plots.
//
// The plots are inline SVG, which this package draws itself. The usual libraries either draw on a canvas by script
// (uPlot, ECharts: nothing is shown without the script, and paper gets pixels) or write colours and sizes into the
// picture (gonum/plot), so that it follows neither the reader's dark mode nor a phone's text size. Only two kinds of
// plot are needed, lines and bars; style.css colours them.
//
// Reading order: read.go (what comes in), page.go (how results are grouped and named), section.go (which plots
// a group has), table.go, plot.go and scale.go (the two kinds of plot and their axes), picture.go, page.tmpl.
package report
