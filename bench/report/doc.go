// Package report turns the result files of bench into one HTML page that needs nothing else: no network, no
// script, no font. [Read] takes the results of a file apart, [Write] lays them out, and [Pictures] gives
// the plots alone.
//
// The plots are inline SVG drawn here. The usual libraries either draw on a canvas by script (uPlot, ECharts:
// nothing without it, and pixels on paper) or write colours and sizes into the picture (gonum/plot), so that it
// can follow neither the reader's dark mode nor a phone's text size. What has to be drawn is two kinds of plot,
// lines and bars; style.css colours them.
//
// Reading order: read.go (what comes in), page.go (how results are grouped and named), section.go (which plots
// a group has), table.go, plot.go and scale.go (the two kinds of plot and their axes), picture.go, page.tmpl.
package report
