// Package sim is the seeded simulator of the engine: a few nodes with their logs on disk, checkpoints,
// machines, chains and clocks, over one model of the streams. One seed gives one history.
//
//	err := sim.Run(seed, sim.Options{})
//
// Every step is drawn from the seed: a client's command, a node that reads, syncs, applies, ticks,
// publishes or takes a checkpoint, a packet that arrives, is lost or overtaken, and the faults: crashes
// between any two steps, power failures, stale owners, clocks that jump or are wrong by an hour (clock.go), streams that
// are emptied, stuck or put back to an older copy. The marks of all nodes, and what became of each command, are compared
// throughout. At the end the world calms down, drains, and is judged (judge.go) by a model of the partition that has no
// wheel, no queue and no checkpoint (reference.go). The table that checkpoints go to checks what they say of the one before.
//
// A reading order: world.go, node.go, follow.go, residence.go (jobs on disk), clock.go, client.go, stream.go, reference.go, judge.go.
//
// What the simulator showed about a host of the machine, beyond the page of package engine:
//   - Where the chain goes on is decided only once the machine has applied the log up to a last sequence
//     that was asked for after the output stream's end was. Before, a reader that lags takes the work of
//     another owner for outputs that were never made (engine.ErrAhead). And it is asked again when what
//     the machine knows to be stored has changed meanwhile.
//   - A heal record that is put back once more goes back as it is, not wrapped again.
//   - An answer to what was published before the chain was resumed says nothing about the chain that goes on now.
//   - Who gives a partition up for others that follow it sees to it that they are beyond what it would itself go on from:
//     up to there the log may have been cut.
package sim
