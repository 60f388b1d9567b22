package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"

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
			if err := notZero(c, "limit"); err != nil {
				return err
			}
			nc, client, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			defer nc.Close()
			beside := a.stdout
			write := func(w *bufio.Writer) error { return a.export(c.Context(), client, l, w, beside) }
			if output == "" || output == "-" {
				return flushed(a.stdout, write)
			}
			beside = io.Discard
			return writeWhole(output, write)
		},
	}
	l.flags(c)
	c.Flags().VarP((*nonEmpty)(&output), "output", "o", "`file` to write (default standard output)")
	return c
}

func (a *app) export(ctx context.Context, client *carillon.Client, l listFlags, w *bufio.Writer, beside io.Writer) error {
	total := int64(-1)
	if l == (listFlags{}) && isTerminal(a.stderr) {
		if s, err := client.Status(ctx); err == nil { // only the end of the progress bar depends on it
			total = int64(jobsIn(&s, ""))
		}
	}
	bar := a.newOutputProgress("export", total, "jobs", beside)
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

// appendExport appends a job's line. A JSON payload that holds line breaks is given as text or, if that would be too long for a
// request because of its escapes, as base64: the bytes delivered stay the same.
func appendExport(dst []byte, r *carillon.JobReply) []byte {
	spec := r.Spec
	if spec.Form == carillon.PayloadJSON && bytes.ContainsAny(spec.Payload, "\r\n") {
		spec.Form = carillon.PayloadText
	}
	dst = fmt.Appendf(dst, `{"id":"%s","spec":`, r.ID) // an id holds nothing that JSON escapes
	from := len(dst)
	dst = spec.AppendJSON(dst)
	if spec.Form == carillon.PayloadText && len(dst)-from > base64.StdEncoding.EncodedLen(carillon.MaxPayload) {
		spec.Form = carillon.PayloadBase64
		dst = spec.AppendJSON(dst[:from])
	}
	return fmt.Appendf(dst, `,"status":"%s"}`, r.Status)
}
