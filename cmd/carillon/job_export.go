package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
)

func newJobExportCommand(a *app) *cobra.Command {
	var l listFlags
	var output string
	c := &cobra.Command{
		Use:   "export",
		Short: "Write jobs as NDJSON",
		Long: `Write jobs, ordered by id, one JSON object a line, as 'carillon job import' reads them:

  {"id":"invoice-7","spec":{"schedule":"@daily"},"status":"scheduled"}

It is no snapshot: jobs put or deleted meanwhile may or may not be in it.

Here --prefix is the beginning of an id. The service's own goes before the command, or into
$CARILLON_PREFIX: carillon --prefix acme job export`,
		Example: `  carillon job export -o jobs.ndjson
  carillon job export --label team=billing | jq .id`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			nc, client, err := a.connect()
			if err != nil {
				return err
			}
			defer nc.Close()
			if output == "" || output == "-" {
				w := bufio.NewWriter(a.stdout)
				if err := a.export(c.Context(), client, l, w); err != nil {
					return err
				}
				return w.Flush()
			}
			return writeWhole(output, func(w *bufio.Writer) error { return a.export(c.Context(), client, l, w) })
		},
	}
	l.flags(c)
	c.Flags().StringVarP(&output, "output", "o", "", "`file` to write (default standard output)")
	return c
}

// writeWhole writes a file beside the one that is meant and puts it in its place once it is whole: what was there stays
// until then. What is no file, such as a pipe, is written as it is.
func writeWhole(name string, write func(*bufio.Writer) error) (err error) {
	part := name
	switch there, err := filepath.EvalSymlinks(name); {
	case err == nil:
		name, part = there, there+".part"
		if info, err := os.Stat(there); err == nil && !info.Mode().IsRegular() {
			part = there
		}
	case errors.Is(err, fs.ErrNotExist):
		part += ".part"
	default:
		return err
	}
	f, err := os.Create(part)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	if err = write(w); err == nil {
		err = w.Flush()
	}
	err = cmp.Or(err, f.Close())
	if part == name {
		return err
	}
	if err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return os.Rename(part, name)
}

func (a *app) export(ctx context.Context, client *carillon.Client, l listFlags, w *bufio.Writer) error {
	total := int64(-1)
	if l == (listFlags{}) && isTerminal(a.stderr) {
		if s, err := client.Status(ctx); err == nil { // only the bar's end depends on it
			total = 0
			for i := range s.Partitions {
				for _, n := range s.Partitions[i].Jobs {
					total += int64(n)
				}
			}
		}
	}
	bar := a.newProgress("export", total, false)
	var line []byte
	defer bar.end()
	return l.pages(ctx, client, func(page []carillon.JobReply) error {
		for i := range page {
			line = append(appendExport(line[:0], &page[i]), '\n')
			if _, err := w.Write(line); err != nil {
				return err
			}
			bar.step(1)
		}
		return nil
	})
}

// appendExport appends a job's line. A payload of JSON that holds line breaks is given as text: the
// bytes delivered stay the same.
func appendExport(dst []byte, r *carillon.JobReply) []byte {
	spec := r.Spec
	if spec.Form == carillon.PayloadJSON && bytes.ContainsAny(spec.Payload, "\r\n") {
		spec.Form = carillon.PayloadText
	}
	dst = fmt.Appendf(dst, `{"id":"%s","spec":`, r.ID) // an id holds nothing that JSON escapes
	dst = spec.AppendJSON(dst)
	return fmt.Appendf(dst, `,"status":"%s"}`, r.Status)
}
