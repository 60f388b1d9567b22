package wal

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// pace keeps flushes and compactions from taking a core for as long as they last: after each block that they write they yield
// the processor, and a compaction may rest there. Otherwise, where there are few cores, appends would wait: Go lets a busy
// goroutine run for 10 ms at a time, and a compaction lasts for seconds.
type pace struct {
	rest   func(behind bool) // Options.Rest; nil: compactions only yield
	store  atomic.Pointer[Store]
	began  time.Time    // for the monotonic clock
	looked atomic.Int64 // when behind was last updated, ns since began
	behind atomic.Bool
}

// The categories that Pebble gives to files that it makes (getDiskWriteCategoryForCompaction).
const (
	flushed   vfs.DiskWriteCategory = "pebble-memtable-flush"
	compacted vfs.DiskWriteCategory = "pebble-compaction"
)

// of returns what to call after each write of a file of this category; nil: nothing.
func (p *pace) of(c vfs.DiskWriteCategory) func() {
	switch {
	case c == compacted && p.rest != nil:
		return func() { p.rest(p.isBehind()) }
	case c == compacted, c == flushed:
		return runtime.Gosched
	}
	return nil
}

const (
	// behindSublevels of level 0 are twice as many as make a compaction of tables begin. Reads ask each sublevel. Writes
	// wait for compactions at four times as many as make one begin.
	behindSublevels = 16
	behindLook      = 250 * time.Millisecond
)

// isBehind tells whether compactions must go on without a rest: because level 0 is too deep, or because the store is closing and
// waits for them.
func (p *pace) isBehind() bool {
	s := p.store.Load()
	if s == nil || s.ending.Load() {
		return s != nil
	}
	if now := int64(time.Since(p.began)); now-p.looked.Load() > int64(behindLook) {
		p.looked.Store(now)
		m := s.Metrics()
		p.behind.Store(m == nil || m.Levels[0].Sublevels >= behindSublevels)
	}
	return p.behind.Load()
}
