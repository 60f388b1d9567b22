package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"

	"github.com/spf13/cobra"

	"github.com/carillon-scheduler/carillon"
)

func newJobImportCommand(a *app) *cobra.Command {
	im := importer{under: make(map[int]inputLine)}
	c := &cobra.Command{
		Use:   "import [FILE]",
		Short: "Put many jobs from NDJSON",
		Long: `Put many jobs from a file or standard input, one JSON object a line, many at a time:

  {"id":"invoice-7","spec":{"schedule":"@daily"},"status":"paused"}
  {"id":"invoice-8","schedule":"@daily"}

The first form is what 'carillon job export' writes. A job whose status is paused is paused here, too,
without a fire in between; one that is completed is left out, since putting it would fire it again.
Where an id stands on several lines, they take effect in their order.

Repeated, an import leaves alone what is there and has fires left. A job that has completed meanwhile gets a
new version, and so an @in fires again, and one with max_fires as often as before; other one-shots do once
they are not kept any more. An import that ends early names the line to go on from.`,
		Example: `  carillon job import jobs.ndjson
  carillon job import jobs.ndjson --from 120001 --keep-going
  carillon -s old job export | carillon -s new job import`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if im.from < 1 {
				return usagef("--from is %d; lines are counted from 1", im.from)
			}
			input, size := a.stdin, int64(-1)
			if len(args) == 1 && args[0] != "-" {
				f, err := openInput(c.Context(), args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
					size = info.Size()
				}
				input = f
			}
			nc, client, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			defer nc.Close()
			im.app, im.client = a, client
			return im.run(c.Context(), input, size)
		},
	}
	f := c.Flags()
	f.IntVar(&im.from, "from", 1, "first `line` to read")
	f.BoolVar(&im.keepGoing, "keep-going", false, "report the lines that are refused and go on with the others")
	return c
}

// importer puts the jobs of one input.
type importer struct {
	from      int
	keepGoing bool

	app      *app
	client   *carillon.Client
	progress *progress

	mu       sync.Mutex
	result   importResult
	next     int               // the first line that was not handed over to the client
	under    map[int]inputLine // lines that were handed over and have no outcome yet, by place
	first    error             // the error of the lowest line that failed
	firstAt  int               // the number of that line; 0: none
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
	size   int
	text   []byte
	err    error // why there is no text
}

func (im *importer) run(ctx context.Context, input io.Reader, size int64) error {
	im.progress = im.app.newProgress("import", size, true)
	im.next = im.from
	stopped, stop := context.WithCancel(ctx) // after stop no more lines are begun; those under way are finished
	defer stop()
	lines := make(chan inputLine)
	read := make(chan error, 1)
	go func() {
		read <- im.read(stopped, input, lines)
		close(lines)
	}()
	sendErr := im.client.Import(ctx, im.jobs(stopped, lines, stop), func(i int, err error) {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return // the outcome is unknown: the line stays under way
		}
		im.mu.Lock()
		l := im.under[i]
		delete(im.under, i)
		im.mu.Unlock()
		im.done(l, err, stop)
	})
	stop()
	var readErr error
	select {
	case readErr = <-read:
	default: // read waits for a line that may never come, and hands out no more lines
	}
	next := im.next
	for _, l := range im.under { // handed over, but without an outcome when ctx ended
		next = min(next, l.number)
	}
	im.result.Elapsed = im.progress.end().Seconds()
	if im.writeErr != nil {
		return im.writeErr
	}
	if err := im.summary(); err != nil {
		return err
	}
	switch {
	case im.firstAt > next && !im.keepGoing: // it was refused while earlier lines still waited for their request to be filled
		return fmt.Errorf("line %d: %w; interrupted; go on with --from %d", im.firstAt, im.first, next)
	case im.firstAt > 0 && !im.keepGoing:
		return fmt.Errorf("line %d: %w; all lines before it are in, go on with --from %d", im.firstAt, im.first, im.firstAt)
	case readErr != nil:
		return readErr
	case ctx.Err() != nil: // refused lines have been reported already
		return fmt.Errorf("interrupted; go on with --from %d", next)
	case im.firstAt > 0:
		return fmt.Errorf("%s failed", count(im.result.Failed, "line"))
	}
	return sendErr
}

// jobs parses the lines until they or ctx end, and yields their jobs. A line that cannot be parsed is done, with its error.
func (im *importer) jobs(ctx context.Context, lines <-chan inputLine, stop func()) iter.Seq[carillon.ImportJob] {
	return func(yield func(carillon.ImportJob) bool) {
		i := 0
		for {
			var l inputLine
			var ok bool
			select {
			case l, ok = <-lines:
			case <-ctx.Done():
			}
			if !ok {
				return
			}
			im.next = l.number + 1
			line, err := carillon.ParseImport(l.text)
			err = cmp.Or(l.err, err)
			if err == nil && line.Status == carillon.StatusCompleted && line.State == nil {
				err = errCompleted
			}
			if err != nil {
				im.done(l, err, stop)
				continue
			}
			im.mu.Lock()
			im.under[i] = inputLine{number: l.number, size: l.size}
			im.mu.Unlock()
			i++
			if !yield(line.ImportJob) {
				return
			}
		}
	}
}

// read hands out lines until the input or ctx ends.
func (im *importer) read(ctx context.Context, input io.Reader, lines chan<- inputLine) error {
	s := newLineScanner(plainText(input))
	number := 0
	for ctx.Err() == nil && s.next() {
		number++
		l := inputLine{number: number, size: s.cut + len(s.Bytes()) + 1}
		switch {
		case number < im.from || l.size == 1:
			im.progress.skip(l.size)
			continue
		case s.cut > 0:
			l.err = &carillon.Error{Code: carillon.CodePayloadTooLarge, Message: fmt.Sprintf("is longer than %d bytes", maxLine)}
		default:
			l.text = slices.Clone(s.Bytes())
		}
		select {
		case lines <- l:
		case <-ctx.Done():
			return nil
		}
	}
	if s.Err() != nil {
		return fmt.Errorf("line %d: %w", number+1, s.Err())
	}
	return nil
}

// lineScanner reads lines. Of a line longer than maxLine it keeps only the end: such a line is refused, but reading goes on after it.
type lineScanner struct {
	*bufio.Scanner
	cut int // bytes of this line that were dropped
}

// next reads a line. What stands before an error of the input is only part of one.
func (l *lineScanner) next() bool {
	l.cut = 0
	return l.Scan() && l.Err() == nil
}

func newLineScanner(r io.Reader) *lineScanner {
	l := &lineScanner{Scanner: bufio.NewScanner(r)}
	l.Buffer(make([]byte, 64<<10), maxLine)
	l.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		advance, line, err := bufio.ScanLines(data, atEOF)
		switch {
		case advance == 0 && len(data) == maxLine:
			l.cut += len(data)
			return len(data), nil, nil
		case atEOF && len(data) == 0 && l.cut > 0:
			return 0, []byte{}, nil
		}
		return advance, line, err
	})
	return l
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
			_, err := fmt.Fprintf(im.app.stderr, "carillon: line %d: %s\n", l.number, oneLine(err))
			return err
		}))
	}
	im.progress.step(l.size)
}

func (im *importer) summary() error {
	r := im.result
	if im.app.json {
		return im.app.marshal(r)
	}
	s := fmt.Sprintf("%s imported in %.1f s (%.0f/s)", count(r.Imported, "job"), r.Elapsed, float64(r.Imported)/max(r.Elapsed, 1e-3))
	if r.Completed > 0 {
		s += fmt.Sprintf(", %d completed ones left out", r.Completed)
	}
	if r.Failed > 0 {
		s += fmt.Sprintf(", %d failed", r.Failed)
	}
	return im.app.line("%s", s)
}
