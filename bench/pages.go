package bench

import (
	"context"
	"time"
)

// pages are memory that is given back to the system right before a measurement, which then finds it there.
//
// The host of a virtual machine takes back the machine's free memory after a second or so, and provides it again page by
// page when it is used. On such a machine the first write to a page took 9 µs instead of 1, which came to 2 of the 11 µs of
// a trigger, for what a million triggers write to files and memory. A ceiling that is measured a second time does not pay
// that: it writes to pages that it had before.
type pages struct{ held []byte }

const (
	pagesPerMessage = 2 << 10 // bytes: what a trigger takes in a stream, and in the memory of an engine
	pagesMost       = 4 << 30
	pagesBefore     = 250 * time.Millisecond // giving them back is work, too
)

// holdFor takes as much memory as a number of messages needs, but at most a quarter of the machine's.
func holdFor(messages int) (*pages, error) {
	return hold(min(messages*pagesPerMessage, pagesMost, memoryMiB()<<20/4))
}

// recycle takes the pages for a number of messages and gives them back, for what is measured next.
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
