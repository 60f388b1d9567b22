package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// Replies: how commands get into the log, and their outcomes to the callers.

// replyTimeout bounds the wait for a command to come back through the log.
const replyTimeout = 5 * time.Second

// While no more than fewInProgress commands are in progress, each is written to the connection at once; so is each answer while no more
// requests than that are. When there are more, the client library gathers several, and another goroutine writes them: that has the higher
// throughput, but each of them waits for that goroutine.
const fewInProgress = 4

// roomTimeout bounds the wait for room in a log that is filling up. It is less than the time after which the Go client by default tries
// again (tryTime), so that a client that waits in vain learns why.
const roomTimeout = 3 * time.Second

// reply is the outcome of a command.
type reply struct {
	err     *carillon.Error
	job     carillon.JobReply
	changed bool
	noRoom  bool             // job was left out, because too many outcomes waited to be passed on (maxToldBytes)
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
	open      atomic.Int64 // commands in progress: sent and not answered
	toldBytes atomic.Int64 // of the outcomes to be passed on, about

	mu        sync.Mutex
	waiting   map[uint64]func(reply)
	deadlines []replyDeadline // in order; those of answered commands stay until their time
	early     [2]earlyRing    // the newest, and those before them
	told      []outcome       // to be passed on by run
	wake      chan struct{}   // notified when there is a first outcome to pass on, or a first deadline
	over      bool            // run has ended, or is about to
	ended     chan struct{}   // closed with over
}

type replyDeadline struct {
	at  time.Time
	seq uint64
}

type earlyOutcome struct {
	seq uint64
	r   *reply
}

// earlyRing has outcomes that nobody waits for yet, each at its sequence's place in a ring. For most of them nobody ever will: they are of
// raw commands, or of commands that other nodes answer. So whenever there are earlyMost bytes of new ones, those before them are dropped:
// no ack is that far behind the log.
type earlyRing struct {
	ring  []earlyOutcome
	bytes int // about
}

const (
	earlyMost    = 32 << 20
	earlyKept    = 1 << 20 // so many bytes may stay while no command is in progress
	outcomeBytes = int(unsafe.Sizeof(engine.Outcome{}))
)

func (e *earlyRing) clear() {
	clear(e.ring)
	e.bytes = 0
}

type outcome struct {
	done func(reply)
	r    *reply
	size int64 // r.size()
}

func (r *replies) init() {
	r.waiting = make(map[uint64]func(reply))
	for i := range r.early {
		r.early[i].ring = make([]earlyOutcome, 2*maxCalls) // more than the commands that can be in progress
	}
	r.wake, r.ended = make(chan struct{}, 1), make(chan struct{})
}

// expected tells whether a command of this node is in progress.
func (r *replies) expected() bool { return r.open.Load() > 0 }

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
		r.tell(done, result)
		return
	}
	if r.early[0].bytes > earlyMost {
		r.early[0], r.early[1] = r.early[1], r.early[0]
		r.early[0].clear()
	}
	e := &r.early[0]
	e.ring[seq%uint64(len(e.ring))] = earlyOutcome{seq, result}
	e.bytes += result.size()
}

// await has run call done with the outcome of the command at seq.
func (r *replies) await(seq uint64, done func(reply)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.early {
		ring := r.early[i].ring
		if e := &ring[seq%uint64(len(ring))]; e.seq == seq {
			r.tell(done, e.r)
			*e = earlyOutcome{}
			return
		}
	}
	if r.over {
		told := unknown("the engine stops")
		r.tell(done, &told)
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
	r.tell(done, &result)
}

// notTaken is the outcome of a command that the log did not acknowledge.
func notTaken(err error) reply {
	if errors.Is(err, streams.ErrNoSpace) {
		return refused(carillon.CodeLimitExceeded, "the log is full")
	}
	return unknown("the log did not take the command: " + err.Error())
}

// maxToldBytes is how many bytes of outcomes may wait to be passed on. A pause has a few bytes, and its outcome has the whole job:
// when thousands of them were in progress, their outcomes took gigabytes, and nothing fired while they were copied. Beyond half of it,
// further commands are refused. Those that are in the log already are carried out in any case, but beyond all of it without an answer.
const maxToldBytes = 64 << 20

// hasRoom tells whether one more outcome may wait to be passed on.
func (r *replies) hasRoom() bool { return r.toldBytes.Load() < maxToldBytes }

// admits refuses a command if there may be no room for its outcome.
func (r *replies) admits() error {
	if r.toldBytes.Load() < maxToldBytes/2 {
		return nil
	}
	return &carillon.Error{Code: carillon.CodeLimitExceeded, Message: fmt.Sprintf("more than %d MiB of answers wait to be sent", maxToldBytes>>21)}
}

// tell queues an outcome; its caller holds mu.
func (r *replies) tell(done func(reply), result *reply) {
	if r.over { // run passes nothing on any more
		go func() {
			done(*result)
			r.open.Add(-1)
		}()
		return
	}
	size := int64(result.size())
	r.toldBytes.Add(size)
	if r.told = append(r.told, outcome{done, result, size}); len(r.told) == 1 {
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
		told, r.told = r.told, told[:0]
		if late == nil && len(r.deadlines) > 0 {
			late = time.After(replyTimeout / 20)
		}
		r.mu.Unlock()
		for i := range told {
			told[i].done(*told[i].r)
			r.toldBytes.Add(-told[i].size)
			r.open.Add(-1)
			told[i] = outcome{}
		}
		r.mu.Lock()
		r.forgetEarly()
		r.mu.Unlock()
	}
}

// forgetEarly drops early outcomes if they take much memory and no command is in progress, so that nobody can ask for them. Its caller
// holds mu.
func (r *replies) forgetEarly() {
	if r.open.Load() > 0 || r.early[0].bytes+r.early[1].bytes <= earlyKept {
		return
	}
	for i := range r.early {
		r.early[i].clear()
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
			r.tell(done, &late)
		}
	}
	r.deadlines = r.deadlines[n:]
}

// submit sends a checked command through the log. done is called once, with the outcome, by the goroutine of replies.run, and must not
// block.
func (n *Node) submit(verb carillon.Verb, job, request string, body []byte, done func(reply)) {
	n.sendRecord(n.o.Prefix+".cmd."+string(verb)+"."+job, request, body, done)
}

// submitPack sends an import record. The outcome has an error if the record did not come back, else an outcome for each job.
func (n *Node) submitPack(partition int, pack []engine.PackedJob, done func(reply)) {
	n.sendRecord(n.layout.LogSubject(partition, "import"), "", engine.EncodePack(pack), done)
}

// sendRecord appends a record to the log, once that has room for it.
func (n *Node) sendRecord(subject, request string, body []byte, done func(reply)) {
	send := func() {
		var header nats.Header
		if request != "" {
			header = nats.Header{carillon.HeaderRequest: []string{request}}
		}
		publish := n.streams.Log.PublishAsync
		if n.replies.open.Load() <= fewInProgress && n.nothingBuffered() { // it must not overtake records that were sent before
			publish = n.streams.Log.PublishNow
		}
		err := publish(subject, header, body, func(seq uint64, err error) {
			if err != nil {
				n.replies.failed(done, notTaken(err))
				return
			}
			n.replies.await(seq, done)
		})
		if err != nil {
			n.replies.failed(done, notTaken(err))
		}
	}
	n.replies.open.Add(1)
	freed := n.logUsage.mustWait()
	if freed == nil {
		send()
		return
	}
	go func() {
		patience := time.NewTimer(roomTimeout)
		defer patience.Stop()
		select {
		case <-freed:
			send()
		case <-n.replies.ended:
			n.replies.failed(done, refused(carillon.CodeUnavailable, "the engine stops; nothing was done"))
		case <-patience.C:
			n.replies.failed(done, refused(carillon.CodeLimitExceeded, "the log is nearly full; nothing was done"))
		}
	}()
}

// nothingBuffered tells whether the library has nothing left to write to the server.
func (n *Node) nothingBuffered() bool {
	bytes, err := n.nc.Buffered()
	return err == nil && bytes == 0
}

// command sends a command and waits for its outcome.
func (n *Node) command(verb carillon.Verb, job string) reply {
	outcome := make(chan reply, 1)
	n.submit(verb, job, "", nil, func(r reply) { outcome <- r })
	return <-outcome
}
