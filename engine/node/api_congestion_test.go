package node

import (
	"errors"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon"
)

// How many commands are admitted depends on how quickly they are answered.
func TestCongestion(t *testing.T) {
	now := time.Unix(0, 0)
	var c congestion
	answer := func(each time.Duration, count int, took time.Duration, err *carillon.Error) {
		for range count {
			now = now.Add(each)
			c.note(now, took, err)
		}
	}
	takes := func(what string, most int64) {
		t.Helper()
		if err := c.admits(now, most); err != nil {
			t.Errorf("%s: the %dth is refused: %v", what, most, err)
		}
		err := c.admits(now, most+1)
		if most < maxCalls && !errors.Is(err, &carillon.Error{Code: carillon.CodeLimitExceeded}) {
			t.Errorf("%s: one more than %d is taken: %v", what, most, err)
		}
	}
	takes("at first", maxCalls)
	answer(time.Millisecond, 5000, time.Second, nil)
	takes("answers within a second", maxCalls)
	answer(time.Millisecond, 501, 3*time.Second, nil)
	takes("for half a second, each after three", maxCalls)
	answer(time.Millisecond, 501, 3*time.Second, nil)
	takes("a thousand answers a second, each after three", 1002)
	answer(time.Millisecond, 501, 1500*time.Millisecond, nil)
	takes("they take a second and a half", 1002)
	answer(time.Millisecond, 501, 900*time.Millisecond, nil)
	takes("they take less", 2004)
	answer(time.Millisecond, 3*501, 10*time.Millisecond, nil)
	takes("they are quick again", maxCalls)
	answer(10*time.Millisecond, 200, 5*time.Second, nil)
	takes("a hundred a second", leastCalls)
	answer(time.Millisecond, 10*501, 10*time.Millisecond, nil)
	takes("quick again", maxCalls)
	for range 70 { // the bound would have doubled out of its type
		answer(time.Millisecond, 501, 10*time.Millisecond, nil)
		takes("and for long", maxCalls)
	}
	answer(time.Millisecond, 2*501, 3*time.Second, &carillon.Error{Code: carillon.CodeVersionConflict})
	takes("a thousand refusals a second", 1002)
	answer(time.Millisecond, 4*501, 10*time.Millisecond, nil)
	answer(time.Millisecond, 501, 3*time.Second, nil)
	answer(time.Millisecond, 501, time.Second, nil)
	takes("slow for half a second only", maxCalls)
	answer(time.Millisecond, 1000, 5*time.Second, &carillon.Error{Code: carillon.CodeUnavailable})
	takes("none has an outcome in time", leastCalls)
	answer(time.Millisecond, 10*501, 10*time.Millisecond, nil)

	answer(time.Millisecond, 1000, 3*time.Second, &carillon.Error{Code: carillon.CodeLimitExceeded})
	takes("the log had no room", maxCalls)

	answer(10*time.Millisecond, 200, 5*time.Second, nil)
	takes("slow again", leastCalls)
	now = now.Add(congestionOver + time.Second)
	takes("nobody asked for ten seconds", maxCalls)

	// A stall of three seconds, at its end two thousand answers at once, and the next ones are quick.
	now = now.Add(3 * time.Second)
	answer(20*time.Microsecond, 2000, 3*time.Second, nil)
	answer(time.Millisecond, 1000, 10*time.Millisecond, nil)
	takes("after a stall", maxCalls)
}
