package node

import (
	"testing"
	"time"
)

// Each answer bounds the offset of the stream's clock. The lower bound of the quickest answer is taken, until the clocks have
// drifted too far or one of them is set.
func TestClock(t *testing.T) {
	var c clock
	c.begin(true)
	start := c.began
	const ms = int64(time.Millisecond)
	// answer measures an answer, all in ms: the question was sent at at, the answer took took, and halfway it was stamped by
	// a server whose clock is ahead by offset.
	answer := func(at, took, offset int64) {
		sent := start.Add(time.Duration(at * ms))
		c.measured(sent, sent.Add(time.Duration(took*ms)), time.Unix(0, c.own(sent)+(took/2+offset)*ms))
	}
	is := func(what string, want int64) {
		t.Helper()
		if got := c.offset.Load(); got > want*ms || got < want*ms-ms/4 { // less what the clocks may have drifted
			t.Errorf("%s: the offset is %d ns, want %d ms", what, got, want)
		}
	}
	c.measured(start, start, time.Time{})
	is("an answer that was not stamped", 0)
	answer(0, 10, 7200_000)
	is("the first answer", 7200_000-5)
	answer(100, 40, 7200_000)
	is("a slow answer tells less", 7200_000-5)
	answer(200, 2, 7200_000)
	is("a quick one tells more", 7200_000-1)
	answer(1200, 400, 7200_000)
	is("a very slow one is no reason to be late", 7200_000-1)
	answer(2000, 2, -3600_000)
	is("a clock was set back", -3600_000-1)
	answer(3000, 2, 60)
	is("and forth", 59)
	c = clock{}
	c.begin(false)
	answer(0, 2, 1000)
	is("the embedded server's clock is ours", 0)
}

// A jump is told once, with how far it went; what the clock begins with is none, and nor is a small one.
func TestClockJumps(t *testing.T) {
	for external, room := range map[bool]time.Duration{true: 0, false: time.Minute} { // between two readings of this machine's clock
		var c clock
		c.begin(external)
		if c.offset.Store(int64(5 * time.Hour)); c.jumped() != 0 {
			t.Errorf("external %t: the clock is told to have jumped as it began", external)
		}
		for _, step := range []struct{ by, told time.Duration }{
			{jumpLeast - 1, 0}, {2 * time.Hour, 2 * time.Hour}, {0, 0}, {-3 * time.Hour, -3 * time.Hour}, {0, 0},
		} {
			c.offset.Add(int64(step.by))
			c.start -= int64(step.by) // as if this machine's clock had been set
			if got := c.jumped(); (got - step.told).Abs() > room {
				t.Errorf("external %t: set by %s, told %s", external, step.by, got)
			}
		}
	}
}

// What a quick answer adds to the offset that a slow one told is no jump, and nor is what a slow one takes off.
func TestSlowAnswersAreNoJumps(t *testing.T) {
	var c clock
	c.begin(true)
	answer := func(took, offset time.Duration) {
		sent := time.Now()
		c.measured(sent, sent.Add(took), time.Unix(0, c.own(sent)+int64(offset))) // stamped at once, and then long on its way
	}
	for _, step := range []struct {
		what         string
		took, offset time.Duration
		told         time.Duration
	}{
		{"the first answer, a slow one", 3 * time.Second, time.Hour, 0},
		{"a quick one", 0, time.Hour, 0},
		{"the clock of another leader, by a slow one", 3 * time.Second, time.Hour - 10*time.Millisecond, 0},
		{"the same by a quick one", 0, time.Hour - 10*time.Millisecond, 0},
		{"a jump ahead", 0, 3 * time.Hour, 2 * time.Hour},
		{"a jump back, by a slow answer", 2 * time.Second, time.Hour, -2 * time.Hour},
		{"and by a quick one", 0, time.Hour, 0},
	} {
		answer(step.took, step.offset)
		room := 3 * time.Second
		if step.told == 0 {
			room = 0
		}
		if got := c.jumped(); (got - step.told).Abs() > room {
			t.Errorf("%s: told %s, want %s", step.what, got, step.told)
		}
	}
}
