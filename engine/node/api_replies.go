package node

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
)

// Replies: how the outcomes of commands get to their callers.

// replyTimeout bounds the wait for a command to come back through the log.
const replyTimeout = 5 * time.Second

// reply is the outcome of a command.
type reply struct {
	err     *carillon.Error
	job     carillon.JobReply
	changed bool
	noRoom  bool             // job was left out, because too many outcomes waited to be passed on (maxQueuedBytes)
	jobs    []engine.Outcome // of an import record: one for each job, in order
}

// size is about how many bytes it takes.
func (r *reply) size() int {
	_, spec := engine.SpecBytes(&r.job.Spec)
	return spec + answerBytes + len(r.jobs)*outcomeBytes
}

func refused(code carillon.Code, why string) reply {
	return reply{err: &carillon.Error{Code: code, Message: why}}
}

// unknown is the outcome of a command that may have been carried out or not.
func unknown(why string) reply {
	return refused(carillon.CodeUnavailable, why+"; the outcome is unknown")
}

// replies passes the outcomes of commands to their callers. They are matched by the sequence that the
// stream gave the command, which no client can choose. The outcome may come before the ack that tells this
// sequence. So while any command is in progress, the latest outcomes are kept for a while.
//
// Outcomes come from the goroutines that read the log and the acks of all streams. These must not be held up, so another
// goroutine (run) passes the outcomes on.
type replies struct {
	open        atomic.Int64 // commands in progress: sent and not answered
	queuedBytes atomic.Int64 // of the outcomes to be passed on, about

	mu        sync.Mutex
	waiting   map[uint64]func(reply)
	deadlines []replyDeadline  // in order; those of answered commands stay until their time
	unclaimed [2]unclaimedRing // the newest, and those before them
	queue     []outcome        // to be passed on by run
	wake      chan struct{}    // notified when there is a first outcome to pass on, or a first deadline
	over      bool             // run has ended, or is about to
	ended     chan struct{}    // closed with over
}

type replyDeadline struct {
	at  time.Time
	seq uint64
}

type unclaimedOutcome struct {
	seq uint64
	r   *reply
}

// unclaimedRing has outcomes that nobody waits for yet, each at its sequence's place in a ring. For most of them nobody ever will: they are
// of raw commands, or of commands that other nodes answer. So whenever there are unclaimedMost bytes of new ones, those before them are
// dropped: no ack is that far behind the log.
type unclaimedRing struct {
	ring  []unclaimedOutcome
	bytes int // about
}

const (
	unclaimedMost = 32 << 20
	unclaimedKept = 1 << 20 // so many bytes may stay while no command is in progress
	outcomeBytes  = int(unsafe.Sizeof(engine.Outcome{}))
)

func (u *unclaimedRing) clear() {
	clear(u.ring)
	u.bytes = 0
}

type outcome struct {
	done func(reply)
	r    *reply
	size int64 // r.size()
}

func (r *replies) init() {
	r.waiting = make(map[uint64]func(reply))
	for i := range r.unclaimed {
		r.unclaimed[i].ring = make([]unclaimedOutcome, 2*maxCalls) // more than the commands that can be in progress
	}
	r.wake, r.ended = make(chan struct{}, 1), make(chan struct{})
}

// inProgress tells whether a command of this node is in progress.
func (r *replies) inProgress() bool { return r.open.Load() > 0 }

// The next commit of the local log waits for more records that can share its fsync: gatherEach for each command in progress, gatherMost
// at most. Without this wait, only seven of a thousand concurrent callers shared an fsync, and fsync took a tenth of the engine's time.
// Waits below gatherLeast are left out: with few commands in progress a commit is quick, and a timer is not.
const (
	gatherEach  = 4 * time.Microsecond
	gatherLeast = 100 * time.Microsecond
	gatherMost  = 2 * time.Millisecond
)

// gather is how long the next commit waits now.
func (r *replies) gather() time.Duration {
	wait := min(time.Duration(r.open.Load())*gatherEach, gatherMost)
	if wait < gatherLeast {
		return 0
	}
	return wait
}

// applied takes the outcome of the command at seq. The caller must not use result afterwards.
func (r *replies) applied(seq uint64, result *reply) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if done, ok := r.waiting[seq]; ok {
		delete(r.waiting, seq)
		r.enqueue(done, result)
		return
	}
	if r.unclaimed[0].bytes > unclaimedMost {
		r.unclaimed[0], r.unclaimed[1] = r.unclaimed[1], r.unclaimed[0]
		r.unclaimed[0].clear()
	}
	e := &r.unclaimed[0]
	e.ring[seq%uint64(len(e.ring))] = unclaimedOutcome{seq, result}
	e.bytes += result.size()
}

// await has run call done with the outcome of the command at seq.
func (r *replies) await(seq uint64, done func(reply)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.unclaimed {
		ring := r.unclaimed[i].ring
		if e := &ring[seq%uint64(len(ring))]; e.seq == seq {
			r.enqueue(done, e.r)
			*e = unclaimedOutcome{}
			return
		}
	}
	if r.over {
		told := unknown("the engine stops")
		r.enqueue(done, &told)
		return
	}
	r.waiting[seq] = done
	if r.deadlines = append(r.deadlines, replyDeadline{time.Now().Add(replyTimeout), seq}); len(r.deadlines) == 1 {
		notify(r.wake)
	}
}

// failed has run call done with the outcome of a command that has no sequence, because the log did not acknowledge it.
func (r *replies) failed(done func(reply), result reply) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.enqueue(done, &result)
}

// maxQueuedBytes is how many bytes of outcomes may wait to be passed on. A pause has a few bytes, and its outcome has the whole job:
// when thousands of them were in progress, their outcomes took gigabytes, and nothing fired while they were copied. Beyond half of it,
// further commands are refused. Those that are in the log already are carried out in any case, but beyond all of it without an answer.
const maxQueuedBytes = 64 << 20

// hasRoom tells whether one more outcome may wait to be passed on.
func (r *replies) hasRoom() bool { return r.queuedBytes.Load() < maxQueuedBytes }

// admits refuses a command if there may be no room for its outcome.
func (r *replies) admits() error {
	if r.queuedBytes.Load() < maxQueuedBytes/2 {
		return nil
	}
	return &carillon.Error{Code: carillon.CodeLimitExceeded, Message: fmt.Sprintf("more than %d MiB of answers wait to be sent", maxQueuedBytes>>21)}
}

// enqueue queues an outcome; its caller holds mu.
func (r *replies) enqueue(done func(reply), result *reply) {
	if r.over { // run passes nothing on any more
		go func() {
			done(*result)
			r.open.Add(-1)
		}()
		return
	}
	size := int64(result.size())
	r.queuedBytes.Add(size)
	if r.queue = append(r.queue, outcome{done, result, size}); len(r.queue) == 1 {
		notify(r.wake)
	}
}

// run passes outcomes on until ctx ends, and then tells all callers that still wait that the outcome is unknown.
func (r *replies) run(ctx context.Context) {
	var late <-chan time.Time // when to look for expired deadlines; nil while there are none
	var told []outcome
	for over := false; !over; {
		select {
		case <-r.wake:
		case <-late:
			late = nil
		case <-ctx.Done():
			over = true
			close(r.ended)
		}
		r.mu.Lock()
		r.expire(over)
		told, r.queue = r.queue, told[:0]
		if late == nil && len(r.deadlines) > 0 {
			late = time.After(replyTimeout / 20)
		}
		r.mu.Unlock()
		for i := range told {
			told[i].done(*told[i].r)
			r.queuedBytes.Add(-told[i].size)
			r.open.Add(-1)
			told[i] = outcome{}
		}
		r.mu.Lock()
		r.forgetUnclaimed()
		r.mu.Unlock()
	}
}

// forgetUnclaimed drops outcomes that nobody has claimed, if they take much memory and no command is in progress, so that nobody can ask
// for them. Its caller holds mu.
func (r *replies) forgetUnclaimed() {
	if r.open.Load() > 0 || r.unclaimed[0].bytes+r.unclaimed[1].bytes <= unclaimedKept {
		return
	}
	for i := range r.unclaimed {
		r.unclaimed[i].clear()
	}
}

// expire gives up the commands that have waited for replyTimeout, or all of them. Its caller holds mu.
func (r *replies) expire(all bool) {
	r.over = all
	n, now := 0, time.Now()
	for ; n < len(r.deadlines); n++ {
		d := r.deadlines[n]
		done, waits := r.waiting[d.seq]
		if waits && !all && d.at.After(now) {
			break
		}
		if waits {
			delete(r.waiting, d.seq)
			why := "the command was not applied in time"
			if all {
				why = "the engine stops"
			}
			late := unknown(why)
			r.enqueue(done, &late)
		}
	}
	r.deadlines = r.deadlines[n:]
}
