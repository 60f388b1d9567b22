// Package engine is one partition of Carillon as a state machine (Machine), and the two decisions made
// around it: which tick to append (Owner) and which output to publish (Chain). Nothing in it has a clock,
// a goroutine, randomness or I/O. So recovery is replaying the log, and one seed replays the history of a
// whole cluster (engine/sim).
//
// A host drives it like this; engine/node is that host, with group commit, locks and timers:
//
//	machine := Open(layout, partition, table) // a checkpoint, or nothing yet
//	for {
//		select {
//		case message := <-log: // CARILLON_LOG in its order
//			local.Append(message)                    // fsync: from here on it may be acted on
//			entry := layout.Decode(message)
//			result := machine.Apply(entry)           // a command's outcome, or new outputs
//			chain.Offer(machine.Outbox(offered))
//			reply(entry.Seq, result)
//
//		case <-alarm: // the earliest of chain.HoldUntil and owner.Wake
//			for publish := range chain.Next(now) {   // held until their due millisecond
//				out.Publish(publish) // behind publish.Expect
//			}
//			chain.Share(partitions, overtaking)      // of the host that have something due
//			if tick, ok := owner.Tick(machine, now, lead, chain.FreeWindow(), durable); ok {
//				log.Publish(tick)                // comes back above, like everything
//			}
//
//		case ack := <-out: // of one message for all before it
//			chain.Acked(ack) or chain.Lose()
//
//		case <-chain is lost:
//			number := machine.LastStored(out.End())
//			chain.Resume(out.LastSeq(), number, machine.Outbox(number))
//		}
//	}
//
// # A million jobs
//
// A job takes one line of the processor's cache, 64 bytes without a pointer, in a slot that never moves. Its id, the fields that stay
// the same while it keeps its version, the request of its last command and its spec lie in pages of bytes (texts.go); what many specs
// or requests have in common is stored once (templates.go). All jobs with the same expression share its parsed schedule (exprs.go).
// Fields that few jobs have are kept apart. A job is found by its id through a table that grows in small steps (index.go).
//
// So the garbage collector has next to nothing to follow: it takes 3 ms with half a million jobs, where jobs with two strings, a
// pointer and a map entry each took 254. A recurring job takes 128 bytes beyond its payload, with its timer and its places in the
// indexes. A job that changed also keeps its row as it was, about 110 bytes, until the next checkpoint.
//
// Files, in a reading order:
//
//   - The log: record.go, tickrecord.go, codec.go (their bytes).
//   - The machine: machine.go (Apply), one file a verb (put.go, delete.go, pause.go with resume, fire.go, claim.go, tick.go,
//     disk.go, import.go), ready.go and readyqueue.go (who goes next), completed.go (for how long a job without a fire left is kept),
//     tombstone.go (what is remembered of a deleted one).
//   - A job: jobs.go (its state) with index.go, texts.go, templates.go and exprs.go, spec.go (what its put said), prefetch.go.
//   - Around the machine: output.go (the outbox), chain.go, survey.go (where a chain goes on), owner.go, clockoffset.go, view.go
//     (queries).
//   - On disk: generation.go (what changed since the last checkpoint), checkpoint.go, open.go (reading one), rows.go (their bytes),
//     residence.go and load.go (jobs that are on disk alone), readahead.go (those read for an answer), forget.go (completed ones that
//     are dropped).
//   - After a restore: state.go (a state by itself), repartition.go (into other partitions), extract.go (jobs by themselves),
//     recovery.go (what becomes of missed fires).
package engine
