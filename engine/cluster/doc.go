// Package cluster says which engines there are, and which of them is to serve and to follow each partition.
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
// partition's epoch, ticks of another epoch are ignored by every reader alike, and output n is stored once, whoever
// publishes it. So two members that both believe they own a partition, one that was stopped for an hour, a bucket
// that is lost, or views that differ, cost lateness: nobody ticks for a moment, or two claim in turn. Nobody waits
// for a lease to expire, and no decision compares the clocks of two machines.
//
// # Who is live
//
// Each member writes its own key every interval, behind the revision it wrote before: so it finds out when another
// process has its name, and ends if that one goes on writing; what is written once it outlives. All members watch the
// bucket. A key whose revision changes is that of a live member; one that stays for the bound, by the watcher's own
// monotonic clock, is that of a dead one. The simple way, a timer a member, finds everybody dead when the watcher
// itself was stopped, or its server was away. So the clock of the roster runs only while the watcher's own beats come
// back through the bucket: what it did not hear of itself it did not hear of others either (roster.go). That also
// tells a watch that works from one that died without a word.
//
// A death is known within the bound and an interval, 1 s by default; a departure (Leave) at once.
//
// # Who serves what
//
// The placement is a key of the bucket, made from the one before it (placement.go says why, and what holds) and
// written behind its revision by the first of the live members, or the next if that one does not. Members remember it,
// so a lost bucket moves nothing. Where it should move to and who serves until then is told by View.Claimant, from
// the positions in the beats: an owner that is behind does not claim; a standby that is caught up does, when nobody
// serves.
//
// A reading order: beat.go (what is in the bucket), roster.go (who is live), shares.go and placement.go (pure),
// view.go, member.go, beating.go, watch.go, placing.go, bucket.go.
package cluster
