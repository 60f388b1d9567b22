// Package wal is a node's write-ahead log, and the Pebble database under it and under the job table. It never learns
// what a record means: bytes in, the same bytes out, or an error.
//
//	s, err := wal.OpenStore(wal.Options{Dir: dir})
//	l := s.Log()
//	err = l.Read(position+1, apply)        // recovery: one sequential pass
//	wait := l.Submit(batch)                // one atomic batch, one fsync
//	                                       // prepare the next batch meanwhile
//	if err := wait(); err == nil {         // now, and only now, the records are on disk
//		apply(batch)
//	}
//
// # One log a node
//
// A Log is ordered by the stream's sequence and holds the records of all partitions together. A node reads
// the whole stream in one pass, whatever partitions it has; a record that names several partitions is stored
// once; one fsync covers all that arrived, whosever it is; and recovery is one sequential scan. A log for
// each partition would multiply fsyncs and copies for nothing, since the records of all of them arrive in one
// order anyway. The price is that the log is cut below the older checkpoint of the slowest partition.
//
// With several engines each node's log holds the whole stream, whatever partitions the node follows: what it comes to
// follow is replayed from here. Appending a record that is there with the same bytes is a no-op, one that is missing is
// filled in, and one that is there with other bytes is ErrConflict, for then the stream is not the one this log was
// read from.
//
// # What a nil error means
//
// Append and the wait of Submit return nil after the fsync of a batch that holds all of the call's records.
// After a crash at any moment the log is what it was after some call, no earlier than the last that returned
// nil: a call's records are there all or not at all, and so is a truncation. Records of a call that had not
// returned may be there. Last and First tell of what is on disk only.
//
// # Concurrency
//
// One goroutine appends. Any number may read meanwhile; each Read sees the log as it was when it began, and
// nothing that is not on disk (except a gap that is being filled just then). Truncate may run beside all of
// them. Close waits for calls in progress and ends long reads with ErrClosed.
//
// # Full and broken disks
//
// The first failed write or sync ends the store: all calls return ErrFailed, wrapping that first failure,
// Failed is closed, nothing more changes on disk, and the process goes on. Close frees the directory, and
// when the cause is gone OpenStore opens it again, in the same process. What was reported as done is there.
// How that is got out of Pebble, which would end the process, stands at type fence.
//
// # Corruption
//
// Records carry a checksum of their own above Pebble's. ErrCorrupt names the sequence or the file. A lost end
// of Pebble's log or manifest, which Pebble takes for a torn write and passes over, is noticed by a count
// kept beside the database (type mark) and refused as *LossError. Ways out: Options.AllowLoss, when the caller
// compares Last with the stream and gets the records there; else put the directory aside, and let the node
// build it anew from the stream. After power loss the count may itself be old, and then a flipped bit in the
// last seconds' records can pass as a torn write: the caller's comparison of Last with the stream is what
// notices that.
//
// A reading order: options.go, store.go (the database), log.go with record.go and keys.go (its bytes), synced.go (the count), fence.go,
// sstable.go (what is taken in whole), scheduler.go and pace.go (compactions give way).
package wal
