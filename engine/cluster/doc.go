// Package cluster says which engines there are, and which of them should serve and follow each partition.
//
//	m, err := cluster.Join(ctx, js, cluster.Options{Name: "engine-1", Zone: "rack-a", Partitions: 8, Report: report})
//	for view := range m.Views() {
//		for p := range partitions {
//			mine := view.Claimant(p, within) == "engine-1" // claim in the log what is mine and not served yet
//		}
//	}
//	err = m.Leave(ctx)
//
// # Why nothing here can do harm
//
// Placement only decides who does the work. What makes a partition safe is in its log: a claim's sequence is the
// partition's epoch, every reader ignores ticks of another epoch, and output n is stored once, whoever
// publishes it. Two members may both believe they own a partition, one may have been stopped for an hour, the bucket
// may be lost, or views may differ: all of this only makes triggers late, because for a moment nobody ticks, or two claim in turn.
// Nobody waits for a lease to expire, and no decision compares the clocks of two machines.
//
// # Who is live
//
// Each member writes its own key every interval (a beat), behind the revision that it wrote before. So it finds out when another
// process has its name, and ends if that one goes on writing; a key that was written only once does not end it. All members watch the
// bucket. If the revision of a key changes, its member is live. If it stays the same for the bound, by the watcher's own
// monotonic clock, the member is dead. What another session writes under the name of a live member counts for nobody.
//
// What is hard: with a timer for each member, a watcher that was stopped itself, or whose server was away, would find everybody
// dead. So the clock of the roster runs only while the watcher's own beats come
// back through the bucket: while it did not hear itself, it could not hear others either (roster.go). That also
// distinguishes a watch that works from one that silently died.
//
// A death is known within the bound and an interval, 1 s by default; a departure (Leave) at once.
//
// # Who serves what
//
// The placement is a key of the bucket. It is made from the placement before (placement.go says why, and what it guarantees) and
// written behind its revision by the first of the live members, or by the next if that one does not. Members remember it,
// so that no partition moves if the bucket is lost. View.Claimant says who should serve a partition now, from
// the positions in the beats: an owner that is behind does not claim it; if nobody serves it, a standby that has caught up does.
//
// A reading order: options.go, beat.go (what is in the bucket), roster.go (who is live), shares.go and placement.go (pure),
// view.go, member.go, beating.go, watch.go, placing.go, bucket.go.
package cluster
