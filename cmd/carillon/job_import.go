package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
)

// maxLine is the longest line or file that is read as a job: a payload of text in which each byte is
// escaped (six for one), and room for the rest.
const maxLine = 6*carillon.MaxPayload + 1<<20

func newJobImportCommand(a *app) *cobra.Command {
	var im importer
	c := &cobra.Command{
		Use:   "import [FILE]",
		Short: "Put many jobs from NDJSON",
		Long: `Put many jobs from a file or standard input, one JSON object a line, many at a time:

  {"id":"invoice-7","spec":{"schedule":"@daily"},"status":"paused"}
  {"id":"invoice-8","schedule":"@daily"}

The first form is what 'carillon job export' writes. A job whose status is paused is paused here, too,
without a fire in between; one that is completed is left out, since putting it would fire it again.

An import may be repeated as a whole: what is there already stays as it is. One that ends early names
the line to go on from.`,
		Example: `  carillon job import jobs.ndjson
  carillon job import jobs.ndjson --from 120001 --keep-going
  carillon -s old job export | carillon -s new job import`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if im.window < 1 || im.window > 100_000 {
				return usagef("--window is %d; expected 1 to 100000", im.window)
			}
			input, size := a.stdin, int64(-1)
			if len(args) == 1 && args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
					size = info.Size()
				}
				input = f
			}
			nc, client, err := a.connect()
			if err != nil {
				return err
			}
			defer nc.Close()
			im.app, im.client = a, client
			return im.run(c.Context(), input, size)
		},
	}
	f := c.Flags()
	f.IntVar(&im.window, "window", 256, "how `many` jobs are under way at once")
	f.IntVar(&im.from, "from", 1, "first `line` to read")
	f.BoolVar(&im.keepGoing, "keep-going", false, "report the lines that are refused and go on with the others")
	return c
}

// importer puts the jobs of one input.
type importer struct {
	window, from int
	keepGoing    bool

	app      *app
	client   *carillon.Client
	progress *progress

	mu       sync.Mutex
	result   importResult
	first    error // of the lowest line that failed
	firstAt  int   // that line; 0: none
	writeErr error
}

// importResult is the outcome as JSON.
type importResult struct {
	Imported  int     `json:"imported"`
	Completed int     `json:"completed_left_out"`
	Failed    int     `json:"failed"`
	Elapsed   float64 `json:"elapsed_s"`
}

// inputLine is one line with its number.
type inputLine struct {
	number int
	text   []byte
}

func (im *importer) run(ctx context.Context, input io.Reader, size int64) error {
	im.progress = im.app.newProgress("import", size, true)
	stopped, stop := context.WithCancel(ctx) // no more lines are begun; those under way are finished
	defer stop()
	lines := make(chan inputLine)
	var workers sync.WaitGroup
	for range im.window {
		workers.Go(func() {
			for l := range lines {
				im.done(l, im.put(ctx, l.text), stop)
			}
		})
	}
	next, readErr := im.read(stopped, input, lines)
	close(lines)
	workers.Wait()
	elapsed, err := im.progress.end()
	im.result.Elapsed = elapsed.Seconds()
	if err = errors.Join(err, im.writeErr); err != nil {
		return err
	}
	if err := im.summary(); err != nil {
		return err
	}
	switch {
	case readErr != nil:
		return readErr
	case im.firstAt > 0 && im.keepGoing && ctx.Err() == nil:
		return fmt.Errorf("%d lines failed", im.result.Failed)
	case im.firstAt > 0:
		return fmt.Errorf("line %d: %w; all lines before it are in, go on with --from %d", im.firstAt, im.first, im.firstAt)
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted; go on with --from %d", next)
	}
	return nil
}

// read hands out lines until the input or ctx ends, and returns the number of the first that was not.
func (im *importer) read(ctx context.Context, input io.Reader, lines chan<- inputLine) (next int, err error) {
	s := bufio.NewScanner(input)
	s.Buffer(make([]byte, 64<<10), maxLine)
	number := 0
	for s.Scan() {
		number++
		text := s.Bytes()
		if number < im.from || len(text) == 0 {
			if err := im.progress.skip(len(text) + 1); err != nil {
				return number, err
			}
			continue
		}
		select {
		case lines <- inputLine{number, slices.Clone(text)}:
		case <-ctx.Done():
			return number, nil
		}
	}
	if errors.Is(s.Err(), bufio.ErrTooLong) {
		return number + 1, fmt.Errorf("line %d: %w", number+1, &carillon.Error{
			Code: carillon.CodePayloadTooLarge, Message: fmt.Sprintf("is longer than %d bytes", maxLine),
		})
	}
	if s.Err() != nil {
		return number + 1, fmt.Errorf("line %d: %w", number+1, s.Err())
	}
	return number + 1, nil
}

// errCompleted marks a job that is left out because it has no fire left.
var errCompleted = errors.New("completed")

// done counts one line.
func (im *importer) done(l inputLine, err error, stop func()) {
	im.mu.Lock()
	defer im.mu.Unlock()
	switch {
	case err == nil:
		im.result.Imported++
	case errors.Is(err, errCompleted):
		im.result.Completed++
	default:
		im.result.Failed++
		if im.firstAt == 0 || l.number < im.firstAt {
			im.first, im.firstAt = err, l.number
		}
		if !im.keepGoing {
			stop()
			break
		}
		im.writeErr = cmp.Or(im.writeErr, im.progress.print(func() error {
			_, err := fmt.Fprintf(im.app.stderr, "carillon: line %d: %v\n", l.number, err)
			return err
		}))
	}
	im.writeErr = cmp.Or(im.writeErr, im.progress.step(len(l.text)+1))
}

// put puts the job of one line. The client makes up a Carillon-Request for each command, so that its own
// retries are harmless.
func (im *importer) put(ctx context.Context, line []byte) error {
	job, status, err := parseImport(line)
	if err != nil {
		return err
	}
	switch status {
	case carillon.StatusCompleted:
		return errCompleted
	case carillon.StatusPaused:
		return im.putPaused(ctx, job)
	}
	_, err = im.client.Put(ctx, job)
	return err
}

// putPaused leaves no moment in which the job could fire: a job without a schedule is made and paused
// before it gets its own, since a put leaves a paused job paused.
func (im *importer) putPaused(ctx context.Context, job carillon.Job) error {
	_, err := im.client.Put(ctx, carillon.Job{ID: job.ID}, carillon.IfVersion(0))
	if err != nil && !errors.Is(err, &carillon.Error{Code: carillon.CodeVersionConflict}) {
		return err
	}
	if _, err := im.client.Pause(ctx, job.ID); err != nil {
		return err
	}
	r, err := im.client.Put(ctx, job)
	if err == nil && r.Status == carillon.StatusScheduled { // the job had been completed, which no pause changes
		_, err = im.client.Pause(ctx, job.ID)
	}
	return err
}

// parseImport reads a line of either form. The fields of a reply that only a running job has are passed
// over, so that the output of 'job get --json' is a line, too.
func parseImport(line []byte) (job carillon.Job, status carillon.Status, err error) {
	var members map[string]json.RawMessage
	err = json.Unmarshal(line, &members)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return job, "", &carillon.Error{Code: carillon.CodeInvalidJSON, Message: fmt.Sprintf("%v, at byte %d", err, syntax.Offset)}
	}
	if err != nil || members["spec"] == nil {
		job, err = carillon.ParseLine(line)
		return job, "", err
	}
	var id string
	for _, m := range []struct {
		name  string
		value *string
	}{{"id", &id}, {"status", (*string)(&status)}} {
		if raw, ok := members[m.name]; ok && json.Unmarshal(raw, m.value) != nil {
			return job, "", &carillon.Error{Code: carillon.CodeInvalidField, Field: m.name, Message: "is " + excerpt(raw, 64) + "; expected a string"}
		}
	}
	var unknown []string
	for name := range members {
		if !slices.Contains(importFields, name) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return job, "", &carillon.Error{
			Code: carillon.CodeUnknownField, Field: excerpt([]byte(slices.Min(unknown)), 64),
			Message: `is no field beside "spec"; expected "id" and "status"`,
		}
	}
	if status != "" && !slices.Contains(importStatuses, status) {
		return job, "", &carillon.Error{
			Code: carillon.CodeInvalidField, Field: "status",
			Message: "is " + excerpt([]byte(status), 64) + "; expected scheduled, paused or completed",
		}
	}
	if err := carillon.CheckJobID(id); err != nil {
		return job, "", err
	}
	if job, err = carillon.ParseJob(members["spec"]); err != nil {
		return job, "", err
	}
	job.ID = id
	return job, status, nil
}

var (
	importFields = []string{
		"id", "spec", "status", "type", "version", "next", "last_scheduled", "fires", "skipped", "partition",
	}
	importStatuses = []carillon.Status{carillon.StatusScheduled, carillon.StatusPaused, carillon.StatusCompleted}
)

func (im *importer) summary() error {
	r := im.result
	if im.app.json {
		return im.app.marshal(r)
	}
	s := fmt.Sprintf("%d jobs imported in %.1f s (%.0f/s)", r.Imported, r.Elapsed, float64(r.Imported)/max(r.Elapsed, 1e-3))
	if r.Completed > 0 {
		s += fmt.Sprintf(", %d completed ones left out", r.Completed)
	}
	if r.Failed > 0 {
		s += fmt.Sprintf(", %d failed", r.Failed)
	}
	return im.app.line("%s", s)
}
