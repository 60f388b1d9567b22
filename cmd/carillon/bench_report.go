package main

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon/bench/report"
)

func newBenchReportCommand(a *app) *cobra.Command {
	output, pictures := "bench.html", ""
	c := ownFlags(&cobra.Command{
		Use:   "report [file ...]",
		Short: "Turn result files into one HTML page with plots",
		Long: `Turn result files, as the other commands of bench print them with --json, into one HTML page with plots. A
file may hold several results, one after the other; bench/peers writes such files, too. Without a file, or
for -, standard input is read. The page needs nothing else: no network, no script. Results of one workload
are shown beside each other, named by the parameters in which they differ. With --pictures each plot is an
SVG file, too, to be shown elsewhere.`,
		Example: `  carillon bench report lateness.json dispatch.json burst.json
  carillon bench report results/*.json -o results.html
  carillon bench report burst.json --pictures plots
  carillon bench lateness --json | carillon bench report -o lateness.html`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, files []string) error {
			if len(files) == 0 {
				if isTerminal(a.stdin) {
					return usagef("give a result file, or pipe results in")
				}
				files = []string{"-"}
			}
			var runs []report.Run
			for _, name := range files {
				more, err := a.results(name)
				if err != nil {
					return err
				}
				runs = append(runs, more...)
			}
			var page bytes.Buffer
			s, err := report.Write(&page, runs)
			if err != nil {
				return err
			}
			if pictures != "" {
				if err := writePictures(pictures, runs); err != nil {
					return err
				}
			}
			if output == "-" {
				_, err := page.WriteTo(a.stdout)
				return err
			}
			if err := writeWhole(output, func(w *bufio.Writer) error {
				_, err := page.WriteTo(w)
				return err
			}); err != nil {
				return err
			}
			if a.json {
				return a.marshal(struct {
					File string `json:"file"`
					report.Summary
				}{output, s})
			}
			return a.line("%s: %s, %s, %d of %d targets met, %d of %d checks clean",
				output, count(s.Results, "result"), count(s.Plots, "plot"), s.Met, s.Targets, s.Clean, s.Checked)
		},
	})
	c.Flags().VarP((*nonEmpty)(&output), "output", "o", "`file` to write, - for standard output")
	c.Flags().Var((*nonEmpty)(&pictures), "pictures", "`directory` for the plots as SVG files; made where it is not there")
	return c
}

func writePictures(dir string, runs []report.Run) error {
	all, err := report.Pictures(runs)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range all {
		if err := writeWhole(filepath.Join(dir, p.Name), func(w *bufio.Writer) error {
			_, err := w.Write(p.SVG)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// results reads a result file.
func (a *app) results(name string) (runs []report.Run, err error) {
	if name == "-" {
		return report.Read(a.stdin, "standard input")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return report.Read(f, name)
}
