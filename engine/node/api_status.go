package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/cluster"
	"github.com/carillon-scheduler/carillon/engine/schedule"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// The status of a node and its partitions, and the problems that make it unready.

// maxStatuses bounds the statuses that are made at a time. Each takes every partition's locks: without the bound, ticks and commands
// waited for these locks behind thousands of statuses.
const maxStatuses = 32

// apiStatus answers with the status of the service, as this node knows it.
func (n *Node) apiStatus(c *call) error {
	if err := acquire(n.requests.statuses, "statuses"); err != nil {
		return err
	}
	defer func() { <-n.requests.statuses }()
	s := carillon.StatusReply{
		Node: n.o.Name, Time: time.UnixMilli(n.clock.ms()).UTC(), Problems: n.problems(),
		Versions: carillon.Versions{
			Carillon: Version(), Logic: engine.Logic, Tzdata: schedule.TZVersion(), NATS: n.nc.ConnectedServerVersion(), Go: runtime.Version(),
		},
		Lateness: n.meters.latenessSummary(),
	}
	view := n.view()
	s.Nodes = n.nodes(view)
	s.Partitions = make([]carillon.PartitionStatus, len(n.partitions))
	there := make(map[string][]*partition)
	for i, p := range n.partitions {
		if s.Partitions[i] = n.partitionStatus(p, view); !p.follows.Load() {
			there[view.Follower(p.number)] = append(there[view.Follower(p.number)], p)
		}
	}
	delete(there, "") // nobody follows these
	err := n.askPartitions(there, func(p carillon.PartitionStatus) {
		if p.Partition >= 0 && p.Partition < len(s.Partitions) {
			s.Partitions[p.Partition] = p
		}
	})
	if err != nil {
		s.Problems = append(s.Problems, err.Error())
	}
	s.Ready = len(s.Problems) == 0
	return c.answer(s.AppendJSON(nil))
}

// partitionStatus returns the status of a partition as this node knows it. Of a partition that it does not follow it knows only which
// nodes serve it and stand by.
func (n *Node) partitionStatus(p *partition, view cluster.View) carillon.PartitionStatus {
	now, head := n.clock.ms(), n.head.Load()
	p.mu.Lock()
	st := p.machine.Stats()
	lag := p.lag(now)
	paused := st.Paused
	stopped := p.stopped
	p.mu.Unlock()
	p.out.Lock()
	stored, foreign := p.chain.Stored(), p.foreign
	p.out.Unlock()
	status := carillon.PartitionStatus{
		Partition: p.number, Owner: st.Owner, Standbys: view.Standbys(p.number), Epoch: st.Epoch,
		Position: st.Position, Lag: head - min(head, n.applied.Load()),
		TickLag: float64(lag) / 1e6, Timers: uint64(st.Timers), Ready: uint64(st.Ready), Outbox: st.Made - st.Acked.Output,
		Outputs: st.Made, Published: max(stored.Output, st.Acked.Output), Foreign: foreign, Checkpoint: p.checkpoint.Load(),
		Jobs: map[carillon.Status]uint64{
			carillon.StatusScheduled: uint64(st.Jobs - st.Completed - paused), carillon.StatusPaused: uint64(paused),
			carillon.StatusCompleted: uint64(st.Completed),
		},
		Skipped: map[string]uint64{}, Rejected: st.Rejected,
	}
	for _, reason := range skipReasons {
		if v := n.meters.skipped(p.number, reason).Get(); v > 0 {
			status.Skipped[reason] = v
		}
	}
	if st.To > 0 {
		status.Now = time.UnixMilli(st.To).UTC()
	}
	if at := p.checkpointAt.Load(); at > 0 {
		status.CheckpointAt = time.UnixMilli(now - (n.clock.running() - time.Duration(at)).Milliseconds()).UTC()
	}
	if stopped != nil {
		status.Stopped = stopped.Error()
	}
	if !p.follows.Load() {
		status.Owner, status.Lag = view.Serving(p.number), 0
	}
	return status
}

const (
	lostTooLong = 3 * time.Second // how long a chain may be lost before the node is unready
	aheadTooFar = 3 * time.Second // how far a partition may be ahead of the clock before the node is unready
)

// problems says why the node is not ready; nil if it is.
func (n *Node) problems() []string {
	var list []string
	switch {
	case !n.nc.IsConnected():
		list = append(list, n.unconnected("NATS cannot be reached", n.nc))
	case !n.requestConn.IsConnected():
		list = append(list, n.unconnected("NATS cannot be reached for requests", n.requestConn))
	}
	if missing := n.lostRights.problem(); missing != nil {
		list = append(list, missing.Error())
	}
	if n.holdTicks.Load() {
		list = append(list, fmt.Sprintf("less than %d MiB of disk are free: firing waits", n.o.FreeForTicks>>20))
	}
	if n.refuseJobs.Load() {
		list = append(list, fmt.Sprintf("less than %d MiB of disk are free: no new jobs are taken", n.o.FreeForJobs>>20))
	}
	if err := n.ticking.refused(); errors.Is(err, streams.ErrNoStream) {
		list = append(list, "the log stream refuses ticks: nobody leads it, or JetStream is off or cannot be reached, or the stream is gone")
	} else if err != nil {
		list = append(list, fmt.Sprintf("the log stream refuses ticks: %s", err))
	}
	if silent := n.ticking.silentFor(time.Now()); silent > tickTimeout {
		list = append(list, fmt.Sprintf("ticks have gone unanswered for %s", silent.Round(time.Second)))
	}
	list = append(list, n.editedStreams.problems()...)
	list = append(list, n.failedStreams.problems()...)
	list = append(list, n.beatProblems()...)
	list = append(list, n.membership.unserved()...)
	list = append(list, n.followProblems(n.view())...)
	for _, p := range n.partitions {
		if problem := cmp.Or(n.problem(p), n.clockProblem(p)); problem != "" {
			list = append(list, problem)
		}
	}
	return list
}

// unconnected adds to a problem why a connection is not there.
func (n *Node) unconnected(problem string, nc *nats.Conn) string {
	if err := nc.LastError(); err != nil {
		return problem + ": " + err.Error()
	} else if last := n.unreached.Load(); last != nil {
		return problem + ": " + (*last).Error()
	}
	return problem
}

// problem says why a partition makes the node unready; "" if it does not.
func (n *Node) problem(p *partition) string {
	stopped := p.whyStopped()
	p.out.Lock()
	defer p.out.Unlock()
	switch {
	case stopped != nil:
		return fmt.Sprintf("partition %d stopped: %v", p.number, stopped)
	case n.o.AcceptLoss[p.number] && p.run == 0 && (p.serving || !n.membership.servedElsewhere(p.number)) && p.follows.Load():
		return fmt.Sprintf("partition %d has yet to find whether there is a loss to accept", p.number)
	case p.serving && p.marker > p.chain.Stored().Output: // if another node serves the partition, that one publishes the marker
		return fmt.Sprintf("partition %d has yet to mark the loss that was accepted", p.number)
	case !p.lostSince.IsZero() && time.Since(p.lostSince) > lostTooLong:
		problem := fmt.Sprintf("partition %d has not been able to publish for %s", p.number, time.Since(p.lostSince).Round(time.Second))
		if p.lostBy != nil {
			problem += fmt.Sprintf(": %v", p.lostBy)
		}
		return problem
	}
	return ""
}

// clockProblem says that a partition of this node is ahead of the clock, which was set back; "" if it is not. Nothing else shows why
// nothing fires.
func (n *Node) clockProblem(p *partition) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.machine.Stats()
	at := max(st.Now, st.To)
	by := n.clock.until(at)
	if p.owner.Epoch == 0 || by <= aheadTooFar {
		return ""
	}
	return fmt.Sprintf("partition %d is at %s, %s ahead of the clock, which was set back: what comes due or is put waits for it",
		p.number, formatMilli(at), by.Round(time.Second))
}

// askPartitions asks other nodes for the status of their partitions. tell is not called for partitions whose node does not answer.
func (n *Node) askPartitions(there map[string][]*partition, tell func(carillon.PartitionStatus)) error {
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	return n.askEach(ctx, there, "partitions", nil, func(answer []byte) error {
		var told []carillon.PartitionStatus
		err := json.Unmarshal(answer, &told)
		for _, s := range told {
			tell(s)
		}
		return err
	})
}

// statusTimeout is how long a status waits for other nodes. It is short, because a status is asked for just when they do not answer.
const statusTimeout = time.Second

// apiPartitions answers with the status of the partitions that the request names.
func (n *Node) apiPartitions(c *call) error {
	ps, err := n.namedPartitions(c)
	if err != nil {
		return err
	}
	told := make([]carillon.PartitionStatus, len(ps))
	view := n.view()
	for i, p := range ps {
		told[i] = n.partitionStatus(p, view)
	}
	body, err := json.Marshal(told)
	if err != nil {
		return err
	}
	return c.answer(body)
}
