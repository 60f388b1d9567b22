package node

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// partition is one partition of the service: its machine, its chain, and what the node knows about both.
type partition struct {
	number int

	// The machine, and whether this node owns the partition.
	mu        sync.Mutex // guards what follows, up to lostUpTo
	machine   *engine.Machine
	earlier   loads // what the machines before this one counted, for metrics that must not fall
	table     table // where the machine reads jobs that are on disk
	owner     engine.Owner
	claiming  bool      // a claim is on its way
	sentClaim bool      // a claim was sent during this run, and the partition has not been given up since
	claims    uint64    // how many claims were sent
	claimed   time.Time // when the last one was sent
	claimable time.Time // when another one may be sent
	late      bool      // the last one was not answered in time
	takenAt   time.Time // when this node learned that another one had taken the partition from it
	takenBy   string    // which one that was
	takenBack bool      // that was soon after this node had claimed it
	stopped   error     // why the partition stopped for good; nil: it did not
	upTo      uint64    // records up to here are already in the machine, which was taken from another node during this run
	lostUpTo  uint64    // the lost outputs that were accepted are counted up to here

	// Whether this node follows the partition, that is, has its jobs.
	follows     atomic.Bool           // if false, the machine is empty. Written under mu
	followError atomic.Pointer[error] // why the latest attempt to follow it failed
	failedFrom  string                // the node from which that one was; only followLoop uses it
	wastedParts int                   // how many parts, one after the other, were saved for it in vain; only followLoop uses it
	needs       atomic.Uint64         // while it is being taken or given up: position above which the log must be kept for that; 0: none
	unfollowing atomic.Bool           // it is about to be given up: requests go to other nodes from now on
	unanswered  atomic.Int64          // commands for it that this node took and has not answered

	// Publishing.
	out       sync.Mutex // guards what follows, up to pause
	chain     *engine.Chain
	serving   bool   // this node owns the partition, so the chain is resumed when it is lost
	run       uint64 // counts resumptions: an answer to a message of an earlier run must be ignored
	offered   uint64 // outputs up to this number were offered to the chain
	durable   engine.Acked
	settling  engine.Acked // stored; durable once the next sync has ended (syncOutputs)
	foreign   uint64       // foreign messages found in the output stream
	counted   uint64       // the stream's sequence up to which those were counted
	missing   missingOutputs
	marker    uint64 // the output that marks an accepted loss, or one before it
	resyncing bool   // a goroutine waits for late answers, or resumes the chain
	overdue   overdue
	leader    streams.Leader // of the stream when it was last asked for its end
	lostSince time.Time      // when the chain was lost; zero once it publishes again
	lostBy    error          // why the chain was lost, or could not be resumed, last
	resumed   time.Time      // when the chain was last resumed
	pause     time.Duration  // before the next attempt to resume it

	begun chan struct{} // notified when this node begins to serve the partition

	// Checkpoints.
	checkpointing     sync.Mutex    // held while a checkpoint is taken
	checkpointWaiters atomic.Int32  // how many goroutines wait for it
	checkpoint        atomic.Uint64 // position of the newest
	older             atomic.Uint64 // position of the one before; 0: there is none, or it is not known
	checkpointAt      atomic.Int64  // when the newest was taken or read, ns since the clock began; 0: never
	bytesAt           atomic.Uint64 // how many bytes of the log the node had read in this run by then
}

// loads counts the jobs that came into memory from the table, and those of them that a tick had to wait for.
type loads struct{ all, late uint64 }

// loaded is how many jobs came into memory during this run. Its caller holds mu.
func (p *partition) loaded() loads {
	st := p.machine.Stats()
	return loads{p.earlier.all + st.Loaded, p.earlier.late + st.Late}
}

// stop stops one partition for good, and logs why.
func (n *Node) stop(p *partition, err error) {
	p.mu.Lock()
	first := p.halt(err)
	p.mu.Unlock()
	if first {
		n.logStopped(p, err)
	}
}

// halt stops a partition, and tells whether it had not stopped before: only the first reason counts. Its caller holds mu.
func (p *partition) halt(err error) (first bool) {
	if first = p.stopped == nil; first {
		p.stopped = err
		p.owner.Epoch = 0
	}
	return first
}

// logStopped logs that a partition stopped, and wakes handOver, which need not wait for that partition any more.
func (n *Node) logStopped(p *partition, err error) {
	notify(n.membership.changed)
	n.log.Error("partition stopped; see docs/operations.md", "partition", p.number, "error", err)
}

// whyStopped is why a partition stopped; nil if it did not.
func (p *partition) whyStopped() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped
}

// affected lists the partitions that a record concerns.
func (n *Node) affected(e *engine.Entry) []*partition {
	if e.Partition != engine.AllPartitions {
		return n.partitions[e.Partition : e.Partition+1]
	}
	var ps []*partition
	for _, t := range e.Ticks {
		if t.Partition < len(n.partitions) {
			ps = append(ps, n.partitions[t.Partition])
		}
	}
	return ps
}

// partitionOf is the partition of a job.
func (n *Node) partitionOf(id string) *partition {
	return n.partitions[engine.PartitionOf(id, len(n.partitions))]
}

// followed lists the partitions that this node follows.
func (n *Node) followed() (list []*partition) {
	for _, p := range n.partitions {
		if p.follows.Load() {
			list = append(list, p)
		}
	}
	return list
}

// live lists the partitions that this node follows and that have not stopped. A stopped one gets no checkpoints, so the log that
// its repair needs is kept.
func (n *Node) live() (live []*partition) {
	for _, p := range n.partitions {
		if p.follows.Load() && p.whyStopped() == nil {
			live = append(live, p)
		}
	}
	return live
}

// stoppedHere counts the partitions that this node follows and that have stopped.
func (n *Node) stoppedHere() int { return len(n.followed()) - len(n.live()) }

// withLock calls do while it holds a partition's mu, and notes for how long the partition had to wait.
func (p *partition) withLock(pause *pauseMeter, do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	took, itsOwn := pauseFor(do)
	pause.clock.Update(took.Seconds())
	pause.own.Update(itsOwn.Seconds())
}

// inSlices does long work in slices, until slice returns false. The partition goes on between them. rest is called after each slice, and
// must at least call runtime.Gosched. Otherwise the next slice would mostly have the lock before a goroutine that waits for it has woken
// up, and only one record could be applied between two slices.
func (p *partition) inSlices(pause *pauseMeter, rest func(), slice func() (more bool)) {
	for more := true; more; rest() {
		p.withLock(pause, func() { more = slice() })
	}
}
