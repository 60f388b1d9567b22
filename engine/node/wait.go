package node

import (
	"context"
	"time"
)

// pause waits, and tells whether ctx still goes on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// ring wakes who waits on a channel with room for one word.
func ring(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
