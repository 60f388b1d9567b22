// Package engine is one partition of Carillon as a state machine, with what decides around it: which
// tick to append (Owner) and which output to publish (Chain). Nothing in it has a clock, a goroutine,
// randomness or I/O, so one seed replays a whole cluster's history (engine/sim), and replaying the log
// is recovery.
//
// A host drives it like this; engine/node is that host, with group commit, locks and timers:
//
//	machine := restored from a checkpoint, or New(layout, partition)
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
//				out.Publish(publish.Output, publish.Expect, publish.Ack)
//			}
//			if tick, ok := owner.Tick(machine, now, lead, chain.Room(), durable); ok {
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
// Files: record.go and tickrecord.go (what is in the log), machine.go (Apply), one file a verb (put.go,
// delete.go, pause.go, fire.go, claim.go, tick.go), ready.go (who goes next), jobs.go (the state of a
// job), output.go (the outbox), chain.go, owner.go, checkpoint.go, view.go (what can be asked).
package engine
