package servers

import "time"

// responsiveness judges a server by the times of its answers.
type responsiveness struct {
	usual     time.Duration // how long an answer usually takes
	lastGood  time.Time     // when the latest question was sent that was answered in time
	goodSince time.Time     // when the first such question was sent since the server was last silent
	lastSlow  time.Time     // when the server was last found slow
}

const (
	// LateAfter: an answer that takes no longer than this is in time, whatever is usual. It is longer than most stalls of a busy
	// machine.
	LateAfter = 80 * time.Millisecond
	// lateFactor: an answer is also in time if it takes no longer than so many times what is usual.
	lateFactor = 4
	// SilentAfter is how long, beyond what is usual, a server may give no answer in time before it counts as silent: two answers may be late.
	SilentAfter   = 250 * time.Millisecond
	doubtfulAfter = 150 * time.Millisecond
	// leaveAfter is how long a server on another machine may be silent, while the others answer, before a node leaves it. A server that
	// stalls for less is left alone, and at 0.8 s the node would count as dead.
	leaveAfter = 500 * time.Millisecond
	// slowFor is how long a server that was slow must answer in time before it no longer counts as slow: packets are lost at
	// random, and what moved back there would have to leave again. A node counts its own network as slow for longer, so that
	// nobody takes away again what it takes back.
	slowFor     = 3 * time.Second
	selfSlowFor = slowFor + time.Second
	goneAfter   = 30 * time.Second
	// stallMost is how long a node's own server may be silent before the node blames its network: a busy machine may just stall.
	stallMost = time.Second
	// settleFor is how long the others may take to answer, one after the other, once this node's network works again. One that has given no
	// answer in time since then is not judged for selfSlowFor: before its connection sends again, it may wait for as long as it was cut off.
	settleFor = time.Second
)

// answered notes the answer to a question. A quicker answer changes what is usual soon, a slower one only over a quarter of an hour.
func (p *responsiveness) answered(sent, now time.Time) {
	took := now.Sub(sent)
	switch {
	case p.usual == 0:
		p.usual = took
	case took < p.usual:
		p.usual += (took - p.usual) / 8
	default:
		p.usual += (took - p.usual) / 8192
	}
	if took <= max(LateAfter, lateFactor*p.usual) {
		if p.silent(sent) {
			p.goodSince = sent
		}
		p.lastGood = sent
	}
}

// quiet is for how long there has been no answer in time, beyond what is usual: each question waits for the answer to the one before it, and
// then takes as long.
func (p *responsiveness) quiet(now time.Time) time.Duration { return now.Sub(p.lastGood) - 2*p.usual }

func (p *responsiveness) silent(now time.Time) bool { return p.quiet(now) > SilentAfter }

// gone tells whether the server has been silent for so long that it is not slow, but dead.
func (p *responsiveness) gone(now time.Time) bool { return now.Sub(p.lastGood) > goneAfter }

// doubtful tells whether the server may soon count as silent.
func (p *responsiveness) doubtful(now time.Time) bool { return p.quiet(now) > doubtfulAfter }
