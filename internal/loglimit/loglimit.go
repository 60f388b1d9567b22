// Package loglimit bounds how often a log reports a problem that happens again and again.
package loglimit

import (
	"sync"
	"time"
)

// Every is the period for which a bound holds.
const Every = 10 * time.Second

// Limiter bounds the log lines about one kind of problem. The zero value is ready to use. Any number of goroutines may use it.
type Limiter struct {
	mu         sync.Mutex
	since      time.Time
	written    int // lines written since then
	suppressed int // lines held back since the last one that was written
}

// Allow tells whether a line may be written: at most `most` of them in each period of Every. If so, held is how many lines were held
// back before it.
func (l *Limiter) Allow(most int, now time.Time) (held int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() || now.Sub(l.since) >= Every {
		l.since, l.written = now, 0
	}
	if l.written == most {
		l.suppressed++
		return 0, false
	}
	held, l.suppressed = l.suppressed, 0
	l.written++
	return held, true
}
