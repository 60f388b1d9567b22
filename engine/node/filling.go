package node

import (
	"sync"

	"github.com/carillon-scheduler/carillon/engine/streams"
	"github.com/carillon-scheduler/carillon/wal"
)

// filling knows how full the log stream is: by its last answer, and by how much was read since of what has come after that.
//
// A stream that is full refuses ticks as it refuses commands, so it must not come to that. From half full on it is
// freed before anything else; from three quarters on requests wait. The last quarter is for the ticks, and
// for raw commands, which nobody can hold up: a flood of those can fill it, until it is freed.
type filling struct {
	mu    sync.Mutex
	held  uint64 // bytes in the stream when it was asked
	limit uint64 // 0: none
	first uint64 // sequence of the first record in it then
	last  uint64 // sequence of the last record in it then
	since uint64 // bytes read of records behind that one
	seq   uint64 // of the last record read
	read  uint64 // bytes read in this run
	freed chan struct{}
}

const (
	fillingFree = 4 // eighths from which the stream is freed, and checkpoints, which have to come first, rest no more (restTimes)
	fillingWait = 6 // eighths from which requests wait
)

// took is told of what was read. A node that comes back reads much that the stream holds already.
func (f *filling) took(records []wal.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range records {
		size := uint64(len(records[i].Data))
		f.seq, f.read = records[i].Seq, f.read+size
		if f.seq > f.last {
			f.since += size
		}
	}
}

// bytes is how much was read in this run.
func (f *filling) bytes() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.read
}

// asked takes the stream's answer; read is what bytes was before the stream was asked. If a record behind the answer's last one was
// read meanwhile, all that was read meanwhile counts: rather too much than too little.
func (f *filling) asked(info streams.Info, read uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held, f.limit, f.first, f.last, f.since = info.Bytes, uint64(max(info.MaxBytes, 0)), info.First, info.Last, 0
	if f.seq > f.last {
		f.since = f.read - read
	}
	if f.freed != nil && !f.above(fillingWait) {
		close(f.freed)
		f.freed = nil
	}
}

// above tells whether more than so many eighths are in use; its caller holds mu.
func (f *filling) above(eighths uint64) bool {
	return f.limit > 0 && (f.held+f.since)*8 > f.limit*eighths
}

// holds tells whether the stream, when it was asked, had a record at a sequence or below.
func (f *filling) holds(seq uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.first <= seq
}

// mustFree tells whether the stream must be freed.
func (f *filling) mustFree() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.above(fillingFree)
}

// tight tells whether requests have to wait.
func (f *filling) tight() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.above(fillingWait)
}

// mustWait is nil when there is room for a request; else it is closed once there is.
func (f *filling) mustWait() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.above(fillingWait) {
		return nil
	}
	if f.freed == nil {
		f.freed = make(chan struct{})
	}
	return f.freed
}
