// Package sim is the seeded simulator of the engine: a few nodes with their logs on disk, checkpoints,
// machines, chains and clocks, over one model of the streams. One seed gives one history.
//
//	err := sim.Run(seed, sim.Options{})
//
// Every step is drawn from the seed: a client's command, a node that reads, syncs, applies, ticks,
// publishes or takes a checkpoint, a packet that arrives, is lost or overtaken, and the faults: crashes
// between any two steps, power failures, stale owners, clocks that jump or are wrong by an hour (clock.go), streams that
// are emptied, stuck or put back to an older copy. The digests of all nodes' states (engine.Mark), and the outcome of each
// command, are compared throughout. At the end the world calms down, drains, and is judged (judge.go) by a model of the
// partition that has no wheel, no queue and no checkpoint (reference.go). The table that stores the checkpoints checks what
// each says about the one before it.
//
// A reading order: world.go, node.go, follow.go, residence.go (jobs on disk), clock.go, client.go, stream.go, reference.go, judge.go.
//
// What the simulator showed about a host of the machine, beyond the package doc of engine:
//   - Before it resumes the chain, the host asks for the output stream's end, then for the log's last sequence, and waits
//     until the machine has applied the log up to that. Otherwise a reader that lags would take another owner's
//     work for outputs that were never made (engine.ErrAhead). If what the machine knows to be stored has changed
//     meanwhile, the host asks again.
//   - A heal record that has to be put back once more is put back as it is, not wrapped again.
//   - An ack of a message that was published before the chain was resumed says nothing about the chain that goes on now.
//   - A node that gives a partition up because others follow it must first make sure that they are beyond the position
//     from which it would itself go on, and that the log has not left them behind: it may have been cut up to there, and further for a
//     node that has given the partition up since.
package sim
