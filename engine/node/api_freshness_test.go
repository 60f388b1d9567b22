package node

import (
	"testing"
	"time"
)

func TestFreshness(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	p := freshness{last: start}
	is := func(ms int, want bool) {
		t.Helper()
		if p.fresh(at(ms)) != want {
			t.Errorf("at %d ms: fresh is %v", ms, !want)
		}
	}
	is(100, true)
	p.answered(at(100), at(101))
	is(600, true)
	is(602, false) // frozen since, or cut off
	p.answered(at(200), at(3000))
	is(3001, false) // it woke up, but this answer is old
	p.answered(at(3000), at(3002))
	is(3010, false) // requests from before may still wait
	is(3203, true)
	p.answered(at(4000), at(4001)) // frozen again, and this answer came before fresh was called
	is(4002, false)
	is(4202, true)
	p.answered(at(4100), at(4202))
	p.answered(at(4202), at(4203))
	is(4204, true) // as ever
}
