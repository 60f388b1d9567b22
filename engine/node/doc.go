// Package node is the I/O around the machine: one process that reads the log, stores it, applies it,
// ticks the partitions it owns and publishes their outputs.
//
// A reading order:
//
//   - A run: options.go, run.go (one run after the other), node.go (what starts in which order) with open.go (stores, server, streams),
//     stop.go (what ends in which order), transient.go (errors after which a run is followed by another), datadir.go, partition.go (what
//     a node knows of a partition), wait.go (sleeping, and waking a goroutine), clock.go (the streams' clock).
//   - A record, from the log to the machine: apply.go.
//   - A trigger, from its deadline to the log and back: clockwork.go, with ticking.go (ticks in flight). Package internal/alarm wakes
//     the clockwork.
//   - chain_: outputs on their way to the streams. chain_publish.go, chain_window.go (how many may be in flight), chain_durable.go (when
//     they are safe), chain_resync.go (where a chain goes on) with chain_end.go (what an output stream holds at its end),
//     chain_overdue.go (late answers of the output streams), chain_foreign.go (foreign messages there) and chain_missing.go (streams
//     that lack outputs).
//   - api_: requests. api.go (which there are), api_admit.go and api_congestion.go (how many are admitted); api_command.go (checks),
//     api_submit.go (into the log) and api_replies.go (outcomes, to the callers); api_import.go, api_selection.go, api_get.go,
//     api_list.go, api_preview.go, api_status.go with api_nodes.go and version.go; api_tenant.go (what tenants may),
//     api_forward.go (how nodes ask each other), api_freshness.go (which requests are too old). http.go is the other server.
//   - recover_: a start. recover.go, recover_replay.go, recover_heal.go (what the log stream lost is put back).
//   - checkpoint_ and log_: when the job table is written (checkpoint.go) and how little of a core that takes (checkpoint_rest.go), how
//     the log is cut (log_trim.go), and is kept from becoming full (log_usage.go); log_barrier.go (how far it is applied).
//   - jobs_: which jobs are in memory (jobs_residence.go); reads of those on disk, with the partition's lock (jobs_table.go) and without
//     (jobs_read_ahead.go). pause_meter.go: how long a partition is held up by such work.
//   - snapshot_: snapshot_save.go with snapshot_target.go (where to), snapshot_stopped.go (of a node that does not run),
//     snapshot_restored.go (a restore, and the first start after it), snapshot_restore_time.go (a restore up to a time), snapshot_jobs.go
//     (a snapshot's jobs, for a running service).
//   - cluster_: several nodes over an external NATS. cluster_membership.go (who they are), cluster_takeover.go (who serves what) with
//     cluster_claim.go and cluster_handover.go, cluster_follow.go, cluster_transfer.go and cluster_leftbehind.go (which nodes have a
//     partition's jobs), cluster_rights.go (subscriptions that were lost with a right). Slow networks: cluster_leaders.go (slow servers
//     have to stop leading streams), cluster_switching.go (which server a node connects to).
//   - On a timer: tend.go (what is done and when), disk.go (how much room is left), streams_edited.go and streams_failed.go (streams that
//     were edited, or could not be written). What is told: meters.go, limited_log.go (few log lines about what goes wrong again and again).
//
// Locks: partition.mu guards a partition's machine, partition.out its chain. mu is never taken while out is held.
package node
