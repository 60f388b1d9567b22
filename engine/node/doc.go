// Package node is the I/O around the machine: one process that reads the log, stores it, applies it,
// ticks the partitions it owns and publishes their outputs.
//
// A reading order:
//
//   - The straight walks: options.go, run.go (one run after the other), node.go (what starts in which order) with open.go,
//     partition.go, apply.go (a record: log → local log → machine → reply), clockwork.go and publish.go (a trigger: deadline → tick →
//     log … outputs → due millisecond → stream) with ticking.go (ticks on their way), window.go (how many outputs may be), clock.go and
//     wait.go. What wakes up the clockwork is internal/alarm.
//   - How it comes back: recover.go, replay.go and heal.go, claim.go, restarts.go (what passes), resync.go (where the chain goes on),
//     overdue.go (answers that are late), foreign.go (who else writes into the output streams).
//   - On a timer: tend.go (outputs made durable, the disk watched), checkpoints.go and trim.go (when the job table is written, and
//     the log cut) with rest.go (how little of a core that takes), filling.go (how a log stream is kept from becoming full),
//     residence.go (which jobs are in memory), holding.go (for how long a partition waits for what is done beside it), shapes.go (streams
//     that were edited), stopped.go (streams that could not be written).
//   - Requests: api.go, command.go with congestion.go (how many are taken), preview.go, selection.go, tenant.go, import.go and
//     replies.go (their way into the log, and their answers), list.go, ahead.go (what is read for them beside a partition, of its
//     table.go), status.go and nodes.go, version.go, http.go, meters.go, trouble.go (the log of what goes wrong again and again).
//   - Snapshots: save.go with save_target.go (where to), save_stopped.go, restored.go (the first start after a restore),
//     restore_time.go (a restore up to a time), salvage.go (jobs by themselves).
//   - Several nodes over an external NATS: regain.go (rights that come back), membership.go, cluster.go (who serves what) with
//     handover.go, reach.go (how far the log is applied), follow.go, give.go and leftbehind.go (who has what), elsewhere.go (how a
//     node answers for what it does not have), pulse.go (which requests are too old). Slow networks: leaders.go (what slow servers
//     lead), detour.go (how a node goes around them).
//
// Who may touch what: a partition's machine is guarded by partition.mu, its chain by partition.out. The
// first is never taken while the second is held.
package node
