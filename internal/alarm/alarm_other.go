//go:build !linux

package alarm

import "time"

// timer is one of Go's own timers.
type timer struct{ t *time.Timer }

func newTimer(ring func()) (timer, error) { return timer{time.AfterFunc(time.Hour, ring)}, nil }

func (t timer) set(d time.Duration) error {
	t.t.Reset(d)
	return nil
}

func (t timer) close() { t.t.Stop() }
