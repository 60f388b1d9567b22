package wal

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options configure a Store. Only Dir is required.
type Options struct {
	Dir    string       // the store's directory; made if absent
	FS     vfs.FS       // nil: the disk
	Logger *slog.Logger // nil: silent

	// Profile says what the store holds: a log, the default, or tables.
	Profile Profile

	// CacheBytes is the size of the block cache, 8 MiB by default. Why not larger: the log is read
	// once, front to back, on recovery, so nothing is read twice. Why not smaller: it should hold the
	// index blocks. With ProfileTable the default is 64 MiB, for the filters of 20 million ids (10 bits each) and the
	// upper index blocks. With more ids, give 1.5 times the size of their filters: to look up an absent id reads a filter,
	// or, if that is not in the cache, a block.
	CacheBytes int64

	// MemTableBytes is the size of a memtable, 4 MiB by default. Why not larger: Pebble keeps one to use again, so two are
	// always in memory, and with 16 MiB a log was no faster. Why not smaller: each flush makes a file in level 0, and at 30
	// MB/s of records there are seven a second. With ProfileTable the default is 2 MiB: most bytes come by Ingest, which
	// bypasses the memtable, but waits for its flush.
	MemTableBytes uint64

	// AllowLoss opens a store from which synced batches are missing (see LossError) instead of refusing.
	// It is for a caller who gets the records from elsewhere, or an operator who accepts the loss.
	AllowLoss bool

	// Rest, if set, is called by compactions after each block that they write, one at a time and on their own goroutines:
	// they go on when it returns. behind says that there is no time to rest, because the store is closing or level 0 has
	// grown too deep.
	Rest func(behind bool)

	// OnSync, if set, is called for each Append that reached the disk, with the time from the call to the end of
	// the fsync, the number of records, and their bytes. It runs on the goroutine that waited.
	OnSync func(d time.Duration, records, bytes int)
}

// Profile says what a store is tuned for.
type Profile uint8

const (
	ProfileLog   Profile = iota // records that ascend, are read on recovery only, and are dropped from the front
	ProfileTable                // rows in any order, read one by one and in ranges all the time
)

// Bounds of Options.MemTableBytes. (A record, or a batch of them, must fit into one of Pebble's batches, below 4 GiB.)
const (
	minMemTableBytes = 64 << 10
	maxMemTableBytes = 1 << 30
)

// Validate fills in the defaults and refuses what is impossible.
func (o *Options) Validate() error {
	if o.Dir == "" {
		return errors.New("wal: Options.Dir is empty")
	}
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Profile > ProfileTable {
		return fmt.Errorf("wal: Options.Profile is %d, must be ProfileLog or ProfileTable", o.Profile)
	}
	cache, memTable := int64(8<<20), uint64(4<<20)
	if o.Profile == ProfileTable {
		cache, memTable = 64<<20, 2<<20
	}
	o.CacheBytes = cmp.Or(o.CacheBytes, cache)
	if o.CacheBytes < 0 {
		return fmt.Errorf("wal: Options.CacheBytes is %d, must not be negative", o.CacheBytes)
	}
	o.MemTableBytes = cmp.Or(o.MemTableBytes, memTable)
	if o.MemTableBytes < minMemTableBytes || o.MemTableBytes > maxMemTableBytes {
		return fmt.Errorf("wal: Options.MemTableBytes is %d, must be %d to %d",
			o.MemTableBytes, minMemTableBytes, maxMemTableBytes)
	}
	return nil
}

// pebble returns Pebble's options for a log: keys come in ascending order, are read on recovery only, and are dropped from
// the front by range deletion. forTables changes what a store of tables needs otherwise.
func (o *Options) pebble(f *fence, lock *pebble.Lock, cache *pebble.Cache, compactions *scheduler) *pebble.Options {
	po := &pebble.Options{
		FS:     f,
		Lock:   lock,
		Cache:  cache,
		Logger: logger{f, o.Logger},
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { f.trip(fmt.Errorf("pebble in the background: %w", corruption(err))) },
			// Pebble's default would end the process. It is enough to log it, since the read that finds the corruption returns an
			// error. Behind a closed fence it is only a file whose end was not written.
			DataCorruption: func(info pebble.DataCorruptionInfo) {
				if f.err() == nil {
					o.Logger.Error("corrupt file", "path", info.Path, "error", info.Details)
				}
			},
		},

		// Pinned, so that an upgrade of Pebble never changes the files behind our back. In this format log chunks
		// tell what was synced before them, and the footers of tables carry a checksum. Without that checksum a
		// flipped bit in the footer's version makes Pebble read the blocks in another format, and panic.
		FormatMajorVersion: pebble.FormatTableFormatV6,

		MemTableSize: o.MemTableBytes,
		// Fifteen full memtables may wait for their flush before writes have to wait: two seconds of a flood. Beside a
		// checkpoint's fsync a flush takes longer than it takes to fill some.
		MemTableStopWritesThreshold: 16,

		// Files of ascending log keys in level 0 do not overlap and mostly move down without being
		// rewritten, and nobody reads while we run. So a burst may pile up some sublevels before
		// compaction takes CPU from the appender. Writes stop late, because a stop makes triggers late.
		L0CompactionThreshold: 4,
		L0StopWritesThreshold: 32,
		LBaseMaxBytes:         64 << 20,

		// Every append ends in an fsync, so there is never much of the log to write before one: no background
		// sync of the log (0), no pause between two syncs (nil). Tables are synced after each 512 KiB while they
		// are written: otherwise the end of a flush puts megabytes in front of the next append's fsync.
		WALBytesPerSync:    0,
		WALMinSyncInterval: nil,
		BytesPerSync:       512 << 10,

		// A truncation gives its disk space back even when nothing is appended after it.
		FlushDelayDeleteRange: 10 * time.Second,

		MaxOpenFiles: 256,
	}
	po.Experimental.CompactionScheduler = compactions
	for i := range po.Levels {
		// 32 KiB blocks: a sequential reader wants few and large ones. Compression stays Snappy, the
		// default: records are mostly JSON, it halves them for a few per cent of a core.
		po.Levels[i].BlockSize = 32 << 10
	}
	// With smaller tables a truncation could drop more of them whole; larger ones would
	// make each move and each compaction longer. 8 MiB is about 20,000 records.
	for i := range po.TargetFileSizes {
		po.TargetFileSizes[i] = 8 << 20
	}
	if o.Profile == ProfileTable {
		forTables(po)
	}
	return po
}

// forTables changes what a store of tables needs otherwise than a log.
func forTables(po *pebble.Options) {
	// One large level under level 0: rows come in any order, and are written once more for each level that they
	// pass. Why not larger: what comes through level 0 is merged with a part of that level each time.
	po.LBaseMaxBytes = 256 << 20

	// Why not 4, as for the log: with a million jobs, of which each checkpoint changed a tenth, compaction
	// wrote a third more. Why not 12, which saves as much again: a lookup asks the filter of each sublevel.
	po.L0CompactionThreshold = 8

	// Tens of gigabytes are thousands of tables; reading by key must not open files again and again.
	po.MaxOpenFiles = 4096

	// Fewer than for the log, because an ingest waits until the memtables are flushed.
	po.MemTableStopWritesThreshold = 4

	// An ingest must be in the manifest, whose loss the mark shows, and never only in Pebble's log.
	po.Experimental.DisableIngestAsFlushable = func() bool { return true }

	for i := range po.Levels {
		// 8 KiB blocks: a row is read alone as often as in a range, and the whole block is decompressed.
		po.Levels[i].BlockSize = 8 << 10
		// 10 bits a key, so about 1 % of false positives: that an id does not exist is mostly known from memory.
		po.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
}

// logger passes Pebble's messages on. Pebble expects that Fatalf does not return; see fence for why it may here.
type logger struct {
	fence *fence
	log   *slog.Logger
}

func (l logger) Infof(format string, args ...any) {
	l.log.Debug("pebble", "message", lazy{format, args})
}

func (l logger) Errorf(format string, args ...any) {
	l.log.Error("pebble", "message", lazy{format, args})
}

func (l logger) Fatalf(format string, args ...any) {
	l.fence.trip(fmt.Errorf("pebble gave up: %w", fmt.Errorf(format, args...)))
}

// lazy formats a message only if it is logged.
type lazy struct {
	format string
	args   []any
}

func (l lazy) LogValue() slog.Value { return slog.StringValue(fmt.Sprintf(l.format, l.args...)) }
