// Package node is the I/O around the machine: one process that reads the log, stores it, applies it,
// ticks the partitions it owns and publishes their outputs.
//
// A reading order: options.go, node.go (what starts in which order), recover.go, replay.go and heal.go (how it
// comes back), apply.go (the straight walk of a record: log → local log → machine → reply), clockwork.go
// (the straight walk of a trigger: deadline → tick → log … outputs → due millisecond → stream),
// resync.go (where the chain goes on), tend.go (what is done on a timer: outputs made durable, the disk
// watched), checkpoints.go and trim.go (when the job table is written, and the log cut), filling.go (how a log stream is kept
// from becoming full), foreign.go (who else writes into the output streams), api.go, import.go and replies.go (requests, their
// way into the log, and their answers), list.go and status.go (what is told of jobs, and of the node), save.go and
// restored.go (snapshots, and the first start after a restore), residence.go (which jobs are in memory), holding.go (for how long
// a partition waits for what is done beside it), memory.go, http.go, meters.go. Of several nodes: cluster.go (who
// serves what), follow.go, give.go and leftbehind.go (who has what), elsewhere.go (how a node answers for what it does not have).
//
// Who may touch what: a partition's machine is guarded by partition.mu, its chain by partition.out. The
// first is never taken while the second is held.
package node
