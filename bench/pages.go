package bench

import (
	"context"
	"time"
)

// pages are memory that is given back to the system right before a measurement, which then finds it there.
//
// A virtual machine's host takes back what is free in it after a second or so, and finds it again page by page, when it is
// used: a page that is written for the first time took 9 µs instead of 1 on such a machine, and what a million triggers
// write to files and memory came to 2 µs of 11 each. A ceiling that is measured twice writes to pages that it had before.
type pages struct{ held []byte }

const (
	pagesPerMessage = 2 << 10 // bytes: what a trigger takes in a stream, and in the memory of an engine
	pagesMost       = 4 << 30
	pagesBefore     = 250 * time.Millisecond // giving them back is work, too
)

// holdFor takes as much as a number of messages needs, and no more than a quarter of the machine's.
func holdFor(messages int) (*pages, error) {
	return hold(min(messages*pagesPerMessage, pagesMost, memoryMiB()<<20/4))
}

// recycle gives the pages for a number of messages to what is measured next.
func recycle(ctx context.Context, messages int) error {
	p, err := holdFor(messages)
	if err == nil {
		err = p.giveBack()
	}
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pagesBefore):
		return nil
	}
}
