package node

import (
	"fmt"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon"
)

// congestion bounds how many requests may be in progress when a command is taken: maxCalls, or fewer while commands are answered
// slowly, as on a machine that is busy with other programs. There, 8,192 commands would take ten seconds each. Clients would give up before
// that, and ask again. So the engine would mostly carry out commands for which nobody waits any more, and ticks would wait in the log
// behind these.
//
// An interval lasts congestionInterval at least, from one answer to another. If two intervals in a row end with an answer that took more
// than slowAnswer, the bound becomes the number of commands that are answered in a second, but at least leastCalls. When answers are quick
// again, it doubles with each interval. A stall alone does not lower the bound: once it is over, all that waited is answered within one
// interval.
type congestion struct {
	mu       sync.Mutex
	limit    int       // 0 for maxCalls
	slow     bool      // at the end of the interval before
	from     time.Time // the present interval's first answer; zero before that
	answered int       // since then
	noted    time.Time // the latest answer
}

const (
	congestionInterval = 500 * time.Millisecond
	congestionOver     = 10 * time.Second // without an answer: the bound is dropped, because no command is waiting any more
	slowAnswer         = 2 * time.Second
	leastCalls         = 256
)

// note takes the outcome of a command that was to go into the log, and how long it took. If the outcome is unknown, only the time counts. A
// command for which the log had no room does not count.
func (c *congestion) note(now time.Time, took time.Duration, err *carillon.Error) {
	if err != nil && err.Code == carillon.CodeLimitExceeded {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noted = now
	if c.from.IsZero() {
		c.from = now
	}
	if err == nil || err.Code != carillon.CodeUnavailable {
		c.answered++
	}
	look := now.Sub(c.from)
	if look < congestionInterval {
		return
	}
	slow := took > slowAnswer
	switch {
	case slow && c.slow:
		c.limit = max(int(float64(c.answered)/look.Seconds()), leastCalls)
	case took < slowAnswer/2:
		c.limit *= 2
	}
	if c.limit >= maxCalls {
		c.limit = 0
	}
	c.slow, c.from, c.answered = slow, time.Time{}, 0
}

// admits refuses a command if calls, the number of requests in progress with this one, is beyond the bound.
func (c *congestion) admits(now time.Time, calls int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.limit > 0 && now.Sub(c.noted) > congestionOver {
		c.limit, c.slow, c.from, c.answered = 0, false, time.Time{}, 0
	}
	if c.limit == 0 || calls <= int64(c.limit) {
		return nil
	}
	return &carillon.Error{
		Code: carillon.CodeLimitExceeded, Message: fmt.Sprintf("more than %d requests are in progress, and answers take over %s", c.limit, slowAnswer),
	}
}
