//go:build !linux

package node

import "time"

// alarm wakes a goroutine at a time, or when it is rung.
type alarm struct {
	t    *time.Timer
	rang chan struct{}
}

func newAlarm() (alarm, error) {
	a := alarm{rang: make(chan struct{}, 1)}
	a.t = time.AfterFunc(time.Hour, a.ring)
	return a, nil
}

func (a alarm) set(d time.Duration) error {
	a.t.Reset(max(d, 1))
	return nil
}

func (a alarm) ring() { ring(a.rang) }

func (a alarm) close() { a.t.Stop() }
