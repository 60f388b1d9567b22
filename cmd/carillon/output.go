package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/carillon-scheduler/carillon"
)

// line writes one line of a result.
func (a *app) line(format string, args ...any) error {
	_, err := fmt.Fprintf(a.stdout, format+"\n", args...)
	return err
}

// raw writes finished JSON, without compacting it: payloads stay byte for byte.
func (a *app) raw(b []byte) error {
	_, err := a.stdout.Write(append(b, '\n'))
	return err
}

// marshal writes v as one line of JSON.
func (a *app) marshal(v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := a.stdout.Write(b.Bytes())
	return err
}

// table returns a writer that aligns columns, which are separated by tabs. The rows are written when it is flushed.
func (a *app) table() *tabwriter.Writer { return tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0) }

// catchBrokenPipes makes writes to a pipe that nobody reads any more fail, as on a full disk; by default they end the process. Unlike an
// ignored signal, this is not inherited by commands that the process starts.
func catchBrokenPipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// isTerminal tells whether a person sits at the other end of a stream.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// formatTime returns a time in the form of replies, or a dash for none.
func formatTime(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(carillon.TimeFormat)
}

// orDash fills a table's empty cell.
func orDash(s string) string { return cmp.Or(s, "-") }

// excerpt returns the beginning of any bytes as text that is safe on a terminal.
func excerpt(b []byte, most int) string {
	end := ""
	if len(b) > most {
		for most > 0 && !utf8.RuneStart(b[most]) {
			most--
		}
		b, end = b[:most], "…"
	}
	s := string(b)
	if !utf8.ValidString(s) {
		return strconv.Quote(s) + end
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return strconv.Quote(s) + end
		}
	}
	return s + end
}

// printable returns text that is safe on a terminal: everything that does not print is escaped.
func printable(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// count formats a number of something: 1 job, 2 jobs.
func count[N int | uint64 | int64](n N, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// milliseconds formats a duration for people: 0.71 ms.
func milliseconds(d time.Duration) string {
	return strconv.FormatFloat(float64(d.Microseconds())/1000, 'f', 2, 64) + " ms"
}
