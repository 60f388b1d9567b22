package node

import (
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// How commands get into the log.

// While no more than fewInProgress commands are in progress, each is written to the connection at once; so is each answer while no more
// requests than that are. When there are more, the client library gathers several, and another goroutine writes them: that has the higher
// throughput, but each of them waits for that goroutine.
const fewInProgress = 4

// roomTimeout bounds the wait for room in a log that is filling up. It is less than the time after which the Go client by default tries
// again (tryTime), so that a client that waits in vain learns why.
const roomTimeout = 3 * time.Second

// notTaken is the outcome of a command that the log did not acknowledge.
func notTaken(err error) reply {
	if errors.Is(err, streams.ErrNoSpace) {
		return refused(carillon.CodeLimitExceeded, "the log is full")
	}
	return unknown("the log did not take the command: " + err.Error())
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
