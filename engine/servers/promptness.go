package servers

import "time"

// promptness judges a server by when it answered.
type promptness struct {
	usual time.Duration // how long it takes
	quick time.Time     // when the latest question was sent that was answered in about as long
	since time.Time     // the first of those without silence between them
	slow  time.Time     // when it was found slow last
}

const (
	// AnswerLate is how long an answer may take and is not late: more than what the stalls of a busy machine take, mostly.
	AnswerLate = 80 * time.Millisecond
	// answerLater is how many times as long as usual it may.
	answerLater = 4
	// SilentAfter is how long there may be no answer in time: two of them may be late.
	SilentAfter   = 250 * time.Millisecond
	doubtfulAfter = 150 * time.Millisecond
	// slowFor is how long a server that was slow is to answer in time before it counts as well: packets are lost at
	// random, and what moves there would have to leave again. To itself a node is slow for longer, so that nobody takes
	// away again what it takes back.
	slowFor     = 3 * time.Second
	selfSlowFor = slowFor + time.Second
	goneAfter   = 30 * time.Second
	// stallMost is how long its own server may be silent before a node takes that for its network: a busy machine stalls.
	stallMost = time.Second
	// settleFor is how long others may need to answer, one after the other, once this node's network is well again.
	settleFor = time.Second
)

// came notes the answer to a question. What is quicker than usual is soon usual, what is slower after a quarter of an hour.
func (p *promptness) came(sent, now time.Time) {
	took := now.Sub(sent)
	switch {
	case p.usual == 0:
		p.usual = took
	case took < p.usual:
		p.usual += (took - p.usual) / 8
	default:
		p.usual += (took - p.usual) / 8192
	}
	if took <= max(AnswerLate, answerLater*p.usual) {
		if p.silent(sent) {
			p.since = sent
		}
		p.quick = sent
	}
}

func (p *promptness) silent(now time.Time) bool { return now.Sub(p.quick) > SilentAfter }

// gone tells whether it has been silent for so long that it is not slow, but dead.
func (p *promptness) gone(now time.Time) bool { return now.Sub(p.quick) > goneAfter }

// doubtful tells whether it may be about to be silent.
func (p *promptness) doubtful(now time.Time) bool { return now.Sub(p.quick) > doubtfulAfter }
