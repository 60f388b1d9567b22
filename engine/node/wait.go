package node

import (
	"context"
	"time"
)

// Sleeping until a time, and waking another goroutine.

// sleep waits for d. It returns false, at once, when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool { return sleepUnless(ctx, d, nil) }

// sleepUnless waits for d, or until woken is notified. It returns false, at once, when ctx ends first.
func sleepUnless(ctx context.Context, d time.Duration, woken <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-woken:
	case <-t.C:
	}
	return true
}

// notify wakes the goroutine that waits on a channel, which must have room for one element. If one is there already, it does nothing.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
