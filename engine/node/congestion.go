package node

import (
	"fmt"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon"
)

// congestion bounds how many requests may be in progress for one more command to be taken: maxCalls, or fewer while commands are answered
// slowly, as by a machine that is busy with other work. 8,192 of them would take ten seconds each there. Who asked gives up and asks again
// before that, so the engine would hardly do anything but what nobody waits for any more, and each tick would wait in the log behind it.
//
// Where two looks in a row end with an answer that took more than slowAnswer, no more are taken than are answered in a second. When
// answers are quick again, it is twice as many with each look. What waited for a stall is answered quickly at its end, and is no reason.
type congestion struct {
	mu       sync.Mutex
	most     int       // 0 for maxCalls
	slow     bool      // at the end of the look before
	from     time.Time // the present look's first answer; zero before that
	answered int       // since then
	noted    time.Time // the latest answer
}

const (
	congestionLook = 500 * time.Millisecond
	congestionOver = 10 * time.Second // without an answer: whoever comes then finds nobody before him
	slowAnswer     = 2 * time.Second
	leastCalls     = 256
)

// note is told of each command that went to the log, what became of it, and how long that took. One whose outcome is unknown counts
// for its time alone; one for which the log had no room says nothing.
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
	if look < congestionLook {
		return
	}
	slow := took > slowAnswer
	switch {
	case slow && c.slow:
		c.most = max(int(float64(c.answered)/look.Seconds()), leastCalls)
	case took < slowAnswer/2:
		c.most *= 2
	}
	if c.most >= maxCalls {
		c.most = 0
	}
	c.slow, c.from, c.answered = slow, time.Time{}, 0
}

// admits refuses a command where the requests in progress, itself included, are too many.
func (c *congestion) admits(now time.Time, calls int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most > 0 && now.Sub(c.noted) > congestionOver {
		c.most, c.slow, c.from, c.answered = 0, false, time.Time{}, 0
	}
	if c.most == 0 || calls <= int64(c.most) {
		return nil
	}
	return &carillon.Error{
		Code: carillon.CodeLimitExceeded, Message: fmt.Sprintf("more than %d requests are in progress, and answers take over %s", c.most, slowAnswer),
	}
}
