package node

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// partition is one machine with what serves it.
type partition struct {
	number int

	mu        sync.Mutex // guards machine, owner and what follows
	machine   *engine.Machine
	table     table // that the machine reads
	owner     engine.Owner
	claiming  bool      // a claim is on its way
	sentClaim bool      // this run has sent one
	claims    uint64    // that were sent
	claimed   time.Time // when the last one was sent
	stopped   error     // why the partition stopped for good
	upTo      uint64    // records up to here are in a machine that began to follow during this run

	follows atomic.Bool   // the machine has the partition's jobs; else it is empty. Written under mu
	needs   atomic.Uint64 // a position from which the log is wanted in order to follow; 0: none
	leaves  atomic.Bool   // it is about to be given up: others are asked from now on
	asked   atomic.Int64  // commands that were taken here, and are not answered

	out       sync.Mutex // guards chain and what follows
	chain     *engine.Chain
	serving   bool   // the partition is this node's, and so it is to keep the chain going
	run       uint64 // counts resumes: an answer to an earlier run's publish is void
	offered   uint64 // outputs up to here were offered to the chain
	durable   engine.Acked
	settling  engine.Acked // stored; durable once the next sync has ended (syncOutputs)
	foreign   uint64
	counted   uint64 // sequence up to which foreign messages were counted
	marker    uint64 // the output that marks a loss that was accepted, or one before it
	resyncing bool   // one goroutine waits for late answers of the stream, or resumes the chain
	overdue   overdue
	leader    streams.Leader // of the stream when it was last asked for its end
	lostSince time.Time      // when the chain was lost; zero once it has put out what waited
	resumed   time.Time      // when the chain was last resumed
	pause     time.Duration  // before it is resumed again

	taking       sync.Mutex    // held while a checkpoint is taken
	wanted       atomic.Int32  // how many wait to take one
	checkpoint   atomic.Uint64 // position of the newest checkpoint
	older        atomic.Uint64 // position of the one before, 0 when there is none or it is not known
	checkpointAt atomic.Int64  // ns since the clock began; 0: none was taken, or read
	bytesAt      atomic.Uint64 // what the node had read of the log then, in bytes
}

// stop ends one partition for good and says how to go on.
func (n *Node) stop(p *partition, err error) {
	p.mu.Lock()
	first := p.halt(err)
	p.mu.Unlock()
	if first {
		n.tellStopped(p, err)
	}
}

// halt has a partition go on no more, for the first reason that is given. Its caller holds mu.
func (p *partition) halt(err error) (first bool) {
	if first = p.stopped == nil; first {
		p.stopped = err
		p.owner.Epoch = 0
	}
	return first
}

func (n *Node) tellStopped(p *partition, err error) {
	ring(n.joined.changed)
	n.log.Error("partition stopped; see docs/operations.md", "partition", p.number, "error", err)
}

// whyStopped is nil for a partition that goes on.
func (p *partition) whyStopped() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped
}
