// Package snapshot keeps checkpoints in a wal.Store. It never learns what is in them: a partition, a position
// in the log, and chunks of bytes.
//
//	c := snapshot.Open(store)
//	w, err := c.Create(partition, position)
//	defer w.Abort()
//	for … { err = w.Write(chunk) }
//	err = w.Commit()                       // now it is the newest, whole and on disk
//
//	list, err := c.List(partition)         // newest first
//	err = c.Read(list[0], load)            // what load built counts only if this is nil;
//	                                       // else try list[1]
//
// A checkpoint is written as sorted tables beside the database and ingested by Commit, all or nothing. So one
// of hundreds of megabytes passes neither Pebble's log nor its memtables: the appends of the log, which are
// fsynced all the while, do not carry its bytes. (As batches it would be in the same file that each append
// syncs, and be written three times.) What is left of one that a crash interrupted is no part of the
// database, and goes when the store opens.
//
// The two newest checkpoints of a partition are kept, the second to fall back on. The log must be kept from
// the older one's position.
package snapshot
