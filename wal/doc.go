// Package wal is a node's write-ahead log, and the Pebble database below that log and below the job table. It never learns
// what a record means: bytes in, the same bytes out, or an error.
//
//	s, err := wal.OpenStore(wal.Options{Dir: dir})
//	l := s.Log()
//	err = l.Read(position+1, apply)        // recovery: one sequential pass
//	if err := l.Append(batch); err == nil { // one atomic batch, one fsync
//		apply(batch)                       // now, and only now, the records are on disk
//	}
//
// # One log a node
//
// A Log is ordered by the stream's sequence and holds the records of all partitions together. A node reads
// the whole stream in one pass, whatever partitions it has; a record that names several partitions is stored
// once; one fsync covers all that arrived, for whatever partition; and recovery is one sequential scan. A log for
// each partition would multiply fsyncs and copies for nothing, since the records of all partitions arrive in one
// order anyway. The price is that the log can be cut only below the older checkpoint of the slowest partition.
//
// With several engines each node's log still holds the whole stream, whatever partitions the node follows: a partition that
// it begins to follow is replayed from here.
//
// A record may be appended again. It changes nothing if the log has it with the same bytes, and fills the gap if the log
// does not have it. If the log has it with other bytes, the stream is not the one that this log was read from: ErrConflict.
//
// # What a nil error means
//
// Append returns nil after the fsync of a batch that holds all of the call's records.
// After a crash at any moment the log is as it was after some call, and not after an earlier one than the last that
// returned nil: a call's records are all there or none, and so with a truncation. Records of a call that had not
// returned may be there. Last and First count only what is on disk.
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
// when the cause is gone OpenStore opens it again, in the same process. All that was reported as done is there.
// Pebble by itself would end the process; type fence says how that is avoided.
//
// # Corruption
//
// Records carry a checksum of their own above Pebble's. ErrCorrupt names the sequence or the file. If the end
// of Pebble's log or manifest is lost, Pebble takes that for a torn write and says nothing. A count kept beside
// the database (type mark) shows the loss, and opening is refused with *LossError. Ways out: Options.AllowLoss, if
// the caller compares Last with the stream and gets the missing records there; else put the directory aside, and let
// the node build it anew from the stream. After a power loss the count itself may be old, and then a flipped bit in
// the records of the last seconds can pass as a torn write. Only the caller's comparison of Last with the stream
// shows that.
//
// A reading order: options.go, store.go (the database), log.go with record.go and keys.go (its bytes), synced.go (the count), fence.go,
// sstable.go (files that are taken in whole), scheduler.go and pace.go (compactions give way).
package wal
