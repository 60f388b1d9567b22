package node

import (
	"context"
	"errors"
	"time"

	"github.com/carillon-scheduler/carillon/engine/streams"
)

// Late answers of the output streams: how long a chain waits for them.

const (
	overdueAsk  = 50 * time.Millisecond // pause between two questions to the stream
	overdueMost = 2 * time.Second       // how long no more messages may be answered
	// noneFor is how long the stream may answer, each time quickly, that it has none of the messages in flight. The messages
	// went the same way ahead of the question, so they should be there. A new leader says what its stream holds a moment
	// before it accepts messages, and those that come in that moment are silently lost.
	noneFor     = 500 * time.Millisecond
	allFor      = 150 * time.Millisecond // the same for: it has all of them. Their answers left before this one, and were lost
	quickAnswer = 100 * time.Millisecond // an answer that took longer says nothing about lost messages
)

var (
	errNoAnswer = errors.New("node: the output stream answers, but for the messages to it")
	errElected  = errors.New("node: the output stream has had an election since its chain was resumed")
)

// overdue decides how long a chain waits for late answers to its messages.
//
// Over a network that loses packets an answer may take seconds, and resuming a chain takes several answers, one after the
// other. A chain that was given up at each late answer would be lost nearly all the time. So the chain goes on, and meanwhile
// the stream is asked what it has. The chain is given up in three cases:
//
//   - The stream has had an election since the chain was resumed. The leader that should have answered will not, even if it
//     leads again.
//   - The stream says for a while that it has none of the messages, or all of them: they were lost, or their answers were.
//   - The stream answers, but for a long time no message is answered.
//
// Messages are identified by the sequences that they should get.
type overdue struct {
	upTo  uint64    // the newest message in flight when one was last reported late; 0: none is late
	heard uint64    // up to where messages had been answered at the latest look
	since time.Time // since when no more have been answered
	none  time.Time // since when the stream has quickly answered that it has none beyond heard; zero: it does not
	all   time.Time // since when it has quickly answered that it has all up to upTo; zero: it does not
}

// tell notes that one of the messages in flight is late. upTo is the newest of them.
func (o *overdue) tell(upTo uint64) { o.upTo = max(o.upTo, upTo) }

// verdict is what to do about late answers.
type verdict int

const (
	waitOn verdict = iota
	goOn           // all have come
	giveUp         // the chain
)

// streamAnswer is the stream's answer to the question what it has.
type streamAnswer struct {
	last       uint64        // its last sequence
	sameLeader bool          // there was no election since the chain was resumed
	took       time.Duration // how long the answer took
}

// judge says what to do at now. stored is the sequence up to which messages have been answered.
func (o *overdue) judge(stored uint64, l streamAnswer, now time.Time) verdict {
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

// noted keeps in since when something began to be true; zero: it is not true.
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

// awaitAnswers waits for late answers. If they do not come, it resumes the chain.
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
		if !sleep(ctx, overdueAsk) {
			return
		}
	}
}

// judgeAnswers judges the late answers of a partition by what the stream said when it was asked (overdue.judge), and carries the verdict
// out, except that the caller must resume a chain that was given up.
func (n *Node) judgeAnswers(p *partition, info streams.Info, took time.Duration, err error) verdict {
	p.out.Lock()
	defer p.out.Unlock()
	if p.chain.Lost() {
		return giveUp
	}
	if err != nil {
		p.overdue.none, p.overdue.all = time.Time{}, time.Time{}
		return waitOn // the stream answers nothing at all, and the messages will time out
	}
	same := info.Leader.Same(p.leader)
	v := p.overdue.judge(p.chain.Stored().Seq, streamAnswer{info.Last, same, took}, time.Now())
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
