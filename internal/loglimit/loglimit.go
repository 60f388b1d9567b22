// Package loglimit bounds how often a log tells of what goes wrong again and again.
package loglimit

import (
	"sync"
	"time"
)

// Every is the time that a bound is for.
const Every = 10 * time.Second

// Lines are those about one kind of trouble. The zero value has said nothing yet. It may be used by many at once.
type Lines struct {
	mu    sync.Mutex
	since time.Time
	said  int // since then
	held  int // since the last that was said
}

// Say tells whether a line may be said, the first so many of ten seconds, and how many were held back before it.
func (l *Lines) Say(most int, now time.Time) (held int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() || now.Sub(l.since) >= Every {
		l.since, l.said = now, 0
	}
	if l.said == most {
		l.held++
		return 0, false
	}
	held, l.held = l.held, 0
	l.said++
	return held, true
}
