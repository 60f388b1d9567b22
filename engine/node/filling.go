package node

import (
	"sync"

	"github.com/carillon-scheduler/carillon/engine/streams"
)

// filling knows how full the log stream is: what it was asked last, and how much was read from it since.
//
// A stream that is full refuses ticks as it refuses commands, so it must not come to that. Half full, it is
// freed before anything else; at three quarters, requests wait. The last quarter is for the ticks, and
// for raw commands, which nobody can hold up: a flood of those can fill it, until it is freed.
type filling struct {
	mu    sync.Mutex
	held  uint64 // bytes in the stream when it was asked
	limit uint64 // 0: none
	read  uint64 // bytes read by the node then
	freed chan struct{}
}

const (
	fillingFree = 2 // quarters from which the stream is freed
	fillingWait = 3 // quarters from which requests wait
)

// asked takes the stream's answer.
func (f *filling) asked(info streams.Info, read uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held, f.limit, f.read = info.Bytes, uint64(max(info.MaxBytes, 0)), read
	if f.freed != nil && !f.above(fillingWait, read) {
		close(f.freed)
		f.freed = nil
	}
}

// above tells whether more than so many quarters are in use; its caller holds mu.
func (f *filling) above(quarters, read uint64) bool {
	return f.limit > 0 && f.held+read-f.read > f.limit/4*quarters
}

// mustFree tells whether the stream must be freed.
func (f *filling) mustFree(read uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.above(fillingFree, read)
}

// tight tells whether requests have to wait.
func (f *filling) tight(read uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.above(fillingWait, read)
}

// mustWait is nil when there is room for a request; else it is closed once there is.
func (f *filling) mustWait(read uint64) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.above(fillingWait, read) {
		return nil
	}
	if f.freed == nil {
		f.freed = make(chan struct{})
	}
	return f.freed
}
