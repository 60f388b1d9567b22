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

// longestSleep bounds the clockwork's: Go's monotonic clock stands still during suspend, so it looks at the wall again.
const longestSleep = time.Second

// clockwork is the walk of a trigger on the owner's side: it appends a tick when one is needed, and
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
		if err := n.bell.set(n.clock.until(wake)); err != nil {
			n.fail(fmt.Errorf("node: timer: %w", err))
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-n.bell.rang:
		}
	}
}

// tick appends one record with a tick for every partition that needs one, unless one has just gone out, and
// says when to look again.
func (n *Node) tick(now int64) (wake int64) {
	at := time.Now()
	if n.holdTicks.Load() {
		return math.MaxInt64
	}
	if wait := n.ticking.until().Sub(at); wait > 0 {
		return now + 1 + wait.Milliseconds()
	}
	lead := n.ticking.lead()
	space := n.outboxSpace()
	wake, owns := n.nextTick(now, lead, space)
	if !owns {
		// One whose partitions others have taken would go on waiting for its last tick, count as stuck, and be given none (report).
		n.ticking.abort()
	}
	if wake > now {
		if owns {
			n.ticking.rest()
		}
		return wake
	}
	// One of them needs a tick: the record and its fsync are paid for, so it takes along what comes due in
	// any partition within the longest lead. Outputs are held to their millisecond all the same.
	var ticks []engine.Tick
	n.owners(space, func(p *partition, room int, durable engine.Acked) {
		if t, ok := p.owner.Tick(p.machine, now, leadMax, room, durable); ok {
			ticks = append(ticks, t)
		}
	})
	if len(ticks) == 0 {
		return now + 1
	}
	partition := engine.Everyone
	if len(ticks) == 1 {
		partition = ticks[0].Partition
	}
	if !n.ticking.start(ticks[0], at) {
		return math.MaxInt64
	}
	err := n.streams.Log.PublishAsync(n.layout.LogSubject(partition, "tick"), nil, engine.EncodeTicks(ticks), func(_ uint64, err error) {
		if err == nil || errors.Is(err, streams.ErrClosed) {
			return
		}
		n.troubles.ticksLost.tell(n.log, time.Now(), "tick not stored", "error", err)
		if !errors.Is(err, streams.ErrTimeout) {
			n.meters.ticksFailed.Inc()
		}
		n.ticking.fail(at, err)
		n.bell.ring()
	})
	n.meters.ticks.Inc()
	if err != nil {
		n.ticking.abort()
		return now + tickPause.Milliseconds() // the connection is down; publishing says so again
	}
	return now + tickAgain.Milliseconds()
}

// nextTick tells when a partition of this node needs a tick, and whether it has any. Those that have something to put out within
// the longest lead share the window from there on.
func (n *Node) nextTick(now, lead int64, space int) (wake int64, owns bool) {
	wake = math.MaxInt64
	sharing := 0
	n.owners(space, func(p *partition, room int, durable engine.Acked) {
		owns, wake = true, min(wake, p.owner.Wake(p.machine, now, lead, room, durable))
		if at, ok := p.machine.NextDeadline(); ok && at <= now+leadMax {
			sharing++
		}
	})
	n.sharing = sharing
	return wake, owns
}

// lastTick ends ticking, and waits until the tick that is on its way is applied, and all that other nodes appended, so
// that the checkpoint of a clean stop has it: behind that a version with other rules could not take it. Nothing is waited
// for long, nor while NATS is away.
func (n *Node) lastTick(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, tickTimeout)
	defer cancel()
	for n.ticking.end() && n.nc.IsConnected() && pause(ctx, time.Millisecond) {
		continue
	}
	if n.joined.takes.Load() && n.nc.IsConnected() {
		if err := n.catchUp(ctx); err != nil && ctx.Err() == nil {
			n.log.Warn("the checkpoint may be before the log's end", "error", err)
		}
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		n.log.Warn("the checkpoint may be before the log's end", "waited", tickTimeout)
	}
}

// owners visits the partitions that this node owns, with the room in their shares of the window: no more than the space for a
// partition's outputs holds of its largest. A tick is in the log, and whoever reads it makes what it allows.
func (n *Node) owners(space int, visit func(p *partition, room int, durable engine.Acked)) {
	for _, p := range n.partitions {
		p.mu.Lock()
		p.out.Lock()
		_, sending := p.chain.HoldUntil()
		p.chain.Share(n.sharing)
		if _, sends := p.chain.HoldUntil(); sends && !sending {
			n.bell.ring() // what waited for its share may be sent, and publishing is behind
		}
		room, durable := p.chain.Room(), p.durable
		p.out.Unlock()
		if space <= 0 {
			room = 0
		} else {
			room = min(room, max(1, space/p.machine.LargestOutput()))
		}
		if p.owner.Epoch != 0 {
			visit(p, room, durable)
		}
		p.mu.Unlock()
	}
}

// outboxSpace is how many bytes of outputs each partition of this node may still make before some are stored for good.
// Those of others are bounded by their owners in the same way.
func (n *Node) outboxSpace() int {
	total, owned := 0, 0
	for _, p := range n.partitions {
		p.mu.Lock()
		if p.owner.Epoch != 0 {
			total, owned = total+p.machine.OutboxBytes(), owned+1
		}
		p.mu.Unlock()
	}
	return (n.o.OutboxMax - total) / max(1, owned)
}
