package node

import (
	"context"
	"errors"
	"time"

	"github.com/carillon-scheduler/carillon/engine/streams"
)

const (
	overdueAsk  = 50 * time.Millisecond // between two questions
	overdueMost = 2 * time.Second       // without any answer
	// noneFor is for how long the stream may say, again and again and quickly, that it has none of what is under way. A
	// message takes the same way as the question behind it: a new leader says what its stream holds a moment before it takes
	// messages, and what comes in that moment is lost without a word.
	noneFor     = 500 * time.Millisecond
	allFor      = 150 * time.Millisecond // the same of all that is under way: their answers left before those words, and were lost
	quickAnswer = 100 * time.Millisecond
)

var (
	errNoAnswer = errors.New("node: the output stream answers, but for the messages to it")
	errElected  = errors.New("node: the output stream has had an election since its chain was resumed")
)

// overdue knows of the answers to a chain's messages that are late, and how long to wait for them.
//
// Over a network that loses packets an answer may take seconds, and resuming a chain takes several, one behind the other:
// who gives a chain up whenever an answer is late hardly ever has one. So the chain goes on, and the stream is asked beside
// it. It is given up where the stream has had an election since it was resumed, as the leader that was to answer is gone, be
// it that it leads once more; where the stream says that it has none of the messages, or all: they were lost, or their answers;
// or where it answers and no message is answered for long.
type overdue struct {
	upTo  uint64    // the newest message under way when the latest word was that one is late; 0: none is
	heard uint64    // up to where messages were answered at the latest look
	since time.Time // since when no more were
	none  time.Time // since when the stream says quickly that it has no more than that
	all   time.Time // since when it says quickly that it has all of them
}

// tell notes that one of the messages under way is not answered as soon as it should be. upTo is the newest of them.
func (o *overdue) tell(upTo uint64) { o.upTo = max(o.upTo, upTo) }

// verdict is what is to be done about answers that are late.
type verdict int

const (
	waitOn verdict = iota
	goOn           // all have come
	giveUp
)

// lookedAt is what the stream said when it was asked beside its messages.
type lookedAt struct {
	last       uint64        // sequence that it has
	sameLeader bool          // who has led since the chain was resumed
	took       time.Duration // to say so
}

// judge says what to do at now, when messages are answered up to a sequence.
func (o *overdue) judge(stored uint64, l lookedAt, now time.Time) verdict {
	if stored >= o.upTo {
		return goOn
	}
	if o.since.IsZero() || stored > o.heard {
		o.heard, o.since, o.none, o.all = stored, now, time.Time{}, time.Time{}
	}
	quick := l.took <= quickAnswer
	noted(&o.none, quick && l.last <= stored, now)
	noted(&o.all, quick && l.last >= o.upTo, now)
	if !l.sameLeader || now.Sub(o.since) > overdueMost || longer(o.none, noneFor, now) || longer(o.all, allFor, now) {
		return giveUp
	}
	return waitOn
}

// noted keeps since when something is so; zero: it is not.
func noted(since *time.Time, is bool, now time.Time) {
	switch {
	case !is:
		*since = time.Time{}
	case since.IsZero():
		*since = now
	}
}

func longer(since time.Time, than time.Duration, now time.Time) bool {
	return !since.IsZero() && now.Sub(since) > than
}

// awaitAnswers waits for answers that are late, and resumes the chain where they do not come.
func (n *Node) awaitAnswers(ctx context.Context, p *partition) {
	for {
		asked := time.Now()
		info, err := n.streams.Out[p.number].Info(ctx)
		switch n.judgeAnswers(p, info, time.Since(asked), err) {
		case goOn:
			return
		case giveUp:
			n.resync(ctx, p)
			return
		}
		if !pause(ctx, overdueAsk) {
			return
		}
	}
}

// judgeAnswers looks whether answers have come, after the stream was asked.
func (n *Node) judgeAnswers(p *partition, info streams.Info, took time.Duration, err error) verdict {
	p.out.Lock()
	defer p.out.Unlock()
	if p.chain.Lost() {
		return giveUp
	}
	if err != nil {
		p.overdue.none, p.overdue.all = time.Time{}, time.Time{}
		return waitOn // it says nothing of its messages either: these fail in time
	}
	same := info.Leader.Same(p.leader)
	v := p.overdue.judge(p.chain.Stored().Seq, lookedAt{info.Last, same, took}, time.Now())
	switch {
	case v == goOn:
		p.overdue, p.resyncing = overdue{}, false
	case v == giveUp && same:
		n.lose(p, errNoAnswer)
	case v == giveUp:
		n.lose(p, errElected)
	}
	return v
}
