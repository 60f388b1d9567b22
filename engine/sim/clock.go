package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/carillon-scheduler/carillon"
	"github.com/carillon-scheduler/carillon/engine"
)

// Clocks
//
// In most worlds a node is told the streams' clock within 2 ms. Its own clock may jump, and then the node may believe any
// time until it is told again: the machine bounds the consequences.
//
// In half of the worlds with several nodes the nodes' clocks are wrong, each by up to 2 s or by up to an hour, in either
// direction. Then a node measures its offset as a real one does (engine.ClockOffset): when it starts, about once a second, and
// with each tick of its own that comes back. Its knowledge can be out of date in only two ways. Its machine slept, so that its
// clock stood still: then the node is late until it measures again. Or the streams' clock stepped back: then the node is ahead.
// Except after such a step, nothing may be early in such a world. When the world is calm, the clocks stay as wrong as they are,
// partitions change hands, and nothing may be later than the world's own delays and such a sleep explain.

// clocks is what the world knows of its clocks.
type clocks struct {
	rng     *rand.Rand
	apart   int64 // by how much nodes' clocks may be wrong, ms; 0: nodes are told the streams' clock
	stepped bool  // the streams' clock has stepped back
	from    int64 // triggers due from then on may be late by at most late ms, by the streams' clock; 0: no bound
	late    int64

	foundAfter int64 // how long a follower whose state was changed took to notice, ms
}

// Delays of a calm world, ms.
const (
	round      = 10   // from one round of all nodes to the next
	askEvery   = 1000 // between two requests for the streams' time
	calmDelays = 150  // from the due time until a trigger is stored: a tick, its record, a chain that is resumed
)

func (c *clocks) init(seed uint64, alone bool) {
	c.rng = rand.New(rand.NewPCG(seed, 3))
	if !alone && c.rng.IntN(2) == 0 {
		c.apart = []int64{2000, hour}[c.rng.IntN(2)]
	}
}

// wrong draws how wrong a clock is, ms.
func (c *clocks) wrong() int64 {
	if c.rng.IntN(3) == 0 {
		return []int64{-c.apart, c.apart}[c.rng.IntN(2)]
	}
	return c.rng.Int64N(2*c.apart+1) - c.apart
}

// own is the node's own clock, ms.
func (n *node) own() int64 { return n.world.truth + n.drift }

// ask makes the node ask the streams for their time. Most answers are quick.
func (n *node) ask() {
	w := n.world
	took := w.clocks.rng.Int64N(6)
	if !w.calm && w.clocks.rng.IntN(10) == 0 {
		took = w.clocks.rng.Int64N(2000)
	}
	there := w.clocks.rng.Int64N(took + 1)
	n.learn((n.own()-there)*1e6, n.own()+took-there, w.stamp())
}

// learn takes a stamp of the streams' clock that was made, by the node's clock, after sent (ns) and before the end of the millisecond
// received.
func (n *node) learn(sent, received, stamp int64) { n.known.Measured(sent, (received+1)*1e6, stamp) }

// sleep makes the node's clock stand still for some time, and returns how long.
func (n *node) sleep() (ms int64) {
	ms = 1 + n.world.clocks.rng.Int64N(n.world.clocks.apart)
	n.drift -= ms
	n.world.note("%s sleeps for %d ms", n.name(), ms)
	return ms
}

// timely judges whether a message was stored in time, neither early nor late.
func (w *world) timely(p *packet) {
	if w.clocks.apart == 0 {
		return
	}
	now := floorMilli(p.message.Time)
	if now < p.due && !w.clocks.stepped {
		w.fail("out %d: %s, due at %d, is stored at %d", p.partition, outputName(p.message), p.due, now)
	}
	if w.clocks.from > 0 && p.due > w.clocks.from && now-p.due > w.clocks.late && p.scheduled && !w.loud[p.partition] {
		w.fail("out %d: %s, due at %d, is stored at %d, late by more than %d", p.partition, outputName(p.message), p.due, now, w.clocks.late)
	}
}

// beOnTime makes jobs due in a calm world.
func (w *world) beOnTime() {
	c := &w.clocks
	c.from, c.late = w.truth+w.skew, calmDelays
	if c.rng.IntN(2) == 0 {
		c.late += min(w.nodes[c.rng.IntN(len(w.nodes))].sleep(), askEvery)
	}
	if w.bounds != engine.DefaultBounds {
		c.late = hour // a machine whose bounds let it do little in a tick is late anyway
	}
	const rounds, jobs = 500, 30
	for i := range jobs {
		due := c.from + 50 + c.rng.Int64N(rounds*round-2*askEvery)
		w.client.send(command{"put", fmt.Sprintf("timely%d", i), "", encode(put{Schedule: "@at " + millis(due).Format(time.RFC3339Nano)})})
	}
	for i := 0; i < rounds && w.err == nil; i++ {
		w.truth += round
		for _, n := range w.nodes {
			if (i+33*n.id)%(askEvery/round) == 0 {
				n.ask()
			}
		}
		if i%70 == 69 {
			w.nodes[c.rng.IntN(len(w.nodes))].claim(c.rng.IntN(len(w.out)))
		}
		w.settle()
	}
	for i := range jobs {
		w.fired(fmt.Sprintf("timely%d", i))
	}
}

// fired judges whether a job that had to fire once has done so, if its put was accepted.
func (w *world) fired(id string) {
	p := engine.PartitionOf(id, w.layout.Partitions)
	part := w.nodes[p%len(w.nodes)].parts[p]
	if part == nil { // the partition has stopped for good
		return
	}
	job, ok := part.machine.Job(id, nil)
	if ok && job.Status != carillon.StatusCompleted && !w.loud[p] {
		w.fail("%s is due at %s, it is %s", id, job.Next.Format(carillon.TimeFormat), millis(w.truth+w.skew).Format(carillon.TimeFormat))
	}
}

// diverge changes the state of a follower in a calm world: the follower applies a put with another schedule. It must notice
// within a second, by the marks in the owner's ticks, and stop; no other node may stop.
func (w *world) diverge() {
	p := w.clocks.rng.IntN(len(w.out))
	owner, follower := w.nodes[p%len(w.nodes)], w.nodes[(p+1)%len(w.nodes)]
	if owner == follower {
		return
	}
	w.makeFollow(follower, p)
	if w.err != nil || follower.parts[p] == nil || owner.parts[p] == nil || owner.parts[p].stopped != nil || follower.parts[p].stopped != nil {
		return
	}
	id := "diverged"
	for engine.PartitionOf(id, w.layout.Partitions) != p {
		id += "-"
	}
	follower.mistakes = id
	w.append(w.layout.LogSubject(p, "disk"), nil, engine.Disk{Epoch: owner.parts[p].owner.Epoch}.Encode()) // new jobs are accepted
	began := w.truth
	w.client.send(command{"put", id, "", `{"schedule":"@every 100ms"}`})
	for follower.parts[p].stopped == nil && w.err == nil {
		if w.truth-began >= 1000 {
			w.fail("%s does not find out in a second that its state differs", follower.name())
		}
		w.truth += round
		w.settle()
	}
	if err := follower.parts[p].stopped; w.err == nil && !errors.Is(err, engine.ErrDiverged) {
		w.fail("%s stops partition %d: %v", follower.name(), p, err)
	}
	w.clocks.foundAfter = w.truth - began
	w.note("%s finds out after %d ms", follower.name(), w.clocks.foundAfter)
	w.client.send(command{"delete", id, "", ""})
}

// mistaken tells whether the node has made a mistake in a partition.
func (n *node) mistaken(p int) bool {
	return n.mistakes != "" && engine.PartitionOf(n.mistakes, n.world.layout.Partitions) == p
}

// mistake changes the schedule in the put of the job that the node gets wrong.
func (n *node) mistake(e *engine.Entry) {
	if n.mistakes != "" && e.Kind == engine.KindPut && e.Job == n.mistakes {
		e.Body = []byte(`{"schedule":"@every 70ms"}`)
	}
}
