// Command peers runs one-shots through Carillon and through other schedulers, one after the other on one
// machine, and prints one table: NATS's own message schedules, River on PostgreSQL and asynq on Redis, each
// as its library sets it up and tuned.
//
//	peers [run]   the workloads on every system, each started for its run and removed after it
//	peers check   starts every server once, says which version answers, and stops it
//	peers stop    stops and removes what a run that was killed left behind
//
// It is a module of its own, so that no peer enters the main one. Servers listen on free ports of loopback and
// keep everything in one directory (--dir). PostgreSQL and Redis are those of the system; make peers installs
// Debian's. Linux only.
//
// # What is the same for all
//
// Three processes and loopback TCP: the service, this command, which creates the jobs, and the worker, which
// is this binary once more. The payload of 200 bytes names the job. A job's lateness is from its due time to
// the first line of its handler, by the one clock of the machine; the loop is open, as in package bench: due
// times are fixed before the first job is due, and nothing waits for an answer. Before it counts, a worker
// must have handled a scheduled probe, so that elections and first polls are over.
//
// Reading order: system.go (what is asked of a scheduler), carillon.go, nats.go, river.go, asynq.go (the
// answers), run.go (the workloads), worker.go (the other process), process.go (servers), table.go.
package main
