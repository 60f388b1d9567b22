package node

import (
	"sync"

	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/wal"
)

// logUsage estimates how full the log stream is: what it held when it was last asked, and what was read since of records that came after.
//
// A full stream refuses ticks as it refuses commands, so it must not become full. From half full on, freeing it comes before anything
// else; from three quarters on, requests wait. The last quarter is for ticks, and for raw commands, which the engine cannot hold up: a
// flood of those can fill the stream, until it is freed.
type logUsage struct {
	mu    sync.Mutex
	held  uint64        // bytes in the stream when it was last asked
	limit uint64        // bytes it may hold; 0: any number
	first uint64        // sequence of its first record then
	last  uint64        // sequence of its last record then
	since uint64        // bytes read of records after last
	seq   uint64        // of the last record read
	read  uint64        // bytes read in this run
	freed chan struct{} // closed once requests need not wait; nil while none waits
}

const (
	freeAbove = 4 // eighths from which the stream is freed, and checkpoints, which must come before that, no longer rest (restFactor)
	waitAbove = 6 // eighths from which requests wait
)

// count counts records that were read. Those up to last are in held already: a node that comes back reads many of these.
func (u *logUsage) count(records []wal.Record) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range records {
		size := uint64(len(records[i].Data))
		u.seq, u.read = records[i].Seq, u.read+size
		if u.seq > u.last {
			u.since += size
		}
	}
}

// bytesRead is how much was read in this run.
func (u *logUsage) bytesRead() uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.read
}

// update takes the stream's answer; read is what bytesRead returned before the stream was asked. If a record after the answer's last one
// was read meanwhile, all that was read meanwhile counts: rather too much than too little.
func (u *logUsage) update(info streams.Info, read uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.held, u.limit, u.first, u.last, u.since = info.Bytes, uint64(max(info.MaxBytes, 0)), info.First, info.Last, 0
	if u.seq > u.last {
		u.since = u.read - read
	}
	if u.freed != nil && !u.above(waitAbove) {
		close(u.freed)
		u.freed = nil
	}
}

// above tells whether more than so many eighths of the stream are in use. The caller holds mu.
func (u *logUsage) above(eighths uint64) bool {
	return u.limit > 0 && (u.held+u.since)*8 > u.limit*eighths
}

// holds tells whether the stream began at a sequence or below when it was last asked.
func (u *logUsage) holds(seq uint64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.first <= seq
}

// mustFree tells whether the stream must be freed.
func (u *logUsage) mustFree() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.above(freeAbove)
}

// nearlyFull tells whether requests have to wait.
func (u *logUsage) nearlyFull() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.above(waitAbove)
}

// mustWait returns nil if there is room for a request; otherwise a channel that is closed once there is.
func (u *logUsage) mustWait() <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.above(waitAbove) {
		return nil
	}
	if u.freed == nil {
		u.freed = make(chan struct{})
	}
	return u.freed
}
