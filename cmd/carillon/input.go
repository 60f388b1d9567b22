package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"

	"github.com/carillon-scheduler/carillon"
)

// maxLine is the longest line or file that is read as a job, bytes: a payload of text in which each byte is
// escaped (six for one), and room for the rest.
const maxLine = 6*carillon.MaxPayload + 1<<20

// contextReader reads until ctx ends, because a terminal or a pipe may never provide more input. A read that is under way when ctx ends is
// left behind.
type contextReader struct {
	ctx context.Context
	io.Reader
}

func (u contextReader) Read(b []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	type part struct {
		bytes []byte
		err   error
	}
	read := make(chan part, 1)
	own := make([]byte, len(b)) // the caller may use b for something else while a read that was left behind goes on
	go func() {
		n, err := u.Reader.Read(own)
		read <- part{own[:n], err}
	}()
	select {
	case p := <-read:
		return copy(b, p.bytes), p.err
	case <-u.ctx.Done():
		return 0, context.Cause(u.ctx)
	}
}

// plainText removes the byte order mark that some editors put before a text. If the mark is UTF-16's, as PowerShell writes it, the text
// becomes UTF-8.
func plainText(r io.Reader) io.Reader {
	return transform.NewReader(r, unicode.BOMOverride(transform.Nop))
}

// readText is readInput for a text.
func readText(ctx context.Context, name string, stdin io.Reader) ([]byte, error) {
	b, err := readInput(ctx, name, stdin)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(plainText(bytes.NewReader(b)))
}

// openInput opens a file, unless ctx ends before: a named pipe is open only once somebody writes to it.
func openInput(ctx context.Context, name string) (f *os.File, err error) {
	opened := make(chan struct{})
	var there *os.File
	var failed error
	go func() {
		defer close(opened)
		there, failed = os.Open(name)
	}()
	select {
	case <-opened:
		return there, failed
	case <-ctx.Done():
		return nil, fmt.Errorf("open %s: %w", name, context.Cause(ctx))
	}
}

// readInput reads a file, or standard input for "-", until ctx ends, at most as much as a job can be long.
func readInput(ctx context.Context, name string, stdin io.Reader) ([]byte, error) {
	r := stdin
	if name != "-" {
		f, err := openInput(ctx, name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		r = f
	}
	b, err := io.ReadAll(io.LimitReader(contextReader{ctx, r}, maxLine+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if len(b) > maxLine {
		return nil, &carillon.Error{Code: carillon.CodePayloadTooLarge, Message: fmt.Sprintf("%s is longer than the %d bytes that any job can have", name, maxLine)}
	}
	return b, nil
}
