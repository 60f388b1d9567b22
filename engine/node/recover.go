package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/snapshot"
	"github.com/carillon-scheduler/carillon/wal"
)

// recover rebuilds every partition from its newest checkpoint and the local log after it.
func (n *Node) recover(ctx context.Context) error {
	began := time.Now()
	if err := n.openPartitions(); err != nil {
		return err
	}
	from := n.oldest()
	replayed, err := n.replayAll(ctx, from)
	if err != nil {
		return err
	}
	jobs := 0
	for _, p := range n.followed() {
		jobs += p.machine.Stats().Jobs
		p.checkpointAt.Store(int64(n.clock.running()))
		n.listen(p, p.machine)
	}
	n.applied.Store(from)
	if last := n.local.Last(); last > 0 {
		n.applied.Store(last)
	}
	n.rebuilt.Store(true)
	n.log.Info("recovered", "jobs", jobs, "replayed", replayed, "position", n.applied.Load(), "took", time.Since(began))
	return nil
}

// listen has a partition's machine report to the meters. It reports while it applies a record, under mu.
func (n *Node) listen(p *partition, m *engine.Machine) {
	m.Listen(n.meters.listener(p.number, func() bool { return n.server != nil || p.owner.Epoch != 0 }))
}

// openPartitions makes the partitions, each from its newest checkpoint.
func (n *Node) openPartitions() error {
	n.partitions = make([]*partition, n.layout.Partitions)
	var work sync.WaitGroup
	errs := make([]error, n.layout.Partitions)
	for i := range n.partitions {
		work.Go(func() {
			p := &partition{number: i, chain: engine.NewChain(), begun: make(chan struct{}, 1), table: table{saved: n.jobTable, number: uint16(i)}}
			var position uint64
			p.machine, position, errs[i] = n.recoverPartition(i)
			switch {
			case p.machine != nil:
				p.machine.Attach(&p.table)
				p.follows.Store(true)
			case errs[i] == nil:
				p.machine = engine.New(n.layout, i)
			}
			p.checkpoint.Store(position)
			n.partitions[i] = p
		})
	}
	work.Wait()
	return errors.Join(errs...)
}

// oldest is the lowest position of the partitions' newest checkpoints: the log above it must be replayed.
func (n *Node) oldest() uint64 {
	followed := n.followed()
	if len(followed) == 0 {
		return n.local.Last()
	}
	position := followed[0].checkpoint.Load()
	for _, p := range followed {
		position = min(position, p.checkpoint.Load())
	}
	return position
}

// recoverPartition reads a partition's newest checkpoint, and returns its position: all records up to there are in it. The
// machine's own position is that of the last record that concerned the partition. If both m and err are nil, the node does not
// follow the partition.
func (n *Node) recoverPartition(number int) (m *engine.Machine, position uint64, err error) {
	m, position, err = n.readNewest(number)
	if err != nil {
		err = fmt.Errorf("node: %w; see docs/operations.md", unreadable(number, err))
		if !n.o.AcceptLoss[number] || !damaged(err) || errors.Is(err, engine.ErrVersion) {
			return nil, 0, err
		}
		n.log.Error("accepting that jobs are lost", "error", err)
		if err := n.jobTable.Clear(uint16(number)); err != nil {
			return nil, 0, err
		}
		m, position = engine.New(n.layout, number), 0
	}
	if n.reachesBack(position) {
		return m, position, nil
	}
	if position == 0 && (n.o.NATS != "" || n.o.Follow == FollowPlaced) && !n.o.AcceptLoss[number] {
		return nil, 0, nil
	}
	err = fmt.Errorf("node: the jobs of partition %d are as of %d, and the local log begins at %d: %w; see docs/operations.md", number, position, n.local.First(), wal.ErrCorrupt)
	if !n.o.AcceptLoss[number] {
		return nil, 0, err
	}
	n.log.Error("accepting that records are lost", "error", err)
	return m, position, nil
}

// readNewest reads a partition's newest checkpoint. A machine that leaves its jobs on disk must get another table (Attach) before it is
// used, because the view that it was opened from is closed here.
func (n *Node) readNewest(number int) (m *engine.Machine, position uint64, err error) {
	err = n.jobTable.View(uint16(number), func(v *snapshot.View) error {
		position = v.Position
		m, err = n.openMachine(number, v)
		return err
	})
	return m, position, err
}

// openMachine makes a machine from a checkpoint. If there are more than HotJobs jobs, the machine leaves them on disk, and reads them
// when it needs them.
func (n *Node) openMachine(number int, v *snapshot.View) (*engine.Machine, error) {
	state, err := v.State()
	if err != nil {
		return nil, err
	}
	if state != nil {
		s, err := engine.ReadState(state)
		if err != nil {
			return nil, err
		}
		if s.Jobs > n.o.HotJobs {
			return engine.OpenCold(n.layout, number, v)
		}
	}
	return engine.Open(n.layout, number, v)
}

// layoutOf is the layout of the service whose checkpoints are in the job table of a data directory.
func layoutOf(t *snapshot.Table, data string) (l engine.Layout, err error) {
	first, found, err := t.First()
	if err == nil && !found {
		err = fmt.Errorf("node: %s has no checkpoint yet: start the service on it and stop it", data)
	}
	if err != nil {
		return l, err
	}
	err = t.View(first, func(v *snapshot.View) error {
		state, err := v.State()
		if err != nil {
			return err
		}
		s, err := engine.ReadState(state)
		if err == nil {
			l = engine.Layout{Prefix: s.Prefix, Partitions: s.Partitions}
		}
		return err
	})
	return l, err
}

// reachesBack tells whether the local log has all records after a position. A log without records begins after the last one that it had.
func (n *Node) reachesBack(position uint64) bool {
	first := n.local.First()
	if first == 0 {
		first = max(n.local.Last(), n.logStart) + 1
	}
	return first <= position+1
}

var errOutOfReach = errors.New("node: no checkpoint reaches back far enough")

// rebuildOutputs makes outputs again from a checkpoint and the local log: those numbered above after, up to the end of
// the local log. It is for a stream that lost outputs which the machine no longer holds.
func (n *Node) rebuildOutputs(ctx context.Context, number int, after uint64) (outputs []engine.Output, err error) {
	n.logKept.RLock()
	defer n.logKept.RUnlock()
	for _, view := range []func(uint16, func(*snapshot.View) error) error{n.jobTable.View, n.jobTable.Older} {
		err := view(uint16(number), func(v *snapshot.View) error {
			m, err := n.openMachine(number, v)
			if err != nil {
				return err
			}
			if _, ok := m.Outbox(after); !ok || !n.reachesBack(v.Position) {
				return errOutOfReach
			}
			outputs, err = n.rebuildFrom(ctx, m, number, v.Position, after)
			return err
		})
		if errors.Is(err, snapshot.ErrNoCheckpoint) {
			break
		}
		if !errors.Is(err, errOutOfReach) {
			return outputs, err
		}
	}
	if n.reachesBack(0) { // nothing was trimmed yet
		return n.rebuildFrom(ctx, engine.New(n.layout, number), number, 0, after)
	}
	return nil, errOutOfReach
}

func (n *Node) rebuildFrom(ctx context.Context, m *engine.Machine, number int, position, after uint64) ([]engine.Output, error) {
	held, _ := m.Outbox(after)
	outputs := append([]engine.Output(nil), held...)
	m.Listen(engine.Listener{Made: func(o *engine.Output) {
		if o.Number > after {
			outputs = append(outputs, *o)
		}
	}})
	_, _, err := n.replayInto(ctx, m, n.partitions[number], position)
	return outputs, err
}
