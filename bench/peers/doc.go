// Command peers runs the same workloads on Carillon and on other schedulers, one after the other on one machine, and prints one table.
// The others are NATS's own message schedules, River on PostgreSQL and asynq on Redis. Each is measured with its defaults and tuned.
//
//	peers [run]   runs the workloads; each system is started empty for each workload, and removed after it
//	peers check   starts every server once, prints its version, and stops it
//	peers stop    ends the processes of a run that was killed, and removes its files
//
// It is a module of its own, so that the main module does not depend on the peers. All servers listen on free ports of the loopback
// interface and keep their data in one directory (--dir). PostgreSQL and Redis must be installed; make peers installs Debian's. Linux only.
//
// # What is the same for all
//
// There are three processes, connected by TCP over loopback: the service, this command, which creates the jobs, and the worker, which is
// this binary as well. Each payload has 200 bytes and holds the job's number.
//
// A job's lateness counts from its due time to the beginning of its handler. All processes read one clock. The loop is open, as in package
// bench: due times are fixed before the first job is due, and nothing waits for an answer.
//
// Before the measurement each worker handles one scheduled job, the probe. So the election of a leader and the first polls are not measured.
//
// Reading order: system.go (what the workloads need of a system), carillon.go, nats.go, river.go and asynq.go (the systems), run.go (the
// workloads), worker.go (the worker's process), process.go (all processes and their directory), table.go.
package main
