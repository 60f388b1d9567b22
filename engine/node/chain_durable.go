package node

import (
	"context"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/engine/streams"
)

// How the outputs that the embedded server has stored are made durable.

// syncPause is the time between two syncs of a partition's outputs. The partitions are synced one after the other, evenly
// spread. While the disk writes the outputs of one of them, the local log's fsync waits, and with it the next tick. There are
// enough outputs to publish meanwhile. The outputs of all partitions, or of one in a whole second of full drain, would take longer.
const syncPause = 250 * time.Millisecond

// syncing makes the outputs durable that the embedded server has stored, until ctx ends.
func (n *Node) syncing(ctx context.Context) {
	began, next := time.Now(), make([]time.Time, len(n.partitions))
	for ctx.Err() == nil {
		for i, p := range n.partitions {
			if time.Now().Before(next[i]) {
				continue
			}
			synced, err := n.syncOutputs(p, n.outputs[p.number])
			if err != nil && ctx.Err() == nil {
				n.fail(err)
				return
			}
			next[i] = nextSync(began, time.Now(), synced)
			if synced {
				sleep(ctx, syncPause/time.Duration(len(n.partitions)))
			}
		}
		sleep(ctx, time.Until(slices.MinFunc(next, time.Time.Compare)))
	}
}

// nextSync is when to look again at a partition that was looked at just now. If its outputs were synced, that is a whole syncPause from
// now, however long the sync took. If there were none, it is at the next multiple of syncPause since the start, together with all other
// partitions without outputs: so an idle engine wakes once for all of them.
func nextSync(began, now time.Time, synced bool) time.Time {
	if synced {
		return now.Add(syncPause)
	}
	return began.Add(now.Sub(began).Truncate(syncPause) + syncPause)
}

// syncOutputs syncs a partition's outputs, if any were stored since they were last durable. What was stored before a sync counts as
// durable only after the next call's sync. By then the node has heard of any foreign message before it, and a stream that acknowledges
// before it writes has written.
func (n *Node) syncOutputs(p *partition, stream *streams.FileSync) (synced bool, err error) {
	p.out.Lock()
	settled := p.settling
	waits := settled != p.durable || !p.chain.Lost() && p.chain.Stored() != p.durable
	p.out.Unlock()
	if !waits {
		return false, nil
	}
	blocks, err := stream.Sync()
	n.meters.blocksSynced.Add(blocks)
	if err != nil {
		return true, markTransient(err)
	}
	p.out.Lock()
	if p.settling.Output < settled.Output { // meanwhile it turned out that less is stored
		settled = p.settling
	}
	more := settled.Output > p.durable.Output
	p.durable = settled
	if !p.chain.Lost() { // what a lost chain took for stored may not be
		p.settling = p.chain.Stored()
	}
	p.out.Unlock()
	if more {
		n.alarm.Wake()
	}
	return true, nil
}
