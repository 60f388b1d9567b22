package wal

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// pace keeps flushes and compactions from taking a core for as long as they last: they give way after each block that they
// write, and a compaction may rest there. Go lets a busy goroutine run for 10 ms, and a compaction lasts for seconds;
// where there are few cores, who appends would wait.
type pace struct {
	rest   func(behind bool) // nil: they only give way
	store  atomic.Pointer[Store]
	looked atomic.Int64 // when it was looked last whether compactions are behind, unix ns
	behind atomic.Bool
}

// What Pebble says of a file that it makes (getDiskWriteCategoryForCompaction).
const (
	flushed   vfs.DiskWriteCategory = "pebble-memtable-flush"
	compacted vfs.DiskWriteCategory = "pebble-compaction"
)

// of is what to call between two writes of a file; nil: nothing.
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
	// behindSublevels of level 0 are twice as many as a compaction begins with. Reads ask each, and writes wait for
	// compactions at four times as many.
	behindSublevels = 16
	behindLook      = 250 * time.Millisecond
)

// isBehind tells whether compactions are to go on without a rest: for the depth of level 0, or because the store closes and
// waits for them.
func (p *pace) isBehind() bool {
	s := p.store.Load()
	if s == nil || s.ending.Load() {
		return s != nil
	}
	if now := time.Now().UnixNano(); now-p.looked.Load() > int64(behindLook) {
		p.looked.Store(now)
		m := s.Metrics()
		p.behind.Store(m == nil || m.Levels[0].Sublevels >= behindSublevels)
	}
	return p.behind.Load()
}
