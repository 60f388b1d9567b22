package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/carillon-scheduler/carillon/engine"
	"github.com/carillon-scheduler/carillon/engine/streams"
)

// The clockwork: when to tick, and when to publish.

// longestSleep bounds how long the clockwork sleeps: Go's monotonic clock stands still while the machine is suspended.
const longestSleep = time.Second

// clockwork is the owner's side of a trigger: it appends a tick when one is needed, and
// publishes outputs in the millisecond in which they are due.
func (n *Node) clockwork(ctx context.Context) {
	for {
		now := n.clock.ms()
		wake := now + longestSleep.Milliseconds()
		for _, p := range n.partitions {
			wake = min(wake, n.publish(ctx, p, now))
		}
		n.streams.Flush()
		wake = min(wake, n.tick(now))
		if err := n.alarm.Set(n.clock.until(wake)); err != nil {
			n.fail(fmt.Errorf("node: timer: %w", err))
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-n.alarm.C():
		}
	}
}

// tick appends one record with a tick for every partition that needs one, unless such a record has just gone out. It returns when to
// look again, unix ms.
func (n *Node) tick(now int64) (wake int64) {
	at := time.Now()
	if n.holdTicks.Load() {
		return math.MaxInt64
	}
	wait := n.ticking.until().Sub(at)
	again := now + 1 + wait.Milliseconds()
	if wait > 0 && !n.ticking.newestIsEmpty() {
		return again
	}
	lead := n.ticking.lead()
	space := n.outboxSpace()
	wake, owns, able := n.nextTick(now, lead, space)
	if wait > 0 && !able {
		return again
	}
	if !owns {
		// Other nodes have taken all partitions of this one. It must not go on waiting for its last tick. Otherwise it would count as
		// stuck, so its beats would name no partition (report), and it would not get any back.
		n.ticking.abort()
	}
	if wake > now {
		if owns {
			n.ticking.setIdle()
		}
		return wake
	}
	// At least one partition needs a tick, so a record and its fsync are needed in any case. The record then has ticks for all partitions
	// in which something comes due within the longest lead. Outputs are held until their millisecond all the same.
	var ticks []engine.Tick
	n.eachOwned(space, func(p *partition, room int, durable engine.Acked) {
		if t, ok := p.owner.Tick(p.machine, now, leadMax, room, durable); ok {
			ticks = append(ticks, t)
		}
	})
	if len(ticks) == 0 {
		return now + 1
	}
	if !n.ticking.start(ticks, at) {
		return math.MaxInt64
	}
	if err := n.sendTicks(ticks, at); err != nil {
		n.ticking.abort()
		return now + tickPause.Milliseconds() // the connection is down: try again after a pause
	}
	return now + tickAgain.Milliseconds()
}

// sendTicks appends a record with ticks; at is the moment under which they were noted (ticking.start). Error: the record was not sent.
func (n *Node) sendTicks(ticks []engine.Tick, at time.Time) error {
	partition := engine.AllPartitions
	if len(ticks) == 1 {
		partition = ticks[0].Partition
	}
	n.meters.ticks.Inc()
	return n.streams.Log.PublishAsync(n.layout.LogSubject(partition, "tick"), nil, engine.EncodeTicks(ticks), func(_ uint64, err error) {
		if err == nil {
			n.ticking.took(at)
		}
		if err == nil || errors.Is(err, streams.ErrClosed) {
			return
		}
		n.limitedLogs.ticksLost.warn(n.log, "tick not stored", "error", err)
		if !errors.Is(err, streams.ErrTimeout) {
			n.meters.ticksFailed.Inc()
		}
		n.ticking.fail(at, err)
		n.alarm.Wake()
	})
}

// nextTick tells when one of this node's partitions next needs a tick, unix ms, whether the node owns any, and whether one that needs a
// tick now is able to make outputs. It also counts the partitions that share the window of outputs from now on: those that have something
// due within the longest lead.
func (n *Node) nextTick(now, lead int64, space outboxSpace) (wake int64, owns, able bool) {
	wake = math.MaxInt64
	sharing := 0
	n.eachOwned(space, func(p *partition, room int, durable engine.Acked) {
		at := p.owner.Wake(p.machine, now, lead, room, durable)
		owns, wake, able = true, min(wake, at), able || at <= now && room > 0
		if at, ok := p.machine.NextDeadline(); ok && at <= now+leadMax {
			sharing++
		}
	})
	n.window.sharing = sharing
	return wake, owns, able
}

// eachOwned visits the partitions that this node owns, with what a tick of each may say: which outputs are durable, and how many (room) may
// be made. room is what the partition's chain has room for, and at most what fits into its space if all outputs are as large as the
// partition's largest: a tick goes into the log, and every node that applies it makes as many outputs as it allows. eachOwned also tells
// each chain its share of the window, and measures the window.
func (n *Node) eachOwned(space outboxSpace, visit func(p *partition, room int, durable engine.Acked)) {
	stored := uint64(0)
	by := n.clock.ms() + leadMax
	for _, p := range n.partitions {
		p.mu.Lock()
		p.out.Lock()
		_, sending := p.chain.HoldUntil()
		p.chain.Share(n.window.sharing, n.window.overtaking())
		stored += p.chain.Stored().Output
		if _, sends := p.chain.HoldUntil(); sends && !sending {
			n.alarm.Wake() // an output that waited for room may be sent now, and this round of publishing is over
		}
		room, durable := p.chain.FreeWindow(), p.durable
		p.out.Unlock()
		if bytes := space.of(p.machine.OutboxBytes()); bytes <= 0 {
			room = 0
		} else {
			room = min(room, max(1, bytes/p.machine.LargestOutput(by)))
		}
		if p.owner.Epoch != 0 {
			visit(p, room, durable)
		}
		p.mu.Unlock()
	}
	if n.server != nil {
		n.window.measure(n.clock.running(), stored)
	}
}

// outboxSpace is the space for outputs that are not stored for good yet, on this node.
type outboxSpace struct {
	free  int // bytes of outputs that its partitions may still make, together
	owned int // how many partitions it owns
}

// of is how many bytes of outputs a partition may make that holds so many: its share, and no more than until it holds as many as are free.
// Otherwise one that cannot publish would in the end leave no space to the others.
func (s outboxSpace) of(held int) int {
	if s.owned <= 1 {
		return s.free
	}
	return min(s.free/s.owned, s.free-held)
}

// outboxSpace tells how much space there is. The outboxes of partitions that others own are bounded by their owners.
func (n *Node) outboxSpace() outboxSpace {
	s := outboxSpace{free: n.o.OutboxMax}
	for _, p := range n.partitions {
		p.mu.Lock()
		if p.owner.Epoch != 0 {
			s.free, s.owned = s.free-p.machine.OutboxBytes(), s.owned+1
		}
		p.mu.Unlock()
	}
	return s
}
