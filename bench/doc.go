// Package bench measures Carillon on the machine that it runs on, and beside it the machine itself: a figure
// says little without what the machine can do. The command `carillon bench` only binds flags to it.
//
// Each workload is a config struct with defaults and a Run function that returns a [Result]:
//
//   - [RunLateness]: a fixed rate of triggers for a time, received by the Go worker in another process;
//   - [RunDispatch]: more triggers due than can be published, in turns with bare messages;
//   - [RunBurst]: many jobs due in one millisecond, and what that does to unrelated ones;
//   - [RunCommands]: durable creates, updates, deletes and imports: their rate and their latency;
//   - [RunChurn]: jobs cancelled or moved just before they are due, while others fire;
//   - [RunIdle]: CPU and memory of pending jobs while nothing is due;
//   - [RunSoak]: mixed load for hours, every trigger checked, memory and disk over time;
//   - [RunScale]: what a great many pending jobs do to memory, disk, lateness and restart;
//   - [RunRecovery]: kill -9, start, and the time to the first due trigger;
//   - [RunCeiling]: what the transport, the disk and the timers of this machine allow at best, without an engine.
//
// # How lateness is measured
//
// The loop is open. Which job is due in which millisecond is fixed before the first one is due, and nothing
// waits for an answer. A trigger's lateness is the time from its due millisecond until the worker's process
// has it, before its handler runs, whatever came before it. So a stall of the engine makes every trigger that
// is due during it late by what is left of the stall, and none is left out: there is no coordinated omission
// to correct. Engine and worker run on one machine and read one clock. A service on another machine
// ([Service].Server) has a clock of its own, and lateness is then wrong by the difference.
//
// The machine's own round trips, syncs and sleeps (floor.go) are measured in closed loops, each after the one
// before, so a long one hides those that would have come meanwhile. That makes their tails too short, and a
// target that they raise stricter.
//
// What must have arrived is computed from the requests and the replies to them, not from what the engine
// says it did: every (job, due time) of the window once ([Checks]). RunRecovery alone expects what it finds:
// it looks for gaps and repeats only.
//
// Reading order:
//
//   - What every run has: result.go (the result), machine.go (the machine), load.go (the jobs), lateness.go and worker.go (two of a
//     run's processes), process.go (how they communicate), engine.go (the third process), run.go (how a run begins), scratch.go (its
//     directory), metrics.go (what the engine's /metrics say).
//   - The machine by itself: floor.go and pauses.go (beside a run), ceiling.go with pages.go.
//   - The workloads: recovery.go; job_burst.go (many triggers at once), outputs.go (their streams: awaited, read back), dispatch.go
//     and burst.go;
//     commands.go with commands_single.go (one client, and beside it bare.go, a create without an engine), commands_clients.go (the
//     process of many clients) and commands_pipe.go (many requests under way); churn.go; idle.go; soak.go with soak_config.go,
//     soak_batch.go (what a round puts and changes), soak_drive.go (how that is carried out), soak_judge.go and soak_worker.go (what
//     came of it); scale.go with scale_midnight.go and scale_save.go.
//   - For bench/peers: export.go.
//
// bench/report draws results, bench/peers (a module of its own) measures other schedulers, and
// docs/benchmarks.md has the figures.
package bench
