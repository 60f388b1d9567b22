package bench

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// soakBatch is the one-shots of a round and its jobs that are fired by command.
type soakBatch struct {
	round int
	// By one-shot, and by job fired by command: whether the service has it.
	put, putForced []atomic.Bool
	mu             sync.Mutex // guards the plans
	shots, forced  plan
	ops            []soakOp      // in order of time
	open           atomic.Int64  // commands not yet answered that matter for a plan
	judged         chan struct{} // closed when the batch's triggers have arrived, or are missing
	judgedAt       time.Time     // set once judged is closed
}

// newBatch plans a batch, and carries out nothing.
func (s *soak) newBatch(round int) *soakBatch {
	b := &soakBatch{round: round, judged: make(chan struct{})}
	group := func(name string, n int) plan {
		p := plan{
			Prefix: fmt.Sprintf("%s-%s%d-", s.run, name, round), From: s.at(round).UnixMilli(), To: s.at(round + 1).UnixMilli(),
			First: make([]int64, n), Every: make([]int64, n), Then: make([]int64, n), May: make([]int64, n),
		}
		for i := range n {
			p.First[i], p.Then[i], p.May[i] = int64(i)*s.Round.Milliseconds()/int64(n), -1, -1
		}
		return p
	}
	n := (s.Rate - s.Rate/2) * s.RoundSeconds
	b.shots, b.forced = group("shot", n), group("forced", max(n/soakForced, 1))
	b.put, b.putForced = make([]atomic.Bool, n), make([]atomic.Bool, len(b.forced.First))
	b.forced.Forced = true
	b.ops = s.ops(b)
	for _, op := range b.ops {
		b.open.Add(int64(bit(op.kind.planned())))
	}
	return b
}

// soakKind is what is done with a job of a batch.
type soakKind uint8

const (
	soakPut soakKind = iota
	soakDelete
	soakCancel
	soakMove
	soakReplace
	soakPauseOver // its due time
	soakPauseShortly
	soakPutForced
	soakForce
	soakDeleteForced
)

// planned tells whether a round can be judged only after this has been done.
func (k soakKind) planned() bool { return k != soakDelete && k != soakDeleteForced }

// soakOp is one command, or a pause and its resume.
type soakOp struct {
	at   int64 // unix ns
	job  int32
	kind soakKind
}

// soakChanges are what happens to each of sixteen one-shots shortly before it is due.
var soakChanges = [16]soakKind{1: soakCancel, 4: soakMove, 7: soakReplace, 10: soakPauseOver, 13: soakPauseShortly}

// ops returns everything that is done with a batch, in order of time.
func (s *soak) ops(b *soakBatch) (ops []soakOp) {
	add := func(at time.Time, job int, kind soakKind) { ops = append(ops, soakOp{at.UnixNano(), int32(job), kind}) }
	farthest := min(soakFarthest, s.Round/4)
	for i := range b.put {
		due := time.UnixMilli(s.due(b, i))
		add(due.Add(-s.Round), i, soakPut)
		if kind := soakChanges[i%16]; kind != soakPut && due.Sub(s.at(b.round)) > farthest {
			add(due.Add(-soakNearest-rand.N(farthest-soakNearest)), i, kind)
		}
		add(due.Add(2*s.Round), i, soakDelete)
	}
	for i := range b.putForced {
		at := s.at(b.round).Add(time.Duration(i) * s.Round / time.Duration(len(b.putForced)))
		add(at.Add(-s.Round), i, soakPutForced)
		add(at, i, soakForce)
		add(at.Add(2*s.Round), i, soakDeleteForced)
	}
	slices.SortFunc(ops, func(a, b soakOp) int { return cmp.Compare(a.at, b.at) })
	return ops
}

// over waits until the batch is judged: a delete before that would also remove fires that are due and not yet published. It returns
// the time from which on something that was planned for a time could be done.
func (b *soakBatch) over(ctx context.Context, planned time.Time) (time.Time, error) {
	select {
	case <-b.judged:
		return later(planned, b.judgedAt), nil
	case <-ctx.Done():
		return planned, ctx.Err()
	}
}

// settled waits until all commands that matter for the batch's plan are answered.
func (b *soakBatch) settled(ctx context.Context) error {
	for b.open.Load() > 0 {
		if err := sleepUntil(ctx, time.Now().Add(10*time.Millisecond)); err != nil {
			return err
		}
	}
	return nil
}

// due is when a one-shot is due before any change, unix ms.
func (s *soak) due(b *soakBatch, i int) int64 {
	return s.at(b.round).UnixMilli() + int64(i)*s.Round.Milliseconds()/int64(len(b.put))
}

// inTime tells whether a command that is acknowledged now is certain to win over a fire that is due at that time.
func inTime(due int64) bool { return !time.Now().Add(cancelMargin).After(time.UnixMilli(due)) }

// prevented notes that a fire must not come or, if the command was late, may come or not.
func (b *soakBatch) prevented(i int, due int64) {
	sure := inTime(due)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shots.First[i] = -1; !sure {
		b.shots.May[i] = due - b.shots.From
	}
}

// moved notes another fire that must come.
func (b *soakBatch) moved(i int, to int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shots.Then[i] = to - b.shots.From
	b.shots.To = max(b.shots.To, to+1)
}
