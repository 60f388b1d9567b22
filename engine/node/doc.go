// Package node is the I/O around the machine: one process that reads the log, stores it, applies it,
// ticks the partitions it owns and publishes their outputs.
//
// A reading order:
//
//   - The two main paths: options.go, run.go (one run after the other), node.go (what starts in which order) with open.go (stores,
//     server, streams), partition.go (what a node knows of a partition), apply.go (a record: log → local log → machine → reply),
//     clockwork.go and publish.go (a trigger: deadline → tick → log … outputs → due millisecond → stream) with ticking.go (ticks in
//     flight), window.go (how many outputs may be in flight), clock.go (the streams' clock) and wait.go (sleeping, and waking a
//     goroutine). Package internal/alarm wakes the clockwork.
//   - How a node recovers: recover.go, replay.go and heal.go (what the log stream lost is put back), claim.go (how it becomes an owner),
//     restarts.go (errors after which it starts again), resync.go (where a chain goes on) with stream_end.go (what an output stream holds
//     at its end), overdue.go (late answers of the output streams), foreign.go (foreign messages in those streams).
//   - On a timer: tend.go (what is done and when), durable.go (syncs of the outputs), disk.go (how much room is left), checkpoints.go and
//     trim.go (when the job table is written, and the log cut) with rest.go (how little of a core that takes), log_usage.go (keeps the log
//     stream from becoming full), residence.go (which jobs are in memory), pause_meter.go (how long a partition is held up by such work),
//     edited_streams.go, failed_streams.go and missing_outputs.go (streams that were edited, could not be written, or lack outputs).
//   - Requests: api.go, command.go with congestion.go (how many are admitted), preview.go, selection.go, tenant.go, import.go and
//     replies.go (how commands get into the log, and their answers), list.go, read_ahead.go and table.go (reads of jobs on disk,
//     without and with the partition's lock), status.go and nodes.go, version.go, http.go, meters.go, limited_log.go (few log lines
//     about what goes wrong again and again).
//   - Snapshots: save.go with save_target.go (where to), save_stopped.go (of a node that does not run), restored.go (a restore, and the
//     first start after it), restore_time.go (a restore up to a time), snapshot_jobs.go (a snapshot's jobs, for a running service).
//   - Several nodes over an external NATS: rights.go (subscriptions that were lost with a right), membership.go, cluster.go (which
//     node serves what) with handover.go, barrier.go (how far the log is applied), follow.go, transfer.go and leftbehind.go (which nodes
//     have a partition's jobs), forward.go (how nodes ask each other about partitions that they do not follow), freshness.go (which
//     requests are too old). Slow networks: leaders.go (slow servers have to stop leading streams), switching.go (which server a node connects to).
//
// Locks: partition.mu guards a partition's machine, partition.out its chain. mu is never taken while out is held.
package node
